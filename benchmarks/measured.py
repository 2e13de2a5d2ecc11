"""What one run of a contender measured, and the few numbers that several runs are shown as."""

from __future__ import annotations

import hashlib
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from assay.train.show.display import STAGES

REST = "rest"  # of a step: whatever no stage is charged with, among it the record and the checkpoints
STAGES_AND_REST = (*STAGES, REST)
FEW = 3  # steps averaged at either end of a run, for the reward
LENGTHS_MAY_DIFFER = 0.25  # the two sample with different random numbers, and learn different things from them


@dataclass(frozen=True, slots=True)
class Step:
    """One rollout batch and all updates on it, from the end of the step before to its own end."""

    seconds: float
    cpu_seconds: float  # of the process: what other processes on the machine do hardly changes it
    stages: Mapping[str, float]  # seconds by name, those of STAGES
    rollouts: int
    updates: int
    tokens: int  # sampled
    tokens_trained: int  # a token counts once for each update it is in
    reward: float

    @property
    def rest(self) -> float:
        return self.seconds - sum(self.stages.values())


@dataclass(frozen=True, slots=True)
class Measured:
    """One run of one contender."""

    contender: str
    warmup: int  # the first steps, this many, are not timed
    steps: tuple[Step, ...]
    prompts_sha256: str  # of the prompts of all rollouts, in order
    heldout_before: float
    heldout_after: float
    checkpoints: int  # written in timed steps
    peak_memory_bytes: int

    @property
    def timed(self) -> tuple[Step, ...]:
        return self.steps[self.warmup :]


@dataclass(frozen=True, slots=True)
class Summary:
    """All runs of one contender: medians over all of their timed steps, if not said otherwise."""

    stage_seconds: Mapping[str, float]  # by name, those of STAGES_AND_REST
    step_seconds: float
    step_cpu_seconds: float
    step_seconds_mean: float  # a checkpoint every few steps is not in the median
    rollout_tokens_per_second: float  # sampled tokens by seconds of "generated"
    update_tokens_per_second: float  # tokens trained by seconds of "loss" and "stepped"
    peak_memory_bytes: int  # the largest of the runs; imports included
    rollouts: float
    updates: float
    completion_length: float  # mean
    reward_first: float  # mean over the runs of the mean of the first FEW steps, warm-up included
    reward_last: float
    heldout_before: float  # means over the runs
    heldout_after: float
    checkpoints: int  # sum over the runs


def summarise(runs: Sequence[Measured]) -> Summary:
    steps = [step for run in runs for step in run.timed]
    median = statistics.median
    stage_seconds = {stage: median(step.stages[stage] for step in steps) for stage in STAGES}
    return Summary(
        stage_seconds=stage_seconds | {REST: median(step.rest for step in steps)},
        step_seconds=median(step.seconds for step in steps),
        step_cpu_seconds=median(step.cpu_seconds for step in steps),
        step_seconds_mean=statistics.fmean(step.seconds for step in steps),
        rollout_tokens_per_second=median(step.tokens / step.stages["generated"] for step in steps),
        update_tokens_per_second=median(
            step.tokens_trained / (step.stages["loss"] + step.stages["stepped"]) for step in steps
        ),
        peak_memory_bytes=max(run.peak_memory_bytes for run in runs),
        rollouts=median(step.rollouts for step in steps),
        updates=median(step.updates for step in steps),
        completion_length=_completion_length(runs),
        reward_first=statistics.fmean(step.reward for run in runs for step in run.steps[:FEW]),
        reward_last=statistics.fmean(step.reward for run in runs for step in run.steps[-FEW:]),
        heldout_before=statistics.fmean(run.heldout_before for run in runs),
        heldout_after=statistics.fmean(run.heldout_after for run in runs),
        checkpoints=sum(run.checkpoints for run in runs),
    )


def step_ratios(ours: Sequence[Measured], peer: Sequence[Measured]) -> list[dict[str, float]]:
    """peer / ours by repeat, median step by median step: within a repeat the two ran one after the other."""
    pairs = [(summarise([our]), summarise([their])) for our, their in zip(ours, peer, strict=True)]
    return [
        {"wall": their.step_seconds / our.step_seconds, "cpu": their.step_cpu_seconds / our.step_cpu_seconds}
        for our, their in pairs
    ]


def differences(ours: Sequence[Measured], peer: Sequence[Measured]) -> list[str]:
    """Sentences that say in what the two did not do the same work; none if they did."""
    sentences = []
    for our, their in zip(ours, peer, strict=True):
        counts = [[(step.rollouts, step.updates) for step in run.steps] for run in (our, their)]
        if counts[0] != counts[1]:
            sentences.append(f"not the same work: rollouts and updates by step are {counts[0]} and {counts[1]}")
        if our.prompts_sha256 != their.prompts_sha256:
            sentences.append("not the same work: the two were given different prompts")
        if our.heldout_before != their.heldout_before:
            sentences.append(
                "not the same work: before training the held-out rewards are "
                f"{our.heldout_before} and {their.heldout_before}, so the two did not start from the same model"
            )
    lengths = _completion_length(ours), _completion_length(peer)
    if abs(lengths[0] - lengths[1]) > LENGTHS_MAY_DIFFER * min(lengths):
        sentences.append(f"not the same work: completions have {lengths[0]:.2f} and {lengths[1]:.2f} tokens")
    return list(dict.fromkeys(sentences))


def durations(ends: Sequence[float]) -> list[float]:
    """
    >>> durations([2.0, 5.0, 6.0])
    [3.0, 1.0]
    """
    return [end - begin for begin, end in pairwise(ends)]


def prompts_sha256(texts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def peak_memory_bytes() -> int:
    """The most that this process ever held; not what its parent held when it was forked, as ru_maxrss may say."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text(encoding="utf-8").splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    import resource  # not on every platform

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _completion_length(runs: Sequence[Measured]) -> float:
    steps = [step for run in runs for step in run.timed]
    return sum(step.tokens for step in steps) / sum(step.rollouts for step in steps)
