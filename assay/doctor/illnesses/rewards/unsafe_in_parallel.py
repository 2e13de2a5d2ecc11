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

from assay.doctor.catalogue import illness
from assay.doctor.evidence import RewardTrial
from assay.doctor.examples.reward import one_change, reward_evidence
from assay.doctor.facts.rewards import judge_repeats
from assay.verdict import Severity, Verdict


def check_reward(trial: RewardTrial) -> Verdict:
    again = {"answers, scored by several processes at once,": trial.parallel}
    return judge_repeats(again, "no answer was scored by several processes")


ILLNESS = illness(
    __name__,
    code="REW10",
    severity=Severity.HARMFUL,
    summary="several processes at once change a reward",
    fix="Share no file, port or counter between processes, or set reward.workers = 1.",
    symptoms=("reward breaks with several workers", "race condition in the reward", "reward is not thread safe"),
    sick=lambda: reward_evidence(parallel=one_change()),
    well=reward_evidence,
)
