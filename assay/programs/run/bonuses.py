"""What stands in a loss beside the surrogate: entropy and which way the loss pulls at it, and a critic that the
advantages are made of.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from assay.programs.facts.kinds import Kind
from assay.programs.graph import Value
from assay.programs.run.kinds import KEEPS_NUMBERS, RunKinds
from assay.programs.run.roles import Flow
from assay.programs.run.sight import is_mask, number_of, numbers_of, requires_grad, sight
from assay.programs.walk import peel

_SAME_WAY = KEEPS_NUMBERS | {"sum", "mean", "add", "stack", "cat", "listing", "masked_fill", "where", "masked_select"}
_DISTRIBUTION = {Kind.PROBABILITIES, Kind.LOG_SOFTMAX}
_SHAPES = ("view", "reshape", "squeeze", "unsqueeze", "cast", "flatten", "expand")


def entropies(flow: Flow) -> Iterator[tuple[Value, int]]:
    """Each entropy of a distribution in the loss; 1: the loss grows with it, -1: it falls. Those of which that is not
    known are left out."""
    for value in flow.values:
        own = _is_entropy(value, flow.kinds)
        if own and requires_grad(value) and (way := _way(value, flow)) is not None:
            yield value, own * way


def _is_entropy(value: Value, kinds: RunKinds) -> int:
    """1: it is an entropy; -1: the sum of p log p, which is minus one; 0: neither."""
    if value.op == "entropy":
        return 1
    inner = value.input
    if value.op != "sum" or inner is None or inner.op != "mul":
        return 0
    sides = [inner.input, inner.arguments.get("other")]
    return -1 if {kinds.of(side) for side in sides if side is not None} == _DISTRIBUTION else 0


def _way(value: Value, flow: Flow) -> int | None:
    """Whether the loss grows with a value; None where its ways to the loss differ, or one is not known."""
    if value is flow.loss:
        return 1
    ways: set[int | None] = set()
    for user in flow.users(value):
        if requires_grad(user) or user.op == "listing":
            step = _step(value, user)
            beyond = None if step is None else _way(user, flow)
            ways.add(None if step is None or beyond is None else step * beyond)
    return ways.pop() if len(ways) == 1 else None


def _step(value: Value, user: Value) -> int | None:
    """Whether what was made of a value grows with it."""
    if user.op in _SAME_WAY:
        return 1
    if user.op == "neg":
        return -1
    if user.op == "sub":
        return 1 if user.input is value else -1
    if user.op in ("mul", "div"):
        other = user.arguments.get("other") if user.input is value else user.input
        number = number_of(other)
        if number is None and other is not None and is_mask(other):
            return 1
        return None if number is None or number == 0 else int(np.sign(number))
    return None


def critics_in_weights(flow: Flow) -> Iterator[tuple[Value, Value]]:
    """(the product, the weight): log-probs times returns minus a critic's numbers, which still have a gradient."""
    for new in flow.finals:
        for product, _, weight in flow.sides("mul", new):
            if not requires_grad(weight) or flow.upon(weight) or not _is_per_action(weight, new):
                continue
            root = peel(weight, _SHAPES)
            sides = [root.input, root.arguments.get("other")] if root.op == "sub" else []
            known = [side for side in sides if side is not None]
            if len(known) < 2 or requires_grad(known[0]) or not requires_grad(known[1]):
                continue
            if flow.kinds.of(known[1]) is None and numbers_of(known[0]) is not None:
                yield product, weight


def _is_per_action(weight: Value, new: Value) -> bool:
    mine, theirs = sight(weight), sight(new)
    return mine is not None and theirs is not None and mine.size == theirs.size > 1
