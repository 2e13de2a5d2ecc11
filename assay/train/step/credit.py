"""Group[P] -> Sample[P * G]: rewards become advantages.

Shape legend: P groups, G rollouts per group, K reward components.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from assay.config.sections import AdvantageConfig
from assay.grpo import gdpo_advantages, group_advantages, process_advantages
from assay.train.failure import RunFailed
from assay.types import Group, Sample, Score, weight_of


def advantages_of(rewards_PG: Tensor, settings: AdvantageConfig) -> Tensor:
    return group_advantages(
        rewards_PG,
        baseline=settings.baseline,
        std=settings.std,
        scale=settings.scale,
        epsilon=settings.epsilon,
    )


def credit(
    groups: Sequence[Group], settings: AdvantageConfig, weights: Mapping[str, float], *, mask_truncated: bool
) -> tuple[Sample, ...]:
    """One sample per rollout, in order. An unscored rollout gets advantage 0 and does not count in the baseline."""
    if not groups:
        return ()
    if settings.combine == "gdpo":
        names = sorted({name for group in groups for score in group.scores for name in score.components})
        rewards_PGK = torch.tensor(
            [[[score.components.get(name, torch.nan) for name in names] for score in group.scores] for group in groups],
            dtype=torch.float64,
        )
        weights_K = torch.tensor([weight_of(name, weights) for name in names], dtype=torch.float64)
        advantages_PG = gdpo_advantages(rewards_PGK, weights_K, std=settings.std, epsilon=settings.epsilon)
    else:
        # process rewards are credited step by step, in _by_token
        rewards_PG = torch.tensor(
            [[_outcome(score) for score in group.scores] for group in groups],
            dtype=torch.float64,
        )
        advantages_PG = advantages_of(rewards_PG, settings)
    return tuple(
        Sample(group.prompt, rollout, advantage, in_loss=not (mask_truncated and rollout.truncated))
        for group, outcomes in zip(groups, advantages_PG.tolist(), strict=True)
        for rollout, advantage in zip(group.rollouts, _by_token(group, outcomes, settings), strict=True)
    )


def _outcome(score: Score) -> float:
    return torch.nan if score.reward is None else beside_steps(score.reward, score)


def beside_steps(reward: float, score: Score) -> float:
    """`reward` without the rewards of the steps. It is rounded: a subtraction leaves noise in the last digits, and
    dividing by a small std would turn that noise into advantages."""
    if not score.steps:
        return reward
    process = sum(step_reward for _, step_reward in score.steps)
    magnitude = max(abs(reward), abs(process), 1.0)
    return round(reward - process, 12 - math.ceil(math.log10(magnitude)))


def _by_token(
    group: Group, outcomes: Sequence[float], settings: AdvantageConfig
) -> Sequence[float | tuple[float, ...]]:
    """The advantages of a group: one per rollout, or one per token where rewards came step by step."""
    if not any(score.steps for score in group.scores):
        return outcomes
    if (settings.combine, settings.scale) != ("sum", "group"):
        raise RunFailed(
            "the reward gives one number per step, which is compared within its group only; set advantage.combine = "
            "'sum' and advantage.scale = 'group'"
        )
    steps = max(len(score.steps) for score in group.scores)
    rewards_1GS = torch.full((1, len(group.scores), steps), torch.nan, dtype=torch.float64)
    ends_1GS = torch.zeros(1, len(group.scores), steps, dtype=torch.int64)
    for row, score in enumerate(group.scores):
        for step, (tokens, reward) in enumerate(score.steps):
            rewards_1GS[0, row, step], ends_1GS[0, row, step] = reward, tokens - 1
    longest = max(len(rollout.tokens) for rollout in group.rollouts)
    process_GT = process_advantages(rewards_1GS, ends_1GS, longest, std=settings.std, epsilon=settings.epsilon)[0]
    return [
        tuple(outcome + step for step in by_token[: len(rollout.tokens)])
        for outcome, by_token, rollout in zip(outcomes, process_GT.tolist(), group.rollouts, strict=True)
    ]
