"""The commands `assay report` and `assay compare`: paths --> a file, and sentences on it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from assay.machine import durable
from assay.machine.user_error import UserError
from assay.report import chart as drawing
from assay.report.compare import check_comparable, compare_page, text_of
from assay.report.curves import charts_of, domain, marks_of
from assay.report.opened import Opened, open_path, open_record
from assay.report.page import page_of
from assay.report.sampled_steps import best_reward, sampled_steps

FILE = "report.html"


class PageError(UserError, OSError):
    """A page that cannot be written. The message is one sentence with the file."""


def write_report(
    path: Path, out: Path | None = None, *, against: Path | None = None, tokenizer: Path | None = None
) -> tuple[Path, int]:
    """Returns the file and its bytes."""
    run = open_path(path)
    other = open_record(against) if against is not None else None
    return save(out or default_file(path), page_of(run, against=other, tokenizer=tokenizer))


def default_file(path: Path) -> Path:
    """In a run directory; beside anything else, in the directory that one is in."""
    if (path / "run.json").is_file():
        return path / FILE
    name = re.sub(r"[^\w.-]+", "-", path.resolve().stem if path.is_file() else path.resolve().name)
    return Path(f"{name or 'assay'}-{FILE}")


def write_charts(path: Path, directory: Path) -> list[Path]:
    """Every chart that shows anything, as an SVG file of its own."""
    run = open_path(path)
    charts = charts_of(run, sampled_steps(run.path, run.evidence, best_reward(run.evidence, run.rows)))
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PageError(f"{directory} cannot be made: {durable.reason(error)}") from error
    return [
        save(directory / f"{chart.key}.svg", drawing.standalone(chart, domain(charts), marks_of(run)))[0]
        for chart in charts
        if not chart.is_empty
    ]


def open_runs(paths: Sequence[Path]) -> list[Opened]:
    runs = [open_path(path) for path in paths]
    check_comparable(runs)
    return runs


def write_comparison(runs: Sequence[Opened], out: Path) -> tuple[str, int]:
    """The comparison as text, and the bytes of the page."""
    _, size = save(out, compare_page(runs))
    return text_of(runs), size


def save(file: Path, text: str) -> tuple[Path, int]:
    """Whole or not at all."""
    data = text.encode("utf-8", "backslashreplace")
    try:
        durable.replace_file(file, data)
    except OSError as error:
        raise PageError(f"{file} could not be written: {durable.reason(error)}") from error
    return file, len(data)
