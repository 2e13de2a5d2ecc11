"""Is a run as it was written? RUN -> one FileProblem for each file that is damaged, and what was and was not looked at.

`assay verify` reads every byte. `assay doctor` compares sizes and reads the .jsonl files, which is cheap; `assay train
--resume` reads those alone, up to the step that it goes on from. Nothing is written, and nothing here imports torch.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from assay.machine import durable
from assay.machine.durable import encodable
from assay.machine.terminal import plural
from assay.record import checksums, manifest
from assay.record.checksums import Checksums, Facts, Line
from assay.record.directory import EVENTS_FILE, FINDINGS_FILE, LINES_FILES, METRICS_FILE, RunDirectory, RunError
from assay.record.weights import PUBLISHED

CHECKPOINTS, MARK = "checkpoints", "run.json"
MOST_NAMED = 5  # files without a checksum in the closing line
_COPY = "restore it from a copy of the run"
_TORN = "it is left out, and assay train --resume removes it"
_ACCEPT = f"{_COPY}, or delete {checksums.FILE} to go on with the file as it is"


@dataclass(frozen=True, slots=True)
class FileProblem:
    file: str  # relative to the run
    what: str
    fix: str

    def __str__(self) -> str:
        return f"{self.file} {self.what}; {self.fix}"


@dataclass
class Verification:
    problems: list[FileProblem] = field(default_factory=list)
    files: int = 0  # that were compared with their checksum, or by size
    bytes: int = 0
    lines: int = 0  # of .jsonl files that were compared with their checksum
    checkpoints: int = 0  # that are whole
    uncovered_lines: int = 0
    uncovered_files: list[str] = field(default_factory=list)

    def add(self, file: str, what: str, fix: str = _COPY) -> None:
        self.problems.append(FileProblem(file, what, fix))


def verify(run: Path, *, full: bool = True, on_file: Callable[[str], None] = lambda name: None) -> Verification:
    """Everything that has a checksum. Without `full` only the sizes of whole files are compared. Calls `on_file` with
    each name before it is read. Raises RunError for what is not a run, or one of a newer Assay."""
    found = Verification()
    try:
        RunDirectory.open(run)
    except RunError as error:
        if "newer Assay" in str(error) or not os.path.lexists(run / MARK):
            raise
        found.add(MARK, str(error).removeprefix(f"{run / MARK} ").partition("; ")[0])
    ledger = _read_ledger(run, found)
    for name in LINES_FILES:
        on_file(name)
        _verify_lines(run, name, ledger, found)
    for name, contents in ledger.files.items():
        on_file(name)
        if not _is_unpublished(run, name):
            _verify_file(run, name, contents, found, full=full)
    in_checkpoints = _verify_checkpoints(run, found, on_file, full=full)
    known = {*LINES_FILES, checksums.FILE, *ledger.files, *in_checkpoints}
    found.uncovered_files = [name for name in checksums.files_in(run) if name not in known]
    return found


def as_text(run: Path, found: Verification) -> list[str]:
    """One line for each problem, and a closing line on what was looked at."""
    left = found.uncovered_files
    named = f" ({', '.join(left[:MOST_NAMED])}{', ...' if len(left) > MOST_NAMED else ''})" if left else ""
    closing = (
        f"{run}: {plural(len(found.problems), 'problem')}; verified {plural(found.files, 'file')} "
        f"({found.bytes / 1e6:,.1f} MB), {plural(found.lines, 'line')} and "
        f"{plural(found.checkpoints, 'whole checkpoint')}; not covered by checksums: "
        f"{plural(len(left), 'file')}{named}, {plural(found.uncovered_lines, 'line')}"
    )
    return [*map(str, found.problems), closing]


def as_json(run: Path, found: Verification) -> str:
    verified = {"files": found.files, "bytes": found.bytes, "lines": found.lines, "checkpoints": found.checkpoints}
    document = {
        "run": encodable(str(run)),
        "problems": [asdict(problem) for problem in found.problems],
        "verified": verified,
        "not_covered": {"files": found.uncovered_files, "lines": found.uncovered_lines},
    }
    return json.dumps(document, indent=2)


def check_history(run: Path, step: int, report: Callable[[str], None]) -> None:
    """Raises RunError if a line that a run resumed at `step` would keep is not as it was written. Calls `report` with a
    sentence about what can no longer be verified."""
    try:
        ledger = checksums.read(run) or Checksums()
    except OSError as error:
        raise RunError(
            f"{run / checksums.FILE} cannot be read: {error.strerror or error}; {_COPY}, or delete it"
        ) from error
    if (run / checksums.FILE).is_symlink():
        raise RunError(f"{run / checksums.FILE} is a link, which is not written through; put the file in its place")
    if damage := _damage_of(ledger):
        report(f"{run / checksums.FILE} {damage}: what it covers is not verified")
    for name in LINES_FILES:
        if name not in ledger.lines:
            continue
        try:
            damage = _first_damage(durable.read_file(run / name), ledger.lines[name], step)
        except FileNotFoundError:
            if name == FINDINGS_FILE:
                continue
            raise RunError(f"{run / name} is missing; {_COPY}") from None
        except OSError as error:
            raise RunError(f"{run / name} cannot be read: {error.strerror or error}; {_COPY}") from error
        if damage and name == FINDINGS_FILE:  # what the doctor said is not what the run goes on from
            report(f"{run / name} {damage}; what was found before may be reported again")
        elif damage:
            raise RunError(f"{run / name} {damage}; {_ACCEPT}")
    if gap := _gap(run, step):
        report(f"{run / METRICS_FILE} {gap}; the run goes on without it")


def _read_ledger(run: Path, found: Verification) -> Checksums:
    try:
        ledger = checksums.read(run) or Checksums()
    except OSError as error:
        found.add(checksums.FILE, f"cannot be read: {error.strerror or error}", _COPY)
        return Checksums()
    if damage := _damage_of(ledger):
        found.add(checksums.FILE, damage)
    if ledger.torn:
        found.add(checksums.FILE, "was cut off while its last line was written", _TORN)
    return ledger


def _damage_of(ledger: Checksums) -> str:
    if not ledger.damaged:
        return ""
    more = f" (and {len(ledger.damaged) - 1} more)" if len(ledger.damaged) > 1 else ""
    return f"line {ledger.damaged[0]}{more} is damaged, or the line before it is missing"


# ---------------------------------------------------------------- lines


def _verify_lines(run: Path, name: str, ledger: Checksums, found: Verification) -> None:
    covered = ledger.lines.get(name, [])
    try:
        data = durable.read_file(run / name)
    except FileNotFoundError:
        if name != FINDINGS_FILE or covered:  # a run in which nothing was found has no findings.jsonl
            found.add(name, "is missing")
        return
    except OSError as error:
        found.add(name, f"cannot be read: {error.strerror or error}")
        return
    damage = _first_damage(data, covered)
    if damage:
        found.add(name, damage)
    else:
        found.lines += len(covered)
    starts = {line.at for line in covered}
    at = 0
    *whole, rest = data.split(b"\n")
    for number, line in enumerate(whole, start=1):
        if at not in starts and not damage:
            found.uncovered_lines += 1
            if not _is_row(line):
                found.add(name, f"line {number} is damaged")
        at += len(line) + 1
    if rest and not damage:
        found.add(name, f"line {len(whole) + 1} was cut off while it was written", _TORN)
    is_ours = (run / "config.toml").exists()  # another trainer may record every tenth step
    if name == METRICS_FILE and is_ours and not damage and (gap := _gap(run, None)):
        found.add(name, gap)


def _first_damage(data: bytes, lines: Sequence[Line], up_to: int | None = None) -> str:
    """What is wrong with the first line that is not as it was written, "" if all are. Lines of steps after `up_to` may
    be as they like."""
    kept = [line for line in lines if up_to is None or line.step is None or line.step <= up_to]
    wrong = [line for line in kept if not _matches(data[line.at : line.at + line.facts.bytes], line.facts)]
    if not wrong:
        return ""
    first = min(wrong, key=lambda line: line.at)
    number = data.count(b"\n", 0, first.at) + 1
    there = data[first.at :].partition(b"\n")[0] + b"\n"
    later = {line.facts.sha256 for line in lines if line.at > first.at}
    if first.at >= len(data) or hashlib.sha256(there).hexdigest() in later:
        return f"line {number} is missing"
    return f"line {number} is not as it was written"


def _gap(run: Path, step: int | None) -> str:
    """What steps metrics.jsonl lacks, of those up to `step`; "" where that is unknown."""
    try:
        rows = [json.loads(line) for line in durable.read_file(run / METRICS_FILE).split(b"\n")[:-1]]
        steps = [row["step"] for row in rows if step is None or row["step"] <= step]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return ""
    for number, there in enumerate(steps, start=1):
        if there != number:
            return f"line {number} holds step {there}, where step {number} was written"
    return f"lacks steps {len(steps) + 1} to {step}" if step is not None and len(steps) < step else ""


def _is_row(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


# ---------------------------------------------------------------- whole files


def _verify_file(run: Path, name: str, contents: Sequence[Facts], found: Verification, *, full: bool) -> None:
    is_published = name.partition("/")[0] in PUBLISHED
    fix = f"make it again with: assay export {run} --out DIR" if is_published else _COPY
    try:
        durable.require_regular(run / name)
        size = (run / name).stat().st_size
        if size not in {facts.bytes for facts in contents}:
            found.add(name, f"has {size} of {contents[-1].bytes} bytes", fix)
        elif full and manifest.digest(run / name) not in {facts.sha256 for facts in contents}:
            found.add(name, "does not match its checksum", fix)
        else:
            found.files += 1
            found.bytes += size
    except FileNotFoundError:
        found.add(name, "is missing", fix)
    except OSError as error:
        found.add(name, f"cannot be read: {error.strerror or error}", fix)


def _matches(data: bytes, facts: Facts) -> bool:
    return checksums.facts_of(data) == facts


def _is_unpublished(run: Path, name: str) -> bool:
    """final/ and best/ get their checksums before their names: a run killed in between has none yet."""
    directory = name.partition("/")[0]
    return directory in PUBLISHED and not os.path.lexists(run / directory) and not _is_finished(run)


def _is_finished(run: Path) -> bool:
    ends = [kind for kind in _events(run) if kind in ("start", "resume", "finished")]
    return bool(ends) and ends[-1] == "finished"


def _events(run: Path) -> list[str]:
    """Their kinds, in order; none where they cannot be read."""
    try:
        rows = [json.loads(line) for line in durable.read_file(run / EVENTS_FILE).split(b"\n")[:-1]]
        return [str(row["kind"]) for row in rows]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return []


def _verify_checkpoints(run: Path, found: Verification, on_file: Callable[[str], None], *, full: bool) -> set[str]:
    """Returns the names of all their files."""
    whole: list[str] = []
    damaged: list[tuple[str, str]] = []
    names: set[str] = set()
    for path in manifest.checkpoints(run / CHECKPOINTS):
        name = f"{CHECKPOINTS}/{path.name}"
        on_file(name)
        names |= {f"{name}/{file}" for file in checksums.files_in(path)}
        try:
            files = manifest.verified_files(path, full=full)
        except manifest.Damage as damage:
            if path.exists():  # else the run goes on and has pruned it in the meantime
                damaged.append((name, str(damage)))
            continue
        whole.append(path.name)
        found.files += len(files) + 1
        found.bytes += sum(facts["bytes"] for facts in files.values())
    found.checkpoints = len(whole)
    if not whole and not damaged and "checkpoint" in _events(run):
        found.add(CHECKPOINTS, "holds no checkpoint, so the run cannot be resumed")
    fix = f"{_COPY}; until then {whole[-1]} is the newest that can be used" if whole else f"{_COPY}, or start a new run"
    for name, what in damaged:
        found.add(name, f"is damaged: {what}", fix)
    return names
