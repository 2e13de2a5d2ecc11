"""Model directories that are made once and kept in a cache: the embedded model, unpacked GGUF files."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

CHECKSUMS = "checksums.json"


def make_once(name: str, make: Callable[[Path], None]) -> Path:
    """The cached directory `name`; `make` fills it if it is missing or damaged."""
    target = cache_root() / name
    if _is_whole(target):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=".making-", dir=target.parent))
    try:
        make(aside)
        (aside / CHECKSUMS).write_text(json.dumps(_checksums(aside)))
        if target.exists() and not _is_whole(target):
            shutil.rmtree(target)
        try:
            aside.rename(target)
        except OSError:  # another run has made the same directory in the meantime
            if not _is_whole(target):
                raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return target


def _checksums(directory: Path) -> dict[str, str]:
    sums = {}
    for file in sorted(directory.iterdir()):
        if file.name != CHECKSUMS and not file.name.startswith("."):  # a desktop's .DS_Store is not the model's
            with file.open("rb") as stream:
                sums[file.name] = hashlib.file_digest(stream, "sha256").hexdigest()
    return sums


def _is_whole(directory: Path) -> bool:
    try:
        return bool(json.loads((directory / CHECKSUMS).read_text()) == _checksums(directory))
    except (OSError, ValueError, RecursionError):
        return False


def cache_root() -> Path:
    """Where they are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "assay"
