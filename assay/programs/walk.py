"""Ways through the graph: from a value to what it was made of, or to what was made of it.

A value of a loop may be made of itself, so a walk must remember where it has been. It is done here, once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import overload

from assay.programs.graph import Loop, Value

Through = Callable[[Value], Iterable[Value]]


def inputs(value: Value) -> Iterable[Value]:
    """What a value was made of."""
    return value.arguments.values()


def main_input(value: Value) -> Iterable[Value]:
    """What an operation was applied to, without its other arguments."""
    return () if value.input is None else (value.input,)


def users(value: Value) -> Iterable[Value]:
    """What was made of a value."""
    return value.users


def walk(
    start: Value | Iterable[Value], through: Through = inputs, until: Callable[[Value], bool] | None = None
) -> Iterator[Value]:
    """Each value that can be reached from `start`, once, nearest first.

    `through` gives the values to go to from a value. A value that `until` holds for is yielded, and not gone through.

    >>> from assay.programs.graph import Context, Graph
    >>> from assay.verdict import Place
    >>> graph, here = Graph(), (Place("script.py", 1), Context())
    >>> logits = graph.new("forward", {}, *here)
    >>> detached = graph.new("detach", {"input": logits}, *here)
    >>> loss = graph.new("sub", {"input": logits, "other": detached}, *here)
    >>> [value.op for value in walk(loss)], [value.op for value in walk(logits, users)]
    (['sub', 'forward', 'detach'], ['forward', 'detach', 'sub'])
    >>> [value.op for value in walk(detached, until=lambda value: value.op == "detach")]
    ['detach']
    """
    starts = [start] if isinstance(start, Value) else start
    waiting = deque({id(value): value for value in starts}.values())
    seen = {id(value) for value in waiting}
    while waiting:
        current = waiting.popleft()
        yield current
        if until is None or not until(current):
            for following in through(current):
                if id(following) not in seen:
                    seen.add(id(following))
                    waiting.append(following)


def follow(value: Value, onward: Callable[[Value], Value | None]) -> Value:
    """The last value of a way with one step at a time: `onward` gives the next one, None at the end."""
    seen: set[int] = set()
    while id(value) not in seen:
        seen.add(id(value))
        value = onward(value) or value
    return value


@overload
def peel(value: Value, operations: Collection[str], by: Sequence[str] = ("input",)) -> Value: ...
@overload
def peel(value: Value | None, operations: Collection[str], by: Sequence[str] = ("input",)) -> Value | None: ...
def peel(value: Value | None, operations: Collection[str], by: Sequence[str] = ("input",)) -> Value | None:
    """The value inside: what one of `operations` was applied to, as long as one is around it.

    `by`: the arguments that hold what is inside; the first that is there counts.

    >>> from assay.programs.graph import Context, Graph
    >>> from assay.verdict import Place
    >>> graph, here = Graph(), (Place("script.py", 1), Context())
    >>> ratio = graph.new("exp", {}, *here)
    >>> shaped = graph.new("view", {"input": graph.new("cast", {"input": ratio}, *here)}, *here)
    >>> peel(shaped, {"cast", "view"}) is ratio
    True
    """
    seen: set[int] = set()
    while value is not None and value.op in operations and id(value) not in seen:
        seen.add(id(value))
        value = next((value.arguments[name] for name in by if name in value.arguments), value)
    return value


def ancestors(value: Value) -> Iterator[Value]:
    """The value and all it was made of, nearest first."""
    return walk(value)


def descendants(value: Value) -> Iterator[Value]:
    """The value and all that was made of it, nearest first."""
    return walk(value, users)


def loop_source(loop: Loop) -> Value | None:
    """What a loop runs over, without `enumerate` and a progress bar around it."""
    return peel(loop.source, ("progress", "enumerate"))
