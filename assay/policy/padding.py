"""Ragged rows as padded arrays."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def inside(lengths: Array) -> Array:
    """Boolean mask of the non-padding positions of rows of these lengths, padded to the longest."""
    mask: Array = np.arange(lengths.max()) < lengths[:, None]
    return mask


def pad_rows(inside: Array, values: Iterable[float] | Array, dtype: Any, filler: int = 0) -> Array:
    """An array with `values`, row after row, where `inside` is True, and `filler` elsewhere."""
    if not isinstance(values, np.ndarray):
        values = np.fromiter(values, np.float64 if dtype is np.float32 else dtype, count=int(inside.sum()))
    with np.errstate(over="ignore"):  # what no float32 can hold becomes infinite, and the update says so
        array = np.full(inside.shape, filler, dtype)
        array[inside] = values
    return array
