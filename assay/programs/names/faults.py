"""What the text of a program names and nothing provides: each is a NameError, TypeError or AttributeError to come."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from assay.programs.names.arguments import networks_for_names, wrong_calls
from assay.programs.names.attributes import is_missing, missing_attributes
from assay.programs.names.definitions import File, Names, last_name
from assay.programs.names.order import read_too_early
from assay.programs.names.scopes import FUNCTIONS, GIVEN, Scope, asks_for_version, catches_missing, own_nodes
from assay.programs.once import once
from assay.programs.program import Program
from assay.programs.recursion import deep_recursion
from assay.verdict import Place

_SWALLOW = ("suppress", "raises")  # contexts that let an error pass


@dataclass(frozen=True)
class Fault:
    """`sure`: whatever the version of a library. `reached`: training runs through it."""

    message: str
    place: Place
    sure: bool = True
    reached: bool = True
    also: Place | None = None


@once
def faults(program: Program) -> list[Fault]:
    """Of all files of a program, in the order of the text."""
    names = Names(program.modules, program.find_module)
    with deep_recursion():
        return [fault for file in names.files for fault in _in_file(names, file)]


def _in_file(names: Names, file: File) -> list[Fault]:
    trained = _trained_functions(names)
    found: dict[int, tuple[ast.AST, Fault]] = {}

    def add(node: ast.AST, scope: Scope, message: str, sure: bool = True, also: Place | None = None) -> None:
        if getattr(node, "lineno", None) is None or id(node) in found:
            return
        if id(node) in guarded:
            return
        fault = Fault(message, place_of(file, node), sure, _is_reached(file, scope, trained), also)
        found[id(node)] = node, fault

    guarded = _guarded(file.module.tree)
    if not file.is_main:
        guarded |= {id(node) for block in file.module.tree.body if _is_main_block(block) for node in ast.walk(block)}
    for scope in file.scopes:
        if not _is_open(names, file):
            for node, message in _undefined(names, file, scope):
                add(node, scope, message)
        if not scope.is_class and not scope.is_comprehension:
            for name in read_too_early(scope):
                if id(name) not in guarded and not (scope.outer is None and (name.id in GIVEN or file.is_open)):
                    where = "is read before anything binds it"
                    add(name, scope, f"`{name.id}` {where} (line {_first_line(scope, name.id)} does)")
        for node, message, definition in wrong_calls(names, file, scope):
            if id(node) not in guarded:
                add(node, scope, message, also=place_of(definition.file, definition.node))
        for node, message in networks_for_names(names, file, scope):
            add(node, scope, message)
        for node, message, sure in missing_attributes(names, file, scope, guarded):
            add(node, scope, message, sure)
    return [fault for _, fault in sorted(found.values(), key=lambda pair: (pair[0].lineno, pair[0].col_offset))]  # type: ignore[attr-defined]


def _is_open(names: Names, file: File) -> bool:
    """Whether a star brings names that are not known."""
    if file.is_open or file.module.notes:
        return True
    stars = [node for scope in file.scopes for node in scope.bound.get("*", [])]
    for star in stars:
        assert isinstance(star, ast.ImportFrom)
        module = names.imported(file, "." * star.level + (star.module or ""))
        if module is None or not is_missing(names, module, "a name that no file has"):
            return True
    return False


def _undefined(names: Names, file: File, scope: Scope) -> Iterator[tuple[ast.AST, str]]:
    stars = file.scope.bound.get("*", [])
    for use in scope.uses:
        name = use.node.id
        if use.guarded or name in GIVEN or scope.holder(name) is not None:
            continue
        if any(not is_missing(names, module, name) for module in _starred(names, file, stars)):
            continue
        if name in scope.globals and any(name in other.globals for other in file.scopes if name in other.bound):
            continue
        elsewhere = [other for other in file.scopes if name in other.bound and other.is_function]
        hint = f": only `{elsewhere[0].node.name}` has a name like it" if elsewhere and _is_named(elsewhere[0]) else ""  # type: ignore[attr-defined]
        yield use.node, f"`{name}` is not defined{hint}"


def _is_main_block(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)


def _is_named(scope: Scope) -> bool:
    return isinstance(scope.node, ast.FunctionDef | ast.AsyncFunctionDef)


def _starred(names: Names, file: File, stars: list[ast.AST]) -> list[File]:
    found = []
    for star in stars:
        assert isinstance(star, ast.ImportFrom)
        module = names.imported(file, "." * star.level + (star.module or ""))
        if module is not None:
            found.append(module)
    return found


def _first_line(scope: Scope, name: str) -> int:
    return min(getattr(node, "lineno", 0) for node in scope.bound[name])


def _guarded(tree: ast.Module) -> set[int]:
    """id() of the nodes below a `try` or an `if` that allows for a missing name."""
    found: set[int] = set()
    for node in ast.walk(tree):
        parts: list[ast.AST] = []
        if isinstance(node, ast.Try | ast.TryStar) and catches_missing(node):
            parts = list(node.body)
        elif isinstance(node, ast.If | ast.IfExp) and asks_for_version(node.test):
            parts = [node.test, *(node.body if isinstance(node.body, list) else [node.body])]
            parts += node.orelse if isinstance(node.orelse, list) else [node.orelse]
        elif isinstance(node, ast.BoolOp) and any(asks_for_version(value) for value in node.values):
            parts = list(node.values)
        elif isinstance(node, ast.With) and any(last_name(item.context_expr) in _SWALLOW for item in node.items):
            parts = list(node.body)
        for part in parts:
            found |= {id(inner) for inner in ast.walk(part)}
    return found


def _trained_functions(names: Names) -> set[str]:
    """Names of functions that train, of those that call them and of those that they call."""
    calls: dict[str, set[str]] = {}
    for file in names.files:
        for scope in file.scopes:
            if scope.is_function and not isinstance(scope.node, ast.Lambda):
                body = own_nodes(scope.node.body)  # type: ignore[attr-defined]
                made = {last_name(node) for node in body if isinstance(node, ast.Call)}
                calls.setdefault(scope.node.name, set()).update(made)  # type: ignore[attr-defined]
    trained = {name for name, made in calls.items() if "backward" in made}
    if not trained:
        return set(calls)
    for _ in range(len(calls)):
        above = {name for name, made in calls.items() if not made.isdisjoint(trained)}
        if above <= trained:
            break
        trained |= above
    for _ in range(len(calls)):
        below = {inner for name in trained for inner in calls.get(name, ()) if inner in calls}
        if below <= trained:
            break
        trained |= below
    return trained


def _is_reached(file: File, scope: Scope, trained: set[str]) -> bool:
    function = scope.function
    while function is not None and isinstance(function.node, ast.Lambda):
        function = function.outer.function if function.outer is not None else None
    if function is None:
        return True
    name = function.node.name  # type: ignore[attr-defined]
    if name in trained:
        return True
    # a constructor runs, and so does a class's forward
    return name in ("__init__", "forward", "__call__", "__getitem__", "__len__", "__post_init__") and (
        function.outer is not None and function.outer.is_class
    )


def place_of(file: File, node: ast.AST) -> Place:
    module = file.module
    line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
    end_line, end_column = getattr(node, "end_lineno", line) or line, getattr(node, "end_col_offset", 0) or 0
    text = " ".join(" ".join(module.lines[line - 1 : end_line]).split())
    if not isinstance(node, (*FUNCTIONS, ast.ClassDef)):
        text = ast.unparse(node)
    text = text if len(text) <= 90 else text[:88] + ".."
    if module.shift is not None and line - 1 < len(module.shift):
        shown, shifted = module.shift[line - 1]
        return Place(shown, shifted, column, shifted + end_line - line, end_column, text)
    return Place(module.file, line, column, end_line, end_column, text)
