"""Terms -> the loss of the update, by every objective and every way to average, and with the known mistakes.

WEIGHTS, a table of functions, holds every aggregation; AGGREGATIONS and SURROGATES say them in words.
Shape legend: B rows, T completion tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from assay import grpo
from assay.config.sections import LossConfig, choices_of
from assay.doctor.recompute.arrays import plain, tensor
from assay.doctor.recompute.match import ROUNDING, Array, Match, Variant, nearest
from assay.doctor.recompute.terms import (
    TokenTerms,
    correction,
    gradient_parts,
    kl_variants,
    loss_settings,
    terms,
    totals,
)
from assay.record.batch import Batch
from assay.types import Totals
from assay.verdict import Missing

Weights = Callable[[Array, Totals], Array]  # of the mask and the counts of the update


def _weights_in_training(aggregation: str, mask_BT: Array, counts: Totals) -> Array:
    return plain(grpo.token_weights(tensor(mask_BT.astype(np.float64)), aggregation, counts))


AGGREGATIONS = {
    "sequence_mean": "a mean over each row, then over rows",
    "token_mean": "a mean over all loss tokens",
    "rollout_token_mean": "a mean over all loss tokens of the rollout batch",
    "constant": "a sum over max_tokens * rows",
    "sum": "a plain sum over tokens",
    "row_sums": "a mean over rows of sums over tokens",
}
PADDED = "padded_mean"  # divided by rows * columns, padding included
WEIGHTS: dict[str, Weights] = {
    **{name: partial(_weights_in_training, name) for name in grpo.AGGREGATIONS},
    "sum": lambda mask_BT, counts: mask_BT.astype(np.float64),
    "row_sums": lambda mask_BT, counts: np.asarray(mask_BT / max(counts.sequences, 1)),
    PADDED: lambda mask_BT, counts: np.asarray(mask_BT / max(counts.sequences * mask_BT.shape[1], 1)),
}
WITHOUT_CLIP = 1e9  # a bound that nothing reaches


def aggregation_of(batch: Batch) -> str:
    return str(batch.settings.get("aggregation", grpo.OBJECTIVES[loss_settings(batch).objective].aggregation))


def weights(batch: Batch, aggregation: str) -> Array:
    """The weight of each token in the loss."""
    (mask_BT,) = batch.need("mask")
    if aggregation not in WEIGHTS:
        raise Missing(f"an aggregation that is known here ({', '.join(AGGREGATIONS)})")
    return WEIGHTS[aggregation](mask_BT, totals(batch))


def expected_gradients(batch: Batch, settings: LossConfig | None = None) -> tuple[Array, Array]:
    """`gradient_parts` with the tokens weighed as the settings say."""
    return gradient_parts(batch, weights(batch, aggregation_of(batch)), settings)


def without_clip(settings: LossConfig) -> LossConfig:
    return replace(settings, clip_low=WITHOUT_CLIP, clip_high=WITHOUT_CLIP)


def loss(batch: Batch) -> float:
    """As configured; of a part of an update its share, where the settings count the whole."""
    return _total(batch, terms(batch), weights(batch, aggregation_of(batch)))


def is_part(batch: Batch) -> bool:
    """Whether the settings say that the update had more rows or loss tokens than this batch."""
    (mask_BT,) = batch.need("mask")
    counts = totals(batch)
    return counts.sequences != len(mask_BT) or counts.tokens != int(mask_BT.sum())


def is_known_whole(batch: Batch) -> bool:
    """Whether the settings say that these rows are all of their update: a part has a loss of another size."""
    (mask_BT,) = batch.need("mask")
    settings = batch.settings
    if "sequences" in settings or "loss_tokens" in settings:
        return not is_part(batch)
    prompts, size = settings.get("prompts"), settings.get("group_size")
    if not isinstance(prompts, int) or not isinstance(size, int) or settings.get("minibatches", 1) != 1:
        return False
    return prompts * size == len(mask_BT)


def nearest_loss(batch: Batch) -> Match:
    recorded = float(batch.number("loss"))
    if not np.isfinite(recorded):
        raise Missing("a finite loss")
    settings = loss_settings(batch)
    aggregation = aggregation_of(batch)
    as_configured = terms(batch, settings)
    weights_BT = weights(batch, aggregation)
    variants = [*_deliberate(batch, settings, aggregation), *_bugs(batch, settings, aggregation)]
    entropy = abs(_entropy(batch, settings))
    # a loss is a sum of both signs: rounding is relative to the size of its terms, not to what is left of them
    parts_BT = np.abs(as_configured.policy_BT)
    if as_configured.kl_BT is not None:
        parts_BT = parts_BT + as_configured.kl_coef * np.abs(as_configured.kl_BT)
    scale = max(float((weights_BT * np.where(as_configured.mask_BT, parts_BT, 0.0)).sum()) + entropy, 1e-12)
    dtype = str(batch.settings.get("dtype", "float32"))
    names = ("objective", "aggregation", "kl_estimator", "kl_gradient")
    stated = {name: batch.settings[name] for name in names if name in batch.settings}
    if "objective" in stated:
        stated["aggregation"] = aggregation
    return nearest(
        np.array([recorded]),
        variants,
        stated,
        tolerance=ROUNDING.get(dtype, ROUNDING["float32"]),
        floor=1e-7,
        scale=scale,
    )


def nearest_kl_loss(batch: Batch) -> Match:
    """The KL part of the loss, from one number: which estimator?"""
    recorded = float(batch.number("kl_loss")) / loss_settings(batch).kl_coef
    if not np.isfinite(recorded):
        raise Missing("a finite kl_loss")
    mask_BT, new_BT, old_BT, ref_BT = batch.need("mask", "new_logprobs", "old_logprobs", "ref_logprobs")
    weights_BT = weights(batch, aggregation_of(batch))
    found = []
    for way in kl_variants(new_BT, ref_BT, old_BT, mask_BT):
        found.append(_variant(way.name, _sum(way.values, weights_BT, mask_BT), way.is_bug, dict(way.options)))
    difference_BT = np.where(mask_BT, new_BT - ref_BT, 0.0)
    scale = max(_sum(difference_BT**2 / 2, weights_BT, mask_BT), 1e-12)
    dtype = str(batch.settings.get("dtype", "float32"))
    limit = 10 * ROUNDING.get(dtype, ROUNDING["float32"])  # k3 of a small difference keeps few digits
    stated = {name: batch.settings[name] for name in ("kl_estimator",) if name in batch.settings}
    return nearest(np.array([recorded]), found, stated, tolerance=limit, floor=5e-7, scale=scale)


def _deliberate(batch: Batch, settings: LossConfig, aggregation: str) -> list[Variant]:
    found = []
    order = [settings.objective, *(name for name in grpo.OBJECTIVES if name != settings.objective)]
    for objective in order:
        term = terms(batch, replace(settings, objective=objective))
        for how, words in AGGREGATIONS.items():
            options = {"objective": (objective,), "aggregation": (how,)}
            found.append(
                _variant(f"{objective} with {words}", _total(batch, term, weights(batch, how)), False, options)
            )
    for way in _other_kl(batch, settings):
        options = {"objective": (settings.objective,), "aggregation": (aggregation,)}
        words = "no KL in the loss"
        if way.kl_placement == "loss":
            words = f"{way.kl_estimator} ({way.kl_gradient}) as its KL"
            if not _is_open(batch, way):
                options |= {"kl_estimator": (way.kl_estimator,), "kl_gradient": (way.kl_gradient,)}
        total = _total(batch, terms(batch, way), weights(batch, aggregation))
        found.append(_variant(f"{settings.objective} with {words}", total, False, options))
    return found


def _other_kl(batch: Batch, settings: LossConfig) -> list[LossConfig]:
    """All other ways to have a KL; those that the settings leave open first."""
    if not settings.kl_coef:
        return []
    in_reward = [] if kl_is_placed(batch) else [replace(settings, kl_placement="reward")]
    if settings.kl_placement != "loss":
        return in_reward
    choices = choices_of(LossConfig)
    ways = [
        replace(settings, kl_estimator=estimator, kl_gradient=gradient)
        for estimator in choices["kl_estimator"]
        for gradient in choices["kl_gradient"]
    ]
    others = [way for way in ways if way != settings]
    return [*in_reward, *sorted(others, key=lambda way: not _is_open(batch, way))]


def _is_open(batch: Batch, way: LossConfig) -> bool:
    """Whether no setting speaks against this KL."""
    names = ("kl_estimator", "kl_gradient")
    return all(batch.settings.get(name, getattr(way, name)) == getattr(way, name) for name in names)


def kl_is_placed(batch: Batch) -> bool:
    """Whether it is known that the KL stands in the loss, or in the reward: stated, or seen in the loss."""
    return "kl_placement" in batch.settings or "kl_loss" in batch.numbers


def _bugs(batch: Batch, settings: LossConfig, aggregation: str) -> list[Variant]:
    """The configured loss with one mistake."""
    right = terms(batch, settings)
    weights_BT = weights(batch, aggregation)
    entropy = _entropy(batch, settings)
    policy = _sum(right.policy_BT, weights_BT, right.mask_BT)
    kl = 0.0 if right.kl_BT is None else right.kl_coef * _sum(right.kl_BT, weights_BT, right.mask_BT)
    found = [
        _variant("the configured one with the sign flipped", -(policy + kl + entropy)),
        _variant("the configured one with the sign of the policy part flipped", -policy + kl + entropy),
        _variant("a mean over rows * columns, padding included", _total(batch, right, weights(batch, PADDED))),
    ]
    if right.kl_BT is not None:
        found += [
            _variant("the configured one with the KL subtracted", policy - kl + entropy),
            *([_variant("the configured one without the KL", policy + entropy)] if kl_is_placed(batch) else []),
            _variant("the configured one with the KL added twice", policy + 2 * kl + entropy),
        ]
    micro = batch.settings.get("microbatches", 1)
    if micro > 1:
        name = f"the configured one divided by its {micro} micro-batches again"
        found += [
            _variant(name, (policy + kl + entropy) / micro),
            _variant(f"the configured one times its {micro} micro-batches", (policy + kl + entropy) * micro),
        ]
    if entropy:
        found.append(_variant("the configured one with the entropy penalised", policy + kl - entropy))
    if grpo.OBJECTIVES[settings.objective].clips:
        for name, surrogate_BT in surrogates(batch, settings).items():
            if name != "min":
                total = _sum(surrogate_BT, weights_BT, right.mask_BT) + kl + entropy
                found.append(_variant(f"the configured one with {SURROGATES[name]}", total))
    return found


SURROGATES = {
    "min": "min(r A, clip(r) A)",
    "max": "max(r A, clip(r) A) where min is meant",
    "unclipped": "r A alone, never clipped",
    "clamped": "clip(r) A alone, where min(r A, clip(r) A) is meant",
}


def surrogates(batch: Batch, settings: LossConfig) -> dict[str, Array]:
    """The policy part of each token's loss, right ("min") and with the clip done wrong."""
    right = terms(batch, settings)
    free = terms(batch, without_clip(settings))
    advantages_BT = np.where(right.mask_BT, batch.token_advantages, 0.0)
    clamped_BT = np.clip(right.ratio_BT, 1 - settings.clip_low, 1 + settings.clip_high) * advantages_BT
    clamped_BT = -clamped_BT * correction(batch, settings)
    return {
        "min": right.policy_BT,
        "max": np.minimum(free.policy_BT, clamped_BT),  # of losses: the larger objective is the smaller loss
        "unclipped": free.policy_BT,
        "clamped": clamped_BT,
    }


def _total(batch: Batch, term: TokenTerms, weights_BT: Array) -> float:
    return _sum(term.of_tokens(), weights_BT, term.mask_BT) + _entropy(batch, term.settings)


def _entropy(batch: Batch, settings: LossConfig) -> float:
    if not settings.entropy_coef:
        return 0.0
    mask_BT, entropy_BT = batch.need("mask", "entropy")
    weights_BT = weights(batch, "token_mean")
    if aggregation_of(batch) == "rollout_token_mean" and batch.settings.get("minibatches", 1) != 1:
        # there loss_tokens is a share of the tokens of the rollout batch; the bonus is a mean over those of the update
        if "sequences" in batch.settings:
            raise Missing("loss tokens of the whole update, over which the entropy bonus is a mean")
        weights_BT = mask_BT / max(int(mask_BT.sum()), 1)
    return -settings.entropy_coef * _sum(entropy_BT, weights_BT, mask_BT)


def _sum(values_BT: Array, weights_BT: Array, mask_BT: Array) -> float:
    return float(np.where(mask_BT, values_BT * weights_BT, 0.0).sum())


def _variant(name: str, value: float, is_bug: bool = True, options: dict[str, Any] | None = None) -> Variant:
    return Variant(name, np.array([value]), is_bug, options or {})
