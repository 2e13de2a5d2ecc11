"""What became of rows and columns: the same moves made with other arrays.

`carried(value, at)` asks `at` for the array of each source and moves it as the script moved the source: it cuts, turns
and joins. None where a step is not known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from assay.programs.run.watched import numbers_of, sight
from assay.programs.value import UNKNOWN, Value
from assay.record.batch import Array

At = Callable[[Value], Array | None]

RESHAPES = frozenset("view reshape flatten squeeze unsqueeze".split())
SAME = frozenset("cast clone detach contiguous neg log mul masked_fill where sub nan_to_num changed setitem".split())


def carried(value: Value, at: At) -> Array | None:
    found = at(value)
    if found is not None:
        return found
    if value.op in ("cat", "stack"):
        return _joined(value, at)
    before, seen = value.input, sight(value)
    if before is None or seen is None:
        return None
    inner = carried(before, at)
    if inner is None:
        return None
    if value.op in RESHAPES:
        return inner.reshape(seen.shape) if inner.size == seen.size else None
    if value.op in SAME or value.op in ("expand", "expand_as"):
        return inner if inner.shape == seen.shape else _broadcast(inner, seen.shape)
    if value.op == "index":
        return _indexed(value, inner, seen.shape)
    return inner.T if value.op == "transpose" and inner.ndim == 2 else None


def _broadcast(array: Array, shape: tuple[int, ...]) -> Array | None:
    try:
        return np.broadcast_to(array, shape)
    except ValueError:
        return None


def _indexed(value: Value, array: Array, shape: tuple[int, ...]) -> Array | None:
    keys = tuple(_key(one) for name, one in value.arguments.items() if name.isdigit())
    if any(key is UNKNOWN for key in keys):
        return None
    try:
        result: Array = array[keys]
    except (IndexError, TypeError, ValueError):
        return None
    return result if result.shape == shape else None


def _key(value: Value) -> Any:
    """What stood between the brackets."""
    if value.op == "slice":
        parts = {name: _whole(one) for name, one in value.arguments.items()}
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


def _joined(value: Value, at: At) -> Array | None:
    tensors = value.arguments.get("tensors")
    parts = [carried(part, at) for part in tensors.arguments.values()] if tensors is not None else []
    whole = [part for part in parts if part is not None]
    dim = value.setting("dim", 0)
    if not whole or not isinstance(dim, int) or len(whole) < len(parts):
        return None
    try:
        return np.concatenate(whole, axis=dim) if value.op == "cat" else np.stack(whole, axis=dim)
    except ValueError:
        return None
