"""A path --> Program: the graph of a script and of its sibling files, and what its comments ask to be ignored."""

from __future__ import annotations

import ast
import io
import os
import re
import sys
import tokenize
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

from assay.programs.program import Ignore, Program
from assay.programs.read.calls import call, invoke
from assay.programs.read.definitions import DEFINITIONS, run_uncalled
from assay.programs.read.expressions import EXPRESSIONS
from assay.programs.read.interpreter import Interpreter, TooLarge
from assay.programs.read.statements import STATEMENTS
from assay.programs.read.text import SourceError, read_module
from assay.programs.read.things import Module
from assay.verdict import Place

MOST_FILES = 60  # of one program
MOST_LINES = 20_000  # of the files next to a script; what comes after is taken for a library
_DEEP = 20_000  # Python's own frames: a program calls its functions within ours
_INSTALLED = ("site-packages", "dist-packages")
# after another comment too, as of a linter; a bracket that is never closed must not silence every code
_IGNORE = re.compile(r"(?:^|\s)#\s*assay:\s*ignore(?![\w-])(?:\s*\[([^\]]*)(?:\]|$))?\s*(.*)", re.IGNORECASE)


def read_program(path: Path, texts: Mapping[Path, str] | None = None) -> Program:
    """Raises SourceError with one sentence where the script itself is not Python; siblings that are not are noted.

    `texts`, by resolved path, are read in place of what the files hold.
    """
    texts = texts or {}
    found: dict[Path, Module | None] = {}
    notes: list[str] = []
    read = 0
    main = read_module(path, "__main__", text=texts.get(path.resolve()))
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
                name = name.lstrip(".") or file.stem
                found[known] = module = read_module(file, name, str(file), texts.get(known))
                read += len(module.lines)
            except SourceError as error:
                notes.append(str(error))
                found[known] = None
        return found[known]

    interpreter = Interpreter(find, {**EXPRESSIONS, ast.Call: call}, {**STATEMENTS, **DEFINITIONS}, invoke)
    interpreter.modules[main.file] = main
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, _DEEP))
    try:
        interpreter.run_module(main)
        run_uncalled(interpreter, main)
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
        sum(_count_lines(module.lines) for module in modules),
        (*(note for module in modules for note in module.notes), *notes),
        tuple(ignore for module in modules for ignore in _ignores(module)),
    )


def _count_lines(lines: list[str]) -> int:
    """What stands behind the last line break is not a line if it is nothing."""
    return len(lines) - (lines[-1:] == [""])


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
