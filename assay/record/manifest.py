"""The checkpoints in a run directory, by name, and whether their files are as they were written. Needs no torch.

    checkpoints/update-00000040/manifest.json     format version, name, and the size and SHA-256 of every other file

Only names that we give are ours: update- and digits, with `.replaced` behind them while a new one takes their place.
Whatever else stands in checkpoints/ belongs to the user.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from assay.machine import durable

FORMAT_VERSION = 1
MANIFEST, STATE = "manifest.json", "state.json"
REPLACED = ".replaced"  # the old one while a new one of the same name takes its place
NAME = re.compile(r"update-([0-9]+)")

Facts = Mapping[str, Any]


class Damage(Exception):
    """What is wrong with one checkpoint, without its name."""


def checkpoints(root: Path) -> list[Path]:
    """Our checkpoints, oldest first; one that is being replaced is older than the one that replaces it."""
    found = [path for path in root.glob("update-*") if NAME.fullmatch(_plain(path)) and path.is_dir()]
    return sorted(found, key=lambda path: (number_of(path), _plain(path), not path.name.endswith(REPLACED)))


def number_of(path: Path) -> int:
    match = NAME.fullmatch(_plain(path))
    assert match is not None, f"{path} is not the name of a checkpoint"
    return int(match[1])


def is_hidden(path: Path) -> bool:
    """What desktops and network file systems leave behind: .DS_Store, ._weights.safetensors, .nfs0001."""
    return path.name.startswith(".")


def write_manifest(directory: Path, name: str) -> None:
    files = {file.name: facts_of(file) for file in sorted(directory.iterdir())}
    manifest = {"format_version": FORMAT_VERSION, "name": name, "files": files}
    durable.write_file(directory / MANIFEST, to_json(manifest))


def facts_of(file: Path) -> dict[str, Any]:
    return {"bytes": file.stat().st_size, "sha256": digest(file)}


def verified_files(path: Path, *, full: bool = True) -> dict[str, Facts]:
    """The files of a checkpoint with their facts, if every one is as it was written; raises Damage. Without `full` only
    their sizes are compared."""
    try:
        files = _listed_files(read_json(path / MANIFEST), path)
        for name, facts in files.items():
            _verify(path / name, facts, full=full)
        for file in sorted(path.iterdir()):
            if file.name != MANIFEST and file.name not in files and not is_hidden(file):
                raise Damage(f"{file.name} is not in its manifest")
    except FileNotFoundError as error:
        raise Damage(f"{Path(error.filename or path).name} is missing") from error
    except OSError as error:
        raise Damage(f"{Path(error.filename or path).name} cannot be read: {error.strerror or error}") from error
    if STATE not in files:
        raise Damage(f"its manifest does not list {STATE}")
    return files


def read_json(file: Path) -> Any:
    """Raises Damage, and OSError where the file cannot be read."""
    try:
        return json.loads(durable.read_file(file))
    except (ValueError, RecursionError) as error:
        raise Damage(f"{file.name} is not JSON: {error}") from error


def to_json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, allow_nan=False, indent=1).encode("ascii") + b"\n"


def digest(file: Path) -> str:
    with open(durable.open_regular(file), "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _listed_files(manifest: Any, path: Path) -> dict[str, Facts]:
    if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict):
        raise Damage(f"{MANIFEST} lists no files")
    if manifest.get("format_version") != FORMAT_VERSION:
        version = manifest.get("format_version")
        raise Damage(f"{MANIFEST} has format version {version!r}, this Assay reads {FORMAT_VERSION}")
    if manifest.get("name") != _plain(path):
        raise Damage(f"{MANIFEST} belongs to checkpoint {manifest.get('name')!r}")
    files: dict[str, Facts] = manifest["files"]
    for file, facts in files.items():
        if Path(file).name != file or not isinstance(facts, dict) or set(facts) != {"bytes", "sha256"}:
            raise Damage(f"{MANIFEST} has a malformed entry {file!r}")
    try:
        written = to_json(manifest)
    except (ValueError, RecursionError) as error:
        raise Damage(f"{MANIFEST} is not as it was written: {error}") from error
    if durable.read_file(path / MANIFEST) != written:
        raise Damage(f"{MANIFEST} is not as it was written")
    return files


def _verify(file: Path, facts: Facts, *, full: bool) -> None:
    durable.require_regular(file)
    size = file.stat().st_size
    if size != facts["bytes"]:
        raise Damage(f"{file.name} has {size} of {facts['bytes']} bytes")
    if full and digest(file) != facts["sha256"]:
        raise Damage(f"{file.name} does not match its checksum")


def _plain(path: Path) -> str:
    return path.name.removesuffix(REPLACED)
