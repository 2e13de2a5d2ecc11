"""
## What it checks
Every text must get a finite number in time. The reward is called on right and wrong answers, on nothing, and on the
texts that a policy writes on its worst day: endless, deeply nested, full of control characters. The check counts the
calls that raise, run out of time, or return no finite number.

## Why it hurts
A text that cannot be scored leaves its group, and a run of them is a run without learning. The texts that break a
reward are those that a policy in training produces: empty, endless, half a number.

## How to fix it
Return a finite number on every path, catch the one error that parsing raises, and bound the work: no eval of model
text, capped lengths and exponents.

    # before: raises on text, hangs on 9**9**9
    return float(eval(completion) == eval(answer))
    # after
    try:
        return float(int(completion.strip()[:20]) == int(answer))
    except ValueError:
        return 0.0

## When it is wrong
A call may be given less time here than in training; where that differs the finding says so. A machine that is busy with
something else can make a slow reward miss its deadline.
"""

from collections import Counter

from assay.doctor.catalogue import illness
from assay.doctor.evidence.reward import RewardTrial, Role, is_timeout
from assay.doctor.examples.reward import reward_evidence
from assay.doctor.facts.rewards import EXAMPLES
from assay.verdict import Severity, Verdict, finding, healthy, not_enough_data

FATAL_SHARE = 0.25  # of right and wrong answers; a run stops by itself above reward.max_failed, by default this
CURES = {
    "failed": "look at the reason above",
    "raised": "return 0.0 for a text that does not parse, and catch the one error that parsing raises",
    "returned no number": "return a finite number on every path",
    "timed out": "bound the work (never eval model text; cap lengths and exponents)",
}


def check_reward(trial: RewardTrial) -> Verdict:
    failed = [score for score in trial.scores if score.reward is None]
    if not trial.scores:
        return not_enough_data("nothing was scored")
    if not failed:
        return healthy(f"{len(trial.scores)} texts scored, hostile ones among them: no failure")
    kinds = Counter(_kind(score.error) for score in failed)
    counted = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    answers = [score for score in trial.scores if score.probe.role in (Role.RIGHT, Role.WRONG)] or trial.scores
    lost = sum(score.reward is None for score in answers)
    is_early = trial.deadline < trial.training_deadline and "timed out" in kinds
    note = f" (the deadline here is {trial.deadline:g} s, in training {trial.training_deadline:g} s)" * is_early
    first_by_error = {score.error: score for score in reversed(failed)}
    cures = "; ".join(CURES[kind] for kind in sorted(kinds))
    return finding(
        f"{len(failed)} of {len(trial.scores)} texts could not be scored: {counted}{note}",
        severity=Severity.FATAL if lost > FATAL_SHARE * len(answers) else Severity.HARMFUL,
        fix=f"{cures[0].upper()}{cures[1:]}.",
        examples=tuple(map(str, list(first_by_error.values())[::-1][:EXAMPLES])),
    )


def _kind(error: str) -> str:
    if is_timeout(error):
        return "timed out"
    return "raised" if "raised " in error else "returned no number" if "returned " in error else "failed"


ILLNESS = illness(
    __name__,
    code="REW02",
    severity=Severity.FATAL,
    summary="a text makes it raise, run out of time, or return no finite number",
    fix="Return a finite number on every path, catch the one error that parsing raises, and bound the work.",
    symptoms=(
        "reward function raises",
        "reward function crashes",
        "reward times out",
        "reward returns nan",
        "reward returns None",
    ),
    sick=lambda: reward_evidence({Role.HOSTILE: None}),
    well=reward_evidence,
)
