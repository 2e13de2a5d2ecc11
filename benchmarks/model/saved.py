"""What a benchmark has measured so far, run by run in its --json file: one that was stopped can go on.

A file that holds another comparison (options, versions, machine) is refused, not overwritten. Nothing here imports
torch.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from assay.config import ConfigError
from assay.record import describe_environment
from benchmarks.model.floors import Limits
from benchmarks.model.options import Options
from benchmarks.model.reading import Machine, Reading

NOT_COMPARED = ("json_path", "plot_path")  # of the options
NO_LIMITS = Limits(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Run:
    """What one process did.

    Example: Run("1-trl", True, {"whole": 61.0, "imports": 14.0, "model": 2.0, "iterations": 38.0}, (reading,))
    """

    name: str  # of its directory: tune-trl, 0-assay, grow-assay
    done: bool  # False = stopped on the way: what it had measured is shown, and measured again when it goes on
    seconds: Mapping[str, float]  # whole, and of it: imports, model (until the first iteration), iterations
    readings: tuple[Reading, ...]

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Run:
        readings = tuple(Reading.from_json(one) for one in values["readings"])
        return cls(values["name"], values["done"], values["seconds"], readings)

    @property
    def line(self) -> str:
        """How long it took, and what was measured."""
        whole = self.seconds["whole"]
        parts = {name: seconds for name, seconds in self.seconds.items() if name != "whole"}
        if parts:
            parts["rest"] = whole - sum(parts.values())
        listed = ", ".join(f"{name} {seconds:.1f}" for name, seconds in parts.items())
        by_measurement = {one.job.measurement: one for one in self.readings}
        alone = len(by_measurement) == len(self.readings)  # not one of several settings or sizes
        measured = [_line(one) for one in self.readings] if alone else [f"{len(self.readings)} readings"]
        return "; ".join([f"took {whole:.1f} s" + (f": {listed}" if listed else ""), *measured])


def _line(reading: Reading) -> str:
    seconds = statistics.median(one.seconds for one in reading.warm)
    return f"{reading.job.measurement} {seconds:.4g} s, cold {reading.cold_seconds:.4g} s"


def seconds_of(
    directory: Path, whole: float, readings: Sequence[Reading], measurements: Sequence[str]
) -> dict[str, float]:
    """Where a run's time went. A reading that lies inside another one's iterations is not among the measurements."""
    path = directory / "times.json"
    if not path.exists() or not readings:
        return {"whole": whole}
    times = json.loads(path.read_text(encoding="utf-8"))
    return {
        "whole": whole,
        "imports": times["imports"],
        "model": times["first_iteration_ended"] - readings[0].cold_seconds - times["imports"],
        "iterations": sum(
            iteration.seconds
            for reading in readings
            if reading.job.measurement in measurements
            for iteration in reading.iterations
        ),
    }


def compared(options: Options) -> dict[str, Any]:
    """What must be equal for two runs to belong to one comparison; the machine too, which is known later."""
    environment = describe_environment(options.threads)
    asked = {one.name: getattr(options, one.name) for one in fields(options) if one.name not in NOT_COMPARED}
    facts = {
        **asked,
        "workload": asdict(options.workload),
        "python": environment["python"],
        "packages": environment["packages"],
    }
    return dict(json.loads(json.dumps(facts)))  # as a file gives it back: a tuple is a list there


def read_document(options: Options) -> dict[str, Any] | None:
    """What an earlier call of the same command has left, if there is any."""
    path = options.json_path
    if path is None or not path.exists():
        return None
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        earlier, now = document["compared"], compared(options)
        Machine.from_json(document["machine"])
        runs_of(document)
        changed = sorted(name for name in now if earlier.get(name) != now[name])
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"{path} is not a file of benchmarks.model ({error!r}); choose another path") from error
    if changed:
        raise ConfigError(
            f"{path} holds another comparison ({', '.join(changed)} differ); choose another path, or remove it"
        )
    return dict(document)


def runs_of(document: Mapping[str, Any]) -> list[Run]:
    return [Run.from_json(values) for values in document["turns"]]


def on_the_same_machine(path: Path, document: Mapping[str, Any], machine: Machine) -> Machine:
    """The machine with the limits that the earlier runs were held against; another machine is refused."""
    earlier = Machine.from_json(document["machine"])
    facts = [asdict(replace(one, limits=NO_LIMITS, directory="")) for one in (earlier, machine)]
    changed = sorted(name for name, value in facts[1].items() if facts[0][name] != value)
    if changed:
        raise ConfigError(
            f"{path} was measured on another machine or model ({', '.join(changed)} differ); choose another path, or "
            "remove it"
        )
    return replace(machine, limits=earlier.limits)
