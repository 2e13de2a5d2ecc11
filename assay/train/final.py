"""RUN/final, the weights of a finished run. What the run wrote there it may replace; what a user put there is kept."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

from assay import durable
from assay.record import checksums, writing
from assay.record.verify import FINAL

LITTER = re.compile(r"\.DS_Store|\._.*|\.nfs.*|\.directory")  # of desktops and network disks; .git is somebody's work


def clear_final(run: Path, say: Callable[[str], None]) -> None:
    """Makes room for the weights of a run that goes on. A final/ that holds anything but what the run wrote is kept
    under another name, and `say` is called with a sentence about it."""
    target = run / FINAL
    if not os.path.lexists(target):
        return
    with writing(target):
        reason = _why_kept(run)
        checksums.note_removal(run, FINAL)
        if not reason:
            durable.remove_directory(target)
            return
        number = 1
        while os.path.lexists(kept := run / (f"{FINAL}-kept" if number == 1 else f"{FINAL}-kept-{number}")):
            number += 1
        os.rename(target, kept)
        durable.sync_directory(run)
    say(f"{target} {reason}, so it is kept as {kept}")


def note_final(run: Path, written: Path) -> None:
    """Enters the checksums of a directory that will become final/. Before it does: then a run that is killed in between
    still knows which files are its own."""
    checksums.note_directory(run, FINAL, written)


def _why_kept(run: Path) -> str:
    """What in final/ is not the run's own, "" if nothing is."""
    target = run / FINAL
    if target.is_symlink() or not target.is_dir():
        return "is a link" if target.is_symlink() else "is not a directory"
    ledger = checksums.read(run)
    known = {} if ledger is None else ledger.files
    for path in sorted(target.iterdir()):
        name = path.name
        contents = known.get(f"{FINAL}/{name}")
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
