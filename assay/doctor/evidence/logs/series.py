"""Numbers by metric and step, as a log gives them: gathered row by row, kept as columns.

A log may be long: a number takes 16 bytes here, not a dict entry. Nothing is dropped silently; what is, is counted.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from assay.record.batch import BatchError

STEP_NAMES = (  # the first that a row has counts; W&B's `_step` counts calls, so a trainer's own count is better
    "step",
    "global_step",
    "train/global_step",
    "trainer/global_step",
    "training/global_step",
    "training_step",
    "train/step",
    "rollout/step",
    "iteration",
    "Step",
    "_step",
)
DEEPEST = 8  # levels of a nested row
LARGEST_STEP = 2**53


class LogError(BatchError):
    """A log that cannot be read. The message is one sentence with the file and the fix."""


class Columns(Mapping[str, Mapping[float, float]]):
    """By name, the number of each step that has one, in the order of the steps; NaN and infinite ones too.

    A column is ordered when it is first read: most columns of a long log are never read.
    """

    def __init__(self, gathered: Mapping[str, tuple[array[float], array[float]]]) -> None:
        self._gathered = gathered
        self._ordered: dict[str, dict[float, float]] = {}

    def __getitem__(self, name: str) -> Mapping[float, float]:
        if name not in self._ordered:
            by_step = dict(zip(*self._gathered[name], strict=True))  # of one step the later value
            self._ordered[name] = by_step if self.is_in_order(name) else dict(sorted(by_step.items()))
        return self._ordered[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._gathered)

    def __len__(self) -> int:
        return len(self._gathered)

    def is_in_order(self, name: str) -> bool:
        steps_N = np.asarray(self._gathered[name][0])
        return bool((np.diff(steps_N) >= 0).all())

    def doubled(self, name: str) -> int:
        """Values of a step that had one before."""
        return len(self._gathered[name][0]) - len(self[name])


@dataclass(frozen=True)
class Log:
    series: Columns
    rows: int
    notes: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    steps_are_stated: bool = True  # else rows are counted


class Gatherer:
    """Takes rows or single numbers; `log` makes the columns."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.settings: dict[str, Any] = {}
        self.rows = 0
        self._columns: dict[str, tuple[array[float], array[float]]] = {}
        self._stated = False
        self._last = 0.0

    def add_row(self, row: Mapping[str, Any]) -> None:
        """A row without a step belongs to the last one that had one; if none has, rows are counted."""
        numbers = dict(flat_numbers(row))
        if not numbers:
            return
        self.rows += 1
        stated = next((numbers[name] for name in STEP_NAMES if name in numbers), None)
        if stated is not None and abs(stated) <= LARGEST_STEP:
            self._stated, self._last = True, stated
        elif not self._stated:
            self._last = float(self.rows)
        for name in STEP_NAMES:
            numbers.pop(name, None)
        for name, value in numbers.items():
            self.add(self._last, name, value)

    def add(self, step: float, name: str, value: float) -> None:
        column = self._columns.get(name)
        if column is None:
            column = self._columns[name] = (array("d"), array("d"))
        column[0].append(step)
        column[1].append(value)

    def state_steps(self) -> None:
        """Of numbers that were added with their own step."""
        self._stated = True

    def log(self) -> Log:
        return Log(Columns(self._columns), self.rows, tuple(self.notes), dict(self.settings), self._stated)


def flat_numbers(row: Mapping[str, Any], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, float]]:
    """The numbers of a row by name; a nested one is named by its path.

    >>> list(flat_numbers({"step": 3, "data": {"loss": "0.5", "words": "x"}, "list": [1]}))
    [('step', 3.0), ('data/loss', 0.5)]
    """
    for name, value in row.items():
        if type(value) is float:  # most are: a long log has millions
            yield prefix + name, value
        elif isinstance(value, dict):
            if depth < DEEPEST:
                yield from flat_numbers(value, f"{prefix}{name}/", depth + 1)
        elif (number := as_number(value)) is not None:
            yield f"{prefix}{name}", number


def as_number(value: Any) -> float | None:
    """None for what is not a number. Loggers write numbers as text, and NaN as a word.

    >>> as_number("1e-3"), as_number("NaN"), as_number(True), as_number("on"), as_number(10**400)
    (0.001, nan, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, str) and (len(value) > 40 or "_" in value):  # Python reads 1_000 as a number; no logger does
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def is_finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)
