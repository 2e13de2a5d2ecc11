"""`assay bench`: seconds by stage of the embedded default, and of the same task in TRL 1.16 where TRL is installed.

Each run of a contender is a process of its own: neither inherits the other's memory, caches or threads. They take
turns, and every second turn starts with the other one. Nothing here imports torch.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from assay.bench.measured import STAGES_AND_REST, Measured, Summary, differences, step_ratios, summarise
from assay.config import Config, to_mapping
from assay.record import describe_environment
from assay.train.display import printable

WARMUP = 3  # steps of each run that are trained and not timed
PEER_VERSION = "1.16"  # trl_peer.py puts its clock around methods of this version
LOG_LINES = 15  # shown of a run that failed

OnStep = Callable[[], None]


def bench(steps: int, repeats: int, json_path: Path | None) -> int:
    """Times `steps` steps of each contender, `repeats` times. Returns the exit code."""
    # FORCE_COLOR makes rich take a log file for a terminal: colours may go there, a bar that redraws itself may not
    chatter = Console(stderr=True, force_interactive=None if sys.stderr.isatty() else False)
    console = Console()
    if json_path is not None and not json_path.absolute().parent.is_dir():
        chatter.print(
            Text(f"assay: {json_path}: its directory does not exist; make it, or choose another path"), soft_wrap=True
        )
        return 2
    contenders, missing = _contenders()
    order = [name for turn in range(repeats) for name in (contenders if turn % 2 == 0 else contenders[::-1])]
    load_before = os.getloadavg()
    runs = []
    with tempfile.TemporaryDirectory(prefix="assay-bench-") as place, _progress(chatter, order, steps) as begin:
        for turn, name in enumerate(order):
            directory = Path(place) / f"{turn}-{name}"
            directory.mkdir()
            runs.append(_run(name, steps, directory, begin(turn)))
            if runs[-1] is None:
                lines = (directory / "log.txt").read_text(encoding="utf-8", errors="replace").splitlines()
                chatter.print(Text("\n".join(["", *map(printable, lines[-LOG_LINES:])])), soft_wrap=True)
                chatter.print(
                    Text(f"assay: the run of {name} ended without a result; its last lines are above"), soft_wrap=True
                )
                return 1
    measured = {name: [run for run in runs if run is not None and run.contender == name] for name in contenders}
    summaries = {name: summarise(own) for name, own in measured.items()}
    unequal = differences(measured["assay"], measured["trl"]) if "trl" in measured else []
    environment = describe_environment(Config().run.threads)
    document = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": f"assay bench --steps {steps} --repeats {repeats}",
        "cpu": _cpu_model(),
        "environment": environment,
        "load_average": {"before": load_before[0], "after": os.getloadavg()[0]},
        "config": to_mapping(Config()),
        "warmup": WARMUP,
        "steps": steps,
        "repeats": repeats,
        "order": order,
        "contenders": {name: asdict(summary) for name, summary in summaries.items()},
        "step_ratios": step_ratios(measured["assay"], measured["trl"]) if "trl" in measured else [],
        "unequal_work": unequal,
        "runs": [asdict(run) for run in runs if run is not None],
    }
    _print(console, document, summaries, missing)
    if json_path is not None:
        try:
            json_path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            chatter.print(
                Text(f"assay: {json_path} could not be written: {error.strerror}; the table above is whole"),
                soft_wrap=True,
            )
            return 2
    return 1 if unequal else 0


def _contenders() -> tuple[list[str], str]:
    """Who can run here, and a sentence on who cannot."""
    how = "pip install 'assay[trl]'"
    if importlib.util.find_spec("trl") is None:
        return ["assay"], f"TRL is not installed; for the same task with TRL {PEER_VERSION} beside it: {how}"
    version = importlib.metadata.version("trl")
    if not version.startswith(f"{PEER_VERSION}."):
        return ["assay"], f"TRL {version} is installed, but only TRL {PEER_VERSION} can be timed by stage: {how}"
    return ["assay", "trl"], ""


def _run(name: str, steps: int, directory: Path, on_step: OnStep) -> Measured | None:
    """One contender in a process of its own; None if it ended without a result."""
    command = [sys.executable, "-m", "assay.bench.worker", name, str(WARMUP), str(steps), str(directory)]
    # torch reads it when it is imported: the pools that set_num_threads does not reach are then as small as the others
    environment = {**os.environ, "OMP_NUM_THREADS": str(Config().run.threads)}
    with (
        (directory / "log.txt").open("wb") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment) as process,
    ):
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if line == "step\n":  # libraries print other things
                    on_step()
        except BaseException:
            process.kill()
            raise
    result = directory / "measured.json"
    if process.returncode != 0 or not result.exists():
        return None
    return Measured.from_json(result.read_text(encoding="utf-8"))


@contextmanager
def _progress(console: Console, order: Sequence[str], steps: int) -> Iterator[Callable[[int], OnStep]]:
    """A bar on a terminal, a line for each run elsewhere."""
    each = WARMUP + steps
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_interactive) as bar:
        task = bar.add_task("", total=each * len(order))

        def begin(turn: int) -> OnStep:
            title = f"run {turn + 1} of {len(order)}: {order[turn]}, {each} steps"
            bar.update(task, description=title, completed=turn * each)
            if not console.is_interactive:
                console.print(Text(title))
            return lambda: bar.advance(task)

        yield begin


def _print(console: Console, document: dict[str, Any], summaries: dict[str, Summary], missing: str) -> None:
    packages = document["environment"]["packages"]
    titles = {"assay": "assay", "trl": f"TRL {packages['trl']}"}
    ours, peer = summaries["assay"], summaries.get("trl")
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column("seconds a step, median")
    for name in summaries:
        table.add_column(titles[name], justify="right")
    if peer is not None:
        table.add_column("TRL / assay", justify="right")

    def add(label: str, value: Callable[[Summary], float], form: str) -> None:
        ratio = [] if peer is None else [f"{value(peer) / value(ours):.2f}"]
        table.add_row(label, *(form.format(value(one)) for one in summaries.values()), *ratio)

    for stage in STAGES_AND_REST:
        add(f"  {stage}", lambda one, stage=stage: one.stage_seconds[stage], "{:.4f}")  # type: ignore[misc]
    add("whole step", lambda one: one.step_seconds, "{:.4f}")
    add("whole step, CPU", lambda one: one.step_cpu_seconds, "{:.4f}")
    add("whole step, mean", lambda one: one.step_seconds_mean, "{:.4f}")
    table.add_row()
    add("rollout tokens/s", lambda one: one.rollout_tokens_per_second, "{:,.0f}")
    add("update tokens/s", lambda one: one.update_tokens_per_second, "{:,.0f}")
    add("peak memory, MB", lambda one: one.peak_memory_bytes / 1e6, "{:,.0f}")
    table.add_row()
    add("rollouts a step", lambda one: one.rollouts, "{:g}")
    add("updates a step", lambda one: one.updates, "{:g}")
    add("tokens a completion", lambda one: one.completion_length, "{:.2f}")
    for label, first, last in (
        ("reward, first and last 3 steps", "reward_first", "reward_last"),
        ("held-out, before and after", "heldout_before", "heldout_after"),
    ):
        table.add_row(label, *(f"{getattr(one, first):.3f} -> {getattr(one, last):.3f}" for one in summaries.values()))

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


def _cpu_model() -> str:
    """As the kernel names it, where it does."""
    facts = Path("/proc/cpuinfo")
    lines = facts.read_text(encoding="utf-8").splitlines() if facts.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
