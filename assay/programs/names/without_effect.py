"""Statements that compute something and throw it away, or name a method and do not call it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from assay.programs.names.definitions import File, LibraryName, Names, last_name
from assay.programs.names.faults import place_of
from assay.programs.names.scopes import Scope
from assay.programs.once import once
from assay.programs.program import Program
from assay.programs.recursion import deep_recursion
from assay.verdict import Place

# methods of tensors that leave the tensor as it is; not those that networks have too: model.to(...) moves the network
_METHODS = frozenset(
    "masked_fill masked_scatter index_fill scatter_add index_add clamp clamp_min clamp_max nan_to_num unsqueeze "
    "squeeze reshape permute swapaxes masked_select repeat_interleave log_softmax softmax logsumexp cumsum argmax "
    "detach contiguous new_tensor expand_as view_as type_as".split()
)
_FUNCTIONS = frozenset(
    "clamp clip where masked_fill exp log softmax log_softmax cat stack gather mul add sub div nan_to_num logsumexp "
    "unsqueeze squeeze reshape flatten relu sigmoid tanh abs minimum maximum mean sum zeros_like ones_like".split()
)
_TEXTS = frozenset("strip lstrip rstrip lower upper removeprefix removesuffix".split())
# without parentheses they do nothing
_CALLED = frozenset("eval train step zero_grad backward clear flush close commit empty_cache".split())
_LOADED = ("torch", "numpy")
# what runs below these is run for its time, or to see whether it fails
_TRIALS = ("raises", "warns", "suppress", "profile", "record_function", "timer")
_TRIAL_FUNCTIONS = ("bench", "warm", "profile")
_SHORTEST_WORK = 4  # statements: a `try` around fewer tries something out


@dataclass(frozen=True)
class Idle:
    """A line without effect. `is_uncalled`: a method that is named and not called."""

    message: str
    place: Place
    is_uncalled: bool = False


@once
def lines_without_effect(program: Program) -> list[Idle]:
    with deep_recursion():
        found = list(_found_in(Names(program.modules, program.find_module)))
    return sorted(found, key=lambda idle: (idle.place.file, idle.place.line))


def _found_in(names: Names) -> Iterator[Idle]:
    for file in names.files:
        if file.module.shift is not None:
            continue  # the last line of a cell is shown
        tried = _tried(file.module.tree)
        for scope in file.scopes:
            for node in scope.nodes:
                if isinstance(node, ast.Expr) and id(node) not in tried:
                    yield from _idle(names, file, scope, node)


def _idle(names: Names, file: File, scope: Scope, node: ast.Expr) -> Iterator[Idle]:
    value, place = node.value, place_of(file, node)
    name = last_name(value)
    own = [member for cls in names.classes for member in cls.members.get(name, ())]
    if isinstance(value, ast.Attribute) and name in _CALLED and not any(map(_is_property, own)):
        yield Idle(f"`{place.text}` names a method and does not call it: the brackets are missing", place, True)
    if not isinstance(value, ast.Call) or any(word.arg == "out" for word in value.keywords):
        return
    called = names.expression(file, scope, value.func)
    if isinstance(called, LibraryName):
        is_pure = called.path.partition(".")[0] in _LOADED and called.path.rpartition(".")[2] in _FUNCTIONS
    else:
        is_method = isinstance(value.func, ast.Attribute) and called is None
        is_pure = is_method and name in _METHODS | _TEXTS and not own and not (name == "detach" and value.args)
    if is_pure:
        yield Idle(f"the result of `{place.text}` is thrown away: the line changes nothing", place)


def _is_property(member: ast.stmt) -> bool:
    return bool(getattr(member, "decorator_list", []))


def _tried(tree: ast.Module) -> set[int]:
    """id() of the statements that are run to see whether they fail, or how long they take."""
    found: set[int] = set()
    for node in ast.walk(tree):
        parts: list[ast.stmt] = []
        if isinstance(node, ast.Try) and node.handlers and len(node.body) < _SHORTEST_WORK:
            found |= {id(part) for part in node.body}
        elif isinstance(node, ast.With | ast.AsyncWith):
            opened = [last_name(item.context_expr).lower() for item in node.items]
            parts = node.body if any(word in name for name in opened for word in _TRIALS) else []
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            parts = node.body if node.name.lstrip("_").startswith(_TRIAL_FUNCTIONS) else []
        found |= {id(inner) for part in parts for inner in ast.walk(part)}
    return found
