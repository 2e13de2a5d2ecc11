"""`assay doctor --fix` and `--diff`: scripts --> the same with their safe edits.

Every edit is proven before it is written (prove_edits.py). The first root cause that has one is fixed; then the script
is read again, since what followed from it is gone, until nothing more can be done. A file is replaced as a whole or not
at all, and keeps its bytes wherever it is not edited.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from assay.doctor.catalogue import Illness
from assay.doctor.diagnosis import Diagnosis, Word, diagnose
from assay.doctor.evidence import Evidence
from assay.doctor.evidence.open import input_paths
from assay.doctor.prove_edits import Script, with_edits
from assay.doctor.report.frame import unified
from assay.machine import durable
from assay.machine.user_error import UserError
from assay.programs.read.script import read_program
from assay.programs.read.text import decoded, read_bytes
from assay.verdict import Edit

MOST_EDITS = 40  # of one script
_BOM = b"\xef\xbb\xbf"


class FixError(UserError, ValueError):
    """A file that cannot be edited. The message is one sentence with the file and the reason."""


@dataclass(frozen=True)
class Original:
    """A file as it was before: its bytes, and its text without a byte order mark."""

    path: Path
    raw: bytes
    text: str
    encoding: str

    @classmethod
    def of(cls, path: Path) -> Original:
        raw = read_bytes(path, str(path))
        text, encoding = decoded(raw)
        encoding = "utf-8" if encoding == "utf-8-sig" else encoding
        original = cls(path, raw, text.removeprefix("\ufeff"), encoding)
        if original.encode(original.text) != raw:
            raise FixError(f"{path} cannot be written back as it is in {encoding}; save it as UTF-8 and ask again")
        return original

    def encode(self, text: str) -> bytes:
        return (_BOM if self.raw.startswith(_BOM) else b"") + text.encode(self.encoding)

    def replace(self, text: str) -> None:
        """A link stays one: the file that it leads to is replaced. The mode is kept."""
        path = self.path.resolve()
        if path.read_bytes() != self.raw:
            raise FixError(f"{self.path} was changed while it was looked at; nothing is written, ask again")
        try:
            durable.replace_file(path, self.encode(text), mode=stat.S_IMODE(path.stat().st_mode))
        except OSError as error:
            raise FixError(f"{self.path} could not be written: {durable.reason(error)}") from error


@dataclass(frozen=True)
class Fixed:
    """What became of the given scripts: each file's text before and after, what was ended, and what is left."""

    files: tuple[tuple[Original, str], ...]
    ended: tuple[tuple[str, str], ...]  # code and place of each edit
    left: tuple[tuple[Path, Diagnosis], ...]

    @property
    def changed(self) -> list[tuple[Original, str]]:
        return [(original, text) for original, text in self.files if text != original.text]

    @property
    def diff(self) -> str:
        return "\n".join(
            line for original, text in self.changed for line in unified(original.text, text, str(original.path))
        )

    def write(self) -> None:
        for original, text in self.changed:
            original.replace(text)


def fix(paths: Sequence[Path], illnesses: Sequence[Illness]) -> Fixed:
    """Writes nothing. Raises FixError or SourceError on the first path that cannot be edited."""
    scripts = [script for path in paths for script in _scripts(path)]
    originals = {path.resolve(): Original.of(path) for path in dict.fromkeys(scripts)}
    texts: dict[Path, str] = {}
    ended: list[tuple[str, str]] = []
    left: list[tuple[Path, Diagnosis]] = []
    for path in dict.fromkeys(scripts):
        for _ in range(MOST_EDITS):
            program = read_program(path, texts)
            script = Script(path, texts, program)
            diagnosis = diagnose(Evidence(programs=(program,)), illnesses)
            found = _next(diagnosis, script, set(originals))
            if found is None:
                break
            word, edit = found
            texts = dict(script.after([edit]).texts)
            ended.append((word.code, str(edit.place)))
        left.append((path, with_edits(diagnosis, (program,), texts)))
    files = tuple((original, texts.get(path, original.text)) for path, original in originals.items())
    return Fixed(files, tuple(ended), tuple(left))


def _next(diagnosis: Diagnosis, script: Script, allowed: set[Path]) -> tuple[Word, Edit] | None:
    """The first root cause that has a safe edit in one of the given files."""
    for word in diagnosis.findings:
        edit = None if word.code in diagnosis.causes else script.edit_of(word)
        if edit is not None and edit.safe and Path(edit.place.file).resolve() in allowed:
            return word, edit
    return None


def _scripts(path: Path) -> list[Path]:
    """The scripts at a path; FixError on anything else."""
    if path.is_dir():
        scripts = [script for script in input_paths(path) if script.suffix in (".py", ".pyw")]
        if not scripts:
            raise FixError(f"{path} holds no scripts; --fix and --diff edit scripts only, not a run or its logs")
        return [script for found in scripts for script in _scripts(found)]
    if path.suffix == ".ipynb":
        raise FixError(f"{path} is a notebook; --fix and --diff edit scripts only: make the change in its cell")
    if path.exists() and path.suffix not in (".py", ".pyw"):
        raise FixError(f"{path} is not a script; --fix and --diff edit .py files only")
    return [path]


def require_writable(path: Path) -> None:
    mode = path.stat().st_mode
    if not os.access(path, os.W_OK) or not mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH):
        raise FixError(f"{path} is not writable; make it writable, or print the edits with --diff")
