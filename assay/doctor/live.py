"""The doctor beside a run: looks at each examination, at some steps and at the curves so far; says a finding once.

Every step's row of metrics is glanced at, and what is odd is looked at closely at once.
What is proven or likely is said the moment it is found, root causes only; every finding lands once in findings.jsonl.
Looks are skipped where they would take more than BUDGET of the run's time. Nothing here imports torch or train.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from assay import config as configuration
from assay.doctor.catalogue import Illness, catalogue
from assay.doctor.diagnosis import Diagnosis, Word, diagnose, root_causes
from assay.doctor.evidence import Batch, Curves, Evidence
from assay.doctor.evidence.events import size_of_model
from assay.doctor.logprobs import LARGEST_FLOAT32, MEAN_LOW_PRECISION
from assay.doctor.rounding import SAME_PASS
from assay.record import (
    RunDirectory,
    RunError,
    read_evaluations,
    read_events,
    read_findings,
    read_metrics,
    read_timings,
)
from assay.record.batch import BatchError
from assay.record.rollout_batch import batch_of_rows
from assay.record.rollouts import rollout_rows
from assay.record.settings import settings_of
from assay.types import StepRecord
from assay.verdict import Confidence, Severity, State

BUDGET = 0.01  # share of the run's time; the examinations, which train makes, cost about as much again
FEW = 10  # first steps after each of which the curves are looked at; then every CURVES_EVERY-th
CURVES_EVERY = 5
ROLLOUTS_EVERY = 10  # of steps whose rollouts are looked at, beside steps 1, 2, 4, 8, ...
MOST_FACTS = 4  # shown of a finding


class LiveDoctor:
    """A Watcher (assay/train/watch.py). `strict` stops the run, by raising `stop`, on a proven and fatal finding."""

    def __init__(
        self,
        mode: str,
        say: Callable[[str], None],
        directory: Path,
        stop: Callable[[str], Exception] = RuntimeError,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if mode not in ("warn", "strict"):
            raise ValueError(f"the doctor's mode is {mode!r}; it must be warn or strict")
        self.mode = mode
        self.say = say
        self.directory = directory
        self.stop = stop
        self._clock = clock
        self._began, self._spent = clock(), 0.0
        self._found: dict[str, Word] = {}
        self._recorded: dict[str, Confidence] | None = None  # read when the run directory is there
        self._told: set[str] = set()
        self._crashed: set[str] = set()
        self._healthy: set[str] = set()
        self._looks = 0
        self._was_odd = False
        self._rows: list[Mapping[str, Any]] = []
        self._timings: list[Mapping[str, Any]] = []
        self._settings: dict[str, Any] = {}
        catalogue()  # reads some sixty files: before the run, not in its first step

    def examined(self, batch: Batch) -> None:
        self._begin(batch.step or 1)
        self._settings |= {name: batch.settings[name] for name in ("eos_ids",) if name in batch.settings}
        self._look(Evidence(batches=(batch,)), _of_kind("batch"), batch.step)

    def step(self, record: StepRecord, row: Mapping[str, Any], timings: Mapping[str, Any]) -> None:
        self._begin(record.step)
        self._rows.append(row)
        self._timings.append(timings)
        step, affordable = record.step, self._spent <= BUDGET * (self._clock() - self._began)
        odd = is_odd(row, str(self._settings.get("dtype", "float32")))
        alarm, self._was_odd = odd and not self._was_odd, odd
        if not (affordable or alarm or step <= 2):
            return
        if alarm or is_rollout_look(step):
            began = self._clock()
            batch = self._batch(record, row)
            self._spent += self._clock() - began
            if batch is not None:
                self._look(Evidence(batches=(batch,)), _of_kind("batch"), step)
        if alarm or is_curves_look(step):
            began = self._clock()
            curves = self._curves()
            self._spent += self._clock() - began
            self._look(Evidence(curves=curves), _of_kind("curves"), step)

    def finished(self) -> None:
        """A last look at the curves, and the tally."""
        if self._rows:
            self._look(Evidence(curves=self._curves()), _of_kind("curves"), self._rows[-1]["step"])
        if not self._looks:
            return  # nothing was left to do
        roots = self._roots()
        counts = {sure: sum(word.confidence is sure for word in roots) for sure in Confidence}
        found = ", ".join(f"{count} {sure}" for sure, count in counts.items() if count) or "no findings"
        more = f"; see them with: assay doctor {self.directory}" if any(counts.values()) else ""
        sound = len(self._healthy - set(self._found))
        self.say(f"doctor: {found}, {sound} checks found their part healthy in {self._looks} looks{more}")

    def _look(self, evidence: Evidence, illnesses: Sequence[Illness], step: int | None) -> None:
        self._begin(step or 1)
        began = self._clock()
        diagnosis = diagnose(evidence, illnesses)
        self._looks += 1
        self._healthy |= {word.code for word in diagnosis.of(State.HEALTHY)}
        for word in diagnosis.findings:
            known = self._found.get(word.code)
            if known is None or word.confidence.rank > known.confidence.rank:
                self._found[word.code] = word
        self._tell_crashes(diagnosis)
        causes = root_causes(list(self._found.values()))
        new = self._record(causes, step)
        self._spent += self._clock() - began
        for word in new:
            if word.confidence is not Confidence.POSSIBLE and word.code not in causes:
                self._tell(word, [code for code, root in causes.items() if root == word.code], step)
        for word in diagnosis.findings:
            fatal = word.severity is Severity.FATAL and word.confidence is Confidence.PROVEN
            # what follows from another finding is not less fatal for that
            if self.mode == "strict" and fatal:
                raise self.stop(
                    f"the doctor stopped the run: {word.code} {word.illness.name}: {word.verdict.message}; the run is "
                    f"saved; assay explain {word.code} tells more, and --doctor warn goes on in spite of it"
                )

    def _record(self, causes: Mapping[str, str], step: int | None) -> list[Word]:
        """Writes what is new, or surer than before, to findings.jsonl, and returns it; the gravest first."""
        assert self._recorded is not None
        new = [
            word
            for word in Diagnosis(tuple(self._found.values()), causes).findings
            if word.code not in self._recorded or word.confidence.rank > self._recorded[word.code].rank
        ]
        for word in new:
            self._recorded[word.code] = word.confidence
            RunDirectory(self.directory).append_finding(word.record(step, causes.get(word.code)))
        return new

    def _tell(self, word: Word, consequences: Sequence[str], step: int | None) -> None:
        if word.code in self._told:
            return
        self._told.add(word.code)
        self.say(
            f"doctor: {word.code} {word.illness.name} ({word.severity}, {word.confidence}) at step {step}: "
            f"{word.verdict.message}"
        )
        for fact in word.verdict.facts[:MOST_FACTS]:
            self.say(f"  {fact}")
        if consequences:
            self.say(f"  follows from it: {', '.join(sorted(consequences))}")
        self.say(f"  fix: {word.fix}")
        self.say(f"  more: assay explain {word.code}")

    def _tell_crashes(self, diagnosis: Diagnosis) -> None:
        for word in diagnosis.of(State.CRASHED):
            if word.code not in self._crashed:
                self._crashed.add(word.code)
                self.say(
                    f"doctor: the check {word.code} broke and says nothing: {word.verdict.message}; the run goes on"
                )

    def _roots(self) -> list[Word]:
        causes = root_causes(list(self._found.values()))
        return [word for word in self._found.values() if word.code not in causes]

    def _batch(self, record: StepRecord, row: Mapping[str, Any]) -> Batch | None:
        """None if the step cannot be told as a batch; that is said once."""
        rows = rollout_rows(record, keep="all", extremes=0)
        source = f"rollouts of step {record.step}"
        try:
            return batch_of_rows(rows, self._settings, step=record.step, source=source, numbers=row)
        except BatchError as error:
            if "rollouts" not in self._crashed:
                self._crashed.add("rollouts")
                self.say(f"doctor: the {source} cannot be looked at: {error}; the run goes on")
            return None

    def _curves(self) -> Curves:
        evaluations, events = read_evaluations(self.directory).rows, read_events(self.directory).rows
        return Curves(self._rows, self._timings, evaluations, events, {**self._settings, **size_of_model(events)})

    def _begin(self, step: int) -> None:
        """Once: what the run directory knows from before `step`, when an earlier process wrote there."""
        if self._recorded is not None:
            return
        self._settings = settings_of(configuration.load(self.directory / "config.toml"))
        self._recorded = {}
        for code, confidence in self._found_before():
            known = self._recorded.get(code, confidence)
            self._recorded[code] = max(known, confidence, key=lambda one: one.rank)
            if confidence is not Confidence.POSSIBLE:
                self._told.add(code)
        self._rows = [row for row in read_metrics(self.directory).rows if row["step"] < step]
        self._timings = [row for row in read_timings(self.directory).rows if row["step"] < step]

    def _found_before(self) -> list[tuple[str, Confidence]]:
        """Codes in findings.jsonl. A file that is damaged is no reason to end a run: then things are told again."""
        try:
            rows = read_findings(self.directory).rows
            return [(str(row["code"]), Confidence(row["confidence"])) for row in rows]
        except (RunError, KeyError, ValueError) as error:
            self.say(f"doctor: what was found before is unknown, so it may be told again: {error}")
            return []


def is_odd(row: Mapping[str, Any], dtype: str) -> bool:
    """The cheap look at every step: what is odd in a row of metrics is looked at closely, whatever the schedule.

    >>> is_odd({"mismatch_max": 0.5}, "float32"), is_odd({"mismatch_max": 0.5, "mismatch_mean": 0.03}, "bfloat16")
    (True, False)
    """
    mismatch = ("mismatch_max", LARGEST_FLOAT32) if dtype == "float32" else ("mismatch_mean", MEAN_LOW_PRECISION)
    ratio = ("first_ratio_max_deviation", SAME_PASS["float32"])  # the same arithmetic twice: 0 in any precision
    limits = (mismatch, ratio, ("updates_skipped", 0), ("rollouts_unscored", 0))
    return any((row.get(name) or 0) > limit for name, limit in limits) or row.get("entropy", 0.0) is None


def is_curves_look(step: int) -> bool:
    return step <= FEW or step % CURVES_EVERY == 0


def is_rollout_look(step: int) -> bool:
    """Steps 1, 2, 4, 8, ... and every ROLLOUTS_EVERY-th.

    >>> [step for step in range(1, 25) if is_rollout_look(step)]
    [1, 2, 4, 8, 10, 16, 20]
    """
    return step & (step - 1) == 0 or step % ROLLOUTS_EVERY == 0


def _of_kind(kind: str) -> tuple[Illness, ...]:
    return tuple(illness for illness in catalogue() if getattr(illness, kind) is not None)
