"""Reports --> JSON. schema-1.json describes it; a test holds the two together.

One path is one object; several are one object with `reports`, a list of such objects.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from assay import __version__
from assay.doctor.diagnosis import Word
from assay.doctor.report import Report, missing_names, step_of
from assay.doctor.report.frame import diff
from assay.doctor.report.summary import totals
from assay.machine.terminal import json_without_commands
from assay.verdict import Fact, Place, State

SCHEMA_VERSION = 1  # a field that is added does not change it; one that is renamed or taken away does


def write(reports: Sequence[Report]) -> str:
    objects = [_report(report) for report in reports]
    whole = objects[0] if len(objects) == 1 else {**_versions(), "reports": objects}
    return as_text({**whole, "summary": totals(reports)})


def as_text(whole: dict[str, Any]) -> str:
    return json_without_commands(json.dumps(whole, indent=2, allow_nan=False))


def _versions() -> dict[str, Any]:
    return {"schema_version": SCHEMA_VERSION, "assay_version": __version__}


def _report(report: Report) -> dict[str, Any]:
    said = report.diagnosis.of
    return {
        **_versions(),
        "source": report.path,
        "looked_at": report.looked_at,
        "findings": [_finding(report, word) for word in report.diagnosis.findings],
        "passed": [_with_message(word) for word in said(State.HEALTHY)],
        "not_applicable": [_with_message(word) for word in said(State.NOT_APPLICABLE)],
        "not_enough_data": [
            {**_code_and_name(word), "missing": missing_names(word.verdict.message)}
            for word in said(State.NOT_ENOUGH_DATA)
        ],
        "crashed": [_with_message(word) for word in said(State.CRASHED)],
        "notes": list(report.diagnosis.notes),
        **({"rehearsal": dict(report.rehearsal)} if report.rehearsal is not None else {}),
        **({"unread": report.unread} if report.unread else {}),
        **({"crash": str(report.crash)} if report.crash else {}),
    }


def _code_and_name(word: Word) -> dict[str, str]:
    return {"code": word.code, "name": word.illness.name}


def _with_message(word: Word) -> dict[str, Any]:
    return {**_code_and_name(word), "message": word.verdict.message, "evidence": _evidence(word)}


def _evidence(word: Word) -> list[dict[str, Any]]:
    return [_fact(fact) for fact in word.verdict.facts]


def _finding(report: Report, word: Word) -> dict[str, Any]:
    mapping: dict[str, Any] = {
        **_code_and_name(word),
        "severity": word.severity.value,
        "confidence": word.confidence.value,
        "level": word.level,
        "message": word.verdict.message,
        "evidence": _evidence(word),
        "fix": word.fix,
        "explain": f"assay explain {word.code}",
        "follows_from": report.diagnosis.causes.get(word.code),
        "batches": word.batches,
        "file": report.place(word),
    }
    if word.seen_in:
        mapping["seen_in"] = word.seen_in
    if word.verdict.places:
        mapping |= {"line": word.verdict.places[0].line, "places": [_place(place) for place in word.verdict.places]}
        mapping |= {"why": list(word.verdict.why), "edit": None}
    if word.verdict.edit is not None:
        edit = word.verdict.edit
        mapping["edit"] = {"place": _place(edit.place), "replacement": edit.replacement, "safe": edit.safe}
        mapping["edit"]["diff"] = "\n".join(diff(edit, report.lines))
    step = step_of(word.verdict.facts)
    return mapping if step is None else {**mapping, "step": step}


def _place(place: Place) -> dict[str, Any]:
    """Lines and columns from 1; the end is exclusive, as editors have it."""
    return {
        "file": place.file,
        "line": place.line,
        "column": place.column + 1,
        "end_line": max(place.end_line, place.line),
        "end_column": place.end_column + 1,
        "text": place.text,
    }


def _fact(fact: Fact) -> dict[str, Any]:
    """JSON has no NaN: a number that is not finite is null, and `text` says what it was."""
    mapping: dict[str, Any] = {
        "what": fact.what,
        "value": _finite(fact.value),
        "limit": None if fact.limit is None else _finite(fact.limit),
        "step": fact.step,
        "row": fact.row,
        "token": fact.token,
    }
    return {**mapping, "text": str(float(fact.value))} if mapping["value"] is None else mapping


def _finite(value: float | int | str) -> float | int | str | None:
    if isinstance(value, str):
        return value
    plain = value.item() if hasattr(value, "item") else value  # a check may hand over a numpy number
    return plain if math.isfinite(plain) else None
