"""
## What it checks
A second process that is asked the same texts in the same order must give the same rewards.

## Why it hurts
Noise in the reward is noise in the gradient: it must be averaged away by more rollouts, and no run can be repeated.

## How to fix it
Draw no random numbers, read no clock, iterate over no set.

    # before
    return is_right + 0.1 * random.random()
    # after
    return is_right

## When it is wrong
A judge that samples is reported too, as it should be: ask it at temperature 0, or more than once.
"""

from assay.doctor.catalogue import illness
from assay.doctor.evidence import RewardTrial
from assay.doctor.examples.reward import one_change, reward_evidence
from assay.doctor.facts.rewards import judge_repeats
from assay.verdict import Severity, Verdict


def check_reward(trial: RewardTrial) -> Verdict:
    return judge_repeats({"answers in a second process": trial.new_process}, "no answer was scored in two processes")


ILLNESS = illness(
    __name__,
    code="REW08",
    severity=Severity.HARMFUL,
    summary="a second process, asked the same in the same order, gives other rewards",
    fix="Draw no random numbers, read no clock, iterate over no set: noise in the reward is noise in the gradient.",
    symptoms=("reward is random", "reward is not deterministic", "same completion gets different rewards"),
    sick=lambda: reward_evidence(new_process=one_change()),
    well=reward_evidence,
    explains=frozenset(
        {"REW03", "REW04", "REW05", "REW06", "REW07", "REW09", "REW10", "REW13", "REW16", "REW17", "ADV04"}
    ),
)
