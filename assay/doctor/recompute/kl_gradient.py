"""The gradient of a loss whose policy part is right: what is its KL part?

The recorded gradient of each token is explained as a * policy part + b * KL part, for every known KL. The one that
reproduces it is the KL that was computed, and b / a is how often it was weighed.
Shape legend: B rows, T completion tokens, N compared tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from assay import grpo
from assay.config.sections import LossConfig
from assay.doctor.recompute.loss import aggregation_of, expected_gradients, weights
from assay.doctor.recompute.terms import KL_MISTAKES, loss_settings, terms
from assay.record.batch import Array, Batch

FITS = 2e-3  # of the largest KL part: rounding of a float32 gradient leaves less where the KL is visible
VISIBLE = 1e-2  # of the largest policy part: below it the KL's digits are lost in those of the policy part
SAME_FACTOR = 0.01  # relative, of b / a
FEWEST = 40  # tokens, to fit a curve
DEGREE = 5  # of a curve in new - ref
CURVE_FITS = 1e-2  # of the largest KL part

MISTAKES: dict[str, Callable[[Array], Array]] = {
    **KL_MISTAKES,
    "exp(new - ref) + (new - ref) - 1: k3 exchanged and with one sign wrong": lambda d_BT: np.expm1(d_BT) + d_BT,
}


@dataclass(frozen=True)
class KLFit:
    """`name` reads after "the KL in the gradient is". `factor` is how often its coefficient is in it."""

    name: str
    factor: float
    error: float  # largest part that is left, relative to the KL part
    is_configured: bool = False
    is_bug: bool = False
    is_gradient_only: bool = False  # only kl_gradient is another one


def kl_in_gradient(batch: Batch) -> list[KLFit] | None:
    """All known KLs that reproduce the gradient, the configured one alone where it does; an empty list where the rest
    is a function of new - ref that no known KL is; None where the numbers do not show it."""
    settings = loss_settings(batch)
    mask_BT, recorded_BT, new_BT, ref_BT = batch.need("mask", "gradients", "new_logprobs", "ref_logprobs")
    policy_BT, kl_BT = expected_gradients(batch, settings)
    seen_BT = mask_BT & np.isfinite(recorded_BT) & np.isfinite(policy_BT + kl_BT)
    recorded_N, policy_N = recorded_BT[seen_BT], policy_BT[seen_BT]
    largest = float(np.abs(policy_N).max(initial=0.0))
    if largest == 0.0 or float(np.abs(kl_BT[seen_BT]).max()) < VISIBLE * largest:
        return None
    configured = _fit("", recorded_N, policy_N, kl_BT[seen_BT])
    if configured is None:
        return None
    if configured.error <= FITS:
        return [replace(configured, name=settings.kl_estimator, is_configured=True)]
    found = []
    for name, way in _estimators(settings):
        fit = _fit(name, recorded_N, policy_N, expected_gradients(batch, way)[1][seen_BT])
        if fit is not None and fit.error <= FITS and abs(fit.factor - 1) <= SAME_FACTOR:
            found.append(replace(fit, is_gradient_only=way.kl_estimator == settings.kl_estimator))
    for name, part_BT in _mistakes(batch, settings):
        fit = _fit(name, recorded_N, policy_N, part_BT[seen_BT])
        if fit is not None and fit.error <= FITS and abs(fit.factor - 1) <= SAME_FACTOR:
            found.append(replace(fit, is_bug=True))
    if found:
        return found
    weights_N = weights(batch, aggregation_of(batch))[seen_BT]
    return [] if _is_curve(recorded_N, policy_N, weights_N, (new_BT - ref_BT)[seen_BT], configured) else None


def _fit(name: str, recorded_N: Array, policy_N: Array, kl_N: Array) -> KLFit | None:
    """None where the two parts cannot be separated, or the policy part does not point its way."""
    parts_N2 = np.stack([policy_N, kl_N], axis=1)
    sizes_2 = np.abs(parts_N2).max(axis=0, initial=0.0)
    if not sizes_2.all() or np.linalg.matrix_rank(parts_N2 / sizes_2) < 2:
        return None
    shares_2 = np.linalg.lstsq(parts_N2 / sizes_2, recorded_N, rcond=None)[0] / sizes_2
    if not shares_2[0] > 0:
        return None
    rest = float(np.abs(recorded_N - parts_N2 @ shares_2).max())
    return KLFit(name, float(shares_2[1] / shares_2[0]), rest / float(shares_2[0] * sizes_2[1]))


def _estimators(settings: LossConfig) -> Iterator[tuple[str, LossConfig]]:
    """Every other KL that somebody may want."""
    for estimator in grpo.KL_ESTIMATORS:
        for gradient, words in (("naive", ""), ("unbiased", " times the ratio")):
            if (estimator, gradient) != (settings.kl_estimator, settings.kl_gradient):
                yield f"{estimator}{words}", replace(settings, kl_estimator=estimator, kl_gradient=gradient)


def _mistakes(batch: Batch, settings: LossConfig) -> Iterator[tuple[str, Array]]:
    """The KL's part of the gradient by each known mistake."""
    if grpo.OBJECTIVES[settings.objective].level != "token":
        return
    mask_BT, new_BT, ref_BT = batch.need("mask", "new_logprobs", "ref_logprobs")
    limit = grpo.LOG_RATIO_LIMIT
    difference_BT = np.clip(np.where(mask_BT, new_BT, 0.0) - np.where(mask_BT, ref_BT, 0.0), -limit, limit)
    weights_BT = weights(batch, aggregation_of(batch)) * mask_BT * settings.kl_coef
    step = grpo.SLOPE_STEP
    for name, mistake in MISTAKES.items():
        slope_BT = (mistake(difference_BT + step) - mistake(difference_BT - step)) / (2 * step)
        if settings.kl_gradient == "unbiased":
            slope_BT = terms(batch, settings).ratio_BT * (slope_BT + mistake(difference_BT))
        yield name, slope_BT * weights_BT


def _is_curve(recorded_N: Array, policy_N: Array, weights_N: Array, difference_N: Array, configured: KLFit) -> bool:
    """Whether what the policy part leaves is a smooth function of new - ref alone, and a visible one."""
    if len(recorded_N) < FEWEST or not np.isfinite(difference_N).all():
        return False
    spread = float(np.abs(difference_N).max()) or 1.0
    powers = [weights_N * (difference_N / spread) ** power for power in range(DEGREE + 1)]
    columns = np.stack([policy_N, *powers], axis=1)
    sizes = np.abs(columns).max(axis=0)
    if not sizes.all():
        return False
    shares = np.linalg.lstsq(columns / sizes, recorded_N, rcond=None)[0] / sizes
    curve_N = columns[:, 1:] @ shares[1:]
    rest = float(np.abs(recorded_N - columns @ shares).max())
    return bool(shares[0] > 0 and rest <= CURVE_FITS * float(np.abs(curve_N).max()) and configured.error > CURVE_FITS)
