"""Reports --> workflow commands of GitHub Actions: each finding an annotation, notes and counts as plain lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from assay.doctor.diagnosis import Word
from assay.doctor.report import NO_TRAINING, Report, escape, file_and_cell
from assay.doctor.report.frame import diff
from assay.doctor.report.summary import sum_up
from assay.verdict import State

_COMMANDS = {"error": "error", "warning": "warning", "note": "notice"}


def write(reports: Sequence[Report]) -> str:
    lines = []
    for report in reports:
        notes = [note for note in report.diagnosis.notes if note != NO_TRAINING or len(reports) == 1]
        lines += [f"{escape(report.path)}: note {escape(note)}" for note in notes]
        for word in report.diagnosis.findings:
            title = f"{word.code} {word.illness.name} ({word.severity}, {word.confidence})"
            cause = report.diagnosis.causes.get(word.code)
            message = [
                escape(word.verdict.message),
                *_in_cell(word),
                *(escape(str(fact)) for fact in word.verdict.facts),
                *([f"follows from {cause}"] if cause else []),
                f"fix: {escape(word.fix)}",
                *([] if word.verdict.edit is None else diff(word.verdict.edit, report.lines)),
            ]
            lines.append(command(_COMMANDS[word.level], {"title": title, **_where(report, word)}, "\n".join(message)))
        for word in report.diagnosis.of(State.CRASHED):
            title = f"{word.code} {word.illness.name} crashed"
            lines.append(command("warning", {"title": title, "file": report.path}, escape(word.verdict.message)))
        if report.failure:
            title = "could not be read" if report.unread else "could not be analysed"
            lines.append(command("error", {"title": title, "file": report.path}, escape(report.failure)))
    whole = f"{escape(reports[0].path)}: {reports[0].counts}"
    return "\n".join([*lines, sum_up(reports) if len(reports) > 1 or reports[0].failure else whole])


def _where(report: Report, word: Word) -> dict[str, str]:
    """File and line, but of no cell: its lines are not the file's. A column only if it is all on one line."""
    file, cell = file_and_cell(report.place(word))
    where = {"file": file}
    if not word.verdict.places or cell:
        return where
    place = word.verdict.places[0]
    where["line"] = str(place.line)
    if place.end_line == place.line:
        return {**where, "col": str(place.column + 1), "endColumn": str(place.end_column + 1)}
    return {**where, "endLine": str(place.end_line)}


def _in_cell(word: Word) -> list[str]:
    places = word.verdict.places[:1]
    return [f"{cell}, line {place.line}" for place in places if (cell := file_and_cell(place.file)[1])]


def command(name: str, properties: Mapping[str, str], message: str) -> str:
    r"""The values are escaped as the runner wants it: a property keeps its text, so that a file is found by its name.

    >>> command("error", {"title": "a: b, c"}, "50%\ndone")
    '::error title=a%3A b%2C c::50%25%0Adone'
    """
    settings = ",".join(f"{key}={_property(value)}" for key, value in properties.items())
    return f"::{name} {settings}::{_data(message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    """Control characters other than line breaks have no escape there."""
    quoted = _data(text).replace(":", "%3A").replace(",", "%2C")
    return escape(quoted)
