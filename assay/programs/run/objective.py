"""Which objective a script computes: shown by the gradient at the log-probs in a first update, where the ratio is 1.

What fits is stated; what fits nothing is left open, and no check then judges the loss by a formula.

Shape legend: B completions, T tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from assay.grpo import KL_ESTIMATORS, OBJECTIVES, token_weights
from assay.programs.graph import Value
from assay.programs.run.roles import LossPiece, Roles
from assay.programs.run.sight import number_of, numbers_of, requires_grad, sight
from assay.programs.walk import walk
from assay.record.batch import Array
from assay.types import Totals

GRADIENT_FIT = 1e-3  # of the largest gradient
LEAST_LIVING = 4  # tokens with a gradient: fewer show no formula


@dataclass(frozen=True)
class KlTerm:
    """The KL term in the loss: weight, estimator and its numbers, where they are known."""

    coefficient: float | None
    estimator: str | None
    numbers: Array | None


def penalty_of(roles: Roles, piece: LossPiece) -> KlTerm | None:
    """None if no difference to a reference is in the loss."""
    if piece.ref is None:
        return None
    new, ref = numbers_of(piece.new), numbers_of(piece.ref)
    if new is None or ref is None or new.shape != ref.shape:
        return None
    flow = roles.flow
    below = {id(value) for value in walk(piece.kl_differences, flow.users)}
    before = [value for value in flow.values if id(value) in below and not _depends(value, piece.product)]
    differences = torch.tensor(new - ref, dtype=torch.float64).clamp(min=-60)
    estimators = {name: estimate(differences).numpy() for name, estimate in KL_ESTIMATORS.items()}
    found: tuple[str, Array] | None = None
    coefficients = []
    for value in before:
        numbers = numbers_of(value)
        if numbers is not None and numbers.shape == new.shape and requires_grad(value):
            for name, expected in estimators.items():
                is_it = np.abs(expected).max() > 0 and np.allclose(numbers, expected, rtol=1e-3, atol=1e-6)
                if is_it and (name != "k1" or value.op != "sub"):
                    found = (name, numbers)
        if value.op == "mul" and (factor := _number(value)) is not None and 0 < factor < 100:
            coefficients.append(factor)
    coefficient = coefficients[0] if len(coefficients) == 1 else None
    return KlTerm(coefficient, found[0] if found else None, found[1] if found else None)


def _depends(value: Value, product: Value | None) -> bool:
    """Whether the surrogate is in it as well."""
    return any(part is product for part in walk(value, lambda whole: filter(requires_grad, whole.inputs)))


def _number(value: Value) -> float | None:
    """The factor that is a number."""
    sides = [value.arguments[name] for name in ("input", "other") if name in value.arguments]
    return next((number for side in sides if not requires_grad(side) and (number := number_of(side)) is not None), None)


def _fits_the_living(pull_BT: Array, gradients_BT: Array) -> bool:
    """Whether all gradients that are not 0 are these, some or all of them of the other sign; some are 0 that should not
    be: what a detach, a slice or a second mask leaves behind."""
    living_BT = gradients_BT != 0
    dead_BT = ~living_BT & (np.abs(pull_BT) > GRADIENT_FIT * np.abs(pull_BT).max())
    if not dead_BT.any() or living_BT.sum() < LEAST_LIVING or (pull_BT[living_BT] == 0).any():
        return False
    factors = gradients_BT[living_BT] / pull_BT[living_BT]
    middle = float(np.median(factors))
    return middle != 0 and bool(np.abs(factors / middle - 1).max() <= 10 * GRADIENT_FIT)


def objective_of(fields: Mapping[str, Any], pieces: Sequence[LossPiece]) -> tuple[str, bool] | None:
    """(grpo, bnpo, dr_grpo or gspo; whether the loss holds nothing else). Of a clipped surrogate in a first update."""
    names = ("mask", "new_logprobs", "old_logprobs", "advantages", "gradients")
    arrays = [fields.get(name) for name in names]
    if any(array is None for array in arrays) or fields.get("update") != 0 or fields.get("correction"):
        return None
    if any(piece.clip is None or None in piece.clip or piece.ratio is None for piece in pieces):
        return None
    mask_BT, new_BT, old_BT, advantages, gradients_BT = (np.asarray(array) for array in arrays)
    advantages_BT = advantages if advantages.ndim == 2 else np.broadcast_to(advantages[:, None], mask_BT.shape)
    if not mask_BT.any() or not np.any(advantages_BT[mask_BT]) or not np.isfinite(gradients_BT).all():
        return None
    pull_BT = -np.where(mask_BT, advantages_BT * np.exp(np.where(mask_BT, new_BT - old_BT, 0.0)), 0.0)
    if fields.get("ref_logprobs") is not None:
        if fields.get("kl_estimator") != "k3" or fields.get("kl_coef") is None:
            return None
        ref_BT = np.asarray(fields["ref_logprobs"])
        slope_BT = 1 - np.exp(np.clip(np.where(mask_BT, ref_BT - new_BT, 0.0), -60, 60))
        pull_BT = pull_BT + float(fields["kl_coef"]) * np.where(mask_BT, slope_BT, 0.0)
    tokens, limit = int(mask_BT.sum()), fields.get("max_tokens")
    totals = Totals(len(mask_BT), tokens, tokens, int(limit or 0))
    left_out = {"rollout_token_mean"}  # in one update the same as token_mean
    if not limit:
        left_out.add("constant")
    if len(set(np.maximum(mask_BT.sum(axis=1), 1).tolist())) == 1:
        left_out.add("token_mean")  # the same number as sequence_mean here: which it is would show later
    weights: dict[str, Array] = {
        name: token_weights(torch.tensor(mask_BT, dtype=torch.float64), chosen.aggregation, totals).numpy()
        for name, chosen in OBJECTIVES.items()
        if chosen.clips and chosen.level == "token" and chosen.aggregation not in left_out
    }
    scale = float(np.abs(gradients_BT).max())
    fits = [
        name
        for name, weight in weights.items()
        if np.abs(pull_BT * weight - gradients_BT).max() <= GRADIENT_FIT * scale
    ]
    if not fits and fields.get("ref_logprobs") is None:
        fits = [name for name, weight in weights.items() if _fits_the_living(pull_BT * weight, gradients_BT)]
        if fits:  # several: what the living have in common does not tell them apart, and the dead are the same
            return fits[0], False
    if len(fits) != 1 or scale == 0:
        return None
    sizes = {sight(piece.ratio).size == len(piece.ids) for piece in pieces if sight(piece.ratio) is not None}  # type: ignore[union-attr]
    by_row = sizes == {True} and mask_BT.shape[1] > 1
    if by_row and fits[0] != "grpo":
        return None
    kl_BT = fields.get("kl")
    terms_BT = -np.where(mask_BT, advantages_BT * np.exp(np.where(mask_BT, new_BT - old_BT, 0.0)), 0.0)
    if kl_BT is not None:
        terms_BT = terms_BT + float(fields["kl_coef"]) * np.where(mask_BT, kl_BT, 0.0)
    expected, size = float((terms_BT * weights[fits[0]]).sum()), float((np.abs(terms_BT) * weights[fits[0]]).sum())
    is_all = abs(float(fields.get("loss", np.nan)) - expected) <= GRADIENT_FIT * size
    return "gspo" if by_row else fits[0], is_all
