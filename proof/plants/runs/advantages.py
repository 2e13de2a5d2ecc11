"""Plants of illnesses of advantages: each makes a real run of the real trainer ill."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from assay.doctor.evidence import Batch
from assay.doctor.examples import edit_batch
from assay.doctor.illnesses.advantages.returns_from_whitened import with_a_critic
from assay.doctor.illnesses.advantages.reward_position import laid_on_tokens
from proof.plants.plant import Plant

SCORE = "assay.train.step.verbs.score"
GROUP_ADVANTAGES = "assay.train.step.credit.group_advantages"


def _one_group_of_all(original, rewards_PG, **how):
    """A reshape that makes the whole batch one group."""
    return original(rewards_PG.reshape(1, -1), **how).reshape(rewards_PG.shape)


def _grouped_by_position(batch: Batch) -> Batch:
    """Groups cut in a row from prompts that came by turns. The trainer's own Group refuses such rows, so that the
    illness is given to what it recorded; advantages, which no longer fit any grouping, are left out."""
    if "group_ids" not in batch.arrays:
        return batch
    groups_B = batch.arrays["group_ids"]
    count = len(np.unique(groups_B))
    made_of_groups = dict.fromkeys(
        name
        for name in (*batch.arrays, *batch.numbers)
        if name in ("advantages", "rewards") or name.startswith(("loss", "policy_loss", "token_loss", "gradients"))
    )
    return edit_batch(batch, group_ids=np.arange(len(groups_B)) % count, **made_of_groups)


def _std_without_mean(original, rewards_PG, *, epsilon=1e-4, **how):
    """Rewards are scaled and never centred."""
    spread_P1 = rewards_PG.nan_to_num(nan=0.0).std(dim=1, keepdim=True)
    return (rewards_PG / (spread_P1 + epsilon).where(spread_P1 > 0, 1.0)).nan_to_num(nan=0.0)


def _std_of_the_others(original, rewards_PG, **how):
    """Leave-one-out mean and std with a tiny epsilon: where all others are equal, their std is 0."""
    scored_PG = rewards_PG.nan_to_num(nan=0.0)
    columns = range(scored_PG.shape[1])
    others_PGN = torch.stack([scored_PG[:, [column for column in columns if column != own]] for own in columns], dim=1)
    return (scored_PG - others_PGN.mean(dim=2)) / (others_PGN.std(dim=2) + 1e-4)


def _without_parentheses(original, rewards_PG, *, epsilon=1e-4, **how):
    scored_PG = rewards_PG.nan_to_num(nan=0.0)
    mean_P1, std_P1 = scored_PG.mean(dim=1, keepdim=True), scored_PG.std(dim=1, keepdim=True)
    return scored_PG - mean_P1 / (std_P1 + epsilon)


def _whitened_returns(original, groups, settings, weights, **how):
    """The advantage of the outcome is laid on tokens as a discounted return, which is then whitened row by row."""
    samples = []
    for sample in original(groups, settings, weights, **how):
        count = len(sample.rollout.tokens)
        returns = sample.advantage * 0.9 ** np.arange(count - 1, -1, -1)
        spread = returns.std(ddof=1) if count > 1 else 0.0
        white = (returns - returns.mean()) / (spread + 1e-8)
        samples.append(replace(sample, advantage=tuple(white.tolist())))
    return tuple(samples)


def _plant(batch: Batch) -> Batch:
    return with_a_critic(batch, whitened_first=True) if "mask" in batch.arrays else batch


def _the_first_answer_counts(original, prompts, rollouts, **how):
    """All answers of a prompt get the reward of the first one."""
    groups = original(prompts, rollouts, **how)
    return [replace(group, scores=(group.scores[0],) * len(group.scores)) for group in groups]


def _in_order_of_completion(original, prompts, rollouts, **how):
    """The first answer takes longest to score, so that its reward comes last: every row gets its successor's."""
    groups = original(prompts, rollouts, **how)
    scores = [score for group in groups for score in group.scores]
    moved = iter(scores[1:] + scores[:1])
    return [replace(group, scores=tuple(next(moved) for _ in group.scores)) for group in groups]


def _plant_adv12(batch: Batch) -> Batch:
    if "mask" not in batch.arrays or "rewards" not in batch.arrays:
        return batch
    return laid_on_tokens(batch, at_the_end=False)


PLANTS: dict[str, Plant] = {
    "ADV01": Plant(replaces={GROUP_ADVANTAGES: _one_group_of_all}),
    "ADV02": Plant(edits=_grouped_by_position),
    "ADV03": Plant(replaces={GROUP_ADVANTAGES: _std_without_mean}),
    "ADV04": Plant(replaces={GROUP_ADVANTAGES: _std_of_the_others}),
    "ADV05": Plant(replaces={GROUP_ADVANTAGES: _without_parentheses}),
    "ADV06": Plant(replaces={"assay.train.step.verbs.credit": _whitened_returns}),
    "ADV07": Plant(edits=_plant),
    "ADV09": Plant(replaces={SCORE: _the_first_answer_counts}, steps=5),
    "ADV10": Plant(replaces={SCORE: _in_order_of_completion}),
    "ADV12": Plant(edits=_plant_adv12),
}
