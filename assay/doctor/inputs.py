"""Paths --> Reports. An input that cannot be read, or that breaks a part of Assay, is a report of its own: it never
keeps the doctor from the others.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from assay.config import ConfigError
from assay.doctor.catalogue import KINDS, Illness, by_code, catalogue, illnesses_looking_at
from assay.doctor.diagnosis import NOTHING, Diagnosis, diagnose, root_causes
from assay.doctor.evidence import Evidence
from assay.doctor.evidence.open import input_paths, open_evidence
from assay.doctor.prove_edits import with_edits
from assay.doctor.report import NO_TRAINING, Crash, Report
from assay.doctor.report.select import nearest
from assay.machine.terminal import ProgressLine
from assay.programs.program import Program
from assay.programs.read.text import SourceError
from assay.record import RunError
from assay.record.batch import Batch, BatchError
from assay.verdict import Place, State, not_applicable

# a run directory, and a function that takes a sentence on what was left out --> batches with log-probs of a model
Recompute = Callable[[Path, Callable[[str], None]], Sequence[Batch]]

UNREADABLE = (SourceError, BatchError, RunError, ConfigError)
_LONGEST_MESSAGE = 300  # of an exception
_PACKAGE = Path(__file__).parent.parent


def read_reports(paths: Sequence[Path], illnesses: Sequence[Illness], recompute: Recompute | None) -> list[Report]:
    """A report for each input. Of a lone path that cannot be read there is no report: one of UNREADABLE is raised."""
    is_lone = len(paths) == 1
    reports: list[Report] = []
    looked_at: set[Path] = set()
    for path in paths:
        try:
            found = input_paths(path)
        except UNREADABLE:
            found = [path]  # whoever reads it says what is wrong
        is_itself = found == [path]
        for input_path in found:
            if input_path not in looked_at:
                looked_at.add(input_path)
                reports.append(_report(input_path, illnesses, recompute if is_itself else None, is_lone and is_itself))
    return _once(reports)


def _report(path: Path, illnesses: Sequence[Illness], recompute: Recompute | None, raises: bool) -> Report:
    unread, crash = "", None
    try:
        progress = ProgressLine()
        progress.show(f"looking at {path} ...")
        try:
            evidence = open_evidence(path)
            if recompute is not None:
                left_out: list[str] = []
                # of equal words the last batch's counts
                batches = (*evidence.batches, *recompute(path, left_out.append))
                evidence = replace(evidence, batches=batches, notes=(*evidence.notes, *left_out))
            diagnosis = with_edits(diagnose(evidence, illnesses), evidence.programs)
            notes = [note for program in evidence.programs for note in _of_comments(program, illnesses)]
            if evidence.programs and _is_no_training(evidence, diagnosis, illnesses):
                notes.insert(0, NO_TRAINING)
            return Report.of(str(path), evidence, replace(diagnosis, notes=(*diagnosis.notes, *notes)))
        finally:
            progress.clear()
    except UNREADABLE as error:
        if raises:
            raise
        unread = str(error)
    except Exception as error:
        crash = _crash(error)
    return Report(str(path), Diagnosis(()), "nothing that could be looked at", True, unread=unread, crash=crash)


def _crash(error: Exception) -> Crash:
    """With the innermost line of our own code."""
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).is_relative_to(_PACKAGE)
    ]
    place = f"{Path(frames[-1].filename).relative_to(_PACKAGE.parent)}:{frames[-1].lineno}" if frames else ""
    return Crash(type(error).__name__, str(error)[:_LONGEST_MESSAGE], place)


def _is_no_training(evidence: Evidence, diagnosis: Diagnosis, illnesses: Sequence[Illness]) -> bool:
    """Whether all checks of a script ran, and none of them found anything to look at."""
    was_all = len(illnesses) >= len(illnesses_looking_at(*KINDS))
    if not was_all or any(program.is_training for program in evidence.programs):
        return False
    return all(word.verdict.message == NOTHING for word in diagnosis.words if word.illness.source is not None)


def _of_comments(program: Program, illnesses: Sequence[Illness]) -> list[str]:
    """Notes on what comments silence, and on comments that name no code or silence nothing."""
    checked_codes = {illness.code for illness in illnesses if illness.source is not None}
    notes = [
        f"{place}: {code} is silenced by a comment{f': {ignore.reason}' if ignore.reason else ''}"
        for (code, place), ignore in program.silenced.items()
    ]
    for ignore in program.ignores:
        named = {word: by_code(word) for word in sorted(ignore.codes)}
        unknown = [word for word, illness in named.items() if illness is None]
        notes += [f"{ignore.place}: ignore[{word}] is not a code; {nearest(word, catalogue())}" for word in unknown]
        codes = {illness.code if illness else "" for illness in named.values()}
        if ignore not in program.used_ignores and codes and codes <= checked_codes:
            notes.append(f"{ignore.place}: `{ignore.place.text}` silences nothing; take it away")
    return notes


def _once(reports: Sequence[Report]) -> list[Report]:
    """A finding in a file that two scripts import is reported with the first of them."""
    reported: set[tuple[str, Place]] = set()
    kept: list[Report] = []
    for report in reports:
        words = []
        for word in report.diagnosis.words:
            found = {(word.code, place) for place in word.verdict.found_at or word.verdict.places[:1]}
            if word.verdict.state is State.FINDING and found and found <= reported:
                word = replace(word, verdict=not_applicable(f"reported already: {word.verdict.places[0]}"))
            elif word.verdict.state is State.FINDING:
                reported |= found
            words.append(word)
        diagnosis = replace(report.diagnosis, words=tuple(words), causes=root_causes(words))
        kept.append(replace(report, diagnosis=diagnosis))
    return kept
