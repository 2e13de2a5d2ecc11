"""A series of numbers -> a few lines of text: the reward plot of the stage log."""

from __future__ import annotations

import math
from collections.abc import Sequence

from assay.machine.terminal import number

# one character per filled eighth of a cell, from empty to full
BLOCKS = " \u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"
ASCII_BLOCKS = " ...:::##"


def plot(
    values: Sequence[float | None], width: int, height: int, *, first: int = 0, ascii_only: bool = False
) -> list[str]:
    """`height` rows of columns with the extremes as labels, and an axis from step `first` to the last one.

    More values than columns are averaged; None, NaN and Inf leave a gap. No line is wider than `width`, unless not
    even one column fits. Nothing to draw: no lines.

    >>> print("\\n".join(plot([0.0, 1.0, 2.0, 3.0], width=20, height=2, ascii_only=True)))
    3.000 |  .#
    0.000 |.:##
          +0--3
    """
    if height < 2:
        raise ValueError(f"a plot of {height} rows has no room for its two labels; give it 2 or more")
    # the labels need the columns and the columns need the width of the labels: two passes settle it
    label_width = 0
    for _ in range(2):
        columns = _average(values, max(1, width - label_width - 2))
        present = [value for value in columns if value is not None]
        if not present:
            return []
        low, high = min(present), max(present)
        label_width = max(len(number(low)), len(number(high)), label_width)

    levels = [None if value is None else _level(value, low, high, 8 * height) for value in columns]
    labels = {height - 1: number(low)} if low == high else {0: number(high), height - 1: number(low)}
    blocks, bar, tick, corner, dash = (
        (ASCII_BLOCKS, "|", "|", "+", "-") if ascii_only else (BLOCKS, "\u2502", "\u2524", "\u2514", "\u2500")
    )
    lines = []
    for row in range(height):
        floor = 8 * (height - 1 - row)
        cells = "".join(" " if level is None else blocks[min(max(level - floor, 0), 8)] for level in levels)
        lines.append(f"{labels.get(row, ''):>{label_width}} {tick if row in labels else bar}{cells.rstrip()}")
    left, right = str(first), "" if len(values) == 1 else dash + str(first + len(values) - 1)
    axis = left + right.rjust(len(columns) - len(left), dash)
    room = width - label_width - 2
    return [*lines, f"{'':>{label_width}} {corner}{axis if len(axis) <= room else dash * len(columns)}"]


def _average(values: Sequence[float | None], columns: int) -> list[float | None]:
    """At most `columns` means of equal stretches of the values; None where a stretch holds no finite value."""
    columns = min(columns, len(values))
    means: list[float | None] = []
    for column in range(columns):
        stretch = values[column * len(values) // columns : (column + 1) * len(values) // columns]
        finite = [value for value in stretch if value is not None and math.isfinite(value)]
        mean = sum(finite) / len(finite) if finite else math.nan
        means.append(mean if math.isfinite(mean) else None)
    return means


def _level(value: float, low: float, high: float, levels: int) -> int:
    """How many eighths of a cell a value fills: 1 at the lowest, so that it can be seen, `levels` at the highest."""
    span = high / 2 - low / 2  # halves: the difference of two finite numbers may overflow
    if span == 0:
        return 1  # a constant is a flat line at the bottom, beside its label
    return 1 + round((value / 2 - low / 2) / span * (levels - 1))
