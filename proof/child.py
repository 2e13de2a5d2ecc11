"""Trials side by side, each in a fork of its own: whatever a plant breaks, it breaks there.

The parent has imported all that a trial needs and computed nothing, so that a fork is safe and takes no time.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from proof.outcome import Outcome

LONGEST = 300.0  # the most seconds for one trial


@dataclass(frozen=True)
class Job:
    """`work` gets an empty directory; `broken` is the outcome if it never returns, with `error` to be filled."""

    work: Callable[[Path], Outcome]
    broken: Callable[[str], Outcome]


def outcomes_of(jobs: Sequence[Job], root: Path, side_by_side: int, longest: float = LONGEST) -> Iterator[Outcome]:
    """The outcomes as they come in."""
    waiting = list(enumerate(jobs))
    running: dict[int, tuple[BaseProcess, Job, Path, float]] = {}
    process: BaseProcess
    try:
        while waiting or running:
            while waiting and len(running) < side_by_side:
                number, job = waiting.pop(0)
                place = root / f"{number:04d}"
                place.mkdir()
                process = multiprocessing.get_context("fork").Process(target=_become, args=(job.work, place))
                process.start()
                running[process.sentinel] = (process, job, place, time.monotonic())
            ready = set(wait(list(running), timeout=1.0))
            for sentinel, (process, job, place, began) in list(running.items()):
                if sentinel in ready:
                    process.join()
                elif time.monotonic() - began > longest:
                    process.kill()
                    process.join()
                else:
                    continue
                del running[sentinel]
                yield _outcome(process, job, place)
    finally:
        for process, *_ in running.values():
            process.kill()
            process.join()


def _become(work: Callable[[Path], Outcome], place: Path) -> None:
    """Turns this fork into the trial: its chatter goes to a file, its outcome to another."""
    words = os.open(place / "words.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(words, 1)
    os.dup2(words, 2)
    sys.stdout = sys.stderr = os.fdopen(words, "w", buffering=1)
    outcome = work(place / "run")
    (place / "outcome.json").write_text(json.dumps(asdict(outcome)))


def _outcome(process: BaseProcess, job: Job, place: Path) -> Outcome:
    file = place / "outcome.json"
    if process.exitcode == 0 and file.exists():
        return of_mapping(json.loads(file.read_text()))
    words = place / "words.txt"
    lines = words.read_text(errors="replace").strip().splitlines() if words.exists() else []
    if process.exitcode is not None and process.exitcode < 0:
        return job.broken(f"the trial was killed by signal {-process.exitcode}")
    return job.broken(lines[-1] if lines else f"the trial ended with exit code {process.exitcode}")


def of_mapping(values: dict[str, Any]) -> Outcome:
    facts: Any = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    return Outcome(**facts)
