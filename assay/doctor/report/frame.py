"""The lines that a finding speaks of, and the edit that ends it, as lines to read.

29 |         ratio = torch.exp(old - new)
   |                           ^^^^^^^^^
"""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path

from assay.doctor.diagnosis import Diagnosis
from assay.machine.faults import FAULTS
from assay.machine.terminal import escape
from assay.programs.edits import applied
from assay.programs.read.text import SourceError, read_module
from assay.verdict import Edit, Place

MOST_LINES = 4  # of one expression
_SIGNS = 60  # characters of a long line around the expression
Lines = Mapping[str, Sequence[str]]  # file -> its lines


def read_lines(diagnosis: Diagnosis) -> Lines:
    """The files that findings point at; a file that cannot be read is left out, and so is a notebook."""
    files = [
        place.file
        for word in diagnosis.findings
        for place in (*word.verdict.places, *((word.verdict.edit.place,) if word.verdict.edit else ()))
    ]
    found: dict[str, Sequence[str]] = {}
    for file in dict.fromkeys(files):
        try:
            module = read_module(Path(file), "")
        except (SourceError, *FAULTS):
            continue
        if module.shift is None:
            found[file] = module.lines
    return found


def frame(place: Place, lines: Lines) -> list[str]:
    """The lines of a place with their numbers, and a caret under each character of it; [] where they are not known."""
    rows = lines.get(place.file, ())
    if not 0 < place.line <= len(rows):
        return []
    last = min(max(place.end_line, place.line), place.line + MOST_LINES - 1, len(rows))
    width = len(str(last))
    shown = [f"{'':{width}} |"]
    for number in range(place.line, last + 1):
        row = rows[number - 1]
        start = place.column if number == place.line else len(row) - len(row.lstrip())
        end = place.end_column if number == place.end_line else len(row.rstrip())
        row, start, end = _window(row, start, max(end, start))
        mark = "^" * max(_width(row[start:end]), 1)
        shown += [f"{number:{width}} | {escape(row.rstrip())}", f"{'':{width}} | {_blank(row[:start])}{mark}"]
    if last < place.end_line:
        shown.append(f"{'':{width}} | ...")
    return shown


def diff(edit: Edit, lines: Lines, context: int = 1) -> list[str]:
    """The edit as a unified diff; [] where the file is not known."""
    rows = lines.get(edit.place.file)
    if rows is None or edit.place.end_line > len(rows):
        return []
    text = "\n".join(rows)
    return [escape(line) for line in unified(text, applied(text, [edit]), edit.place.file, context)]


def unified(before: str, after: str, file: str, context: int = 3) -> list[str]:
    rows = [text.replace("\r\n", "\n").replace("\r", "\n").split("\n") for text in (before, after)]
    ends = [[*(f"{row}\n" for row in text[:-1]), *([text[-1]] if text[-1] else [])] for text in rows]
    found = []
    for line in difflib.unified_diff(ends[0], ends[1], file, file, n=context):
        found.append(line.removesuffix("\n"))
        if not line.endswith("\n"):
            found.append("\\ No newline at end of file")
    return found


def _window(row: str, start: int, end: int) -> tuple[str, int, int]:
    """Of a long row the part around the expression."""
    if len(row) <= 3 * _SIGNS:
        return row, start, end
    first = max(start - _SIGNS, 0)
    row = row[first : first + 3 * _SIGNS]
    return row, start - first, min(end - first, len(row))


def _blank(text: str) -> str:
    return "".join("\t" if sign == "\t" else " " * _width(sign) for sign in text)


def _width(text: str) -> int:
    """Columns of a terminal."""
    return sum(2 if unicodedata.east_asian_width(sign) in "WF" else 1 for sign in text)
