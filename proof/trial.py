"""One run of the real trainer, small and quick, with an illness planted in it or without; and the doctor's word on it.

Plant --> apply_plant(...): start(config, directory) --> read_run(directory) --> Diagnosis
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from assay import config as configuration
from assay.doctor.catalogue import Illness
from assay.doctor.diagnosis import Diagnosis, diagnose
from assay.doctor.evidence.run_directory import read_run
from assay.record import read_events, read_metrics
from assay.record.batch import Batch
from assay.record.metrics import Row
from assay.train.failure import RunFailed
from assay.types import StepRecord
from proof import rewards
from proof.plants.plant import Plant

# the embedded model, right about three times in ten: in most groups some answers are right and some wrong
SETTINGS = (
    "run.device=cpu",
    "run.threads=1",
    "rollout.prompts=8",
    "rollout.group_size=8",
    "optimizer.warmup=0",
    "evaluate.prompts=0",
    "checkpoint.every=1000000",
    "checkpoint.final=false",
)
REWARDS = "proof/rewards.py"  # as tables show it, wherever the package is installed
_ABSENT = object()


class _Silent:
    """A watcher, so that updates are examined, which says nothing: the doctor reads the record afterwards."""

    def examined(self, batch: Batch) -> None: ...
    def step(self, record: StepRecord, row: Row, timings: Row) -> None: ...
    def finished(self) -> None: ...


def run_trial(plant: Plant, *, seed: int, directory: Path, settings: Sequence[str] = ()) -> Path:
    """Trains in `directory` with the plant applied and returns it. A run that fails is a result like any other."""
    from assay.train.run.run import start

    chosen = (*SETTINGS, f"run.steps={plant.steps}", f"run.seed={seed}", *plant.settings, *settings)
    config = configuration.load(None, [setting.replace(REWARDS, rewards.__file__) for setting in chosen])
    # read at the first matrix product of the process, which a run in bfloat16 may not be the first to make
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
    with apply_plant(plant.replaces), _silence(), contextlib.suppress(RunFailed):
        start(config, directory, _Silent())
    return directory


def steps_recorded(directory: Path) -> int:
    return len(read_metrics(directory).rows)


def failure_of(directory: Path) -> str:
    """Why the run ended before its time, or what could not be examined in it; "" if all went well."""
    kinds = {row["kind"]: row for row in read_events(directory).rows}
    for kind in ("failed", "not examined"):
        if kind in kinds:
            return f"{kind}: {kinds[kind]['reason']}"
    return "" if "finished" in kinds else "the run did not finish"


def diagnose_trial(directory: Path, plant: Plant, illnesses: Sequence[Illness] | None = None) -> Diagnosis:
    """What the doctor says of the run; the plant's edits stand between the trainer and the doctor."""
    evidence = read_run(directory)
    if plant.edits is not None:
        evidence = replace(evidence, batches=tuple(map(plant.edits, evidence.batches)))
    return diagnose(evidence, illnesses)


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    nowhere = io.StringIO()
    with contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        yield


@contextlib.contextmanager
def apply_plant(replaces: Mapping[str, Callable[..., object]]) -> Iterator[None]:
    """Functions and methods by dotted name, replaced while entered and put back however it ends."""
    before: list[tuple[Any, str, Any]] = []
    try:
        for dotted, replacement in replaces.items():
            owner, name = _owner(dotted)
            before.append((owner, name, vars(owner).get(name, _ABSENT)))
            setattr(owner, name, _with_original(replacement, getattr(owner, name)))
        yield
    finally:
        for owner, name, original in reversed(before):
            if original is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, original)


def _with_original(replacement: Callable[..., object], original: Callable[..., object]) -> Callable[..., object]:
    """A function, which unlike `partial` becomes a method where a class holds it."""

    def call(*arguments: Any, **named: Any) -> object:
        return replacement(original, *arguments, **named)

    return call


def _owner(dotted: str) -> tuple[Any, str]:
    """The module or class that holds the last part of a dotted name.

    >>> _owner("assay.types.Rollout.truncated")
    (<class 'assay.types.Rollout'>, 'truncated')
    """
    *parents, name = dotted.split(".")
    for length in range(len(parents), 0, -1):
        try:
            owner = importlib.import_module(".".join(parents[:length]))
        except ModuleNotFoundError:
            continue
        for part in parents[length:]:
            owner = getattr(owner, part)
        if not hasattr(owner, name):
            break
        return owner, name
    raise AttributeError(f"{dotted} does not exist, so nothing can be planted there")
