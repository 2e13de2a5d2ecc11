"""The doctor beside a run: looks at batches and curves as they come, and reports each finding once.

Training, an adapter of another trainer and `assay.observe` all bring their data to a LiveDoctor. It calls `report` with
what is proven or likely the moment it is found, root causes only; every finding is written once to findings.jsonl, and
again if it becomes surer. Nothing here imports torch or train.

Of a training run it also looks at the rollouts of some steps and at the curves so far. Every step's row of metrics is
checked for something odd, which is looked at closely at once. Looks are skipped where they would take more than BUDGET
of the run's time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from assay import config as configuration
from assay.doctor.catalogue import KINDS, illnesses_looking_at
from assay.doctor.diagnosis import Diagnosis, Word, diagnose, root_causes
from assay.doctor.evidence import Batch, Curves, Evidence
from assay.doctor.evidence.batches import FEWEST, curve_settings, row_of_batch
from assay.doctor.evidence.events import size_of_model
from assay.machine.terminal import escape
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
from assay.record.metrics import FIRST_RATIO_LIMIT, mismatch_limit
from assay.record.rollout_batch import batch_of_rows
from assay.record.rollouts import rollout_rows
from assay.record.settings import settings_of
from assay.types import StepRecord
from assay.verdict import Confidence, Severity, State

BUDGET = 0.01  # share of the run's time; the examinations, which train makes, cost about as much again
FIRST_STEPS = 10  # first steps after each of which the curves are looked at; then every CURVES_EVERY-th
CURVES_EVERY = 5
ROLLOUTS_EVERY = 10  # of steps whose rollouts are looked at, beside steps 1, 2, 4, 8, ...
MOST_FACTS = 4  # shown of a finding
MOST_KEPT = 16  # batches that are kept for checks of several
KEPT_FIELDS = (
    "tokens mask lengths finished forced prompt_tokens prompt_mask rewards advantages group_ids sampler_versions "
    "sampler_logprobs old_logprobs ref_logprobs plain_logprobs plain_entropy plain_variance plain_ref_logprobs"
).split()


class LiveDoctor:
    """`report` is called with one text per finding, of one or several lines that are safe to print.

    `directory` is the run directory, if there is one: it may exist later, and holds what an earlier process found.
    `strict` stops the run, by raising `stop`, on a proven and fatal finding."""

    def __init__(
        self,
        mode: str,
        report: Callable[[str], None],
        directory: Path | None = None,
        stop: Callable[[str], Exception] = RuntimeError,
        clock: Callable[[], float] = time.perf_counter,
        name: str = "doctor",
    ) -> None:
        if mode not in ("warn", "strict"):
            raise ValueError(f"the doctor's mode is {mode!r}; it must be warn or strict")
        self.mode, self.report, self.directory, self.stop, self.name = mode, report, directory, stop, name
        self.settings: dict[str, Any] = {}  # of the run, by the names of record/batch.py
        self.rows: list[Mapping[str, Any]] = []  # of metrics.jsonl
        self.timings: list[Mapping[str, Any]] = []
        self._clock = clock
        self._began, self._spent = clock(), 0.0
        self._earlier: list[Batch] = []  # the newest, with what checks of several batches need
        self._words: dict[str, Word] = {}  # of each illness what counts so far
        self._of_batches: dict[str, Word] = {}
        self._of_curves: dict[str, Word] = {}
        self._recorded: dict[str, Confidence] | None = None  # read when the run directory is there
        self._reported: set[str] = set()
        self._crashed: set[str] = set()
        self._looks = 0
        self._was_odd = False
        illnesses_looking_at(*KINDS)  # reads some ninety files: before the run, not in its first step

    @property
    def diagnosis(self) -> Diagnosis:
        """Of everything so far."""
        missing = [illness for illness in illnesses_looking_at(*KINDS) if illness.code not in self._words]
        words = sorted((*self._words.values(), *diagnose(Evidence(), missing).words), key=lambda word: word.code)
        return Diagnosis(tuple(words), root_causes(words))

    # what callers bring

    def begin(self, step: int) -> None:
        """Once: what the run directory knows from before `step`, when an earlier process wrote there."""
        if self._recorded is not None:
            return
        self._recorded = {}
        if self.directory is None:
            return
        if (self.directory / "config.toml").exists():
            self.settings = settings_of(configuration.load(self.directory / "config.toml"))
        for code, confidence in self._found_before():
            known = self._recorded.get(code, confidence)
            self._recorded[code] = max(known, confidence, key=lambda sure: sure.rank)
            if confidence is not Confidence.POSSIBLE:
                self._reported.add(code)
        try:
            self.rows = [row for row in read_metrics(self.directory).rows if row["step"] < step]
            self.timings = [row for row in read_timings(self.directory).rows if row["step"] < step]
        except RunError as error:
            self._say(f"the curves of earlier steps are left out: {error}")

    def examined(self, batch: Batch) -> Diagnosis:
        """An update, or the rollouts of a step: it is looked at now."""
        self.begin(batch.step or 1)
        self.settings |= {name: batch.settings[name] for name in ("eos_ids",) if name in batch.settings}
        if self.directory is not None:
            return self._look_at_batch(batch)
        return self._look_at_batch(batch, self._observed_so_far(batch))

    def _observed_so_far(self, batch: Batch) -> Curves | None:
        """The curves of the observed batches, while they are of one run: their steps rise."""
        last = self.rows[-1]["step"] if self.rows else 0
        if batch.step is None or batch.step < last:
            self.rows.clear()
        if batch.step is not None and (not self.rows or batch.step > last):
            self.rows.append(row_of_batch(batch))
        self.settings = curve_settings([batch])
        return self._curves() if len(self.rows) >= FEWEST else None

    def look_at_curves(self) -> None:
        if self.rows:
            began = self._clock()
            evidence = Evidence(curves=self._curves())
            self._spent += self._clock() - began
            self._look(evidence, self.rows[-1]["step"])

    def step(self, record: StepRecord, row: Mapping[str, Any], timings: Mapping[str, Any]) -> None:
        """A step of a training run."""
        self.begin(record.step)
        self.rows.append(row)
        self.timings.append(timings)
        step, affordable = record.step, self._spent <= BUDGET * (self._clock() - self._began)
        odd = is_odd(row, str(self.settings.get("dtype", "float32")))
        alarm, self._was_odd = (odd and not self._was_odd) or is_dying(self.rows), odd
        if not (affordable or alarm or step <= 2):
            return
        if alarm or is_rollout_look(step):
            began = self._clock()
            batch = self._batch(record, row)
            self._spent += self._clock() - began
            if batch is not None:
                self._look_at_batch(batch)
        if alarm or is_curves_look(step):
            self.look_at_curves()

    def finished(self) -> None:
        """A last look at the curves, and the tally."""
        self.look_at_curves()
        if not self._looks:
            return  # nothing was left to do
        causes = root_causes(list(self._words.values()))
        states = [(word.verdict.state, word) for word in self._words.values()]
        roots = [word for state, word in states if state is State.FINDING and word.code not in causes]
        counts = {sure: sum(word.confidence is sure for word in roots) for sure in Confidence}
        found = ", ".join(f"{count} {sure}" for sure, count in counts.items() if count) or "no findings"
        more = f"; see them with: assay doctor {self.directory}" if any(counts.values()) else ""
        sound = sum(state is State.HEALTHY for state, _ in states)
        self._say(f"{found}, {sound} checks found their part healthy in {self._looks} looks{more}")

    # what the doctor makes of it

    def _look_at_batch(self, batch: Batch, curves: Curves | None = None) -> Diagnosis:
        """Beside what checks of several batches need of the earlier ones of the run."""
        place = (batch.step or 0, batch.numbers.get("update", 0))
        if self._earlier and place < (self._earlier[-1].step or 0, self._earlier[-1].numbers.get("update", 0)):
            self._earlier.clear()  # another run in the same process
        evidence = Evidence(batches=(batch,), curves=curves, earlier=tuple(self._earlier))
        self._earlier = [*self._earlier, batch.only(KEPT_FIELDS)][-MOST_KEPT:]
        return self._look(evidence, batch.step)

    def _look(self, evidence: Evidence, step: int | None) -> Diagnosis:
        self.begin(step or 1)
        began = self._clock()
        kinds = ("curves",) * (evidence.curves is not None) + ("batches", "batch") * bool(evidence.batches)
        diagnosis = diagnose(evidence, illnesses_looking_at(*KINDS))
        self._looks += 1
        for word in diagnosis.words:
            if word.illness.looks_at(*kinds):
                self._take(word, kinds[-1])
        self._report_crashes(diagnosis)
        causes = root_causes(list(self._words.values()))
        new = self._record(causes, step)
        self._spent += self._clock() - began
        if self.directory is None:  # batches need not be of one run: a cause explains what is in its own batch
            causes, new = dict(diagnosis.causes), list(diagnosis.findings)
        for word in new:
            is_sure = word.confidence is not Confidence.POSSIBLE
            if is_sure and word.code not in causes and word.code not in self._reported:
                self._reported.add(word.code)
                self._say(*_lines(word, sorted(code for code, root in causes.items() if root == word.code), step))
        for word in diagnosis.findings:
            fatal = word.severity is Severity.FATAL and word.confidence is Confidence.PROVEN
            # what follows from another finding is not less fatal for that
            if self.mode == "strict" and fatal:
                raise self.stop(
                    f"the doctor stopped the run: {word.code} {word.illness.name}: {word.verdict.message}; the run is "
                    f"saved; assay explain {word.code} explains it, and --doctor warn goes on in spite of it"
                )
        return diagnosis

    def _take(self, word: Word, kind: str) -> None:
        """Of batches the loudest word counts; of curves the newest, which has seen all that the earlier ones saw."""
        words, other = (self._of_curves, self._of_batches) if kind == "curves" else (self._of_batches, self._of_curves)
        known = words.get(word.code)
        if kind == "curves" or known is None or word.loudness > known.loudness:
            words[word.code] = word
        both = [found[word.code] for found in (words, other) if word.code in found]
        self._words[word.code] = max(both, key=lambda word: word.loudness)

    def _record(self, causes: Mapping[str, str], step: int | None) -> list[Word]:
        """Writes what is new, or surer than before, to findings.jsonl, and returns it; the gravest first."""
        assert self._recorded is not None
        new = [
            word
            for word in Diagnosis(tuple(self._words.values()), causes).findings
            if word.code not in self._recorded or word.confidence.rank > self._recorded[word.code].rank
        ]
        for word in new:
            self._recorded[word.code] = word.confidence
            if self.directory is not None:
                RunDirectory(self.directory).append_finding(word.record(step, causes.get(word.code)))
        return new

    def _report_crashes(self, diagnosis: Diagnosis) -> None:
        for word in diagnosis.of(State.CRASHED):
            if word.code not in self._crashed:
                self._crashed.add(word.code)
                self._say(f"the check {word.code} broke and says nothing: {word.verdict.message}; the run goes on")

    def _say(self, *lines: str) -> None:
        first, *others = map(escape, lines)
        self.report("\n".join([f"{self.name}: {first}", *others]))

    def _batch(self, record: StepRecord, row: Mapping[str, Any]) -> Batch | None:
        """None if the step does not make a batch; that is reported once."""
        rows = rollout_rows(record, keep="all", extremes=0)
        source = f"rollouts of step {record.step}"
        try:
            return batch_of_rows(rows, self.settings, step=record.step, source=source, numbers=row)
        except BatchError as error:
            if "rollouts" not in self._crashed:
                self._crashed.add("rollouts")
                self._say(f"the {source} cannot be looked at: {error}; the run goes on")
            return None

    def _curves(self) -> Curves:
        if self.directory is None:
            return Curves(self.rows, self.timings, settings=self.settings)
        evaluations, events = read_evaluations(self.directory).rows, read_events(self.directory).rows
        return Curves(self.rows, self.timings, evaluations, events, {**self.settings, **size_of_model(events)})

    def _found_before(self) -> list[tuple[str, Confidence]]:
        """Codes in findings.jsonl. A damaged file does not end a run: then findings are reported again."""
        assert self.directory is not None
        try:
            rows = read_findings(self.directory).rows
            return [(str(row["code"]), Confidence(row["confidence"])) for row in rows]
        except (RunError, KeyError, ValueError) as error:
            self._say(f"what was found before is unknown, so it may be reported again: {error}")
            return []


def _lines(word: Word, consequences: Sequence[str], step: int | None) -> list[str]:
    where = "" if step is None else f" at step {step}"
    lines = [f"{word.code} {word.illness.name} ({word.severity}, {word.confidence}){where}: {word.verdict.message}"]
    lines += [f"  {fact}" for fact in word.verdict.facts[:MOST_FACTS]]
    if consequences:
        lines.append(f"  follows from it: {', '.join(consequences)}")
    return [*lines, f"  fix: {word.fix}", f"  more: assay explain {word.code}"]


def is_odd(row: Mapping[str, Any], dtype: str) -> bool:
    """Whether a row of metrics is looked at closely, whatever the schedule.

    >>> is_odd({"mismatch_max": 0.5}, "float32"), is_odd({"mismatch_max": 0.5, "mismatch_mean": 0.03}, "bfloat16")
    (True, False)
    """
    ratio = ("first_ratio_max_deviation", FIRST_RATIO_LIMIT)
    limits = (mismatch_limit(dtype), ratio, ("updates_skipped", 0), ("rollouts_unscored", 0))
    return any((row.get(name) or 0) > limit for name, limit in limits) or row.get("entropy", 0.0) is None


def is_dying(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the last three rows are the first three in a row without a finite loss: what that is, the curves show.

    >>> nan = float("nan")
    >>> runs = (1.0, nan, nan, nan), (nan, nan, nan, nan), (1.0,)
    >>> [is_dying([{"loss": loss} for loss in losses]) for losses in runs]
    [True, False, False]
    """
    is_lost = [_is_lost(row) for row in rows[-4:]]
    return is_lost[-3:] == [True] * 3 and is_lost[:-3] != [True]


def _is_lost(row: Mapping[str, Any]) -> bool:
    loss = row.get("loss", 0.0)
    return loss is None or not math.isfinite(loss)


def is_curves_look(step: int) -> bool:
    return step <= FIRST_STEPS or step % CURVES_EVERY == 0


def is_rollout_look(step: int) -> bool:
    """Steps 1, 2, 4, 8, ... and every ROLLOUTS_EVERY-th.

    >>> [step for step in range(1, 25) if is_rollout_look(step)]
    [1, 2, 4, 8, 10, 16, 20]
    """
    return step & (step - 1) == 0 or step % ROLLOUTS_EVERY == 0
