"""Facts that many checks ask for are computed once: for a program, or for a run."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Protocol, TypeVar


class Remembers(Protocol):
    """A program or a run. `computed` holds what was found, by the function that found it."""

    computed: dict[Callable[..., Any], Any]


Subject = TypeVar("Subject", bound=Remembers)
Found = TypeVar("Found")


def once(find: Callable[[Subject], Found]) -> Callable[[Subject], Found]:
    """The same function, computed at its first call for each program or run; nobody may change what it returns."""

    @wraps(find)
    def found(subject: Subject) -> Found:
        if find not in subject.computed:
            subject.computed[find] = find(subject)
        return subject.computed[find]  # type: ignore[no-any-return]

    return found
