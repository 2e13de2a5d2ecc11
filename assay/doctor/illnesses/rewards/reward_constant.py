"""
## What it checks
Different answers must be able to earn different rewards. The check looks for a batch in which every scored row has the
same reward although the completions differ, and the reward is neither the best nor the worst one. In the curves it
looks for rewards that never vary, within a step or between steps, at an end of the scale too, and for rewards that fail
for most rollouts. A reward
that is called by reward-check must give different texts different rewards.

## Why it hurts
Equal rewards have no advantage: the gradient is 0, and the run costs as much as one that learns. The usual cause is an
exception inside the reward that is caught and turned into a number, a parser that never matches, or a judge that gives
one mark to everything.

## How to fix it
Let a failing reward fail, and try it on a right and on a wrong answer before training.

    # before: every answer is worth 0.5 once the parser breaks
    try:
        return grade(parse(completion), answer)
    except Exception:
        return 0.5
    # after: a failure is recorded as one
    return grade(parse(completion), answer)

## When it is wrong
A batch whose rewards are all the best may be solved, one whose rewards are all the worst may be too hard: only many
steps of it are likely to be a fault, and then the run learns nothing either way. A run whose rewards varied before, or
whose evaluation is near 1, is solved. A reward of few levels can give a small batch the same one by chance.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from assay.doctor.catalogue import Scripts, illness
from assay.doctor.evidence import Batch, Curves, Evidence, RewardTrial
from assay.doctor.evidence.reward import Role
from assay.doctor.examples import B, edit_batch, healthy_batch, healthy_curves, of_the_loss
from assay.doctor.examples.reward import reward_evidence
from assay.doctor.examples.scripts import GRPO
from assay.doctor.facts.rewards import TOLERANCE, completion_rewards, reads_no_answer
from assay.doctor.facts.trend import has_varied, is_solved_by_evaluation
from assay.doctor.illnesses.metrics.reward_hacking import TRAINERS_OWN
from assay.machine.terminal import quote
from assay.programs.facts.advantages.advantages import policy_weights
from assay.programs.facts.rewards.flaws import (
    constant_rewards,
    cut_off_rewards,
    random_rewards,
    swallowed_errors,
    unequal_comparisons,
)
from assay.programs.graph import Value
from assay.programs.program import Program
from assay.programs.run.roles import flows
from assay.programs.run.sight import numbers_of
from assay.programs.run.watched import WatchedRun
from assay.verdict import (
    Confidence,
    Fact,
    Severity,
    Verdict,
    finding,
    healthy,
    not_applicable,
    not_enough_data,
    seen_directly,
)

FEWEST_ROWS = 8  # different completions: fewer may well be worth the same
STEPS = 3  # a constant over fewer is one batch seen twice
FAILED = 0.5  # of the rollouts without a reward: more than half is a broken reward, not a hard case
OF_MEANS_ALONE = 10  # steps, where only the mean of a step is known
# steps and rows with one and the same reward, from which on it is not chance; where rows are not known, twice the steps
MANY = {"": (3, 24), "best": (5, 40), "worst": (5, 64)}  # a hard task has no right answer for a while
_WORDS = {
    "": ", neither the best nor the worst one",
    "best": ", the best one, and it never varied: nothing is learned, and the reward may give it to every answer",
    "worst": ", the worst one, and it never varied: nothing is learned; no answer was right, or none is recognised",
}
_FIXES = {
    "": "Do not turn exceptions into rewards; try the reward on right and wrong answers (assay reward-check).",
    "best": "Try the reward on a wrong answer (assay reward-check): if that is worth less, take harder prompts.",
    "worst": "Try the reward on a right answer in the form that the policy writes (assay reward-check): a parser that "
    "never matches is usual. If it is recognised, take easier prompts, partial credit or more rollouts per prompt.",
}
CONVENTIONAL = (-1.0, 0.0, 1.0)  # the ends of a scale that is not stated
RUN_ROLLOUTS, RUN_ROWS = 3, 12  # of a run with one and the same reward: fewer may well be


def check_batch(batch: Batch) -> Verdict:
    (rewards_B,) = batch.need("rewards")
    scored_B = np.isfinite(rewards_B)
    if scored_B.sum() < FEWEST_ROWS:
        return not_enough_data(f"rewards of {FEWEST_ROWS} rows")
    lowest, highest = float(rewards_B[scored_B].min()), float(rewards_B[scored_B].max())
    facts = (Fact("lowest reward", lowest, step=batch.step), Fact("highest reward", highest, step=batch.step))
    if highest > lowest:
        return healthy("rewards vary", *facts)
    if highest >= batch.settings.get("max_reward", np.inf):
        return not_applicable(f"every reward is {highest:g}, the best one: solved, or a reward that every answer gets")
    if _is_an_end(lowest, batch.settings):
        return not_applicable(f"every reward is {lowest:g}, an end of the scale: zero_signal says what that can mean")
    different = _different(batch, scored_B)
    if different is None:
        return not_enough_data("tokens or completion texts: whether the completions differ")
    if different < FEWEST_ROWS:
        return not_applicable(f"only {different} different completions: equal answers earn equal rewards")
    is_stated = {"min_reward", "max_reward"} <= batch.settings.keys()
    return finding(
        f"all {int(scored_B.sum())} rewards are {lowest:g}, although {different} different completions were scored and "
        f"it is {'neither the best nor the worst reward' if is_stated else 'no usual end of a scale'}",
        *facts,
        Fact("different completions", different, FEWEST_ROWS, batch.step),
        # of a scale that is not stated it may be the best: a solved batch
        confidence=Confidence.LIKELY if is_stated else Confidence.POSSIBLE,
        severity=None if is_stated else Severity.HARMFUL,
    )


def check_curves(curves: Curves) -> Verdict:
    if curves.has("rollouts_scored", "rollouts_unscored"):
        scored_N, unscored_N = curves.need("rollouts_scored", "rollouts_unscored")
        failed = float(np.nansum(unscored_N) / max(np.nansum(unscored_N) + np.nansum(scored_N), 1.0))
        if failed > FAILED:
            return finding(
                f"{failed:.0%} of the rollouts got no reward because scoring failed",
                Fact("share of unscored rollouts", failed, FAILED),
            )
    (mean_N,) = curves.need("reward_mean")
    mean_N = mean_N[np.isfinite(mean_N)]
    steps, rows = len(mean_N), _rows(curves)
    if steps < STEPS:
        return not_enough_data(f"reward_mean of {STEPS} steps")
    fact = Fact("range of reward_mean over the steps", float(np.ptp(mean_N)))
    if has_varied(curves):
        return _of_parts(curves) or healthy("rewards vary", fact)
    if not curves.has("reward_std") and not curves.has("reward_min", "reward_max") and steps < OF_MEANS_ALONE:
        return not_enough_data(f"reward_std, or reward_mean of {OF_MEANS_ALONE} steps")
    if is_solved_by_evaluation(curves):
        return healthy("every reward is the same, and an evaluation says that the task is solved", fact)
    value, bounds = float(mean_N[0]), _bounds(curves.settings)
    kind = "best" if value >= bounds[1] else "worst" if value <= bounds[0] else ""
    needed_steps, needed_rows = MANY[kind]
    is_many = steps >= needed_steps and (rows >= needed_rows if rows else steps >= 2 * needed_steps)
    facts = (fact, Fact("steps", steps, needed_steps), *([Fact("rows", rows, needed_rows)] if rows else []))
    return seen_directly(
        f"every reward of all {steps} steps{f' ({rows} rows)' if rows else ''} is {value:g}{_WORDS[kind]}",
        *facts,
        confidence=Confidence.LIKELY if is_many else Confidence.POSSIBLE,
        severity=None if is_many else Severity.HARMFUL,
        fix=_FIXES[kind],
    )


def _of_parts(curves: Curves) -> Verdict | None:
    """A finding where a part of the reward is 0 for every answer of the run, while another one varies."""
    names = {name for row in curves.rows for name in row if name.startswith("reward_") and name.endswith("_mean")}
    parts = {name: curves.column(name) for name in sorted(names - {"reward_mean", *TRAINERS_OWN})}
    dead = [
        name
        for name, mean_N in parts.items()
        if np.isfinite(mean_N).sum() >= OF_MEANS_ALONE and not np.nan_to_num(mean_N).any()
    ]
    if not dead or len(dead) == len(parts):
        return None
    return seen_directly(
        f"the part {quote(dead[0])} of the reward is 0 in all {int(np.isfinite(parts[dead[0]]).sum())} steps and never "
        "varied: no answer earns it, or its parser never matches; only the other parts are trained",
        Fact("parts of the reward that are 0 throughout", len(dead), 0),
        confidence=Confidence.POSSIBLE,  # a penalty that no answer earns
        severity=Severity.HARMFUL,
    )


def _rows(curves: Curves) -> int:
    """Rewards that were given; 0 where that is not known."""
    if curves.has("rollouts_scored"):
        return int(np.nansum(curves.need("rollouts_scored")[0]))
    a_step = int(curves.settings.get("group_size", 0)) * int(curves.settings.get("prompts", 0))
    return a_step * int(np.isfinite(curves.column("reward_mean")).sum())


def _bounds(settings: Mapping[str, Any]) -> tuple[float, float]:
    """(worst, best) of the scale: as stated, else the usual ends. A scale made of the constant itself is none."""
    low, high = settings.get("min_reward"), settings.get("max_reward")
    if low is not None and low == high:
        low = high = None
    return 0.0 if low is None else float(low), 1.0 if high is None else float(high)


def check_source(program: Program) -> Iterator[Verdict]:
    """Rewards that do not depend on the completion, as far as the text proves it."""
    seen: set[int] = set()
    for look in (swallowed_errors, unequal_comparisons, random_rewards, constant_rewards, cut_off_rewards):
        for flaw in look(program):
            place = flaw.value.place
            if place.line not in seen:
                seen.add(place.line)
                why = (f"line {place.line}: a reward is made of `{place.text}`",)
                yield finding(f"`{place.text}`: {flaw.reason}", places=(place,), why=why, fix=flaw.fix)
    if not seen:
        for weight in policy_weights(program):
            yield healthy("the rewards are computed, and no error in them is hidden", places=(weight.place,))


def check_run(run: WatchedRun) -> Iterator[Verdict]:
    rewards = [(batch.step, batch.get("rewards")) for batch in run.batches]
    known = [(step, rewards_B) for step, rewards_B in rewards if step is not None and rewards_B is not None]
    rollouts = len({step for step, _ in known})
    if not known:
        yield from _nothing_pulls(run)
    if rollouts < RUN_ROLLOUTS:
        return
    rewards_N = np.concatenate([rewards_B for _, rewards_B in known])
    if len(rewards_N) >= RUN_ROWS and np.ptp(rewards_N) == 0:
        yield finding(
            f"all {len(rewards_N)} rewards of {rollouts} rollout batches are {rewards_N[0]:g}: the reward does not "
            "depend on the completion",
            confidence=Confidence.LIKELY,
        )


def _nothing_pulls(run: WatchedRun) -> Iterator[Verdict]:
    """Where the rewards themselves are not known: log-probs that are multiplied by 0 in all rollouts."""
    pulls = [(batch.step, batch.get("gradients")) for batch in run.batches]
    known = [(step, gradients_BT) for step, gradients_BT in pulls if gradients_BT is not None and step is not None]
    steps, actions = {step for step, _ in known}, sum(gradients_BT.size for _, gradients_BT in known)
    if len(known) < len(pulls) or len(steps) < RUN_ROLLOUTS or actions < RUN_ROWS:
        return
    if any(np.nan_to_num(gradients_BT, nan=1.0).any() for _, gradients_BT in known):
        return
    zeros = [weight for _, flow in flows(run) for new in flow.finals for _, _, weight in flow.sides("mul", new)]
    weight = next((value for value in zeros if _is_zero(value)), None)
    if weight is not None:
        yield finding(
            f"all of {actions} log-probs in {len(steps)} rollout batches are multiplied by 0: every advantage is 0, as "
            "where the reward never varies",
            confidence=Confidence.LIKELY,
            places=(weight.place,),
        )


def _is_zero(value: Value) -> bool:
    numbers = numbers_of(value)
    return numbers is not None and numbers.size > 1 and not numbers.any()


def check_reward(trial: RewardTrial) -> Verdict:
    rewards = [score.reward or 0.0 for score in trial.of()]
    texts = {score.probe.text for score in trial.of()}
    if len(texts) < 3 or len({score.probe.role for score in trial.of()}) < 2:
        return not_enough_data("fewer than 3 different texts, right answers and others, were scored")
    # a batch function may give a lone answer always the same
    batched = [later.reward for _, later in (*trial.reversed_batch, *trial.parallel) if later.reward is not None]
    every = [*rewards, *completion_rewards(trial), *batched]
    if max(every) - min(every) > TOLERANCE:
        return healthy(f"rewards from {min(rewards):g} to {max(rewards):g} over {len(texts)} texts")
    if reads_no_answer(trial) and rewards[0] == 0:
        return not_enough_data("a text of the form wanted: give completions with --completions FILE.jsonl")
    return finding(
        f"{len(texts)} different texts all get {rewards[0]:g}",
        confidence=Confidence.PROVEN if trial.of(Role.RIGHT) else Confidence.LIKELY,
        fix="Look for an except that swallows errors into a constant, or a form of answer that is never matched.",
    )


def _is_an_end(value: float, settings: Mapping[str, Any]) -> bool:
    if "min_reward" in settings:
        return bool(value <= settings["min_reward"])
    return value in CONVENTIONAL


def _different(batch: Batch, scored_B: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> int | None:
    tokens_BT = batch.get("tokens")
    if tokens_BT is not None:
        return len(np.unique(tokens_BT[scored_B], axis=0))
    texts = batch.texts.get("completion")
    return None if texts is None else len({text for text, scored in zip(texts, scored_B, strict=True) if scored})


def sick() -> Evidence:
    curves = healthy_curves(reward_mean=0.5, reward_std=0.0, reward_min=0.5, reward_max=0.5)
    return Evidence((_all_worth(0.5),), curves, reward=reward_evidence({Role.RIGHT: 0.0}, groups=()).reward)


def _all_worth(reward: float) -> Batch:
    """A batch without KL in which every row has this reward; what a loss made of it is left out."""
    batch = healthy_batch()
    unknown = ("update_norm", "tensors_changed", "tensors_without_gradient", "numbers_changed_share")
    nothing = {"advantages": np.zeros(B), "gradient_norm": 0.0, "kl_coef": 0.0}
    changes = {**of_the_loss(batch), **dict.fromkeys(unknown), **nothing}
    return edit_batch(batch, rewards=np.full(B, reward), reward_mean=reward, **changes)


WELL = (
    GRPO.replace("import prompts_of, rewards_of", "import decode, prompts_of")
    .replace(
        "def score(",
        "def reward(text):\n    try:\n        return float(text.split('=')[1])\n"
        "    except (IndexError, ValueError):\n        return 0.0\n\n"
        "def score(",
    )
    .replace(
        "rewards_of(ids[:, start:])", "torch.tensor([reward(''.join(decode(row))) for row in ids[:, start:].tolist()])"
    )
)


SICK = WELL.replace("text.split('=')[1])", "text['answer'])")


ILLNESS = illness(
    __name__,
    code="REW01",
    severity=Severity.FATAL,
    summary="every answer gets the same reward",
    fix="Do not turn exceptions into rewards; try the reward on right and wrong answers (assay reward-check).",
    symptoms=(
        "reward is constant",
        "reward is always the same",
        "reward is always 0",
        "reward stays at 0",
        "reward does not move",
        "every answer gets the same reward",
        "reward does not increase",
    ),
    sick=sick,
    well=lambda: Evidence((healthy_batch(),), healthy_curves(), reward=reward_evidence().reward),
    scripts=Scripts(SICK, WELL),
    explains=frozenset({"ADV09", "LOSS05", "MET05", "MET07", "OPT02", "RAT02", "MET01"})
    | {"REW04", "REW05", "REW06", "REW07", "REW12", "REW14", "REW16", "REW17"},
)
