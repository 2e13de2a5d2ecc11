"""The interpreter: the graph that it makes, where it stands, its frames and its heap; how branches and loops meet."""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from assay.programs.graph import UNKNOWN, Branch, Context, Graph, Loop, Value
from assay.programs.read.state import Changes, Heap, UndoableDict
from assay.programs.read.things import Call, Frame, Function, Library, Listing, Module, Pending
from assay.verdict import Place

LONGEST_TEXT = 90
MOST_VALUES = 60_000  # a program that makes more is read in part
MOST_NAMES = 6
_LONGEST_ROW = 2_000  # characters of one line from which a text is made

# the context of a module's own statements, wherever the import stands
OUTSIDE: dict[str, Any] = {
    "loops": (), "branches": (), "calls": (), "functions": (), "no_grad": False, "autocast": False
}  # fmt: skip
K = TypeVar("K")


class TooLarge(Exception):
    """The program makes more values than are looked at."""


class Interpreter:
    """Walks through modules, and makes a value of each expression.

    What to do with a kind of expression or statement stands in the two tables that it is given; `invoke` is what a call
    does. They are functions of the interpreter and import this module, so it cannot import them: script.py puts all of
    them together.
    """

    def __init__(
        self,
        find_module: Callable[[str, Module, str], Module | None],
        expressions: Mapping[type[ast.expr], Callable[[Interpreter, Any], Value]],
        statements: Mapping[type[ast.stmt], Callable[[Interpreter, Any], bool | None]],
        invoke: Callable[[Interpreter, Value, Call], Value],
    ) -> None:
        self.find_module = find_module
        self._expressions, self._statements, self._invoke = expressions, statements, invoke
        self.graph = Graph()
        self.context = Context()
        self.heap = Heap()
        self.kept: list[Any] = []  # kept alive: their id() is a key of the heap
        self.frame: Frame = None  # type: ignore[assignment]  # set before the first statement
        self.entered: set[int] = set()
        self.running: list[int] = []  # ids of the function bodies on the stack
        self.spent: dict[int, int] = {}  # values made in a function's body, by its id
        self.modules: dict[str, Module] = {}
        self._places: dict[tuple[int, int], Place] = {}
        self.evaluated: dict[int, Value] = {}  # the last value of an argument's node
        # what the body of a loop binds, by the id of its first statement
        self._bound: dict[int, tuple[list[str], list[str]]] = {}

    # walking

    def run_module(self, module: Module) -> None:
        before, context = self.frame, self.context
        self.frame = module.frame
        self.run_body(module.tree.body)
        self.frame, self.context = before, context

    def run_body(self, body: Sequence[ast.stmt]) -> bool:
        """True when nothing after it runs; each statement says so too."""
        before = self.context
        try:
            for statement in body:
                run = self._statements.get(type(statement))
                if run is not None and run(self, statement):
                    return True
            return False
        finally:
            self.context = before  # an `if` that left early held for the rest of the body

    def evaluate(self, node: ast.expr | None) -> Value:
        if node is None:
            return self.constant(ast.Constant(None), None)
        make = self._expressions.get(type(node))
        if make is not None:
            return make(self, node)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.evaluate(child)
        return self.new("unknown", node)

    def invoke(self, callee: Value, call: Call) -> Value:
        return self._invoke(self, callee, call)

    # places and values

    def place(self, node: ast.AST) -> Place:
        key = id(self.frame.module), id(node)
        if key not in self._places:
            self.kept.append(node)  # some nodes are made on the way, and an id may not come back
            self._places[key] = self._place(node)
        return self._places[key]

    def _place(self, node: ast.AST) -> Place:
        module = self.frame.module
        line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
        end_line, end_column = getattr(node, "end_lineno", line) or line, getattr(node, "end_col_offset", 0) or 0
        rows = module.lines[line - 1 : min(end_line, line + LONGEST_TEXT)]
        text = ""
        if rows:
            column = character(rows[0], column)
            if len(rows) == end_line - line + 1:
                end_column = character(rows[-1], end_column)
                rows[-1] = rows[-1][:end_column]
            rows[0] = rows[0][column : column + _LONGEST_ROW]
            text = " ".join(" ".join(row[:_LONGEST_ROW] for row in rows).split())
        if len(text) > LONGEST_TEXT or any(len(row) >= _LONGEST_ROW for row in rows):
            text = text[: LONGEST_TEXT - 2] + ".."
        if module.shift is not None and line - 1 < len(module.shift):
            file, shifted = module.shift[line - 1]
            return Place(file, shifted, column, shifted + end_line - line, end_column, text)
        return Place(module.file, line, column, end_line, end_column, text)

    def new(
        self,
        op: str,
        node: ast.AST,
        arguments: Mapping[str, Value] | None = None,
        *,
        name: str = "",
        constant: Any = UNKNOWN,
        thing: Any = None,
    ) -> Value:
        if len(self.graph.values) > MOST_VALUES:
            raise TooLarge
        return self.graph.new(
            op, arguments or {}, self.place(node), self.context, name=name, constant=constant, thing=thing
        )

    def constant(self, node: ast.AST, value: Any) -> Value:
        return self.new("constant", node, constant=value)

    def library(self, node: ast.AST, path: str) -> Value:
        return self.new("library", node, name=path, thing=Library(path))

    def listing(self, node: ast.AST, elements: list[Value], exact: bool = True) -> Value:
        return self.new("listing", node, numbered(elements[:64]), thing=Listing(list(elements), exact))

    def phi(self, node: ast.AST, values: Sequence[Value]) -> Value:
        """One of several values: which one, the text does not say."""
        different = list({id(value): value for value in map(self.resolve, values)}.values())
        if len(different) == 1:
            return different[0]
        first = different[0]
        if all(_same_constant(value, first) for value in different):
            return first
        thing = first.thing
        things = [value.thing for value in different if value.thing is not None]
        if thing is None and len(things) == 1:
            thing = things[0]  # `x = None` before `x = Thing()`: what is used is the thing
        elif any(value.thing is not thing for value in different):
            thing = None
        return self.new("phi", node, numbered(different), thing=thing)

    # names

    def lookup(self, name: str, node: ast.AST) -> Value:
        frame: Frame | None = self.frame
        while frame is not None:
            if name in frame.variables:
                return self.resolve(frame.variables[name])
            frame = frame.outer
        variables = self.frame.module.frame.variables
        if name in variables:
            return self.resolve(variables[name])
        return self.library(node, f"builtins.{name}")

    def resolve(self, value: Value) -> Value:
        """What a name stands for, where a file next to the script imported it and nobody asked before."""
        pending = value.thing
        if not isinstance(pending, Pending):
            return value
        if pending.found is None:
            pending.found = value  # two modules may import a name from each other
            before, self.frame = self.frame, pending.frame
            with self.under(**OUTSIDE):
                pending.found = pending.bring()
            self.frame = before
        return pending.found

    def store(self, name: str, value: Value) -> None:
        frame = self.frame
        if name in frame.globals:
            frame = frame.module.frame
        elif name in frame.nonlocals:
            outer = frame.outer
            while outer is not None and name not in outer.variables:
                outer = outer.outer
            frame = outer or frame
        self.name(value, name)
        frame.variables[name] = value

    def name(self, value: Value, name: str) -> None:
        if name not in value.names and len(value.names) < MOST_NAMES:
            value.names.append(name)

    # circumstances

    @contextmanager
    def under(self, **changes: Any) -> Iterator[None]:
        before = self.context
        self.context = replace(before, **changes)
        try:
            yield
        finally:
            self.context = before

    def alternatives(self, node: ast.AST, runs: Sequence[tuple[Branch | None, Callable[[], bool]]]) -> bool:
        """Runs each from the same state and joins what they leave. True if none of them goes on."""
        variables, heap = self.frame.variables, self.heap
        ends: list[tuple[Changes[str], Changes[tuple[int, str]]]] = []
        for branch, run in runs:
            variables.mark()
            heap.mark()
            branches = self.context.branches if branch is None else (*self.context.branches, branch)
            with self.under(branches=branches):
                stopped = run()
            end = variables.take_back(), heap.take_back()
            if not stopped:
                ends.append(end)
        self.join(node, ends)
        return not ends

    def join(self, node: ast.AST, ends: Sequence[tuple[Changes[str], Changes[tuple[int, str]]]]) -> None:
        """What holds after one of several branches; each is given by what it changes."""
        self._meet(node, self.frame.variables, [variables for variables, _ in ends])
        self._meet(node, self.heap, [heap for _, heap in ends])

    def _meet(self, node: ast.AST, state: UndoableDict[K], ends: Sequence[Changes[K]]) -> None:
        for key in dict.fromkeys(key for end in ends for key in end):
            values = [end[key] if key in end else state.get(key) for end in ends]
            known = [value for value in values if value is not None]
            if known:
                state[key] = self.phi(node, known)
            else:
                state.forget(key)

    def repeat(self, node: ast.AST, source: Value | None, body: Sequence[ast.stmt], run: Callable[[], bool]) -> None:
        """A loop: the body is walked once; a variable that it changes may come from the turn before."""
        frame = self.frame
        carried: dict[str, Value] = {}
        names, attributes = self._bound_in(body)
        for name in names:
            if name in frame.variables:
                carried[name] = self.new("phi", node, {"0": frame.variables[name]}, name="turn")
                carried[name].thing = frame.variables[name].thing
                carried[name].names = list(frame.variables[name].names)
                frame.variables[name] = carried[name]
        held: dict[tuple[int, str], Value] = {}
        for key in [key for name in attributes for key in self.heap.named(name)]:
            value = self.heap[key]
            held[key] = self.heap[key] = self.new("phi", node, {"0": value}, name="turn", thing=value.thing)
        exits, frame.exits = frame.exits, []
        start, frame.loop_start = frame.loop_start, (frame.variables.depth, self.heap.depth)
        frame.variables.mark()
        self.heap.mark()
        with self.under(loops=(*self.context.loops, Loop(self.place(node), source))):
            stopped = run()
        end = frame.variables.take_back(), self.heap.take_back()
        ends = frame.exits if stopped else [end, *frame.exits]
        frame.exits, frame.loop_start = exits, start
        self.join(node, ends)
        for name, phi in carried.items():
            self._carry(phi, frame.variables.get(name))
        for key, phi in held.items():
            self._carry(phi, self.heap.get(key))

    def _bound_in(self, body: Sequence[ast.stmt]) -> tuple[list[str], list[str]]:
        if not body:
            return [], []
        if id(body[0]) not in self._bound:
            self._bound[id(body[0])] = bound_names(body), sorted(bound_attributes(body))
        return self._bound[id(body[0])]

    def leave_loop(self) -> None:
        """break or continue: what changed in this turn is one of the ways in which the loop ends."""
        variables, heap = self.frame.loop_start
        self.frame.exits.append((self.frame.variables.since(variables), self.heap.since(heap)))

    def _carry(self, phi: Value, last: Value | None) -> None:
        if last is not None and last is not phi:
            phi.arguments["1"] = last
            last.users.append(phi)
            if last.thing is not phi.thing:
                phi.thing = None

    def keep(self, thing: Any) -> None:
        self.kept.append(thing)

    def was_entered(self, function: Function) -> bool:
        return id(function.node) in self.entered


def numbered(values: Iterable[Value], start: int = 0) -> dict[str, Value]:
    """Arguments that have no names: "0", "1", "2"."""
    return {str(number): value for number, value in enumerate(values, start)}


def _same_constant(value: Value, other: Value) -> bool:
    known = value.constant is not UNKNOWN and type(value.constant) is type(other.constant)
    return known and bool(value.constant == other.constant)


def character(row: str, offset: int) -> int:
    """The parser counts bytes, editors characters.

    >>> character("\\u00e9\\u00e9 = 1", 5)
    3
    """
    return offset if row.isascii() else int(np.searchsorted(_ends(row), offset, side="right"))


@lru_cache(maxsize=64)
def _ends(row: str) -> npt.NDArray[np.int64]:
    """Where each character ends, in bytes."""
    codes = np.frombuffer(row.encode("utf-32-le"), np.uint32)
    return np.cumsum(1 + (codes > 0x7F) + (codes > 0x7FF) + (codes > 0xFFFF))


def bound_names(body: Sequence[ast.stmt]) -> list[str]:
    """Names that the statements bind, in order; those of nested functions are their own."""
    names: dict[str, None] = {}
    waiting: deque[ast.AST] = deque(body)
    while waiting:
        node = waiting.popleft()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names[node.id] = None
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name):
            names[node.value.id] = None
        waiting += ast.iter_child_nodes(node)
    return list(names)


def bound_attributes(body: Sequence[ast.stmt]) -> set[str]:
    return {
        node.attr
        for statement in body
        for node in ast.walk(statement)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    }
