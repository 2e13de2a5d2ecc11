"""
## What it checks
Of the completions of your model, which are given with --completions, fewer than 95 % must get the highest reward.

## Why it hurts
If the model has not solved the task, the reward is too easy; if it has, few groups are left that train anything.

## How to fix it
Look at some of the texts. Then make the reward stricter, or take harder problems.

    # before: any number is full marks
    return 1.0 if re.search(r"\\d", completion) else 0.0
    # after
    return float(completion.strip() == answer)

## When it is wrong
A model that has solved its task gets the highest reward by right; then only harder problems teach it more.
"""

from assay.doctor.catalogue import illness
from assay.doctor.evidence import RewardTrial
from assay.doctor.examples.reward import reward_evidence
from assay.doctor.facts.rewards import TOLERANCE, completion_rewards
from assay.verdict import Confidence, Severity, Verdict, finding, healthy, not_enough_data

SATURATED = 0.95  # share of completions with the highest reward


def check_reward(trial: RewardTrial) -> Verdict:
    rewards = completion_rewards(trial)
    if not rewards:
        return not_enough_data("completions of your model: give them with --completions FILE.jsonl")
    top = max(rewards)
    share = sum(reward >= top - TOLERANCE for reward in rewards) / len(rewards)
    message = f"{share:.0%} of {len(rewards)} completions get the highest reward {top:g}"
    return healthy(message) if share < SATURATED else finding(message, confidence=Confidence.POSSIBLE)


ILLNESS = illness(
    __name__,
    code="REW12",
    severity=Severity.WASTEFUL,
    summary="95 % of your completions get the highest reward",
    fix="If the model has not solved the task, the reward is too easy; if it has, take harder problems.",
    symptoms=("reward is already 1", "task too easy", "reward is saturated", "all completions are right"),
    sick=lambda: reward_evidence(groups=((*(1.0,) * 19, 0.0),)),
    well=lambda: reward_evidence(groups=((*(1.0,) * 18, 0.0),)),
)
