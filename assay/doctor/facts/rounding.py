"""How far apart rounding alone may leave two computations of one loss, or of one gradient.

A loss is a sum of terms of both signs and may itself be near 0 (on-policy, centred advantages): what rounding leaves is
measured against the size of the terms, not of their sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from assay.doctor.evidence import Batch
from assay.record.batch import Array
from assay.record.metrics import FIRST_RATIO_LIMIT

# of the loss itself, which a trainer may keep in its compute dtype: one last digit and a little more
_OF_LOSS = {"float32": 1e-5, "bfloat16": 1e-2, "float16": 2e-3}
# of the sum of the terms' sizes: sums are accumulated in float32, which leaves 1e-7 of them for 1e6 terms
_OF_TERMS = {"float32": 1e-6, "bfloat16": 1e-5, "float16": 1e-5}
_OF_GRADIENT = {"float32": 1e-4, "bfloat16": 2e-2, "float16": 5e-3}

# of a log-prob computed twice by the trainer's own pass: 100 times what rounding leaves
SAME_PASS = {"float32": FIRST_RATIO_LIMIT, "bfloat16": 5e-2, "float16": 1e-2}

# of the mean |difference| of log-probs by two passes: rounding leaves a third of it
OTHER_PASS = {"float32": 1e-3, "bfloat16": 0.1, "float16": 0.02}


def limit_between_passes(settings: Mapping[str, Any]) -> float:
    """A mean |difference| beyond this is not rounding; that of bfloat16 where the dtype is not stated."""
    return OTHER_PASS.get(settings.get("dtype", "bfloat16"), OTHER_PASS["bfloat16"])


def loss_limit(batch: Batch, loss: float) -> float:
    """|loss - loss computed another way| beyond this is not rounding."""
    dtype = dtype_of(batch)
    return _OF_LOSS[dtype] * abs(loss) + _OF_TERMS[dtype] * _size_of_terms(batch)


def gradients_off(batch: Batch, first_BT: Array, second_BT: Array) -> Array:
    """Where two gradients of one loss differ by more than rounding; a NaN in one of them alone differs."""
    largest = float(np.nanmax(np.abs(first_BT), initial=0.0))
    limit = _OF_GRADIENT[dtype_of(batch)]
    near_BT = np.isclose(second_BT, first_BT, rtol=limit, atol=limit * 1e-2 * largest, equal_nan=True)
    return np.asarray(~near_BT)


def dtype_of(batch: Batch) -> str:
    """The compute dtype, or float32 where it is not stated or not known."""
    dtype = batch.settings.get("dtype", "float32")
    return dtype if dtype in _OF_LOSS else "float32"


def _size_of_terms(batch: Batch) -> float:
    """By the gradients and by the advantages: either may be 0 or lost where the loss is not."""
    gradients_BT, mask_BT, advantages = batch.get("gradients"), batch.get("mask"), batch.get("advantages")
    sizes = []
    if gradients_BT is not None and np.isfinite(gradients_BT).all():
        sizes.append(float(np.abs(gradients_BT).sum()))
    if advantages is not None and mask_BT is not None and mask_BT.any():
        sizes.append(float(np.nan_to_num(np.abs(batch.token_advantages), posinf=0.0)[mask_BT].mean()))
    return max(sizes, default=1.0)  # advantages are of size 1
