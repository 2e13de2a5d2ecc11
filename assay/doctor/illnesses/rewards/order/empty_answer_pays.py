"""
## What it checks
The empty text must get less than the right answer, on every problem that was drawn from the task.

## Why it hurts
A policy learns to end at once: the empty text is the easiest of all to produce.

## How to fix it
Give 0 to an empty completion before anything is compared: an empty string is contained in every other.

    # before: every answer starts with nothing
    return float(answer.startswith(completion.strip()))
    # after
    return float(completion.strip() == answer)

## When it is wrong
Where saying nothing is the right answer to a problem, as for a question that should be refused.
"""

from assay.doctor.catalogue import illness
from assay.doctor.evidence.reward import RewardTrial, Role
from assay.doctor.examples.reward import reward_evidence
from assay.doctor.facts.rewards import pays_as_much
from assay.verdict import Severity, Verdict


def check_reward(trial: RewardTrial) -> Verdict:
    return pays_as_much(trial, Role.EMPTY, "the empty answer gets as much as the right one")


ILLNESS = illness(
    __name__,
    code="REW05",
    severity=Severity.FATAL,
    summary="the empty answer gets as much as the right one",
    fix="Give 0 to an empty completion.",
    symptoms=(
        "empty answer gets reward",
        "model answers with nothing",
        "model outputs empty completions",
        "answers get shorter",
    ),
    sick=lambda: reward_evidence({Role.EMPTY: 1.0}),
    well=lambda: reward_evidence({Role.EMPTY: 0.9}),
    explains=frozenset({"REW17"}),
)
