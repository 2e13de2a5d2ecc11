"""Held-out evaluation: one greedy and several sampled answers to problems that training never sees.

    Problem[P] --> Rollout[P][1 + samples] --> Score --> Evaluation (a row, and some answers in words)

The reward is that of the functions alone: no KL, no length penalty. An answer that could not be scored is counted as
such; it is in no mean reward, and it has not passed.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from assay.config import Config
from assay.engine.engine import Engine
from assay.policy.codec import PromptTooLong
from assay.policy.policy import Policy
from assay.record.evaluations import HeldoutAnswers
from assay.rewards import Reward
from assay.tasks import Task
from assay.train.randomness import derived_seed
from assay.train.step.failed_rewards import FailedRewards
from assay.types import Problem, Prompt, Rollout, Score

EvaluationRow = dict[str, float | int | None]

FRUITLESS = 64  # numbers without a new problem after which the search for held-out ones ends
WORDS = 32  # prompts whose answers are kept as text
ROUNDING = 1e-9  # a weighted sum may miss pass_reward by its last bits


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The row for evaluations.jsonl, and the first answers in words."""

    row: EvaluationRow
    answers: tuple[HeldoutAnswers, ...]


def heldout_prompts(task: Task, policy: Policy, config: Config) -> list[Prompt]:
    """The first evaluate.prompts held-out problems that differ: no problem counts twice.

    They are fewer if the task has fewer: the search ends after as many numbers without a new problem as there are
    prompts to find, at least 64.
    """
    found: dict[str, Problem] = {}
    number = last_new = 0
    while len(found) < config.evaluate.prompts and number - last_new < max(FRUITLESS, config.evaluate.prompts):
        problem = task.heldout_problem(number)
        number += 1
        content = _content(problem, task)
        if content not in found:
            found[content] = problem
            last_new = number
    prompts = []
    for problem in found.values():
        try:
            prompts.append(policy.prompt(problem, config.rollout.max_tokens))
        except PromptTooLong:
            if config.task.long_prompts == "fail":
                raise
    if found and not prompts:
        raise PromptTooLong("every held-out prompt leaves no room for an answer; lower rollout.max_tokens")
    return prompts


def _content(problem: Problem, task: Task) -> str:
    """What distinguishes two problems: all but the id, which says where a problem was found.

    The fields of a task that is scored elsewhere say how the problem was generated; equal problems may differ in them.
    """
    fields = {} if task.own_reward else dict(problem.fields)
    return json.dumps([problem.text, list(map(dict, problem.messages)), problem.answer, fields], sort_keys=True)


def evaluate(
    engine: Engine,
    policy: Policy,
    task: Task,
    reward: Reward,
    config: Config,
    step: int,
    on_token: Callable[[int, int], None],
    on_scored: Callable[[int, int], None],
    failures: FailedRewards | None = None,
) -> Evaluation:
    """Evaluates the policy after `step`. Every call uses the same problems and the same random numbers."""
    return answer(engine, heldout_prompts(task, policy, config), reward, config, step, on_token, on_scored, failures)


def answer(
    engine: Engine,
    prompts: Sequence[Prompt],
    reward: Reward,
    config: Config,
    step: int,
    on_token: Callable[[int, int], None] = lambda done, of: None,
    on_scored: Callable[[int, int], None] = lambda done, of: None,
    failures: FailedRewards | None = None,
) -> Evaluation:
    """One greedy and evaluate.samples sampled answers to each prompt, scored."""
    failures = failures or FailedRewards(config)
    engine.publish()
    greedy, sampled = (
        engine.generate(
            prompts,
            group_size=group_size,
            settings=config.rollout,
            seed=derived_seed(config.run.seed, "evaluation"),
            policy_version=-1,
            greedy=is_greedy,
            on_token=on_token,
        )
        for group_size, is_greedy in ((1, True), (config.evaluate.samples, False))
    )
    engine.release()
    tries = [[*likeliest, *others] for likeliest, others in zip(greedy, sampled, strict=True)]
    pairs = [(prompt, rollout) for prompt, rollouts in zip(prompts, tries, strict=True) for rollout in rollouts]
    scored = reward.score(pairs, failures.count(pairs, on_scored))
    failures.look_at(pairs, scored)
    answers = 1 + config.evaluate.samples
    scores = [scored[first : first + answers] for first in range(0, len(scored), answers)]
    return Evaluation(
        evaluation_row(step, tries, scores, config.evaluate.pass_reward),
        tuple(
            _in_words(prompt, rollouts, own)
            for prompt, rollouts, own in list(zip(prompts, tries, scores, strict=True))[:WORDS]
        ),
    )


def evaluation_row(
    step: int, tries: Sequence[Sequence[Rollout]], scores: Sequence[Sequence[Score]], pass_reward: float
) -> EvaluationRow:
    """One row of evaluations.jsonl. Of each prompt, the first rollout is the greedy one."""
    greedy = [own[0] for own in scores]
    sampled = [score for own in scores for score in own[1:]]
    rollouts = [rollout for own in tries for rollout in own[1:]]
    samples = len(scores[0]) - 1
    passed = [sum(_passes(score, pass_reward) for score in own[1:]) for own in scores]
    shares = [count / samples for count in passed]
    return {
        "step": step,
        "prompts": len(scores),
        "samples": samples,
        "reward_greedy": _mean_reward(greedy),
        "reward_greedy_std_error": _std_error([_mean_reward(own[:1]) for own in scores]),
        "reward_sampled": _mean_reward(sampled),
        "reward_sampled_std_error": _std_error([_mean_reward(own[1:]) for own in scores]),
        "unscored_greedy": sum(score.reward is None for score in greedy),
        "unscored_sampled": sum(score.reward is None for score in sampled),
        "pass_greedy": statistics.fmean(_passes(score, pass_reward) for score in greedy),
        "pass_at_1": statistics.fmean(shares),
        "pass_at_1_std_error": _std_error(shares),
        "pass_at_k": statistics.fmean(pass_at_k(samples, count, samples) for count in passed),
        "k": samples,
        "truncated_share": statistics.fmean(rollout.truncated for rollout in rollouts),
        "length_mean": statistics.fmean(len(rollout.tokens) for rollout in rollouts),
        **_component_means(greedy, sampled),
    }


def _std_error(of_prompts: Sequence[float | None]) -> float | None:
    """Of the mean over prompts: answers to one prompt are alike, so what varies independently is the prompt."""
    known = [value for value in of_prompts if value is not None]
    return statistics.stdev(known) / math.sqrt(len(known)) if len(known) > 1 else None


def _component_means(greedy: Sequence[Score], sampled: Sequence[Score]) -> EvaluationRow:
    means: EvaluationRow = {}
    for name in sorted({name for score in (*greedy, *sampled) for name in score.components}):
        for kind, scores in {"greedy": greedy, "sampled": sampled}.items():
            values = [score.components[name] for score in scores if name in score.components]
            means[f"reward_{name}_{kind}"] = statistics.fmean(values) if values else None
    return means


def pass_at_k(n: int, c: int, k: int) -> float:
    """How likely it is that k of n answers, of which c pass, hold one that passes: 1 - C(n-c, k) / C(n, k).

    This is the unbiased estimate from n samples of what k new ones would give (Chen et al. 2021, HumanEval, eq. 1).

    >>> pass_at_k(4, 1, 1), pass_at_k(4, 2, 2), pass_at_k(4, 1, 4)
    (0.25, 0.8333333333333334, 1.0)
    """
    if not (0 <= c <= n and 1 <= k <= n):
        raise ValueError(f"pass@{k} of {c} among {n} answers is not defined: 0 <= c <= n and 1 <= k <= n must hold")
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def _passes(score: Score, pass_reward: float) -> bool:
    return score.reward is not None and score.reward >= pass_reward - ROUNDING


def _mean_reward(scores: Sequence[Score]) -> float | None:
    rewards = [score.reward for score in scores if score.reward is not None]
    return statistics.fmean(rewards) if rewards else None


def _in_words(prompt: Prompt, rollouts: Sequence[Rollout], scores: Sequence[Score]) -> HeldoutAnswers:
    return HeldoutAnswers(
        id=prompt.id,
        prompt=prompt.text,
        answer=prompt.answer,
        greedy=rollouts[0].text,
        greedy_reward=scores[0].reward,
        sampled=tuple(rollout.text for rollout in rollouts[1:]),
        sampled_rewards=tuple(score.reward for score in scores[1:]),
        error=next((score.error for score in scores if score.error), ""),
    )
