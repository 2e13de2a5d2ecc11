"""The seam between a run and whoever watches it: examined updates, recorded steps and the end are handed over here.

    Examination --> Batch --> <run>/examined/step-000001-update-1.safetensors --> Watcher

`train` does not know the doctor: the command line hands one in as a Watcher.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from assay.config import Config
from assay.examine.guard import short_reason
from assay.machine import durable
from assay.machine.faults import FAULTS
from assay.record import UPDATE_FILE, RunDirectory, RunError, checksums
from assay.record.batch import Batch
from assay.record.batch_file import to_bytes
from assay.record.metrics import Row
from assay.train.examine import Examination, RunKnowledge, not_examined
from assay.train.failure import RunFailed
from assay.train.progress import Progress, StepInProgress
from assay.train.step.learner import Learner
from assay.types import StepRecord, Update

LATER = 8  # steps behind the first, then 16, 32, ...: first updates that are examined
SHARE = 0.01  # of the run's time that examinations may have taken for another one, from the fourth on


class DoctorStop(RunFailed):
    """A watcher found that the run cannot go on; it is saved first."""


class Watcher(Protocol):
    """Any of its methods may raise DoctorStop."""

    def examined(self, batch: Batch) -> object: ...
    def step(self, record: StepRecord, row: Row, timings: Row) -> None: ...
    def finished(self) -> None: ...


class RunWatch:
    """Reports what happens in a run to its watcher, if it has one. A stop that is asked for in the middle of a step
    waits for the next safe point, where a checkpoint holds the weights as they are."""

    def __init__(
        self,
        watcher: Watcher | None,
        config: Config,
        learner: Learner,
        directory: RunDirectory,
        say: Callable[[str], None],
        known: RunKnowledge,
    ) -> None:
        self.watcher = watcher
        self.config = config
        self.learner = learner
        self.directory = directory
        self.say = say
        self._known = known
        self._began = time.perf_counter()
        self.seconds = 0.0  # spent on examinations and in the watcher
        self._first_step: int | None = None  # of the step whose first update was examined
        self._examinations = 0
        self._stop: DoctorStop | None = None

    @property
    def is_watched(self) -> bool:
        return self.watcher is not None

    @contextmanager
    def examination(self, current: StepInProgress, progress: Progress) -> Iterator[Examination | None]:
        """An observer for the update at `progress`, if that is to be examined."""
        if not self.is_watched or not self._is_due(current, progress):
            yield None
            return
        # whether the trainer's own scoring depends on its micro-batches is measured once: that is most of the cost
        thorough = self._examinations == 0
        self._examinations += 1
        try:
            look = Examination(self.config, self.learner, current, progress, self._known, thorough=thorough)
        except FAULTS as error:  # nothing in here may end a run
            self._say_not_examined(not_examined(progress, error))
            yield None
            return
        with look.watching():
            yield look

    def _is_due(self, current: StepInProgress, progress: Progress) -> bool:
        """The first update that this process makes, where new is still old; the last one of the next step, where the
        ratio has moved, tokens are clipped and the policy has left its reference; and first updates of later steps,
        where a sampler or a reference that does not do its part has had time to show it."""
        if self._first_step is None:
            self._first_step = progress.step
            return True
        is_last = progress.update + 1 == current.batch.epochs * len(current.batch.minibatches)
        if self._examinations == 1:
            return progress.step > self._first_step and is_last
        behind = progress.step - self._first_step
        affordable = self._examinations == 2 or self.seconds <= SHARE * (time.perf_counter() - self._began)
        return progress.update == 0 and behind >= LATER and behind & (behind - 1) == 0 and affordable

    def examined(self, look: Examination, update: Update) -> None:
        batch = look.batch(update)
        self.seconds += look.seconds
        with self._timed():
            if batch is None:
                self._say_not_examined(look.failure)
                return
            if self.config.record.rollouts != "none":
                self._write(batch, look.progress)
            self._notify(lambda watcher: watcher.examined(batch))

    def _say_not_examined(self, sentence: str) -> None:
        self.directory.append_event("not examined", reason=sentence)
        self.say(sentence)

    def step(self, record: StepRecord, row: Row, timings: Row) -> None:
        with self._timed():
            self._notify(lambda watcher: watcher.step(record, row, timings))

    def finished(self) -> None:
        with self._timed():
            self._notify(lambda watcher: watcher.finished())

    def stop_if_asked(self) -> None:
        if self._stop is not None:
            raise self._stop

    def _notify(self, call: Callable[[Watcher], object]) -> None:
        """A failing watcher is reported once and detached; it never stops the run."""
        if self.watcher is None:
            return
        try:
            call(self.watcher)
        except DoctorStop as stop:
            self._stop = self._stop or stop
        except (*FAULTS, RunError) as error:
            self.watcher = None
            sentence = f"the doctor broke and is left out from here on: {short_reason(error)}"
            self.directory.append_event("doctor failed", reason=sentence)
            self.say(sentence)

    def _write(self, batch: Batch, progress: Progress) -> None:
        name = f"examined/step-{progress.step + 1:06d}-update-{progress.update + 1}.safetensors"
        file = self.directory.path / name
        try:
            file.parent.mkdir(exist_ok=True)
            durable.remove_asides(file.parent, UPDATE_FILE)
            checksums.replace_file(self.directory.path, name, to_bytes(batch))
        except FAULTS as error:  # if the disk is full, what the run itself writes next says so
            reason = durable.reason(error) if isinstance(error, OSError) else short_reason(error)
            self.say(f"{file} could not be written: {reason}; the run goes on without it")

    @contextmanager
    def _timed(self) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - began
