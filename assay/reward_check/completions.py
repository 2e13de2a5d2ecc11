"""A file of a model's own answers, by prompt: JSON lines of {"id" or "prompt", "completion", perhaps "answer"}."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from assay.config import ConfigError
from assay.tasks import Task
from assay.tasks.rows import FileRow, json_lines
from assay.types import Problem

SEARCHED = 2000  # problems of the task, among which a row without an answer finds its own


def read_completions(path: Path, task: Task) -> list[tuple[Problem, list[str]]]:
    """Problems in the order of the file, each with its completions. Rows of one id (or prompt) are one group."""
    groups: dict[str, tuple[Problem, list[str]]] = {}
    known: dict[str, Problem] = {}
    for row in json_lines(path, json.JSONDecoder()):  # logs of completions may hold NaN beside them
        fields = _checked_fields(row)
        key = str(fields.get("id", fields.get("prompt")))
        if key not in groups:
            known = known or ({} if "answer" in fields else _problems_by_name(task))
            groups[key] = (_problem(fields, key, known, row.where), [])
        groups[key][1].append(fields["completion"])
    if not groups:
        raise ConfigError(f"{path}: no completions; write one JSON object per line")
    return list(groups.values())


def _checked_fields(row: FileRow) -> Mapping[str, Any]:
    if not isinstance(row.fields.get("completion"), str):
        raise ConfigError(f'{row.where}: no text "completion"; write {{"prompt": ..., "completion": ...}}')
    if not isinstance(row.fields.get("id", row.fields.get("prompt")), str | int):
        raise ConfigError(f'{row.where}: neither "id" nor "prompt"; without one it belongs to no group')
    return row.fields


def _problem(fields: Mapping[str, Any], key: str, known: dict[str, Problem], where: str) -> Problem:
    if "answer" in fields:
        others = {name: value for name, value in fields.items() if name not in ("id", "prompt", "completion", "answer")}
        return Problem(key, str(fields.get("prompt", "")), str(fields["answer"]), fields=others)
    if key not in known:
        raise ConfigError(
            f'{where}: {key[:80]!r} is none of the first {SEARCHED} problems of the task; add its "answer" to the row'
        )
    return known[key]


def _problems_by_name(task: Task) -> dict[str, Problem]:
    """By id and by text; training problems before held-out ones."""
    found: dict[str, Problem] = {}
    for draw in (task.training_problem, task.heldout_problem):
        for index in range(SEARCHED):
            problem = draw(index)
            found.setdefault(problem.id, problem)
            found.setdefault(problem.text, problem)
    return found
