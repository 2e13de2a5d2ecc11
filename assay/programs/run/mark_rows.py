"""Which rows stand beside each other in a loss, and at which positions their tokens were read.

Shape legend: B rows, S tokens given to the model, L tokens of the mask: those in the cache and those given.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from assay.programs.run.follow import carried
from assay.programs.run.roles import Piece
from assay.programs.run.watched import Forward, WatchedRun, numbers_of, sight
from assay.programs.value import Value
from assay.record.batch import Array

MOST = 24  # backwards that are looked at
OFF = 1e-3  # of a log-prob: more than rounding in float32
COARSE = 5e-2
_MOVES = frozenset(
    "index cast unsqueeze squeeze view reshape expand expand_as detach clone contiguous neg changed "
    "index_select".split()
)


def mark_rows(trace: WatchedRun) -> None:
    for backward in trace.backwards[:MOST]:
        for piece in backward.roles.pieces if backward.roles is not None else ():
            _order(trace, piece)
    _positions(trace)


# -- the order of rows


def _order(trace: WatchedRun, piece: Piece) -> None:
    """Rows of the ids that the policy scores, beside rows of the advantages and of old, by how each was picked."""
    ids = _picked(piece.forward.input_ids)
    if ids is None or _is_reordered(piece):
        return
    base, rows_B, last = ids
    for name, value in (("advantages", piece.advantages), ("old log-probs", piece.old_operand)):
        other = _picked(value)
        if value is None or other is None or name[:3] in piece.unsure:
            continue
        their_base, theirs_B, their_last = other
        if _length(base) != _length(their_base) or len(rows_B) != len(theirs_B):
            continue
        if not (last > their_base.order or their_last > base.order):
            continue  # the rows were in another order before both were made
        if np.array_equal(rows_B, theirs_B):
            trace.is_well("ALGN10", "advantages and old log-probs are picked in the order of the rows")
            continue
        if last <= their_base.order and their_last <= base.order:
            continue
        number = int(np.flatnonzero(rows_B != theirs_B)[0])
        trace.found(
            "ALGN10",
            f"row {number} of the loss scores row {rows_B[number]} of the rollouts, but its {name} are those of row "
            f"{theirs_B[number]}: they were picked in another order",
            value.place,
            piece.forward.value.place,
        )


def _is_reordered(piece: Piece) -> bool:
    """Whether rows were moved once more behind the pass."""
    value: Value | None = piece.new
    while value is not None and value.op != "forward":
        if value.op in ("index", "index_select") and _takes_rows(value):
            return True
        value = value.input
    return False


def _length(value: Value) -> int:
    seen = sight(value)
    return seen.shape[0] if seen is not None and seen.shape else 0


def _picked(value: Value | None) -> tuple[Value, Array, int] | None:
    """(the tensor that rows were picked from, their numbers, when the last pick was made)."""
    if value is None:
        return None
    base, last, picks = value, -1, False
    while base.op in _MOVES and base.input is not None and sight(base.input) is not None:
        if base.op in ("index", "index_select") and _length(base.input) and _takes_rows(base):
            last, picks = max(last, base.order), True
        elif _length(base) != _length(base.input):
            break  # rows were folded
        base = base.input
    if not _length(base):
        return None

    def at(one: Value) -> Array | None:
        seen = sight(one)
        if one is not base or seen is None:
            return None
        numbers = np.arange(seen.shape[0]).reshape(-1, *(1 for _ in seen.shape[1:]))
        return np.broadcast_to(numbers, seen.shape)

    rows = carried(value, at)
    if rows is None or rows.ndim == 0:
        return None
    flat = rows.reshape(len(rows), -1)
    if not (flat == flat[:, :1]).all():
        return None
    return base, flat[:, 0], last if picks else -1


def _takes_rows(value: Value) -> bool:
    key = value.arguments.get("0") or value.arguments.get("index")
    if key is None:
        return False
    return sight(key) is not None or (key.op == "slice" and bool(key.arguments))


# -- positions


def _positions(trace: WatchedRun) -> None:
    """How far the position of each attended token is from the number of attended tokens before it, pass by pass."""
    if not _are_off(trace):
        return
    right: Forward | None = None
    wrong: tuple[Forward, int, int] | None = None
    for forward in _scored(trace):
        offsets = _offsets(forward, trace)
        if offsets is None:
            continue
        padded, shift_B = offsets
        if not padded.any():
            continue
        if shift_B[padded].any():
            row = int(np.flatnonzero(padded & (shift_B != 0))[0])
            wrong = wrong or (forward, row, int(shift_B[row]))
        else:
            right = right or forward
    if wrong is not None and right is not None:
        forward, row, shift = wrong
        trace.found(
            "ALGN04",
            f"row {row} is read {abs(shift)} position{'s' * (abs(shift) != 1)} too {'far' if shift > 0 else 'near'} "
            "in this pass and at "
            "its right positions in another: log-probs of the same tokens differ",
            forward.value.place,
            right.value.place,
        )


def _are_off(trace: WatchedRun) -> bool:
    """Whether log-probs that should agree do not: positions that are shifted in a whole row may not matter to a "
    "model."""
    for batch in trace.batches:
        mask_BT, new_BT = batch.get("mask"), batch.get("new_logprobs")
        if batch.numbers.get("update") != 0 or mask_BT is None or new_BT is None:
            continue
        limit = OFF if batch.settings.get("dtype", "float32") == "float32" else COARSE
        others = [batch.get(name) for name in ("old_logprobs", "plain_logprobs")]
        if any(
            other is not None and np.nanmax(np.abs(np.where(mask_BT, other - new_BT, 0.0))) > limit for other in others
        ):
            return True
    return False


def _scored(trace: WatchedRun) -> Iterator[Forward]:
    for forward in trace.forwards:
        if trace.models[forward.model].is_trained and forward.attention_mask is not None:
            yield forward


def _offsets(forward: Forward, trace: WatchedRun) -> tuple[Array, Array] | None:
    """(rows with padding, by how much the last attended token of each is off); None where it is not known."""
    mask_BL, ids_BS = numbers_of(forward.attention_mask), numbers_of(forward.input_ids)
    if mask_BL is None or ids_BS is None or mask_BL.ndim != 2 or ids_BS.ndim != 2 or len(mask_BL) != len(ids_BS):
        return None
    width, given = mask_BL.shape[1], ids_BS.shape[1]
    if width < given or (width > given and not forward.caches):
        return None
    positions = numbers_of(forward.position_ids)
    if positions is None:
        if not trace.models[forward.model].can_cache:
            return None
        positions = np.arange(width - given, width)[None]  # what transformers counts by itself
    if positions.ndim != 2 or positions.shape[1] != given:
        return None
    positions_BS = np.broadcast_to(positions, ids_BS.shape)
    attended_BL = mask_BL.astype(bool)
    expected_BS = (attended_BL.cumsum(axis=1) - 1)[:, width - given :]
    inside_BS = attended_BL[:, width - given :]
    shift_BS = np.where(inside_BS, positions_BS - expected_BS, 0)
    largest_B = np.abs(shift_BS).max(axis=1) * np.sign(shift_BS.sum(axis=1))
    padded_B = np.asarray(~attended_BL[:, 0] & inside_BS.any(axis=1))  # on the left: on the right it moves no position
    return padded_B, largest_B.astype(np.int64)
