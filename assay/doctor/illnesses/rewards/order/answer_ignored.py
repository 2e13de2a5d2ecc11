"""
## What it checks
Right and wrong answers must get different rewards. The answers of other problems are scored as wrong answers, in the
form in which the reward tells them apart best.

## Why it hurts
The reward reads the form, the length or the mere presence of a number, and never `answer`. The curve rises until all
texts have that form, and the task is not learned.

## How to fix it
Compare the completion with `answer`, and make sure that the form your prompt asks for is recognised.

    # before: any number is paid
    return float(re.search(r"\\d", completion) is not None)
    # after
    return float(re.findall(r"-?\\d+", completion)[-1:] == [answer])

## When it is wrong
A reward of form alone is meant so if it stands beside one that reads the answer.
"""

from assay.doctor.catalogue import illness
from assay.doctor.evidence.reward import RewardTrial, Role
from assay.doctor.examples.reward import reward_evidence
from assay.doctor.facts.rewards import MOST_COMPARISONS, judge_order, lead, rivals
from assay.verdict import Confidence, Severity, Verdict


def check_reward(trial: RewardTrial) -> Verdict:
    pairs = rivals(trial, Role.WRONG)
    bad = [pair for pair in pairs if lead(*pair) == 0]
    fine = f"right and wrong answers are told apart on {len(pairs)} of {len(pairs)} problems"
    confidence = Confidence.LIKELY if len(bad) < MOST_COMPARISONS * len(pairs) else Confidence.PROVEN
    return judge_order(trial, pairs, bad, "a wrong answer gets exactly as much as the right one", fine, confidence)


ILLNESS = illness(
    __name__,
    code="REW06",
    severity=Severity.FATAL,
    summary="a wrong answer gets exactly as much as the right one",
    fix="Compare the completion with `answer`, and make sure that the form your prompt asks for is recognised.",
    symptoms=("reward ignores the answer", "reward does not depend on correctness"),
    sick=lambda: reward_evidence({Role.WRONG: 1.0}),
    well=lambda: reward_evidence({Role.WRONG: 0.9}),
    explains=frozenset({"REW05", "REW07", "REW14", "REW17", "ADV09"}),
)
