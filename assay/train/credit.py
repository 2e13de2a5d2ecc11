"""Group[P] -> Sample[P * G]: rewards become advantages.

Shape legend: P groups, G rollouts a group, K reward components.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from assay.config import AdvantageConfig
from assay.grpo import gdpo_advantages, group_advantages
from assay.types import Group, Sample


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
    """One sample a rollout, in order. An unscored rollout gets advantage 0 and no say in its group's baseline."""
    if not groups:
        return ()
    if settings.combine == "gdpo":
        names = sorted({name for group in groups for score in group.scores for name in score.components})
        rewards_PGK = torch.tensor(
            [[[score.components.get(name, torch.nan) for name in names] for score in group.scores] for group in groups],
            dtype=torch.float64,
        )
        weights_K = torch.tensor([weights.get(name, 1.0) for name in names], dtype=torch.float64)
        advantages_PG = gdpo_advantages(rewards_PGK, weights_K, std=settings.std, epsilon=settings.epsilon)
    else:
        rewards_PG = torch.tensor(
            [[torch.nan if reward is None else reward for reward in group.rewards] for group in groups],
            dtype=torch.float64,
        )
        advantages_PG = advantages_of(rewards_PG, settings)
    return tuple(
        Sample(group.prompt, rollout, advantage, in_loss=not (mask_truncated and rollout.truncated))
        for group, advantages in zip(groups, advantages_PG.tolist(), strict=True)
        for rollout, advantage in zip(group.rollouts, advantages, strict=True)
    )
