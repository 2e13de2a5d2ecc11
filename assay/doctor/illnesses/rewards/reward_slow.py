"""
## What it checks
The time of each call is taken. Scoring one step (rollout.prompts x rollout.group_size answers, reward.workers at a
time) must take no more than 30 s.

## Why it hurts
Every step waits for its rewards, and the GPU waits with it: the run pays for time in which nothing is learned.

## How to fix it
Make it faster, or raise reward.workers if there are as many cores.

    # before: the pattern is compiled, and the answer parsed, in every call
    return float(parse(answer) == parse(re.compile(PATTERN).search(completion)))
    # after: PATTERN is compiled once; parse has a cache
    return float(parse(answer) == parse(PATTERN.search(completion)))

## When it is wrong
Calls on this machine may be slower than where the run takes place, or faster if they share a cache there.
"""

import math
import statistics

from assay.doctor.catalogue import illness
from assay.doctor.evidence import RewardTrial
from assay.doctor.examples.reward import reward_evidence
from assay.verdict import Severity, Verdict, finding, healthy, not_enough_data

LONGEST_STEP = 30.0  # seconds of scoring


def check_reward(trial: RewardTrial) -> Verdict:
    times = sorted(score.seconds for score in trial.of() if score.seconds is not None)
    if not times:
        return not_enough_data("no call was timed")
    step = statistics.fmean(times) * trial.rollouts_per_step / trial.scored_at_once
    percentile = times[min(len(times) - 1, math.ceil(0.95 * len(times)) - 1)]
    numbers = (
        f"a call takes {statistics.median(times):.2g} s (median), {percentile:.2g} s (p95), {times[-1]:.2g} s (most);"
        f" {trial.rollouts_per_step} answers per step, {trial.scored_at_once} at a time: {step:.3g} s per step"
    )
    if step <= LONGEST_STEP:
        return healthy(numbers)
    workers = math.ceil(trial.scored_at_once * step / LONGEST_STEP)
    return finding(
        f"scoring one step would take {step:.0f} s",
        fix=f"Make it faster, or set reward.workers = {workers} if there are as many cores.",
        examples=(numbers,),
    )


ILLNESS = illness(
    __name__,
    code="REW15",
    severity=Severity.WASTEFUL,
    summary="scoring one step takes more than 30 s",
    fix="Make it faster, or raise reward.workers if there are as many cores.",
    symptoms=("reward is slow", "reward function takes too long", "scoring is slow"),
    sick=lambda: reward_evidence(rollouts_per_step=40_000),
    well=lambda: reward_evidence(rollouts_per_step=40_000, scored_at_once=2),
)
