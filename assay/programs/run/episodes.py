"""Episodes of a small environment as rows: the state in which each began, and how many of its actions were taken.

Whether an action was taken is known before it is drawn; whether it ended the episode is known only after. By the graph
each column of a mask is one or the other, and both give the same lengths.

Shape legend: B episodes, T steps, S numbers of a state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from assay.programs.graph import Value
from assay.programs.run.kinds import RunKinds
from assay.programs.run.policies import LEAST_MOVED, Layout, scored_states
from assay.programs.run.roles import LossPiece
from assay.programs.run.sight import is_mask, numbers_of, sight
from assay.programs.run.states import state_numbers
from assay.programs.run.watched import Sampling, WatchedRun, WatchedUpdate
from assay.programs.walk import walk
from assay.record.batch import Array

MOST_MOVED = 0.7  # of the actions: at the end of an episode another state follows
MOST_LOOKED_AT = 20_000  # values between a mask and what it was made of


def start_states(run: WatchedRun, pieces: Sequence[LossPiece], layouts: Sequence[Layout], draws: int) -> Array | None:
    """[B, S]: what the policy was given at the first step of each row; None where rows are not episodes, or where no
    two of them begin alike, so that nothing is repeated on purpose, or all do."""
    if any(layout.width == 1 for layout in layouts) and draws > 1:
        return None
    starts: list[Array] = []
    for piece, layout in zip(pieces, layouts, strict=True):
        states = scored_states(piece, run.kinds)
        count = layout.rows * layout.width
        if states is None or not states.ndim or states.size % count or states.size == 0:
            return None
        wide_BTS = (
            states.reshape(layout.width, layout.rows, -1).swapaxes(0, 1)
            if layout.turned
            else states.reshape(layout.rows, layout.width, -1)
        )
        starts.append(wide_BTS[:, 0])
    if len({part.shape[1] for part in starts}) != 1:
        return None
    starts_BS = np.concatenate(starts)
    different = len(np.unique(starts_BS, axis=0))
    return starts_BS if 1 < different < len(starts_BS) else None


def lengths_of(piece: LossPiece, layout: Layout, draws: Sequence[Sampling]) -> Array | None:
    """Actions that were taken in each row, those that the mask leaves out at its end included; None: not known."""
    mask, numbers = piece.mask, numbers_of(piece.mask)
    if mask is None or numbers is None or layout.width < 2 or len(draws) != layout.width:
        return None
    mask_BT = layout.put(numbers.astype(bool) ^ piece.mask_is_inverted)
    if (mask_BT[:, 1:] & ~mask_BT[:, :-1]).any():
        return None  # not a mask of beginnings
    for source_BT, is_known_after in _sources(mask, layout, draws):
        if not is_known_after and np.array_equal(np.logical_and.accumulate(source_BT, axis=1), mask_BT):
            return np.asarray(mask_BT.sum(axis=1))
        for done_BT in (source_BT, ~source_BT) if is_known_after else ():
            ended_BT = np.logical_or.accumulate(done_BT, axis=1)
            taken_BT = np.concatenate([np.ones_like(ended_BT[:, :1]), ~ended_BT[:, :-1]], axis=1)
            if np.array_equal(mask_BT, taken_BT) or np.array_equal(mask_BT, ~ended_BT):
                return np.asarray(taken_BT.sum(axis=1))
    return None


def _sources(mask: Value, layout: Layout, draws: Sequence[Sampling]) -> Iterator[tuple[Array, bool]]:
    """Tensors of 0 and 1 that the mask was made of and that were put together step by step, [B, T]; and whether each of
    their columns is made of what was drawn in that step."""
    for looked_at, value in enumerate(walk(mask)):
        if looked_at > MOST_LOOKED_AT:
            return
        if value.op not in ("stack", "cat", "setitem") or not is_mask(value):
            continue
        columns, numbers = _columns(value), numbers_of(value)
        if columns is None or len(columns) != layout.width or numbers is None:
            continue
        if numbers.size != layout.rows * layout.width:
            continue
        is_time_first = numbers.shape[0] == layout.width and (numbers.shape[0] != layout.rows or layout.turned)
        whole = numbers.astype(bool).reshape(numbers.shape[0], -1)
        after = [_is_made_of(column, draw.value) for column, draw in zip(columns, draws, strict=True)]
        if all(after) or not any(after):
            yield (whole.T if is_time_first else whole), all(after)


def _columns(value: Value) -> list[Value] | None:
    """What was put together, one for each step."""
    if value.op in ("stack", "cat"):
        parts = value.arguments.get("tensors")
        return None if parts is None else list(parts.arguments.values())
    columns: list[Value] = []
    current: Value | None = value
    while current is not None and current.op in ("setitem", "changed"):
        if current.op == "setitem":
            columns.append(current.arguments["value"])
        current = current.input
    return columns[::-1]


def _is_made_of(value: Value, drawn: Value) -> bool:
    """Whether the draw is among what the value was made of; what is older than the draw cannot be."""
    if sight(value) is None:
        return False
    return any(made is drawn for made in walk(value, until=lambda made: made.order < drawn.order))


def other_states(update: WatchedUpdate, draws: Sequence[Sampling], kinds: RunKinds) -> str | None:
    """In words, where the policy was given other states in the loss than when the actions were drawn."""
    pieces = [scored_states(piece, kinds) for piece in update.pieces]
    drawn = [state_numbers(draw.value, kinds) for draw in draws]
    widths = {states.shape[-1] if states is not None and states.ndim else 0 for states in (*pieces, *drawn)}
    if len(widths) != 1 or 0 in widths:
        return None
    scored, played = (
        [tuple(row) for states in part if states is not None for row in states.reshape(-1, *widths).tolist()]
        for part in (pieces, drawn)
    )
    others = (Counter(scored) - Counter(played)).total()
    if others < LEAST_MOVED * len(scored):
        return None
    return (
        f"{others} of {len(scored)} states that were scored are not those that the actions were drawn at ("
        f"{len(set(scored))} different ones were scored, {len(set(played))} were met): see whether stored states are "
        "changed in place afterwards, as torch.from_numpy() shares its memory"
    )


def states_moved(update: WatchedUpdate, draws: Sequence[Sampling], kinds: RunKinds) -> tuple[int, int, int] | None:
    """See WatchedUpdate: where actions are trained in the order in which they were drawn, and most are scored at the
    state of the step before or after."""
    actions = [numbers_of(draw.value) for draw in draws]
    played, scored = (
        [state_numbers(draw.value, kinds) for draw in draws],
        [scored_states(piece, kinds) for piece in update.pieces],
    )
    known = [numbers.reshape(-1) for numbers in actions if numbers is not None]
    states = [[part for part in parts if part is not None] for parts in (played, scored)]
    if not known or len(known) < len(draws) or len(states[0]) < len(played) or len(states[1]) < len(scored):
        return None
    trained_N, drawn_N = np.concatenate([piece.ids.reshape(-1) for piece in update.pieces]), np.concatenate(known)
    widths = {part.size // len(drawn_N) for part in map(_together, states) if part.size % len(drawn_N) == 0}
    if not np.array_equal(trained_N, drawn_N) or len(widths) != 1 or 0 in widths:
        return None
    played_NS, scored_NS = (_together(parts).reshape(len(drawn_N), -1) for parts in states)
    if played_NS.shape != scored_NS.shape:
        return None
    own = int((played_NS != scored_NS).any(axis=1).sum())
    for shift in (1, -1):
        other_NS = np.roll(played_NS, -shift, axis=0)
        same_N = (other_NS == scored_NS).all(axis=1)
        if own >= LEAST_MOVED * len(drawn_N) and same_N.mean() >= MOST_MOVED:
            return own, len(drawn_N), shift
    return None


def _together(parts: Sequence[Array]) -> Array:
    return np.concatenate([part.reshape(-1) for part in parts])
