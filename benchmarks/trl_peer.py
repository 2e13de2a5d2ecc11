"""The same model, task and settings in TRL 1.16, with a clock around TRL's own methods and nothing else changed.

One step here is one rollout batch and all updates on it; TRL counts each update as a step. TRL gets the fastest
settings it has for this: one forward pass for the whole batch, no gradient checkpointing, no saving, no logging.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from assay.config import Config
from assay.engine.open import open_engine
from assay.policy.causal import CausalPolicy
from assay.policy.codec import TokenizerCodec
from assay.policy.embedded import embedded_directory
from assay.policy.probe import examine_policy
from assay.rewards import open_rewards
from assay.tasks import open_task
from assay.train.evaluate.evaluate import evaluate
from assay.train.run.cpu import settled
from benchmarks.measured import Measured, Step, durations, peak_memory_bytes, prompts_sha256
from benchmarks.trl_clock import TrainerClock
from benchmarks.trl_settings import settings


@dataclass(frozen=True, slots=True)
class Rewarded:
    """What TRL asked a reward for: one rollout batch."""

    prompts: Sequence[str]
    completion_ids: Sequence[Sequence[int]]
    rewards: Sequence[float]

    @property
    def tokens(self) -> int:
        return sum(map(len, self.completion_ids))


class ExactReward:
    """The reward of tasks/sort_digits.py as TRL calls it; keeps what it was asked for."""

    __name__ = "exact"  # TRL names its metrics by it

    def __init__(self, eos_id: int) -> None:
        self.eos_id = eos_id
        self.batches: list[Rewarded] = []

    def __call__(
        self,
        *,
        prompts: Sequence[str],
        completions: Sequence[str],
        completion_ids: Sequence[Sequence[int]],
        answer: Sequence[str],
        **others: Any,
    ) -> list[float]:
        rewards = [
            float(text == wanted and ids[-1] == self.eos_id)
            for text, wanted, ids in zip(completions, answer, completion_ids, strict=True)
        ]
        self.batches.append(Rewarded(prompts, completion_ids, rewards))
        return rewards


def measure(warmup: int, steps: int, directory: Path, on_step: Callable[[], None]) -> Measured:
    from datasets import Dataset  # comes with TRL, which is optional
    from trl import GRPOConfig, GRPOTrainer

    config = settled(Config())
    torch.set_num_threads(config.run.threads)
    task = open_task(config)
    problems = [task.training_problem(index) for index in range((warmup + steps) * config.rollout.prompts)]
    model = embedded_directory(config.model.warm_steps, lambda done, total: None)
    tokenizer = AutoTokenizer.from_pretrained(model)
    reward = ExactReward(tokenizer.eos_token_id)
    trainer = GRPOTrainer(
        model=str(model),
        args=GRPOConfig(**settings(config, warmup + steps, directory), model_init_kwargs={"dtype": config.model.dtype}),
        reward_funcs=reward,
        train_dataset=Dataset.from_dict(
            {"prompt": [problem.text for problem in problems], "answer": [problem.answer for problem in problems]}
        ),
        processing_class=tokenizer,
    )
    clock = TrainerClock(on_step, config.updates_a_step)
    clock.attach(trainer)

    def heldout() -> float:
        policy = examine_policy(
            CausalPolicy(trainer.model.eval(), TokenizerCodec(tokenizer), (reward.eos_id,), config.rollout.temperature)
        )
        with closing(open_rewards(config, task, policy.codec.decode)) as own_reward:
            evaluation = evaluate(open_engine(policy), policy, task, own_reward, config, 0, _ignore, _ignore)
        assert evaluation.row["reward_sampled"] is not None
        return evaluation.row["reward_sampled"]

    before = heldout()
    trainer.train()
    peak = peak_memory_bytes()
    walls, cpus = (durations(ends) for ends in zip(*clock.ends, strict=True))
    return Measured(
        contender="trl",
        warmup=warmup,
        steps=tuple(
            Step(
                seconds=wall,
                cpu_seconds=cpu,
                stages=stages[0],
                rollouts=len(batch.rewards),
                updates=config.updates_a_step,
                tokens=batch.tokens,
                tokens_trained=batch.tokens * trainer.num_iterations,
                reward=sum(batch.rewards) / len(batch.rewards),
            )
            for wall, cpu, stages, batch in zip(walls, cpus, clock.stages, reward.batches, strict=True)
        ),
        prompts_sha256=prompts_sha256(prompt for batch in reward.batches for prompt in batch.prompts),
        heldout_before=before,
        heldout_after=heldout(),
        checkpoints=0,
        peak_memory_bytes=peak,
    )


def _ignore(done: int, total: int) -> None:
    """Nobody watches."""
