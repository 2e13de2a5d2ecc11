"""
## What it checks
No wrong answer may get more than the right one. The answers of other problems are scored as wrong answers. Right and
wrong are compared in the form in which the reward tells them apart best.

## Why it hurts
The policy learns what is paid: here it learns to be wrong, while the reward rises as it should.

## How to fix it
Look for a swapped sign or comparison, or a distance that is paid and not its opposite.

    # before: a distance is paid
    return abs(float(completion) - float(answer))
    # after
    return -abs(float(completion) - float(answer))

## When it is wrong
The answer of another problem may be right here too, where a problem has several right answers.
"""

from dataclasses import replace

from assay.doctor.catalogue import illness
from assay.doctor.evidence.reward import RewardTrial, Role
from assay.doctor.examples.reward import reward_evidence
from assay.doctor.facts.rewards import best_form, judge_order, lead, means_by_form, rivals
from assay.verdict import Severity, State, Verdict


def check_reward(trial: RewardTrial) -> Verdict:
    pairs = rivals(trial, Role.WRONG)
    bad = [pair for pair in pairs if lead(*pair) < 0]
    fine = f"no wrong answer of {len(pairs)} gets more than the right one, {best_form(trial)}"
    verdict = judge_order(trial, pairs, bad, "a wrong answer gets more than the right one", fine)
    if verdict.state is not State.HEALTHY:
        return verdict
    means = means_by_form(trial.of(Role.RIGHT))
    return replace(verdict, examples=tuple(f"right answer {form}: {mean:g} on average" for form, mean in means.items()))


ILLNESS = illness(
    __name__,
    code="REW03",
    severity=Severity.FATAL,
    summary="a wrong answer gets more than the right one",
    fix="Look for a swapped sign or comparison: the right answer must get the highest reward.",
    symptoms=("wrong answers get more reward", "reward prefers bad answers"),
    sick=lambda: reward_evidence({Role.WRONG: 1.1}),
    well=reward_evidence,
    explains=frozenset({"REW04", "REW05", "REW06", "REW07", "REW17"}),
)
