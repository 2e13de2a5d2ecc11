"""RUN/checksums.jsonl: what each file of a run held when it was written, so that later damage can be named.

    {"file": "rollouts/step-000001.parquet", "bytes": 812, "sha256": "..."}            a whole file
    {"file": "metrics.jsonl", "at": 0, "bytes": 97, "sha256": "...", "step": 1}        a line, by its offset
    {"rewound": {"metrics.jsonl": 97, ...}, "step": 1}            what came after this is void: it is made again
    {"removed": "final"}                                          so is what stood in this directory

It is only appended to. A new file or line is entered after it is on disk, so a kill leaves something uncovered and
never a false alarm; a file that takes the place of another is entered before, and either content is right. The last
key of every entry, `chain`, is a CRC-32 over the entry and the chain of the line before: it shows a changed or missing
entry. A run without this file is not covered: an older Assay made it, or its owner deleted the file to accept the run
as it is.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from assay.machine import durable
from assay.record import manifest

FILE = "checksums.jsonl"
_LINE = re.compile(rb'(\{.*), "chain": "([0-9a-f]{8})"\}')
_FIRST = b"00000000"
_TAIL = 8192  # bytes; an entry is shorter
_NUMBERED = re.compile(r"(?:rollouts|evaluations)/step-([0-9]+)\.\w+")


@dataclass(frozen=True, slots=True)
class Facts:
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Line:
    at: int
    facts: Facts
    step: int | None


@dataclass
class Checksums:
    """What checksums.jsonl says. A file may have several contents that are right; lines stand in their order."""

    files: dict[str, list[Facts]] = field(default_factory=dict)
    lines: dict[str, list[Line]] = field(default_factory=dict)
    removed: dict[str, list[Facts]] = field(default_factory=dict)  # what the run wrote once and was about to remove
    damaged: list[int] = field(default_factory=list)  # numbers of its own lines that cannot be trusted
    torn: bool = False


def facts_of(data: bytes) -> Facts:
    return Facts(len(data), hashlib.sha256(data).hexdigest())


def facts_of_file(file: Path) -> Facts:
    return Facts(**manifest.facts_of(file))


def first_lines(files: Mapping[str, bytes]) -> bytes:
    """The content of a new checksums.jsonl that covers these files."""
    chain, lines = _FIRST, []
    for name, data in files.items():
        line = _line(_of_file(name, facts_of(data)), chain)
        lines.append(line)
        chain = _chain_of(line)
    return b"".join(lines)


def begin(run: Path) -> None:
    """Covers, from here on, a run that has no checksums."""
    if not os.path.lexists(run / FILE):
        durable.replace_file(run / FILE, b"")


def replace_file(run: Path, name: str, data: bytes) -> None:
    """durable.replace_file for RUN/name, with its checksum."""
    is_there = os.path.lexists(run / name)
    if is_there:
        note_files(run, {name: facts_of(data)})
    durable.replace_file(run / name, data)
    if not is_there:
        note_files(run, {name: facts_of(data)})


def append_line(run: Path, name: str, line: bytes, step: int | None) -> None:
    """durable.append_line for RUN/name, with its checksum."""
    at = durable.append_line(run / name, line)
    facts = facts_of(line)
    entry: dict[str, Any] = {"file": name, "at": at, "bytes": facts.bytes, "sha256": facts.sha256}
    _append(run, entry if step is None else {**entry, "step": step})


def note_files(run: Path, files: Mapping[str, Facts]) -> None:
    for name, facts in files.items():
        _append(run, _of_file(name, facts))


def note_directory(run: Path, name: str, written: Path) -> None:
    """Enters the files in `written`, which is RUN/name or is about to get that name."""
    note_files(run, {f"{name}/{file}": facts_of_file(written / file) for file in files_in(written)})
    sync(run)


def note_rewind(run: Path, step: int, lengths: Mapping[str, int]) -> None:
    """Before the files are cut to these lengths, and before numbered files of later steps are removed."""
    _append(run, {"rewound": dict(lengths), "step": step})
    sync(run)


def note_removal(run: Path, directory: str) -> None:
    _append(run, {"removed": directory})
    sync(run)


def sync(run: Path) -> None:
    """Entries are not synced one by one: an event, such as a new checkpoint, does it for all before it."""
    if (run / FILE).exists():
        durable.sync_file(run / FILE)


def is_as_written(run: Path, name: str) -> bool:
    """Whether the run covers this file and it is as the run wrote it."""
    ledger = read(run)
    try:
        return ledger is not None and facts_of(durable.read_file(run / name)) in ledger.files.get(name, [])
    except OSError:
        return False


def read(run: Path) -> Checksums | None:
    """None for a run that has no checksums. An entry that is damaged is left out and counted."""
    try:
        *whole, rest = durable.read_file(run / FILE).split(b"\n")
    except FileNotFoundError:
        return None
    ledger = Checksums(torn=bool(rest))
    chain = _FIRST
    for number, line in enumerate(whole, start=1):
        match = _LINE.fullmatch(line)
        if match is None or _crc(chain, match[1]) != match[2] or not _enter(ledger, match[1] + b"}"):
            ledger.damaged.append(number)
        chain = _chain_of(line)
    return ledger


def _enter(ledger: Checksums, text: bytes) -> bool:
    """Whether the entry makes sense."""
    try:
        entry = json.loads(text)
        if "removed" in entry:
            for name in [name for name in ledger.files if name.startswith(f"{entry['removed']}/")]:
                ledger.removed[name] = ledger.files.pop(name)
        elif "rewound" in entry:
            for name, length in entry["rewound"].items():
                kept = [line for line in ledger.lines.get(name, ()) if line.at + line.facts.bytes <= int(length)]
                ledger.lines[name] = kept
            step = int(entry["step"])
            for name in [name for name in ledger.files if _number(name) > step]:
                del ledger.files[name]
        else:
            name, facts = str(entry["file"]), Facts(int(entry["bytes"]), str(entry["sha256"]))
            if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
                return False
            if "at" in entry:
                step_of_line = int(entry["step"]) if "step" in entry else None
                ledger.lines.setdefault(name, []).append(Line(int(entry["at"]), facts, step_of_line))
            else:
                ledger.files.setdefault(name, []).append(facts)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return False
    return True


def _number(name: str) -> int:
    match = _NUMBERED.fullmatch(name)
    return int(match[1]) if match else -1


def _append(run: Path, entry: Mapping[str, Any]) -> None:
    try:
        chain = _chain_of(_last_line(run / FILE))
    except FileNotFoundError:
        return
    durable.append_line(run / FILE, _line(entry, chain), sync=False)


def _last_line(path: Path) -> bytes:
    """The last whole one."""
    descriptor = durable.open_regular(path)
    try:
        size = os.fstat(descriptor).st_size
        tail = os.pread(descriptor, _TAIL, max(size - _TAIL, 0))
    finally:
        os.close(descriptor)
    return tail[: tail.rfind(b"\n") + 1].rstrip(b"\n").rpartition(b"\n")[2]


def _of_file(name: str, facts: Facts) -> dict[str, Any]:
    return {"file": name, "bytes": facts.bytes, "sha256": facts.sha256}


def _line(entry: Mapping[str, Any], chain: bytes) -> bytes:
    body = json.dumps(entry).encode("ascii")[:-1]
    return body + b', "chain": "' + _crc(chain, body) + b'"}\n'


def _chain_of(line: bytes) -> bytes:
    match = _LINE.fullmatch(line.rstrip(b"\n"))
    return match[2] if match else _FIRST


def _crc(chain: bytes, body: bytes) -> bytes:
    return f"{zlib.crc32(chain + body):08x}".encode("ascii")


def files_in(directory: Path) -> list[str]:
    """All but hidden ones, by their names relative to the directory."""
    names = []
    for folder, folders, files in os.walk(directory):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            path = Path(folder, name)
            if not name.startswith(".") and not path.is_symlink():
                names.append(str(path.relative_to(directory)))
    return names
