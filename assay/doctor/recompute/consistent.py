"""Batch -> the same batch with everything that follows from log-probs, advantages and settings computed again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from assay.doctor.facts.rounding import loss_limit
from assay.doctor.recompute.loss import aggregation_of, loss, weights
from assay.doctor.recompute.terms import gradients, terms
from assay.record.batch import Batch

NOT_REPEATABLE = (
    "the loss computed twice from the same numbers is not the same, so that no other comparison proves anything"
)
AGAIN = ("again", "padded", "permuted", "split", "perturbed")


def is_repeatable(batch: Batch) -> bool:
    """Whether the trainer got the same loss twice from the same numbers; if not, no other change proves anything."""
    loss_once, again = (batch.numbers.get(name) for name in ("loss", "loss_again"))
    if loss_once is None or again is None or not (np.isfinite(loss_once) and np.isfinite(again)):
        return True
    return bool(abs(again - loss_once) <= loss_limit(batch, float(again)))


def is_of_these_rows(batch: Batch) -> bool:
    """Whether the loss of a part was computed from its rows, with denominators of the whole update that are stated."""
    by_tokens = aggregation_of(batch) in ("token_mean", "rollout_token_mean")
    is_counted = ("loss_tokens" if by_tokens else "sequences") in batch.settings
    return is_counted and {"loss", "loss_again"} <= batch.numbers.keys() and is_repeatable(batch)


def consistent(batch: Batch, **changes: Any) -> Batch:
    """`changes` replace fields, numbers or settings by name; then ratio, clip, KL, losses and gradients follow them."""
    values = {**batch.arrays, **batch.numbers, **batch.settings, **changes}
    changed = Batch.of(values, texts=batch.texts)
    found = terms(changed)
    weights_BT = weights(changed, aggregation_of(changed))
    gradients_BT = gradients(changed, weights_BT)
    total = loss(changed)
    policy = float(np.where(found.mask_BT, weights_BT * found.policy_BT, 0.0).sum())
    follows: dict[str, Any] = {
        "ratio": np.where(found.mask_BT, found.ratio_BT, 1.0),
        "clipped": found.clipped_BT,
        "token_loss": np.where(found.mask_BT, found.of_tokens(), 0.0),
        **dict.fromkeys(("gradients", "gradients_split", "gradients_perturbed"), gradients_BT),
        "policy_loss": policy,
        "clipped_share": float(found.clipped_BT.sum() / max(found.mask_BT.sum(), 1)),
        "loss": total,
        **{f"loss_{how}": total for how in AGAIN},
    }
    if found.kl_BT is not None:
        kl_BT = np.where(found.mask_BT, found.kl_BT, 0.0)
        follows["kl"] = kl_BT
        follows["kl_mean"] = float(kl_BT.sum() / max(found.mask_BT.sum(), 1))
        follows["kl_loss"] = float(found.kl_coef * (weights_BT * kl_BT).sum())
    return replace(Batch.of({**values, **follows}, texts=batch.texts), source=batch.source)
