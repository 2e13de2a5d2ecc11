"""Checkpoints that are whole or absent: tensors + state -> a directory, and the newest whole directory -> both.

    checkpoints/update-00000040/
      model.safetensors  optimizer.safetensors ...   one file for each entry of `tensors`
      state.json                                     counters, cursors, random states
      manifest.json                                  format version, and the size and SHA-256 of every file

A checkpoint is written under a name that starts with `.tmp-`, synced, and renamed. One that is being replaced or
pruned is renamed before it is touched. So a kill at any moment leaves, under a checkpoint's name, all of it or none.
Nothing is pickled: reading a checkpoint cannot run code.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from assay import durable

FORMAT_VERSION = 1

_MANIFEST, _STATE = "manifest.json", "state.json"
_REPLACED = ".replaced"  # the old one while a new one of the same name takes its place
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


class CheckpointError(Exception):
    """A checkpoint that cannot be written or read. The message is one sentence with the file and what survives."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    path: Path
    tensors: Mapping[str, Mapping[str, Tensor]]
    state: Mapping[str, Any]


class _Damage(Exception):
    """What is wrong with one checkpoint, without its name."""


def save(
    root: Path, name: str, tensors: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any], keep: int
) -> Path:
    """Writes checkpoint `name`, then removes older ones until `keep` are left. Names sort by age: pad their numbers."""
    if keep < 1:
        raise ValueError(f"keep = {keep}: at least the checkpoint just written must be kept")
    for part in (name, *tensors):
        if not _NAME.fullmatch(part):
            raise ValueError(f"{part!r} is no file name: use letters, digits, '-' and '_'")
    _refuse_unfaithful("state", state)
    temporary = root / f"{durable.ASIDE}{uuid.uuid4().hex}"
    try:
        root.mkdir(parents=True, exist_ok=True)
        _write(temporary, name, tensors, state)
        _publish(temporary, root / name)
    except (OSError, SafetensorError) as error:
        why = durable.reason(error) if isinstance(error, OSError) else f"{error}; is the disk full?"
        raise CheckpointError(f"checkpoint {name} was not written: {why}; {_survivor(root)}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)  # renamed by now, unless something failed
    _prune(root, name, keep)
    return root / name


def load(root: Path, name: str) -> Checkpoint:
    """One checkpoint by name, verified."""
    try:
        return _load(root / name)
    except _Damage as damage:
        raise CheckpointError(f"checkpoint {name} is damaged: {damage}; choose another one") from damage


def load_latest(root: Path, report: Callable[[str], None]) -> Checkpoint:
    """The newest whole checkpoint. Each damaged one that is passed over is told to `report` in a sentence."""
    problems = []
    for path in reversed(_checkpoints(root)):
        try:
            checkpoint = _load(path)
        except _Damage as damage:
            problems.append(f"checkpoint {path.name} is damaged: {damage}")
            continue
        for problem in problems:
            report(f"{problem}; using {path.name} instead")
        return checkpoint
    if problems:
        raise CheckpointError(f"{root} holds no whole checkpoint: {'; '.join(problems)}; start the run anew")
    raise CheckpointError(f"{root} holds no checkpoint; start the run anew")


def remove_leftovers(root: Path) -> None:
    """Removes what a killed save left unfinished. Call it before the run writes again, never while it writes."""
    for path in _checkpoints(root):
        if path.name.endswith(_REPLACED) and path.with_name(path.name.removesuffix(_REPLACED)).exists():
            _remove(path)
    durable.remove_asides(root)


# ---------------------------------------------------------------- writing


def _write(directory: Path, name: str, tensors: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any]) -> None:
    directory.mkdir()
    for key, group in tensors.items():
        file = directory / f"{key}.safetensors"
        distinct, aliases = _distinct(group)
        save_file(distinct, file, metadata={"aliases": json.dumps(aliases)})
        durable.sync_file(file)
    durable.write_file(directory / _STATE, _json(state))
    files = {file.name: {"bytes": file.stat().st_size, "sha256": _digest(file)} for file in sorted(directory.iterdir())}
    durable.write_file(directory / _MANIFEST, _json({"format_version": FORMAT_VERSION, "name": name, "files": files}))
    durable.sync_directory(directory)


def _publish(temporary: Path, target: Path) -> None:
    replaced = target.with_name(target.name + _REPLACED)
    if target.exists():
        # a directory cannot be renamed over a full one; in between, the old one stays loadable under its other name
        if replaced.exists():
            _remove(replaced)
        os.rename(target, replaced)
    os.rename(temporary, target)
    durable.sync_directory(target.parent)


def _prune(root: Path, name: str, keep: int) -> None:
    # what sorts after `name` is a damaged checkpoint that a resumed run passed over: it does not count, and it stays
    # until the run writes it again
    older = [path for path in _checkpoints(root) if path.name.removesuffix(_REPLACED) < name]
    condemned = older[: max(len(older) - (keep - 1), 0)]
    if (root / (name + _REPLACED)).exists():
        condemned.append(root / (name + _REPLACED))
    for path in condemned:
        try:
            _remove(path)
        except OSError as error:
            raise CheckpointError(
                f"checkpoint {name} is written, but the older {path.name} could not be removed: {durable.reason(error)}"
            ) from error


def _remove(path: Path) -> None:
    trash = path.with_name(f"{durable.ASIDE}trash-{uuid.uuid4().hex}")
    os.rename(path, trash)
    shutil.rmtree(trash)


def _distinct(group: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Each tensor once, contiguous and in storage of its own, and which further names stand for it (tied weights)."""
    distinct: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    first_name: dict[tuple[Any, ...], str] = {}
    storages: set[int] = set()
    for name, tensor in group.items():
        storage = tensor.untyped_storage().data_ptr()
        view = (tensor.device, storage, tensor.storage_offset(), tensor.dtype, tensor.shape, tensor.stride())
        if tensor.numel() and view in first_name:
            aliases[name] = first_name[view]
            continue
        first_name[view] = name
        plain = tensor.detach().cpu().contiguous()
        # safetensors refuses overlapping tensors: a different view of the same numbers is saved as a copy
        distinct[name] = plain.clone() if storage in storages else plain
        storages.add(storage)
    return distinct, aliases


def _refuse_unfaithful(place: str, value: Any) -> None:
    """JSON changes some values without a word (a tuple, a key that is no text) and knows no NaN: name the culprit."""
    if isinstance(value, float) and not math.isfinite(value):
        raise CheckpointError(f"{place} is {value}: a checkpoint holds finite numbers only")
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                raise CheckpointError(f"{place} has the key {key!r}, which would come back as text; use text keys")
            _refuse_unfaithful(f"{place}.{key}", item)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _refuse_unfaithful(f"{place}[{index}]", item)
    elif not isinstance(value, str | int | float | None):
        raise CheckpointError(
            f"{place} is a {type(value).__name__}, which would not come back as it is; "
            "use lists, mappings, text and numbers, and pass tensors as tensors"
        )


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, allow_nan=False, indent=1).encode("ascii") + b"\n"


def _survivor(root: Path) -> str:
    checkpoints = _checkpoints(root)
    return f"{checkpoints[-1].name} is still there" if checkpoints else "there is no older one"


# ---------------------------------------------------------------- reading


def _checkpoints(root: Path) -> list[Path]:
    """Oldest first; one that is being replaced is older than the one that replaces it."""
    found = [path for path in root.glob("*") if path.is_dir() and not path.name.startswith(".")]
    return sorted(found, key=lambda path: (path.name.removesuffix(_REPLACED), not path.name.endswith(_REPLACED)))


def _load(path: Path) -> Checkpoint:
    """Verifies every byte, then reads. Raises _Damage."""
    try:
        files = _listed_files((path / _MANIFEST).read_bytes(), path.name.removesuffix(_REPLACED))
        for name, facts in files.items():
            _verify(path / name, facts)
        for file in sorted(path.iterdir()):
            if file.name != _MANIFEST and file.name not in files:
                raise _Damage(f"{file.name} is not in its manifest")
        if _STATE not in files:
            raise _Damage(f"its manifest does not list {_STATE}")
        state = json.loads((path / _STATE).read_bytes())
        tensors = {name.removesuffix(".safetensors"): _read_tensors(path / name) for name in files if name != _STATE}
    except FileNotFoundError as error:
        raise _Damage(f"{Path(error.filename or path).name} is missing") from error
    except OSError as error:
        raise _Damage(f"{Path(error.filename or path).name} cannot be read: {error.strerror}") from error
    except SafetensorError as error:
        raise _Damage(f"a tensor file cannot be read: {error}") from error
    except ValueError as error:
        raise _Damage(f"{_MANIFEST} is not JSON: {error}") from error
    return Checkpoint(path, tensors, state)


def _listed_files(data: bytes, name: str) -> dict[str, dict[str, Any]]:
    manifest = json.loads(data)
    if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict):
        raise _Damage(f"{_MANIFEST} lists no files")
    if manifest.get("format_version") != FORMAT_VERSION:
        version = manifest.get("format_version")
        raise _Damage(f"{_MANIFEST} has format version {version!r}, this Assay reads {FORMAT_VERSION}")
    if manifest.get("name") != name:
        raise _Damage(f"{_MANIFEST} belongs to checkpoint {manifest.get('name')!r}")
    files: dict[str, dict[str, Any]] = manifest["files"]
    for file, facts in files.items():
        if Path(file).name != file or not isinstance(facts, dict) or set(facts) != {"bytes", "sha256"}:
            raise _Damage(f"{_MANIFEST} has a malformed entry {file!r}")
    if data != _json(manifest):
        raise _Damage(f"{_MANIFEST} is not as it was written")
    return files


def _verify(file: Path, facts: Mapping[str, Any]) -> None:
    size = file.stat().st_size
    if size != facts["bytes"]:
        raise _Damage(f"{file.name} has {size} of {facts['bytes']} bytes")
    if _digest(file) != facts["sha256"]:
        raise _Damage(f"{file.name} does not match its checksum")


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _read_tensors(file: Path) -> dict[str, Tensor]:
    with safe_open(file, framework="pt") as stored:
        tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118, not a mapping
        aliases: dict[str, str] = json.loads(stored.metadata()["aliases"])
    return tensors | {alias: tensors[name] for alias, name in aliases.items()}
