"""The course of a contest: who runs, with what settings, in what order; and its document, kept after every turn.

prepare --> tune peers --> turns of the contenders, in alternating order --> scaling
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from assay.config import ConfigError
from assay.machine import durable
from assay.record import describe_environment
from benchmarks.model.floors import described
from benchmarks.model.options import MEASURED_BY, Options, check_precision
from benchmarks.model.reading import Machine, PeerChoice, Reading, differences, ratios, summarise
from benchmarks.model.saved import Turn, compared, on_the_same_machine, turns_of, write_document
from benchmarks.model.workers import Turns
from benchmarks.model.workload import ROLLOUT, SCALING, STEP, UPDATE
from benchmarks.process import Stop, missing_peer, say

PEERS_OF_TRL = ("trl", "trl-autocast")
GROWN = "grow-"  # how the names of the turns begin that measure scaling


class Course:
    """One contest, under way or stopped; `document` tells what is known of it by now."""

    def __init__(
        self, options: Options, place: Path, errors: Console, stop: Stop, earlier: dict[str, Any] | None
    ) -> None:
        self.options, self.errors, self.earlier = options, errors, earlier
        self.kept: dict[str, Turn] = {turn.name: turn for turn in turns_of(earlier) if turn.done} if earlier else {}
        self.turns = Turns(options, place, errors, stop, self.kept, self._keep)
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
        machine = self.turns.prepare()
        if self.earlier is not None:
            assert options.json_path is not None
            machine = on_the_same_machine(options.json_path, self.earlier, machine)
            say(self.errors, f"{options.json_path} holds {len(self.kept)} turns of this; going on behind them")
        self.machine = machine
        contenders, self.notes = contenders_of(options, machine)
        self.order = order_of(contenders, options.repeats) if set(options.measurements) - {SCALING} else []
        try:
            self._write()
        except OSError as error:  # known before anything is measured
            raise ConfigError(f"{options.json_path} could not be written: {durable.reason(error)}") from error
        self._choose(contenders)
        for turn, name in enumerate(self.order):
            self.turns.run(name, self.choices.get(name), turn, len(self.order))
        if SCALING in options.measurements:
            self.turns.grow(contenders if options.scale_peers else contenders[:1], self.choices)
        self.complete = True
        self._keep()

    def _choose(self, contenders: Sequence[str]) -> None:
        for name in contenders:
            if name in ("generate", "trl") or (name == "trl-autocast" and "trl" not in contenders):
                self.choices[name] = self.turns.tune(name)
        for name in contenders:
            if name == "trl-autocast":
                best = self.choices.get("trl", self.choices.get(name)) or PeerChoice()
                self.choices[name] = PeerChoice(best.cache, best.batch, autocast=True, checkpointing=best.checkpointing)

    def _keep(self) -> None:
        """A contest whose file cannot be written any more goes on: its table will be printed."""
        try:
            self._write()
        except OSError as error:
            self.could_be_written = False
            say(self.errors, f"{self.options.json_path} could not be written: {durable.reason(error)}")

    def _write(self) -> None:
        self.could_be_written = True
        if self.options.json_path is not None:
            write_document(self.options.json_path, self.document())

    def document(self) -> dict[str, Any]:
        options, machine = self.options, self.machine
        assert machine is not None, "nothing is known before the preparation"
        readings, grown = self._readings(), self._grown()
        unequal = differences(readings) if readings else []
        unequal += [one for one in (differences(grown) if grown else []) if one not in unequal]
        return {
            "complete": self.complete,
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
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
            "notes": list(dict.fromkeys([*self.notes, *(note for one in (*readings, *grown) for note in one.notes)])),
            "unequal_work": unequal,
            "summaries": _summaries(readings, machine),
            "ratios": {} if unequal else _ratios(readings),
            "scaling": [
                {
                    "contender": one.contender,
                    "measurement": one.job.measurement,
                    "workload": asdict(one.job.workload),
                    **asdict(summarise([one], machine)),
                }
                for one in grown
            ],
            "turns": [asdict(turn) for turn in self.kept.values()],
        }

    def _readings(self) -> list[Reading]:
        """Of the turns in order. A step of TRL tells of the rollout in it, too, which counts if it was asked for."""
        names = [f"{turn}-{name}" for turn, name in enumerate(self.order)]
        return [
            reading
            for name in names
            if name in self.kept
            for reading in self.kept[name].readings
            if reading.job.measurement in self.options.measurements
        ]

    def _grown(self) -> list[Reading]:
        return [
            reading
            for name, turn in self.kept.items()
            if name.startswith(GROWN)
            for reading in turn.readings
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


def order_of(contenders: Sequence[str], repeats: int) -> list[str]:
    """
    >>> order_of(["assay", "trl"], 2)
    ['assay', 'trl', 'trl', 'assay']
    """
    return [name for turn in range(repeats) for name in (contenders if turn % 2 == 0 else contenders[::-1])]


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
