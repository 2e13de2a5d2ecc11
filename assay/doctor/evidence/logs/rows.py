"""Rows of metrics from text: one JSON object per line, a CSV table, or lines that a trainer printed."""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from assay.doctor.evidence.logs.progress import lines_of
from assay.doctor.evidence.logs.series import Gatherer, LogError, as_number
from assay.machine.terminal import quote

_NAMES = ("key", "metric", "name", "tag")  # of a log with one number per line, its "value"
_NUMBER = r"[+-]?(?:\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+|nan|inf|NaN|Infinity)"
_PRINTED = re.compile(rf"'([^'\n]{{1,200}})': '?({_NUMBER})'?(?=[,}}])")  # {'loss': 0.5, 'reward': '0.25'}
_VERL_LINE = re.compile(r"\bstep:(\d+) - ")
_VERL_PAIR = re.compile(rf"([\w/@.-]+):(?:np\.\w+\()?({_NUMBER})\)?(?= - |\s*$)")
_STEP = re.compile(r"\b(?:global_|train_|training_)?(?:step|iteration|iter|update)\b\W{0,3}(\d+)", re.IGNORECASE)
_PAIR = re.compile(rf"(?<![\w/@.-])([A-Za-z][\w/@.-]*)\s?[=:]\s?({_NUMBER})(?=[\s,;|)\]]|$)")
_ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_OF_RUN = re.compile(r"(?P<run>.+) - (?P<metric>.+?)(?:__(?:MIN|MAX))?")  # a column of W&B's chart export
_SEPARATORS = ",;\t"


def json_rows(path: Path, notes: list[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """(offset, object) of each line. Notes count the lines that are not JSON, and name a last line that was cut off."""
    damaged: list[int] = []
    number, line = 0, b""
    for number, (offset, line) in enumerate(lines_of(path), start=1):
        if not line.strip():
            continue
        row = json_object(line)
        if row is None:
            damaged.append(number)
        else:
            yield offset, row
    if damaged == [number] and not line.rstrip().endswith(b"}"):
        notes.append(f"{path.name} line {number} was cut off while it was written and is left out")
    elif damaged:
        more = f" and {len(damaged) - 1} more" if len(damaged) > 1 else ""
        notes.append(f"{path.name} line {damaged[0]}{more} is not a JSON object and is left out")


def json_object(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def gather_json_lines(path: Path, gatherer: Gatherer) -> None:
    row: Mapping[str, Any]
    for _, row in json_rows(path, gatherer.notes):
        name = next((row[key] for key in _NAMES if isinstance(row.get(key), str)), None)
        if name is not None and "value" in row:
            steps = {key: row[key] for key in row if key in ("step", "global_step", "_step")}
            row = {**steps, name: row["value"]}
        gatherer.add_row(row)


def gather_csv(path: Path, gatherer: Gatherer) -> None:
    """The separator is that of the header; the decimal comma of a table separated by semicolons is understood."""
    lines = (line.decode("utf-8", "replace") for _, line in lines_of(path))
    header = next((line for line in lines if line.strip()), "")
    separator = max(_SEPARATORS, key=header.count)
    names = next(csv.reader(io.StringIO(header), delimiter=separator), [])
    names = [name.strip() for name in names]
    run, columns = _columns_of_one_run(names, gatherer.notes)
    short = 0
    try:
        for cells in csv.reader(lines, delimiter=separator):
            if not cells:
                continue
            short += len(cells) != len(names)
            row = {columns[at]: _cell(cell, separator) for at, cell in enumerate(cells) if at in columns}
            gatherer.add_row(row)
    except csv.Error as error:
        raise LogError(f"{path} is not a CSV table: {error}; export it again") from error
    if short:
        gatherer.notes.append(f"{path.name}: {short} rows have another number of cells than the header")
    if run:
        gatherer.notes.append(f"{path.name} is an export of W&B's; it is read as the run {quote(run)}")


def _cell(text: str, separator: str) -> str:
    text = text.strip()
    return text.replace(",", ".") if separator == ";" and "." not in text else text


def _columns_of_one_run(names: Sequence[str], notes: list[str]) -> tuple[str, dict[int, str]]:
    """(run, place -> metric). A chart of several runs holds a column for each: the first of the runs is read."""
    matches = {at: _OF_RUN.fullmatch(name) for at, name in enumerate(names)}
    runs = list(dict.fromkeys(match["run"] for match in matches.values() if match))
    if not runs:
        doubled = [name for name, count in Counter(names).items() if count > 1 and name]
        if doubled:
            notes.append(f"the column {quote(doubled[0])} stands more than once; the last of them counts")
        return "", {at: name for at, name in enumerate(names) if name}
    columns = {}
    for at, name in enumerate(names):
        match = matches[at]
        if match is None:
            columns[at] = name
        elif match["run"] == runs[0] and not name.endswith(("__MIN", "__MAX")):
            columns[at] = match["metric"]
    if len(runs) > 1:
        others = ", ".join(map(quote, runs[1:4]))
        notes.append(
            f"the table holds {len(runs)} runs; the first is read, the others are not ({others}): export one at a time"
        )
    return runs[0], columns


def gather_printed(path: Path, gatherer: Gatherer) -> None:
    """Lines that TRL or verl printed; everything else in the file is passed over."""
    for _, line in lines_of(path):
        text = _ESCAPES.sub("", line.decode("utf-8", "replace"))
        row = printed_row(text)
        if row is not None:
            gatherer.add_row(row)


def printed_row(text: str) -> dict[str, Any] | None:
    """The numbers of a printed line; None for any other.

    >>> printed_row("  3%| {'loss': 0.5, 'reward': '0.25', 'epoch': 0.01}")
    {'loss': '0.5', 'reward': '0.25', 'epoch': '0.01'}
    >>> printed_row("(TaskRunner) step:7 - actor/entropy:0.3 - actor/lr:np.float64(1e-06)")
    {'step': '7', 'actor/entropy': '0.3', 'actor/lr': '1e-06'}
    >>> printed_row("INFO Step 3 | loss:0.5 reward=0.25 lr: 1e-06")
    {'loss': '0.5', 'reward': '0.25', 'lr': '1e-06', 'step': '3'}
    >>> printed_row('[rank0] step 3: {"loss": 0.5}')
    {'step': '3', 'loss': 0.5}
    """
    verl = _VERL_LINE.search(text)
    if verl:
        return {"step": verl[1], **dict(_VERL_PAIR.findall(text[verl.end() :]))}
    if "{'" in text:
        pairs = dict(_PRINTED.findall(text[text.index("{'") :]))
        return pairs if len(pairs) >= 2 else None
    if '{"' in text:
        found = json_object(text[text.index('{"') : text.rindex("}") + 1].encode()) if "}" in text else None
        return None if found is None else {**_stated_step(text[: text.index('{"')]), **found}
    step, pairs = _stated_step(text), dict(_PAIR.findall(text))
    return {**pairs, **step} if step and len(pairs) >= 2 else None


def _stated_step(text: str) -> dict[str, Any]:
    found = _STEP.search(text)
    return {"step": found[1]} if found else {}


def looks_like_csv(lines: Sequence[str]) -> bool:
    """A header of names, and a row with numbers under it: of the same separator, nearly as often."""
    rows = [line for line in lines if line.strip()][:2]
    if len(rows) < 2:
        return False
    header, first = rows
    separator = max(_SEPARATORS, key=header.count)
    count = header.count(separator)
    if abs(first.count(separator) - count) > count // 2 or (not count and not header.strip().isidentifier()):
        return False
    cells = [_cell(cell.strip('" '), separator) for cell in first.split(separator)]
    return any(as_number(cell) is not None for cell in cells) and as_number(header.split(separator)[0]) is None
