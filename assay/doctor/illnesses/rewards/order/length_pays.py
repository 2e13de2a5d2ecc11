"""
## What it checks
Wrong answers after ever more talk are scored. Their rewards must not grow with their length, and none of them may reach
the right answer.

## Why it hurts
If length alone is paid, answers grow until the token limit, and where a long wrong answer reaches the right one nobody
has a reason left to be right.

## How to fix it
Cap what grows with length below the distance between right and wrong, or drop it.

    # before: talk outweighs truth
    return is_right + 0.001 * len(completion)
    # after
    return is_right + 0.1 * min(len(completion) / 1000, 1.0)

## When it is wrong
Where long answers are wanted; as long as they do not reach the right answer, the finding is only possible.
"""

import math
import statistics

from assay.doctor.catalogue import illness
from assay.doctor.evidence.reward import ProbeScore, RewardTrial, Role
from assay.doctor.examples.reward import reward_evidence
from assay.doctor.facts.rewards import LENGTH_SHARE, by_problem, judge_order, lead, rivals
from assay.verdict import Confidence, Severity, Verdict, finding, healthy, not_enough_data

CORRELATION = 0.8  # of reward and log length, over wrong answers that differ in length alone


def check_reward(trial: RewardTrial) -> Verdict:
    ladders = [scores for scores in by_problem(trial.of(Role.LONG)).values() if len(scores) >= 3]
    if not ladders:
        return not_enough_data("no wrong answers of several lengths were scored")
    leads = [lead(*pair) for pair in rivals(trial, Role.WRONG)]
    scale = max(map(abs, leads), default=1.0) or 1.0
    correlation, spread = max(_growth(ladder, LENGTH_SHARE * scale) for ladder in ladders)
    numbers = f"correlation of reward with log length {correlation:+.2f}, rewards differ by {spread:g}"
    if correlation < CORRELATION:
        return healthy(f"longer wrong answers are not paid more ({numbers})")
    ahead = [pair for pair in rivals(trial, Role.LONG) if lead(*pair) <= 0]
    if ahead and max(leads, default=0.0) > 0:
        what = f"a wrong answer need only be long to get as much as the right one ({numbers})"
        return judge_order(trial, ahead, ahead, what, fine="")
    return finding(
        f"among wrong answers the longer ones get more ({numbers})",
        severity=Severity.HARMFUL,
        confidence=Confidence.POSSIBLE,
        fix="Cap or drop what grows with length, unless longer answers are what you want.",
    )


def _growth(scores: list[ProbeScore], least: float) -> tuple[float, float]:
    """Correlation of reward with log length, 0 where the rewards differ by no more than `least`; and their spread."""
    rewards = [score.reward or 0.0 for score in scores]
    spread = max(rewards) - min(rewards)
    if spread <= least:
        return 0.0, spread
    return statistics.correlation([math.log(len(score.probe.text)) for score in scores], rewards), spread


ILLNESS = illness(
    __name__,
    code="REW13",
    severity=Severity.FATAL,
    summary="among wrong answers the longer get more",
    fix="Cap what grows with length below the distance between right and wrong.",
    symptoms=(
        "reward by length",
        "longer answers get more reward",
        "completions get longer",
        "model pads its answers",
    ),
    sick=lambda: reward_evidence({Role.LONG: 0.4}),
    well=lambda: reward_evidence({Role.LONG: 0.01}),
)
