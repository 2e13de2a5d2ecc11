"""
## What it checks
The entropy of the policy over the run: its first steps against its last quarter. The check fires when more than 90 % of
it is gone, less than 0.1 nats per token are left, and the reward stands still below its best.

## Why it hurts
A policy without entropy gives the same answer again and again. All answers of a group then earn the same reward, the
advantages are 0, and what the policy does not know by now it will not find: GRPO learns from differences alone.

## How to fix it
Start again from a checkpoint with entropy, with a smaller step or a wider upper clip (clip-higher lets unlikely tokens
grow). Look for a bonus of the wrong sign first.

    # before: one clip range for both sides, and a step ten times too large
    config.loss.clip_high, config.optimizer.learning_rate = 0.2, 1e-5
    # after
    config.loss.clip_high, config.optimizer.learning_rate = 0.28, 1e-6

## When it is wrong
A solved task needs no entropy: the check is silent when the rewards of the last quarter are within 10 % of the best.
A reward whose best value is not known, or that nobody can reach, may look unsolved for ever. A policy that keeps
improving is left alone as well.
"""

from __future__ import annotations

import numpy as np

from assay.doctor.catalogue import illness
from assay.doctor.evidence import Curves
from assay.doctor.examples import healthy_curves, of_curves
from assay.doctor.facts.trend import is_solved, quarter_medians, reward_range
from assay.verdict import Fact, Severity, Verdict, finding, healthy

LOW_ENTROPY = 0.1  # nats per token: one likely token of 98 % nearly everywhere
LEFT = 0.1  # of the entropy at the start
START = 5  # steps whose median is the entropy at the start: it may be gone before the first quarter ends
STANDING = 0.02  # of the range of rewards: a smaller gain from the third quarter to the last is none


def check_curves(curves: Curves) -> Verdict:
    (entropy_N,) = curves.need("entropy")
    *_, last = quarter_medians(entropy_N, "entropy")
    start = float(np.median(entropy_N[np.isfinite(entropy_N)][:START]))
    facts = [Fact("entropy of the first steps", start), Fact("entropy of the last quarter", last, LOW_ENTROPY)]
    if not (last < LOW_ENTROPY and last < LEFT * start):
        return healthy(f"the entropy went from {start:.2g} to {last:.2g} nats per token", *facts)
    if is_solved(curves):
        return healthy(f"the entropy is down to {last:.2g} nats per token: the task is solved", *facts)
    (reward_N,) = curves.need("reward_mean")
    *_, third, reward = quarter_medians(reward_N, "reward_mean")
    worst, best = reward_range(curves)
    facts.append(Fact("reward of the last quarter", reward, best if np.isfinite(best) else None))
    if reward - third > STANDING * (best - worst):
        return healthy(f"the entropy is down to {last:.2g} nats per token and the reward still rises", *facts)
    return finding(
        f"the entropy fell from {start:.2g} to {last:.2g} nats per token while the reward stands at {reward:.2g}: the "
        "policy no longer tries anything",
        *facts,
    )


def _falling_entropy(reward: float) -> Curves:
    """The entropy goes to 0.02 nats; the reward stands at `reward` from the middle on."""
    steps = np.arange(60)
    rewards_N = np.interp(steps, [0, 20], [0.3, reward]) + 0.005 * np.sin(steps)
    return healthy_curves(entropy=np.maximum(np.exp(-steps / 8.0), 0.02), reward_mean=rewards_N)


ILLNESS = illness(
    __name__,
    code="MET01",
    severity=Severity.HARMFUL,
    summary="the entropy of the policy is gone before the task is solved",
    fix="Go back to a checkpoint with entropy; lower the learning rate or raise clip_high, and check the sign of an "
    "entropy bonus.",
    symptoms=(
        "entropy collapses",
        "entropy goes to 0",
        "answers become all the same over time",
        "mode collapse",
        "no exploration",
        "output becomes repetitive",
        "entropy keeps falling",
        "entropy increases",
    ),
    sick=lambda: of_curves(_falling_entropy(0.4)),
    well=lambda: of_curves(_falling_entropy(0.97)),
    explains=frozenset({"ADV09", "MET07", "LOSS05"}),
)
