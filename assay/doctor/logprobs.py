"""Comparing two sets of log-probs of the same tokens: how far apart, where, and whether rounding explains it.

Shape legend: B completions, T completion tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from assay.doctor.evidence import Batch
from assay.record.batch import Array
from assay.verdict import Missing

LARGEST_FLOAT32 = 1e-3  # of any |difference|: sound float32 arithmetic leaves 3e-5
MEAN_LOW_PRECISION = 0.1  # of the mean |difference|: bfloat16 leaves 0.03, and up to 1 at single tokens


@dataclass(frozen=True, slots=True)
class Gap:
    """|one - other| over the tokens where both are finite; `row` and `token` say where it is largest."""

    mean: float
    largest: float
    row: int
    token: int
    tokens: int

    def is_rounding(self, dtype: str | None) -> bool:
        if dtype == "float32":
            return self.largest <= LARGEST_FLOAT32
        return self.mean <= MEAN_LOW_PRECISION


def loss_tokens(batch: Batch) -> Array:
    """Tokens in the loss that were really sampled; a mask that runs into the padding is another illness."""
    (mask_BT,) = batch.need("mask")
    lengths_B = batch.get("lengths")
    if lengths_B is None:
        return mask_BT
    return mask_BT & (np.arange(mask_BT.shape[1]) < lengths_B[:, None])


def both_finite(batch: Batch, *names: str) -> Array:
    """Loss tokens at which all of these are finite. Raises Missing where there is none: NaN is not a log-prob."""
    inside_BT = loss_tokens(batch)
    for name, values_BT in zip(names, batch.need(*names), strict=True):
        inside_BT = inside_BT & np.isfinite(values_BT)
        if not inside_BT.any():
            raise Missing(f"{name} of any loss token")
    return inside_BT


def gap_between(batch: Batch, one: str, other: str) -> Gap:
    inside_BT = both_finite(batch, one, other)
    one_BT, other_BT = batch.need(one, other)
    distance_BT = np.abs(np.where(inside_BT, one_BT, 0.0) - np.where(inside_BT, other_BT, 0.0))
    row, token = np.unravel_index(int(np.argmax(distance_BT)), distance_BT.shape)
    count = int(inside_BT.sum())
    return Gap(float(distance_BT.sum() / count), float(distance_BT.max()), int(row), int(token), count)


def row_lengths(batch: Batch) -> Array:
    """Completion tokens of each row: as recorded, else up to the last loss token; 0 where nothing says."""
    lengths_B = batch.get("lengths")
    if lengths_B is not None:
        return lengths_B
    (mask_BT,) = batch.need("mask")
    last_B = mask_BT.shape[1] - np.argmax(mask_BT[:, ::-1], axis=1)
    return np.where(mask_BT.any(axis=1), last_B, 0)
