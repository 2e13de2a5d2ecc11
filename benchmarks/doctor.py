"""What the doctor costs a run, by the clock and by its own account.

Runs with --doctor off and warn alternate, each in a process of its own, without evaluations, which would hide some of
the cost. By the clock: the median length of the runs with the doctor over that without. By account: the seconds that
were spent on examinations and checks, as a share of the rest of the same run; this holds on a busy machine as well.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

from assay import config as configuration
from assay.record import RunError, read_events
from benchmarks.command import Parser, alternating, check_directories, exit_with, now, write_json
from benchmarks.process import chatter, cpu_model, run_in_turn, run_worker

TARGET = 0.02  # of the run
MODES = ("off", "warn")

PARSER = Parser(
    "doctor",
    "Times what the doctor costs a run: the embedded default, or that of --config, with the doctor and without.",
    ("", "--config my.toml --steps 20 --json overhead.json"),
)
PARSER.number("--steps", None, "steps of each run; by default as in the config")
PARSER.number("--repeats", 3, "runs of each kind")
PARSER.file("--config", "FILE.toml", "what to train; by default the embedded model")
PARSER.file("--json", "FILE", "keeps what is measured")


@dataclass(frozen=True)
class Timed:
    """One run: its length without loading the model, and what of it was the doctor's."""

    mode: str
    seconds: float
    doctor_seconds: float

    @property
    def share(self) -> float:
        return self.doctor_seconds / (self.seconds - self.doctor_seconds)


def overhead(runs: Sequence[Timed]) -> tuple[float, float]:
    """(by the clock, by account), each as a share of a run without the doctor.

    >>> runs = [Timed("off", 10.0, 0.0), Timed("warn", 10.3, 0.1), Timed("off", 10.2, 0.0), Timed("warn", 10.3, 0.3)]
    >>> [round(share, 4) for share in overhead(runs)]
    [0.0198, 0.0199]
    """
    lengths = {mode: statistics.median(run.seconds for run in runs if run.mode == mode) for mode in MODES}
    by_account = statistics.median(run.share for run in runs if run.mode == "warn")
    return lengths["warn"] / lengths["off"] - 1, by_account


def doctor_overhead(config: Path | None, steps: int | None, repeats: int, json_path: Path | None) -> int:
    """Times `repeats` runs of each kind and prints the overhead. Returns the exit code."""
    errors, console = chatter(), Console()
    check_directories(json_path)
    steps = steps or configuration.load(config).run.steps
    order = alternating(MODES, repeats)
    load_before = os.getloadavg()[0]
    runs = run_in_turn(errors, order, steps, lambda number, place, _: _run(order[number], config, steps, place))
    if runs is None:
        return 1
    by_clock, by_account = overhead(runs)
    document = {
        "date": now(),
        "cpu": cpu_model(),
        "load_average": {"before": load_before, "after": os.getloadavg()[0]},
        "config": None if config is None else config.name,
        "steps": steps,
        "overhead_by_clock": by_clock,
        "overhead_by_account": by_account,
        "runs": [asdict(run) for run in runs],
    }
    _print(console, runs, by_clock, by_account, load_before)
    write_json(json_path, document)
    return 0 if by_account <= TARGET else 1


def _run(mode: str, config: Path | None, steps: int, directory: Path) -> Timed | None:
    """None if the run ended without a result."""
    path = directory / "run"
    settings = ["evaluate.prompts=0", "run.threads=1", f"run.steps={steps}"]
    chosen = [part for setting in settings for part in ("--set", setting)]
    given = [] if config is None else [str(config)]
    arguments = ["assay", "train", *given, *chosen, "--doctor", mode, "--out", str(path)]
    if not run_worker(arguments, directory, 1, lambda: None):
        return None
    try:
        finished = [event for event in read_events(path).rows if event["kind"] == "finished"]
    except RunError:
        return None
    return Timed(mode, finished[-1]["seconds"], finished[-1].get("doctor_seconds", 0.0)) if finished else None


def _print(console: Console, runs: Sequence[Timed], by_clock: float, by_account: float, load_before: float) -> None:
    for mode in MODES:
        lengths = ", ".join(f"{run.seconds:.2f}" for run in runs if run.mode == mode)
        console.print(Text(f"--doctor {mode:<5} seconds of each run: {lengths}"), soft_wrap=True)
    spent = ", ".join(f"{run.doctor_seconds:.2f}" for run in runs if run.mode == "warn")
    console.print(Text(f"              seconds of the doctor: {spent}"), soft_wrap=True)
    console.print(
        Text(
            f"overhead: {by_account:.2%} by account, {by_clock:.2%} by the clock (target {TARGET:.0%}); "
            f"load {load_before:.1f} -> {os.getloadavg()[0]:.1f}"
        ),
        soft_wrap=True,
    )


if __name__ == "__main__":
    asked = PARSER.parse_args()
    exit_with(lambda: doctor_overhead(asked.config, asked.steps, asked.repeats, asked.json))
