"""The commands `assay doctor` and `assay explain`: words of the command line --> output and an exit code."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from assay import durable
from assay.doctor.catalogue import Illness, by_code, catalogue
from assay.doctor.diagnosis import NOTHING, Diagnosis, diagnose, root_causes
from assay.doctor.evidence import Evidence
from assay.doctor.explain import Entry, as_json, entries, explained, find, listed
from assay.doctor.report import LEVELS, Report, escaped, write
from assay.doctor.report.select import nearest, select
from assay.record import RunError
from assay.record.batch import Batch, BatchError
from assay.source.program import Program
from assay.source.text import SourceError
from assay.verdict import Place, State, not_applicable

# a run directory, and who is told what was left out -> batches for which a model was asked; given by cli.py
Recompute = Callable[[Path, Callable[[str], None]], Sequence[Batch]]

_OF_TRAINING = ("backward", "optimizer", "step", "generate", "multinomial", "sample")
_WIDEST = 120  # longer lines are hard to read
_NO_TERMINAL = (100, 24)  # columns and lines where there is none


class OutError(ValueError):
    """The report could not be written. The message is one sentence with the file."""


def run(
    paths: Sequence[Path],
    *,
    how: str = "full",
    chosen: Sequence[str] = (),
    ignored: Sequence[str] = (),
    fail_on: str = "error",
    all_passes: bool = False,
    out: Path | None = None,
    recompute: Recompute | None = None,
    why: bool = False,
) -> int:
    """Reads every path before it prints: what cannot be read is raised with nothing on stdout.

    Of several paths, a script that is no Python is noted and the others are read; the exit code is then 2.
    """
    from assay.doctor.evidence.open import patients

    illnesses = select(catalogue(), chosen, ignored)
    reports: list[Report] = []
    looked_at: set[Path] = set()
    is_whole = True
    for path in paths:
        found = [one for one in patients(path) if one not in looked_at]
        looked_at.update(found)
        try:
            reports += _reports(path, found, illnesses, recompute)
        except SourceError as error:
            if len(paths) == 1:
                raise
            is_whole = False
            reports.append(_unread(path, error))
            print(f"assay: {escaped(str(error))}", file=sys.stderr)
    reports = _once(reports)
    colour = out is None and _in_colour()
    text = write(reports, how, width=_width(), colour=colour, all_passes=all_passes, why=why)
    if out is None:
        _print(text)
    else:
        try:
            durable.replace_file(out, f"{text}\n".encode("utf-8", "backslashreplace"))
        except OSError as error:
            raise OutError(f"{out} could not be written: {durable.reason(error)}") from error
        for report in reports:
            print(f"{out}: {report.counts}", file=sys.stderr)
    return exit_code(reports, fail_on) if is_whole else 2


def exit_code(reports: Sequence[Report], fail_on: str) -> int:
    """1: a finding at `fail_on` or above it; else 3 if a check crashed; else 0. "never" lets every finding pass."""
    failing = () if fail_on == "never" else LEVELS[: LEVELS.index(fail_on) + 1]
    if any(word.level in failing for report in reports for word in report.diagnosis.findings):
        return 1
    return 3 if any(report.diagnosis.of(State.CRASHED) for report in reports) else 0


def explain(code: str | None, others: Sequence[Entry], *, json: bool) -> int:
    known = entries(others)
    if json:
        _print(as_json(known if code is None else find(code, known)))
    elif code is None:
        _print(listed(known, width=_width(), colour=_in_colour()))
    else:
        _print(explained(find(code, known), width=_width(), colour=_in_colour()))
    return 0


def _report(path: Path, illnesses: Sequence[Illness], recompute: Recompute | None) -> Report:
    from assay.doctor.evidence.open import open_evidence

    with _Looking(path):
        evidence = open_evidence(path)
        if recompute is not None:
            notes: list[str] = []
            batches = (*evidence.batches, *recompute(path, notes.append))  # of equal words the last batch's counts
            evidence = replace(evidence, batches=batches, notes=(*evidence.notes, *notes))
        diagnosis = diagnose(evidence, illnesses)
        notes = [note for program in evidence.programs for note in _of_comments(program, illnesses)]
        if evidence.programs and _is_no_training(evidence, diagnosis, illnesses):
            notes.insert(0, "no loss, optimizer or sampling was recognised here")
        return Report.of(str(path), evidence, replace(diagnosis, notes=(*diagnosis.notes, *notes)))


def _is_no_training(evidence: Evidence, diagnosis: Diagnosis, illnesses: Sequence[Illness]) -> bool:
    """Whether a script was asked everything, and there was nothing to ask about."""
    if len(illnesses) < len(catalogue()) or any(program.of(*_OF_TRAINING) for program in evidence.programs):
        return False
    return all(word.verdict.message == NOTHING for word in diagnosis.words if word.illness.source is not None)


def _of_comments(program: Program, illnesses: Sequence[Illness]) -> list[str]:
    """What comments silence; those that name no code, or silence nothing of what was looked for."""
    asked = {one.code for one in illnesses if one.source is not None}
    known = [word for one in catalogue() for word in (one.code, one.name)]
    notes = [
        f"{place}: {code} is silenced by a comment{f': {ignore.reason}' if ignore.reason else ''}"
        for (code, place), ignore in program.silenced.items()
    ]
    for one in program.ignores:
        named = {word: by_code(word) for word in sorted(one.codes)}
        unknown = [word for word, illness in named.items() if illness is None]
        notes += [f"{one.place}: ignore[{word}] is no code; {nearest(word, known)}" for word in unknown]
        codes = {illness.code if illness else "" for illness in named.values()}
        if one not in program.used_ignores and codes and codes <= asked:
            notes.append(f"{one.place}: `{one.place.text}` silences nothing; take it away")
    return notes


def _reports(
    path: Path, found: Sequence[Path], illnesses: Sequence[Illness], recompute: Recompute | None
) -> list[Report]:
    """A report for each patient. In a directory, what cannot be read is told and the others are looked at."""
    if list(found) == [path]:
        return [_report(path, illnesses, recompute)]
    reports: list[Report] = []
    for one in found:
        try:
            reports.append(_report(one, illnesses, None))
        except (SourceError, BatchError, RunError) as error:
            reports.append(_unread(one, error))
    return reports


def _unread(path: Path, error: Exception) -> Report:
    empty = Evidence(notes=(str(error),))
    return Report.of(str(path), empty, diagnose(empty, []))


def _once(reports: Sequence[Report]) -> list[Report]:
    """A finding in a file that two scripts import is told with the first of them."""
    told: set[tuple[str, Place]] = set()
    kept: list[Report] = []
    for report in reports:
        words = []
        for word in report.diagnosis.words:
            found = {(word.code, place) for place in word.verdict.found_at or word.verdict.places[:1]}
            if word.verdict.state is State.FINDING and found and found <= told:
                word = replace(word, verdict=not_applicable(f"told already: {word.verdict.places[0]}"))
            elif word.verdict.state is State.FINDING:
                told |= found
            words.append(word)
        diagnosis = replace(report.diagnosis, words=tuple(words), causes=root_causes(words))
        kept.append(replace(report, diagnosis=diagnosis))
    return kept


class _Looking:
    """One line on a terminal's stderr while a long run is read."""

    def __init__(self, path: Path) -> None:
        self._line = f"looking at {escaped(str(path))} ..." if sys.stderr.isatty() else ""

    def __enter__(self) -> None:
        self._show(self._line)

    def __exit__(self, *_: object) -> None:
        self._show("\r\x1b[K" if self._line else "")

    def _show(self, text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()


def _in_colour() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _width() -> int:
    return min(shutil.get_terminal_size(_NO_TERMINAL).columns, _WIDEST)


def _print(text: str) -> None:
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding))  # a terminal may not know every letter
