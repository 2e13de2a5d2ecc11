"""One run of a benchmark: python -m benchmarks.model.worker DIRECTORY, which holds plan.json.

Prints "step" after each iteration. Leaves machine.json (of a preparation) or readings.json, which grows reading by
reading, and times.json, the time until the first iteration; or refusal.txt, a sentence for
whoever typed the command.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

from assay.config import ConfigError
from benchmarks.command import from_json, read_json
from benchmarks.model.reading import Machine, PeerChoice, Reading, write_readings
from benchmarks.model.workload import Job, Workload


def main(directory: Path) -> None:
    plan = json.loads((directory / "plan.json").read_text(encoding="utf-8"))
    try:
        if plan["what"] == "prepare":
            _prepare(plan, directory)
        elif plan["what"] == "tune":
            _tune(plan, directory)
        else:
            _run(plan, directory)
    except ConfigError as error:
        (directory / "refusal.txt").write_text(str(error), encoding="utf-8")
        sys.exit(2)


def _prepare(plan: dict[str, Any], directory: Path) -> None:
    from benchmarks.model.prepare import prepare

    machine = prepare(
        plan["model"], plan["device"], plan["dtype"], plan["threads"], directory, Workload(**plan["longest"])
    )
    (directory / "machine.json").write_text(json.dumps(asdict(machine)), encoding="utf-8")


def _tune(plan: dict[str, Any], directory: Path) -> None:
    from benchmarks.model.tuning import tune

    kept: list[Reading] = []

    def keep(reading: Reading) -> None:
        kept.append(reading)
        write_readings(directory / "readings.json", kept)

    tune(
        plan["contender"],
        Workload(**plan["workload"]),
        plan["measurements"],
        plan["warmup"],
        plan["batch"],
        plan["caches"],
        read_json(Machine, Path(plan["machine"])),
        plan["threads"],
        keep,
    )


def _run(plan: dict[str, Any], directory: Path) -> None:
    contender, choice = plan["contender"], plan["choice"]
    if contender == "assay":
        from benchmarks.model.by_assay import measure
    elif contender == "generate":
        from benchmarks.model.by_generate import measure
    else:
        from benchmarks.model.by_trl import measure

        import_module("trl.trainer.grpo_trainer")  # now, so that it counts as an import
    jobs, settings = from_json(tuple[Job, ...], plan["jobs"]), from_json(PeerChoice | None, choice)
    readings: list[Reading] = []
    imported = time.time()
    times = directory / "times.json"

    def tick() -> None:
        if not times.exists():
            seconds = {"imports": imported - plan["began"], "first_iteration_ended": time.time() - plan["began"]}
            times.write_text(json.dumps(seconds), encoding="utf-8")
        print("step", flush=True)

    for reading in measure(jobs, read_json(Machine, Path(plan["machine"])), plan["threads"], settings, tick):
        readings.append(reading)
        write_readings(directory / "readings.json", readings)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
