"""
## What it checks
The right answer must get more than a wrong answer, nonsense and nothing, in some form: bare, in words, boxed, in tags.
The check counts the problems where it gets what they get, although other problems pay more or that is 0.

## Why it hurts
Nothing can be learned from such a problem: whatever the policy answers, it gets the same.

## How to fix it
Look at how the answer is read out of the text, and at the task's own answers: a unit, a thousands separator or a space
may stand in them.

    # before: the task says "1,200", and no number reads so
    return float(re.findall(r"\\d+", completion)[-1:] == [answer])
    # after
    return float(re.findall(r"\\d+", completion.replace(",", ""))[-1:] == [answer.replace(",", "")])

## When it is wrong
Where the prompt asks for a form of answer that is not among those tried.
"""

from assay.doctor.catalogue import illness
from assay.doctor.evidence.reward import RewardTrial, Role
from assay.doctor.examples.reward import reward_evidence
from assay.doctor.facts.rewards import TOLERANCE, judge_order, lead, rivals
from assay.verdict import Severity, Verdict


def check_reward(trial: RewardTrial) -> Verdict:
    pairs = rivals(trial, Role.WRONG, Role.EMPTY, Role.NONSENSE)
    rights = {right.probe.problem: right for right, _ in pairs}
    recognised = {right.probe.problem for right, other in pairs if lead(right, other)}
    best = max((right.reward or 0.0 for right in rights.values()), default=0.0)
    bad = [
        (right, right)
        for problem, right in rights.items()
        if problem not in recognised and ((right.reward or 0.0) < best - TOLERANCE or (right.reward or 0.0) <= 0)
    ]
    fine = f"the right answer is recognised on {len(rights)} of {len(rights)} problems"
    forms = ", ".join(sorted({score.probe.name for score in trial.scores if score.probe.role is Role.RIGHT}))
    what = f"the right answer is not recognised in any of these forms ({forms})"
    return judge_order(trial, [(right, right) for right in rights.values()], bad, what, fine)


ILLNESS = illness(
    __name__,
    code="REW16",
    severity=Severity.FATAL,
    summary="the right answer gets what nothing gets, in every form",
    fix="Look at how the answer is read, and at the task's own answers: what cannot be right cannot be learned.",
    symptoms=(
        "right answer gets 0",
        "correct answers are not recognised",
        "reward is always 0",
        "accuracy reward is 0",
        "answer extraction fails",
        "format of the answer is not parsed",
        "reward does not increase",
    ),
    sick=lambda: reward_evidence({Role.RIGHT: 0.0}),
    well=reward_evidence,
    explains=frozenset({"REW04", "REW05", "REW06", "REW07", "REW14", "REW17", "ADV09"}),
)
