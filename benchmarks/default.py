"""Seconds by stage of the embedded default, and of the same task in TRL 1.16 where TRL is installed.

Each run of a contender is a process of its own: neither inherits the other's memory, caches or threads. They alternate,
and every second repeat starts with the other one. Nothing here imports torch.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from assay.config import Config, to_mapping
from assay.record import describe_environment
from benchmarks.command import Parser, alternating, check_directories, exit_with, now, read_json, write_json
from benchmarks.measured import STAGES_AND_REST, Measured, Summary, differences, step_ratios, summarise
from benchmarks.process import OnStep, chatter, cpu_model, missing_peer, run_in_turn, run_worker

WARMUP = 3  # steps of each run that are trained and not timed
THREADS = 1  # what a run of the embedded model takes

PARSER = Parser(
    "default",
    "Times the embedded default (a bare `assay train`) by stage, beside TRL 1.16 where it is installed.",
    ("", "--steps 40 --repeats 4 --json bench.json"),
)
PARSER.number("--steps", 20, "timed steps of each run")
PARSER.number("--repeats", 3, "runs of each contender")
PARSER.file("--json", "FILE", "keeps what is measured")


def measure_default(steps: int, repeats: int, json_path: Path | None) -> int:
    """Times `steps` steps of each contender, `repeats` times. Returns the exit code."""
    errors, console = chatter(), Console()
    check_directories(json_path)
    missing = missing_peer()
    contenders = ["assay"] if missing else ["assay", "trl"]
    order = alternating(contenders, repeats)
    load_before = os.getloadavg()
    runs = run_in_turn(
        errors, order, WARMUP + steps, lambda number, place, on_step: _run(order[number], steps, place, on_step)
    )
    if runs is None:
        return 1
    measured = {name: [run for run in runs if run.contender == name] for name in contenders}
    summaries = {name: summarise(own) for name, own in measured.items()}
    unequal = differences(measured["assay"], measured["trl"]) if "trl" in measured else []
    config = replace(Config(), run=replace(Config().run, threads=THREADS))
    environment = describe_environment(THREADS)
    document = {
        "date": now(),
        "command": f"{PARSER.prog} --steps {steps} --repeats {repeats}",
        "cpu": cpu_model(),
        "environment": environment,
        "load_average": {"before": load_before[0], "after": os.getloadavg()[0]},
        "config": to_mapping(config),
        "warmup": WARMUP,
        "steps": steps,
        "repeats": repeats,
        "order": order,
        "contenders": {name: asdict(summary) for name, summary in summaries.items()},
        "step_ratios": step_ratios(measured["assay"], measured["trl"]) if "trl" in measured else [],
        "unequal_work": unequal,
        "runs": [asdict(run) for run in runs],
    }
    _print(console, document, summaries, missing)
    write_json(json_path, document)
    return 1 if unequal else 0


def _run(name: str, steps: int, directory: Path, on_step: OnStep) -> Measured | None:
    """One contender in a process of its own; None if it ended without a result."""
    arguments = ["benchmarks.worker", name, str(WARMUP), str(steps), str(directory)]
    ended_well = run_worker(arguments, directory, THREADS, on_step)
    result = directory / "measured.json"
    return read_json(Measured, result) if ended_well and result.exists() else None


def _print(console: Console, document: dict[str, Any], summaries: dict[str, Summary], missing: str) -> None:
    packages = document["environment"]["packages"]
    titles = {"assay": "assay", "trl": f"TRL {packages['trl']}"}
    ours, peer = summaries["assay"], summaries.get("trl")
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column("seconds per step, median")
    for name in summaries:
        table.add_column(titles[name], justify="right")
    if peer is not None:
        table.add_column("TRL / assay", justify="right")

    def add(label: str, value: Callable[[Summary], float], form: str) -> None:
        ratio = [] if peer is None else [f"{value(peer) / value(ours):.2f}"]
        table.add_row(label, *(form.format(value(summary)) for summary in summaries.values()), *ratio)

    for stage in STAGES_AND_REST:
        add(f"  {stage}", lambda summary, stage=stage: summary.stage_seconds[stage], "{:.4f}")  # type: ignore[misc]
    add("whole step", lambda summary: summary.step_seconds, "{:.4f}")
    add("whole step, CPU", lambda summary: summary.step_cpu_seconds, "{:.4f}")
    add("whole step, mean", lambda summary: summary.step_seconds_mean, "{:.4f}")
    table.add_row()
    add("rollout tokens/s", lambda summary: summary.rollout_tokens_per_second, "{:,.0f}")
    add("update tokens/s", lambda summary: summary.update_tokens_per_second, "{:,.0f}")
    add("peak memory, MB", lambda summary: summary.peak_memory_bytes / 1e6, "{:,.0f}")
    table.add_row()
    add("rollouts per step", lambda summary: summary.rollouts, "{:g}")
    add("updates per step", lambda summary: summary.updates, "{:g}")
    add("tokens per completion", lambda summary: summary.completion_length, "{:.2f}")
    for label, first, last in (
        ("reward, first and last 3 steps", "reward_first", "reward_last"),
        ("held-out, before and after", "heldout_before", "heldout_after"),
    ):
        ends = [(getattr(summary, first), getattr(summary, last)) for summary in summaries.values()]
        table.add_row(label, *(f"{before:.3f} -> {after:.3f}" for before, after in ends))

    console.print(table)
    threads = document["environment"]["threads"]
    console.print(
        Text(
            f"\n{document['date'][:10]}  {document['cpu']}, {threads} thread{'s' * (threads != 1)}  "
            f"torch {packages['torch']}, transformers {packages['transformers']}  "
            f"load {document['load_average']['before']:.1f} -> {document['load_average']['after']:.1f}\n"
            f"{document['command']}: {document['steps']} steps after {WARMUP} of warm-up in each run"
        ),
        soft_wrap=True,
    )
    if document["step_ratios"]:
        by_repeat = "; ".join(f"{ratio['wall']:.2f}, CPU {ratio['cpu']:.2f}" for ratio in document["step_ratios"])
        console.print(Text(f"whole step, TRL / assay, by repeat: {by_repeat}"), soft_wrap=True)
    for sentence in (*document["unequal_work"], missing):
        if sentence:
            console.print(Text(sentence, "bold yellow"), soft_wrap=True)


if __name__ == "__main__":
    asked = PARSER.parse_args()
    exit_with(lambda: measure_default(asked.steps, asked.repeats, asked.json))
