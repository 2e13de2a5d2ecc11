"""The curves of a run: one number per step for each metric, the stages' seconds, evaluations, settings.

Metric names are those of assay/record/metrics.py; settings those of assay/record/batch.py, whoever trained.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.verdict import Missing

Row = Mapping[str, Any]
Numbers = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Curves:
    """Asked for a metric it does not hold, or holds no number of, it raises Missing.

    >>> Curves([{"step": 1, "loss": 0.5}, {"step": 2, "loss": None}]).need("loss")[0].tolist()
    [0.5, nan]
    """

    rows: Sequence[Row]
    timings: Sequence[Row] = ()
    evaluations: Sequence[Row] = ()
    events: Sequence[Row] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    _known: dict[tuple[str, str], Numbers] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def steps(self) -> Numbers:
        return self._column("rows", "step")

    def step_at(self, index: int) -> int | None:
        """Which step a row is of; None where it does not say."""
        step = self.steps[index]
        return int(step) if np.isfinite(step) else None

    def need(self, *names: str) -> tuple[Numbers, ...]:
        """Metrics by step; NaN where a step has none, or none that is finite."""
        return self._columns("rows", names)

    def column(self, name: str) -> Numbers:
        """The metric, all NaN where there is none of it."""
        return self._column("rows", name)

    def need_timings(self, *names: str) -> tuple[Numbers, ...]:
        return self._columns("timings", names)

    def has(self, *names: str) -> bool:
        """Whether each has a number in some step."""
        return not any(np.isnan(self._column("rows", name)).all() for name in names)

    def not_finite(self, name: str) -> Flags:
        """Steps in which NaN or an infinite number was recorded: a step without a number is none of them.

        >>> Curves([{"loss": 0.5}, {"loss": float("inf")}, {"loss": None}, {}]).not_finite("loss").tolist()
        [False, True, False, False]
        """
        values = [row.get(name) for row in self.rows]
        return np.array([isinstance(value, float | np.floating) and not np.isfinite(value) for value in values], bool)

    def setting(self, name: str) -> Any:
        if name not in self.settings:
            raise Missing(name)
        return self.settings[name]

    def _columns(self, kind: str, names: Sequence[str]) -> tuple[Numbers, ...]:
        columns = [self._column(kind, name) for name in names]
        absent = [name for name, column in zip(names, columns, strict=True) if np.isnan(column).all()]
        if absent:
            raise Missing(*absent)
        return tuple(columns)

    def _column(self, kind: str, name: str) -> Numbers:
        """Made once: a long run has many rows, and many checks ask for the same metric. Never to be written to."""
        if (kind, name) not in self._known:
            rows: Sequence[Row] = getattr(self, kind)
            column_N = np.array([_number(row.get(name)) for row in rows], dtype=np.float64)
            column_N.flags.writeable = False
            self._known[kind, name] = column_N
        return self._known[kind, name]


def _number(value: Any) -> float:
    """NaN for what is not a finite number: another program's log may hold words."""
    number = float(value) if isinstance(value, float | int | np.number) else float("nan")
    return number if math.isfinite(number) else float("nan")
