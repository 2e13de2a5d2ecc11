"""Batch -> the same batch with everything that follows from log-probs, advantages and settings computed anew."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from assay.doctor.recompute.loss import aggregation_of, loss, weights
from assay.doctor.recompute.terms import gradients, terms
from assay.record.batch import Batch

AGAIN = ("again", "padded", "permuted", "split", "perturbed")


def consistent(batch: Batch, **changes: Any) -> Batch:
    """`changes` replace fields, numbers or settings by name; then ratio, clip, KL, losses and gradients follow them."""
    given = {**batch.arrays, **batch.numbers, **batch.settings, **changes}
    changed = Batch.of(given, texts=batch.texts)
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
    return replace(Batch.of({**given, **follows}, texts=batch.texts), source=batch.source)
