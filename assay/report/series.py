"""Rows of a long run -> few enough points to draw and to mail: means of equal stretches, with their extremes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MOST_POINTS = 240

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Stretches:
    """How the steps of a run are cut into at most MOST_POINTS stretches."""

    steps: list[float]  # the last step of each
    bounds: list[int]  # len(steps) + 1 places in the rows
    rows: Sequence[float] = ()  # the step of every row

    @classmethod
    def of(cls, steps_N: Numbers, most: int = MOST_POINTS) -> Stretches:
        count = len(steps_N)
        places = np.unique(np.linspace(0, count, min(most, count) + 1).round().astype(int)).tolist()
        return cls([_plain(steps_N[end - 1]) for end in places[1:]], places, steps_N.tolist())

    @property
    def longest(self) -> int:
        """Steps in the longest stretch; 1 where each step is a point of its own."""
        return max((end - start for start, end in zip(self.bounds, self.bounds[1:], strict=False)), default=1)

    def means(self, values_N: Numbers) -> list[float | None]:
        return self._each(values_N, np.mean)

    def lows(self, values_N: Numbers) -> list[float | None]:
        return self._each(values_N, np.min)

    def highs(self, values_N: Numbers) -> list[float | None]:
        return self._each(values_N, np.max)

    def _each(self, values_N: Numbers, reduce: object) -> list[float | None]:
        found: list[float | None] = []
        for start, end in zip(self.bounds, self.bounds[1:], strict=False):
            known = values_N[start:end]
            known = known[np.isfinite(known)]
            found.append(rounded(float(reduce(known))) if len(known) else None)  # type: ignore[operator]
        return found


def rounded(value: float | None) -> float | None:
    """Five digits are more than a curve shows; None of what is not a finite number.

    >>> rounded(0.123456789), rounded(float("nan"))
    (0.12346, None)
    """
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.5g}")


def rounded_all(values: Sequence[float | None]) -> list[float | None]:
    return [rounded(value) for value in values]


def _plain(step: float) -> float:
    value = float(step)
    return int(value) if math.isfinite(value) and value == int(value) else value
