"""
## What it checks
Whether what is trained rises while what is wanted does not: the training reward from the first to the last quarter,
against the held-out pass rate before and after. With several reward components: whether one rises while another falls.

## Why it hurts
The policy has found what the reward pays for, and it is not the task: length, a keyword, a format, a hole in a parser,
problems learned by heart. Every further step makes it worse at what it is for.

## How to fix it
Read the best-paid answers of a late step. Then close the hole: score the whole answer rather than a trace of it, bound
every bonus, and keep a held-out evaluation that the reward cannot see.

    # before: any answer that contains the number anywhere is right, so the policy lists all numbers
    def reward(completion, answer):
        return float(answer in completion)

    # after: the last number is the answer
    def reward(completion, answer):
        return float(completion.split()[-1] == answer)

## When it is wrong
A reward with partial credit may rise before the first whole answer passes. Held-out problems may be harder than those
of training. A component may be given up on purpose, if its weight is small.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from assay.doctor.catalogue import illness
from assay.doctor.evidence import Curves
from assay.doctor.examples import healthy_curves, of_curves
from assay.doctor.facts.trend import quarter_medians, reward_range
from assay.machine.terminal import quote
from assay.verdict import Fact, Missing, Severity, Verdict, finding, healthy

GAIN = 0.1  # of the range of rewards: what the training reward must have gained
STALLED = 0.2  # held-out gain as a share of it: less is flat
ERRORS = 2.0  # standard errors that the held-out rate is given
UNKNOWN_ERROR = 0.05  # of a pass rate whose error was not recorded: that of 100 problems
ABLE = (0.05, 0.95)  # a pass rate outside had nothing to build on, or cannot rise
FALL = 0.15  # of a component, as a share of its size
NOISES = 4.0  # and in standard errors of its medians
TRAINERS_OWN = (
    "reward_reference_kl_mean",
    "reward_overlong_mean",
)  # penalties that the trainer adds; they move by themselves


def check_curves(curves: Curves) -> Verdict:
    (reward_N,) = curves.need("reward_mean")
    first, *_, last = quarter_medians(reward_N, "reward_mean")
    worst, best = reward_range(curves)
    scale = best - worst if best > worst else max(abs(first), abs(last))
    facts = [Fact("training reward, first quarter", first), Fact("training reward, last quarter", last)]
    if not last - first > GAIN * scale:
        return healthy("the training reward has not risen, so nothing was exploited", *facts)
    sentence = _held_out(curves, (last - first) / scale, facts) or _components(curves, facts)
    if sentence:
        return finding(f"the training reward rose from {first:.2g} to {last:.2g} {sentence}", *facts)
    if len(facts) == 2:
        raise Missing("pass_at_1 of two evaluations, or several reward components")
    return healthy("what is wanted rose with the training reward", *facts)


def _held_out(curves: Curves, gain: float, facts: list[Fact]) -> str:
    rows = [row for row in curves.evaluations if isinstance(row.get("pass_at_1"), int | float)]
    if len(rows) < 2:
        return ""
    before, after = float(rows[0]["pass_at_1"]), float(rows[-1]["pass_at_1"])
    error = math.hypot(*(float(row.get("pass_at_1_std_error") or UNKNOWN_ERROR) for row in (rows[0], rows[-1])))
    facts += [Fact("held-out pass rate before", before), Fact("held-out pass rate after", after)]
    fell = after < before - ERRORS * error
    flat = ABLE[0] < before < ABLE[1] and after - before + ERRORS * error < STALLED * gain
    if not (fell or flat):
        return ""
    return f"and the held-out pass rate {'fell' if fell else 'stayed'} from {before:.2g} to {after:.2g}"


def _components(curves: Curves, facts: list[Fact]) -> str:
    logged = sorted({name for row in curves.rows for name in row} - {"reward_mean", *TRAINERS_OWN})
    names = [name for name in logged if name.startswith("reward_") and name.endswith("_mean")]
    moves = {name: _move(curves, name) for name in names if curves.has(name)}
    fallen = [name for name, (change, least) in moves.items() if change < -least]
    if len(moves) < 2 and not fallen:
        return ""
    facts += [Fact(f"change of {quote(name)}", change) for name, (change, _) in moves.items()]
    risen = [name for name, (change, least) in moves.items() if change > least]
    if not fallen:
        return ""
    what = quote(risen[0]) if risen else "another part"
    return f"by {what}, while {quote(fallen[0])} fell by {-moves[fallen[0]][0]:.2g}"


def _move(curves: Curves, name: str) -> tuple[float, float]:
    """(change from the first quarter to the last, how much of it may be noise or is small)."""
    (values_N,) = curves.need(name)
    known_N = values_N[np.isfinite(values_N)]
    first, *_, last = quarter_medians(known_N, name)
    # neighbours differ by noise alone: their difference has twice its variance, and a median of n 1.57 / n of it
    deviation = float(np.median(np.abs(np.diff(known_N)))) / 0.6745 / math.sqrt(2)
    noise = NOISES * deviation * math.sqrt(2 * 1.57 / (len(known_N) / 4))
    return last - first, max(FALL * float(np.abs(known_N).max()), noise)


def _with_evaluations(after: float) -> Curves:
    curves = healthy_curves()
    rates = ((0, 0.4), (60, after))
    evaluations = [{"step": step, "pass_at_1": rate, "pass_at_1_std_error": 0.015} for step, rate in rates]
    return replace(curves, evaluations=evaluations)


ILLNESS = illness(
    __name__,
    code="MET04",
    severity=Severity.HARMFUL,
    summary="the training reward rises and the quality that it should measure does not",
    fix="Read the best-paid answers of a late step and close the hole in the reward that they use.",
    symptoms=(
        "reward hacking",
        "reward rises but accuracy does not",
        "reward goes up and evaluation goes down",
        "accuracy on the test set falls",
        "model cheats",
        "model exploits the reward",
        "overfits the reward function",
    ),
    sick=lambda: of_curves(_with_evaluations(0.3)),
    well=lambda: of_curves(_with_evaluations(0.6)),
    explains=frozenset({"MET01", "MET02"}),
)
