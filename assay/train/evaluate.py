"""Held-out evaluation: the share of reward on problems that training never sees, greedy and sampled."""

from __future__ import annotations

from collections.abc import Callable

import torch

from assay.config import Config
from assay.engine.builtin import generate
from assay.policy.causal import CausalPolicy
from assay.tasks import Task
from assay.train.randomness import derived_seed


def evaluate(
    policy: CausalPolicy, task: Task, config: Config, step: int, on_token: Callable[[int, int], None]
) -> dict[str, float | int | None]:
    """One row of evaluations.jsonl. The same problems and the same random numbers at every call."""
    limit = config.rollout.max_tokens
    problems = [task.heldout_problem(index) for index in range(config.run.evaluate)]
    prompts = [policy.prompt(problem.id, problem.text, problem.answer, limit) for problem in problems]
    row: dict[str, float | int | None] = {"step": step, "prompts": len(prompts)}
    for name, greedy in (("greedy", True), ("sampled", False)):
        generator = torch.Generator(policy.device).manual_seed(derived_seed(config.run.seed, "evaluation"))
        rollouts = generate(
            policy,
            prompts,
            group_size=1,
            max_tokens=limit,
            generator=generator,
            policy_version=-1,
            greedy=greedy,
            on_token=on_token,
        )
        rewards = [task.score(prompt, tries[0]).reward for prompt, tries in zip(prompts, rollouts, strict=True)]
        scored = [reward for reward in rewards if reward is not None]
        row[f"reward_{name}"] = sum(scored) / len(scored) if scored else None
        row[f"unscored_{name}"] = len(rewards) - len(scored)
    return row
