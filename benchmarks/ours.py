"""The embedded default as `assay train` runs it: evaluations, record and checkpoints included."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from assay.config import Config
from assay.record import read_evaluations, read_events, read_metrics, read_rollouts, read_timings
from assay.train.loop import Stages, train
from assay.train.progress import Progress, StepInProgress
from assay.train.run import run
from assay.train.run.cpu import settled
from assay.train.show.display import STAGES
from benchmarks.measured import Measured, Step, durations, peak_memory_bytes, prompts_sha256


def start_with(config: Config, path: Path, change: Callable[[Stages], Stages]) -> None:
    """`assay train`, with the verbs that `change` replaces; ends the process if the run does not end well."""

    def train_otherwise(stages: Stages, progress: Progress, current: StepInProgress | None, steps: int) -> None:
        train(change(stages), progress, current, steps)

    run.train = train_otherwise  # type: ignore[attr-defined]
    if code := run.start(config, path):
        raise SystemExit(code)


def measure(warmup: int, steps: int, directory: Path, on_step: Callable[[], None]) -> Measured:
    config = settled(Config())
    config = replace(config, run=replace(config.run, steps=warmup + steps))
    path = directory / "run"
    wall_ends: list[float] = []
    cpu_ends: list[float] = []

    def note_end() -> None:
        wall_ends.append(time.perf_counter())
        cpu_ends.append(time.process_time())

    def under_the_clock(stages: Stages) -> Stages:
        def record(current: StepInProgress, progress: Progress) -> None:
            stages.record(current, progress)
            note_end()
            on_step()

        note_end()
        return replace(stages, record=record)

    # timings.jsonl has the stages of a step, but not its length: that includes the writing of timings.jsonl
    start_with(config, path, under_the_clock)
    peak = peak_memory_bytes()
    evaluations = read_evaluations(path).rows
    timings, metrics = read_timings(path).rows, read_metrics(path).rows
    rows = zip(durations(wall_ends), durations(cpu_ends), timings, metrics, strict=True)
    checkpoints = [event["step"] for event in read_events(path).rows if event["kind"] == "checkpoint"]
    return Measured(
        contender="assay",
        warmup=warmup,
        steps=tuple(
            Step(
                seconds=wall,
                cpu_seconds=cpu,
                stages={stage: timing[f"seconds_{stage}"] for stage in STAGES},
                rollouts=metric["rollouts_scored"],
                updates=metric["updates_applied"],
                tokens=metric["tokens_generated"],
                tokens_trained=metric["tokens_trained"],
                reward=metric["reward_mean"],
            )
            for wall, cpu, timing, metric in rows
        ),
        prompts_sha256=prompts_sha256(row["prompt_text"] for row in read_rollouts(path)),
        heldout_before=evaluations[0]["reward_sampled"],
        heldout_after=evaluations[-1]["reward_sampled"],
        checkpoints=sum(warmup <= step < warmup + steps for step in checkpoints),
        peak_memory_bytes=peak,
    )
