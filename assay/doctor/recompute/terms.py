"""Log-probs -> ratio, clip, KL, loss of each token and d loss / d new_logprobs, by the formulas of assay/grpo.py.

RATIOS and KL_MISTAKES are tables: the name of a way to compute the numbers -> a function that does.
Shape legend: B rows, T completion tokens. What stands outside of the mask never matters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from assay import grpo
from assay.config.sections import LossConfig, choices_of
from assay.doctor.recompute.arrays import plain, tensor
from assay.doctor.recompute.match import Array, Match, Variant, nearest, tolerance
from assay.record.batch import Batch
from assay.types import Totals
from assay.verdict import Missing

CLAMPED_FROM = 10.0  # of |log-ratio| and of a KL: trainers clamp beyond it, each in its own way
FLOOR = 2e-6  # absolute, in float32: what is left of exp(d) - 1 near d = 0
FINE = 1e-3  # a wider tolerance is one of 16-bit numbers, whose exp(d) is off by as much near d = 0


@dataclass(frozen=True)
class TokenTerms:
    """Each token's part before aggregation; the loss is sum(weights * (policy + kl_coef * kl)) + entropy."""

    mask_BT: Array
    ratio_BT: Array
    clipped_BT: Array
    policy_BT: Array  # correction included
    kl_BT: Array | None  # times the ratio where kl_gradient says so; None: no KL in the loss
    kl_coef: float
    settings: LossConfig

    def of_tokens(self) -> Array:
        return self.policy_BT if self.kl_BT is None else self.policy_BT + self.kl_coef * self.kl_BT


def loss_settings(batch: Batch) -> LossConfig:
    """The stated settings over the defaults; a KL gradient that is not stated is naive, as it is elsewhere."""
    known = {field.name for field in fields(LossConfig)}
    stated = {name: value for name, value in batch.settings.items() if name in known}
    settings = replace(LossConfig(kl_gradient="naive"), **stated)
    for name, choices in choices_of(LossConfig).items():
        if getattr(settings, name) not in choices:  # other trainers have more
            article = "an" if name[0] in "aeiou" else "a"
            raise Missing(f"{article} {name} that is known here ({', '.join(choices)})")
    return settings


def stated_objective(settings: Mapping[str, Any]) -> grpo.Objective | None:
    """What is known of the objective of a batch or a run; None if it is not stated, or not one of ours."""
    return grpo.OBJECTIVES.get(str(settings.get("objective")))


def totals(batch: Batch) -> Totals:
    """Of the whole update where the settings count it, else of this batch."""
    (mask_BT,) = batch.need("mask")
    tokens = float(batch.settings.get("loss_tokens", mask_BT.sum()))  # a share of a rollout batch may be no integer
    return Totals(
        sequences=int(batch.settings.get("sequences", len(mask_BT))),
        tokens=round(tokens),
        share_of_rollout_tokens=tokens,
        max_tokens=int(batch.settings.get("max_tokens", mask_BT.shape[1])),
    )


def terms(batch: Batch, settings: LossConfig | None = None) -> TokenTerms:
    settings = loss_settings(batch) if settings is None else settings
    mask_BT, new_BT, old_BT = batch.need("mask", "new_logprobs", "old_logprobs")
    new_BT, old_BT, advantages_BT = (_inside(x_BT, mask_BT) for x_BT in (new_BT, old_BT, batch.token_advantages))
    objective = grpo.OBJECTIVES[settings.objective]
    ratio_BT = grpo.importance_ratio(tensor(new_BT), tensor(old_BT), tensor(mask_BT), objective.level)
    policy_BT, clipped_BT = objective.term(ratio_BT, tensor(advantages_BT), tensor(new_BT), settings)
    kl_BT: Any = None
    if settings.kl_coef and settings.kl_placement == "loss":
        (ref_BT,) = batch.need("ref_logprobs")
        kl_BT = grpo.kl_estimate(tensor(new_BT), tensor(_inside(ref_BT, mask_BT)), settings.kl_estimator)
        kl_BT = plain(kl_BT * ratio_BT if settings.kl_gradient == "unbiased" else kl_BT)
    return TokenTerms(
        mask_BT=mask_BT,
        ratio_BT=plain(ratio_BT),
        clipped_BT=plain(clipped_BT) & mask_BT,
        policy_BT=plain(policy_BT) * correction(batch, settings),
        kl_BT=kl_BT,
        kl_coef=settings.kl_coef,
        settings=settings,
    )


def gradients(batch: Batch, weights_BT: Array, settings: LossConfig | None = None) -> Array:
    """d loss / d new_logprobs; the entropy bonus has no part in it."""
    policy_BT, kl_BT = gradient_parts(batch, weights_BT, settings)
    return policy_BT + kl_BT


def gradient_parts(batch: Batch, weights_BT: Array, settings: LossConfig | None = None) -> tuple[Array, Array]:
    """The gradient of the policy part, and that of the KL (zeros where the loss has none)."""
    found = terms(batch, settings)
    settings = found.settings
    mask_BT, ratio_BT = found.mask_BT, found.ratio_BT
    new_BT = _inside(batch.need("new_logprobs")[0], mask_BT)
    advantages_BT = _inside(batch.token_advantages, mask_BT)
    weights_BT = weights_BT * mask_BT
    objective = grpo.OBJECTIVES[settings.objective]
    slope_BT = plain(objective.slope(tensor(ratio_BT), tensor(advantages_BT), settings))
    policy_BT = slope_BT * weights_BT * correction(batch, settings)
    if not objective.detached:
        policy_BT = _through_ratio(policy_BT, mask_BT, objective.level)
    if found.kl_BT is None:
        return policy_BT, np.zeros(mask_BT.shape)
    ref_BT = _inside(batch.need("ref_logprobs")[0], mask_BT)
    low_BT, high_BT = (
        plain(grpo.kl_estimate(tensor(new_BT + step), tensor(ref_BT), settings.kl_estimator))
        for step in (-grpo.SLOPE_STEP, grpo.SLOPE_STEP)
    )
    slope_BT = (high_BT - low_BT) / (2 * grpo.SLOPE_STEP)
    weights_BT = weights_BT * settings.kl_coef
    if settings.kl_gradient == "naive":
        return policy_BT, slope_BT * weights_BT
    direct_BT = slope_BT * ratio_BT * weights_BT
    return policy_BT, direct_BT + _through_ratio(found.kl_BT * weights_BT, mask_BT, objective.level)


def _ratio(log_BT: Array, mask_BT: Array, level: str) -> Array:
    return plain(grpo.importance_ratio(tensor(log_BT), tensor(np.zeros(log_BT.shape)), tensor(mask_BT), level))


BY_ROW = "of new - old over the row)"  # the same number on every token of a row
RATIOS: dict[str, Callable[[Array, Array], Array]] = {  # of new - old and the mask
    "exp(new - old)": lambda log_BT, mask_BT: _ratio(log_BT, mask_BT, "token"),
    f"exp(mean {BY_ROW}": lambda log_BT, mask_BT: _ratio(log_BT, mask_BT, "sequence"),
    f"exp(sum {BY_ROW}": lambda log_BT, mask_BT: np.broadcast_to(_exp(log_BT.sum(axis=1)[:, None]), log_BT.shape),
    "exp(old - new), the inverse": lambda log_BT, mask_BT: _ratio(-log_BT, mask_BT, "token"),
    "new - old, without exp": lambda log_BT, mask_BT: log_BT,
    "old - new, without exp": lambda log_BT, mask_BT: -log_BT,
    "exp(exp(new - old)), exp taken twice": lambda log_BT, mask_BT: _exp(_ratio(log_BT, mask_BT, "token")),
    f"the inverse of exp(mean {BY_ROW}": lambda log_BT, mask_BT: _ratio(-log_BT, mask_BT, "sequence"),
}
# the level of those that somebody may want, where no objective of ours has a product over the row; others are mistakes
MEANT_RATIOS = {"exp(new - old)": "token", f"exp(mean {BY_ROW}": "sequence", f"exp(sum {BY_ROW}": "product"}


def _ratio_variant(name: str, values_BT: Array) -> Variant:
    level = MEANT_RATIOS.get(name)
    objectives = tuple(objective for objective, known in grpo.OBJECTIVES.items() if known.level == level)
    return Variant(name, values_BT, level is None, {} if level is None else {"objective": objectives})


def nearest_ratio(batch: Batch) -> Match:
    mask_BT, new_BT, old_BT, recorded = batch.need("mask", "new_logprobs", "old_logprobs", "ratio")
    if not mask_BT.any():
        raise Missing("a loss token")
    log_BT = _inside(new_BT, mask_BT) - _inside(old_BT, mask_BT)
    ways = [_ratio_variant(name, ratio(log_BT, mask_BT)) for name, ratio in RATIOS.items()]
    if recorded.ndim == 1:  # one per row
        seen_B = mask_BT.any(axis=1) & (np.abs(log_BT.sum(axis=1)) < CLAMPED_FROM)
        rows = [replace(way, values=way.values[:, 0]) for way in ways if BY_ROW in way.name]
        return _nearest_inside(batch, recorded, rows, seen_B)
    sampler_BT = batch.get("sampler_logprobs")
    if sampler_BT is not None and np.isfinite(sampler_BT[mask_BT]).all():
        by_sampler_BT = _exp(_inside(new_BT, mask_BT) - _inside(sampler_BT, mask_BT))
        ways.append(Variant("exp(new - sampler)", by_sampler_BT, False, {"objective": ()}))
    return _nearest_inside(batch, recorded, ways, mask_BT & (np.abs(log_BT) < CLAMPED_FROM))


def nearest_kl(batch: Batch) -> Match:
    mask_BT, new_BT, ref_BT, recorded_BT = batch.need("mask", "new_logprobs", "ref_logprobs", "kl")
    difference_BT = _inside(new_BT, mask_BT) - _inside(ref_BT, mask_BT)
    near_BT = mask_BT & (_exp(np.abs(difference_BT)) < CLAMPED_FROM)  # so that k3 is below it, either way round
    return _nearest_inside(batch, recorded_BT, kl_variants(new_BT, ref_BT, batch.get("old_logprobs"), mask_BT), near_BT)


def kl_estimates(difference_BT: Array) -> dict[str, Array]:
    """Of new - ref, by every estimator there is."""
    return {name: plain(estimate(tensor(difference_BT))) for name, estimate in grpo.KL_ESTIMATORS.items()}


def _k3(difference_BT: Array) -> Array:
    return kl_estimates(difference_BT)["k3"]


KL_MISTAKES: dict[str, Callable[[Array], Array]] = {  # of new - ref
    "k3 with ref and new exchanged: exp(new - ref) - (new - ref) - 1": lambda d_BT: _k3(-d_BT),
    "ref - new: k1 with the sign flipped": lambda d_BT: -d_BT,
    "k3 with the sign flipped": lambda d_BT: -_k3(d_BT),
    "exp(ref - new) - (ref - new): k3 without its - 1": lambda d_BT: _k3(d_BT) + 1.0,
    "exp(ref - new) + (ref - new) - 1: k3 with one sign wrong": lambda d_BT: _k3(d_BT) - 2 * d_BT,
}


def kl_variants(new_BT: Array, ref_BT: Array, old_BT: Array | None, mask_BT: Array) -> list[Variant]:
    difference_BT = _inside(new_BT, mask_BT) - _inside(ref_BT, mask_BT)
    difference_BT = np.clip(difference_BT, -grpo.LOG_RATIO_LIMIT, grpo.LOG_RATIO_LIMIT)
    kinds = kl_estimates(difference_BT)
    weighted = {"": np.ones(difference_BT.shape)}
    if old_BT is not None:
        log_BT = _inside(new_BT, mask_BT) - _inside(old_BT, mask_BT)
        weighted[" times the ratio"] = _ratio(log_BT, mask_BT, "token")
        weighted[" times the ratio of its row"] = _ratio(log_BT, mask_BT, "sequence")
    return [
        *(
            Variant(f"{name}{times}", values_BT * weight_BT, False, {"kl_estimator": (name,)})
            for times, weight_BT in weighted.items()
            for name, values_BT in kinds.items()
        ),
        Variant("|new - ref|", np.abs(difference_BT), False, {"kl_estimator": ("abs",)}),
        *(Variant(name, mistake(difference_BT), True) for name, mistake in KL_MISTAKES.items()),
    ]


def _nearest_inside(batch: Batch, recorded: Array, variants: list[Variant], seen: Array) -> Match:
    if not seen.any():
        raise Missing("a loss token with log-probs that are not far apart")
    limit = tolerance(batch, recorded[seen])
    floor = FLOOR if limit <= FINE else limit
    kept = [replace(variant, values=variant.values[seen]) for variant in variants]
    return nearest(recorded[seen], kept, batch.settings, tolerance=limit, floor=floor)


def correction(batch: Batch, settings: LossConfig) -> Any:
    """The importance weight old / sampler of each token; 1 where it is off."""
    if settings.correction == "off":
        return 1.0
    mask_BT, old_BT, sampler_BT = batch.need("mask", "old_logprobs", "sampler_logprobs")
    old_BT = _inside(old_BT, mask_BT)
    return plain(grpo.mismatch_weights(tensor(old_BT), tensor(sampler_BT), tensor(mask_BT), settings))


def _through_ratio(by_log_ratio_BT: Array, mask_BT: Array, level: str) -> Array:
    """From d loss / d log-ratio to d loss / d new: a sequence's ratio hangs on all of its tokens alike."""
    if level == "token":
        return by_log_ratio_BT
    lengths_B1 = np.maximum(mask_BT.sum(axis=1, keepdims=True), 1)
    return np.asarray(mask_BT * (by_log_ratio_BT * mask_BT).sum(axis=1, keepdims=True) / lengths_B1)


def _inside(values_BT: Array, mask_BT: Array) -> Array:
    return np.where(mask_BT, values_BT, 0.0)


def _exp(values: Array) -> Array:
    return np.asarray(np.exp(np.clip(values, -700.0, 700.0)))
