"""What a name in a program can stand for besides a tensor: functions, classes, objects, containers, libraries."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from assay.programs.graph import Value
from assay.programs.read.state import Changes, UndoableDict


@dataclass(eq=False)
class Frame:
    """The variables of a module or of one call; `outer` is the frame in which the function was defined."""

    module: Module
    variables: UndoableDict[str] = field(default_factory=UndoableDict)
    outer: Frame | None = None
    returned: list[Value] = field(default_factory=list)
    yielded: list[Value] = field(default_factory=list)
    exits: list[tuple[Changes[str], Changes[tuple[int, str]]]] = field(default_factory=list)  # break, continue
    loop_start: tuple[int, int] = (0, 0)  # how many marks the variables and the heap had there
    globals: set[str] = field(default_factory=set)
    nonlocals: set[str] = field(default_factory=set)
    owner: Value | None = None  # `self` of a method, for super()
    defined_in: Class | None = None


@dataclass(eq=False)
class Module:
    """One source file. `shift` maps a line of its text to the file's name and the line there: cells of a notebook."""

    name: str
    file: str
    lines: list[str]
    tree: ast.Module
    frame: Frame = field(init=False)
    shift: list[tuple[str, int]] | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.frame = Frame(self)


FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(eq=False)
class Function:
    node: FunctionNode
    frame: Frame  # where it was defined
    owner: Class | None = None
    kind: str = "function"  # or static, class, property
    no_grad: bool = False
    autocast: bool = False
    defaults: dict[str, Value] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return "lambda" if isinstance(self.node, ast.Lambda) else self.node.name


@dataclass(frozen=True, eq=False)
class Call:
    """Where a call stands, and what it is given."""

    node: ast.AST
    positional: list[Value] = field(default_factory=list)
    keywords: dict[str, Value] = field(default_factory=dict)

    @property
    def first(self) -> Value | None:
        return self.positional[0] if self.positional else None

    def arguments(self, *names: str, start: int = 0) -> dict[str, Value]:
        """By these names; what has none is numbered."""
        named = dict(zip(names, self.positional, strict=False))
        rest = enumerate(self.positional[len(names) :], len(names) + start)
        return {**named, **{str(number): value for number, value in rest}, **self.keywords}

    def with_first(self, *values: Value) -> Call:
        """The same call with these values before the others."""
        return Call(self.node, [*values, *self.positional], self.keywords)


@dataclass(eq=False)
class Bound:
    function: Function
    owner: Value


@dataclass(eq=False)
class Partial:
    function: Value
    given: Call


@dataclass(eq=False)
class Class:
    name: str
    node: ast.ClassDef
    frame: Frame
    bases: list[Value]
    members: dict[str, Value] = field(default_factory=dict)
    fields: list[str] = field(default_factory=list)  # annotated, in order: of a dataclass or a named tuple
    is_record: bool = False
    is_tuple: bool = False  # a named tuple: it can be unpacked

    def member(self, name: str) -> Value | None:
        return next((ancestor.members[name] for ancestor in self.ancestry() if name in ancestor.members), None)

    def method(self, name: str) -> Function | None:
        member = self.member(name)
        return member.thing if member is not None and isinstance(member.thing, Function) else None

    def ancestry(self) -> list[Class]:
        found = [self]
        for base in self.bases:
            if isinstance(base.thing, Class) and base.thing not in found:
                found += [ancestor for ancestor in base.thing.ancestry() if ancestor not in found]
        return found

    def library_bases(self) -> list[str]:
        return [
            base.thing.path
            for ancestor in self.ancestry()
            for base in ancestor.bases
            if isinstance(base.thing, Library)
        ]

    @property
    def is_module(self) -> bool:
        """A neural network: calling an instance runs `forward`."""
        named = ("Module", "PreTrainedModel", "GenerationMixin", "LightningModule")
        return any(path.endswith(named) or "ForCausalLM" in path for path in self.library_bases())

    def all_fields(self) -> list[str]:
        names: list[str] = []
        for ancestor in reversed(self.ancestry()):
            names += [name for name in ancestor.fields if name not in names]
        return names


@dataclass(eq=False)
class Instance:
    """An object of a class of the program; its attributes are on the interpreter's heap."""

    cls: Class

    def member(self, name: str) -> Value | None:
        return self.cls.member(name)


@dataclass(eq=False)
class Listing:
    """A list, tuple or set. `exact`: the elements are all of them, in order; `parts`: lists it was joined from."""

    elements: list[Value]
    exact: bool = True
    parts: tuple[Value, ...] = ()
    cut_from: Value | None = None  # the list of which it is a slice


@dataclass(eq=False)
class Table:
    """A dictionary, a namespace or parsed arguments; `rest` came in under keys that are not known."""

    entries: dict[Any, Value] = field(default_factory=dict)
    rest: list[Value] = field(default_factory=list)
    factory: Value | None = None  # of a defaultdict
    is_namespace: bool = False


@dataclass(eq=False)
class Pending:
    """A name that a file next to the script imports: what it stands for is read when the name is used."""

    bring: Callable[[], Value]
    frame: Frame
    found: Value | None = None


@dataclass(frozen=True)
class Library:
    """A name of a package that is not part of the program: torch.nn.functional.softmax."""

    path: str

    @property
    def last(self) -> str:
        return self.path.rpartition(".")[2]

    @property
    def root(self) -> str:
        return self.path.partition(".")[0]
