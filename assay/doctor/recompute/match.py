"""Recorded numbers against every named way to compute them: which one is it?

A match is never an accusation by accident: of several variants that fit this data, one that agrees with the settings
is taken first, then one that somebody may want, and a known bug only if nothing else fits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.record.batch import Batch

Array = NDArray[Any]

ROUNDING = {"float32": 1e-4, "bfloat16": 1e-2, "float16": 2e-3}  # relative: well above what the dtype leaves


@dataclass(frozen=True)
class Variant:
    """One way to compute the numbers. `options` says for which values of which settings it is the right way."""

    name: str  # reads after "the advantages are", "the KL is", ...
    values: Array
    is_bug: bool = False
    options: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    def agrees_with(self, settings: Mapping[str, Any]) -> bool:
        return not self.is_bug and all(
            settings[name] in values for name, values in self.options.items() if name in settings
        )


@dataclass(frozen=True)
class Match:
    """The variant that fits, or the nearest one. Distances are relative to the largest number."""

    variant: Variant
    distance: float
    configured: Variant | None  # what the settings ask for; None: they do not say
    configured_distance: float
    tolerance: float

    @property
    def fits(self) -> bool:
        return self.distance <= self.tolerance

    @property
    def is_configured(self) -> bool:
        """Whether it is what the settings ask for; where they do not say, what anybody may want."""
        return self.fits and not self.variant.is_bug and (self.configured is None or self.variant is self.configured)


def nearest(
    recorded: Array,
    variants: Sequence[Variant],
    settings: Mapping[str, Any],
    *,
    tolerance: float,
    floor: float = 0.0,
    scale: float | None = None,
) -> Match:
    """`floor` is an absolute difference that rounding explains; `scale` what distances are relative to."""
    distances = [distance(recorded, variant.values, floor=floor, scale=scale) for variant in variants]
    stated = any(name in settings for variant in variants for name in variant.options)
    agreeing = [index for index, variant in enumerate(variants) if stated and variant.agrees_with(settings)]
    # of several ways that agree with what little the settings say, the nearest is what was configured
    configured = min(agreeing, key=lambda index: distances[index], default=None)

    def preference(index: int) -> tuple[bool, int, float]:
        rank = 0 if index == configured else 2 if variants[index].is_bug else 1
        far = distances[index] > tolerance
        return far, 0 if far else rank, distances[index] if far or rank == 2 else 0.0

    best = min(range(len(variants)), key=preference)
    return Match(
        variant=variants[best],
        distance=distances[best],
        configured=None if configured is None else variants[configured],
        configured_distance=np.inf if configured is None else distances[configured],
        tolerance=tolerance,
    )


def distance(recorded: Array, values: Array, *, floor: float = 0.0, scale: float | None = None) -> float:
    """Largest difference over largest number; infinite if one of them is not a number.

    >>> distance(np.array([2.0, -1.0]), np.array([2.0, -1.5]))
    0.25
    """
    if not recorded.size:
        return 0.0
    difference = np.abs(recorded - values)
    if not np.isfinite(difference).all():
        return float("inf")
    largest = max(float(difference.max()) - floor, 0.0)
    size = max(float(np.abs(recorded).max()), float(np.abs(values).max())) if scale is None else scale
    return largest / size if largest else 0.0


def fit_scale(recorded: Array, expected: Array) -> tuple[float, float]:
    """(the factor between them, what it leaves unexplained, relative); a trainer may scale its loss."""
    size = float((expected * expected).sum())
    if not len(recorded) or size == 0:
        return 0.0, np.inf
    scale = float((recorded * expected).sum()) / size
    whole = float(np.linalg.norm(recorded))
    return scale, float(np.linalg.norm(recorded - scale * expected)) / whole if whole else np.inf


def tolerance(batch: Batch, recorded: Array) -> float:
    """Relative. Wide for bfloat16, whether the settings say so or the numbers show it: 16 bits hold all of them."""
    dtype = str(batch.settings.get("dtype", "float32"))
    if _fits_into_bfloat16(recorded):
        dtype = "bfloat16"
    return ROUNDING.get(dtype, ROUNDING["float32"])


def _fits_into_bfloat16(values: Array) -> bool:
    with np.errstate(over="ignore"):
        bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return bool(values.size) and not (bits & 0xFFFF).any()
