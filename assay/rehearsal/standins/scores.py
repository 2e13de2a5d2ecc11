"""Rewards that never differ teach nothing. Stand-in models answer about every fourth question correctly, so that most
rewards differ by themselves. Where the script's own reward stays the same for every answer all the same, half of the
answers, chosen by their text, get one point more, and the report says so.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
import numbers
import re
import sys
from collections.abc import Sequence
from typing import Any

from assay.rehearsal.rewriting import rewrite
from assay.rehearsal.stage import Stage

_SCORES = re.compile(r"reward|score|verif|grade|correct|accuracy|format_check|judge", re.IGNORECASE)
_NOT_SCORES = re.compile(
    r"advantage|normali|plot|print|log|load|model|whiten|init|test|save|train|loss|evaluat|scores_to|tokenize|prepare|"
    r"build|make|create|setup|get_reward_func|shape|discount|kl",
    re.IGNORECASE,
)
_HOOK = "__assay_scored__"
LEAST_VALUES, LEAST_CALLS = 8, 2  # of one function, all with the same value, before any is changed: by then the script
# has called its other functions, too


def install(stage: Stage) -> None:
    setattr(builtins, _HOOK, Scores(stage).scored)
    rewrite(stage, lambda tree: _Watched().visit(tree))


class _Watched(ast.NodeTransformer):
    """`return value` of a function that scores: return scored(value, name of the function, its arguments)."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        if _SCORES.search(node.name) and not _NOT_SCORES.search(node.name):
            given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            names = [argument.arg for argument in given if argument.arg not in ("self", "cls")]
            for statement in node.body:
                _Returns(node.name, names).visit(statement)
        return node


class _Returns(ast.NodeTransformer):
    def __init__(self, name: str, arguments: Sequence[str]) -> None:
        self.name, self.arguments = name, arguments

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return node

    visit_AsyncFunctionDef = visit_Lambda = visit_ClassDef = visit_FunctionDef  # type: ignore[assignment]

    def visit_Return(self, node: ast.Return) -> ast.AST:
        if node.value is not None:
            given = ast.Tuple([ast.Name(name, ast.Load()) for name in self.arguments], ast.Load())
            call = ast.Call(ast.Name(_HOOK, ast.Load()), [node.value, ast.Constant(self.name), given], [])
            node.value = ast.copy_location(call, node.value)
        return node


class Scores:
    """What the script's functions gave so far."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.seen: dict[str, list[float]] = {}
        self.calls: dict[str, int] = {}
        self.differ = False  # some function's values did by themselves
        self.varied = False  # since then, values of other functions may differ because of it

    def scored(self, value: Any, name: str, arguments: tuple[Any, ...]) -> Any:
        each = _numbers(value)
        if not each:
            return value
        if "sampled" in self.stage.seconds:
            self.stage.reached("scored")
        key = f"{name}/{len(arguments)}"  # a function and a method that it calls may have the same name
        seen = self.seen.setdefault(key, [])
        calls = self.calls[key] = self.calls.get(key, 0) + 1
        seen += each
        differs = len(set(seen)) > 1
        self.differ = self.differ or (differs and not self.varied)
        if self.differ or differs or len(seen) < LEAST_VALUES or calls < LEAST_CALLS:
            return value
        self.varied = True
        self.stage.replaced("rewards", f"{name}(), which gave {seen[0]:g} to every answer", "one more for half of them")
        return _varied(value, arguments)


def _numbers(value: Any) -> list[float]:
    """Of a reward, or of a list or tensor of them; none of anything else."""
    if isinstance(value, numbers.Real):  # a bool is one, too
        return [float(value)]
    if isinstance(value, (list, tuple)) and value and all(isinstance(each, numbers.Real) for each in value):
        return [float(each) for each in value]
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor) and value.ndim <= 1 and value.is_floating_point():
        return [float(each) for each in value.detach().reshape(-1).tolist()]
    return []


def _varied(value: Any, arguments: tuple[Any, ...]) -> Any:
    if isinstance(value, bool):
        return value != _coin(arguments)
    if isinstance(value, (int, float)):
        return value + _coin(arguments)
    count = len(value) if getattr(value, "ndim", 1) else 0
    if not count:
        return value + float(_coin(arguments))
    rows = next((given for given in arguments if isinstance(given, (list, tuple)) and len(given) == count), None)
    coins = [_coin((rows[row] if rows is not None else row, len(arguments))) for row in range(count)]
    if isinstance(value, (list, tuple)):
        return type(value)(each + coin for each, coin in zip(value, coins, strict=True))
    return value + value.new_tensor([float(coin) for coin in coins])


def _coin(given: Any) -> bool:
    """The same for the same text."""
    return bool(hashlib.sha256(repr(given)[:4000].encode(errors="replace")).digest()[0] & 1)
