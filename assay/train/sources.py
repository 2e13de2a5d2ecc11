"""The user's own files that a run depends on, by their checksums: has one changed when the run is taken up again?"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from assay.config import Config
from assay.record import RunError
from assay.tasks import Task

PROBLEMS = "problems"


def sources_of(config: Config, task: Task) -> dict[str, str]:
    """Name -> checksum; "" for problems that come from this package alone."""
    files = {spec: Path(spec.rpartition(":")[0]) for spec in config.reward.functions}
    rewards = {spec: hashlib.sha256(file.read_bytes()).hexdigest() for spec, file in files.items() if file.is_file()}
    return {PROBLEMS: task.fingerprint, **rewards}


def changes(before: Mapping[str, str], now: Mapping[str, str], config: Config) -> list[str]:
    """A sentence for each reward file that has changed: it may have been repaired. Other problems are refused: the run
    would train on what it holds out, and no run could repeat it."""
    if before[PROBLEMS] != now[PROBLEMS]:
        raise RunError(
            f"task.name = {config.task.name!r} holds other rows than when the run began; put them back, or start a new "
            "run"
        )
    return [
        f"{name} has changed since the last checkpoint; the rewards from here on are those of the new file"
        for name, checksum in now.items()
        if before.get(name) != checksum
    ]
