"""A path --> Program: the graph of a script and of its sibling files, and what its comments ask to be ignored."""

from __future__ import annotations

import io
import os
import re
import sys
import tokenize
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, wraps
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from assay.programs.facts.kinds.kinds import Kinds
from assay.programs.facts.loss.terms import Term, TermKind, Terms
from assay.programs.facts.origin import Origins
from assay.programs.graph import Graph, Value
from assay.programs.read.machine import TooLarge
from assay.programs.read.statements import Interpreter
from assay.programs.read.text import SourceError, read_module
from assay.programs.read.things import Module
from assay.verdict import Place

MOST_FILES = 60  # of one program
MOST_LINES = 20_000  # of the files next to a script; what comes after is taken for a library
_DEEP = 20_000  # Python's own frames: a program calls its functions within ours
_INSTALLED = ("site-packages", "dist-packages")
# after another comment too, as of a linter; a bracket that is never closed must not silence every code
_IGNORE = re.compile(r"(?:^|\s)#\s*assay:\s*ignore(?![\w-])(?:\s*\[([^\]]*)(?:\]|$))?\s*(.*)", re.IGNORECASE)


Found = TypeVar("Found")


@dataclass(frozen=True)
class Ignore:
    """A comment `# assay: ignore[CODE] reason`; no codes means all of them."""

    place: Place
    codes: frozenset[str]  # or names, in capitals: RAT04, RATIO_FORM
    reason: str
    is_for_below: bool = False  # it ends no statement, so it may speak of the next line


@dataclass
class Program:
    """What a script does, as far as its text says. `values` are in the order in which they are made."""

    path: str
    graph: Graph
    files: tuple[str, ...]
    lines: int
    notes: tuple[str, ...] = ()
    ignores: tuple[Ignore, ...] = ()
    used_ignores: set[Ignore] = field(default_factory=set)
    silenced: dict[tuple[str, Place], Ignore] = field(default_factory=dict)  # by code and place, and who asked
    computed: dict[Callable[..., Any], list[Any]] = field(default_factory=dict)  # by the function, see `once`

    @property
    def values(self) -> list[Value]:
        return self.graph.values

    def of(self, *ops: str) -> list[Value]:
        return self.graph.of(*ops)

    def ignores_at(self, place: Place, code: str, name: str = "") -> bool:
        """Whether a comment on the lines of the expression, or above it, asks to ignore a code or its name there."""
        asked = [
            one
            for one in self.ignores
            if one.place.file == place.file
            and place.line - one.is_for_below <= one.place.line <= max(place.end_line, place.line)
            and (not one.codes or not one.codes.isdisjoint((code, name.upper())))
        ]
        self.used_ignores.update(asked)
        if asked:
            self.silenced[code, place] = asked[0]
        return bool(asked)

    @cached_property
    def kinds(self) -> Kinds:
        return Kinds(self.graph)

    @cached_property
    def origins(self) -> Origins:
        return Origins(self.graph, self.kinds)

    @cached_property
    def terms(self) -> Terms:
        return Terms(self.kinds, self.origins)

    @cached_property
    def losses(self) -> list[tuple[Value, list[Term]]]:
        """Each loss that is differentiated, and its terms."""
        found: dict[int, Value] = {}
        for backward in self.of("backward"):
            if backward.input is not None:
                found.setdefault(id(backward.input), backward.input)
        return [(loss, self.terms.of(loss)) for loss in found.values()]

    @cached_property
    def weights(self) -> frozenset[int]:
        """ids of all values that become a factor of a policy term: advantages and what they are made of."""
        waiting: list[Value] = []
        for _, terms in self.losses:
            for term in terms:
                if term.kind in (TermKind.SURROGATE, TermKind.POLICY):
                    waiting += term.factors
                    waiting += [factor for side in self.terms.products(term.core) for factor in side.factors]
        seen: set[int] = set()
        while waiting:
            value = waiting.pop()
            if id(value) in seen or value.op in ("forward", "generate", "multinomial"):
                continue
            seen.add(id(value))
            waiting += value.arguments.values()
        return frozenset(seen)


def once(find: Callable[[Program], list[Found]]) -> Callable[[Program], list[Found]]:
    """A function of a program alone that many checks call: it is computed once per program."""

    @wraps(find)
    def found(program: Program) -> list[Found]:
        if find not in program.computed:
            program.computed[find] = find(program)
        return list(program.computed[find])

    return found


def read_program(path: Path) -> Program:
    """Raises SourceError with one sentence where the script itself is not Python; siblings that are not are noted."""
    found: dict[Path, Module | None] = {}
    notes: list[str] = []
    read = 0
    main = read_module(path, "__main__")
    found[path.resolve()] = main

    def find(name: str, importer: Module) -> Module | None:
        nonlocal read
        if len(found) > MOST_FILES or read > MOST_LINES:
            return None
        file = _sibling(name, path, Path(importer.file))
        if file is None:
            return None
        known = file.resolve()
        if known not in found:
            try:
                found[known] = module = read_module(file, name.lstrip(".") or file.stem, str(file))
                read += len(module.lines)
            except SourceError as error:
                notes.append(str(error))
                found[known] = None
        return found[known]

    interpreter = Interpreter(find)
    interpreter.modules[main.file] = main
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, _DEEP))
    try:
        interpreter.run_module(main)
        interpreter.run_uncalled([main])
    except TooLarge:
        notes.append(f"{path} makes more values than are followed: it was read in part")
    except RecursionError:
        notes.append(f"{path} is nested too deeply: it was read in part")
    finally:
        sys.setrecursionlimit(limit)
    modules = list(interpreter.modules.values())
    return Program(
        str(path),
        interpreter.graph,
        tuple(module.file for module in modules),
        sum(len(module.lines) for module in modules),
        (*(note for module in modules for note in module.notes), *notes),
        tuple(one for module in modules for one in _ignores(module)),
    )


def _sibling(name: str, script: Path, importer: Path) -> Path | None:
    level = len(name) - len(name.lstrip("."))
    parts = [part for part in name.lstrip(".").split(".") if part]
    if level:
        base = importer.parent
        for _ in range(level - 1):
            base = base.parent
        folders = [base]
    else:
        if not parts:
            return None
        folder = script.parent
        folders = [folder, importer.parent, folder.parent, folder.parent.parent]
    for folder in dict.fromkeys(folders):
        if folder.name in _INSTALLED and not level and not script.is_relative_to(folder / parts[0]):
            continue  # a script within an installed package: the other packages are libraries
        target = folder.joinpath(*parts)
        for candidate in (target.with_name(target.name + ".py") if parts else None, target / "__init__.py"):
            if candidate is not None and os.path.isfile(candidate):  # False where the name is too long for a file
                return candidate
    return None


def _ignores(module: Module) -> list[Ignore]:
    found: list[Ignore] = []
    if not any("assay:" in line.lower() for line in module.lines):
        return found
    text = "\n".join(module.lines) + "\n"
    try:
        # of all tokens, comments and what stands behind each
        tokens = [
            (token, after)
            for token, after in pairwise(tokenize.generate_tokens(io.StringIO(text).readline))
            if token.type == tokenize.COMMENT
        ]
    except (tokenize.TokenError, SyntaxError):
        return found
    for token, after in tokens:
        match = _IGNORE.search(token.string)
        if match is None:
            continue
        codes = frozenset(code.upper().replace("-", "_") for code in re.split(r"[\s,;]+", match[1] or "") if code)
        file, line = module.shift[token.start[0] - 1] if module.shift else (module.file, token.start[0])
        place = Place(file, line, text=match[0].strip())
        found.append(Ignore(place, codes, match[2].strip(), is_for_below=after.type == tokenize.NL))
    return found
