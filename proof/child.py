"""Work side by side, each piece in a fork of its own: whatever a plant or a script breaks, it breaks there.

The parent has imported all that a piece needs and computed nothing, so that a fork is safe and takes no time.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

from proof.outcome import Outcome

LONGEST = 300.0  # the most seconds for one trial
CRASHED = 70  # exit code of a fork whose work raised
_PAUSE = 0.02
_LEAVE = os._exit  # a watched script's process has another one


@dataclass(frozen=True)
class Ended:
    """One piece of work that is over. `folder` holds what it wrote; what it printed is in `words` there."""

    number: int
    folder: Path
    code: int  # negative: the signal that killed it
    seconds: float
    is_late: bool = False  # it was killed for taking too long

    @property
    def words(self) -> str:
        return (self.folder / "words").read_text(errors="backslashreplace")


def run_forks(
    works: Sequence[Callable[[Path], int]], root: Path, *, side_by_side: int, longest: float
) -> Iterator[Ended]:
    """Calls each with an empty folder of its own and yields as they end; what they return is the exit code."""
    waiting = list(enumerate(works))
    running: dict[int, tuple[int, Path, float]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < side_by_side:
                number, work = waiting.pop(0)
                folder = root / f"{number:04d}"
                folder.mkdir()
                sys.stdout.flush()
                process = os.fork()
                if process == 0:
                    _become(work, folder)
                running[process] = (number, folder, time.monotonic())
            for process, (number, folder, began) in list(running.items()):
                done, status = os.waitpid(process, os.WNOHANG)
                seconds = time.monotonic() - began
                if done or seconds > longest:
                    code = os.waitstatus_to_exitcode(status) if done else _end(process)
                    del running[process]
                    yield Ended(number, folder, code, seconds, is_late=not done)
            time.sleep(_PAUSE)
    finally:
        for process in running:
            _end(process)


def _become(work: Callable[[Path], int], folder: Path) -> NoReturn:
    """Turns this fork into the work: what it prints goes to a file."""
    os.setsid()
    nothing, words = os.open(os.devnull, os.O_RDONLY), os.open(folder / "words", os.O_WRONLY | os.O_CREAT, 0o600)
    os.dup2(nothing, 0)
    os.dup2(words, 1)
    os.dup2(words, 2)
    sys.stdout = sys.stderr = os.fdopen(words, "w", buffering=1)
    code = CRASHED
    try:
        code = work(folder)
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    finally:  # whatever it is, the fork must not go on as a second parent
        if code == CRASHED:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        _LEAVE(code)


def _end(process: int) -> int:
    """Ends the fork and the workers that it started."""
    for kill in (os.killpg, os.kill):
        with suppress(ProcessLookupError):
            kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return -signal.SIGKILL


@dataclass(frozen=True)
class Job:
    """`work` gets an empty directory; `broken` is the outcome if it never returns, with `error` to be filled."""

    work: Callable[[Path], Outcome]
    broken: Callable[[str], Outcome]

    def write(self, folder: Path) -> int:
        (folder / "outcome.json").write_text(json.dumps(asdict(self.work(folder / "run"))))
        return 0

    def outcome(self, ended: Ended) -> Outcome:
        if ended.code == 0:
            return of_mapping(json.loads((ended.folder / "outcome.json").read_text()))
        if ended.code < 0:
            return self.broken(f"the trial was killed by signal {-ended.code}")
        lines = ended.words.strip().splitlines()
        return self.broken(lines[-1] if lines else f"the trial ended with exit code {ended.code}")


def outcomes_of(jobs: Sequence[Job], root: Path, side_by_side: int, longest: float = LONGEST) -> Iterator[Outcome]:
    """The outcomes as they come in."""
    for ended in run_forks([job.write for job in jobs], root, side_by_side=side_by_side, longest=longest):
        yield jobs[ended.number].outcome(ended)


def of_mapping(values: dict[str, Any]) -> Outcome:
    facts: Any = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    return Outcome(**facts)
