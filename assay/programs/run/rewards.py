"""Where advantages come from: the rewards that were centred, and which rows were centred together."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from assay.programs.graph import RESHAPES, Value
from assay.programs.run.kinds import above
from assay.programs.run.rows import SAME, replay
from assay.programs.run.sight import numbers_of, sight
from assay.programs.walk import peel
from assay.record.batch import Array

_ARITHMETIC = SAME | {"div", "add", "clamp"}
_COST = re.compile(r"[(\s]*(?:\w+[_.])?(?:costs?|regrets?)\b")
_MEANS = ("mean", "nanmean", "sum")


@dataclass(frozen=True)
class Credit:
    rewards: Array | None
    groups: Array | None  # numbers of groups; None where all rows are one, or it is not known
    steps: Array | None = None  # what was paid at each step, where the rewards are sums of that
    stale: Value | None = None  # the mean that is subtracted, where it is one of earlier rewards
    is_centred: bool = False  # by their own mean


def credit_of(advantages: Value, groups: dict[int, Array | None]) -> Credit:
    """Both in the shape of `advantages`; None where the way back is not clear. `groups` keeps numbers apart."""

    def rewards_at(value: Value) -> Array | None:
        centred = _centred(value)
        return None if centred is None else numbers_of(value.input)

    def groups_at(value: Value) -> Array | None:
        centred = _centred(value)
        if centred is None:
            return None
        if id(value) not in groups:
            groups[id(value)] = _groups(
                value, centred, sum(known.size for known in groups.values() if known is not None)
            )
        return groups[id(value)]

    rewards = replay(advantages, rewards_at, _ARITHMETIC)
    if rewards is not None:
        return Credit(rewards, replay(advantages, groups_at, _ARITHMETIC), _steps(advantages), is_centred=True)
    stale = [found for value in above(advantages) if (found := _mean_of_earlier(value)) is not None]
    rewards = replay(
        advantages, lambda value: numbers_of(value.input) if _mean_of_earlier(value) else None, _ARITHMETIC
    )
    return Credit(rewards, None, stale=stale[0] if rewards is not None and len(stale) == 1 else None)


def is_of_costs(advantages: Value) -> bool:
    """Whether what is weighed is called a cost where a baseline is taken off it: less of it is better."""
    value = peel(advantages, RESHAPES | {"cast", "detach", "clone", "div", "mul"})
    return value.op == "sub" and _COST.match(value.place.text) is not None


def _mean_of_earlier(value: Value) -> Value | None:
    """The mean that is subtracted here, where it is one of other rewards that the same line made before."""
    other = value.arguments.get("other")
    if value.op != "sub" or value.input is None or other is None or sight(value.input) is None:
        return None
    mean, root = _root(other), _root(value.input)
    if mean.op not in _MEANS or mean.input is None:
        return None
    earlier = _root(mean.input)
    is_older = earlier is not root and earlier.place == root.place and earlier.order < root.order
    return mean if is_older and earlier.op == root.op else None


def _steps(advantages: Value) -> Array | None:
    """What was paid at each step, where what is centred is the sum of that over one axis of two."""
    for value in above(advantages):
        if _centred(value) is None or value.input is None:
            continue
        total = _root(value.input)
        inner = sight(total.input) if total.op == "sum" else None
        if inner is not None and len(inner.shape) == 2 and "dim" in total.arguments:
            return numbers_of(total.input)
        return None
    return None


def _centred(value: Value) -> Value | None:
    """The mean that is subtracted here from what it was made of."""
    other = value.arguments.get("other")
    if value.op != "sub" or value.input is None or other is None or sight(value.input) is None:
        return None
    root = _root(value.input)
    for mean in above(other):
        if mean.op in _MEANS and mean.input is not None and _root(mean.input) is root:
            return mean
    return None


def _root(value: Value) -> Value:
    return peel(value, RESHAPES | {"cast", "detach", "clone"})


def _groups(value: Value, mean: Value, first: int) -> Array | None:
    """Group numbers in the shape of what is centred."""
    seen, averaged = sight(value.input), sight(mean.input)
    if seen is None or averaged is None or seen.size != averaged.size:
        return None
    dim = mean.setting("dim", None)
    if isinstance(dim, (tuple, list)) and len(dim) == 1:
        dim = dim[0]
    if dim is None or (len(averaged.shape) == 1 and dim in (0, -1)):
        return np.full(seen.shape, first)
    if len(averaged.shape) != 2 or dim not in (0, 1, -1, -2):
        return None
    rows, columns = np.indices(averaged.shape)
    return np.asarray(first + (rows if dim in (1, -1) else columns)).reshape(seen.shape)
