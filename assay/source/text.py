"""A file --> its Python text: scripts in any encoding, and the code cells of notebooks."""

from __future__ import annotations

import ast
import io
import json
import re
import tokenize
import warnings
from collections.abc import Iterator
from pathlib import Path

from assay.durable import reason_unread
from assay.source.things import Module

SUFFIXES = (".py", ".ipynb", ".pyw")
LARGEST = 8_000_000  # bytes of one file
_SKIPPED_FOLDERS = {"__pycache__", "node_modules", "site-packages", "build", "dist", "venv", "env"}
_MAGIC = re.compile(r"^(\s*)[%!?](.*)$")
_WHOLE_CELL = re.compile(r"^\s*%%(?!time|capture|timeit|prun)\w")
_PYTHON_2 = re.compile(r"^\s*(print\s+[^(=\s]|exec\s+['\"]|except\s+\w+\s*,\s*\w+\s*:|raise\s+\w+\s*,)", re.MULTILINE)


class SourceError(ValueError):
    """A file that cannot be read as Python. The message is one sentence with the file, the line and the fix."""


def scripts_in(folder: Path) -> Iterator[Path]:
    """Every script and notebook below a folder, in order; hidden folders and installed packages are left out."""
    try:
        paths = sorted(folder.iterdir())
    except OSError as error:
        raise SourceError(f"{folder} could not be read: {reason_unread(error)}") from error
    for path in paths:
        if path.name.startswith(".") or path.name in _SKIPPED_FOLDERS:
            continue
        if path.is_dir() and not path.is_symlink():
            yield from scripts_in(path)
        elif path.suffix in SUFFIXES and path.is_file():
            yield path


def read_module(path: Path, name: str, shown_as: str | None = None) -> Module:
    shown = shown_as or str(path)
    try:
        if path.stat().st_size > LARGEST:
            raise SourceError(f"{shown} is larger than {LARGEST // 1_000_000} MB and is not read as a script")
        raw = path.read_bytes()
    except OSError as error:
        raise SourceError(f"{shown} could not be read: {reason_unread(error)}") from error
    if path.suffix == ".ipynb":
        return _notebook(raw, name, shown)
    text = _decoded(raw)
    return Module(name, shown, text.split("\n"), _parsed(text, shown))


def _decoded(raw: bytes) -> str:
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(raw).readline)
        text = raw.decode(encoding)
    except (SyntaxError, UnicodeDecodeError, LookupError):
        text = raw.decode("latin-1")
    # Python counts lines by \n, \r and \r\n only, and so must we
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").replace("\x0c", " ").replace("\0", " ")


def _parsed(text: str, shown: str, cell: str = "") -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text)
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
        text = "".join(map(str, source)) if isinstance(source, list) else str(source)
        rows = text.replace("\r\n", "\n").replace("\x0c", " ").split("\n")
        if rows and _WHOLE_CELL.match(rows[0]):
            continue  # bash, html, another language
        kept = [_MAGIC.sub(r"\1pass", row) for row in rows]
        try:
            _parsed("\n".join(kept), shown)
        except SourceError as error:  # a cell that does not run is no part of the program
            broken = str(error).removeprefix(f"{shown}:").split("; ")[0]
            notes.append(f"{shown}: code cell {number} is left out: line {broken}")
            continue
        lines += kept
        shift += [(f"{shown}#cell{number}", line) for line in range(1, len(kept) + 1)]
    tree = _parsed("\n".join(lines), shown)
    return Module(name, shown, lines, tree, shift=shift, notes=tuple(notes))
