"""Reports --> SARIF 2.1.0, for code scanning: one run, a rule for each illness that was looked for."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from assay import __version__
from assay.doctor.catalogue import Illness
from assay.doctor.diagnosis import Word
from assay.doctor.report import Report, escape, file_and_cell
from assay.doctor.report.document import as_text
from assay.verdict import Place, Severity, State

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVELS = {Severity.FATAL: "error", Severity.HARMFUL: "error", Severity.WASTEFUL: "warning"}


def write(reports: Sequence[Report]) -> str:
    illnesses = {word.code: word.illness for report in reports for word in report.diagnosis.words}
    order = {code: index for index, code in enumerate(sorted(illnesses))}
    crashed = [(report, word) for report in reports for word in report.diagnosis.of(State.CRASHED)]
    failed = [report for report in reports if report.failure]
    notes = [note for report in reports for note in report.diagnosis.notes]
    run = {
        "tool": {
            "driver": {
                "name": "assay",
                "version": __version__,
                "rules": [_rule(illnesses[code]) for code in order],
            }
        },
        "columnKind": "unicodeCodePoints",
        "invocations": [
            {
                "executionSuccessful": not crashed and not failed,
                "toolExecutionNotifications": [_crash(report, word) for report, word in crashed]
                + [{"level": "error", "message": _message(report.failure)} for report in failed]
                + [{"level": "note", "message": _message(note)} for note in notes],
            }
        ],
        "results": [
            _result(report, word, order[word.code]) for report in reports for word in report.diagnosis.findings
        ],
    }
    return as_text({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]})


def relative_uri(path: str) -> str:
    """Relative to the working directory, as code scanning wants it; a path outside of it is absolute.

    >>> relative_uri("runs/a b"), relative_uri("/nowhere/run")
    ('runs/a%20b', 'file:///nowhere/run')
    """
    normal = Path(os.path.relpath(path)) if not Path(path).is_absolute() else Path(path)
    if normal.is_absolute() and normal.is_relative_to(Path.cwd()):
        normal = normal.relative_to(Path.cwd())
    return normal.as_uri() if normal.is_absolute() else quote(os.fsencode(normal.as_posix()))


def _rule(illness: Illness) -> dict[str, Any]:
    explanation = illness.explanation.strip()
    return {
        "id": illness.code,
        "name": illness.name,
        "shortDescription": {"text": illness.summary},
        "fullDescription": {"text": f"{illness.summary}. {illness.fix}"},
        "help": {"text": explanation, "markdown": explanation},
        "defaultConfiguration": {"level": _LEVELS[illness.severity]},
        "properties": {
            # what curves alone can say is merely possible
            "precision": "low" if illness.batch is None and illness.source is None else "high",
            "problem.severity": _LEVELS[illness.severity],
            "tags": ["GRPO", illness.severity.value],
        },
    }


def _result(report: Report, word: Word, index: int) -> dict[str, Any]:
    facts = [escape(str(fact)) for fact in word.verdict.facts]
    sentences = [f"{escape(word.verdict.message)}.", *(f"{fact}." for fact in facts), f"Fix: {escape(word.fix)}"]
    return {
        "ruleId": word.code,
        "ruleIndex": index,
        "level": word.level,
        "message": _message(" ".join(sentences)),
        "locations": [_location(report, word)],
        # of the illness, the path and the expression: numbers and lines move, the finding is the same
        "partialFingerprints": {"primaryLocationLineHash": f"{_fingerprint(report, word)}:1"},
        **_related_locations(word),
        **_fixes(word),
        "properties": {
            "confidence": word.confidence.value,
            "severity": word.severity.value,
            "follows_from": report.diagnosis.causes.get(word.code, ""),
        },
    }


def _location(report: Report, word: Word) -> dict[str, Any]:
    if word.verdict.places:
        return _at(word.verdict.places[0])
    return {"physicalLocation": {"artifactLocation": {"uri": relative_uri(report.place(word))}}}


def _at(place: Place) -> dict[str, Any]:
    """A cell of a notebook is not a file, and its lines are not lines of the file: cell and line go into a name."""
    file, cell = file_and_cell(place.file)
    artifact = {"artifactLocation": {"uri": relative_uri(file)}}
    if not cell:
        return {"physicalLocation": {**artifact, "region": _region(place)} if place.line else artifact}
    name = f"{cell}, line {place.line}"
    return {"physicalLocation": artifact, "logicalLocations": [{"fullyQualifiedName": name}]}


def _region(place: Place) -> dict[str, Any]:
    return {
        "startLine": place.line,
        "startColumn": place.column + 1,
        "endLine": max(place.end_line, place.line),
        "endColumn": place.end_column + 1,
    }


def _related_locations(word: Word) -> dict[str, Any]:
    others = word.verdict.places[1:]
    if not others:
        return {}
    return {"relatedLocations": [{**_at(place), "message": _message(place.text or "see here")} for place in others]}


def _fixes(word: Word) -> dict[str, Any]:
    edit = word.verdict.edit
    if edit is None or file_and_cell(edit.place.file)[1]:  # a notebook's file holds the text of a cell as JSON
        return {}
    replacement = {"deletedRegion": _region(edit.place), "insertedContent": {"text": edit.replacement}}
    change = {"artifactLocation": {"uri": relative_uri(edit.place.file)}, "replacements": [replacement]}
    return {"fixes": [{"description": _message(word.fix), "artifactChanges": [change]}]}


def _crash(report: Report, word: Word) -> dict[str, Any]:
    return {
        "level": "error",
        "descriptor": {"id": word.code},
        "message": _message(f"the check {word.code} crashed on {report.path}: {word.verdict.message}"),
    }


def _message(text: str) -> dict[str, str]:
    """Braces mark placeholders in a message; doubled, they are themselves."""
    return {"text": escape(text).replace("{", "{{").replace("}", "}}")}


def _fingerprint(report: Report, word: Word) -> str:
    place = word.verdict.places[0] if word.verdict.places else None
    uri = relative_uri(report.path if place is None else file_and_cell(place.file)[0])
    parts = [word.code, uri] if place is None else [word.code, uri, place.text]
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:16]
