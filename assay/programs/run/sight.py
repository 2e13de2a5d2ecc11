"""One tensor as it was when the script made it, however it was changed later. Nothing here imports torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from assay.programs.graph import Value
from assay.record.batch import Array

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(eq=False, slots=True)
class Sight:
    """One tensor as it was seen. `data` is a copy of it, or None where it was too large to keep."""

    shape: tuple[int, ...]
    dtype: str  # float32, bfloat16, int64, bool, ...
    requires_grad: bool = False
    data: Tensor | Array | None = None
    # of a tensor as wide as the vocabulary: whether a few of its rows are finite, and two of them
    is_finite: bool | None = None
    rows: Array | None = None
    overlaps: bool = False  # several of its numbers are one place in memory: expand()

    @property
    def numbers(self) -> Array | None:
        """float64, int64 or bool; None if it was not kept."""
        data = self.data
        if data is None or isinstance(data, np.ndarray):
            return data
        data = data.detach().cpu()
        numbers: Array = data.double().numpy() if data.is_floating_point() else data.numpy()
        self.data = numbers
        return numbers

    @property
    def is_floating(self) -> bool:
        return self.dtype.startswith(("float", "bfloat"))

    @property
    def is_half(self) -> bool:
        return self.dtype in ("bfloat16", "float16")

    @property
    def size(self) -> int:
        return math.prod(self.shape)


def sight(value: Value | None) -> Sight | None:
    """What was seen of a value that is a tensor."""
    return value.thing if value is not None and isinstance(value.thing, Sight) else None


def shape_of(value: Value | None) -> tuple[int, ...] | None:
    seen = sight(value)
    return None if seen is None else seen.shape


def numbers_of(value: Value | None) -> Array | None:
    seen = sight(value)
    return None if seen is None else seen.numbers


def number_of(value: Value | None) -> float | None:
    """A number that the script wrote, or a tensor that holds just one."""
    if value is None:
        return None
    if isinstance(value.constant, (int, float)) and value.op != "element":  # there it says which element
        return float(value.constant)
    numbers = numbers_of(value)
    return float(numbers.reshape(-1)[0]) if numbers is not None and numbers.size == 1 else None


def requires_grad(value: Value) -> bool:
    return isinstance(value.thing, Sight) and value.thing.requires_grad


def is_mask(value: Value) -> bool:
    """0 and 1 only, in a tensor of more than one dimension or of truth values."""
    seen = sight(value)
    if seen is None or seen.size < 2:
        return False
    if seen.dtype == "bool":
        return True
    numbers = seen.numbers
    return numbers is not None and bool(((numbers == 0) | (numbers == 1)).all())
