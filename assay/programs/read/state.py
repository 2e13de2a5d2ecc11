"""Names and attributes with their values, and what changed since a mark: the branches of an `if` start from one state.

A branch costs what it changes, not what there is: nothing is copied.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, TypeVar

from assay.programs.graph import Value

K = TypeVar("K")
Changes = Mapping[K, Value | None]  # None: it is gone


class UndoableDict(dict[K, Value], Generic[K]):
    """A dictionary that can take back its changes, down to the last mark. Change it by `[...] =` and `forget` only."""

    def __init__(self) -> None:
        super().__init__()
        self._marks: list[dict[K, Value | None]] = []  # what each changed key held at the mark

    def __setitem__(self, key: K, value: Value) -> None:
        if self._marks and key not in self._marks[-1]:
            self._marks[-1][key] = self.get(key)
        super().__setitem__(key, value)

    def setdefault_at(self, key: K, value: Value) -> None:
        """Puts a value under a key that has none."""
        if key not in self:
            self[key] = value

    def forget(self, key: K) -> None:
        """Nothing is known under the key any more."""
        if key in self:
            if self._marks and key not in self._marks[-1]:
                self._marks[-1][key] = self[key]
            super().__delitem__(key)

    @property
    def depth(self) -> int:
        """How many marks there are."""
        return len(self._marks)

    def mark(self) -> None:
        self._marks.append({})

    def since(self, depth: int) -> dict[K, Value | None]:
        """What changed since there were that many marks, and what it is now."""
        return {key: self.get(key) for held in self._marks[depth:] for key in held}

    def take_back(self) -> dict[K, Value | None]:
        """What changed since the last mark, and what it was; the state is again what it was at the mark."""
        held = self._marks.pop()
        changed = {key: self.get(key) for key in held}
        for key, value in held.items():
            if value is not None:
                super().__setitem__(key, value)
            elif key in self:
                super().__delitem__(key)
        return changed


class Heap(UndoableDict[tuple[int, str]]):
    """Attributes of objects, by the id of the object and the name."""

    def __init__(self) -> None:
        super().__init__()
        self._named: dict[str, dict[tuple[int, str], None]] = {}

    def __setitem__(self, key: tuple[int, str], value: Value) -> None:
        self._named.setdefault(key[1], {})[key] = None
        super().__setitem__(key, value)

    def named(self, name: str) -> list[tuple[int, str]]:
        """The keys of all objects that have an attribute of that name."""
        return [key for key in self._named.get(name, ()) if key in self]
