"""Divisions of losses and statistics: by a count of tokens, by the width of a tensor, or by nothing that fits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from assay.programs.facts.advantages.advantages import Scaling, is_advantage, is_mean, scalings
from assay.programs.facts.kinds import Kind
from assay.programs.facts.masks.masks import Applied, Filled, Masked, fillings
from assay.programs.graph import Loop, Value
from assay.programs.program import Program
from assay.programs.walk import ancestors

_FORM = frozenset("cast unsqueeze squeeze view reshape expand clone detach leave index phi element tensor".split())
_ELEMENTWISE = frozenset(
    "mul add sub neg exp expm1 clamp minimum maximum abs square pow cast clone detach unsqueeze div where masked_fill "
    "logical_and logical_or gt lt ge le index squeeze view reshape".split()
)
_TOKENS = (
    Kind.LOGPROBS, Kind.NEGATIVE_LOGPROBS, Kind.LOG_RATIO, Kind.RATIO, Kind.CLIPPED_RATIO, Kind.EXP_RATIO, Kind.ENTROPY,
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Count:
    """sum(mask), where it divides. `by_row`: one count per row. `floored`: something keeps it from 0."""

    total: Value
    mask: Value
    by_row: bool
    floored: bool


def count_of(divisor: Value) -> Count | None:
    floored = False
    current: Value | None = divisor
    for _ in range(12):
        if current is None:
            return None
        other = current.argument("other")
        if current.op in ("sum", "count_nonzero") and current.input is not None:
            dim = current.setting("dim", None)
            return Count(current, current.input, dim in (1, -1), floored)
        if current.op in ("clamp", "maximum", "max", "where", "nan_to_num", "masked_fill") or current.op == "add":
            floored = True
            current = current.input if current.input is not None and _leads(current.input) else other
        elif current.op in _FORM:
            known = [part for part in current.inputs if _leads(part)]
            floored |= current.op == "phi" and len(known) < len(current.inputs)
            current = known[0] if known else None
        else:
            return None
    return None


def _leads(value: Value, depth: int = 8) -> bool:
    if value.op in ("sum", "count_nonzero"):
        return True
    if depth == 0 or value.op in ("forward", "generate", "mul", "sub", "div"):
        return False
    return any(_leads(part, depth - 1) for part in value.arguments.values())


def is_guarded(program: Program, division: Value, count: Count) -> bool:
    """Whether it happens only where there is something to count, or a NaN is taken away afterwards."""
    for branch in division.context.branches:
        if any(value is count.total or value is count.mask for value in _near(branch.condition)):
            return True
    for user in division.users:
        if user.op in ("nan_to_num", "where", "masked_fill"):
            return True
    for test in program.of("eq", "gt", "lt", "le", "ge", "ne", "not", "any", "assert"):
        if test.order < division.order and not test.users and any(value is count.total for value in _near(test)):
            return True
    return False


def _near(value: Value) -> Iterator[Value]:
    return islice(ancestors(value), 40)


def token_mask(program: Program, value: Value) -> Filled | None:
    """What a mask holds, if the text says so and it is one of tokens."""
    filled = fillings(program).of(Applied(value, value))
    return filled[0] if filled else None


def is_token_mask(program: Program, value: Value) -> bool:
    """A mask with one number per token: as computed, or a running count that is compared, or a field named so."""
    if isinstance(value.constant, int | float):
        return False
    if token_mask(program, value) is not None:
        return True
    known = program.kinds.of(value)
    while known is not None:
        if known.kind is Kind.COUNT:
            return True
        if known.reason == "a field that libraries name so":
            return known.value.name != "attention_mask"  # of one row it holds ones alone
        known = known.of
    return False


def width_of(value: Value | None) -> Value | None:
    """The tensor whose number of columns, padding included, a number is or has as a factor; rows do not count."""
    if value is None:
        return None
    inner = value.input
    if value.op == "method" and value.name == "numel":
        return inner
    if value.op == "method" and value.name == "size":
        return inner if value.setting("1", value.setting("dim")) in (1, -1) else None
    if value.op == "index" and inner is not None and inner.op == "attribute" and inner.name == "shape":
        return inner.input if value.setting("0") in (1, -1) else None
    if value.op == "mul":
        return width_of(inner) or width_of(value.argument("other"))
    return width_of(inner or value.argument("data")) if value.op in ("cast", "tensor", "leave", "clamp") else None


def behind_tokens(program: Program, value: Value, masked: bool = False, depth: int = 14) -> Value | None:
    """The log-probs of chosen tokens that a value has one number for each of, with no row summed on the way.

    None where it is made of something else, and where a mask was applied, unless `masked` allows one.
    """
    if depth == 0:
        return None
    if value.op in ("gather", "take_along_dim", "log_prob", "entropy", "cross_entropy"):
        reduced = value.setting("reduction", "mean") != "none" if value.op == "cross_entropy" else False
        return value if program.kinds.is_a(value, *_TOKENS, Kind.TOKEN_LOGITS) and not reduced else None
    if value.op == "phi":
        found = [behind_tokens(program, part, masked, depth - 1) for part in value.inputs if part.constant is not None]
        return found[0] if found and all(part is not None for part in found) else None
    if value.op not in _ELEMENTWISE:
        return None
    found = []
    for name, argument in value.arguments.items():
        if value.op in ("index", "clamp", "squeeze", "view", "reshape") and name != "input":
            if value.op == "index" and program.kinds.is_a(argument, Kind.MASK):
                return None  # tokens are picked
            continue
        if name in ("condition", "mask") or (value.op == "mul" and is_token_mask(program, argument)):
            if not masked:
                return None
            continue
        found.append(behind_tokens(program, argument, masked, depth - 1))
    return next((part for part in found if part is not None), None)


def masked_losses(program: Program) -> list[Masked]:
    """Losses in which a mask says which tokens count."""
    found = []
    for masked, filled in fillings(program).losses:
        known = any(not filling.goes_on for ways in filled for filling in ways)
        if known or any(is_token_mask(program, mask.value) for mask in masked.masks):
            found.append(masked)
    return found


def is_on_tokens(program: Program, value: Value, depth: int = 10) -> bool:
    """Whether a number of each token was laid out by hand: x[:, t] = ..., stacked steps, a column times a mask."""
    if depth == 0:
        return False
    if value.op == "setitem":
        keys = value.keys
        by_column = len(keys) == 2 and keys[0].op == "slice" and not keys[0].arguments and keys[1].op != "slice"
        return (by_column and bool(value.context.loops)) or is_on_tokens(program, value.arguments["input"], depth - 1)
    if value.op == "mul" and any(is_token_mask(program, part) for part in value.inputs):
        return True
    if value.op == "stack" and value.setting("dim", 0) in (1, -1):
        listed = value.argument("tensors")
        return listed is not None and any(loop not in value.context.loops for loop in _loops_of(listed))
    if value.op in ("phi", "index", "clone", "detach", "cast", "add", "sub", "mul", "div", "flip", "transpose"):
        return any(is_on_tokens(program, number, depth - 1) for number in _numbers(value))
    return False


def token_scalings(program: Program) -> Iterator[tuple[Scaling, Value]]:
    """Whitenings of advantages with one number per token, and the reduction that gives each its spread."""
    for scaling in scalings(program):
        if is_advantage(program, scaling.value) and is_on_tokens(program, scaling.base):
            yield scaling, is_mean(scaling.spread) or scaling.spread


def _numbers(value: Value) -> list[Value]:
    return [part for name, part in value.arguments.items() if name in ("input", "other", "0", "1")][:2]


def _loops_of(listed: Value) -> list[Loop]:
    elements = getattr(listed.thing, "elements", [])
    return [loop for element in elements for loop in element.context.loops]
