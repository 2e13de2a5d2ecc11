"""The clamps of a clipped objective: which they are, what their bounds do, and whether a loss sees them."""

from __future__ import annotations

from assay.programs.facts.kinds.kind import PASSES, Kind
from assay.programs.facts.ratio import clamped_around_one
from assay.programs.graph import Value
from assay.programs.read.script import Program

LOWEST, HIGHEST = 0.0, 4.0  # a clamp that begins below and ends above these holds nothing back


def is_clip(ratio: Value) -> Value | None:
    """The clamp that made it, through casts and views."""
    seen: set[int] = set()
    current: Value | None = ratio
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        if current.op == "clamp":
            return current
        current = current.input if current.op in PASSES and current.op != "phi" else None
    return None


def dead_bounds(clamp: Value) -> str:
    """The bounds, if no ratio of a real run reaches them; else nothing."""
    low, high = clamp.setting("min", None), clamp.setting("max", None)
    if not isinstance(low, int | float) or not isinstance(high, int | float):
        return ""
    return f"{low:g} and {high:g}" if low <= LOWEST and high >= HIGHEST else ""


def are_exchanged(program: Program, clamp: Value) -> bool:
    """clamp(ratio, 1 + eps, 1 - eps)"""
    low, high = clamp.argument("min"), clamp.argument("max")
    if low is None or high is None or not program.kinds.is_a(clamp.input, Kind.RATIO):
        return False
    if isinstance(low.constant, int | float) and isinstance(high.constant, int | float):
        return low.constant > high.constant
    is_one = [any(one.constant == 1 for one in bound.inputs) for bound in (low, high)]
    return all(is_one) and low.op == "add" and high.op == "sub"


def is_around_the_product(program: Program, clamp: Value) -> bool:
    """clamp(ratio * advantages, 1 - eps, 1 + eps)"""
    inner = clamp.input
    if inner is None or inner.op != "mul" or not clamped_around_one(clamp):
        return False
    for one, rest in ((inner.input, inner.argument("other")), (inner.argument("other"), inner.input)):
        while one is not None and one.op == "neg":
            one = one.input
        if program.kinds.is_a(one, Kind.RATIO) and rest is not None:
            return not program.kinds.is_a(rest, Kind.MASK, Kind.COUNT) and not isinstance(rest.constant, int | float)
    return False


def reaches(value: Value, target: Value | None) -> bool:
    seen = {id(value)}
    waiting = [value]
    while waiting:
        current = waiting.pop()
        if current is target:
            return True
        for user in current.users:
            if id(user) not in seen:
                seen.add(id(user))
                waiting.append(user)
    return False
