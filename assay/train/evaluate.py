"""Held-out evaluation: the mean reward on problems that training never sees, greedy and sampled."""

from __future__ import annotations

from collections.abc import Callable

import torch

from assay.config import Config
from assay.engine.builtin import generate
from assay.policy.causal import CausalPolicy
from assay.tasks import Task
from assay.train.randomness import derived_seed
from assay.train.score import stop_if_hopeless
from assay.types import Prompt, Score


def heldout_prompts(task: Task, policy: CausalPolicy, config: Config) -> list[Prompt]:
    problems = [task.heldout_problem(index) for index in range(config.run.evaluate)]
    limit = config.rollout.max_tokens
    return [policy.prompt(problem.id, problem.text, problem.answer, limit) for problem in problems]


def evaluate(
    policy: CausalPolicy,
    task: Task,
    config: Config,
    step: int,
    on_token: Callable[[int, int], None],
    on_scored: Callable[[int, int], None],
) -> dict[str, float | int | None]:
    """One row of evaluations.jsonl. The same problems and the same random numbers at every call."""
    prompts = heldout_prompts(task, policy, config)
    row: dict[str, float | int | None] = {"step": step, "prompts": len(prompts)}
    for name, greedy in (("greedy", True), ("sampled", False)):
        generator = torch.Generator(policy.device).manual_seed(derived_seed(config.run.seed, "evaluation"))
        rollouts = generate(
            policy,
            prompts,
            group_size=1,
            max_tokens=config.rollout.max_tokens,
            generator=generator,
            policy_version=-1,
            greedy=greedy,
            on_token=on_token,
        )
        scores: list[Score] = []
        for prompt, (rollout,) in zip(prompts, rollouts, strict=True):
            scores.append(task.score(prompt, rollout))
            on_scored(len(scores), len(prompts))
            stop_if_hopeless(scores, len(prompts), config)
        rewards = [score.reward for score in scores if score.reward is not None]
        row[f"reward_{name}"] = sum(rewards) / len(rewards) if rewards else None
        row[f"unscored_{name}"] = len(scores) - len(rewards)
    return row
