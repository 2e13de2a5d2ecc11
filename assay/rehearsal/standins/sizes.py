"""Networks that a script builds itself: the sizes that its text gives become small.

Only what names layers, heads and a width together is changed: defaults of its configuration classes, dictionaries,
arguments of one call, assignments of one block; and options of its command line that name layers or a width. The
vocabulary stays, as scripts write token ids as numbers.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import functools
import re
import sys
from typing import Any

from assay.rehearsal.rewriting import rewrite
from assay.rehearsal.stage import Stage
from assay.rehearsal.standins.lengths import named_values

_LAYERS = re.compile(r"(n|num|number_of)_?(hidden_)?layers?|depth|n_blocks|num_blocks")
_HEADS = re.compile(r"(n|num)_?(attention_)?heads?")
_KV_HEADS = re.compile(r"(n|num)_?(kv|key_value|query)_?(heads?|groups)|n_kv_heads?|num_key_value_heads")
_WIDTH = re.compile(r"n_embd|n_embed|hidden_size|d_model|dim|embed_dim|embd_dim|emb_dim|model_dim|hidden_dim|d_emb")
_INNER = re.compile(r"intermediate_size|d_ff|ffn_dim|ffn_hidden_size|mlp_dim|dim_feedforward")
_HEAD = re.compile(r"head_dim|d_head|head_size")
_OPTION_WIDTH = re.compile(r"n_embd|n_embed|hidden_size|d_model|embed_dim|emb_dim|model_dim")
_OPTION = 192  # a width that 2, 3, 4, 6, 8, 12, 16 and 32 heads divide
_LEAST_WIDTH = 128  # narrower networks are small already


def install(stage: Stage) -> None:
    real = dataclasses.dataclass

    def dataclass(cls: Any = None, /, **how: Any) -> Any:
        def decorate(kind: type) -> type:
            if stage.is_own(getattr(sys.modules.get(kind.__module__), "__file__", None) or "<unknown>"):
                shrink(stage, kind)
            return real(kind, **how)

        return decorate if cls is None else decorate(cls)

    dataclasses.dataclass = dataclass
    _patch_options(stage)
    rewrite(stage, _Small(stage).visit)


class _Small(ast.NodeTransformer):
    """Of `GPT(n_layer=12, n_head=12, n_embd=768)` and the like."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage

    def visit(self, node: ast.AST) -> Any:
        self.generic_visit(node)
        parts: list[Any] = [node] if isinstance(node, (ast.Dict, ast.arguments)) else []
        if isinstance(node, ast.Call):
            parts = list(node.keywords)
        elif isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            parts = [part for part in node.body if isinstance(part, (ast.Assign, ast.AnnAssign))]
        given = {
            name: (value, value.value, put)
            for part in parts
            for name, value, put in named_values(part)
            if isinstance(value, ast.Constant) and isinstance(value.value, int) and _is_number(value.value)
        }
        for name, size in small_sizes({name: before for name, (_, before, _) in given.items()}).items():
            value, before, put = given[name]
            self.stage.replaced("sizes", f"{name} = {before}", str(size))
            put(ast.copy_location(ast.Constant(size), value))
        return node


def small_sizes(given: dict[str, int]) -> dict[str, int]:
    """The sizes of a network that change; {} if these are not the sizes of one."""
    names = list(given)
    width = _first(names, _WIDTH)
    if width is None or _first(names, _LAYERS) is None or _first(names, _HEADS) is None or given[width] < _LEAST_WIDTH:
        return {}
    made = {width: 64}
    for name in names:
        for pattern, most in ((_LAYERS, 2), (_KV_HEADS, 2), (_HEADS, 4), (_INNER, 128), (_HEAD, 16), (_WIDTH, 128)):
            if name != width and pattern.fullmatch(name):
                made[name] = min(given[name], most)
                break
        if _HEADS.fullmatch(name) and given[name] == 3:
            made[name] = 4  # which divide the width
    return {name: size for name, size in made.items() if size != given[name]}


def _patch_options(stage: Stage) -> None:
    add = argparse.ArgumentParser.add_argument

    @functools.wraps(add)
    def add_argument(self: Any, *names: str, **how: Any) -> Any:
        name = how.get("dest") or names[-1].lstrip("-").replace("-", "_") if names else how.get("dest")
        if _is_number(how.get("default")) and stage.is_asked_by_script():
            if _OPTION_WIDTH.fullmatch(str(name)) and how["default"] > _OPTION:
                stage.replaced("sizes", f"the default of --{name}", str(_OPTION))
                how["default"] = _OPTION
            elif _LAYERS.fullmatch(str(name)) and how["default"] > 2:
                stage.replaced("sizes", f"the default of --{name}", "2")
                how["default"] = 2
        return add(self, *names, **how)

    argparse.ArgumentParser.add_argument = add_argument  # type: ignore[method-assign]


def shrink(stage: Stage, kind: type) -> None:
    """Changes the defaults of a class of a network: two layers, four heads, 64 wide."""
    names = [name for name in vars(kind).get("__annotations__", {}) if _is_number(vars(kind).get(name))]
    sizes = small_sizes({name: vars(kind)[name] for name in names})
    for name, size in sizes.items():
        setattr(kind, name, size)
    if sizes:
        stage.replaced("sizes", f"the defaults of {kind.__name__}", "2 layers, 4 heads, 64 wide")


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _first(names: list[str], pattern: re.Pattern[str]) -> str | None:
    return next((name for name in names if pattern.fullmatch(name)), None)
