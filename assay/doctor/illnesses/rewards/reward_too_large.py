"""
## What it checks
No reward may be beyond 10,000, on either side of 0, whatever text it is given for.

## Why it hurts
One such answer drowns its whole group, and float32 loses the differences of the others, which advantages are made of.

## How to fix it
Scale or cap the reward, for instance to 0..1.

    # before
    return profit_in_cents
    # after
    return min(max(profit_in_cents / 1e6, -1.0), 1.0)

## When it is wrong
Where advantages are divided by the std of the group and all rewards of a group are of that size.
"""

from assay.doctor.catalogue import illness
from assay.doctor.evidence.reward import RewardTrial, Role
from assay.doctor.examples.reward import reward_evidence
from assay.verdict import Severity, Verdict, finding, healthy, not_enough_data

LARGEST_REWARD = 1e4  # beyond it float32 loses the differences that advantages are made of


def check_reward(trial: RewardTrial) -> Verdict:
    if not trial.of():
        return not_enough_data("nothing was scored")
    largest = max(trial.of(), key=lambda score: abs(score.reward or 0.0))
    if abs(largest.reward or 0.0) <= LARGEST_REWARD:
        return healthy(f"rewards stay within {abs(largest.reward or 0.0):g}")
    return finding(f"a reward of {largest.reward:g} is beyond {LARGEST_REWARD:g}", examples=(str(largest),))


ILLNESS = illness(
    __name__,
    code="REW11",
    severity=Severity.HARMFUL,
    summary="a reward is beyond 10,000",
    fix="Scale or cap the reward, for instance to 0..1: one such answer drowns its whole group.",
    symptoms=("reward is huge", "reward scale too large"),
    sick=lambda: reward_evidence({Role.RIGHT: 10_001.0}),
    well=lambda: reward_evidence({Role.RIGHT: 10_000.0}),
)
