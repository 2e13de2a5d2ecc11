"""Rewards and advantages -> the line that leads from one to the other in each group, and what its parts are.

An advantage is slope * (reward - level). Both are read off the recorded numbers of a group, whatever formula made
them; LEVELS says of how many known ways to choose a baseline each group's level is the outcome, CHANGES what may have
become of the right advantages on the way.
Shape legend: B rows, P groups, G rows of a group, N some numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from assay.record.batch import Array

FEWEST_LEVELS = 3  # groups whose level a wrong baseline must give exactly, and none of them by chance
STEEP = 1e-9  # of a slope: below it the advantages of a group are all alike


@dataclass(frozen=True)
class Line:
    """The advantages of one group: slope * (reward - level), for all rows to rounding."""

    rewards_G: Array
    advantages_G: Array
    slope: float
    level: float
    slack: float  # how far the level may be off by rounding

    def is_at(self, level: float) -> bool:
        return bool(np.isfinite(level) and abs(level - self.level) <= self.slack)


@dataclass(frozen=True)
class Lines:
    """Of the groups of a batch whose rewards vary; the rewards of all groups, in order, go with them."""

    lines: tuple[Line, ...]
    numbers: tuple[int, ...]  # of the groups that the lines are of
    rewards_PG: tuple[Array, ...]
    bent: int  # groups whose advantages are on no line

    @property
    def is_straight(self) -> bool:
        return bool(self.lines) and not self.bent


def lines_of(rewards_B: Array, advantages_B: Array, groups: Sequence[Array], limit: float) -> Lines:
    """`limit` is relative to the largest advantage of a group."""
    lines, numbers, bent = [], [], 0
    for number, rows in enumerate(groups):
        kept = rows[np.isfinite(rewards_B[rows]) & np.isfinite(advantages_B[rows])]
        rewards_G, advantages_G = rewards_B[kept].astype(float), advantages_B[kept].astype(float)
        if len(kept) < 2 or np.ptp(rewards_G) <= 1e-6 * max(1.0, float(np.abs(rewards_G).max())):
            continue
        centred_G = rewards_G - rewards_G.mean()
        slope = float(centred_G @ advantages_G / (centred_G @ centred_G))
        size = float(np.abs(advantages_G).max())
        off = np.abs(advantages_G - advantages_G.mean() - slope * centred_G).max()
        if off > limit * size or abs(slope) <= STEEP:
            bent += 1
            continue
        level = float(rewards_G.mean() - advantages_G.mean() / slope)
        slack = 2 * limit * (size / abs(slope) + float(np.abs(rewards_G).max()))
        lines.append(Line(rewards_G, advantages_G, slope, level, slack))
        numbers.append(number)
    return Lines(tuple(lines), tuple(numbers), tuple(rewards_B[rows].astype(float) for rows in groups), bent)


def _mean(values_N: Array) -> float:
    return float(values_N.mean()) if len(values_N) else float("nan")


Level = Callable[[Array, Sequence[Array], int], float]  # the group's rewards, those of all groups, which one it is

SOUND: dict[str, Level] = {"the group mean": lambda own_G, all_PG, at: _mean(own_G)}
DELIBERATE: dict[str, Level] = {  # by some people, where no setting says otherwise
    "the mean of the whole batch": lambda own_G, all_PG, at: _mean(np.concatenate(all_PG)),
    "the median of the group": lambda own_G, all_PG, at: float(np.median(own_G)),
    "the largest reward of the group": lambda own_G, all_PG, at: float(own_G.max()),
    "the smallest reward of the group": lambda own_G, all_PG, at: float(own_G.min()),
    "the reward of the group's first row": lambda own_G, all_PG, at: float(own_G[0]),
    "the reward of the group's last row": lambda own_G, all_PG, at: float(own_G[-1]),
    "0: nothing is subtracted": lambda own_G, all_PG, at: 0.0,
}
ARGUABLE: dict[str, Level] = {  # a shrunk mean, or one of other rewards: rare, and without a bias or nearly so
    "the sum of the rewards of the group over one more than their number": (
        lambda own_G, all_PG, at: float(own_G.sum() / (len(own_G) + 1))
    ),
    "half the group mean": lambda own_G, all_PG, at: _mean(own_G) / 2,
    "the mean over the group without its first row": lambda own_G, all_PG, at: _mean(own_G[1:]),
    "the mean over the group without its last row": lambda own_G, all_PG, at: _mean(own_G[:-1]),
    "the mean over the first half of the group": lambda own_G, all_PG, at: _mean(own_G[: len(own_G) // 2]),
    "the mean over the second half of the group": lambda own_G, all_PG, at: _mean(own_G[len(own_G) // 2 :]),
    "the mean of the group before": lambda own_G, all_PG, at: _mean(all_PG[at - 1]),
    "the mean of the group behind": lambda own_G, all_PG, at: _mean(all_PG[(at + 1) % len(all_PG)]),
    "the mean of the first group": lambda own_G, all_PG, at: _mean(all_PG[0]),
    "the mean of the last group": lambda own_G, all_PG, at: _mean(all_PG[-1]),
    "the mean of the other groups": lambda own_G, all_PG, at: _mean(
        np.concatenate([*all_PG[:at], *all_PG[at + 1 :]]) if len(all_PG) > 1 else own_G[:0]
    ),
}
MISTAKEN: dict[str, Level] = {
    "the mean over the rows of the group whose reward is not 0": lambda own_G, all_PG, at: _mean(own_G[own_G != 0]),
    "the sum of all rewards of the group over one less than their number, the own one included": (
        lambda own_G, all_PG, at: float(own_G.sum() / (len(own_G) - 1))
    ),
    "the sum of the rewards of the group": lambda own_G, all_PG, at: float(own_G.sum()),
    "minus the group mean: it is added": lambda own_G, all_PG, at: -_mean(own_G),
    "twice the group mean": lambda own_G, all_PG, at: 2 * _mean(own_G),
    "the mean over the rows of the group whose reward is above 0": lambda own_G, all_PG, at: _mean(own_G[own_G > 0]),
    "the mean over the rows of the group whose reward is 0 or below": lambda own_G, all_PG, at: _mean(
        own_G[own_G <= 0]
    ),
    "the mean over the different rewards of the group": lambda own_G, all_PG, at: _mean(np.unique(own_G)),
    "the group's std": lambda own_G, all_PG, at: float(own_G.std(ddof=1)),
}
LEVELS = SOUND | DELIBERATE | ARGUABLE | MISTAKEN


def levels_that_fit(found: Sequence[Lines]) -> list[str]:
    """The ways to choose a baseline that give the level of every line of all these batches."""
    fitting = []
    with np.errstate(all="ignore"):
        for name, level_of in LEVELS.items():
            if all(
                line.is_at(level_of(lines.rewards_PG[at], lines.rewards_PG, at))
                for lines in found
                for line, at in zip(lines.lines, lines.numbers, strict=True)
            ):
                fitting.append(name)
    return fitting


CHANGES: dict[str, Callable[[Array], Array]] = {
    "their size without their sign": np.abs,
    "their sign alone": np.sign,
    "those below 0 set to 0": lambda values_B: np.maximum(values_B, 0.0),
    "those above 0 set to 0": lambda values_B: np.minimum(values_B, 0.0),
    "their square": np.square,
    "their square with the sign of each": lambda values_B: values_B * np.abs(values_B),
    "their exponential": np.exp,
}


def change_that_fits(right_B: Array, recorded_B: Array, limit: float) -> str:
    """What became of the right advantages, up to a factor: the name of a change, or ""."""
    known_B = np.isfinite(right_B) & np.isfinite(recorded_B)
    recorded_N = recorded_B[known_B]
    size = float(np.abs(recorded_N).max(initial=0.0))
    if size == 0 or len(np.unique(np.round(right_B[known_B], 6))) < 4:
        return ""
    for name, change in CHANGES.items():
        values_N = change(right_B[known_B])
        squares = float(values_N @ values_N)
        factor = float(values_N @ recorded_N) / squares if squares else 0.0
        if factor and np.abs(recorded_N - factor * values_N).max() <= limit * size:
            return name
    return ""


def order_that_fits(
    right_B: Array, recorded_B: Array, groups: Sequence[Array], limit: float
) -> tuple[str, Array] | None:
    """Where the recorded advantages are the right ones in another order: in words, and from which row each row has
    its own."""
    size = float(np.abs(recorded_B[np.isfinite(recorded_B)]).max(initial=0.0))
    if not (np.isfinite(right_B) & np.isfinite(recorded_B)).all() or size == 0 or len(right_B) < 4:
        return None
    if len(np.unique(np.round(right_B / size, 4))) < 4:
        return None
    rows_B = np.arange(len(right_B))
    named = [(f"each row has the advantage of the row {_distance(shift)}", np.roll(rows_B, shift)) for shift in _SHIFTS]
    named += [("each row has the advantage of its mirror image in the batch", rows_B[::-1])]
    mirrored_B, rolled_B = rows_B.copy(), {shift: rows_B.copy() for shift in _SHIFTS}
    for rows in groups:
        mirrored_B[rows] = rows[::-1]
        for shift, order_B in rolled_B.items():
            order_B[rows] = np.roll(rows, shift)
    named.append(("within each group the advantages stand in reverse order", mirrored_B))
    named += [
        (f"within each group each row has the advantage of the row {_distance(shift)}", order_B)
        for shift, order_B in rolled_B.items()
    ]
    if len({len(rows) for rows in groups}) == 1:
        grid_PG = np.stack(list(groups))
        flat_B = np.empty(len(rows_B), dtype=np.int64)
        flat_B[grid_PG.ravel()] = grid_PG.T.ravel()
        named.append(("the advantages are laid out with groups and members exchanged (a transpose too many)", flat_B))
        flat_B = np.empty(len(rows_B), dtype=np.int64)
        flat_B[grid_PG.T.ravel()] = grid_PG.ravel()
        named.append(("the advantages are laid out with groups and members exchanged (a transpose too many)", flat_B))
        named += [
            (f"each group has the advantages of the group {_distance(shift)}", _of_groups(grid_PG, shift))
            for shift in _SHIFTS
        ]
    for words, order_B in named:
        if np.abs(recorded_B - right_B[order_B]).max() <= limit * size:
            return words, order_B
    if np.abs(np.sort(recorded_B) - np.sort(right_B)).max() <= limit * size:
        return "the advantages are the right numbers in another order", np.argsort(right_B)[
            np.argsort(np.argsort(recorded_B))
        ]
    return None


_SHIFTS = (1, -1, 2, -2)


def _distance(shift: int) -> str:
    return f"{'one' if abs(shift) == 1 else 'two'} {'before' if shift > 0 else 'behind'}"


def _of_groups(grid_PG: Array, shift: int) -> Array:
    order_B = np.empty(grid_PG.size, dtype=np.int64)
    order_B[grid_PG.ravel()] = np.roll(grid_PG, shift, axis=0).ravel()
    return order_B


def column_advantages(advantages_BT: Array, inside_BT: Array) -> bool:
    """Whether the advantages follow the column and not the row: those of rows, laid along the tokens."""
    highest_T = np.where(inside_BT, advantages_BT, -np.inf).max(axis=0)
    lowest_T = np.where(inside_BT, advantages_BT, np.inf).min(axis=0)
    wide_T = inside_BT.sum(axis=0) > 1
    if wide_T.sum() < 3:
        return False
    size = float(np.abs(advantages_BT[inside_BT]).max())
    return bool((highest_T - lowest_T)[wide_T].max() <= 1e-5 * size and np.ptp(highest_T[wide_T]) > 1e-2 * size)
