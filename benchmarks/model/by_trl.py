"""The contender TRL 1.16: its GRPOTrainer, with a clock around its own methods and nothing else changed.

It gets the fastest settings that it has: as large a batch as it is fastest with, no gradient checkpointing if it fits,
fused AdamW, bfloat16 weights on a GPU (and, as a contender of its own, its default: float32 weights under autocast),
no logging and no saving. What is left to choose is tried before the runs; see tuning.py.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from transformers import TrainerCallback

from assay.config import Config
from benchmarks.model.device import Clock, forget_peak, peak
from benchmarks.model.prepare import load_model, tokenizer_of, weights_sum
from benchmarks.model.reading import Iteration, Machine, PeerChoice, Reading, Work
from benchmarks.model.workload import ROLLOUT, UPDATE, Job, Tokens, checksum, completions_of, prompts_of, reward_of
from benchmarks.stopwatch import Stopwatch
from benchmarks.trl_settings import NOTHING_BESIDE

STAGE_OF_METHOD = {
    "get_batch_samples": "start",
    "_tokenize_prompts": "start",
    "_generate": "generated",
    "_calculate_rewards": "scored",
    "training_step": "loss",
}


def settings_of(job: Job, machine: Machine, choice: PeerChoice, directory: str) -> dict[str, Any]:
    """Of GRPOConfig; one optimizer step on each batch of rollouts, as the other contender takes."""
    workload, loss, optimizer = job.workload, Config().loss, Config().optimizer
    pieces = workload.rows // choice.batch
    return {
        "output_dir": directory,
        "use_cpu": machine.device == "cpu",
        "bf16": choice.autocast,
        "max_steps": job.iterations,
        "per_device_train_batch_size": choice.batch,
        "gradient_accumulation_steps": pieces,
        "steps_per_generation": pieces,
        "gradient_checkpointing": choice.checkpointing,
        "num_generations": workload.group_size,
        "max_completion_length": workload.new_tokens,
        "cache_implementation": None if choice.cache == "dynamic" else choice.cache,
        "temperature": 1.0,
        "top_k": 0,
        "top_p": 1.0,
        "loss_type": loss.objective,
        "epsilon": loss.clip_low,
        "beta": 0.0,
        "learning_rate": 1e-6,
        "lr_scheduler_type": "constant",
        "optim": "adamw_torch_fused",
        "adam_beta1": optimizer.beta1,
        "adam_beta2": optimizer.beta2,
        "weight_decay": optimizer.weight_decay,
        "max_grad_norm": optimizer.clip_norm,
        **NOTHING_BESIDE,
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


class IterationClock(TrainerCallback):  # type: ignore[misc]
    """Notes the end of each optimizer step and what its stages took."""

    def __init__(self, clock: Clock, on_iteration: Callable[[], None]) -> None:
        self.watch = Stopwatch(clock.wall)
        self.cpu_watch = Stopwatch(time.process_time)
        self.clock = clock
        self.on_iteration = on_iteration
        self.began = (0.0, 0.0)
        self.clipping_began = (0.0, 0.0)
        self.stages: list[dict[str, float]] = []
        self.cpu_stages: list[dict[str, float]] = []
        self.whole: list[Iteration] = []

    def attach(self, trainer: Any) -> None:
        trainer.add_callback(self)
        for name, stage in STAGE_OF_METHOD.items():
            under_the_clocks = self.cpu_watch.timed(stage, self.watch.timed(stage, getattr(trainer, name)))
            setattr(trainer, name, under_the_clocks)
        clip = trainer._clip_grad_norm

        def clip_under_the_clock(*args: Any, **settings: Any) -> Any:
            self.clipping_began = (self.clock.wall(), time.process_time())
            return clip(*args, **settings)

        trainer._clip_grad_norm = clip_under_the_clock

    def on_train_begin(self, *args: Any, **others: Any) -> None:
        self.began = (self.clock.wall(), time.process_time())

    def on_step_end(self, *args: Any, **others: Any) -> None:
        # from the clip to here it ran the optimizer and the schedule and dropped gradients
        wall, cpu = self.clock.wall(), time.process_time()
        self.watch.add("stepped", wall - self.clipping_began[0])
        self.cpu_watch.add("stepped", cpu - self.clipping_began[1])
        self.stages.append(self.watch.take())
        self.cpu_stages.append(self.cpu_watch.take())
        self.whole.append(Iteration(wall - self.began[0], cpu - self.began[1], self.stages[-1]["generated"]))
        self.began = (wall, cpu)
        self.on_iteration()

    def charged(self, *names: str) -> tuple[Iteration, ...]:
        """What these stages took, iteration by iteration."""
        return tuple(
            Iteration(sum(wall[name] for name in names), sum(cpu[name] for name in names))
            for wall, cpu in zip(self.stages, self.cpu_stages, strict=True)
        )


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
        clock = IterationClock(Clock(device), on_iteration)
        clock.attach(trainer)
        forget_peak(device)
        trainer.train()
        memory = peak(device)
    repeated = [given.tokens_of[text] for text in reward.prompts]
    done = Work(
        prompts_sha256=checksum(repeated[:: job.workload.group_size]),
        completions_sha256=checksum(given.handed_out) if given.handed_out else "",
        rows=len(reward.lengths) // reward.batches,
        shortest=min(reward.lengths),
        longest=max(reward.lengths),
        updates=trainer.state.global_step,
        weights=weights,
    )
    name = "trl-autocast" if choice.autocast else "trl"
    if job.measurement == UPDATE:
        return [Reading(name, job, clock.charged("loss", "stepped"), done, memory, choice)]
    inside = replace(job, measurement=ROLLOUT)
    return [
        Reading(name, job, tuple(clock.whole), done, memory, choice),
        Reading(name, inside, clock.charged("generated"), replace(done, updates=0), memory, choice),
    ]


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
