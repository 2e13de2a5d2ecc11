"""The curves of a run: one number a step for each metric, the stages' seconds, evaluations, settings.

Metric names are those of assay/record/metrics.py; settings those of assay/record/batch.py, whoever trained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.verdict import Missing

Row = Mapping[str, Any]
Numbers = NDArray[np.float64]


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

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def steps(self) -> Numbers:
        return _column(self.rows, "step")

    def need(self, *names: str) -> tuple[Numbers, ...]:
        """Metrics by step; NaN where a step has none."""
        return _columns(self.rows, names)

    def need_timings(self, *names: str) -> tuple[Numbers, ...]:
        return _columns(self.timings, names)

    def need_evaluations(self, *names: str) -> tuple[Numbers, ...]:
        return _columns(self.evaluations, names)

    def has(self, *names: str) -> bool:
        return all(any(row.get(name) is not None for row in self.rows) for name in names)

    def setting(self, name: str) -> Any:
        if name not in self.settings:
            raise Missing(name)
        return self.settings[name]


def _columns(rows: Sequence[Row], names: Sequence[str]) -> tuple[Numbers, ...]:
    columns = [_column(rows, name) for name in names]
    absent = [name for name, column in zip(names, columns, strict=True) if np.isnan(column).all()]
    if absent:
        raise Missing(*absent)
    return tuple(columns)


def _column(rows: Sequence[Row], name: str) -> Numbers:
    return np.array([np.nan if row.get(name) is None else row[name] for row in rows], dtype=np.float64)
