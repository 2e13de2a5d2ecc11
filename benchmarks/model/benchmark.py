"""A benchmark of a real model: who runs, with what settings, in what order; and its document, written after every run.

    prepare --> tune peers --> runs of the contenders, in alternating order --> scaling    --> table, JSON, picture

Every run is a process of its own: nobody inherits another's memory, caches or threads, and nothing here imports torch.
All get the same model files, prompts and lengths; unequal work is refused. After every run the JSON file holds all
that was measured by then, and the same command goes on from it.
"""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

from rich.console import Console

from assay.config import ConfigError
from assay.record import describe_environment
from assay.train.run.interrupt import Interrupted
from benchmarks.command import alternating, now, write_json
from benchmarks.model.floors import described
from benchmarks.model.options import MEASURED_BY, Options, check, check_precision
from benchmarks.model.reading import Machine, PeerChoice, Reading, differences, ratios, summarise
from benchmarks.model.saved import Run, compared, on_the_same_machine, read_document, runs_of
from benchmarks.model.table import print_document, print_scaling
from benchmarks.model.workers import WorkerFailed, Workers
from benchmarks.model.workload import ROLLOUT, SCALING, STEP, UPDATE
from benchmarks.process import Stop, chatter, missing_peer, say

PEERS_OF_TRL = ("trl", "trl-autocast")
GROWN = "grow-"  # how the names of the runs begin that measure scaling
WIDTH = 140


def run_benchmark(options: Options) -> int:
    """Measures, prints, writes. Returns the exit code: 0; 1 if a worker failed or the work was not the same; 2 if the
    JSON file could not be written; 130 or 143 if a signal stopped it."""
    check(options)
    if options.plot_path is not None and importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("--plot needs matplotlib: pip install 'assay[plot]'")
    errors, console = chatter(), Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)  # four contenders side by side, in a file or a pipe
    document = read_document(options)
    if document is not None and document["complete"]:
        say(errors, f"{options.json_path} holds all of this, of {document['date'][:10]}; remove it to measure again")
        code = 0
    else:
        document, code = _measured(options, errors, document)
    if document is None:
        return code
    print_document(console, document)
    if document["scaling"]:
        print_scaling(console, document)
        if options.plot_path is not None:
            from benchmarks.model.scaling_plot import draw

            draw(options.plot_path, document)
    return code or (1 if document["unequal_work"] else 0)


def _measured(options: Options, errors: Console, earlier: dict[str, Any] | None) -> tuple[dict[str, Any] | None, int]:
    """The document, if there is any by now, and the exit code as far as it is decided by now."""
    with tempfile.TemporaryDirectory(prefix="assay-bench-") as place, Stop() as stop:
        benchmark, code = Benchmark(options, Path(place), errors, stop, earlier), 0
        try:
            benchmark.run()
        except WorkerFailed:
            code = 1
        except Interrupted as stopped:
            say(errors, f"stopped by {stopped}")
            code = stopped.exit_code
        if not benchmark.could_be_written:
            code = code or 2
        return (benchmark.document() if benchmark.machine is not None else None), code


class Benchmark:
    """One benchmark, under way or stopped; `document` holds what is known by now."""

    def __init__(
        self, options: Options, place: Path, errors: Console, stop: Stop, earlier: dict[str, Any] | None
    ) -> None:
        self.options, self.errors, self.earlier = options, errors, earlier
        self.runs: dict[str, Run] = {run.name: run for run in runs_of(earlier) if run.done} if earlier else {}
        self.workers = Workers(options, place, errors, stop, self.runs, self._save)
        self.machine: Machine | None = None
        self.complete = False
        self.could_be_written = True
        self.order: list[str] = []
        self.choices: dict[str, PeerChoice] = {}
        self.notes: list[str] = []
        self.load_before = os.getloadavg()[0]

    def run(self) -> None:
        """To its end, or until it is stopped."""
        options = self.options
        machine = self.workers.prepare()
        if self.earlier is not None:
            assert options.json_path is not None
            machine = on_the_same_machine(options.json_path, self.earlier, machine)
            say(self.errors, f"{options.json_path} holds {len(self.runs)} runs of this; going on after them")
        self.machine = machine
        contenders, self.notes = contenders_of(options, machine)
        self.order = alternating(contenders, options.repeats) if set(options.measurements) - {SCALING} else []
        self._write()  # what cannot be written is refused before anything is measured
        self._choose(contenders)
        for number, name in enumerate(self.order):
            self.workers.run(name, self.choices.get(name), number, len(self.order))
        if SCALING in options.measurements:
            self.workers.grow(contenders if options.scale_peers else contenders[:1], self.choices)
        self.complete = True
        self._save()

    def _choose(self, contenders: Sequence[str]) -> None:
        for name in contenders:
            if name in ("generate", "trl") or (name == "trl-autocast" and "trl" not in contenders):
                self.choices[name] = self.workers.tune(name)
        for name in contenders:
            if name == "trl-autocast":
                best = self.choices.get("trl", self.choices.get(name)) or PeerChoice()
                self.choices[name] = PeerChoice(best.cache, best.batch, autocast=True, checkpointing=best.checkpointing)

    def _save(self) -> None:
        """A benchmark whose file cannot be written any more goes on: its table will be printed."""
        try:
            self._write()
        except ConfigError as error:
            self.could_be_written = False
            say(self.errors, str(error))

    def _write(self) -> None:
        self.could_be_written = True
        write_json(self.options.json_path, self.document())

    def document(self) -> dict[str, Any]:
        options, machine = self.options, self.machine
        assert machine is not None, "nothing is known before the preparation"
        readings, grown = self._readings(), self._grown()
        unequal = differences(readings) if readings else []
        unequal += [sentence for sentence in (differences(grown) if grown else []) if sentence not in unequal]
        return {
            "complete": self.complete,
            "date": now(),
            "command": options.command,
            "compared": compared(options),
            "model": options.model,
            "machine": asdict(machine) | {"directory": ""},  # a path of this machine is nobody's business
            "environment": describe_environment(options.threads),
            "load_average": {"before": self.load_before, "after": os.getloadavg()[0]},
            "workload": asdict(options.workload),
            "floors": described(machine.sizes, options.workload, machine.limits),
            "order": self.order,
            "choices": {name: asdict(choice) for name, choice in self.choices.items()},
            "notes": list(dict.fromkeys(chain(self.notes, *(reading.notes for reading in (*readings, *grown))))),
            "unequal_work": unequal,
            "summaries": _summaries(readings, machine),
            "ratios": {} if unequal else _ratios(readings),
            "scaling": [
                {
                    "contender": reading.contender,
                    "measurement": reading.job.measurement,
                    "workload": asdict(reading.job.workload),
                    **asdict(summarise([reading], machine)),
                }
                for reading in grown
            ],
            "turns": [asdict(run) for run in self.runs.values()],
        }

    def _readings(self) -> list[Reading]:
        """In order. A step of TRL also measures the rollout in it, which counts if it was asked for."""
        names = [f"{number}-{name}" for number, name in enumerate(self.order)]
        return [
            reading
            for name in names
            if name in self.runs
            for reading in self.runs[name].readings
            if reading.job.measurement in self.options.measurements
        ]

    def _grown(self) -> list[Reading]:
        return [
            reading
            for name, run in self.runs.items()
            if name.startswith(GROWN)
            for reading in run.readings
            if reading.job.measurement == (STEP if STEP in MEASURED_BY[reading.contender] else ROLLOUT)
        ]


def contenders_of(options: Options, machine: Machine) -> tuple[list[str], list[str]]:
    """Who runs, ours first, and sentences about who does not."""
    wanted = options.contenders or tuple(
        name for name in MEASURED_BY if name != "trl-autocast" or machine.dtype == "bfloat16"
    )
    check_precision(wanted, machine.dtype)
    asked = set(options.measurements)
    able = [
        name
        for place, name in enumerate(wanted)
        if asked & set(MEASURED_BY[name]) or (SCALING in asked and (place == 0 or options.scale_peers))
    ]
    missing = missing_peer()
    if missing and any(name in PEERS_OF_TRL for name in able):
        return [name for name in able if name not in PEERS_OF_TRL], [missing]
    return able, []


def _by_measurement(readings: Sequence[Reading]) -> dict[str, dict[str, list[Reading]]]:
    found: dict[str, dict[str, list[Reading]]] = {}
    for measurement in (ROLLOUT, UPDATE, STEP):
        for reading in readings:
            if reading.job.measurement == measurement:
                found.setdefault(measurement, {}).setdefault(reading.contender, []).append(reading)
    return found


def _summaries(readings: Sequence[Reading], machine: Machine) -> dict[str, dict[str, Any]]:
    return {
        measurement: {name: asdict(summarise(own, machine)) for name, own in by_name.items()}
        for measurement, by_name in _by_measurement(readings).items()
    }


def _ratios(readings: Sequence[Reading]) -> dict[str, dict[str, list[dict[str, float]]]]:
    """Peer by ours, where ours ran too."""
    return {
        measurement: {name: ratios(by_name["assay"], own) for name, own in by_name.items() if name != "assay"}
        for measurement, by_name in _by_measurement(readings).items()
        if "assay" in by_name
    }
