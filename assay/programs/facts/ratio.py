"""The ratios that a policy loss is made of, and the two log-probs behind each: by gradient, never by name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from assay.programs.facts.kinds.kind import PASSES, Kind, around_one
from assay.programs.facts.loss.terms import Product, Term, TermKind
from assay.programs.graph import Value
from assay.programs.read.script import Program

RATIOS = (Kind.RATIO, Kind.CLIPPED_RATIO, Kind.EXP_RATIO)
_THROUGH = PASSES | {"exp", "expm1", "clamp", "sum", "mean", "nanmean", "index", "log"}
_SAME = PASSES - {"phi", "stack", "cat", "listing", "table", "setitem", "in_place", "pad_sequence", "roll", "flip"}
_MOST = 6  # alternatives of one value


@dataclass(frozen=True, eq=False)
class Use:
    """A ratio as it stands in a policy objective: a side of min or max, or a plain product with the advantage."""

    ratio: Value
    core: Value  # the min or max, else the ratio
    factors: tuple[Value, ...]
    loss: Value | None = None  # None: nothing that is seen differentiates it
    term: Term | None = None
    product: Product | None = None

    @property
    def is_surrogate(self) -> bool:
        return self.product is not None


@dataclass(frozen=True, eq=False)
class Difference:
    """The log-probs of a ratio: exp(left - right), or left / right of probabilities."""

    value: Value
    left: Value
    right: Value
    is_straight: bool  # no branch and no loop decides between several
    is_summed: bool = False  # over the tokens of a sequence, and not divided by their number


def surrogates(program: Program) -> list[tuple[Value, list[Product]]]:
    """Each min or max of two products with a ratio, whether or not a loss is seen behind it."""
    found = [(value, program.terms.products(value)) for value in program.of("minimum", "maximum")]
    return [(value, products) for value, products in found if products]


def uses(program: Program) -> list[Use]:
    """Each ratio of the program's objectives once."""
    found: list[Use] = []
    for loss, terms in program.losses:
        for term in terms:
            if term.kind is TermKind.SURROGATE:
                products = program.terms.products(term.core)
                found += [Use(one.ratio, term.core, one.factors, loss, term, one) for one in products]
            elif term.kind is TermKind.POLICY and program.kinds.is_a(term.core, *RATIOS):
                found.append(Use(term.core, term.core, term.factors, loss, term))
    known = {id(use.core) for use in found}
    for value, products in surrogates(program):
        if id(value) not in known:
            found += [Use(one.ratio, value, one.factors, product=one) for one in products]
    return list({(id(use.ratio), id(use.core)): use for use in reversed(found)}.values())[::-1]


def differences(program: Program, ratio: Value) -> list[Difference]:
    """The subtractions or quotients that a ratio is made of; several where a branch decides."""
    return list(_walk(program, ratio, 1, True, None, set()))[:_MOST]


def _walk(
    program: Program, value: Value, sign: int, straight: bool, summed: bool | None, seen: set[int]
) -> Iterator[Difference]:
    if id(value) in seen:
        return
    seen.add(id(value))
    kinds, inner, other = program.kinds, value.input, value.argument("other")
    if value.op == "phi":
        for one in value.inputs:
            yield from _walk(program, one, sign, False, summed, seen)
    elif value.op in ("neg", "reciprocal") and inner is not None:
        yield from _walk(program, inner, -sign, straight, summed, seen)
    elif value.op == "pow" and inner is not None and isinstance(power := value.setting("exponent"), int | float):
        yield from _walk(program, inner, -sign if power < 0 else sign, straight, summed, seen)
    elif inner is not None and other is not None:
        yield from _of_two(program, value, inner, other, sign, straight, summed, seen)
    elif value.op in _THROUGH:
        if summed is None and value.op in ("sum", "mean", "nanmean"):
            summed = value.op == "sum"
        following = inner if inner is not None else next((one for one in value.inputs if kinds.of(one)), None)
        if following is not None:
            yield from _walk(program, following, sign, straight, summed, seen)


def _of_two(
    program: Program,
    value: Value,
    inner: Value,
    other: Value,
    sign: int,
    straight: bool,
    summed: bool | None,
    seen: set[int],
) -> Iterator[Difference]:
    kinds = program.kinds
    if value.op == "sub":
        left, right = kinds.of(inner), kinds.of(other)
        chosen = (Kind.LOGPROBS, Kind.NEGATIVE_LOGPROBS)
        if all(side is None or side.kind in chosen for side in (left, right)):
            if any(side is not None and side.kind is Kind.NEGATIVE_LOGPROBS for side in (left, right)):
                sign = -sign
            ends = (inner, other) if sign > 0 else (other, inner)
            whole = summed is None and _is_summed(inner) and _is_summed(other)
            yield Difference(value, *ends, straight, summed is True or whole)
        elif left is not None and left.kind is Kind.LOG_RATIO and right is None:
            yield from _walk(program, inner, sign, straight, summed, seen)
    elif value.op == "div":
        both = [kinds.of(one) for one in (inner, other)]
        if all(one is not None and one.kind is Kind.TOKEN_PROBABILITIES for one in both):
            left_value, right_value = (inner, other) if sign > 0 else (other, inner)
            yield Difference(value, _without_exp(left_value), _without_exp(right_value), straight, summed is True)
        elif inner.constant == 1:
            yield from _walk(program, other, -sign, straight, summed, seen)
        else:
            yield from _walk(program, inner, sign, straight, False if summed is None else summed, seen)
    elif value.op == "mul":
        for one, rest in ((inner, other), (other, inner)):
            if isinstance(one.constant, int | float) and one.constant:
                yield from _walk(program, rest, -sign if one.constant < 0 else sign, straight, summed, seen)
                return
        masked = kinds.is_a(inner, Kind.MASK, Kind.COUNT)
        yield from _walk(program, other if masked else inner, sign, straight, summed, seen)


def _is_summed(value: Value) -> bool:
    current, seen = same(value), set[int]()
    while id(current) not in seen:
        seen.add(id(current))
        if current.op == "sum":
            return True
        if current.op not in (*_SAME, "index", "detach") or current.input is None:
            return False
        current = current.input
    return False


def _without_exp(value: Value) -> Value:
    current = same(value)
    return current.input if current.op == "exp" and current.input is not None else value


def same(value: Value) -> Value:
    """The value itself, without casts, views and copies; a detach is kept."""
    seen: set[int] = set()
    while id(value) not in seen and value.op in _SAME and value.op not in ("detach", "leave", "masked_fill"):
        seen.add(id(value))
        if value.input is None:
            break
        value = value.input
    return value


def attached(value: Value) -> Value:
    """The value that was detached, copied, or stored in rows that are read again."""
    value, seen = same(value), set[int]()
    while id(value) not in seen:
        seen.add(id(value))
        stored = read_back(value)
        if stored is not None:
            value = same(stored)
        elif value.op in ("detach", "leave", "clone") and value.input is not None:
            value = same(value.input)
    return value


def read_back(value: Value) -> Value | None:
    """x[rows] right after x[rows] = something: the something."""
    base = value.input
    if value.op != "index" or base is None or base.op != "setitem":
        return None
    rows, written = value.argument("0"), base.argument("0")
    is_same = rows is not None and rows is written and "1" not in value.arguments and "1" not in base.arguments
    return base.argument("value") if is_same else None


def clamped_around_one(clamp: Value) -> bool:
    """Whether it has both bounds of a clipped ratio. A bound on one side may only keep an exp from overflowing."""
    return clamp.argument("min") is not None and clamp.argument("max") is not None and around_one(clamp)


def is_differentiated(program: Program, value: Value) -> bool:
    """Whether what is made of it reaches a loss that is differentiated."""
    losses = {id(loss) for loss, _ in program.losses}
    seen = {id(value)}
    waiting = [value]
    while waiting:
        current = waiting.pop()
        if id(current) in losses:
            return True
        for user in current.users:
            if id(user) not in seen and user.op not in ("detach", "leave"):
                seen.add(id(user))
                waiting.append(user)
    return False
