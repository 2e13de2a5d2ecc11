"""What the curves of a run say by robust numbers: medians of its quarters, and whether its task is solved.

A reward is noisy and a run may be short: nothing here speaks of fewer than STEPS steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from assay.doctor.evidence import Curves
from assay.doctor.evidence.curves import Flags, Numbers
from assay.verdict import Missing

STEPS = 20  # fewer steps have quarters of fewer than five: one of them would decide
EQUAL = 1e-6  # relative: a mean of equal rewards may round
SURE = 0.2  # nats per token: a policy that varies its answers has more
SOLVED = 0.1  # of the range of rewards: a mean this near to the best one leaves nothing to learn


def known_steps(curves: Curves, name: str, fewest: int = STEPS) -> Numbers:
    """A metric in the steps that have a number of it. Raises Missing where these are fewer."""
    (values_N,) = curves.need(name)
    known_N: Numbers = values_N[np.isfinite(values_N)]
    if len(known_N) < fewest:
        raise Missing(f"{name} of {fewest} steps")
    return known_N


def quarter_medians(values_N: Numbers, name: str) -> tuple[float, float, float, float]:
    """Medians of the four quarters of the steps that have a number.

    >>> quarter_medians(np.arange(20.0), "reward_mean")
    (2.0, 7.0, 12.0, 17.0)
    """
    known_N = values_N[np.isfinite(values_N)]
    if len(known_N) < STEPS:
        raise Missing(f"{name} of {STEPS} steps")
    first, second, third, last = (float(np.median(part)) for part in np.array_split(known_N, 4))
    return first, second, third, last


def reward_range(curves: Curves) -> tuple[float, float]:
    """(worst, best) reward, as configured or as seen; NaN where neither is known."""
    return _bound(curves, "min_reward", "reward_min", np.min), _bound(curves, "max_reward", "reward_max", np.max)


def is_solved(curves: Curves) -> bool:
    """Whether the last quarter's rewards are nearly all the best one: then entropy and signal may be gone.

    A reward that never varied may be one that every answer gets: only an evaluation can then say that it is solved."""
    if not curves.has("reward_mean") or not (has_varied(curves) or is_solved_by_evaluation(curves)):
        return False
    worst, best = reward_range(curves)
    (reward_N,) = curves.need("reward_mean")
    known_N = reward_N[np.isfinite(reward_N)]
    last = float(np.median(known_N[-max(len(known_N) // 4, 1) :]))
    return bool(best - last <= SOLVED * max(best - worst, 0.0)) if math.isfinite(best - worst) else False


def has_varied(curves: Curves) -> bool:
    """Whether two rewards of the run are known to differ."""
    mean_N, std_N, low_N, high_N = (
        curves.column(name) for name in ("reward_mean", "reward_std", "reward_min", "reward_max")
    )
    mean_N = mean_N[np.isfinite(mean_N)]
    equal = EQUAL * max(1.0, float(np.abs(mean_N).max(initial=0.0)))
    if np.isnan(std_N).all() and not np.isnan(high_N - low_N).all():
        std_N = high_N - low_N
    if np.isnan(std_N).all():  # TRL's share is 0 where it does not divide by a group's deviation
        std_N = 1.0 - curves.column("zero_variance_share")
    return bool((std_N > equal).any() or (len(mean_N) and np.ptp(mean_N) > equal))


def is_solved_by_evaluation(curves: Curves) -> bool:
    """An evaluation that every answer has passed since the start is asked with the same reward that every answer gets:
    it says nothing, unless the policy is sure of its answers."""
    passed = [row["pass_at_1"] for row in curves.evaluations if isinstance(row.get("pass_at_1"), int | float)]
    if not passed or passed[-1] < 1.0 - SOLVED:
        return False
    entropy_N = curves.column("entropy")
    entropy_N = entropy_N[np.isfinite(entropy_N)]
    return min(passed) < 1.0 or not len(entropy_N) or bool(np.median(entropy_N) < SURE)


def trailing(flags_N: Flags) -> int:
    """How many steps at the end are flagged, without a gap.

    >>> trailing(np.array([True, False, True, True]))
    2
    """
    return int(np.argmin(flags_N[::-1])) if not flags_N.all() else len(flags_N)


def _bound(curves: Curves, setting: str, metric: str, choose: Callable[[Numbers], float]) -> float:
    """What was seen may lie beyond what is configured: bonuses count too."""
    known = [float(value) for value in (curves.settings.get(setting),) if isinstance(value, int | float)]
    if curves.has(metric):
        (column_N,) = curves.need(metric)
        known += column_N[np.isfinite(column_N)].tolist()
    return float(choose(np.array(known))) if known else math.nan
