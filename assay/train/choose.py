"""Which groups a step trains on: badly scored groups are dropped, groups without signal kept, skipped or replaced."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from assay.config import Config
from assay.train.failure import RunFailed
from assay.train.place import Gathered
from assay.types import Group


def choose(gathered: Gathered, groups: Sequence[Group], config: Config, say: Callable[[str], None]) -> Gathered:
    """Adds one round of groups to those gathered and decides whether the step has enough."""
    policy, wanted = config.rollout.zero_variance, config.rollout.prompts
    scored = [group for group in groups if _share_scored(group) >= config.task.min_scored]
    if len(scored) < len(groups):
        say(
            f"dropped {len(groups) - len(scored)} of {len(groups)} groups: fewer than "
            f"{config.task.min_scored:.0%} of their rollouts could be scored"
        )
    flat = sum(not group.has_signal for group in scored)
    kept = scored if policy == "keep" else [group for group in scored if group.has_signal]
    rounds = gathered.rounds + 1
    together = (*gathered.groups, *kept)
    if policy == "refill" and len(together) < wanted and rounds >= config.rollout.refill_rounds:
        raise RunFailed(_no_signal(len(together), wanted, rounds, gathered.drawn + len(groups), groups))
    return Gathered(
        groups=together[:wanted],
        drawn=gathered.drawn + len(groups),
        rounds=rounds,
        without_signal=gathered.without_signal + flat,
        complete=policy != "refill" or len(together) >= wanted,
    )


def _share_scored(group: Group) -> float:
    return sum(reward is not None for reward in group.rewards) / len(group.rewards)


def _no_signal(found: int, wanted: int, rounds: int, drawn: int, last: Sequence[Group]) -> str:
    rewards = [reward for group in last for reward in group.rewards if reward is not None]
    mean = sum(rewards) / max(len(rewards), 1)
    return (
        f"dynamic sampling found only {found} of {wanted} groups with differing rewards in {rounds} rounds "
        f"({drawn} prompts); the mean reward is {mean:.3f}: the task is solved, hopeless, or its reward is constant; "
        "raise rollout.refill_rounds, change the task's difficulty, or set rollout.zero_variance = 'skip'"
    )
