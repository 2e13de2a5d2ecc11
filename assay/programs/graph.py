"""The graph: each value of a program, the operation that made it, where it stands, and under what circumstances.

The same nouns serve a program that was only read and one that ran. A reader knows the operations and the constants; a
run knows the numbers too (`Value.thing`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from assay.verdict import Place


class _Unknown:
    def __repr__(self) -> str:
        return "UNKNOWN"

    def __bool__(self) -> bool:
        return False


UNKNOWN = _Unknown()  # a constant that is not known; None is a constant


@dataclass(frozen=True, eq=False)
class Loop:
    """One loop of the program. `source` is what it runs over, where that is known."""

    place: Place
    source: Value | None = None

    @property
    def turns(self) -> int | None:
        """How often it runs, where the text says so: `for _ in range(4)`."""
        stop = self.source.arguments.get("stop") if self.source is not None and self.source.op == "range" else None
        if stop is None or not isinstance(stop.constant, int) or isinstance(stop.constant, bool):
            return None
        start = self.source.arguments.get("start") if self.source is not None else None
        first = start.constant if start is not None and isinstance(start.constant, int) else 0
        return max(stop.constant - first, 0)


@dataclass(frozen=True, eq=False)
class Branch:
    """One side of an `if` that the text does not decide."""

    place: Place
    condition: Value
    side: bool


@dataclass(frozen=True)
class Context:
    """The circumstances of an operation."""

    no_grad: bool = False
    grad_unknown: bool = False  # a condition or a context manager of the program decides
    autocast: bool = False
    adapter_off: bool = False  # peft: inside `with model.disable_adapter()`
    loops: tuple[Loop, ...] = ()
    branches: tuple[Branch, ...] = ()
    calls: tuple[Place, ...] = ()  # where the functions around it were called
    functions: tuple[str, ...] = ()  # their names
    handled: bool = False  # inside a `try` whose handler swallows what is raised
    in_handler: bool = False  # inside an `except`


@dataclass(eq=False, slots=True)
class Value:
    """One value. `arguments` are named as the operation's documentation names them: see operations.SIGNATURES.

    In a loop a value may depend on itself: walk with a set of what was seen (`ancestors` does).
    """

    op: str
    arguments: dict[str, Value]
    place: Place
    context: Context
    order: int  # of evaluation
    name: str = ""  # of an attribute, a parameter, a called function
    constant: Any = UNKNOWN
    thing: Any = None  # a function, class, instance or container of the program; of a run: the tensor
    names: list[str] = field(default_factory=list)  # that it was bound to
    users: list[Value] = field(default_factory=list)
    given: dict[str, Place] = field(default_factory=dict)  # where each argument stands in the text of the operation

    def place_of(self, name: str) -> Place:
        """Where an argument is written; `arguments[name].place` is where its value was made."""
        return self.given.get(name, self.place)

    def argument(self, name: str) -> Value | None:
        return self.arguments.get(name)

    def setting(self, name: str, default: Any = UNKNOWN) -> Any:
        """The constant of an argument; `default` where it is not given, UNKNOWN where it is no constant."""
        value = self.arguments.get(name)
        return default if value is None else value.constant

    @property
    def input(self) -> Value | None:
        return self.arguments.get("input")

    @property
    def inputs(self) -> list[Value]:
        return list(self.arguments.values())

    @property
    def shown(self) -> str:
        """How a sentence calls it: by its name, else by its text."""
        names = [name for name in self.names if name != "self"]
        return f"`{names[0]}`" if names else f"`{self.place.text}`"

    def __repr__(self) -> str:
        constant = "" if self.constant is UNKNOWN else f"={self.constant!r}"
        return f"<{self.op}{':' + self.name if self.name else ''}{constant} line {self.place.line}>"


@dataclass
class Graph:
    """All values in the order in which they were made."""

    values: list[Value] = field(default_factory=list)
    _made_by: dict[str, list[Value]] = field(default_factory=dict)

    def new(
        self,
        op: str,
        arguments: Mapping[str, Value],
        place: Place,
        context: Context,
        *,
        name: str = "",
        constant: Any = UNKNOWN,
        thing: Any = None,
    ) -> Value:
        value = Value(op, dict(arguments), place, context, len(self.values), name, constant, thing)
        for argument in value.arguments.values():
            argument.users.append(value)
        self.values.append(value)
        self._made_by.setdefault(op, []).append(value)
        return value

    def of(self, *ops: str) -> list[Value]:
        """What these operations made, in order."""
        found = [self._made_by[op] for op in dict.fromkeys(ops) if op in self._made_by]
        return list(found[0]) if len(found) == 1 else sorted(chain(*found), key=lambda value: value.order)


def ancestors(value: Value) -> Iterator[Value]:
    """The value and all it was made of, nearest first."""
    seen = {id(value)}
    waiting = deque([value])
    while waiting:
        current = waiting.popleft()
        yield current
        for argument in current.arguments.values():
            if id(argument) not in seen:
                seen.add(id(argument))
                waiting.append(argument)


def descendants(value: Value) -> Iterator[Value]:
    """The value and all that was made of it, nearest first."""
    seen = {id(value)}
    waiting = deque([value])
    while waiting:
        current = waiting.popleft()
        yield current
        for user in current.users:
            if id(user) not in seen:
                seen.add(id(user))
                waiting.append(user)


def last_layer(forward: Value) -> str:
    """The layer of torch.nn that makes the output of a call: that of nn.Sequential is its last. "": not known."""
    model = forward.arguments.get("model")
    if model is not None and model.op == "submodule":
        model = model.arguments.get("layer", model)
    if model is None or model.op != "module":
        return forward.name
    layer = model
    while layer.name == "Sequential":
        if not layer.arguments or (inner := list(layer.arguments.values())[-1]).op != "module":
            return ""
        layer = inner
    return layer.name
