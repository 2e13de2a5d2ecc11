"""What a script has stored when it begins to learn from a rollout: rewards, dones, values; in lists, arrays, objects.

Rewards of a small environment are mostly numbers of Python or numpy, which no call of torch shows. When backward() is
called they still lie in the script's variables, one for each action. Only plain containers and attributes are read:
no property is called, nothing is changed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from types import FrameType, ModuleType
from typing import Any

import numpy as np
import torch

from assay.programs.run.watched import Stored
from assay.record.batch import Array

MOST_LOOKED_AT = 20_000  # objects
DEEPEST = 5  # variable, object, list, record, number
MOST_FIELDS = 64  # of a record, or parts of a list that are looked into one by one
MOST_STORED = 64
_NUMBERS = (bool, int, float, np.bool_, np.integer, np.floating)


def stored_numbers(frame: FrameType | None, is_own: Callable[[str], bool], count: int) -> list[Stored]:
    """Series of `count` numbers in the variables of the script's functions that are under way, and of its modules."""
    search = _Search(count)
    while frame is not None:
        if is_own(frame.f_code.co_filename):
            is_module = frame.f_code.co_name == "<module>"
            for names in (frame.f_locals,) if is_module else (frame.f_locals, frame.f_globals):
                for name, value in list(names.items()):
                    if not name.startswith("__"):
                        search.look(name, value, 0)
        frame = frame.f_back
    return search.found[:MOST_STORED]


class _Search:
    def __init__(self, count: int) -> None:
        self.count, self.found = count, list[Stored]()
        self._seen: set[int] = set()
        self._left = MOST_LOOKED_AT

    def look(self, name: str, value: Any, depth: int) -> None:
        if isinstance(value, (*_NUMBERS, str, bytes, type, ModuleType)) or value is None or callable_only(value):
            return
        if id(value) in self._seen or depth > DEEPEST or self._left <= 0:
            return
        self._seen.add(id(value))
        self._left -= 1
        if isinstance(value, (torch.Tensor, np.ndarray)):
            if (numbers := _as_array(value)) is not None and numbers.size == self.count:
                self.found.append(Stored(name, numbers))
        elif isinstance(value, (list, tuple, deque)):
            self._look_into(name, value, depth)
        elif isinstance(value, dict):
            for key, part in list(value.items())[:MOST_FIELDS]:
                self.look(f"{name}[{key!r}]", part, depth + 1)
        else:
            for key, part in _fields(value):
                self.look(f"{name}.{key}", part, depth + 1)

    def _look_into(self, name: str, values: Sequence[Any], depth: int) -> None:
        if not values or len(values) > self.count:
            return
        self._left -= len(values)
        joined = _joined(values)
        if joined is not None:
            if joined[0].size == self.count:
                self.found.append(Stored(name, *joined))
            return
        for key, column in _columns(values):  # a list of transitions, or of episodes
            column_joined = _joined(column)
            if column_joined is not None and column_joined[0].size == self.count:
                self.found.append(Stored(f"{name}[{key}]", *column_joined))
            elif column_joined is None and depth < DEEPEST and len(values) <= MOST_FIELDS:
                flat = [part for inner in column if isinstance(inner, (list, tuple, deque)) for part in inner]
                if flat:
                    self._look_into(f"{name}[{key}]", flat, depth + 1)
        if len(values) <= MOST_FIELDS:
            for number, part in enumerate(values):
                self.look(f"{name}[{number}]", part, depth + 1)


def callable_only(value: Any) -> bool:
    """A function or a method; a module of torch can be called and has attributes."""
    return callable(value) and not hasattr(value, "__dict__")


def _fields(value: Any) -> list[tuple[str, Any]]:
    """Attributes of an object that lie in it."""
    if callable(value) and not isinstance(value, torch.nn.Module) and hasattr(value, "__code__"):
        return []
    named = dict(getattr(value, "__dict__", {}))
    slots = getattr(type(value), "__slots__", ())
    named |= {name: getattr(value, name) for name in slots if isinstance(name, str) and name in dir(value)}
    return [(name, part) for name, part in list(named.items())[:MOST_FIELDS] if not name.startswith("_")]


def _columns(values: Sequence[Any]) -> Iterator[tuple[str, list[Any]]]:
    """Of records that have the same fields."""
    first = values[0]
    if isinstance(first, (list, tuple)) and len(first) <= MOST_FIELDS:
        if all(isinstance(part, (list, tuple)) and len(part) == len(first) for part in values):
            names = getattr(first, "_fields", range(len(first)))
            yield from ((str(name), [part[number] for part in values]) for number, name in enumerate(names))
    elif isinstance(first, dict):
        for key in list(first)[:MOST_FIELDS]:
            if all(isinstance(part, dict) and key in part for part in values):
                yield str(key), [part[key] for part in values]
    elif not isinstance(first, (torch.Tensor, np.ndarray)):
        fields = [dict(_fields(part)) for part in values]
        for key in fields[0]:
            if all(key in part for part in fields):
                yield key, [part[key] for part in fields]


def _joined(values: Sequence[Any]) -> tuple[Array, tuple[int, ...]] | None:
    """(numbers in one array, how many each part gave where parts are lists); None where they are not numbers alone."""
    if isinstance(values[0], _NUMBERS):
        return (np.array(values, dtype=np.float64), ()) if all(isinstance(part, _NUMBERS) for part in values) else None
    if isinstance(values[0], (torch.Tensor, np.ndarray)):
        arrays = [_as_array(part) for part in values]
        known = [array for array in arrays if array is not None]
        if len(known) < len(arrays):
            return None
        if len({array.shape for array in known}) == 1:
            return np.stack(known), ()
        if all(array.ndim == 1 for array in known):
            return np.concatenate(known), tuple(map(len, known))
        return None
    if isinstance(values[0], (list, deque)):
        parts = [_joined(part) if isinstance(part, (list, deque)) and part else None for part in values]
        whole = [part[0].reshape(-1) for part in parts if part is not None and not part[1]]
        return (np.concatenate(whole), tuple(map(len, whole))) if len(whole) == len(values) else None
    return None


def _as_array(value: Any) -> Array | None:
    """A copy; None where it is not numbers."""
    if isinstance(value, torch.Tensor):
        if value.is_sparse or value.is_meta or value.numel() > 1_000_000:
            return None
        numbers: Array = value.detach().cpu().double().numpy().copy()
        return numbers
    if isinstance(value, np.ndarray):
        return value.astype(np.float64) if value.dtype.kind in "bifu" and value.size <= 1_000_000 else None
    return np.asarray(float(value)) if isinstance(value, _NUMBERS) else None
