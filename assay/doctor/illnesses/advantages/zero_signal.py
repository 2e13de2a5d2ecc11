"""
## What it checks
A group teaches something only if its answers got different rewards. The check counts the groups whose scored rewards
are all equal (and whose advantages, where recorded, are all 0) and says which kind they are: solved (the best reward),
hopeless (the worst), or neither. In the curves it looks at zero_variance_share over the last steps. Of a reward that is
called by reward-check it counts the groups among the completions given, else among made-up answers.

## Why it hurts
A group without variance has advantage 0 in every row: its tokens were generated and scored for nothing. With three
groups in four like that, the rest carries the whole gradient, from a quarter of the batch. With all of them, nothing is
learned at all, and momentum or a KL term may still move the weights.

## How to fix it
Find out which kind it is. Hopeless: easier prompts, partial credit, more rollouts per prompt, a better starting model;
and try the reward on a known right answer. Solved: harder prompts. Equal rewards within every group but not between
them: the reward looks at the prompt instead of the answer.

    # before: one reward for all answers of a prompt
    rewards = [score(prompt, answers[0]) for answers in groups for _ in answers]
    # after
    rewards = [score(prompt, answer) for answers in groups for answer in answers]

## When it is wrong
A run that has solved its task has no signal left and is healthy; max_reward shows that. A hard task may begin with
almost no signal and find some later, so a hopeless batch is only a possible finding. Dynamic sampling
(zero_variance = refill) leaves such groups out before training.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from assay.doctor.catalogue import illness
from assay.doctor.evidence import Batch, Curves, Evidence, RewardTrial
from assay.doctor.examples import edit_batch, healthy_batch, healthy_curves, of_the_loss
from assay.doctor.examples.reward import reward_evidence
from assay.doctor.facts.repeats import values_by_key
from assay.doctor.facts.rewards import TOLERANCE, reward_groups
from assay.record.batch import Array
from assay.verdict import Confidence, Fact, Missing, Severity, Verdict, finding, healthy, not_enough_data

LIMIT = 0.75  # of the groups without signal: fewer than one in four then carries the gradient
GROUPS = 4  # fewer have no share to speak of
SOLVED = 0.5  # of the groups at the best reward: a run that has mostly solved its task
NEARLY = 0.9  # of the best reward: a mean this high is a task that is nearly solved
LUCK = 1e-3  # a chance below is none
MOST_GROUPS = 0.5  # without signal: fewer are usual
MOSTLY = 0.75  # of the groups with different answers
STEPS = 5  # of a curve; the last ten are judged
CONVENTIONAL_WORST = (-1.0, 0.0)  # where the scale is not stated


@dataclass(frozen=True)
class _Counts:
    groups: int
    flat: int
    solved: int
    hopeless: int
    values: int  # different rewards among the flat groups

    @property
    def share(self) -> float:
        return self.flat / self.groups


def check_batch(batch: Batch) -> Verdict:
    rewards_B, groups_B = batch.need("rewards", "group_ids")
    counts = _count(batch, rewards_B, groups_B)
    if counts.groups < GROUPS:
        return not_enough_data(f"{GROUPS} groups of at least two scored rows")
    facts = (
        Fact("share of groups without signal", counts.share, LIMIT, batch.step),
        Fact("of these, groups at the best reward", counts.solved, step=batch.step),
        Fact("of these, groups at the worst reward", counts.hopeless, step=batch.step),
    )
    if counts.share <= LIMIT:
        return healthy(f"{counts.groups - counts.flat} of {counts.groups} groups have a signal", *facts)
    if counts.solved == counts.groups or (counts.solved >= SOLVED * counts.groups and counts.share < 1.0):
        return healthy("most groups are solved: little is left to learn", *facts)
    summary = f"{counts.flat} of {counts.groups} groups have equal rewards and teach nothing"
    if counts.hopeless == counts.flat:
        return finding(
            f"{summary}: all of them have the worst reward; no answer was right, or the reward "
            "gives it to every answer",
            *facts,
            confidence=Confidence.POSSIBLE,
            fix="Try the reward on a known right answer (assay reward-check); then easier prompts, partial credit, "
            "more rollouts per prompt.",
        )
    if counts.share < 1.0 or counts.values < 2:
        return finding(summary, *facts, confidence=Confidence.POSSIBLE)
    return finding(
        f"{summary}, while rewards differ between groups ({counts.values} values): the reward tells prompts apart, not "
        "answers",
        *facts,
        confidence=Confidence.LIKELY if answers_differ(batch) and is_beyond_luck(batch) else Confidence.POSSIBLE,
        severity=Severity.HARMFUL,
        fix="Score each answer by itself: pass the completion, not only the prompt or the group's first answer.",
    )


def check_curves(curves: Curves) -> Verdict:
    (mean_N,) = curves.need("reward_mean")
    share_N = curves.column("zero_variance_share")
    if np.isnan(share_N).all():  # verl logs the smallest and the largest advantage: with both 0, no group has a signal
        lowest_N, highest_N = curves.column("advantage_min"), curves.column("advantage_max")
        share_N = np.where(np.isnan(lowest_N), np.nan, (lowest_N == 0) & (highest_N == 0))
    if np.isnan(share_N).all():
        raise Missing("zero_variance_share")
    known_N = np.isfinite(share_N) & np.isfinite(mean_N)
    if known_N.sum() < STEPS:
        return not_enough_data(f"zero_variance_share and reward_mean of {STEPS} steps")
    share, mean = float(np.median(share_N[known_N][-10:])), float(np.median(mean_N[known_N][-10:]))
    facts = (
        Fact("median share of groups without signal, last steps", share, LIMIT),
        Fact("median reward_mean, last steps", mean),
    )
    if share <= LIMIT:
        return healthy("enough groups have a signal", *facts)
    best = curves.settings.get("max_reward")
    if best is not None and mean >= NEARLY * best:
        return healthy("the task is nearly solved: little is left to learn", *facts)
    return finding(
        f"{share:.0%} of the groups had equal rewards in the last steps, at a mean reward of {mean:.2g}",
        *facts,
    )


def check_reward(trial: RewardTrial) -> Verdict:
    groups, origin = reward_groups(trial)
    if not groups:
        return not_enough_data("no group with two scored answers")
    flat = [group for group in groups if max(group) - min(group) <= TOLERANCE]
    if len(flat) <= MOST_GROUPS * len(groups):
        return healthy(f"{len(flat)} of {len(groups)} groups of {origin} have no variance")
    top = max(reward for group in groups for reward in group)
    is_solved = bool(trial.groups) and all(group[0] >= top - TOLERANCE for group in flat)
    is_every = len(flat) == len(groups)
    return finding(
        f"{len(flat)} of {len(groups)} groups of {origin} have no variance: they train nothing",
        severity=(Severity.HARMFUL if is_every else Severity.WASTEFUL) if trial.groups else Severity.FATAL,
        confidence=Confidence.POSSIBLE if is_solved else Confidence.LIKELY if trial.groups else Confidence.PROVEN,
        fix="Choose problems that the model solves sometimes, grade partial answers, or refill "
        "(rollout.zero_variance).",
        examples=(f"all {len(flat[0])} rewards are {flat[0][0]:g}",),
    )


def answers_differ(batch: Batch) -> bool:
    """Whether most groups are known to hold different answers: equal ones earn equal rewards by right."""
    (groups_B,) = batch.need("group_ids")
    tokens_BT, texts = batch.get("tokens"), batch.texts.get("completion")
    if tokens_BT is None and texts is None:
        return False
    answers = [row.tobytes() for row in tokens_BT] if tokens_BT is not None else list(texts or ())
    groups = values_by_key(groups_B.tolist(), answers).values()
    return sum(len(set(group)) > 1 for group in groups) >= MOSTLY * len(groups)


def is_beyond_luck(batch: Batch) -> bool:
    """Whether rewards dealt out at random would hardly ever be equal within each group."""
    rewards_B, groups_B = batch.need("rewards", "group_ids")
    scored_B = np.isfinite(rewards_B)
    _, counts = np.unique(rewards_B[scored_B], return_counts=True)
    same = float(np.square(counts / max(int(scored_B.sum()), 1)).sum())
    return same ** (int(scored_B.sum()) - len(np.unique(groups_B[scored_B]))) < LUCK


def _count(batch: Batch, rewards_B: Array, groups_B: Array) -> _Counts:
    best = float(batch.settings.get("max_reward", np.inf))
    advantages = np.nan_to_num(batch.arrays.get("advantages", np.zeros(len(rewards_B))))
    signal_B = np.array([np.any(row) for row in advantages], dtype=bool)
    groups, flat_rewards = 0, []
    for group in np.unique(groups_B):
        member_B = groups_B == group
        scored_N = rewards_B[member_B & np.isfinite(rewards_B)]
        if len(scored_N) < 2:
            continue
        groups += 1
        # process rewards and several rewards may tell answers of equal sum apart: then the advantages do
        if scored_N.max() == scored_N.min() and not signal_B[member_B].any():
            flat_rewards.append(float(scored_N[0]))
    solved = sum(reward >= best for reward in flat_rewards)
    hopeless = sum(_is_worst(reward, batch) for reward in flat_rewards)
    return _Counts(groups, len(flat_rewards), solved, hopeless, len(set(flat_rewards)))


def _is_worst(reward: float, batch: Batch) -> bool:
    if "min_reward" in batch.settings:
        return bool(reward <= batch.settings["min_reward"])
    return reward in CONVENTIONAL_WORST


def _one_reward_a_group(rewards: tuple[float, ...]) -> Batch:
    """Every row of a group has its group's reward; what a loss made of it is left out."""
    batch = healthy_batch()
    unknown = of_the_loss(batch)
    unknown |= dict.fromkeys(("update_norm", "tensors_changed", "tensors_without_gradient", "numbers_changed_share"))
    rewards_B = np.repeat(rewards, len(batch.arrays["rewards"]) // len(rewards))
    nothing = {"advantages": np.zeros(len(rewards_B)), "gradient_norm": 0.0, "kl_coef": 0.0}
    return edit_batch(batch, rewards=rewards_B, reward_mean=float(rewards_B.mean()), **{**unknown, **nothing})


def sick() -> Evidence:
    batch, curves = _one_reward_a_group((1.0, 0.0, 0.0, 1.0)), healthy_curves(zero_variance_share=0.9)
    return Evidence((batch,), curves, reward=reward_evidence(groups=((0.0, 0.0), (0.0, 0.0), (0.0, 1.0))).reward)


def well() -> Evidence:
    batch, curves = _one_reward_a_group((1.0, 1.0, 1.0, 1.0)), healthy_curves(zero_variance_share=0.7)
    return Evidence((batch,), curves, reward=reward_evidence(groups=((0.0, 0.0), (0.0, 1.0))).reward)


ILLNESS = illness(
    __name__,
    code="ADV09",
    severity=Severity.WASTEFUL,
    summary="most groups have equal rewards and teach nothing",
    fix="Look at the answers: they are too hard, too easy, or the reward cannot tell them apart.",
    symptoms=(
        "reward std is 0",
        "all rewards in a group are the same",
        "advantages are zero",
        "loss is zero",
        "frac_reward_zero_std is 1",
        "no learning signal",
        "task too hard, reward always 0",
        "reward does not move",
    ),
    sick=sick,
    well=well,
    explains=frozenset({"LOSS05", "MET05", "MET07", "OPT02", "REW12"}),
)
