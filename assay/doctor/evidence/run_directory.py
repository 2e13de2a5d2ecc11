"""A run directory --> Evidence: its curves, its examined updates, and some of its recorded steps as batches.

A run that was killed, is still going on, or is damaged in places is read as far as it can be; `notes` name what
could not be read. Nothing here imports torch.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from assay.config import Config, ConfigError
from assay.doctor.evidence import Batch, Curves, Evidence
from assay.doctor.evidence.events import sentences_of, size_of_model, was_watched
from assay.machine import durable
from assay.machine.durable import reason
from assay.machine.terminal import quote
from assay.record import (
    EVALUATIONS_FILE,
    EVENTS_FILE,
    METRICS_FILE,
    TIMINGS_FILE,
    RunDirectory,
    RunError,
)
from assay.record.batch import BatchError
from assay.record.batch_file import read_batch
from assay.record.rollout_batch import batch_of_rows
from assay.record.rollouts import from_parquet
from assay.record.settings import settings_by_step, settings_of
from assay.record.trust import load_config
from assay.record.verify import FileProblem, verify

EXAMINED = 8  # newest examined updates that are read
STEPS = 6  # recorded steps that are read: the first, the last, evenly between
_EXAMINED, _ROLLOUTS = r"step-(\d+)-update-(\d+)\.safetensors", r"step-(\d{6,})\.parquet"
_GIVE = "give the directory that 'assay train' wrote, or one that holds scripts or logs"
_BY_STEP = (METRICS_FILE, TIMINGS_FILE, EVALUATIONS_FILE)
_ONCE_A_STEP = (METRICS_FILE, TIMINGS_FILE)
_SECTIONS = ("model", "rollout", "advantage", "loss", "optimizer")  # without them every setting would be a guess


def read_run(path: Path) -> Evidence:
    """Raises RunError where there is nothing to read, and for a record of a newer Assay."""
    notes: list[str] = []
    _look_at_the_mark(path, notes)
    is_attached = _is_attached(path)
    config = None if is_attached else _config(path, notes)
    settings = {} if config is None else settings_of(config)
    rows = {name: _rows(path / name, notes) for name in (*_BY_STEP, EVENTS_FILE)}
    metrics = {row["step"]: row for row in rows[METRICS_FILE]}
    settings_at = (lambda step: settings) if config is None else settings_by_step(config, rows[EVENTS_FILE])
    batches = (*_examined_batches(path, notes), *_recorded_batches(path, settings_at, metrics, notes))
    if not batches and not any(rows.values()) and not (path / "run.json").exists():
        raise RunError(f"{path} is not a run directory: it holds no run.json and nothing that can be read; {_GIVE}")
    records_rollouts = not is_attached and (config is None or config.record.rollouts != "none")
    _look_for_gaps(path, records_rollouts, rows, notes)
    if not is_attached:
        _look_for_damage(path, notes)
    notes = [*sentences_of(rows[EVENTS_FILE]), *notes]  # why a run ended is what its reader wants first
    settings |= size_of_model(rows[EVENTS_FILE])
    curves = Curves(
        rows[METRICS_FILE], rows[TIMINGS_FILE], rows[EVALUATIONS_FILE], rows[EVENTS_FILE], _with_eos(settings, batches)
    )
    return Evidence(batches, curves, tuple(notes))


def run_settings(path: Path, notes: list[str]) -> dict[str, Any]:
    """The settings by the names of a batch; {} and a note if there is no config, or one of another version."""
    config = _config(path, notes)
    return {} if config is None else settings_of(config)


def _is_attached(path: Path) -> bool:
    """Whether another trainer ran, with the doctor attached to it: it leaves neither a config nor rollouts."""
    try:
        mark = json.loads(durable.read_file(path / "run.json").decode("utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(mark, dict) and mark.get("trainer") == "trl"


def _config(path: Path, notes: list[str]) -> Config | None:
    """A run's own config holds every section; one that lacks some was cut off, and its defaults would be invented."""
    try:
        config = load_config(path)
        there = tomllib.loads((path / "config.toml").read_text(encoding="utf-8"))
    except (ConfigError, OSError) as error:
        text = reason(error) if isinstance(error, OSError) else str(error)
        notes.append(f"the settings of the run are unknown, config.toml cannot be used: {text}")
        return None
    absent = [name for name in _SECTIONS if name not in there]
    if absent:
        text = f"it lacks [{'], ['.join(absent)}]" if there else "it is empty"
        notes.append(f"the settings of the run are unknown, config.toml cannot be used: {text}; restore it from a copy")
        return None
    return config


def _look_for_gaps(
    path: Path, records_rollouts: bool, rows: Mapping[str, Sequence[Mapping[str, Any]]], notes: list[str]
) -> None:
    """A note for each file or row that a run of this length should have and this one lacks."""
    steps = sorted(row["step"] for row in rows[METRICS_FILE])
    files = {number[0] for number, _ in _numbered_files(path / "rollouts", _ROLLOUTS)}
    if not steps:
        if files:
            notes.append(f"{METRICS_FILE} holds no step, although rollouts/ holds {len(files)}; there are no curves")
        elif (path / METRICS_FILE).exists():
            notes.append(f"{path} records no whole step yet")
        return
    absent = steps[-1] - len(steps)
    if absent > 0 and not any(f"{METRICS_FILE} line" in note and "damaged" in note for note in notes):
        first = next((place for place, step in enumerate(steps, start=1) if step != place), steps[-1])
        notes.append(
            f"{METRICS_FILE} lacks {absent} of the {steps[-1]} steps up to its last; the first is step {first}"
        )
    if not records_rollouts:
        return
    unrecorded = [step for step in steps if step not in files]
    if unrecorded:
        how_many = f"none of the {len(steps)}" if len(unrecorded) == len(steps) else f"not all of the {len(steps)}"
        notes.append(
            f"rollouts/ holds {how_many} steps of {METRICS_FILE}: {len(unrecorded)} are missing, the first is step "
            f"{unrecorded[0]}; restore them from a copy of the run"
        )
    if was_watched(rows[EVENTS_FILE]) and not _numbered_files(path / "examined", _EXAMINED):
        notes.append(
            "examined/ holds no update, although the doctor watched this run: it was deleted, or nothing was examined"
        )


def _look_for_damage(path: Path, notes: list[str]) -> None:
    """A note for each damaged file that no note names yet, and one for all further ones of a directory. Sizes and lines
    are compared, which is cheap; `assay verify` reads every byte."""
    try:
        problems = verify(path, full=False).problems
    except RunError:
        return  # not a run, or one without its mark, of which there is a note
    by_directory: dict[str, list[FileProblem]] = {}
    for problem in problems:
        gap = problem.file.startswith("rollouts/") and problem.what == "is missing"  # noted as such
        if not gap and not any(_is_about(note, problem) for note in notes):
            by_directory.setdefault(problem.file.rpartition("/")[0] or problem.file, []).append(problem)
    for directory, same in by_directory.items():
        notes.append(str(same[0]) + (f" (and {len(same) - 1} more in {directory}/)" if len(same) > 1 else ""))
    if by_directory:
        notes.append(f"files were compared by their sizes; assay verify {path} reads every byte")


def _is_about(note: str, problem: FileProblem) -> bool:
    """Whether a note names the problem already: its line, or that lines of its file are missing or out of order."""
    file, line = re.escape(problem.file), re.match(r"line \d+", problem.what)
    if line is None:
        return re.search(rf"\b{file}\b", note) is not None
    return re.search(rf"\b{file},? {line[0]}\b|^{file} (lacks|holds|does not hold)\b", note) is not None


def spread(numbers: list[int], count: int) -> list[int]:
    """The first, the last, and as many evenly between as make up `count`.

    >>> spread(list(range(1, 101)), 5)
    [1, 26, 51, 75, 100]
    """
    places = np.unique(np.linspace(0, len(numbers) - 1, min(count, len(numbers))).round().astype(int))
    return [numbers[place] for place in places.tolist()]


def _look_at_the_mark(path: Path, notes: list[str]) -> None:
    if not path.exists():
        raise RunError(f"{path} does not exist; {_GIVE}")
    if not path.is_dir():
        raise RunError(f"{path} is a file; {_GIVE}")
    try:
        empty = not any(path.iterdir())
    except OSError as error:
        raise RunError(f"{path} cannot be read: {reason(error)}") from error
    if empty:
        raise RunError(f"{path} is empty; {_GIVE}")
    try:
        RunDirectory.open(path)
    except RunError as error:
        if "newer Assay" in str(error):
            raise
        notes.append(str(error))


def _rows(file: Path, notes: list[str]) -> tuple[dict[str, Any], ...]:
    """The lines that can be read; a note for each kind of line that cannot, and for a last one without its end."""
    try:
        *whole, rest = durable.read_file(file).split(b"\n")
    except OSError as error:
        notes.append(f"{file.name} cannot be read: {reason(error)}")
        return ()
    found, damaged, strange = [], [], []
    for number, line in enumerate(whole, start=1):
        row = _row(line)
        if row is None or (file.name in _BY_STEP and type(row.get("step")) is not int):
            damaged.append(number)
        else:
            found.append({name: value for name, value in row.items() if file.name not in _BY_STEP or _plain(value)})
            if file.name in _ONCE_A_STEP:
                strange += [(number, name) for name in row if name not in found[-1]]
    if damaged:
        more = f" and {len(damaged) - 1} more" if len(damaged) > 1 else ""
        notes.append(f"{file.name} line {damaged[0]}{more} is damaged and left out; restore it from a copy of the run")
    if strange:
        number, name = strange[0]
        more = f" (and {len(strange) - 1} more values)" if len(strange) > 1 else ""
        notes.append(f"{file.name}, line {number}: {quote(name)} is not a number and is left out{more}")
    if rest:
        notes.append(f"{file.name} line {len(whole) + 1} was cut off while it was written and is left out")
    return _once_a_step(file.name, found, notes) if file.name in _ONCE_A_STEP else tuple(found)


def _once_a_step(name: str, rows: list[dict[str, Any]], notes: list[str]) -> tuple[dict[str, Any], ...]:
    """In the order of the steps; of several lines of one step the last."""
    by_step = {row["step"]: row for row in rows}
    if len(by_step) < len(rows):
        doubled, _ = Counter(row["step"] for row in rows).most_common(1)[0]
        notes.append(
            f"{name} holds step {doubled} more than once ({len(rows)} lines of {len(by_step)} steps); the last counts"
        )
    elif [row["step"] for row in rows] != sorted(by_step):
        notes.append(f"{name} does not hold its steps in their order; they are sorted")
    return tuple(by_step[step] for step in sorted(by_step))


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _plain(value: Any) -> bool:
    """A number or none: a curve of anything else would break the checks that read it."""
    return value is None or isinstance(value, (int, float))


def _examined_batches(path: Path, notes: list[str]) -> list[Batch]:
    batches = []
    for _, file in _numbered_files(path / "examined", _EXAMINED)[-EXAMINED:]:
        try:
            batches.append(read_batch(file))
        except BatchError as error:
            notes.append(str(error))
    return batches


def _recorded_batches(
    path: Path,
    settings_at: Callable[[int], Mapping[str, Any]],
    metrics: Mapping[int, Mapping[str, Any]],
    notes: list[str],
) -> list[Batch]:
    files = {number[0]: file for number, file in _numbered_files(path / "rollouts", _ROLLOUTS)}
    whole = [step for step in files if step in metrics] or list(files)  # a metrics line comes last: the step is done
    batches, partial = [], 0
    for step in spread(whole, STEPS) if whole else ():
        try:
            rows = list(from_parquet(files[step]))
            source = f"step {step} of the recorded rollouts"
            batch = batch_of_rows(rows, settings_at(step), step=step, source=source, numbers=metrics.get(step))
        except ValueError as error:  # BatchError is one
            notes.append(str(error))
            continue
        partial += bool(batch.arrays) and "group_ids" not in batch.arrays
        batches.append(batch)
    if partial:
        notes.append(
            f"{partial} of {len(batches)} steps record only a part of each group (record.rollouts = 'extremes'), so "
            "that rewards and advantages cannot be compared within them"
        )
    return batches


def _numbered_files(directory: Path, pattern: str) -> list[tuple[tuple[int, ...], Path]]:
    """By number, not by name: step-1000000 comes after step-999999."""
    names = ((re.fullmatch(pattern, file.name), file) for file in directory.glob("*"))
    return sorted((tuple(map(int, match.groups())), file) for match, file in names if match)


def _with_eos(settings: Mapping[str, Any], batches: tuple[Batch, ...]) -> dict[str, Any]:
    """The config does not know the end tokens; a batch does."""
    known = [batch.settings["eos_ids"] for batch in batches if "eos_ids" in batch.settings]
    return {**settings, "eos_ids": tuple(known[0])} if known else dict(settings)
