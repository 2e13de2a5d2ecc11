"""A directory that another trainer wrote --> Evidence: its newest log, and some of its dumped rollouts."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from assay.doctor.evidence import Batch, Curves, Evidence
from assay.doctor.evidence.logs.document import gather_document, read_document, settings_of_arguments
from assay.doctor.evidence.logs.files import evidence_of, read_file
from assay.doctor.evidence.logs.series import Gatherer, LogError, as_number
from assay.doctor.evidence.logs.tfevents import gather_tfevents
from assay.doctor.evidence.run_directory import STEPS, spread

STATE, ARGUMENTS_FILE = "trainer_state.json", "args.json"
METRICS = ("metrics.jsonl", "metrics.json", "metrics.csv", "log.jsonl", "history.csv", "progress.csv")
DEEPEST = 4  # folders below the one that is given
MOST_FILES = 20_000  # files that are looked at
# the whole of a name: math500.jsonl is a set of questions
_DUMP = re.compile(r"(?:.*/)?(?:completions_(\d+)\.parquet|(\d+)\.jsonl|step_(\d+)/(?:train_)?rollouts\.jsonl)")


def read_folder(path: Path) -> Evidence | None:
    """None where nothing in it is a log known here; LogError where all that is cannot be read."""
    files = list(_files(path))
    notes: list[str] = []
    curves = _curves(path, files, notes)
    batches = _batches(path, files, notes)
    if curves is None and not batches:
        if any(file.suffix == ".wandb" for file in files):
            read_file(next(file for file in files if file.suffix == ".wandb"))  # says what to do instead
        if notes:
            raise LogError(notes[0])
        return None
    return Evidence(tuple(batches), curves, notes=tuple(notes))


def holds_logs(path: Path) -> bool:
    """Whether a file in it is called as a log is; a cheap look, that reads nothing."""
    return any(
        file.name in (STATE, *METRICS)
        or file.suffix == ".wandb"
        or "tfevents" in file.name
        or _DUMP.fullmatch(file.as_posix()) is not None
        for file in _files(path)
    )


def _files(path: Path) -> Iterator[Path]:
    count = 0
    for folder, folders, names in os.walk(path):
        is_deep = len(Path(folder).relative_to(path).parts) >= DEEPEST
        folders[:] = [] if is_deep else sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            count += 1
            if count > MOST_FILES:
                return
            if (file := Path(folder) / name).is_file():  # no link to nowhere
                yield file


def _curves(path: Path, files: list[Path], notes: list[str]) -> Curves | None:
    """Of the trainer's state, else of a file of metrics, else of TensorBoard's events."""
    found = _newest_state(path, files, notes)
    for name in METRICS:
        if found is None and (path / name).is_file():
            try:
                found = read_file(path / name)
            except LogError as error:
                notes.append(str(error))
    if found is None:
        found = _events(path, files, notes)
    if found is None:
        return None
    notes += found.notes
    arguments = [file for file in files if file.name == ARGUMENTS_FILE and len(file.relative_to(path).parts) <= 2]
    if found.curves is None or not arguments:
        return found.curves
    settings = settings_of_arguments(min(arguments, key=lambda file: len(file.parts)).read_bytes())
    return replace(found.curves, settings={**settings, **found.curves.settings})


def _newest_state(path: Path, files: list[Path], notes: list[str]) -> Evidence | None:
    """The one that has seen most steps; a damaged one is noted, and the next is taken."""
    states = [file for file in files if file.name == STATE and len(file.relative_to(path).parts) <= 2]
    documents = []
    for file in states:
        try:
            documents.append((file, read_document(file)))
        except LogError as error:
            notes.append(str(error))
    by_step = sorted(documents, key=lambda found: (_global_step(found[1]), -len(found[0].parts)), reverse=True)
    for file, document in by_step:
        gatherer = Gatherer()
        try:
            gather_document(file, document, gatherer)
            evidence = evidence_of(gatherer, file)
        except LogError as error:
            notes.append(str(error))
            continue
        if len(states) > 1:
            notes.append(f"of {len(states)} files named {STATE} the newest is read: {file.relative_to(path)}")
        return evidence
    return None


def _global_step(document: object) -> float:
    step = as_number(document.get("global_step")) if isinstance(document, dict) else None
    return -1.0 if step is None else step


def _events(path: Path, files: list[Path], notes: list[str]) -> Evidence | None:
    """Of the folder whose events are the newest: a resumed run leaves several files in one."""
    events = [file for file in files if ".tfevents." in file.name]
    if not events:
        return None
    newest = max(events, key=lambda file: (file.stat().st_mtime, str(file))).parent
    gatherer = Gatherer()
    for file in events:
        if file.parent == newest:
            gather_tfevents(file, gatherer)
    others = len({file.parent for file in events}) - 1
    if others:
        notes.append(f"events of {others + 1} runs lie here; the newest is read: {newest.relative_to(path)}")
    try:
        return evidence_of(gatherer, newest)
    except LogError as error:
        notes.append(str(error))
        return None


def _batches(path: Path, files: list[Path], notes: list[str]) -> list[Batch]:
    dumps: dict[int, Path] = {}
    for file in files:
        match = _DUMP.fullmatch(file.as_posix())
        if match:
            dumps[int(match[1] or match[2] or match[3])] = file
    batches: list[Batch] = []
    for step in spread(sorted(dumps), STEPS) if dumps else ():
        try:
            found = read_file(dumps[step])
        except LogError as error:
            notes.append(str(error))
            continue
        notes += [note for note in found.notes if note not in notes] if found.batches else []
        batches += found.batches[-1:]
    return batches
