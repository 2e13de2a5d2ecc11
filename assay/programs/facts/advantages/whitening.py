"""Advantages with one number per token, and whether they are centred or scaled within one row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from assay.programs.facts.advantages.advantages import centrings, is_advantage, is_mean, pair_of, scalings
from assay.programs.facts.advantages.axes import axes
from assay.programs.facts.kinds import Kind
from assay.programs.facts.masks.counts import behind_tokens, is_on_tokens
from assay.programs.facts.positions import is_counter, is_turn_of
from assay.programs.graph import Value
from assay.programs.program import Program
from assay.programs.walk import follow, walk

# on the way to the loss: one number per token before, one per token after
_KEEPS = frozenset(
    "neg cast clone detach clamp masked_fill where phi setitem nan_to_num append listing stack in_place tensor".split()
)
_WEIGHED = (Kind.RATIO, Kind.CLIPPED_RATIO, Kind.LOGPROBS, Kind.NEGATIVE_LOGPROBS, Kind.LOG_RATIO)


@dataclass(frozen=True, eq=False)
class Whitening:
    """Advantages of tokens minus a mean, or over a spread. `by_row`: of the tokens of one row."""

    value: Value
    base: Value
    statistic: Value
    by_row: bool


def whitenings(program: Program) -> Iterator[Whitening]:
    found = [
        (scaling.value, scaling.base, is_mean(scaling.spread) or pair_of(scaling.spread) or scaling.spread)
        for scaling in scalings(program)
    ]
    scaled = {id(part) for value, _, _ in found for part in islice(walk(value), 40)}
    for centring in centrings(program):
        mean = is_mean(centring.level)
        if mean is not None and id(centring.value) not in scaled:
            found.append((centring.value, centring.base, mean))
    for value, base, statistic in found:
        by_row = is_of_one_row(program, statistic)
        if by_row is None or not is_advantage(program, value) or _are_draws(base):
            continue
        if is_on_tokens(program, base) or (by_row and meets_tokens(program, value)):
            yield Whitening(value, base, statistic, by_row)


def _are_draws(base: Value) -> bool:
    """Whether the columns are several draws for one state, not the tokens of a row: they are its group."""
    drawn = [value for value in islice(walk(base), 80) if value.op == "multinomial"]
    counts = [value.setting("num_samples", value.setting("1", 1)) for value in drawn]
    return any(isinstance(count, int) and count > 1 for count in counts)


def is_of_one_row(program: Program, statistic: Value) -> bool | None:
    """Whether a mean or a spread runs over the tokens of one row; None: over something else."""
    numbers = statistic.input or statistic.argument("0")
    if numbers is None:
        return None
    dim = statistic.setting("dim", statistic.setting("1", None) if statistic.op == "call" else None)
    if dim in (1, -1):
        labels = axes(program).of(numbers)
        return None if labels is not None and len([label for label in labels if label != "1"]) > 0 else True
    if dim is not None:
        return None
    row = follow(
        numbers, lambda value: value.input if value.op in ("cast", "clone") or _picks(program, value) else None
    )
    return is_row(row)


def _picks(program: Program, value: Value) -> bool:
    """row[mask]"""
    keys = value.keys if value.op == "index" else []
    if value.op == "masked_select":
        return True
    return len(keys) == 1 and (
        program.kinds.is_a(keys[0], Kind.MASK) or (keys[0].op == "slice" and is_row(value.input))
    )


def is_row(value: Value | None) -> bool:
    """x[i] of a counter, or what a loop takes from a tensor."""
    if value is None:
        return False
    if value.op == "element":
        return not value.name and is_turn_of(value)
    return value.op == "index" and len(value.keys) == 1 and is_counter(value.keys[0])


def meets_tokens(program: Program, value: Value) -> bool:
    """Whether it is multiplied, as it is, with a number of each token of the policy."""

    def onward(current: Value) -> list[Value]:
        return [user for user in current.users if user.op in _KEEPS or _is_masking(program, user)]

    for current in islice(walk(value, onward), 60):
        for user in current.users:
            if user.op != "mul" or _is_masking(program, user):
                continue
            others = [side for side in (user.input, user.argument("other")) if side is not None and side is not current]
            if any(_is_of_tokens(program, side) for side in others):
                return True
    return False


def _is_masking(program: Program, user: Value) -> bool:
    return user.op == "mul" and any(program.kinds.is_a(part, Kind.MASK) for part in user.inputs)


def _is_of_tokens(program: Program, value: Value) -> bool:
    return program.kinds.is_a(value, *_WEIGHED) and behind_tokens(program, value, masked=True) is not None
