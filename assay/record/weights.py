"""RUN/final and RUN/best, weights that a run leaves as Hugging Face directories. What the run wrote there it may
replace; what a user put there is kept. Nothing here imports torch."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

from assay.machine import durable
from assay.record import checksums
from assay.record.directory import read_events, read_metrics, writing

FINAL, BEST = "final", "best"
PUBLISHED = (FINAL, BEST)
LITTER = re.compile(r"\.DS_Store|\._.*|\.nfs.*|\.directory")  # of desktops and network disks; .git is somebody's work


def step_of(run: Path, name: str) -> int:
    """After which step the weights in RUN/name were written; 0 if the run did not write any."""
    if name == BEST:
        return next((event["step"] for event in reversed(read_events(run).rows) if event["kind"] == BEST), 0)
    steps = read_metrics(run).rows
    return steps[-1]["step"] if steps else 0


def clear_weights(run: Path, name: str, say: Callable[[str], None]) -> None:
    """Makes room for other weights. A directory that holds anything but what the run wrote is kept under another name,
    and `say` is called with a sentence about it."""
    target = run / name
    if not os.path.lexists(target):
        return
    with writing(target):
        reason = _why_kept(run, name)
        checksums.note_removal(run, name)
        if not reason:
            durable.remove_directory(target)
            return
        number = 1
        while os.path.lexists(kept := run / (f"{name}-kept" if number == 1 else f"{name}-kept-{number}")):
            number += 1
        os.rename(target, kept)
        durable.sync_directory(run)
    say(f"{target} {reason}, so it is kept as {kept}")


def _why_kept(run: Path, directory: str) -> str:
    """What in RUN/directory is not the run's own, "" if nothing is."""
    target = run / directory
    if target.is_symlink() or not target.is_dir():
        return "is a link" if target.is_symlink() else "is not a directory"
    ledger = checksums.read(run)
    known = {} if ledger is None else {**ledger.removed, **ledger.files}  # a kill may have come before the removal
    for path in sorted(target.iterdir()):
        name = path.name
        contents = known.get(f"{directory}/{name}")
        if contents is None:
            if LITTER.fullmatch(name):
                continue
            return f"holds {name}, which has no checksum of this run"
        try:
            if checksums.facts_of_file(target / name) not in contents:
                return f"holds {name}, which was changed"
        except OSError as error:
            return f"holds {name}, which cannot be read ({error.strerror})"
    return ""
