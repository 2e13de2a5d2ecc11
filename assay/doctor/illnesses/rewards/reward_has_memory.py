"""
## What it checks
A call that is repeated in the same process, and the same texts as one batch in reverse order, must give the same
rewards as each text alone.

## Why it hurts
The reward keeps state between calls, or compares the completions of a batch with each other. What a text gets then
depends on the number of workers and on the order of answers, which differ from step to step.

## How to fix it
Keep no state between calls, and judge each completion alone: to compare a group is the advantage's work.

    # before: a text is paid once
    is_new = completion not in seen
    seen.add(completion)
    return float(is_new and completion == answer)
    # after
    return float(completion == answer)

## When it is wrong
A reward that pays for variety within a batch is meant so; its rewards then depend on the batch on purpose.
"""

from assay.doctor.catalogue import illness
from assay.doctor.evidence import RewardTrial
from assay.doctor.examples.reward import one_change, reward_evidence
from assay.doctor.facts.rewards import judge_repeats
from assay.verdict import Severity, Verdict


def check_reward(trial: RewardTrial) -> Verdict:
    again = {"repeated calls": trial.repeated, "answers in one reversed batch": trial.reversed_batch}
    return judge_repeats(again, "no answer was scored twice")


ILLNESS = illness(
    __name__,
    code="REW09",
    severity=Severity.HARMFUL,
    summary="a repeated call, or another cut or order of the batch, changes a reward",
    fix="Keep no state between calls, and judge each completion alone: group comparison is the advantage's work.",
    symptoms=("reward depends on the order", "reward has state", "reward changes between calls"),
    sick=lambda: reward_evidence(repeated=one_change()),
    well=reward_evidence,
    explains=frozenset(
        {"REW03", "REW04", "REW05", "REW06", "REW07", "REW10", "REW13", "REW14", "REW16", "REW17", "ADV04", "ADV09"}
    ),
)
