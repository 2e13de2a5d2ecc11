"""The doctor beside a TRL run: looks at its batches and curves, tells each finding once, writes them down."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from assay.adapters.trl_directory import Directory
from assay.doctor.catalogue import catalogue
from assay.doctor.diagnosis import Diagnosis, Word, diagnose, root_causes
from assay.doctor.evidence import Batch, Curves, Evidence
from assay.doctor.report import Report, write
from assay.machine import faults
from assay.record import METRICS_FILE, TIMINGS_FILE, RunError
from assay.verdict import LOUD, Confidence, State

MOST_FACTS = 4  # told of a finding
KEPT = 8  # newest batches that a report may quote
WAITING = 25  # rows of curves that are written together
FAILURES = 3  # looks that may break before there are no more
FAULTS = (*faults.FAULTS, RunError)  # none of which may end the training


class Doctor:
    """`seconds` is what it took of the run so far."""

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        self.directory = Directory(path)
        self.seconds = 0.0
        self._say = say
        self._words: dict[str, Word] = {}
        self._told: dict[str, Confidence] = {}
        self._crashed: set[str] = set()
        self._batches: list[Batch] = []
        self._rows: list[dict[str, Any]] = []
        self._timings: list[dict[str, Any]] = []
        self._written = 0
        self._settings: Mapping[str, Any] = {}
        self._failures = 0
        self._has_begun = False
        self._batch_illnesses = tuple(one for one in catalogue() if one.batch is not None)
        self._curve_illnesses = tuple(one for one in catalogue() if one.curves is not None)

    @property
    def is_broken(self) -> bool:
        return self._failures >= FAILURES

    @property
    def diagnosis(self) -> Diagnosis:
        """Of every illness the gravest word so far."""
        missing = [one for one in catalogue() if not one.needs_a_call and one.code not in self._words]
        words = (*self._words.values(), *diagnose(Evidence(), missing).words)
        ordered = tuple(sorted(words, key=lambda word: word.code))
        return Diagnosis(ordered, root_causes(ordered))

    def report(self, how: str) -> str:
        curves = Curves(self._rows, self._timings, settings=self._settings)
        evidence = Evidence(batches=tuple(self._batches), curves=curves if self._rows else None)
        return write([Report.of(str(self.directory.path), evidence, self.diagnosis)], how)

    def begin(self, *, anew: bool) -> None:
        self.directory.begin(anew=anew)
        self._has_begun = True
        if anew:
            self._rows, self._timings, self._written = [], [], 0

    def look_at(self, batch: Batch, step: int, update: int) -> None:
        self._ensure_begun()
        self._batches = [*self._batches, batch][-KEPT:]
        self.directory.add_batch(batch, step, update)
        self._take(diagnose(Evidence(batches=(batch,)), self._batch_illnesses), step)

    def add_row(self, row: dict[str, Any], seconds: float) -> None:
        """The row of the newest step stays open until the next: TRL logs after the step."""
        self._write_rows(all_of_them=len(self._rows) - self._written >= WAITING)
        self._rows.append(row)
        self._timings.append({"step": row["step"], "seconds": seconds})

    def complete_row(self, step: int, found: Mapping[str, Any]) -> None:
        if self._rows and self._rows[-1]["step"] == step:
            self._rows[-1] |= found

    def look_at_curves(self, settings: Mapping[str, Any], step: int, *, is_due: bool) -> None:
        self._settings = settings
        if is_due:
            curves = Curves(list(self._rows), list(self._timings), settings=settings)
            self._take(diagnose(Evidence(curves=curves), self._curve_illnesses), step)

    def end(self, settings: Mapping[str, Any], step: int) -> None:
        self._ensure_begun()
        self.look_at_curves(settings, step, is_due=bool(self._rows))
        self._write_rows(all_of_them=True)
        self.directory.end(self.seconds)

    def broke(self, error: BaseException, step: int) -> None:
        reason = " ".join(str(error).split())[:200]
        self._failures += 1
        more = "; it does not look any more" if self.is_broken else ""
        if self._failures == 1 or self.is_broken:
            self._say(
                f"assay: the doctor could not look at step {step} ({type(error).__name__}: {reason}){more}; training "
                "goes on"
            )

    def _ensure_begun(self) -> None:
        if not self._has_begun:  # attached while the run was on its way
            self.begin(anew=not self.directory.path.exists())

    def _write_rows(self, *, all_of_them: bool) -> None:
        if all_of_them:
            self.directory.add_rows(METRICS_FILE, self._rows[self._written :])
            self.directory.add_rows(TIMINGS_FILE, self._timings[self._written :])
            self._written = len(self._rows)

    def _take(self, diagnosis: Diagnosis, step: int) -> None:
        for word in diagnosis.words:
            known = self._words.get(word.code)
            if known is None or _loudness(word) > _loudness(known):
                self._words[word.code] = word
        for word in diagnosis.of(State.CRASHED):
            if word.code not in self._crashed:
                self._crashed.add(word.code)
                self._say(f"assay: the check {word.code} broke and says nothing: {word.verdict.message}")
        causes = root_causes(list(self._words.values()))
        for word in diagnosis.findings:
            before = self._told.get(word.code)
            if before is None or word.confidence.rank > before.rank:
                self._told[word.code] = word.confidence
                self.directory.add_finding(word.record(step, causes.get(word.code)))
                is_news = before is None or before is Confidence.POSSIBLE
                if is_news and word.confidence is not Confidence.POSSIBLE and word.code not in causes:
                    follows = sorted(code for code, root in causes.items() if root == word.code)
                    self._say(_told_as(word, step, follows))


def _loudness(word: Word) -> tuple[int, int]:
    state = word.verdict.state
    return LOUD[state], word.confidence.rank if state is State.FINDING else 0


def _told_as(word: Word, step: int, follows: list[str]) -> str:
    lines = [
        f"assay: {word.code} {word.illness.name} ({word.severity}, {word.confidence}) at step {step}: "
        f"{word.verdict.message}"
    ]
    lines += [f"  {fact}" for fact in word.verdict.facts[:MOST_FACTS]]
    if follows:
        lines.append(f"  follows from it: {', '.join(follows)}")
    return "\n".join([*lines, f"  fix: {word.fix}", f"  more: assay explain {word.code}"])
