"""A run directory, written and read: StepRecord -> files, and the files -> rows again. Nothing here imports torch."""

from __future__ import annotations

import datetime
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.machine import durable
from assay.machine.durable import encodable
from assay.machine.secrets import redact, secrets, without_secrets
from assay.machine.user_error import UserError
from assay.record import checksums
from assay.record.metrics import metrics_row, timings_row
from assay.record.rollouts import SCHEMA_VERSION, from_parquet, rollout_rows, to_parquet
from assay.types import StepRecord

METRICS_FILE, TIMINGS_FILE = "metrics.jsonl", "timings.jsonl"
EVALUATIONS_FILE, EVENTS_FILE, FINDINGS_FILE = "evaluations.jsonl", "events.jsonl", "findings.jsonl"
_BY_STEP = (METRICS_FILE, TIMINGS_FILE, EVALUATIONS_FILE)
LINES_FILES = (*_BY_STEP, EVENTS_FILE, FINDINGS_FILE)
_DIRECTORIES = ("rollouts", "checkpoints", "dumps")
_MARK = "run.json"  # written last: a directory without it was never finished
_ASIDES = rf"(config\.toml|[a-z-]+\.jsonl?|{durable.ASIDE_DIRECTORY})"  # what a killed writer may leave, behind .tmp-
UPDATE_FILE = r"step-[0-9]{6,}-update-[0-9]+\.safetensors"  # in examined/ and dumps/
_ROLLOUTS = r"step-([0-9]{6,})\.parquet"


class RunError(UserError):
    """A run directory that cannot be written or read. The message is one sentence with the file and the fix."""


@dataclass(frozen=True, slots=True)
class RecordedRows:
    """The whole lines of a .jsonl file. `torn` describes a last line that was cut off while being written, if any."""

    rows: tuple[dict[str, Any], ...]
    torn: str


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """An existing run directory. Use `create` or `open`; one process writes at a time."""

    path: Path

    @classmethod
    def create(
        cls, path: Path, config_toml: str, environment: Mapping[str, Any], marks: Mapping[str, str] | None = None
    ) -> RunDirectory:
        """A new run directory at a path that is missing or empty. A refusal leaves the path as it was. `marks` stand in
        run.json."""
        missing = check_new_run(path, config_toml)
        mark = {"schema_version": SCHEMA_VERSION, "created": _now(), **(marks or {})}
        covered = {
            "config.toml": encodable(config_toml).encode(),
            "environment.json": json_bytes(environment, indent=2),
            _MARK: json_bytes(mark, indent=2),
        }
        contents = {
            **dict.fromkeys((*_BY_STEP, EVENTS_FILE), b""),
            checksums.FILE: checksums.first_lines(covered),
            **covered,
        }
        try:
            path.mkdir(parents=True, exist_ok=True)
            for name in _DIRECTORIES:
                (path / name).mkdir()
            for name, data in contents.items():
                durable.write_file(path / name, data)
            durable.sync_directory(path)
            durable.sync_directory(path.parent)
        except OSError as error:
            _undo_creation(path, contents, missing)
            raise RunError(f"the run directory {path} cannot be created: {durable.reason(error)}") from error
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        mark = path / _MARK
        try:
            facts = json.loads(durable.read_file(mark).decode("utf-8"))
        except FileNotFoundError:
            what = "does not exist" if not path.exists() else f"is not a run directory: it holds no {_MARK}"
            raise RunError(f"{path} {what}; give the directory that 'assay train' wrote") from None
        except NotADirectoryError:
            raise RunError(f"{path} is a file; give the directory that 'assay train' wrote") from None
        except OSError as error:
            raise RunError(f"{mark} cannot be read: {error.strerror}") from error
        except (ValueError, RecursionError) as error:
            raise RunError(f"{mark} is damaged: {error}; restore it from a copy of the run") from error
        version = facts.get("schema_version") if isinstance(facts, dict) else None
        if type(version) is not int or version < 1:
            raise RunError(f"{mark} is damaged: it holds no schema_version; restore it from a copy of the run")
        if version > SCHEMA_VERSION:
            raise RunError(
                f"{path} has schema version {version}, this Assay reads up to {SCHEMA_VERSION}; use the newer Assay"
            )
        return cls(path)

    def append_step(self, record: StepRecord, keep: str = "all", extremes: int = 2) -> None:
        """Writes one step; keep = all | extremes | none of its rollouts. The metrics line comes last: a step that has
        one is complete."""
        if keep != "none":
            self.replace_file(
                f"rollouts/step-{record.step:06d}.parquet",
                to_parquet(rollout_rows(record, keep=keep, extremes=extremes)),
            )
        self._append(TIMINGS_FILE, timings_row(record))
        self._append(METRICS_FILE, metrics_row(record))

    def append_evaluation(self, row: Mapping[str, Any]) -> None:
        """A held-out evaluation; `row` has the step after which it was made, and only facts equal runs share."""
        if type(row.get("step")) is not int:
            raise ValueError("an evaluation needs its step, a whole number: a resumed run rewinds by it")
        self._append(EVALUATIONS_FILE, row)

    def append_event(self, kind: str, **facts: Any) -> None:
        """Something that happened now. Events are history: a resumed run does not rewind them."""
        self._append(EVENTS_FILE, {"time": _now(), "kind": kind, **facts})
        with writing(self.path / checksums.FILE):
            checksums.sync(self.path)  # an event ends what was done: a checkpoint, a run

    def append_finding(self, row: Mapping[str, Any]) -> None:
        """What the doctor found now. Findings are history too; a run of an older Assay has no file for them yet."""
        path = self.path / FINDINGS_FILE
        if not path.exists():
            with writing(path):
                durable.replace_file(path, b"")
        self._append(FINDINGS_FILE, {"time": _now(), **row})

    def replace_file(self, name: str, data: bytes) -> None:
        """Writes a whole file of the run, covered by a checksum."""
        with writing(self.path / name):
            (self.path / name).parent.mkdir(exist_ok=True)
            checksums.replace_file(self.path, name, data)

    def rewind(self, step: int) -> None:
        """Forgets all steps after this one, and whatever a killed writer left torn. Safe to kill and to repeat."""
        with writing(self.path):
            durable.remove_asides(self.path, _ASIDES)
            durable.remove_asides(self.path / "rollouts", _ROLLOUTS)
        kept: dict[str, bytes] = {}
        changed = []
        for name in (*_BY_STEP, EVENTS_FILE):
            lines, torn = _read_lines(self.path / name)
            wanted = [line for line, row in lines if name == EVENTS_FILE or row["step"] <= step]
            kept[name] = b"".join(wanted)
            if torn or len(wanted) < len(lines):
                changed.append(name)
        with writing(self.path / checksums.FILE):
            checksums.begin(self.path)
            checksums.note_rewind(self.path, step, {name: len(kept[name]) for name in _BY_STEP})
        for number, path in rollout_files(self.path):
            if number > step:
                with writing(path):
                    path.unlink()
        for name in changed:
            with writing(self.path / name):
                durable.replace_file(self.path / name, kept[name])
        if (self.path / FINDINGS_FILE).exists():
            with writing(self.path / FINDINGS_FILE):
                durable.append_line(self.path / FINDINGS_FILE, b"")  # cuts a torn last line off

    def _append(self, name: str, row: Mapping[str, Any]) -> None:
        step = row["step"] if name in _BY_STEP else None
        with writing(self.path / name):
            checksums.append_line(self.path, name, json_bytes(row), step)


def read_metrics(path: Path) -> RecordedRows:
    return _read_rows(path, METRICS_FILE)


def read_timings(path: Path) -> RecordedRows:
    return _read_rows(path, TIMINGS_FILE)


def read_evaluations(path: Path) -> RecordedRows:
    return _read_rows(path, EVALUATIONS_FILE)


def read_events(path: Path) -> RecordedRows:
    return _read_rows(path, EVENTS_FILE)


def read_findings(path: Path) -> RecordedRows:
    """None at all where no doctor watched."""
    return _read_rows(path, FINDINGS_FILE) if (path / FINDINGS_FILE).exists() else RecordedRows((), "")


def read_rollouts(path: Path, step: int | None = None) -> Iterator[dict[str, Any]]:
    """The recorded rollouts of a run, or of one of its steps, in order: one dict a row, its keys those of COLUMNS."""
    files = rollout_files(RunDirectory.open(path).path)
    if step is not None:
        files = [(number, file) for number, file in files if number == step]
        if not files:
            raise RunError(f"{path} holds no rollouts of step {step}; record.rollouts = 'none' records none")
    return _read_rollout_files([file for _, file in files])


def recorded_steps(path: Path) -> list[int]:
    """The steps whose rollouts are in a run directory, in order."""
    return [step for step, _ in rollout_files(path)]


def _read_rollout_files(files: list[Path]) -> Iterator[dict[str, Any]]:
    for file in files:
        try:
            yield from from_parquet(file)
        except ValueError as error:
            raise RunError(str(error)) from error


def rollout_files(path: Path) -> list[tuple[int, Path]]:
    """By number, not by name: step-1000000 comes after step-999999."""
    names = ((re.fullmatch(_ROLLOUTS, file.name), file) for file in (path / "rollouts").glob("*"))
    return sorted((int(match[1]), file) for match, file in names if match)


def _read_rows(path: Path, name: str) -> RecordedRows:
    lines, torn = _read_lines(RunDirectory.open(path).path / name)
    return RecordedRows(tuple(row for _, row in lines), torn)


def _read_lines(path: Path) -> tuple[list[tuple[bytes, dict[str, Any]]], str]:
    """The whole lines with what they hold, and a sentence on a torn last one."""
    try:
        *whole, rest = durable.read_file(path).split(b"\n")
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}; restore it from a copy of the run") from error
    lines = []
    for number, line in enumerate(whole, start=1):
        try:
            row = json.loads(line.decode("utf-8"), parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            raise RunError(f"{path} line {number} is damaged: {error}; restore it from a copy of the run") from error
        if not isinstance(row, dict) or (path.name in _BY_STEP and type(row.get("step")) is not int):
            raise RunError(f"{path} line {number} is damaged: it is not a row with a step; restore it from a copy")
        lines.append((line + b"\n", row))
    torn = f"{path} line {len(whole) + 1} was cut off while it was written and is left out" if rest else ""
    return lines, torn


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def json_bytes(value: Mapping[str, Any], indent: int | None = None) -> bytes:
    """One line of JSON, or an indented document. Keys keep their order."""
    return json.dumps(_recordable(value), allow_nan=False, indent=indent).encode("ascii") + b"\n"


def _recordable(value: Any) -> Any:
    """The same value with no secret, no lone surrogate, and null in the place of a number that is not finite."""
    if isinstance(value, str):
        return encodable(without_secrets(value))
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {_recordable(key): _recordable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_recordable(item) for item in value]
    return value


@contextmanager
def writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunError(
            f"{path} could not be written: {durable.reason(error)}; what was recorded before is intact"
        ) from error


def refuse_unwritable_name(path: Path) -> None:
    """Libraries that write below a path may take text only for its name: said before the training, not after it."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise RunError(f"{path} is a name of bytes that are not UTF-8; choose another name") from None


def check_new_run(path: Path, config_toml: str) -> list[Path]:
    """Refuses a config that holds a secret, and a path at which there is something. Returns the directories that must
    be made for `path` to exist, outermost last."""
    for name, value in secrets().items():
        if redact(config_toml, {name: value}) != config_toml:
            raise RunError(
                f"the config holds the value of the environment variable {name}, and secrets are never recorded; "
                "take it out of the config and let the code that needs it read the variable"
            )
    try:
        if path.is_dir():
            hidden_files_aside = (place for place in path.iterdir() if not place.name.startswith(".") or place.is_dir())
            if any(hidden_files_aside):
                other = "resume the run in it" if (path / _MARK).exists() else "empty it, it holds no run"
                raise RunError(f"{path} is not empty; choose another directory with --out, or {other}")
        elif os.path.lexists(path):
            raise RunError(f"{path} is a file; choose another directory with --out")
        return [place for place in (path, *path.parents) if not os.path.lexists(place)]
    except OSError as error:
        raise RunError(f"the run directory {path} cannot be created: {durable.reason(error)}") from error


def _undo_creation(path: Path, files: Iterable[str], missing: Iterable[Path]) -> None:
    # the directory was empty: whatever carries our names is ours
    for name in files:
        with suppress(OSError):
            (path / name).unlink()
    for place in (*(path / name for name in _DIRECTORIES), *missing):
        with suppress(OSError):
            place.rmdir()


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
