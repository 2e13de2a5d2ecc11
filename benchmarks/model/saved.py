"""What a benchmark has measured so far, run by run in its --json file: one that was stopped can go on.

A file that holds another comparison (options, versions, machine) is refused, not overwritten. Nothing here imports
torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from assay.config import ConfigError
from assay.record import describe_environment
from benchmarks.command import from_json
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

    @property
    def line(self) -> str:
        """How long it took, and what was measured."""
        whole = self.seconds["whole"]
        parts = {name: seconds for name, seconds in self.seconds.items() if name != "whole"}
        if parts:
            parts["rest"] = whole - sum(parts.values())
        listed = ", ".join(f"{name} {seconds:.1f}" for name, seconds in parts.items())
        by_measurement = {reading.job.measurement: reading for reading in self.readings}
        alone = len(by_measurement) == len(self.readings)  # not one of several settings or sizes
        measured = [_line(reading) for reading in self.readings] if alone else [f"{len(self.readings)} readings"]
        return "; ".join([f"took {whole:.1f} s" + (f": {listed}" if listed else ""), *measured])


def _line(reading: Reading) -> str:
    return f"{reading.job.measurement} {reading.median_seconds:.4g} s, cold {reading.cold_seconds:.4g} s"


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
    names = [option.name for option in fields(options) if option.name not in NOT_COMPARED]
    facts = {
        **{name: getattr(options, name) for name in names},
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
        from_json(Machine, document["machine"])
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
    return [from_json(Run, values) for values in document["turns"]]


def on_the_same_machine(path: Path, document: Mapping[str, Any], machine: Machine) -> Machine:
    """The machine with the limits that the earlier runs were held against; another machine is refused."""
    earlier: Machine = from_json(Machine, document["machine"])
    facts = [asdict(replace(known, limits=NO_LIMITS, directory="")) for known in (earlier, machine)]
    changed = sorted(name for name, value in facts[1].items() if facts[0][name] != value)
    if changed:
        raise ConfigError(
            f"{path} was measured on another machine or model ({', '.join(changed)} differ); choose another path, or "
            "remove it"
        )
    return replace(machine, limits=earlier.limits)
