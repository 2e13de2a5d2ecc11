"""The working copy of a project: what a script needs to run, without large files, caches and histories."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from assay.rehearsal.newer_syntax import as_older_python

LARGEST_FILE = 32 * 2**20
LARGEST_WEIGHTS = 4 * 2**20
MOST_BYTES = 400 * 2**20
MOST_FILES = 20_000
MOST_FOLDERS = 5_000
MARKS = (".git", "pyproject.toml", "setup.py", "setup.cfg", "requirements.txt", "environment.yml", "uv.lock")
SIGNS = ("README.md", "README.rst", "README", "readme.md", "LICENSE", ".gitignore", "Makefile")  # weaker ones

_LEFT_OUT = frozenset(
    ".git .hg .svn .venv venv env node_modules __pycache__ .mypy_cache .pytest_cache .ruff_cache .ipynb_checkpoints "
    "wandb mlruns .tox .eggs site-packages".split()
)
_WEIGHTS = (
    ".bin",
    ".safetensors",
    ".pt",
    ".pth",
    ".ckpt",
    ".gguf",
    ".onnx",
    ".npy",
    ".npz",
    ".h5",
    ".tar",
    ".gz",
    ".zip",
)


def project_of(script: Path) -> Path:
    """The nearest folder above the script that a repository or a package begins in; else that of the script."""
    whole = script.resolve()
    home = Path.home()
    for folder in whole.parents:
        if folder == home or folder == folder.parent:
            break
        if any((folder / mark).exists() for mark in MARKS):
            return _outer(folder, whole)
    signed = [
        folder
        for folder in whole.parents[:4]
        if folder not in (home, *home.parents) and any((folder / sign).exists() for sign in SIGNS)
    ]
    return signed[-1] if signed else _above_package(whole.parent)


def _outer(folder: Path, script: Path) -> Path:
    """A requirements.txt may lie beside one of several scripts of a repository."""
    for above in folder.parents:
        if above == Path.home() or above == above.parent:
            break
        if (above / ".git").exists():
            return above
    return _above_package(folder)


def _above_package(folder: Path) -> Path:
    while (folder / "__init__.py").exists() and folder.parent != folder:
        folder = folder.parent
    return folder


def entries_of(project: Path, script: Path) -> Iterator[os.DirEntry[str]]:
    """Files and folders of the project, the nearest to its top first, of at most MOST_FOLDERS folders.

    Links to files are followed, links to folders are not. Where a script lies loose in a home, in a temporary folder or
    at the top of a file system, its project is what lies beside it and the folders that its text names.
    """
    is_loose = project in (Path.home(), *Path.home().parents, Path(tempfile.gettempdir()).resolve())
    named = set(re.findall(r"\w+", script.read_text(encoding="utf-8", errors="replace"))) if is_loose else set()
    waiting = deque([project])
    for _ in range(MOST_FOLDERS):
        if not waiting:
            return
        folder = waiting.popleft()
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError:  # it may not be read
            continue
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                is_meant = not is_loose or folder != project or entry.name in named
                if is_meant and entry.name not in _LEFT_OUT and not (Path(entry.path) / "pyvenv.cfg").exists():
                    waiting.append(Path(entry.path))
                    yield entry
            elif _is_file(entry):
                yield entry


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file() and os.access(entry.path, os.R_OK)
    except OSError:  # a link that leads round in a circle
        return False


def copy_project(project: Path, target: Path, script: Path, entry_point: Path) -> None:
    """The nearest files first, until the limits are reached; the script and its entry point are always copied."""
    used = count = 0
    target.mkdir(parents=True)
    for entry in entries_of(project, script):
        inside = target / Path(entry.path).relative_to(project)
        if entry.is_dir(follow_symlinks=False):
            inside.mkdir()
            continue
        size = entry.stat().st_size
        most = LARGEST_WEIGHTS if entry.name.lower().endswith(_WEIGHTS) else LARGEST_FILE
        if size <= most and used + size <= MOST_BYTES:
            used, count = used + size, count + 1
            _copy(Path(entry.path), inside)
        if count >= MOST_FILES:
            break
    for file in (script.resolve(), entry_point):
        if not (target / file.relative_to(project)).exists():
            _copy(file, target / file.relative_to(project))


def _copy(file: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        shutil.copyfile(file, target)
    except OSError:  # it has gone meanwhile, or cannot be read after all
        return
    if file.suffix == ".py":
        _make_readable(target)


def _make_readable(file: Path) -> None:
    """Where the file is written for a newer Python."""
    if sys.version_info >= (3, 12):
        return
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return
    older = as_older_python(text)
    if older != text:
        file.write_text(older, encoding="utf-8")
