"""
## What it checks
The same texts are scored under different problems, with the answers of those. Some text must get another reward under
another question.

## Why it hurts
If no reward ever moves, one text can answer everything, and a policy will say it to every question.

## How to fix it
Read `prompt` or `answer`.

    # before: the same under every question
    return float(completion[:1].isupper())
    # after
    return float(completion.strip() == answer)

## When it is wrong
A reward of style or length is meant so, therefore the finding is only possible.
"""

from collections import defaultdict
from dataclasses import replace

from assay.doctor.catalogue import illness
from assay.doctor.evidence import Evidence, RewardTrial
from assay.doctor.evidence.reward import Role
from assay.doctor.examples.reward import reward_evidence
from assay.doctor.facts.rewards import BASIC, TOLERANCE, reads_no_answer
from assay.verdict import Confidence, Severity, Verdict, finding, healthy, not_applicable, not_enough_data


def check_reward(trial: RewardTrial) -> Verdict:
    if reads_no_answer(trial):
        return not_applicable("a reward of form alone is the same under every question")
    by_text: dict[str, dict[int, float]] = defaultdict(dict)
    for score in trial.of(*BASIC):
        by_text[score.probe.text][score.probe.problem] = score.reward or 0.0
    several = {text: rewards.values() for text, rewards in by_text.items() if len(rewards) > 1}
    if not any(score.probe.text in several for score in trial.scores if score.probe.role is Role.RIGHT):
        return not_enough_data("no answer was scored under two problems: draw more with --samples")
    different = sum(max(rewards) - min(rewards) > TOLERANCE for rewards in several.values())
    if different:
        return healthy(f"{different} of {len(several)} texts are paid differently under another question")
    return finding(
        f"{len(several)} texts get the same reward under every question they were tried on",
        confidence=Confidence.POSSIBLE,
    )


def sick() -> Evidence:
    """Nobody asked for the right answer of the second problem, so that only the text's two rewards are known."""
    trial = reward_evidence({Role.WRONG: 1.0}).reward
    assert trial is not None
    rights = [score for score in trial.scores if score.probe.role is Role.RIGHT]
    first_wrong = next(score for score in trial.scores if score.probe.role is Role.WRONG)
    kept = (replace(first_wrong, reward=0.0), *(s for s in trial.scores if s not in (first_wrong, rights[1])))
    return Evidence(reward=replace(trial, scores=kept))


ILLNESS = illness(
    __name__,
    code="REW14",
    severity=Severity.HARMFUL,
    summary="a text gets the same under every question",
    fix="Fine for a reward of style or length; else read `prompt` or `answer`: now one text can answer everything.",
    symptoms=("reward ignores the question", "same answer for every question is rewarded"),
    sick=sick,
    well=reward_evidence,
)
