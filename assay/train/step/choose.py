"""Group[P] -> CollectedGroups: drops badly scored groups; keeps, skips or replaces groups without signal."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from assay.config import Config
from assay.train.failure import RunFailed
from assay.train.progress import CollectedGroups
from assay.train.step.credit import beside_steps
from assay.train.step.score import ADDED_COMPONENTS, reward_weights
from assay.types import Group, weight_of


class NoSignal(RunFailed):
    """No prompt gives a signal any more. The run is saved first."""


def choose(
    collected: CollectedGroups, groups: Sequence[Group], config: Config, say: Callable[[str], None]
) -> CollectedGroups:
    """Adds one round of groups to those collected and decides whether the step has enough."""
    policy, wanted = config.rollout.zero_variance, config.rollout.prompts
    usable = [group for group in groups if _share_scored(group) >= config.reward.min_scored]
    if len(usable) < len(groups):
        say(
            f"dropped {len(groups) - len(usable)} of {len(groups)} groups: fewer than "
            f"{config.reward.min_scored:.0%} of their rollouts could be scored"
        )
    with_signal = [group for group in usable if has_signal(group, config)]
    together = (*collected.groups, *(usable if policy == "keep" else with_signal))
    rounds, kept = collected.rounds + 1, together[:wanted]
    if policy == "refill" and len(together) < wanted and rounds >= config.rollout.refill_rounds:
        raise NoSignal(_no_signal(len(together), wanted, rounds, collected.prompts_drawn + len(groups), groups))
    return CollectedGroups(
        groups=kept,
        left_out=(*collected.left_out, *(group for group in groups if all(group is not other for other in kept))),
        prompts_drawn=collected.prompts_drawn + len(groups),
        rounds=rounds,
        without_signal=collected.without_signal + sum(not has_signal(group, config) for group in groups),
        complete=policy != "refill" or len(together) >= wanted,
    )


def has_signal(group: Group, config: Config) -> bool:
    """Whether two scored rollouts differ in the task's own reward. What the trainer adds (KL, length) does not count;
    under GDPO each component is compared on its own, since each is normalised on its own."""
    weights = reward_weights(config)
    scored = [score for score in group.scores if not score.error]
    own = [
        {
            name: weight_of(name, weights) * value
            for name, value in score.components.items()
            if name not in ADDED_COMPONENTS
        }
        for score in scored
    ]
    if config.advantage.combine == "gdpo":
        return len({tuple(sorted(components.items())) for components in own}) > 1
    steps = {reward for score in scored for _, reward in score.steps}  # each step is compared with all of the group
    rest = {beside_steps(sum(values.values()), score) for values, score in zip(own, scored, strict=True)}
    return len(steps) > 1 or len(rest) > 1


def _share_scored(group: Group) -> float:
    return sum(reward is not None for reward in group.rewards) / len(group.rewards)


def _no_signal(found: int, wanted: int, rounds: int, prompts: int, last: Sequence[Group]) -> str:
    rewards = [reward for group in last for reward in group.rewards if reward is not None]
    mean = sum(rewards) / max(len(rewards), 1)
    return (
        f"dynamic sampling found only {found} of {wanted} groups with differing rewards in {rounds} rounds "
        f"({prompts} prompts); the mean reward is {mean:.3f}: the task is solved, hopeless, or its reward is constant; "
        "the run is saved as it stands; for another one raise rollout.refill_rounds, change the task's difficulty, or "
        "set rollout.zero_variance = 'skip'"
    )
