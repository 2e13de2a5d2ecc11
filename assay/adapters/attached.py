"""The doctor beside another trainer: what the adapter of any trainer shares.

An adapter is a subclass of Attached. It says what its trainer's settings and metrics are and makes a Batch of a Look,
and it calls, as its trainer goes on:

    begin                       training begins
    add_rollouts                rows were sampled that are trained on from now on
    look_at_loss, add_loss      around the loss of each micro-batch; a Look collects what the loss saw
    before_step, after_step     around the optimizer
    end_step                    an update is over: the doctor looks at it
    end                         training is over

Nothing that the trainer computes is changed: no tensor, no mode, no random state. What breaks here is reported, and
training goes on. <directory> is laid out as a run directory, so that `assay doctor` reads it:

    run.json  metrics.jsonl  timings.jsonl  evaluations.jsonl  events.jsonl  findings.jsonl
    examined/step-000001-update-0.safetensors      what was generated
    examined/step-000001-update-1.safetensors      the first update of it

Shape legend: B completions, T completion tokens.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from assay.calibration import Tally
from assay.doctor.diagnosis import Diagnosis, Word
from assay.doctor.evidence import Curves, Evidence
from assay.doctor.live import LiveDoctor, is_dying
from assay.doctor.report import Report, write
from assay.examine.again import ReferenceRow
from assay.examine.directions import remembers
from assay.examine.guard import Guard, short_reason
from assay.examine.inputs import PassInputs
from assay.examine.part import Part, join, join_inputs, sampled_fields, stack
from assay.examine.weights import Weights
from assay.machine import durable
from assay.policy.plain import Plain, Scored, plain_logprobs, temperature_behind
from assay.record import (
    EVALUATIONS_FILE,
    EVENTS_FILE,
    FINDINGS_FILE,
    METRICS_FILE,
    SCHEMA_VERSION,
    TIMINGS_FILE,
    RunDirectory,
)
from assay.record.batch import PLAIN_FIELDS, Array, Batch
from assay.record.batch_file import write_batch
from assay.record.directory import json_bytes

CLOSELY = 5  # first updates that are all looked at
SHARE = 0.02  # of the run's time that later looks may take
AT_FIRST = 2  # first updates after which plain log-probs are computed once more: what they did to the policy
KEPT = 8  # newest batches that a report may quote
WAITING = 25  # rows of curves that are written together: a disk that syncs after every step costs more than the doctor
FAILURES = 3  # looks that may break before there are no more
MOST_ROWS = 32  # first rows of an update of which plain log-probs are computed, one forward pass each
MOST_NUMBERS = 50_000_000  # trainable numbers that are copied to see them move; of more, some of each tensor
_LINES = (METRICS_FILE, TIMINGS_FILE, EVALUATIONS_FILE, EVENTS_FILE, FINDINGS_FILE)

Answer = TypeVar("Answer")


def is_look(step: int) -> bool:
    """The first updates, then two in a row that begin at a power of two: a first and a later one of a rollout batch.

    >>> [step for step in range(1, 40) if is_look(step)]
    [1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 33]
    """
    return step <= CLOSELY or any(number & (number - 1) == 0 for number in (step, step - 1))


@dataclass
class Rollouts:
    """What was sampled together; one or several updates are made of it."""

    version: int  # optimizer updates made before it
    prompts: Sequence[Sequence[int]] = ()
    sampled: Sequence[Sequence[int]] = ()  # as the sampler returned them
    finished: Sequence[bool] = ()
    forced: Sequence[Sequence[bool]] | None = None  # tokens that were not sampled, if there are any
    updates: int = 0  # made of it so far
    is_reported: bool = False  # whether the doctor looked at it as a whole

    @property
    def step(self) -> int:
        """Steps are counted as everywhere here: one per generation, by the trainer's number of its first update."""
        return self.version + 1

    def fields(self, rows: Sequence[int], width: int, pad: int) -> dict[str, Any]:
        forced = [[] if self.forced is None else self.forced[row] for row in rows]
        return {
            **sampled_fields([self.prompts[row] for row in rows], [self.sampled[row] for row in rows], width, pad),
            "finished": [self.finished[row] for row in rows],
            "forced": stack(forced, width).astype(bool),
            "sampler_versions": [self.version] * len(rows),
        }


@dataclass
class Look:
    """What is collected of one update that the doctor looks at."""

    rollouts: Rollouts
    parts: list[Part] = field(default_factory=list)
    inputs: list[PassInputs] = field(default_factory=list)  # of the forward pass of each part
    logprobs: dict[str, dict[int, Tensor]] = field(default_factory=dict)  # computed again, by row
    tally: dict[str, Array] = field(default_factory=dict)  # what the sampled tokens say about the policy
    numbers: dict[str, Any] = field(default_factory=dict)  # of the update
    weights: Weights | None = None

    @property
    def rows(self) -> list[int]:
        """In the order in which they were sampled."""
        return sorted(row for part in self.parts for row in part.rows)

    def add_plain_logprobs(
        self,
        model: nn.Module,
        temperature: float,
        reference: AbstractContextManager[nn.Module | None],
        kept: ReferenceRow,
    ) -> None:
        """Before the optimizer moves the weights. `kept` is of the whole run."""
        rows, prompts, sampled = self.rows[:MOST_ROWS], self.rollouts.prompts, self.rollouts.sampled
        forced, tally = self.rollouts.forced or [[] for _ in prompts], Tally()
        plain = {
            row: plain_logprobs(
                model, prompts[row], sampled[row], temperature=temperature, tally=tally, forced=forced[row]
            )
            for row in rows
        }
        self.tally = tally.fields()
        if heat := temperature_behind(model, self._scored(plain), temperature):
            self.numbers["new_temperature"] = heat
        for number, name in enumerate(PLAIN_FIELDS):
            self.logprobs[name] = {row: own[number] for row, own in plain.items()}
        with reference as frozen:
            if frozen is not None:
                self.logprobs["plain_ref_logprobs"] = {
                    row: plain_logprobs(frozen, prompts[row], sampled[row], temperature=temperature).scaled_T
                    for row in rows
                }
                drift = kept.drift(
                    lambda prompt, tokens: plain_logprobs(frozen, prompt, tokens, temperature=temperature).scaled_T,
                    prompts[rows[0]],
                    sampled[rows[0]],
                )
                self.numbers |= {} if drift is None else {"reference_drift": drift}

    def _scored(self, plain: Mapping[int, Plain]) -> Iterator[Scored]:
        """With the log-probs in the loss."""
        for part in self.parts:
            for number, row in enumerate(part.rows):
                tokens = self.rollouts.sampled[row]
                if row in plain and len(tokens) <= part.tensors["tokens"].shape[1]:
                    new_T, mask_T = (part.tensors[name][number, : len(tokens)] for name in ("new_logprobs", "mask"))
                    scores_T = new_T.detach().cpu().float().masked_fill(~mask_T.cpu().bool(), torch.nan)
                    yield Scored(self.rollouts.prompts[row], tokens, scores_T, plain[row].scaled_T)

    def add_plain_logprobs_after(self, model: nn.Module, temperature: float) -> None:
        """Of the same rows, when the optimizer has moved the weights."""
        prompts, sampled = self.rollouts.prompts, self.rollouts.sampled
        self.logprobs["plain_logprobs_after"] = {
            row: plain_logprobs(model, prompts[row], sampled[row], temperature=temperature).scaled_T
            for row in self.logprobs["plain_logprobs"]
        }

    def fields(self, pad: int) -> dict[str, Any]:
        """Of a Batch; the adapter adds settings, rewards and what else it knows."""
        rows = self.rows
        widths = [part.tensors["tokens"].shape[1] for part in self.parts]
        width = max(*widths, *(len(self.rollouts.sampled[row]) for row in rows))
        fields = {**self.rollouts.fields(rows, width, pad), **join(self.parts, rows, width, pad), **self.tally}
        # a part may have been cut to fewer columns than were sampled: which tokens it lost is known: not others
        scored = {row: part.tensors["tokens"].shape[1] for part in self.parts for row in part.rows}
        is_cut_BT = np.arange(width) >= np.array([scored[row] for row in rows])[:, None]
        fields["tokens"] = np.where(is_cut_BT, fields["sampled_tokens"], fields["tokens"])
        for name, by_row in self.logprobs.items():
            fields[name] = stack([by_row.get(row) for row in rows], width)
        if self.inputs:
            fields |= join_inputs(self.parts, [inputs.joined() for inputs in self.inputs], rows)
            fields["dropout_modules"] = max(inputs.dropout_modules for inputs in self.inputs)
        step, done = self.rollouts.step, self.rollouts.updates
        return {**fields, **self.numbers, "step": step, "update": done, "policy_version": self.rollouts.version + done}


class Attached(ABC):
    """What an adapter's `attach` returns: the doctor's findings so far."""

    def __init__(self, directory: Path, report: Callable[[str], None], trainer_name: str) -> None:
        self.directory = directory  # for `assay doctor`
        self._trainer_name = trainer_name
        self._report = report
        self._doctor = LiveDoctor("warn", report, directory, name="assay")
        self._guard = Guard(self._fail)
        self._failures = 0
        self._rollouts: Rollouts | None = None  # that are being trained on
        self._look: Look | None = None
        self._losses: list[Tensor] = []  # of the update in progress
        self._row: dict[str, Any] = {}  # of the last update
        self._batches: list[Batch] = []
        self.reference_row = ReferenceRow()
        self._last_weights: tuple[int, Weights] | None = None  # updates done, and what the last one did
        self.after_look: Callable[[], None] | None = None  # called after each update, when the doctor has looked
        self._written: int | None = None  # rows of curves; None: training has not begun
        self._began = self._step_began = time.perf_counter()

    @property
    def diagnosis(self) -> Diagnosis:
        return self._doctor.diagnosis

    @property
    def findings(self) -> list[Word]:
        """Root causes first."""
        return self.diagnosis.findings

    @property
    def batches(self) -> list[Batch]:
        """The newest that were looked at."""
        return list(self._batches)

    @property
    def curves(self) -> Curves | None:
        doctor = self._doctor
        return Curves(doctor.rows, doctor.timings, settings=doctor.settings) if doctor.rows else None

    def report(self, how: str = "full") -> str:
        """full, concise, json, sarif, github or md, as `assay doctor --format` prints it."""
        evidence = Evidence(batches=tuple(self._batches), curves=self.curves)
        return write([Report.of(str(self.directory), evidence, self.diagnosis)], how)

    # what an adapter knows of its trainer

    @abstractmethod
    def steps_done(self) -> int:
        """Optimizer updates."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Of the whole run, by the names of record/batch.py."""

    @abstractmethod
    def metrics(self) -> dict[str, Any]:
        """Of the update that is over, by the names of record/metrics.py."""

    @abstractmethod
    def update_batch(self, look: Look) -> Batch: ...

    @abstractmethod
    def rollout_batch(self, rollouts: Rollouts) -> Batch:
        """All rows, before any update."""

    def is_on(self) -> bool:
        return self._failures < FAILURES

    # what an adapter calls as its trainer goes on

    def begin(self) -> None:
        self._began = self._step_began = time.perf_counter()
        self._forget_update()  # of a run that was broken off within one
        if self.is_on():
            self.attempt(lambda: self._open(fresh=self.steps_done() == 0), None)

    def add_rollouts(self, rollouts: Rollouts | None) -> None:
        """None: they are not known well enough to be looked at."""
        self._rollouts = rollouts

    def look_at_loss(self) -> Look | None:
        """Before the loss of a micro-batch: where its update is looked at, the Look that the adapter adds to."""
        if not self._losses:
            self._look = Look(self._rollouts) if self._rollouts is not None and self._may_look() else None
        elif self._look is not None and self._look.rollouts is not self._rollouts:
            self._look = None  # rows of two generations in one update do not make a Batch
        return self._look

    def add_loss(self, loss: Tensor) -> None:
        self._losses.append(loss.detach())

    def before_step(self, weights: Sequence[Tensor], optimizer: Any = None) -> None:
        if self._look is not None:
            look, last = self._look, self._last_weights
            fresh = optimizer is not None and self.steps_done() == 0 and not remembers(optimizer)
            groups = getattr(optimizer, "param_groups", ())
            look.weights = measured = Weights(weights, most=MOST_NUMBERS, by_gradient=True, fresh=fresh, groups=groups)
            if last is not None and last[0] == self.steps_done():
                between = measured.changed_since(last[1])
                look.numbers |= {} if between is None else {"moved_between": between}
            self._last_weights = None

    def after_step(self) -> None:
        look = self._look
        if look is not None and look.weights is not None:
            moved = look.weights.after
            self.attempt(lambda: look.numbers.update(moved()), None)
            if self.steps_done() + 1 < CLOSELY:  # copies of all weights are kept for the first updates only
                self._last_weights = (self.steps_done() + 1, look.weights)

    def end_step(self) -> None:
        """After the trainer has counted the update."""
        if self.is_on():
            self.attempt(self._end_step, None)
        if self._rollouts is not None:
            self._rollouts.updates += 1
        self._forget_update()
        self._step_began = time.perf_counter()
        if self.after_look is not None:
            self.after_look()

    def complete_row(self, found: Mapping[str, Any]) -> None:
        """The row of the newest step stays open until the next: a trainer may log after the step."""
        if self._row.get("step") == self.steps_done():
            self._row |= found

    def end(self) -> None:
        if self.is_on():
            self.attempt(self._end, None)

    def attempt(self, question: Callable[[], Answer], otherwise: Answer) -> Answer:
        """Whatever breaks in here breaks the look, never the training."""
        return self._guard.attempt(question, otherwise)

    def _fail(self, error: Exception) -> None:
        self._failures += 1
        self._look = None
        more = "" if self.is_on() else "; it does not look any more"
        if self._failures in (1, FAILURES):
            step = self.steps_done() + 1
            self._report(
                f"assay: the doctor could not look at step {step} ({short_reason(error)}){more}; training goes on"
            )

    def _may_look(self) -> bool:
        step = self.steps_done() + 1
        affordable = self._guard.seconds <= SHARE * (time.perf_counter() - self._began)
        return is_look(step) and (step <= CLOSELY or affordable)

    def _forget_update(self) -> None:
        self._look, self._losses = None, []

    def _end_step(self) -> None:
        step, look = self.steps_done(), self._look
        if look is not None and look.parts:
            batch = self.update_batch(look)
            for reason in {inputs.left_out for inputs in look.inputs if inputs.left_out}:
                self._open(fresh=False)
                RunDirectory(self.directory).append_event("not examined", reason=reason)
            self._examine(batch, look.rollouts, look.rollouts.updates + 1)
            if "rewards" not in batch.arrays and not look.rollouts.is_reported:
                look.rollouts.is_reported = True
                self._examine(self.rollout_batch(look.rollouts), look.rollouts, 0)
        self._open(fresh=False)
        assert self._written is not None
        if len(self._doctor.rows) - self._written >= WAITING:
            self._write_rows()
        loss = {"loss": float(torch.stack(self._losses).sum())} if self._losses else {}
        norm = {} if look is None else {key: look.numbers[key] for key in ("gradient_norm",) if key in look.numbers}
        self._row = {"step": step, **self.metrics(), **norm, **loss}
        self._doctor.rows.append(self._row)
        self._doctor.timings.append({"step": step, "seconds": time.perf_counter() - self._step_began})
        self._doctor.settings = self.settings()
        if is_look(step) or is_dying(self._doctor.rows):
            self._doctor.look_at_curves()

    def _examine(self, batch: Batch, rollouts: Rollouts, update: int) -> None:
        self._open(fresh=False)
        self._batches = [*self._batches, batch][-KEPT:]
        write_batch(self.directory / "examined" / f"step-{rollouts.step:06d}-update-{update}.safetensors", batch)
        self._doctor.examined(batch)

    def _end(self) -> None:
        self._open(fresh=False)
        self._doctor.settings = self.settings()
        self._doctor.look_at_curves()
        self._write_rows()
        RunDirectory(self.directory).append_event("finished", doctor_seconds=round(self._guard.seconds, 3))

    # the directory

    def _open(self, *, fresh: bool) -> None:
        """A fresh run takes the place of the last one, a resumed run goes on. `fresh` counts when training begins, and
        where the doctor is attached to a run on its way it is fresh if there is no directory."""
        if self._written is not None and not fresh:
            return
        fresh = fresh or not self.directory.exists()
        (self.directory / "examined").mkdir(parents=True, exist_ok=True)
        if fresh:
            for old in (self.directory / "examined").glob("step-*-update-*.safetensors"):
                with suppress(FileNotFoundError):
                    old.unlink()
            self._doctor.rows.clear()
            self._doctor.timings.clear()
        for name in _LINES:
            if fresh or not (self.directory / name).exists():
                durable.replace_file(self.directory / name, b"")
        mark = {"schema_version": SCHEMA_VERSION, "trainer": self._trainer_name}
        durable.replace_file(self.directory / "run.json", json_bytes(mark))
        RunDirectory(self.directory).append_event("start" if fresh else "resume", trainer=self._trainer_name)
        self._doctor.begin(self.steps_done() + 1)
        self._written = len(self._doctor.rows)

    def _write_rows(self) -> None:
        for name, rows in ((METRICS_FILE, self._doctor.rows), (TIMINGS_FILE, self._doctor.timings)):
            if lines := b"".join(map(json_bytes, rows[self._written :])):
                durable.append_line(self.directory / name, lines)
        self._written = len(self._doctor.rows)
