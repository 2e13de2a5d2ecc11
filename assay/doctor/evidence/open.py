"""A path --> Evidence: a run directory, a batch file, the dump of a refused update, a script, another trainer's log."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from assay.doctor.evidence import Batch, Evidence
from assay.doctor.evidence.logs import KINDS, holds_logs, read_file, read_folder
from assay.doctor.evidence.run_directory import read_run, run_settings
from assay.machine.durable import reason_unread
from assay.programs.read.script import read_program
from assay.programs.read.text import SUFFIXES, scripts_in
from assay.record.batch import Array, BatchError
from assay.record.batch_file import read_batch

_SUPPORTED = (
    f"give a run directory of 'assay train', a script, a batch as a .safetensors file (docs/batch-file.md), {KINDS}"
)
_OURS = ("run.json", "events.jsonl", "timings.jsonl", "examined", "config.toml")  # one of them: a run of 'assay train'
ATTACHED = "assay"  # the folder in another trainer's output directory
_DUMPED = {  # of one micro-batch, as the learner names its tensors
    "targets_BT": "tokens",
    "mask_BT": "mask",
    "sampler_BT": "sampler_logprobs",
    "advantages_BT": "advantages",
    "old_BT": "old_logprobs",
    "ref_BT": "ref_logprobs",
}


def open_evidence(path: Path) -> Evidence:
    """Raises RunError, BatchError or SourceError with one sentence where there is nothing that can be read."""
    try:
        return _open(path)
    except OSError as error:
        raise BatchError(f"{path} could not be read: {reason_unread(error)}") from error


def _open(path: Path) -> Evidence:
    if path.is_dir():
        return _open_directory(path)
    if not path.exists():
        if path.is_symlink():
            raise BatchError(f"{path} is a link that leads nowhere; remove it or give the file it should lead to")
        raise BatchError(f"{path} does not exist; {_SUPPORTED}")
    if not path.is_file():
        raise BatchError(f"{path} is a pipe or a device, which can be read once only; write it to a file first")
    if path.suffix in SUFFIXES:
        program = read_program(path)
        return Evidence(programs=(program,), notes=program.notes)
    return _open_batch(path) if path.suffix == ".safetensors" else read_file(path)


def input_paths(path: Path) -> list[Path]:
    """The path itself; or every script in a directory that is not a run, after the directory if it holds logs too."""
    try:
        if not path.is_dir() or any((path / name).exists() for name in _OURS[:-1]):
            return [path]
        scripts = list(scripts_in(path))  # a config.toml beside scripts is that of a project
        return [path, *scripts] if not scripts or holds_logs(path) or _has_attached(path) else scripts
    except OSError as error:
        raise BatchError(f"{path} could not be read: {reason_unread(error)}") from error


def _open_directory(path: Path) -> Evidence:
    if any((path / name).exists() for name in _OURS):
        return read_run(path)
    found = read_folder(path)
    if not _has_attached(path):
        # read_run reads a run without its usual files, or raises an error that names what is missing
        return read_run(path) if found is None else found
    where = f"what the attached doctor recorded is in {path / ATTACHED}"
    if found is None:
        raise BatchError(f"{path} is the output directory of a trainer; {where}: give that directory")
    return replace(found, notes=(*found.notes, f"{where}: ask about that directory too"))


def _has_attached(path: Path) -> bool:
    return (path / ATTACHED / "run.json").is_file()


def _open_batch(path: Path) -> Evidence:
    parts = _dumped_parts(path)
    if parts is None:
        return Evidence((read_batch(path),))
    notes: list[str] = []
    return Evidence((_batch_of_dump(path, parts, notes),), notes=tuple(notes))


def _dumped_parts(path: Path) -> list[dict[str, Array]] | None:
    """The micro-batches of a dump; None if the file is not one."""
    from safetensors import SafetensorError, safe_open

    parts: dict[int, dict[str, Array]] = {}
    try:
        with safe_open(path, framework="numpy") as file:
            names = [(re.fullmatch(r"(\d+)\.(\w+_[A-Z]+)", name), name) for name in file.keys()]  # noqa: SIM118
            if not all(match for match, _ in names) or not names:
                return None
            for match, name in names:
                if match and match[2] in _DUMPED:
                    parts.setdefault(int(match[1]), {})[_DUMPED[match[2]]] = file.get_tensor(name)
    except OSError as error:
        raise BatchError(f"{path} could not be read: {reason_unread(error)}") from error
    except (SafetensorError, ValueError) as error:
        raise BatchError(f"{path} is damaged or no safetensors file: {str(error).splitlines()[0]}") from error
    return [parts[number] for number in sorted(parts)]


def _batch_of_dump(path: Path, parts: list[dict[str, Array]], notes: list[str]) -> Batch:
    shared = set.intersection(*(set(part) for part in parts)) if parts else set()
    if not {"tokens", "mask"} <= shared:
        raise BatchError(f"{path} is not a whole dump: a part of it holds no targets_BT or mask_BT; {_SUPPORTED}")
    width = max(part["tokens"].shape[-1] for part in parts)
    values: dict[str, object]
    values = {name: np.concatenate([_widen(part, name, width) for part in parts]) for name in shared}
    match = re.fullmatch(r"step-(\d+)-update-(\d+)", path.stem)
    if match:
        values |= {"step": int(match[1]), "update": int(match[2]) - 1}
    run = path.parent.parent
    settings: Mapping[str, object] = run_settings(run, notes) if (run / "config.toml").exists() else {}
    try:
        return Batch.of({**settings, **values}, source=path.name)
    except BatchError as error:
        raise BatchError(f"{path}: {error}") from error


def _widen(part: Mapping[str, Array], name: str, width: int) -> Array:
    array = part[name]
    return np.pad(array, ((0, 0), (0, width - array.shape[1])))
