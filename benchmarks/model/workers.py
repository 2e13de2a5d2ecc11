"""The runs of a benchmark: each is a worker process with a directory of its own for its plan and its results."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from assay.config import ConfigError
from assay.train.run.interrupt import Interrupted
from benchmarks.command import read_json
from benchmarks.model.options import MEASURED_BY, Options
from benchmarks.model.reading import Machine, PeerChoice, Reading, read_readings
from benchmarks.model.saved import Run, seconds_of
from benchmarks.model.workload import ROLLOUT, STEP, UPDATE, Job, points
from benchmarks.process import Stop, last_words, run_worker, say, working

WARMUP = {"cpu": 1, "cuda": 2}  # iterations; the first one on a GPU compiles and captures, the second fills the pools


class WorkerFailed(RuntimeError):
    """A worker ended without a result; its last words have been shown."""


@dataclass(frozen=True)
class Workers:
    """Runs workers, one after the other, under `place`; says on `errors` what is under way. What is among
    `runs` is not run again; every other run is put there when it ends, and `on_run` is called."""

    options: Options
    place: Path
    errors: Console
    stop: Stop
    runs: dict[str, Run]
    on_run: Callable[[], None]

    @property
    def machine_file(self) -> Path:
        return self.place / "prepare" / "machine.json"

    @property
    def machine(self) -> Machine:
        machine: Machine = read_json(Machine, self.machine_file)
        return machine

    def prepare(self) -> Machine:
        asked = self.options
        plan = {"model": asked.model, "device": asked.device, "dtype": asked.dtype, "longest": asdict(asked.longest)}
        began, title = time.perf_counter(), f"preparing {asked.model}: the model, the floors of the device"
        self._worker("prepare", title, "prepare", plan)
        say(self.errors, f"preparing took {time.perf_counter() - began:.1f} s")
        return self.machine

    def tune(self, name: str) -> PeerChoice:
        """The fastest of what the peer leaves to its user; nothing is tried that has one answer."""
        asked, batch = self.options, self.options.peer_batch
        measurements = [measurement for measurement in asked.measurements if measurement in MEASURED_BY[name]] or [STEP]
        needs_batch = name != "generate" and not batch
        has_caches = len(asked.peer_caches) > 1 and (ROLLOUT in measurements or STEP in measurements)
        known = PeerChoice(asked.peer_caches[0], batch)
        if not needs_batch and not has_caches:
            return known
        plan = {
            "contender": name,
            "workload": asdict(asked.workload),
            "measurements": measurements,
            "warmup": 1,
            "batch": batch,
            "caches": asked.peer_caches,
        }
        title = f"looking for the fastest settings of {name}"
        tried = self._run("tune", title, f"tune-{name}", plan, measurements)
        return fastest(tried, known, self.machine)

    def run(self, name: str, choice: PeerChoice | None, number: int, count: int) -> None:
        asked = self.options
        measurements = [measurement for measurement in MEASURED_BY[name] if measurement in asked.measurements]
        jobs = [Job(measurement, asked.workload, self._warmup, asked.timed) for measurement in measurements]
        title = f"run {number + 1} of {count}: {name}, {', '.join(measurements)}"
        self._jobs(name, choice, jobs, title, f"{number}-{name}")

    def grow(self, contenders: Sequence[str], choices: dict[str, PeerChoice]) -> None:
        """Whole steps along each axis; of `generate`, which takes none, rollouts."""
        every = {workload: None for grown in points(self.options.workload).values() for workload in grown}
        for name in contenders:
            measurement = STEP if STEP in MEASURED_BY[name] else ROLLOUT
            jobs = [Job(measurement, workload, self._warmup, self.options.timed) for workload in every]
            self._jobs(name, choices.get(name), jobs, f"scaling of {name}, {len(jobs)} sizes", f"grow-{name}")

    @property
    def _warmup(self) -> int:
        return self.options.warmup or WARMUP[self.machine.device]

    def _jobs(self, name: str, choice: PeerChoice | None, jobs: Sequence[Job], title: str, folder: str) -> None:
        plan = {
            "contender": name,
            "choice": None if choice is None else asdict(choice),
            "jobs": [asdict(job) for job in jobs],
        }
        ticks = sum(job.iterations for job in jobs)
        self._run("run", title, folder, plan, [job.measurement for job in jobs], ticks)

    def _run(
        self, what: str, title: str, name: str, plan: dict[str, Any], measurements: Sequence[str], ticks: int = 0
    ) -> tuple[Reading, ...]:
        """What was measured in it, now or by an earlier call of the same command."""
        if name in self.runs and self.runs[name].done:
            return self.runs[name].readings
        began, directory = time.perf_counter(), self.place / name

        def finish(*, done: bool) -> Run:
            readings = tuple(read_readings(directory / "readings.json"))
            seconds = seconds_of(directory, time.perf_counter() - began, readings, measurements)
            self.runs[name] = Run(name, done, seconds, readings)
            self.on_run()
            return self.runs[name]

        try:
            self._worker(what, title, name, plan, ticks, may_fail=what == "tune")
        except (Interrupted, WorkerFailed):
            finish(done=False)
            raise
        run = finish(done=True)
        say(self.errors, f"{title.partition(',')[0]} {run.line}")
        return run.readings

    def _worker(
        self, what: str, title: str, folder: str, plan: dict[str, Any], ticks: int = 0, *, may_fail: bool = False
    ) -> Path:
        directory = self.place / folder
        directory.mkdir()
        facts = {"what": what, "threads": self.options.threads, "machine": str(self.machine_file), "began": time.time()}
        (directory / "plan.json").write_text(json.dumps({**facts, **plan}), encoding="utf-8")
        with working(self.errors, title, ticks) as on_step:
            command = ["benchmarks.model.worker", str(directory)]
            ended_well = run_worker(command, directory, self.options.threads, on_step, self.stop)
        refusal = directory / "refusal.txt"
        if refusal.exists():
            raise ConfigError(refusal.read_text(encoding="utf-8"))
        if not ended_well and not (may_fail and read_readings(directory / "readings.json")):
            last_words(self.errors, title, directory)
            raise WorkerFailed
        if not ended_well:
            say(self.errors, f"{title}: one of them broke and is left out")
        return directory


def fastest(tried: Sequence[Reading], known: PeerChoice, machine: Machine) -> PeerChoice:
    """Of each question by itself: the batch by the update, the cache by the generation."""
    batch, cache = known, known.cache
    updates = [reading for reading in tried if reading.job.measurement == UPDATE and reading.choice]
    rollouts = [reading for reading in tried if reading.job.measurement == ROLLOUT and reading.choice]
    if updates:
        batch = min(updates, key=lambda reading: reading.cost(machine)).choice or known
    if rollouts:
        cache = (min(rollouts, key=lambda reading: reading.cost(machine)).choice or known).cache
    return PeerChoice(cache, batch.batch, checkpointing=batch.checkpointing)
