"""
## What it checks
Four processes that score the same texts at once must give the rewards that one process gave.

## Why it hurts
Training scores with reward.workers processes. A file, port or counter that they share mixes the answers of one with
those of another.

## How to fix it
Share nothing between processes (a temporary file of its own for each call), or set reward.workers = 1.

    # before: all processes write the same file
    path = "/tmp/program.py"
    # after
    path = os.path.join(tempfile.mkdtemp(), "program.py")

## When it is wrong
A reward that is random or remembers earlier calls gives other numbers here too; it then has a finding of its own.
"""

from assay.doctor.catalogue import Illness
from assay.doctor.evidence import RewardTrial
from assay.doctor.examples.reward import one_change, reward_evidence
from assay.doctor.facts.rewards import different_pairs, unsteady_finding
from assay.verdict import Severity, Verdict, healthy, not_enough_data


def check_reward(trial: RewardTrial) -> Verdict:
    if not trial.parallel:
        return not_enough_data("no answer was scored by several processes")
    different = different_pairs(trial.parallel)
    if not different:
        return healthy(f"{len(trial.parallel)} answers scored alike by several processes at once")
    return unsteady_finding(
        f"{len(different)} of {len(trial.parallel)} answers get another reward when several processes score at once",
        different,
    )


ILLNESS = Illness(
    code="REW10",
    name="unsafe_in_parallel",
    severity=Severity.HARMFUL,
    summary="several processes at once change a reward",
    fix="Share no file, port or counter between processes, or set reward.workers = 1.",
    explanation=__doc__,
    symptoms=("reward breaks with several workers", "race condition in the reward", "reward is not thread safe"),
    sick=lambda: reward_evidence(parallel=one_change()),
    well=reward_evidence,
    reward=check_reward,
)
