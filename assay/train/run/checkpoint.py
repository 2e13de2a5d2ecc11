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

import json
import math
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from assay.machine import durable
from assay.record import manifest
from assay.record.manifest import REPLACED, STATE, Damage, checkpoints, number_of

_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")  # of the name of a tensor file


Kinds = Mapping[str, type | UnionType]


class CheckpointError(Exception):
    """A checkpoint that cannot be written or read. The message is one sentence with the file and what survives."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    path: Path
    tensors: Mapping[str, Mapping[str, Tensor]]
    state: Mapping[str, Any]


def save(
    root: Path, name: str, tensors: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any], keep: int
) -> Path:
    """Writes checkpoint `name`, update- and a number, then removes older ones until `keep` are left."""
    if keep < 1:
        raise ValueError(f"keep = {keep}: at least the checkpoint just written must be kept")
    if not manifest.NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not the name of a checkpoint: use update- and a number")
    for part in tensors:
        if not _PART.fullmatch(part):
            raise ValueError(f"{part!r} is not a file name: use letters, digits, '-' and '_'")
    _refuse_unfaithful("state", state)
    temporary = durable.new_aside(root / name)
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


def load(root: Path, name: str, kinds: Kinds | None = None) -> Checkpoint:
    """One checkpoint by name, verified. `kinds` says what its state must hold, as name -> type."""
    try:
        return _load(root / name, kinds or {})
    except Damage as damage:
        raise CheckpointError(f"checkpoint {name} is damaged: {damage}; choose another one") from damage


def load_latest(root: Path, report: Callable[[str], None], kinds: Kinds | None = None) -> Checkpoint:
    """The newest whole checkpoint. Calls `report` with one sentence for each damaged one that is passed over."""
    problems = []
    for path in reversed(checkpoints(root)):
        try:
            checkpoint = _load(path, kinds or {})
        except Damage as damage:
            problems.append(f"checkpoint {path.name} is damaged: {damage}")
            continue
        for problem in problems:
            report(f"{problem}; using {path.name} instead")
        return checkpoint
    if problems:
        raise CheckpointError(f"{root} holds no whole checkpoint: {'; '.join(problems)}; start a new run")
    raise CheckpointError(f"{root} holds no checkpoint; start a new run")


def remove_leftovers(root: Path) -> None:
    """Removes what a killed save left unfinished. Call it before the run writes again, never while it writes."""
    for path in checkpoints(root):
        if path.name.endswith(REPLACED) and path.with_name(path.name.removesuffix(REPLACED)).exists():
            durable.remove_directory(path)
    durable.remove_asides(root, durable.ASIDE_DIRECTORY)


# ---------------------------------------------------------------- writing


def _write(directory: Path, name: str, tensors: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any]) -> None:
    directory.mkdir()
    for key, group in tensors.items():
        file = directory / f"{key}.safetensors"
        distinct, aliases = _distinct(group)
        save_file(distinct, file, metadata={"aliases": json.dumps(aliases)})
        durable.sync_file(file)
    durable.write_file(directory / STATE, manifest.to_json(state))
    manifest.write_manifest(directory, name)
    durable.sync_directory(directory)


def _publish(temporary: Path, target: Path) -> None:
    replaced = target.with_name(target.name + REPLACED)
    if os.path.lexists(target):
        # a directory cannot be renamed over a full one; in between, the old one stays loadable under its other name
        if os.path.lexists(replaced):
            durable.remove_directory(replaced)
        os.rename(target, replaced)
    os.rename(temporary, target)
    durable.sync_directory(target.parent)


def _prune(root: Path, name: str, keep: int) -> None:
    # a larger number is a damaged checkpoint that a resumed run passed over: it does not count, and it stays until the
    # run writes it again
    older = [path for path in checkpoints(root) if number_of(path) < number_of(root / name)]
    condemned = older[: max(len(older) - (keep - 1), 0)]
    if os.path.lexists(root / (name + REPLACED)):
        condemned.append(root / (name + REPLACED))
    for path in condemned:
        try:
            durable.remove_directory(path)
        except OSError as error:
            raise CheckpointError(
                f"checkpoint {name} is written, but the older {path.name} could not be removed: {durable.reason(error)}"
            ) from error


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
    """Refuses values that JSON would change silently (a tuple, a key that is not text) or does not have (NaN)."""
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


def _survivor(root: Path) -> str:
    left = checkpoints(root)
    return f"{left[-1].name} is still there" if left else "there is no older one"


# ---------------------------------------------------------------- reading


def _load(path: Path, kinds: Kinds) -> Checkpoint:
    """Verifies every byte, then reads. Raises Damage."""
    files = manifest.verified_files(path)
    try:
        state = manifest.read_json(path / STATE)
        if not isinstance(state, dict):
            raise Damage(f"{STATE} does not hold an object")
        for name, kind in kinds.items():
            if not isinstance(state.get(name), kind):
                raise Damage(f"{STATE} has no {name!r} as a run writes it")
        tensors = {name.removesuffix(".safetensors"): _read_tensors(path / name) for name in files if name != STATE}
    except OSError as error:
        raise Damage(f"{Path(error.filename or path).name} cannot be read: {error.strerror or error}") from error
    except SafetensorError as error:
        raise Damage(f"a tensor file cannot be read: {error}") from error
    return Checkpoint(path, tensors, state)


def _read_tensors(file: Path) -> dict[str, Tensor]:
    with safe_open(file, framework="pt") as stored:
        tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118, not a mapping
        metadata = stored.metadata() or {}
    try:
        aliases: dict[str, str] = json.loads(metadata["aliases"])
        return tensors | {alias: tensors[name] for alias, name in aliases.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Damage(f"{file.name} does not say which names share a tensor") from error
