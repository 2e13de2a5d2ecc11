"""The user's own files that a run depends on, by their checksums: has one changed when the run is taken up again?"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from assay.config import Config
from assay.record import RunError
from assay.tasks import Task, is_path

PROBLEMS = "problems"


def sources_of(config: Config, task: Task) -> dict[str, str]:
    """Name -> checksum; "" for problems that come from this package alone."""
    files = {spec: Path(spec.rpartition(":")[0]) for spec in config.reward.functions}
    rewards = {spec: hashlib.sha256(file.read_bytes()).hexdigest() for spec, file in files.items() if file.is_file()}
    return {PROBLEMS: task.fingerprint, **rewards}


def changes(before: Mapping[str, str], now: Mapping[str, str], config: Config) -> list[tuple[str, str]]:
    """The kind of event and a sentence for each of the user's files that has changed: it may have been repaired. Rows
    keep their side of the split by their own text, so that no row that was held out is trained on. Problems that come
    from a library of another version are refused: nobody repaired them."""
    found = []
    if before[PROBLEMS] != now[PROBLEMS]:
        if not is_path(config.task.name):
            raise RunError(
                f"task.name = {config.task.name!r} gives other problems than when the run began ({before[PROBLEMS]}, "
                f"now {now[PROBLEMS]}); install the version it began with, or start a new run"
            )
        found.append(
            (
                "data changed",
                f"{config.task.name} has changed since the last checkpoint; the steps from here on draw from the new "
                "rows, and held-out scores may be those of other rows than before",
            )
        )
    found += [
        (
            "reward changed",
            f"{name} has changed since the last checkpoint; the rewards from here on are those of the new file",
        )
        for name, checksum in now.items()
        if name != PROBLEMS and before.get(name) != checksum
    ]
    return found
