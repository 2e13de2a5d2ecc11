"""
## What it checks
A text without any answer must get less than the right answer. Words, marks and the word None are scored beside it.

## Why it hurts
The shortest way to full marks is then a text that holds no answer, and a policy that explores finds it.

## How to fix it
Give 0 to a text from which no answer can be read.

    # before: what is compared is whether there is a text
    return float(bool(completion) == bool(answer))
    # after
    return float(completion.strip() == answer)

## When it is wrong
A reward that is not about answers, such as one of politeness or length, may pay nonsense on purpose.
"""

from assay.doctor.catalogue import illness
from assay.doctor.evidence.reward import RewardTrial, Role
from assay.doctor.examples.reward import reward_evidence
from assay.doctor.facts.rewards import pays_as_much
from assay.verdict import Severity, Verdict


def check_reward(trial: RewardTrial) -> Verdict:
    return pays_as_much(trial, Role.NONSENSE, "nonsense gets as much as the right answer")


ILLNESS = illness(
    __name__,
    code="REW04",
    severity=Severity.FATAL,
    summary="nonsense gets as much as the right answer",
    fix="Give 0 to a text that holds no answer.",
    symptoms=("nonsense gets full reward", "reward is always 1", "garbage is rewarded"),
    sick=lambda: reward_evidence({Role.NONSENSE: 1.0}),
    well=lambda: reward_evidence({Role.NONSENSE: 0.9}),
    explains=frozenset({"REW05", "REW06", "REW07", "REW14", "REW17", "ADV09"}),
)
