"""Lengths of completions that the script gives by name are smaller: loops that sample one token after the other end
early, and what is computed from the length fits to what generate() makes."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from assay.rehearsal.rewriting import rewrite
from assay.rehearsal.stage import Stage

_LENGTH = re.compile(
    r"(max_?|num_?|n_?)?(new_?tokens|gen(erated|eration)?_?(len(gth)?|tokens|steps)|(completion|response|output|answer|"
    r"rollout)_?(len(gth)?|tokens|size)|tokens_to_generate|decode_?len(gth)?)|max_gen(erate)?(_toks)?",
    re.IGNORECASE,
)


def install(stage: Stage) -> None:
    rewrite(stage, lambda tree: _Shorter(stage).visit(tree))
    stage.when_imported("yaml", functools.partial(_install_yaml, stage))


def is_length(name: str) -> bool:
    return _LENGTH.fullmatch(name.strip("-").replace("-", "_")) is not None


class _Shorter(ast.NodeTransformer):
    def __init__(self, stage: Stage) -> None:
        self.stage = stage

    def visit(self, node: ast.AST) -> Any:
        self.generic_visit(node)
        for name, value, put in named_values(node):
            if is_length(name) and isinstance(value, ast.Constant) and type(value.value) is int:
                put(ast.copy_location(ast.Constant(shorter(self.stage, name, value.value)), value))
        return node


def shorter(stage: Stage, name: str, length: int) -> int:
    if length <= stage.most_tokens:
        return length
    stage.replaced("sizes", f"{name} = {length}", str(stage.most_tokens))
    return stage.most_tokens


_Put = Callable[[ast.expr], None]


def named_values(node: ast.AST) -> Iterator[tuple[str, ast.expr | None, _Put]]:
    """Each name with the value that it is given here, and how to give it another."""
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            name = (
                target.id if isinstance(target, ast.Name) else target.attr if isinstance(target, ast.Attribute) else ""
            )
            yield name, node.value, functools.partial(setattr, node, "value")
    elif isinstance(node, ast.keyword) and node.arg is not None:
        yield node.arg, node.value, functools.partial(setattr, node, "value")
    elif isinstance(node, ast.Dict):
        for place, (key, value) in enumerate(zip(node.keys, node.values, strict=True)):
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                yield key.value, value, functools.partial(node.values.__setitem__, place)
    elif isinstance(node, ast.arguments):
        with_default = [*node.posonlyargs, *node.args][len(node.posonlyargs) + len(node.args) - len(node.defaults) :]
        for place, (argument, value) in enumerate(zip(with_default, node.defaults, strict=True)):
            yield argument.arg, value, functools.partial(node.defaults.__setitem__, place)
        for place, (argument, default) in enumerate(zip(node.kwonlyargs, node.kw_defaults, strict=True)):
            yield argument.arg, default, functools.partial(node.kw_defaults.__setitem__, place)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
        names = [part.value for part in node.args if isinstance(part, ast.Constant) and isinstance(part.value, str)]
        for keyword in node.keywords:
            if keyword.arg == "default" and names:
                yield max(names, key=len), keyword.value, functools.partial(setattr, keyword, "value")


def _install_yaml(stage: Stage, module: ModuleType) -> None:
    for name in ("safe_load", "load", "full_load"):
        setattr(module, name, _cutting(stage, getattr(module, name)))


def _cutting(stage: Stage, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def load(*args: Any, **settings: Any) -> Any:
        loaded = original(*args, **settings)
        return _cut(stage, loaded) if stage.is_asked_by_script() else loaded

    return load


def _cut(stage: Stage, loaded: Any) -> Any:
    if isinstance(loaded, dict):
        for key, value in loaded.items():
            if isinstance(key, str) and is_length(key) and type(value) is int:
                loaded[key] = shorter(stage, key, value)
            else:
                _cut(stage, value)
    elif isinstance(loaded, list):
        for value in loaded:
            _cut(stage, value)
    return loaded
