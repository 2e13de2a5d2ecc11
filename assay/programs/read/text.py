"""A file --> its Python text: scripts in any encoding, and the code cells of notebooks."""

from __future__ import annotations

import ast
import io
import json
import os
import re
import tokenize
import warnings
from collections.abc import Iterator
from pathlib import Path

from assay.machine.durable import reason_unread
from assay.machine.user_error import UserError
from assay.programs.read.literals import count_lexemes, shorten
from assay.programs.read.things import Module

SUFFIXES = (".py", ".ipynb", ".pyw")
LARGEST_FILE = 8_000_000  # bytes of one file
ORDINARY_LEXEMES = 20_000  # lexemes of a text whose literals are read whole; about 2,000 lines
MOST_LEXEMES = 600_000  # of a text that is parsed: its syntax tree then takes about 500 MB
_MOST_ITEMS = (256, 32)  # of one literal container in a longer text; the second if the first is not enough
_SKIPPED_FOLDERS = {"__pycache__", "node_modules", "site-packages", "build", "dist", "venv", "env"}
_MAGIC = re.compile(r"^(\s*)[%!?](.*)$")
_WHOLE_CELL = re.compile(r"^\s*%%(?!time|capture|timeit|prun)\w")
_F_STRING = re.compile(r"\b[rR]?[fF][rR]?\"")
_FIELD = re.compile(r"\{[^{}]*\}")  # of an f-string
_MOST_REPAIRS = 200  # lines of a text
_PYTHON_2 = re.compile(
    r"^[ \t]*(print[ \t]+[^(=\s]|exec[ \t]+['\"]|except[ \t]+\w+[ \t]*,[ \t]*\w+[ \t]*:|raise[ \t]+\w+[ \t]*,)",
    re.MULTILINE,
)


class SourceError(UserError, ValueError):
    """A file that cannot be read as Python. The message is one sentence with the file, the line and the fix."""


def scripts_in(folder: Path) -> Iterator[Path]:
    """Every script and notebook below a folder, in order; hidden folders and installed packages are left out.

    Folders that cannot be listed, broken links and pipes are named too: whoever reads them says what is wrong.
    """
    waiting = [folder]
    while waiting:
        path = waiting.pop()
        is_folder = os.path.isdir(path)  # never raises
        if path is folder or (is_folder and not path.is_symlink()):
            try:
                names = sorted(os.listdir(path), reverse=True)
            except OSError:
                yield path
                continue
            waiting += [path / name for name in names if not name.startswith(".") and name not in _SKIPPED_FOLDERS]
        elif path.suffix in SUFFIXES and not is_folder:
            yield path


def read_module(path: Path, name: str, shown_as: str | None = None, text: str | None = None) -> Module:
    """`text` is read in place of what the file of a script holds."""
    shown = shown_as or str(path)
    if text is not None:
        text, tree = _parsed_in_short(_plain(text), shown)
        return Module(name, shown, text.split("\n"), tree)
    raw = read_bytes(path, shown)
    if path.suffix == ".ipynb":
        return _notebook(raw, name, shown)
    text, tree = _parsed_in_short(_plain(decoded(raw)[0]), shown)
    return Module(name, shown, text.split("\n"), tree)


def read_bytes(path: Path, shown: str) -> bytes:
    try:
        with path.open("rb") as file:
            raw = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise SourceError(f"{shown} could not be read: {reason_unread(error)}") from error
    if len(raw) > LARGEST_FILE:
        raise SourceError(f"{shown} is larger than {LARGEST_FILE // 1_000_000} MB and is not read as a script")
    return raw


def decoded(raw: bytes) -> tuple[str, str]:
    """The text, and the encoding that it is written in."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(raw).readline)
        return raw.decode(encoding), encoding
    except (SyntaxError, ValueError, LookupError):  # `# coding: undefined` raises a UnicodeError, which is a ValueError
        return raw.decode("latin-1"), "latin-1"


def _plain(text: str) -> str:
    """Lines end with \\n, as Python counts them; no byte order mark, and nothing that the parser does not take."""
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    text = text.replace("\x0c", " ").replace("\0", " ")
    return text.encode("utf-8", "replace").decode()  # half of a surrogate pair


def _parsed_in_short(text: str, shown: str) -> tuple[str, ast.Module]:
    """A long text with its long literals cut short, and its syntax tree."""
    if text.count(",") <= ORDINARY_LEXEMES and count_lexemes(text) <= ORDINARY_LEXEMES:  # commas are counted in no time
        return text, _parsed(text, shown)
    short = text
    for most in _MOST_ITEMS:
        short = shorten(short, most)
        if count_lexemes(short) <= MOST_LEXEMES:
            break
    else:
        raise SourceError(
            f"{shown} holds more than {MOST_LEXEMES:,} words and signs beside long lists and is not read as a script"
        )
    try:
        return short, _parsed(short, shown)
    except SourceError:
        if short == text or count_lexemes(text) > MOST_LEXEMES:
            raise
        return text, _parsed(text, shown)  # the sentence must be about the text as it stands in the file


def _parsed(text: str, shown: str, cell: str = "") -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _tree(text)
    except SyntaxError as error:
        if _PYTHON_2.search(text):
            raise SourceError(
                f"{shown}:{error.lineno or 1} is written for Python 2; convert it to Python 3 and ask again"
            ) from error
        raise SourceError(
            f"{shown}:{error.lineno or 1}{cell} is not valid Python ({error.msg}); repair that line and ask again"
        ) from error
    except (RecursionError, MemoryError, ValueError) as error:
        raise SourceError(f"{shown} is nested too deeply to be read") from error


def _tree(text: str) -> ast.Module:
    """The syntax tree; f"{x["key"]}", which only Python 3.12 and later take, is read as f"{x['key']}"."""
    try:
        return ast.parse(text)
    except SyntaxError as error:
        first: SyntaxError = error
    lines = text.split("\n")
    problem: SyntaxError | None = first
    for _ in range(_MOST_REPAIRS):
        line = (problem.lineno or 0) - 1 if problem is not None else -1
        if not 0 <= line < len(lines):
            break
        repaired = _FIELD.sub(lambda field: field[0].replace('"', "'"), lines[line])
        if repaired == lines[line] or not _F_STRING.search(lines[line]):
            break
        lines[line] = repaired
        try:
            return ast.parse("\n".join(lines))
        except SyntaxError as error:
            problem = error
    raise first


def _notebook(raw: bytes, name: str, shown: str) -> Module:
    try:
        document = json.loads(raw.decode("utf-8-sig"))
        cells = document.get("cells")
        if cells is None:
            cells = [cell for sheet in document.get("worksheets", []) for cell in sheet.get("cells", [])]
        sources = [cell.get("source", cell.get("input", "")) for cell in cells if cell.get("cell_type") == "code"]
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        raise SourceError(f"{shown} is not a notebook: it does not hold a JSON object with cells") from error
    lines: list[str] = []
    shift: list[tuple[str, int]] = []
    notes: list[str] = []
    for number, source in enumerate(sources, 1):
        rows = _plain("".join(map(str, source)) if isinstance(source, list) else str(source)).split("\n")
        if rows and _WHOLE_CELL.match(rows[0]):
            continue  # bash, html, another language
        kept = [_MAGIC.sub(r"\1pass", row) for row in rows]
        try:
            short, _ = _parsed_in_short("\n".join(kept), shown)
        except SourceError as error:  # a cell that does not run is not a part of the program
            broken = str(error).removeprefix(f"{shown}:").split("; ")[0]
            notes.append(f"{shown}: code cell {number} is left out: line {broken}")
            continue
        lines += short.split("\n")
        shift += [(f"{shown}#cell{number}", line) for line in range(1, len(kept) + 1)]
    text, tree = _parsed_in_short("\n".join(lines), shown)
    return Module(name, shown, text.split("\n"), tree, shift=shift, notes=tuple(notes))
