"""Contenders run in processes of their own: neither inherits the other's memory, caches or threads."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from assay.machine.interpreter import python_command, python_environment
from assay.machine.terminal import printable
from assay.train.run.interrupt import Interrupt

PEER_VERSION = "1.16"  # trl_peer.py puts its clock around methods of this version
LOG_LINES = 15  # shown of a run that failed

OnStep = Callable[[], None]
Result = TypeVar("Result")


def chatter() -> Console:
    # FORCE_COLOR makes rich take a log file for a terminal: colours may go there, a bar that redraws itself may not
    return Console(stderr=True, force_interactive=None if sys.stderr.isatty() else False)


def say(console: Console, sentence: str) -> None:
    console.print(Text(f"assay: {sentence}"), soft_wrap=True)


def missing_peer() -> str:
    """Why TRL cannot run here, in a sentence; "" if it can."""
    how = "pip install 'assay[trl]'"
    if importlib.util.find_spec("trl") is None:
        return f"TRL is not installed; for the same task with TRL {PEER_VERSION} beside it: {how}"
    try:
        version = importlib.metadata.version("trl")
    except importlib.metadata.PackageNotFoundError:
        return f"TRL lies on the path without its .dist-info, which states its version; put that beside it, or: {how}"
    if not version.startswith(f"{PEER_VERSION}."):
        return f"TRL {version} is installed, but only TRL {PEER_VERSION} can be timed by stage: {how}"
    return ""


class Stop(Interrupt):
    """A signal also ends the worker under way. A second one changes nothing: `timeout` sends two, and all that is left
    to do by then is to keep what was measured."""

    def __init__(self) -> None:
        super().__init__()
        self.worker: subprocess.Popen[str] | None = None

    def watch(self, worker: subprocess.Popen[str]) -> None:
        self.worker = worker
        if self.received:  # it came while the worker was being started
            worker.kill()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.received = self.received or number
        if self.worker is not None:
            self.worker.kill()


def run_worker(
    arguments: Sequence[str], directory: Path, threads: int, on_step: OnStep, stop: Stop | None = None
) -> bool:
    """Runs a module of ours with its arguments; whether it ended well. It prints "step" after each step."""
    # torch reads it when it is imported: the pools that set_num_threads does not reach are then as small as the others
    environment = {**python_environment(), "OMP_NUM_THREADS": str(threads)}
    command = python_command(*arguments)
    with (
        (directory / "log.txt").open("wb") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment) as process,
    ):
        assert process.stdout is not None
        if stop is not None:
            stop.watch(process)
        try:
            for line in process.stdout:
                if line == "step\n":  # libraries print other things
                    on_step()
        except BaseException:
            process.kill()
            raise
    if stop is not None:
        stop.worker = None
        stop.check()
    return process.returncode == 0


def last_words(console: Console, name: str, directory: Path) -> None:
    lines = (directory / "log.txt").read_text(encoding="utf-8", errors="replace").splitlines()
    console.print(Text("\n".join(["", *map(printable, lines[-LOG_LINES:])])), soft_wrap=True)
    say(console, f"the run of {name} ended without a result; its last lines are above")


@contextmanager
def progress(console: Console, order: Sequence[str], each: int) -> Iterator[Callable[[int], OnStep]]:
    """A bar on a terminal, a line for each run elsewhere. `order` titles the runs, each of `each` steps."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_interactive) as bar:
        task = bar.add_task("", total=each * len(order))

        def begin(number: int) -> OnStep:
            title = f"run {number + 1} of {len(order)}: {order[number]}, {each} steps"
            bar.update(task, description=title, completed=number * each)
            if not console.is_interactive:
                console.print(Text(title))
            return lambda: bar.advance(task)

        yield begin


def run_in_turn(
    console: Console, titles: Sequence[str], steps: int, run: Callable[[int, Path, OnStep], Result | None]
) -> list[Result] | None:
    """Runs number 0, 1, ..., each in a directory of its own; None if one of them ended without a result."""
    results = []
    with tempfile.TemporaryDirectory(prefix="assay-bench-") as place, progress(console, titles, steps) as begin:
        for number, title in enumerate(titles):
            directory = Path(place) / str(number)
            directory.mkdir()
            result = run(number, directory, begin(number))
            if result is None:
                last_words(console, title, directory)
                return None
            results.append(result)
    return results


@contextmanager
def working(console: Console, title: str, ticks: int) -> Iterator[OnStep]:
    """A bar over one run on a terminal, a line elsewhere; with ticks = 0 nobody knows how long it takes."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_interactive) as bar:
        task = bar.add_task(title, total=ticks or None)
        if not console.is_interactive:
            console.print(Text(title), soft_wrap=True)
        yield lambda: bar.advance(task)


def cpu_model() -> str:
    """As the kernel names it, where it does."""
    facts = Path("/proc/cpuinfo")
    lines = facts.read_text(encoding="utf-8").splitlines() if facts.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
