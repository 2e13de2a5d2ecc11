"""`assay bench --model`: rollout, update, whole step and memory of a real model; ours, TRL 1.16 and plain generate.

    prepare --> tune peers --> turns of the contenders, in alternating order --> scaling --> table, JSON, picture

Every turn is a process of its own: nobody inherits another's memory, caches or threads, and nothing here imports torch.
All get the same model files, prompts and lengths; unequal work is refused.
"""

from __future__ import annotations

import datetime
import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from assay.bench.contest.floors import described
from assay.bench.contest.options import MEASURED_BY, Options, check
from assay.bench.contest.reading import Machine, PeerChoice, Reading, differences, ratios, summarise
from assay.bench.contest.table import print_document, print_scaling
from assay.bench.contest.turns import TurnFailed, Turns
from assay.bench.contest.workload import ROLLOUT, SCALING, STEP, UPDATE
from assay.bench.process import chatter, missing_peer, say
from assay.config import ConfigError
from assay.record import describe_environment

WIDTH = 140
PEERS_OF_TRL = ("trl", "trl-autocast")


def contest(options: Options) -> int:
    """Measures, prints, writes. Returns the exit code: 0, or 1 if a turn failed or the work was not the same."""
    check(options)
    if options.plot_path is not None:
        from assay.bench.curves_plot import require_matplotlib

        require_matplotlib()
    errors, console = chatter(), Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)  # four contenders side by side, in a file or a pipe
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="assay-bench-") as place:
        turns = Turns(options, Path(place), errors)
        try:
            document = _measured(options, turns)
        except TurnFailed:
            return 1
    document["load_average"] = {"before": load_before, "after": os.getloadavg()[0]}
    print_document(console, document)
    if document["scaling"]:
        print_scaling(console, document)
    if options.plot_path is not None:
        from assay.bench.contest.scaling_plot import draw

        draw(options.plot_path, document)
    if options.json_path is not None:
        try:
            options.json_path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            say(errors, f"{options.json_path} could not be written: {error.strerror}; the table above is whole")
            return 2
    return 1 if document["unequal_work"] else 0


def _measured(options: Options, turns: Turns) -> dict[str, Any]:
    machine = turns.prepare()
    contenders, notes = _contenders(options, machine)
    tuned: list[Reading] = []
    choices: dict[str, PeerChoice] = {}
    for name in contenders:
        if name in ("generate", "trl") or (name == "trl-autocast" and "trl" not in contenders):
            choices[name], tried = turns.tune(name)
            tuned += tried
    for name in contenders:
        if name == "trl-autocast":
            best = choices.get("trl", choices.get(name)) or PeerChoice()
            choices[name] = PeerChoice(best.cache, best.batch, autocast=True, checkpointing=best.checkpointing)
    order = _order(contenders, options.repeats) if set(options.measurements) - {SCALING} else []
    readings = [
        reading for turn, name in enumerate(order) for reading in turns.run(name, choices.get(name), turn, len(order))
    ]
    grown = turns.grow(contenders if options.scale_peers else contenders[:1], choices)
    unequal = differences(readings) if readings else []
    unequal += [one for one in (differences(grown) if grown else []) if one not in unequal]
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": options.command,
        "model": options.model,
        "machine": asdict(machine) | {"directory": ""},  # a path of this machine is nobody's business
        "environment": describe_environment(options.threads),
        "workload": asdict(options.workload),
        "floors": described(machine.sizes, options.workload, machine.limits),
        "order": order,
        "choices": {name: asdict(choice) for name, choice in choices.items()},
        "notes": list(dict.fromkeys([*notes, *(note for one in (*readings, *grown) for note in one.notes)])),
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
        "tuning": [asdict(reading) for reading in tuned],
        "readings": [asdict(reading) for reading in (*readings, *grown)],
    }


def _contenders(options: Options, machine: Machine) -> tuple[list[str], list[str]]:
    """Who runs, ours first, and sentences about who does not."""
    wanted = options.contenders or tuple(
        name for name in MEASURED_BY if name != "trl-autocast" or machine.dtype == "bfloat16"
    )
    if "trl-autocast" in wanted and machine.dtype != "bfloat16":
        raise ConfigError("--contenders trl-autocast is about bfloat16; add --dtype bfloat16, or leave it out")
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


def _order(contenders: Sequence[str], repeats: int) -> list[str]:
    """
    >>> _order(["assay", "trl"], 2)
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
