"""The turns of a contest: each is a worker process with a directory of its own for its plan and its results."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from assay.bench.contest.options import MEASURED_BY, Options
from assay.bench.contest.reading import Machine, PeerChoice, Reading, read_readings
from assay.bench.contest.workload import ROLLOUT, SCALING, STEP, UPDATE, Job, points
from assay.bench.process import last_words, run_worker, say, working
from assay.config import ConfigError

WARMUP = {"cpu": 1, "cuda": 2}  # iterations; the first one on a GPU compiles and captures, the second fills the pools


class TurnFailed(RuntimeError):
    """A turn ended without a result; its last words have been shown."""


@dataclass(frozen=True)
class Turns:
    """Runs workers, one after the other, under `place`; says on `errors` what is under way."""

    options: Options
    place: Path
    errors: Console

    @property
    def machine_file(self) -> Path:
        return self.place / "prepare" / "machine.json"

    def prepare(self) -> Machine:
        asked = self.options
        plan = {"model": asked.model, "device": asked.device, "dtype": asked.dtype, "longest": asdict(asked.longest)}
        self._worker("prepare", f"preparing {asked.model}: the model, the floors of the device", "prepare", plan)
        return Machine.read(self.machine_file)

    def tune(self, name: str) -> tuple[PeerChoice, list[Reading]]:
        """The fastest of what the peer leaves to its user, and all that was tried; asks nothing that has one answer."""
        asked, batch = self.options, self.options.peer_batch
        measurements = [one for one in asked.measurements if one in MEASURED_BY[name]] or [STEP]
        needs_batch = name != "generate" and not batch
        has_caches = len(asked.peer_caches) > 1 and (ROLLOUT in measurements or STEP in measurements)
        known = PeerChoice(asked.peer_caches[0], batch)
        if not needs_batch and not has_caches:
            return known, []
        plan = {
            "contender": name,
            "workload": asdict(asked.workload),
            "measurements": measurements,
            "warmup": 1,
            "batch": batch,
            "caches": asked.peer_caches,
        }
        title = f"looking for the fastest settings of {name}"
        directory = self._worker("tune", title, f"tune-{name}", plan, may_fail=True)
        tried = read_readings(directory / "readings.json")
        if not tried:
            last_words(self.errors, name, directory)
            raise TurnFailed
        return fastest(tried, known, Machine.read(self.machine_file)), tried

    def run(self, name: str, choice: PeerChoice | None, turn: int, turns: int) -> list[Reading]:
        asked = self.options
        measurements = [one for one in MEASURED_BY[name] if one in asked.measurements]
        jobs = [Job(one, asked.workload, WARMUP[self._device], asked.timed) for one in measurements]
        title = f"turn {turn + 1} of {turns}: {name}, {', '.join(measurements)}"
        measured = self._jobs(name, choice, jobs, title, f"{turn}-{name}")
        return [one for one in measured if one.job.measurement in asked.measurements]  # a step of TRL tells more

    def grow(self, contenders: Sequence[str], choices: dict[str, PeerChoice]) -> list[Reading]:
        """Whole steps along each axis; of `generate`, which takes none, rollouts."""
        if SCALING not in self.options.measurements:
            return []
        every = {one: None for grown in points(self.options.workload).values() for one in grown}
        readings = []
        for name in contenders:
            measurement = STEP if STEP in MEASURED_BY[name] else ROLLOUT
            jobs = [Job(measurement, one, WARMUP[self._device], self.options.timed) for one in every]
            choice = choices.get(name)
            title = f"scaling of {name}, {len(jobs)} sizes"
            readings += [
                one
                for one in self._jobs(name, choice, jobs, title, f"grow-{name}")
                if one.job.measurement == measurement
            ]
        return readings

    @property
    def _device(self) -> str:
        return Machine.read(self.machine_file).device

    def _jobs(
        self, name: str, choice: PeerChoice | None, jobs: Sequence[Job], title: str, folder: str
    ) -> list[Reading]:
        plan = {
            "contender": name,
            "choice": None if choice is None else asdict(choice),
            "jobs": [asdict(job) for job in jobs],
        }
        directory = self._worker("run", title, folder, plan, sum(job.iterations for job in jobs))
        return read_readings(directory / "readings.json")

    def _worker(
        self, what: str, title: str, folder: str, plan: dict[str, Any], ticks: int = 0, *, may_fail: bool = False
    ) -> Path:
        directory = self.place / folder
        directory.mkdir()
        whole = {"what": what, "threads": self.options.threads, "machine": str(self.machine_file), **plan}
        (directory / "plan.json").write_text(json.dumps(whole), encoding="utf-8")
        with working(self.errors, title, ticks) as on_step:
            ended_well = run_worker(
                ["assay.bench.contest.worker", str(directory)], directory, self.options.threads, on_step
            )
        refusal = directory / "refusal.txt"
        if refusal.exists():
            raise ConfigError(refusal.read_text(encoding="utf-8"))
        if not ended_well and not may_fail:
            last_words(self.errors, title, directory)
            raise TurnFailed
        if not ended_well:
            say(self.errors, f"{title}: one of them broke and is left out")
        return directory


def fastest(tried: Sequence[Reading], known: PeerChoice, machine: Machine) -> PeerChoice:
    """Of each question by itself: the batch by the update, the cache by the generation."""
    batch, cache = known, known.cache
    updates = [one for one in tried if one.job.measurement == UPDATE and one.choice]
    rollouts = [one for one in tried if one.job.measurement == ROLLOUT and one.choice]
    if updates:
        batch = min(updates, key=lambda one: one.cost(machine)).choice or known
    if rollouts:
        cache = (min(rollouts, key=lambda one: one.cost(machine)).choice or known).cache
    return PeerChoice(cache, batch.batch, checkpointing=batch.checkpointing)
