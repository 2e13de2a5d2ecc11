"""A path --> Program: the graph of a script and of its sibling files, and what its comments ask to be ignored."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

from assay.programs.program import Ignore, Program
from assay.programs.read.calls import call, invoke
from assay.programs.read.definitions import DEFINITIONS, run_uncalled
from assay.programs.read.expressions import EXPRESSIONS
from assay.programs.read.interpreter import Interpreter, TooLarge
from assay.programs.read.repository import LIBRARIES, caller_of, candidates, is_definitions_only
from assay.programs.read.statements import STATEMENTS
from assay.programs.read.text import SourceError, read_module
from assay.programs.read.things import Module
from assay.programs.recursion import deep_recursion
from assay.verdict import Place

MOST_FILES = 60  # of one program
MOST_LINES = 12_000  # of the files next to a script; what comes after is taken for a library
# after another comment too, as of a linter; a bracket that is never closed must not silence every code
_IGNORE = re.compile(r"(?:^|\s)#\s*assay:\s*ignore(?![\w-])(?:\s*\[([^\]]*)(?:\]|$))?\s*(.*)", re.IGNORECASE)


def read_program(path: Path, texts: Mapping[Path, str] | None = None) -> Program:
    """Raises SourceError with one sentence where the script itself is not Python; siblings that are not are noted.

    A file that holds definitions only is read from the script of its repository that calls it. `texts`, by resolved
    path, are read in place of what the files hold.
    """
    texts = texts or {}
    own = read_module(path, "__main__", text=texts.get(path.resolve()))
    caller = caller_of(path) if path.suffix == ".py" and is_definitions_only(own.tree) else None
    if caller is not None:
        program = _read_from(caller, path, texts)
        if program is not None:
            return program
    reader = _Reader(path, texts, own)
    reader.run(own)
    return reader.program(path)


def _read_from(caller: Path, path: Path, texts: Mapping[Path, str]) -> Program | None:
    """The program of a caller; None where it cannot be read, or leads nowhere into the file."""
    own = read_module(path, path.stem, str(path), texts.get(path.resolve()))
    try:
        main = read_module(caller, "__main__", text=texts.get(caller))
    except SourceError:
        return None
    reader = _Reader(caller, texts, main, own)
    reader.run(main)
    defined = {id(node) for node in ast.walk(own.tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    if reader.is_partial or own.file not in reader.interpreter.modules or not defined & reader.interpreter.entered:
        return None
    reader.run(own, is_walked=True)
    return reader.program(path)


class _Reader:
    """Reads the files of one program, each once."""

    def __init__(self, script: Path, texts: Mapping[Path, str], *known: Module) -> None:
        self.script, self.texts = script, texts
        self.found: dict[Path, Module | None] = {Path(module.file).resolve(): module for module in known}
        self.notes: list[str] = []
        self.lines = 0
        self.files: dict[tuple[str, str], tuple[Path, ...]] = {}  # by the import and the file that has it
        self.imported: dict[str, set[str]] = {}  # by the file that imports
        self.is_partial = False
        self.interpreter = Interpreter(
            self._find, {**EXPRESSIONS, ast.Call: call}, {**STATEMENTS, **DEFINITIONS}, invoke
        )

    def _find(self, name: str, importer: Module, part: str = "") -> Module | None:
        """The file that an import means; of several, the first that holds the part that is asked for."""
        asked = name, importer.file
        if asked not in self.files:
            self.files[asked] = tuple(candidates(name, self.script, Path(importer.file)))
        modules = [module for file in self.files[asked] if (module := self._read(name, file)) is not None]
        holding = [module for module in modules if part and _binds(module.tree, part)]
        if not holding and part and name in LIBRARIES:
            return None
        found = next(iter(holding or modules), None)
        if found is not None:
            self.imported.setdefault(importer.file, set()).add(found.file)
        return found

    def _read(self, name: str, file: Path) -> Module | None:
        known = file.resolve()
        if known not in self.found:
            if len(self.found) > MOST_FILES or self.lines > MOST_LINES:
                return None
            try:
                name = name.lstrip(".") or file.stem
                self.found[known] = module = read_module(file, name, str(file), self.texts.get(known))
                self.lines += len(module.lines)
            except SourceError as error:
                self.notes.append(str(error))
                self.found[known] = None
        return self.found[known]

    def run(self, module: Module, is_walked: bool = False) -> None:
        """Walks through a file, and through its functions that nothing calls."""
        self.interpreter.modules[module.file] = module
        try:
            with deep_recursion():
                if not is_walked:
                    self.interpreter.run_module(module)
                run_uncalled(self.interpreter, module)
        except TooLarge:
            self.is_partial = True
            self.notes.append(f"{self.script} makes more values than are followed: it was read in part")
        except RecursionError:
            self.is_partial = True
            self.notes.append(f"{self.script} is nested too deeply: it was read in part")

    def program(self, path: Path) -> Program:
        own, waiting = {str(path)}, [str(path)]
        while waiting:
            new = self.imported.get(waiting.pop(), set()) - own
            own |= new
            waiting += new
        modules = sorted(self.interpreter.modules.values(), key=lambda module: module.file != str(path))
        return Program(
            str(path),
            self.interpreter.graph,
            tuple(module.file for module in modules),
            sum(_count_lines(module.lines) for module in modules),
            (*(note for module in modules for note in module.notes), *self.notes),
            tuple(ignore for module in modules for ignore in _ignores(module)),
            callers=frozenset(module.file for module in modules if module.file not in own),
            modules=tuple(modules),
            find_module=self._find,
        )


def _binds(tree: ast.Module, name: str) -> bool:
    """Whether a module binds a name at its top: what an import asks of it."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name == name:
            return True
        if isinstance(node, ast.Import | ast.ImportFrom) and any(
            alias.name == "*" or (alias.asname or alias.name) == name for alias in node.names
        ):
            return True
        if any(isinstance(part, ast.Name) and part.id == name for part in _targets(node)):
            return True
        if isinstance(node, ast.If | ast.Try) and _binds(ast.Module(node.body, []), name):
            return True
    return False


def _targets(node: ast.stmt) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return node.targets
    return [node.target] if isinstance(node, ast.AnnAssign) else []


def _count_lines(lines: list[str]) -> int:
    """What stands behind the last line break is not a line if it is nothing."""
    return len(lines) - (lines[-1:] == [""])


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
