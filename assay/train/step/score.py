"""Prompt[P], Rollout[P][G] -> Group[P]: rewards, with the penalties that the config asks for (length, KL)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from assay.config import Config
from assay.grpo import overlong_penalty
from assay.rewards import Reward, function_name
from assay.tasks import Task
from assay.train.step.failed_rewards import FailedRewards, RewardFailed
from assay.train.step.learner import Learner
from assay.train.step.pack import pack_for_policy
from assay.types import Group, Prompt, Rollout, Sample, Score

ADDED_COMPONENTS = ("reference_kl", "overlong")  # what the trainer itself adds to the task's reward


def reward_weights(config: Config) -> dict[str, float]:
    """Weights by component or by the function that gives it; a component that is not named has weight 1."""
    weights = dict(zip(map(function_name, config.reward.functions), config.reward.weights, strict=False))
    return {**weights, "reference_kl": -config.loss.kl_coef} if _kl_in_reward(config) else weights


def is_scored_by_task(config: Config, task: Task) -> bool:
    """Whether the reward is `task.score` and nothing else: no function of a user, nothing that the trainer adds."""
    has_extras = config.rollout.truncated == "penalise" or _kl_in_reward(config)
    return config.reward.functions in ((), ("task",)) and not task.own_reward and not has_extras


def _kl_in_reward(config: Config) -> bool:
    return config.loss.kl_coef > 0 and config.loss.kl_placement == "reward"


def score(
    prompts: Sequence[Prompt],
    rollouts: Sequence[Sequence[Rollout]],
    *,
    config: Config,
    reward: Reward,
    learner: Learner,
    failures: FailedRewards,
    on_scored: Callable[[int, int], None],
) -> list[Group]:
    pairs = [(prompt, rollout) for prompt, tries in zip(prompts, rollouts, strict=True) for rollout in tries]
    scores = reward.score(pairs, failures.count(pairs, on_scored))
    failures.look_at(pairs, scores)
    extras = _extra_components(pairs, config, learner)
    if extras:
        weights = reward_weights(config)
        scores = [_with_extra(own, extra, weights) for own, extra in zip(scores, extras, strict=True)]
    edges = [sum(map(len, rollouts[:index])) for index in range(len(rollouts) + 1)]
    return [
        Group(prompt, tuple(tries), tuple(scores[first:last]))
        for prompt, tries, first, last in zip(prompts, rollouts, edges, edges[1:], strict=False)
    ]


def _with_extra(score: Score, extra: Mapping[str, float], weights: Mapping[str, float]) -> Score:
    if score.error:
        return score
    taken = score.components.keys() & extra.keys()
    if taken:
        raise RewardFailed(f"the reward names a component {min(taken)!r}, which the trainer adds itself; rename it")
    return Score.of({**score.components, **extra}, weights, score.steps)


def _extra_components(
    pairs: Sequence[tuple[Prompt, Rollout]], config: Config, learner: Learner
) -> list[Mapping[str, float]]:
    columns: dict[str, list[float]] = {}
    if config.rollout.truncated == "penalise":
        lengths = torch.tensor([float(len(rollout.tokens)) for _, rollout in pairs])
        penalties = overlong_penalty(lengths, config.rollout.max_tokens, config.rollout.penalty_tokens)
        columns["overlong"] = penalties.tolist()
    if _kl_in_reward(config):
        samples = [Sample(prompt, rollout, 0.0, in_loss=True) for prompt, rollout in pairs]
        by_row = {
            row: kl
            for whole in pack_for_policy(
                learner.policy, config, samples, range(len(samples)), minibatches=config.optimizer.minibatches
            )
            for batch in whole.microbatches
            for row, kl in zip(batch.rows, learner.sequence_kl(batch), strict=True)
        }
        columns["reference_kl"] = [by_row[row] for row in range(len(pairs))]
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
