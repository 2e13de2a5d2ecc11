"""Which rows a tensor holds, and at which positions a model read them.

`replay(value, at)` asks `at` for the array of each source and moves it as the script moved the source: it cuts, turns
and joins. None where a step is not known.

Shape legend: B rows, S tokens given to the model, L tokens of the mask: those in the cache and those given.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.programs.graph import RESHAPES, UNKNOWN, Value
from assay.programs.run.sight import numbers_of, sight
from assay.record.batch import Array

if TYPE_CHECKING:
    from assay.programs.run.watched import Forward

At = Callable[[Value], Array | None]

SAME = frozenset("cast clone detach neg log mul masked_fill where sub nan_to_num changed setitem".split())
_MOVES = frozenset(
    "index cast unsqueeze squeeze view reshape expand expand_as detach clone neg changed index_select".split()
)
_SCALES = frozenset("sub div add mul".split())
_SAME_ROWS = SAME | {"div", "add", "clamp"}
_LAYOUTS = RESHAPES | _SAME_ROWS | {"transpose", "permute", "index"}


def replay(value: Value, at: At, same: frozenset[str] = SAME) -> Array | None:
    """`same`: operations that leave every number at its place."""
    found = at(value)
    if found is not None:
        return found
    if value.op in ("cat", "stack"):
        return _joined(value, at, same)
    before, seen = value.input, sight(value)
    if value.op == "element" and before is not None and before.op == "unbind" and before.setting("dim", 0) == 0:
        whole = None if before.input is None else replay(before.input, at, same)
        return None if whole is None or not isinstance(value.constant, int) else np.asarray(whole[value.constant])
    if before is None or seen is None:
        return None
    inner = replay(before, at, same)
    if inner is None:
        return None
    if value.op in RESHAPES:
        return inner.reshape(seen.shape) if inner.size == seen.size else None
    if value.op in same or value.op in ("expand", "expand_as"):
        return inner if inner.shape == seen.shape else _broadcast(inner, seen.shape)
    if value.op == "index":
        return _indexed(value, inner, seen.shape)
    if value.op in ("gather", "take_along_dim"):
        return _gathered(value, inner, seen.shape)
    if value.op == "transpose" and inner.ndim == 2:
        return inner.T
    return inner.T if value.op == "permute" and inner.T.shape == seen.shape != inner.shape else None


def _broadcast(array: Array, shape: tuple[int, ...]) -> Array | None:
    try:
        return np.broadcast_to(array, shape)
    except ValueError:
        return None


def _indexed(value: Value, array: Array, shape: tuple[int, ...]) -> Array | None:
    keys = tuple(_key(key) for key in value.keys)
    if any(key is UNKNOWN for key in keys):
        return None
    try:
        result: Array = array[keys]
    except (IndexError, TypeError, ValueError):
        return None
    return result if result.shape == shape else None


def _gathered(value: Value, array: Array, shape: tuple[int, ...]) -> Array | None:
    index, dim = numbers_of(value.arguments.get("index")), value.setting("dim")
    if index is None or not isinstance(dim, int) or index.ndim != array.ndim:
        return None
    try:
        result: Array = np.take_along_axis(array, index, dim)
    except (IndexError, ValueError):
        return None
    return result if result.shape == shape else None


def _key(value: Value) -> Any:
    """What stood between the brackets."""
    if value.op == "slice":
        parts = {name: _whole(part) for name, part in value.arguments.items()}
        if any(part is UNKNOWN for part in parts.values()):
            return UNKNOWN
        return slice(parts.get("start"), parts.get("stop"), parts.get("step"))
    if value.name == "ellipsis":
        return Ellipsis
    numbers = numbers_of(value)
    return value.constant if numbers is None else numbers


def _whole(value: Value) -> Any:
    numbers = numbers_of(value)
    return value.constant if numbers is None or numbers.size != 1 else int(numbers.reshape(-1)[0])


def _joined(value: Value, at: At, same: frozenset[str]) -> Array | None:
    tensors = value.arguments.get("tensors")
    parts = [replay(part, at, same) for part in tensors.arguments.values()] if tensors is not None else []
    whole = [part for part in parts if part is not None]
    dim = value.setting("dim", 0)
    if not whole or not isinstance(dim, int) or len(whole) < len(parts):
        return None
    try:
        return np.concatenate(whole, axis=dim) if value.op == "cat" else np.stack(whole, axis=dim)
    except ValueError:
        return None


# -- the order of rows


@dataclass(frozen=True)
class Picked:
    """Rows of a tensor that were picked from another one."""

    base: Value
    rows_B: Array  # their numbers in the base
    last: int  # when the last pick was made; -1: none was

    @property
    def length(self) -> int:
        """Of the base."""
        return _length(self.base)


def picked_rows(value: Value | None) -> Picked | None:
    """None where it is not known where the rows come from."""
    if value is None:
        return None
    base, last = value, -1
    while (base.op in _MOVES or _is_scaled(base)) and base.input is not None and sight(base.input) is not None:
        if takes_rows(base) and _length(base.input):
            last = max(last, base.order)
        elif _length(base) != _length(base.input):
            break  # rows were folded
        base = base.input
    if not _length(base):
        return None
    beside = _oldest_beside(base)

    def at(source: Value) -> Array | None:
        seen = sight(source)
        if source is not base or seen is None:
            return None
        numbers = np.arange(seen.shape[0]).reshape(-1, *(1 for _ in seen.shape[1:]))
        return np.broadcast_to(numbers, seen.shape)

    rows = replay(value, at, _SAME_ROWS)
    if rows is None or rows.ndim == 0:
        return None
    flat = rows.reshape(len(rows), -1)
    if not (flat == flat[:, :1]).all():
        return None
    inner = picked_rows(beside)
    if inner is None:
        return Picked(base, flat[:, 0], last)
    return Picked(inner.base, inner.rows_B[flat[:, 0]], max(last, inner.last))


def _oldest_beside(value: Value) -> Value | None:
    """Of prompts and completions that were put beside each other, the older ones: their rows are the same."""
    tensors, seen = value.arguments.get("tensors"), sight(value)
    if value.op != "cat" or tensors is None or seen is None or value.setting("dim", 0) not in (1, -1):
        return None
    parts = [part for part in tensors.arguments.values() if _length(part) == seen.shape[0]]
    is_wide = len(seen.shape) == 2 and len(parts) == len(tensors.arguments) > 0
    return min(parts, key=lambda part: part.order) if is_wide else None


def _is_scaled(value: Value) -> bool:
    """By a number, or by one of the whole tensor: its mean, its std."""
    other = value.arguments.get("other")
    if value.op not in _SCALES or other is None:
        return False
    seen = sight(other)
    return isinstance(other.constant, (int, float)) or (seen is not None and seen.size == 1)


def placed_numbers(value: Value | None) -> Picked | None:
    """Of a tensor with one number per row: from which row of the oldest such tensor each comes, through any layout.

    None where it is not known, or no tensor of one dimension stands at the beginning."""
    base = value
    while base is not None and base.input is not None and (inner := sight(base.input)) is not None:
        seen = sight(base)
        if base.op not in _LAYOUTS or seen is None or seen.size != inner.size:
            break
        base = base.input
    first, whole = sight(base), sight(value)
    if value is None or base is None or base is value or first is None or whole is None or len(first.shape) != 1:
        return None
    numbers = np.arange(first.size)
    rows = replay(value, lambda source: numbers if source is base else None, _SAME_ROWS)
    return None if rows is None or rows.size != first.size else Picked(base, rows.reshape(-1), value.order)


def takes_rows(value: Value) -> bool:
    """x[rows], x[1:3], index_select."""
    key = value.arguments.get("0") or value.arguments.get("index")
    if value.op not in ("index", "index_select") or key is None:
        return False
    return sight(key) is not None or (key.op == "slice" and bool(key.arguments))


def _length(value: Value) -> int:
    seen = sight(value)
    return seen.shape[0] if seen is not None and seen.shape else 0


# -- positions


def position_shifts(forward: Forward, *, can_cache: bool) -> tuple[Array, Array] | None:
    """(rows with padding on the left, by how much each is read too far); None where it is not known.

    The position of a token is right if it is the number of attended tokens before it. Without position ids a model
    that can cache counts by itself, padding included, as those of transformers do.
    """
    mask_BL, ids_BS = numbers_of(forward.attention_mask), numbers_of(forward.input_ids)
    if mask_BL is None or ids_BS is None or mask_BL.ndim != 2 or ids_BS.ndim != 2 or len(mask_BL) != len(ids_BS):
        return None
    width, given = mask_BL.shape[1], ids_BS.shape[1]
    if width < given or (width > given and not forward.caches):
        return None
    positions = numbers_of(forward.position_ids)
    if positions is None:
        if not can_cache:
            return None
        positions = np.arange(width - given, width)[None]
    if positions.ndim != 2 or positions.shape[1] != given:
        return None
    positions_BS = np.broadcast_to(positions, ids_BS.shape)
    attended_BL = mask_BL.astype(bool)
    expected_BS = (attended_BL.cumsum(axis=1) - 1)[:, width - given :]
    inside_BS = attended_BL[:, width - given :]
    shift_BS = np.where(inside_BS, positions_BS - expected_BS, 0)
    largest_B = np.abs(shift_BS).max(axis=1) * np.sign(shift_BS.sum(axis=1))
    padded_B = np.asarray(~attended_BL[:, 0] & inside_BS.any(axis=1))  # on the right it moves no position
    return padded_B, largest_B.astype(np.int64)
