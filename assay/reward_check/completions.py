"""A file of a model's own answers, by prompt: JSON lines of {"id" or "prompt", "completion", perhaps "answer"}."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from assay.config import ConfigError
from assay.tasks import Task
from assay.types import Problem

SEARCHED = 2000  # problems of the task, among which a row without an answer finds its own


def read_completions(path: Path, task: Task) -> list[tuple[Problem, list[str]]]:
    """Problems in the order of the file, each with its completions. Rows of one id (or prompt) are one group."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; give a file of JSON lines") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text; give a file of JSON lines") from error
    groups: dict[str, tuple[Problem, list[str]]] = {}
    known: dict[str, Problem] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        row = _row(line, f"{path}, line {number}")
        key = str(row.get("id", row.get("prompt")))
        if key not in groups:
            known = known or ({} if "answer" in row else _problems_by_name(task))
            groups[key] = (_problem(row, key, known, f"{path}, line {number}"), [])
        groups[key][1].append(row["completion"])
    if not groups:
        raise ConfigError(f"{path}: no completions; write one JSON object per line")
    return list(groups.values())


def _row(line: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{where}: not JSON; write one object per line") from error
    if not isinstance(row, dict) or not isinstance(row.get("completion"), str):
        raise ConfigError(f'{where}: no text "completion"; write {{"prompt": ..., "completion": ...}}')
    if not isinstance(row.get("id", row.get("prompt")), str | int):
        raise ConfigError(f'{where}: neither "id" nor "prompt"; without one it belongs to no group')
    return row


def _problem(row: dict[str, Any], key: str, known: dict[str, Problem], where: str) -> Problem:
    if "answer" in row:
        fields = {name: value for name, value in row.items() if name not in ("id", "prompt", "completion", "answer")}
        return Problem(key, str(row.get("prompt", "")), str(row["answer"]), fields=fields)
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
