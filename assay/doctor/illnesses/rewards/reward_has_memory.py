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

from assay.doctor.catalogue import Illness
from assay.doctor.evidence import RewardTrial
from assay.doctor.examples.reward import one_change, reward_evidence
from assay.doctor.facts.rewards import different_pairs, unsteady_finding
from assay.verdict import Severity, Verdict, healthy, not_enough_data


def check_reward(trial: RewardTrial) -> Verdict:
    if not trial.repeated and not trial.reversed_batch:
        return not_enough_data("no answer was scored twice")
    later, in_batch = different_pairs(trial.repeated), different_pairs(trial.reversed_batch)
    if not later and not in_batch:
        return healthy(
            f"{len(trial.repeated)} repeated calls and {len(trial.reversed_batch)} answers as one reversed batch: "
            "no change"
        )
    seen = [f"{len(later)} of {len(trial.repeated)} repeated calls"] if later else []
    seen += [f"{len(in_batch)} of {len(trial.reversed_batch)} answers in one reversed batch"] if in_batch else []
    return unsteady_finding(
        f"the reward depends on what else was scored: {' and '.join(seen)} get another reward", later + in_batch
    )


ILLNESS = Illness(
    code="REW09",
    name="reward_has_memory",
    severity=Severity.HARMFUL,
    summary="a repeated call, or another cut or order of the batch, changes a reward",
    fix="Keep no state between calls, and judge each completion alone: group comparison is the advantage's work.",
    explanation=__doc__,
    symptoms=("reward depends on the order", "reward has state", "reward changes between calls"),
    sick=lambda: reward_evidence(repeated=one_change()),
    well=reward_evidence,
    reward=check_reward,
    explains=frozenset(
        {"REW03", "REW04", "REW05", "REW06", "REW07", "REW10", "REW13", "REW14", "REW16", "REW17", "ADV04", "ADV09"}
    ),
)
