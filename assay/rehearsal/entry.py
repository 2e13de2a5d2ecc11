"""Which file to run, in which folder, with which arguments and import path, so that a judged file does its work.

Nothing is executed here: the project's texts say it. A file that only defines is run through the file that imports and
calls it; commands in shell scripts, READMEs and Makefiles show arguments and folders that their author uses.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import os
import re
import shlex
import sys
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from assay.rehearsal.copy import entries_of
from assay.rehearsal.newer_syntax import as_older_python

MOST_FILES = 3000  # of a project that are searched
MOST_BYTES = 400_000  # of one of them
MOST_IMPORTED = 60  # files whose imports are followed

_PREPARES = re.compile(
    r"seed|warn|path\.(append|insert|extend)|environ|basicConfig|load_dotenv|set_|setdefault|install|register|"
    r"getLogger|disable|enable|print|login|filterwarnings|add_safe_globals|gc\.|backends"
)
_LEARNS = re.compile(r"\.backward\(|\.step\(|\.train\(\)|Trainer\(|\.learn\(|\.fit\(")
_GOOD_NAMES = re.compile(r"train|main|run|grpo|ppo|rl")
_OTHER_PURPOSE = re.compile(r"test|eval|example|demo|setup|conftest|plot|bench")
_ENDS = ("&", "&&", ";", "|", ">", "2>&1", ">>", "python", "python3", "to", "and")  # of a command in a text
_VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
_COMMANDS = (".sh", ".md", ".txt", ".rst", ".yml", ".yaml", ".ipynb")


@dataclass(frozen=True)
class Entry:
    file: Path
    folder: Path  # to run in, relative to the project
    path: tuple[Path, ...]  # of imports, relative to the project
    package: str | None  # of the file, where it has to run as `python -m package.file`
    arguments: tuple[str, ...] = ()
    hints: dict[str, Any] = field(default_factory=lambda: {"options": {}, "positional": []})
    hindrance: str = ""  # why it may do nothing when it is run
    call: str = ""  # lines that have to follow the file's own, where nothing calls what it defines


@dataclass(frozen=True)
class _Text:
    """A Python file of the project."""

    file: Path
    text: str

    @cached_property
    def _parsed(self) -> tuple[ast.Module, str]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                return ast.parse(as_older_python(self.text)), ""
            except SyntaxError as error:
                return ast.parse(""), f"line {error.lineno}: {error.msg}"
            except (ValueError, RecursionError) as error:
                return ast.parse(""), str(error)

    @property
    def tree(self) -> ast.Module:
        """Empty if it cannot be read."""
        return self._parsed[0]

    @property
    def fault(self) -> str:
        """Why it cannot be read."""
        return self._parsed[1]

    @cached_property
    def called_at_top(self) -> set[str]:
        """Names that are called when the file is run, by itself or through its own functions."""
        defined = {
            node.name: node
            for node in ast.walk(self.tree)
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        }
        waiting: list[ast.AST] = [node for node in self.tree.body if _acts(node)]
        called: set[str] = set()
        while waiting:
            node = waiting.pop()
            for name in _names_called(node):
                if name not in called:
                    called.add(name)
                    if name in defined:
                        waiting.append(defined[name])
        return called

    @cached_property
    def acts(self) -> bool:
        """Whether running it does more than define: it learns somewhere on the way from its top."""
        top = [node for node in self.tree.body if _acts(node)]
        if not top:
            return False
        reached = [
            node
            for node in ast.walk(self.tree)
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
            and node.name in self.called_at_top
        ]
        has_own = bool(_LEARNS.search(self.text))
        learns = any(_LEARNS.search(ast.unparse(node)) for node in (*top, *reached))
        return learns or not has_own


def _acts(node: ast.stmt) -> bool:
    """Whether a statement at the top of a file runs something worth running."""
    if isinstance(node, (ast.For, ast.While, ast.With)):
        return True
    if isinstance(node, ast.If):
        return "TYPE_CHECKING" not in ast.unparse(node.test)
    if isinstance(node, ast.Try):
        return any(_acts(inner) for inner in node.body)
    if isinstance(node, ast.Expr) and isinstance(node.value, (ast.Call, ast.Await)):
        return not _PREPARES.search(ast.unparse(node.value).partition("(")[0])
    return isinstance(node, ast.Assign) and any(
        isinstance(part, ast.Call) and re.search(r"main|train|run|fit|learn", ast.unparse(part.func))
        for part in ast.walk(node.value)
    )


def _names_called(node: ast.AST) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Call):
            for inner in (part.func, *part.args, *(keyword.value for keyword in part.keywords)):
                if isinstance(inner, ast.Name):
                    yield inner.id
                elif isinstance(inner, ast.Attribute):
                    yield inner.attr


def find_entry(script: Path, project: Path) -> Entry:
    texts = _texts(project, script)
    judged = next(text for text in texts if text.file == script)
    caller = None if judged.acts else _caller(judged, texts, project)
    chosen = caller or judged
    path, package = _imports(chosen, texts, project)
    commands = list(_commands(chosen.file, project))
    options = {name: value for _, words in reversed(commands) for name, value in _options(words).items()}
    positional = next((_positional(words) for _, words in commands if _positional(words)), [])
    arguments: tuple[str, ...] = ()
    if re.search(r"sys\.argv\[[1-9]", chosen.text) and "argparse" not in chosen.text:
        arguments = tuple(next((words for _, words in commands if words), _configs(chosen.file)))
    folder = _folder(chosen, [place for place, _ in commands], project)
    hints = {"options": options, "positional": positional}
    is_called = judged.acts or caller is not None
    call = "" if is_called else call_of_main(judged, texts)
    hindrance = "" if is_called or call else _why_nothing_calls(judged, texts, project)
    return Entry(chosen.file, folder, path, package, arguments, hints, hindrance, call)


def _texts(project: Path, script: Path) -> list[_Text]:
    found = [script]
    for entry in entries_of(project, script):
        is_text = entry.name.endswith(".py") and entry.is_file() and entry.stat().st_size <= MOST_BYTES
        if is_text and entry.path != str(script):
            found.append(Path(entry.path))
        if len(found) >= MOST_FILES:
            break
    return [_Text(file, file.read_text(encoding="utf-8", errors="replace")) for file in found]


# -- the file that calls


def _caller(judged: _Text, texts: list[_Text], project: Path) -> _Text | None:
    """A file that imports the judged one, at up to three removes, and does something."""
    wanted, seen = [judged], {judged.file}
    for _ in range(3):
        importers = [text for text in texts if text.file not in seen and any(_imports_it(text, it) for it in wanted)]
        acting = [text for text in importers if text.acts]
        if acting:
            return max(acting, key=lambda text: _likeness(text, judged, project))
        seen |= {text.file for text in importers}
        wanted = importers
    return None


def call_of_main(judged: _Text, texts: list[_Text]) -> str:
    """A call of the function that learns, if all that it asks for has a default, or is a configuration that has."""
    functions = [node for node in judged.tree.body if isinstance(node, ast.FunctionDef)]
    mains = [node for node in functions if re.fullmatch(r"main|train|run|(train|run)_\w+|\w+_train", node.name)]
    for function in sorted(
        mains, key=lambda node: ("main", "train", "run").index(node.name) if len(node.name) < 6 else 3
    ):
        if not any(_LEARNS.search(ast.unparse(node)) for node in (function, *functions)):
            continue
        arguments = function.args.args[: len(function.args.args) - len(function.args.defaults)]
        made = [_configuration(argument, judged, texts) for argument in arguments]
        if all(made) and all(default is not None for default in function.args.kw_defaults):
            imports = "".join(f"    {line}\n" for line, _ in (found for found in made if found) if line)
            given = ", ".join(name for _, name in (found for found in made if found))
            return f"\n\nif __name__ == '__main__':\n{imports}    {function.name}({given})\n"
    return ""


def _configuration(argument: ast.arg, judged: _Text, texts: list[_Text]) -> tuple[str, str] | None:
    """(import, expression) of a configuration in the same file or beside it, all of whose fields have defaults. Without
    an annotation it is one object with the fields of all of them."""
    wanted = ast.unparse(argument.annotation).strip("'\"") if argument.annotation is not None else ""
    if not wanted and not re.search(r"config|cfg|args|param|setting|option", argument.arg):
        return None
    found: dict[str, str] = {}  # import by class
    for text in (judged, *(text for text in texts if text.file.parent == judged.file.parent and text is not judged)):
        for node in text.tree.body:
            if not isinstance(node, ast.ClassDef) or node.name in found:
                continue
            is_it = node.name == wanted if wanted else re.search(r"Config|Arg|Param|Setting|Option", node.name)
            fields = [inner for inner in node.body if isinstance(inner, ast.AnnAssign)]
            if is_it and fields and all(inner.value is not None for inner in fields):
                found[node.name] = "" if text is judged else f"from {text.file.stem} import {node.name}"
    if wanted or not found:
        return (found[wanted], f"{wanted}()") if wanted in found else None
    lines = [line for line in found.values() if line]
    fields_of_all = ", ".join(f"**vars({name}())" for name in found)
    return "; ".join(["import types", *lines]), f"types.SimpleNamespace(**{{{fields_of_all}}})"


def _why_nothing_calls(judged: _Text, texts: list[_Text], project: Path) -> str:
    name = judged.file.stem
    unread = [
        text for text in texts if re.search(rf"import.*\b{re.escape(name)}\b|\b{re.escape(name)} import", text.text)
    ]
    for text in unread:
        if text.fault:
            return f"{text.file.relative_to(project)}, which calls it, is not valid Python {_VERSION}: {text.fault}"
    return "it only defines, and no file of its project that does something calls it"


def _imports_it(text: _Text, wanted: _Text) -> bool:
    """Whether a name of the wanted file is imported: by the end of its dotted path, or relatively."""
    stem = wanted.file.parent.name if wanted.file.name == "__init__.py" else wanted.file.stem
    if stem not in text.text:
        return False
    for node in ast.walk(text.tree):
        if isinstance(node, ast.Import):
            if any(_is_file(alias.name, wanted.file) for alias in node.names):
                return True
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level:
                folder = text.file.parents[node.level - 1] if node.level <= len(text.file.parents) else text.file.parent
                named = [folder.joinpath(*module.split("."))] if module else []
                named += [
                    folder.joinpath(*(part for part in module.split(".") if part), alias.name) for alias in node.names
                ]
                if any(
                    place.with_suffix(".py") == wanted.file or place / "__init__.py" == wanted.file for place in named
                ):
                    return True
            elif _is_file(module, wanted.file) or any(
                _is_file(f"{module}.{alias.name}", wanted.file) for alias in node.names
            ):
                return True
    return False


def _is_file(module: str, file: Path) -> bool:
    """Whether the dotted name can be that of the file."""
    parts = tuple(module.split("."))
    inside = _dotted(file)
    return bool(module) and inside[-len(parts) :] == parts


def _likeness(text: _Text, judged: _Text, project: Path) -> tuple[int, ...]:
    """The better entry is the greater: it learns with what the judged file defines, by its name and its place."""
    defined = {node.name for node in judged.tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    name = text.file.relative_to(project).as_posix().lower()
    shared = len({*judged.file.stem.lower().split("_")} & {*re.split(r"[_/.]", name)})
    return (
        -bool(_OTHER_PURPOSE.search(name)),
        bool(defined & text.called_at_top),
        shared,
        bool(_GOOD_NAMES.search(text.file.stem.lower())),
        -len(text.file.relative_to(project).parts),
    )


# -- imports


def _imports(chosen: _Text, texts: list[_Text], project: Path) -> tuple[tuple[Path, ...], str | None]:
    """Folders that imports of the project's own files start from; the package, if the file imports relatively."""
    levels = [node.level for node in ast.walk(chosen.tree) if isinstance(node, ast.ImportFrom) and node.level]
    package: str | None = None
    folders: list[Path] = []
    if levels:
        top = chosen.file.parent
        while top != project and (
            (top.parent / "__init__.py").exists() or len(chosen.file.parent.relative_to(top).parts) + 1 < max(levels)
        ):
            top = top.parent
        if top != project:
            base = top.parent
            package = ".".join(chosen.file.parent.relative_to(base).parts)
            folders.append(base)
    if package is None:
        folders.append(chosen.file.parent)
    folders += _import_folders(chosen, texts, project)
    folders.append(project)
    kept = dict.fromkeys(folder.relative_to(project) for folder in folders if folder.is_relative_to(project))
    return tuple(kept), package


def _names_imported(text: _Text) -> list[str]:
    """Dotted names that it imports absolutely; not those of Python itself."""
    names: dict[str, None] = {}
    for node in ast.walk(text.tree):
        if isinstance(node, ast.Import):
            names.update(dict.fromkeys(alias.name for alias in node.names))
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names[node.module] = None
    return [name for name in names if not _is_installed(name.partition(".")[0])]


@functools.cache
def _is_installed(name: str) -> bool:
    """A folder of the same name somewhere in the project is not meant, unless it lies beside the script."""
    try:
        return name in sys.stdlib_module_names or importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _import_folders(chosen: _Text, texts: list[_Text], project: Path) -> list[Path]:
    """Folders that the absolute imports start from, of the chosen file and of those that it imports."""
    by_name: dict[str, list[_Text]] = {}
    for text in texts:
        by_name.setdefault(_dotted(text.file)[-1], []).append(text)
        by_name.setdefault(text.file.parent.name, [])  # a folder without __init__.py is a package, too
    folders: dict[Path, None] = {}
    waiting, seen = [chosen], {chosen.file}
    while waiting and len(seen) < MOST_IMPORTED:
        text = waiting.pop(0)
        for name in _names_imported(text):
            parts = tuple(name.split("."))
            starts = {
                Path(*_dotted(found.file)[: -len(parts)]): found
                for found in by_name.get(parts[-1], ())
                if _dotted(found.file)[-len(parts) :] == parts
            }
            for found in texts if not starts and parts[-1] in by_name else ():  # the name of a folder
                inside = found.file.parent.parts
                if inside[-len(parts) :] == parts:
                    starts[Path(*inside[: -len(parts)])] = found
            inside_project = [folder for folder in starts if folder.is_relative_to(project)]
            if inside_project:
                nearest = max(inside_project, key=lambda folder: _common(folder, chosen.file))
                folders[nearest] = None
                if starts[nearest].file not in seen:
                    seen.add(starts[nearest].file)
                    waiting.append(starts[nearest])
        for other in texts:
            if other.file not in seen and other.file.parent == text.file.parent and _imports_it(text, other):
                seen.add(other.file)
                waiting.append(other)
    return list(folders)


def _dotted(file: Path) -> tuple[str, ...]:
    return file.parent.parts if file.name == "__init__.py" else (*file.parent.parts, file.stem)


def _common(folder: Path, file: Path) -> int:
    return sum(one == other for one, other in zip(folder.parts, file.parts, strict=False)) * 10 - len(folder.parts)


# -- commands that the project shows


def _commands(file: Path, project: Path) -> Iterator[tuple[Path, list[str]]]:
    """(folder that the command's path starts from, arguments) of each command that runs the file."""
    names = (file.name, f".{file.stem}", f"{file.stem} ")
    for place in _shown_commands(project, file):
        text = place.read_text(encoding="utf-8", errors="replace").replace("\\\n", " ").replace("\\\\\\n", " ")
        for line in text.splitlines():
            if "python" not in line and "torchrun" not in line and "launch" not in line:
                continue
            if not any(name in line for name in names):
                continue
            try:
                words = shlex.split(line.strip().strip("`$# "), comments=True)
            except ValueError:
                continue
            for number, word in enumerate(words):
                as_module = word.replace(".", "/") + ".py"
                base = next((_base(file, written) for written in (word, as_module) if _base(file, written)), None)
                if base is not None and base.is_relative_to(project):
                    yield base, _until_end(words[number + 1 :])
                    break


def _shown_commands(project: Path, file: Path) -> Iterable[Path]:
    near = sorted(file.parent.glob("*")) if file.parent != project else []
    for place in (*near, *sorted(project.glob("*")), *sorted(project.glob("*/*"))):
        is_command = place.suffix in _COMMANDS or place.name == "Makefile"
        if is_command and place.is_file() and os.access(place, os.R_OK) and place.stat().st_size < MOST_BYTES:
            yield place


def _base(file: Path, written: str) -> Path | None:
    """The folder from which the written path leads to the file."""
    parts = tuple(part for part in written.split("/") if part not in (".", ""))
    return Path(*file.parts[: -len(parts)]) if parts and file.parts[-len(parts) :] == parts else None


def _until_end(words: list[str]) -> list[str]:
    ends = [number for number, word in enumerate(words) if word in _ENDS or word.endswith(("`", ":", ","))]
    return [word for word in words[: ends[0] if ends else None] if word != "\\"]


def _options(words: list[str]) -> dict[str, str]:
    found = {}
    for number, word in enumerate(words):
        name, given, value = word.partition("=")
        if not word.startswith("-"):
            continue
        if not given and number + 1 < len(words) and not words[number + 1].startswith("-"):
            value = words[number + 1]
        if value and not re.search(r"[$<>{}]", value):
            found[name.lstrip("-").replace("-", "_")] = value
    return found


def _positional(words: list[str]) -> list[str]:
    first = next((number for number, word in enumerate(words) if word.startswith("-")), len(words))
    return [word for word in words[:first] if not re.search(r"[$<>{}]", word)]


def _configs(file: Path) -> list[str]:
    """A configuration beside the script."""
    found = [place for end in ("yaml", "yml", "json", "toml") for place in sorted(file.parent.glob(f"*.{end}"))]
    return [str(found[0].name)] if found else []


def _folder(chosen: _Text, bases: list[Path], project: Path) -> Path:
    """Where its relative paths lead to something; else where its commands are given; else where it lies."""
    here = Path(os.getcwd()).resolve()
    candidates = list(dict.fromkeys([*([here] if here.is_relative_to(project) else []), *bases]))
    candidates = list(dict.fromkeys([*candidates, chosen.file.parent, project]))
    written = {
        node.value
        for node in ast.walk(chosen.tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.fullmatch(r"[\w./\- ]{3,120}", node.value)
    }
    paths = [text for text in written if ("/" in text or "." in text) and not text.startswith("/")]

    def hits(folder: Path) -> int:
        return sum((folder / text).exists() for text in paths)

    best = max(candidates, key=lambda folder: (hits(folder), -candidates.index(folder)))
    return best.relative_to(project)
