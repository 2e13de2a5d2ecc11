"""Settings that say how many rows a step takes are smaller, all by the same factor: 256 answers to 32 questions in
micro-batches of 2 become 32 answers to 4 questions in micro-batches of 2.

Sizes of groups and of micro-batches stay, and whatever was divisible stays so. Where one number cannot be divided, or
the command line names one, all stay.
"""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from assay.rehearsal.rewriting import rewrite
from assay.rehearsal.stage import Stage
from assay.rehearsal.standins.lengths import named_values

LEAST_ROWS = 32  # of a step: fewer take little time as they are
_MOST_FILES = 30
_UNIT = r"(questions|prompts|rollouts|episodes|samples|trajectories|examples|problems)"
_PER = r"_per_(rollout_?)?(batch|step|iteration|iter|update|rollout)"
_ROWS = re.compile(
    rf"((train(ing)?|rollout|global|total|update|sampling|gen(eration)?|prompt|n)_?)?batch(_?size)?|(n_|num_)?{_UNIT}{_PER}|"
    r"(n|num)_(prompts|rollouts|questions)",
    re.IGNORECASE,
)
_ACCUMULATED = re.compile(r"(grad(ient)?_)?accum(ulat(e|ion))?(_steps|_grad_batches)?|grad_accum", re.IGNORECASE)
_STAYS = re.compile(
    r"(n_?|num_?)?(generations|return_sequences|group_?size|(samples|rollouts|answers|responses|completions)_per_(prompt|"
    r"question|group)|answers|completions)|.*(micro|mini|per_device|per_gpu).*|G",
    re.IGNORECASE,
)
_SETTING = re.compile(r"^\s*-?\s*([A-Za-z_]\w*)\s*:\s*(\d+)\s*(?:#.*)?$", re.MULTILINE)


def install(stage: Stage) -> None:
    smaller = _Smaller(stage)
    rewrite(stage, smaller.visit)
    stage.when_imported("yaml", functools.partial(_install_yaml, smaller))


def factor_of(settings: Iterable[tuple[str, int]]) -> int:
    """By which all that count rows are divided: a power of two."""
    given = list(settings)
    rows = [value for name, value in given if _is(_ROWS, name) and value > 1]
    steps = [value for name, value in given if _is(_ACCUMULATED, name) and value > 1]
    stay = [value for name, value in given if _is(_STAYS, name) and value > 0]
    factor, best = 1, 1
    while max(rows, default=0) >= 2 * factor * max(LEAST_ROWS, *stay, 1):
        factor *= 2
        if all(value % factor == 0 for value in (*rows, *steps)) and all(
            value % part or value // factor % part == 0 for value in rows for part in stay
        ):
            best = factor
    return best


def _is(pattern: re.Pattern[str], name: str) -> bool:
    return pattern.fullmatch(name.strip("-").replace("-", "_")) is not None


class _Smaller(ast.NodeTransformer):
    def __init__(self, stage: Stage) -> None:
        self.stage = stage

    @functools.cached_property
    def factor(self) -> int:
        if any(_is(_ROWS, word.partition("=")[0].rpartition(".")[2]) for word in sys.argv[1:]):
            return 1
        return factor_of(_settings(self.stage))

    def visit(self, node: ast.AST) -> Any:
        if self.factor > 1:
            self.generic_visit(node)
            for name, value, put in named_values(node):
                if isinstance(value, ast.Constant) and type(value.value) is int:
                    put(ast.copy_location(ast.Constant(self.smaller(name, value.value)), value))
        return node

    def smaller(self, name: str, value: int) -> int:
        if value <= 1 or value % self.factor or not (_is(_ROWS, name) or _is(_ACCUMULATED, name)):
            return value
        if self.factor > 1:
            self.stage.replaced("sizes", f"{name} = {value}", str(value // self.factor))
        return value // self.factor


def _settings(stage: Stage) -> Iterator[tuple[str, int]]:
    """Numbers with their names, of the script, the files of its project that it imports, and files that it names."""
    texts: set[str] = set()
    for tree in _imported(stage):
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.add(node.value)
            for name, value, _ in named_values(node):
                if isinstance(value, ast.Constant) and type(value.value) is int:
                    yield name, value.value
    named = {Path(text).name for text in (*texts, *sys.argv[1:]) if text.endswith((".yaml", ".yml"))}
    for path in sorted(stage.folder.rglob("*.y*ml")):
        if path.name in named:
            for name, number in _SETTING.findall(path.read_text(errors="replace")):
                yield name, int(number)


def _imported(stage: Stage) -> Iterator[ast.Module]:
    waiting, seen = [stage.script], {stage.script}
    while waiting and len(seen) <= _MOST_FILES:
        path = waiting.pop(0)
        try:
            tree = ast.parse(path.read_text(errors="replace"))
        except (SyntaxError, ValueError, OSError):
            continue
        yield tree
        for file in _files(tree, path, stage.folder):
            if file not in seen:
                seen.add(file)
                waiting.append(file)


def _files(tree: ast.Module, path: Path, folder: Path) -> Iterator[Path]:
    """Of the modules that a file of the project imports, those of the project."""
    for node in ast.walk(tree):
        names: Mapping[str, Path | None] = {}
        if isinstance(node, ast.Import):
            names = dict.fromkeys((alias.name for alias in node.names), None)
        elif isinstance(node, ast.ImportFrom):
            start = path.parents[node.level - 1] if 0 < node.level <= len(path.parents) else None
            module = node.module or ""
            names = {module: start, **{f"{module}.{alias.name}".strip("."): start for alias in node.names}}
        for name, start in names.items():
            below = name.replace(".", "/") + ".py"
            places = [start] if start is not None else [path.parent, folder, folder / "src"]
            yield from (place / below for place in places if name and (place / below).is_file())


def _install_yaml(smaller: _Smaller, module: ModuleType) -> None:
    for name in ("safe_load", "load", "full_load"):
        setattr(module, name, _loading(smaller, getattr(module, name)))


def _loading(smaller: _Smaller, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def load(*args: Any, **settings: Any) -> Any:
        loaded = original(*args, **settings)
        return _changed(smaller, loaded) if smaller.factor > 1 and smaller.stage.is_asked_by_script() else loaded

    return load


def _changed(smaller: _Smaller, loaded: Any) -> Any:
    if isinstance(loaded, dict):
        for key, value in loaded.items():
            if isinstance(key, str) and type(value) is int:
                loaded[key] = smaller.smaller(key, value)
            else:
                _changed(smaller, value)
    elif isinstance(loaded, list):
        for value in loaded:
            _changed(smaller, value)
    return loaded
