"""What contenders measured, and the few numbers it is shown as. Nothing here imports torch."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from assay.machine import durable
from benchmarks.command import read_json
from benchmarks.model.floors import Limits, Sizes, floor_seconds
from benchmarks.model.workload import ROLLOUT, Job, Tokens, checksum

SAME_SUM = 1e-6  # a model rounded to bfloat16 adds up to the same, that is how many weights it has


@dataclass(frozen=True, slots=True)
class Machine:
    """Where all contenders run, on what model; found out once, before the first of them."""

    device: str  # cpu or cuda
    device_name: str
    dtype: str
    directory: str  # of the model, as Hugging Face keeps one
    sizes: Sizes
    limits: Limits
    memory_bytes: int  # of the device
    threads: int

    @property
    def by_process(self) -> bool:
        """One thread on a CPU: the seconds of the process itself are what it would take on an idle machine."""
        return self.device == "cpu" and self.threads == 1


@dataclass(frozen=True, slots=True)
class PeerChoice:
    """What a peer leaves to its user, and what this run of it used."""

    cache: str = "dynamic"  # of transformers' generate: dynamic or static
    batch: int = 0  # TRL's per-device batch; 0 = not asked for
    autocast: bool = False  # TRL: float32 weights under bfloat16 autocast, its default, instead of bfloat16 weights
    checkpointing: bool = False  # TRL: gradient checkpointing, its default


@dataclass(frozen=True, slots=True)
class Memory:
    """The most that was held during a job, by then-known means: -1 where it cannot be known."""

    process: int  # resident, imports included
    allocated: int = -1  # on the GPU, by tensors
    reserved: int = -1  # on the GPU, by torch's allocator


@dataclass(frozen=True, slots=True)
class Iteration:
    seconds: float
    cpu_seconds: float  # of the process: what others do on the machine hardly changes it
    generated_seconds: float = 0.0  # of a step: the part that is generation


@dataclass(frozen=True, slots=True)
class Work:
    """What was done, so that two contenders can be compared."""

    prompts_sha256: str  # of all iterations
    completions_sha256: str  # of an update, whose completions are given; "" where they are sampled
    rows: int  # of an iteration
    shortest: int  # completion, in tokens
    longest: int
    updates: int  # optimizer steps, of all iterations
    weights: float  # a sum over the model's weights before anything was trained

    @classmethod
    def of(
        cls, prompts: Iterable[Tokens], given: Sequence[Tokens], lengths: Sequence[int], batches: int, **rest: float
    ) -> Work:
        """`given` completions were not sampled; `lengths` are those of all completions in `batches` batches."""
        completions = checksum(given) if given else ""
        shortest, longest = min(lengths), max(lengths)
        return cls(checksum(prompts), completions, len(lengths) // batches, shortest, longest, **rest)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Reading:
    """One job of one contender."""

    contender: str
    job: Job
    iterations: tuple[Iteration, ...]
    work: Work
    memory: Memory
    choice: PeerChoice | None = None
    notes: tuple[str, ...] = ()  # what the contender had to say about how it ran

    @property
    def cold_seconds(self) -> float:
        return self.iterations[0].seconds

    @property
    def warm(self) -> tuple[Iteration, ...]:
        return self.iterations[self.job.warmup :]

    @property
    def median_seconds(self) -> float:
        return statistics.median(iteration.seconds for iteration in self.warm)

    @property
    def median_cpu_seconds(self) -> float:
        return statistics.median(iteration.cpu_seconds for iteration in self.warm)

    def cost(self, machine: Machine) -> float:
        """By which settings are chosen, and compared with the floor."""
        return self.median_cpu_seconds if machine.by_process else self.median_seconds


def write_readings(path: Path, readings: Iterable[Reading]) -> None:
    """As a whole or not at all: whoever ends a worker reads what it has left."""
    durable.replace_file(path, json.dumps([asdict(reading) for reading in readings]).encode())


def read_readings(path: Path) -> list[Reading]:
    if not path.exists():
        return []
    return list(read_json(tuple[Reading, ...], path))


@dataclass(frozen=True, slots=True)
class Summary:
    """All runs of one contender in one measurement: medians over their warm iterations."""

    seconds: float
    fastest: float
    slowest: float
    cpu_seconds: float
    cold_seconds: float  # median over the runs, of the first iteration
    tokens_per_second: float
    generated_seconds: float
    of_floor: float  # the floor's seconds by these; by those of the CPU where one thread of it does all
    process_bytes: int  # the largest of the runs
    allocated_bytes: int
    reserved_bytes: int


def summarise(readings: Sequence[Reading], machine: Machine) -> Summary:
    """The readings of one contender, one measurement and one workload."""
    job = readings[0].job
    warm = [iteration for reading in readings for iteration in reading.warm]
    seconds = statistics.median(iteration.seconds for iteration in warm)
    cpu_seconds = statistics.median(iteration.cpu_seconds for iteration in warm)
    floor = floor_seconds(job.measurement, machine.sizes, job.workload, machine.limits)
    return Summary(
        seconds=seconds,
        fastest=min(iteration.seconds for iteration in warm),
        slowest=max(iteration.seconds for iteration in warm),
        cpu_seconds=cpu_seconds,
        cold_seconds=statistics.median(reading.cold_seconds for reading in readings),
        tokens_per_second=job.workload.tokens / seconds,
        generated_seconds=statistics.median(iteration.generated_seconds for iteration in warm),
        of_floor=floor / (cpu_seconds if machine.by_process else seconds),
        process_bytes=max(reading.memory.process for reading in readings),
        allocated_bytes=max(reading.memory.allocated for reading in readings),
        reserved_bytes=max(reading.memory.reserved for reading in readings),
    )


def ratios(ours: Sequence[Reading], peer: Sequence[Reading]) -> list[dict[str, float]]:
    """peer / ours by repeat, median by median: within a repeat the two ran one after the other. A repeat that only one
    of them has finished is left out."""
    return [
        {
            "wall": their.median_seconds / our.median_seconds,
            "cpu": their.median_cpu_seconds / our.median_cpu_seconds,
        }
        for our, their in zip(ours, peer, strict=False)
    ]


def differences(readings: Sequence[Reading]) -> list[str]:
    """Sentences that say in what contenders did not do the same work; none if they did."""
    sentences = []
    firsts: dict[Job, Reading] = {}
    weights = readings[0].work.weights
    for reading in readings:
        job, work = reading.job, reading.work
        asked, first = job.workload, firsts.setdefault(job, reading)
        updates = 0 if job.measurement == ROLLOUT else job.iterations
        unlike = {
            f"made completions of {work.shortest} to {work.longest} tokens instead of {asked.new_tokens}": (
                {work.shortest, work.longest} != {asked.new_tokens}
            ),
            f"made {work.rows} completions instead of {asked.rows}": work.rows != asked.rows,
            f"was given other prompts than {first.contender}": work.prompts_sha256 != first.work.prompts_sha256,
            f"was given other completions than {first.contender}": (
                work.completions_sha256 != first.work.completions_sha256
            ),
            f"took {work.updates} optimizer steps in {job.iterations} iterations": work.updates != updates,
        }
        who = f"{reading.contender}, {job.measurement}"
        sentences += [f"not the same work: {who} {sentence}" for sentence, holds in unlike.items() if holds]
        if abs(work.weights - weights) > SAME_SUM * weights:
            sums = f"{work.weights}, of {readings[0].contender} to {weights}"
            sentences.append(f"not the same model: the weights of {who} add up to {sums}")
    return list(dict.fromkeys(sentences))
