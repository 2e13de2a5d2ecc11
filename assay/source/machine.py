"""The state of the interpreter: the graph, where it stands, its frames and its heap; how branches and loops meet."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from assay.dataflow.value import UNKNOWN, Branch, Context, Graph, Loop, Value
from assay.source.things import Frame, Function, Library, Module
from assay.verdict import Place

LONGEST_TEXT = 90
MOST_VALUES = 150_000  # a program that makes more is read in part
MOST_NAMES = 6


class TooLarge(Exception):
    """The program makes more values than are looked at."""


class Machine:
    def __init__(self, find_module: Callable[[str, Module], Module | None]) -> None:
        self.graph = Graph()
        self.context = Context()
        self.heap: dict[tuple[int, str], Value] = {}
        self.kept: list[Any] = []  # whose id() is a key of the heap must stay alive
        self.frame: Frame = None  # type: ignore[assignment]  # set before the first statement
        self.entered: set[int] = set()
        self.running: list[int] = []  # ids of the function bodies on the stack
        self.find_module = find_module
        self.modules: dict[str, Module] = {}
        self.notes: list[str] = []
        self._places: dict[tuple[int, int], Place] = {}
        self._evaluated: dict[int, Value] = {}  # the last value of an argument's node

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
        rows = module.lines[line - 1 : end_line]
        text = ""
        if rows:
            encoded = [row.encode() for row in rows]
            encoded[-1] = encoded[-1][:end_column]
            encoded[0] = encoded[0][column:]
            text = " ".join(b" ".join(encoded).decode(errors="replace").split())
        if len(text) > LONGEST_TEXT:
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

    def phi(self, node: ast.AST, values: Sequence[Value]) -> Value:
        """One of several values: which one, the text does not say."""
        different: list[Value] = []
        for value in values:
            if not any(value is other for other in different):
                different.append(value)
        if len(different) == 1:
            return different[0]
        if all(one.constant is not UNKNOWN for one in different):
            first = different[0]
            if all(type(one.constant) is type(first.constant) and one.constant == first.constant for one in different):
                return first
        thing = different[0].thing
        things = [one for one in different if one.thing is not None]
        if thing is None and len(things) == 1:
            thing = things[0].thing  # `x = None` before `x = Thing()`: what is used is the thing
        elif any(one.thing is not thing for one in different):
            thing = None
        return self.new("phi", node, {str(number): one for number, one in enumerate(different)}, thing=thing)

    # names

    def lookup(self, name: str, node: ast.AST) -> Value:
        frame: Frame | None = self.frame
        while frame is not None:
            if name in frame.variables:
                return frame.variables[name]
            frame = frame.outer
        variables = self.frame.module.frame.variables
        if name in variables:
            return variables[name]
        return self.library(node, f"builtins.{name}")

    def store(self, name: str, value: Value) -> None:
        frame = self.frame
        if name in frame.globals:
            frame = frame.module.frame
        elif name in frame.nonlocals:
            outer = frame.outer
            while outer is not None and name not in outer.variables:
                outer = outer.outer
            frame = outer or frame
        if name not in value.names and len(value.names) < MOST_NAMES:
            value.names.append(name)
        frame.variables[name] = value

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
        frame = self.frame
        variables, heap = frame.variables, self.heap
        ends = []
        for branch, run in runs:
            frame.variables, self.heap = dict(variables), dict(heap)
            branches = self.context.branches if branch is None else (*self.context.branches, branch)
            with self.under(branches=branches):
                stopped = run()
            if not stopped:
                ends.append((frame.variables, self.heap))
        if not ends:
            frame.variables, self.heap = variables, heap
            return True
        self.join(node, ends)
        return False

    def join(self, node: ast.AST, ends: Sequence[tuple[dict[str, Value], dict[tuple[int, str], Value]]]) -> None:
        frame = self.frame
        if len(ends) == 1:
            frame.variables, self.heap = ends[0]
            return
        joined: dict[str, Value] = {}
        for name in dict.fromkeys(name for variables, _ in ends for name in variables):
            joined[name] = self.phi(node, [variables[name] for variables, _ in ends if name in variables])
        heap: dict[tuple[int, str], Value] = dict(ends[0][1])
        for _, other in ends[1:]:
            for key, value in other.items():
                mine = heap.get(key)
                if mine is None:
                    heap[key] = value
                elif mine is not value:
                    heap[key] = self.phi(node, [mine, value])
        frame.variables, self.heap = joined, heap

    def repeated(self, node: ast.AST, source: Value | None, body: Sequence[ast.stmt], run: Callable[[], bool]) -> None:
        """A loop: the body is walked once; a variable that it changes may come from the turn before."""
        frame = self.frame
        carried: dict[str, Value] = {}
        for name in assigned(body):
            if name in frame.variables:
                carried[name] = self.new("phi", node, {"0": frame.variables[name]}, name="turn")
                carried[name].thing = frame.variables[name].thing
                carried[name].names = list(frame.variables[name].names)
                frame.variables[name] = carried[name]
        written = assigned_attributes(body)
        held: dict[tuple[int, str], Value] = {}
        for key, value in list(self.heap.items()):
            if key[1] in written:
                held[key] = self.heap[key] = self.new("phi", node, {"0": value}, name="turn", thing=value.thing)
        exits, frame.exits = frame.exits, []
        with self.under(loops=(*self.context.loops, Loop(self.place(node), source))):
            stopped = run()
        ends = [*frame.exits] if stopped else [(frame.variables, self.heap), *frame.exits]
        frame.exits = exits
        if ends:
            self.join(node, ends)
        for name, phi in carried.items():
            self._carry(phi, frame.variables.get(name))
        for key, phi in held.items():
            self._carry(phi, self.heap.get(key))

    def _carry(self, phi: Value, last: Value | None) -> None:
        if last is not None and last is not phi:
            phi.arguments["1"] = last
            last.users.append(phi)
            if last.thing is not phi.thing:
                phi.thing = None

    def keep(self, thing: Any) -> int:
        self.kept.append(thing)
        return id(thing)

    def was_entered(self, function: Function) -> bool:
        return id(function.node) in self.entered


def assigned(body: Sequence[ast.stmt]) -> list[str]:
    """Names that the statements bind, in order; those of nested functions are their own."""
    names: dict[str, None] = {}
    waiting: list[ast.AST] = list(body)
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names[node.id] = None
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name):
            names[node.value.id] = None
        waiting += ast.iter_child_nodes(node)
    return list(names)


def assigned_attributes(body: Sequence[ast.stmt]) -> set[str]:
    return {
        node.attr
        for statement in body
        for node in ast.walk(statement)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    }
