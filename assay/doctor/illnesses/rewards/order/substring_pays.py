"""
## What it checks
A text that merely contains the right answer must get less: a list with the right answer in the middle, and the answer
with a character more.

## Why it hurts
`answer in completion` pays a text that lists many answers, and 125 where 12 is right. A policy learns to list them all.

## How to fix it
Extract one answer (the last number, what stands in the tags) and compare it whole.

    # before
    return float(answer in completion)
    # after
    return float(re.findall(r"-?\\d+", completion)[-1:] == [answer])

## When it is wrong
Where any text that mentions the answer counts as right. A small price for length is not taken for a difference.
"""

import statistics

from assay.doctor.catalogue import illness
from assay.doctor.evidence.reward import RewardTrial, Role
from assay.doctor.examples.reward import reward_evidence
from assay.doctor.facts.rewards import LENGTH_SHARE, judge_order, lead, reason_not_to_compare, rivals
from assay.verdict import Severity, Verdict, not_applicable


def check_reward(trial: RewardTrial) -> Verdict:
    pairs = rivals(trial, Role.LISTED, Role.EXTENDED)
    if (excuse := reason_not_to_compare(trial, pairs)) is not None:
        return excuse
    leads = [ahead for pair in rivals(trial, Role.WRONG) if (ahead := lead(*pair)) > 0]
    if not leads:
        return not_applicable("the right answer gets no more than a wrong one in the first place")
    # a small price for length beside it does not make a text that contains the answer a wrong one
    bad = [pair for pair in pairs if lead(*pair) <= LENGTH_SHARE * statistics.median(leads)]
    fine = f"the right answer gets more than {len(pairs)} texts that merely contain it"
    what = "a text that merely contains the right answer gets as much as the right answer"
    return judge_order(trial, pairs, bad, what, fine)


ILLNESS = illness(
    __name__,
    code="REW07",
    severity=Severity.HARMFUL,
    summary="a list of answers, or the answer with a character more, gets as much as the right answer",
    fix="Extract one answer (the last number, the tags) and compare it whole: a policy learns to list all answers.",
    symptoms=("reward by substring", "model lists all answers", "answer found inside a longer text counts"),
    sick=lambda: reward_evidence({Role.LISTED: 1.0}),
    well=lambda: reward_evidence({Role.LISTED: 0.9}),
    explains=frozenset({"REW17"}),
)
