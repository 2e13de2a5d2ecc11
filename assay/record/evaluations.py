"""Held-out answers as text: RUN/evaluations/step-000016.jsonl, one line per prompt. Nothing here imports torch."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from assay.machine import durable
from assay.record.directory import RunDirectory, RunError, json_bytes, writing

_DIRECTORY = "evaluations"
_FILE = r"step-([0-9]{6,})\.jsonl"


@dataclass(frozen=True, slots=True)
class HeldoutAnswers:
    """What a policy answered to one held-out problem. A reward is None where scoring failed; `error` then says why."""

    id: str
    prompt: str
    answer: str
    greedy: str
    greedy_reward: float | None
    sampled: tuple[str, ...]
    sampled_rewards: tuple[float | None, ...]
    error: str  # of the first answer that could not be scored


def write_answers(run: Path, step: int, answers: Sequence[HeldoutAnswers]) -> None:
    """Writes the file of one evaluation, whole or not at all; the same evaluation again gives the same bytes."""
    data = b"".join(json_bytes(asdict(answer)) for answer in answers)
    RunDirectory(run).replace_file(f"{_DIRECTORY}/{_name(step)}", data)


def read_answers(run: Path, step: int) -> tuple[HeldoutAnswers, ...]:
    file = RunDirectory.open(run).path / _DIRECTORY / _name(step)
    try:
        lines = durable.read_file(file).splitlines()
    except FileNotFoundError:
        raise RunError(f"{run} holds no held-out answers of step {step}; evaluations.jsonl lists the steps") from None
    except OSError as error:
        raise RunError(f"{file} cannot be read: {error.strerror}") from error
    found = []
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
            lists = {name: tuple(row[name]) for name in ("sampled", "sampled_rewards")}
            found.append(HeldoutAnswers(**{**row, **lists}))
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise RunError(f"{file} line {number} is damaged: {error}; restore it from a copy of the run") from error
    return tuple(found)


def forget_answers(run: Path, step: int) -> None:
    """Removes the files of evaluations after this step, and what a killed writer left unfinished."""
    with writing(run / _DIRECTORY):
        for number, file in _files(run):
            if number > step:
                file.unlink()
        durable.remove_asides(run / _DIRECTORY, _FILE)


def _name(step: int) -> str:
    return f"step-{step:06d}.jsonl"


def _files(run: Path) -> Iterator[tuple[int, Path]]:
    for file in sorted((run / _DIRECTORY).glob("*")):
        if match := re.fullmatch(_FILE, file.name):
            yield int(match[1]), file
