"""The contender TRL 1.16: its GRPOTrainer, with a clock around its own methods and nothing else changed.

It gets the fastest settings that it has: as large a batch as it is fastest with, no gradient checkpointing if it fits,
fused AdamW, bfloat16 weights on a GPU (and, as a contender of its own, its default: float32 weights under autocast),
no logging and no saving. What is left to choose is tried before the runs; see tuning.py.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from benchmarks.model.by_assay import settings_of as as_assay
from benchmarks.model.device import Clock, forget_peak, peak
from benchmarks.model.prepare import load_model, tokenizer_of, weights_sum
from benchmarks.model.reading import Iteration, Machine, PeerChoice, Reading, Work
from benchmarks.model.workload import ROLLOUT, UPDATE, Job, Tokens, completions_of, prompts_of, reward_of
from benchmarks.trl_clock import TrainerClock
from benchmarks.trl_settings import settings


def settings_of(job: Job, machine: Machine, choice: PeerChoice, directory: str) -> dict[str, Any]:
    """Of GRPOConfig; one optimizer step on each batch of rollouts, as the other contender takes."""
    config = as_assay(machine, job.workload, machine.threads)
    pieces = job.workload.rows // choice.batch
    config = replace(
        config,
        model=replace(config.model, gradient_checkpointing=choice.checkpointing),
        optimizer=replace(config.optimizer, microbatches=pieces),
    )
    return settings(config, job.iterations, Path(directory)) | {
        "bf16": choice.autocast,
        "cache_implementation": None if choice.cache == "dynamic" else choice.cache,
        "optim": "adamw_torch_fused",
    }


class Reward:
    """Costs nothing; keeps the lengths of what it was asked about."""

    __name__ = "trivial"  # TRL names its metrics by it

    def __init__(self) -> None:
        self.lengths: list[int] = []
        self.prompts: list[str] = []
        self.batches = 0

    def __call__(
        self, *, prompts: Sequence[str], completion_ids: Sequence[Sequence[int]], **others: Any
    ) -> list[float]:
        self.batches += 1
        self.lengths += map(len, completion_ids)
        self.prompts += prompts
        return [reward_of(tokens) for tokens in completion_ids]


def measure(
    jobs: Sequence[Job], machine: Machine, threads: int, choice: PeerChoice | None, on_iteration: Callable[[], None]
) -> Iterator[Reading]:
    """A trainer for each job: it keeps its model. A step gives two readings: the step, and the rollout inside it."""
    torch.set_num_threads(threads)
    for job in jobs:
        yield from measure_one(job, machine, choice or PeerChoice(batch=job.workload.rows), on_iteration)


def measure_one(job: Job, machine: Machine, choice: PeerChoice, on_iteration: Callable[[], None]) -> list[Reading]:
    from datasets import Dataset  # comes with TRL, which is optional
    from trl import GRPOConfig, GRPOTrainer

    choice = replace(choice, batch=math.gcd(choice.batch, job.workload.rows))  # it was chosen for another size, perhaps
    vocabulary = machine.sizes.vocabulary
    model = load_model(machine, "float32" if choice.autocast else "")
    weights = weights_sum(model)
    device = torch.device(machine.device)
    prompts = [tokens for number in range(job.iterations) for tokens in prompts_of(job.workload, vocabulary, number)]
    texts = [" ".join(map(str, tokens)) for tokens in prompts]
    given = Given(job, vocabulary, dict(zip(texts, prompts, strict=True)))
    reward = Reward()
    with tempfile.TemporaryDirectory(prefix="assay-bench-") as place:
        trainer = GRPOTrainer(
            model=model,
            args=GRPOConfig(**settings_of(job, machine, choice, place)),
            reward_funcs=reward,
            train_dataset=Dataset.from_dict({"prompt": texts}),
            processing_class=tokenizer_of(vocabulary),
            **({"rollout_func": given.rollouts} if job.measurement == UPDATE else {}),
        )
        clock = TrainerClock(on_iteration, wall=Clock(device).wall)
        clock.attach(trainer)
        forget_peak(device)
        trainer.train()
        memory = peak(device)
    repeated = [given.tokens_of[text] for text in reward.prompts]
    done = Work.of(
        repeated[:: job.workload.group_size],
        given.handed_out,
        reward.lengths,
        reward.batches,
        updates=trainer.state.global_step,
        weights=weights,
    )
    name = "trl-autocast" if choice.autocast else "trl"
    if job.measurement == UPDATE:
        return [Reading(name, job, _charged(clock, "loss", "stepped"), done, memory, choice)]
    inside = replace(job, measurement=ROLLOUT)
    rollouts = _charged(clock, "generated")
    steps = tuple(
        Iteration(ended[0] - began[0], ended[1] - began[1], rollout.seconds)
        for (began, ended), rollout in zip(pairwise(clock.ends), rollouts, strict=True)
    )
    return [
        Reading(name, job, steps, done, memory, choice),
        Reading(name, inside, rollouts, replace(done, updates=0), memory, choice),
    ]


def _charged(clock: TrainerClock, *stages: str) -> tuple[Iteration, ...]:
    """What these stages took, iteration by iteration."""
    return tuple(Iteration(*(sum(by[stage] for stage in stages) for by in both)) for both in clock.stages)


class Given:
    """TRL's `rollout_func`: completions that were drawn beforehand, instead of generated ones."""

    def __init__(self, job: Job, vocabulary: int, tokens_of: dict[str, Tokens]) -> None:
        self.job, self.vocabulary, self.tokens_of = job, vocabulary, tokens_of
        self.handed_out: list[Tokens] = []
        self.calls = 0

    def rollouts(self, prompts: list[str], trainer: Any) -> dict[str, Any]:
        completions = completions_of(self.job.workload, self.vocabulary, self.calls)
        flat = [tokens for group in completions for tokens in group]
        self.calls += 1
        self.handed_out += flat
        return {
            "prompt_ids": [list(self.tokens_of[text]) for text in prompts],
            "completion_ids": [list(tokens) for tokens in flat],
            "logprobs": None,
        }
