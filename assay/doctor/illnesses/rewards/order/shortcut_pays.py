"""
## What it checks
Texts that took no solving must get less than the right answer: a guess, the question repeated, the right characters in
another order, a wrong answer in a form that is itself paid.

## Why it hurts
Each of them is easier to produce than the answer, and a policy that explores will produce it.

## How to fix it
Compare what stands in the answer's place, whole and in order; pay a form a small share of the reward, never all.

    # before: tags are taken for the answer
    return 1.0 if "</answer>" in completion else 0.0
    # after
    found = re.findall(r"<answer>(.*?)</answer>", completion)
    return 0.1 * bool(found) + 0.9 * (found[-1:] == [answer])

## When it is wrong
Where several texts are right: a problem whose answer is also a usual guess, or reads the same in another order.
"""

from assay.doctor.catalogue import illness
from assay.doctor.evidence.reward import RewardTrial, Role
from assay.doctor.examples.reward import reward_evidence
from assay.doctor.facts.rewards import Pair, best_form, judge_order, lead, rivals
from assay.verdict import Severity, Verdict


def check_reward(trial: RewardTrial) -> Verdict:
    pairs = [*rivals(trial, Role.SHORTCUT), *_wrong_in_other_forms(trial)]
    bad = [pair for pair in pairs if lead(*pair) <= 0]
    fine = f"the right answer gets more than {len(pairs)} texts that took no solving"
    return judge_order(trial, pairs, bad, "a text that took no solving gets full marks", fine)


def _wrong_in_other_forms(trial: RewardTrial) -> list[Pair]:
    """(the right answer at its best, a wrong one in a form in which it gets no less than the right one does)."""
    form = best_form(trial)
    rights = {(score.probe.problem, score.probe.name): score for score in trial.of(Role.RIGHT)}
    pairs = []
    for wrong in trial.of(Role.WRONG):
        best, same = (rights.get((wrong.probe.problem, name)) for name in (form, wrong.probe.name))
        if wrong.probe.name != form and best is not None and same is not None and lead(same, wrong) <= 0:
            pairs.append((best, wrong))
    return pairs


ILLNESS = illness(
    __name__,
    code="REW17",
    severity=Severity.HARMFUL,
    summary="a text that took no solving gets full marks",
    fix="Compare what stands in the answer's place, whole and in order; pay a form a small share, never all.",
    symptoms=(
        "format alone gets full reward",
        "model finds a shortcut",
        "reward hacking",
        "reward without solving the task",
    ),
    sick=lambda: reward_evidence({Role.SHORTCUT: 1.0}),
    well=lambda: reward_evidence({Role.SHORTCUT: 0.9}),
)
