"""Which way a loss pushes: the signs between a ratio and the loss, and inside the advantage."""

from __future__ import annotations

from assay.dataflow.kind import PASSES, Kind
from assay.dataflow.terms import Product, Term, TermKind
from assay.dataflow.value import Value
from assay.source.program import Program

_LEVELS = ("mean", "nanmean", "median", "amax", "max", "amin")
_STRIPPED = ("unsqueeze", "view", "expand", "cast", "detach", "index", "expand_as", "reshape")


def is_maximised(program: Program) -> bool:
    """Whether an optimizer of the program climbs: maximize=True."""
    return any(one.setting("maximize", False) is not False for one in program.of("optimizer"))


def is_minimised(program: Program) -> bool:
    """Whether an optimizer of torch makes the step, and downhill."""
    return bool(program.of("step")) and not is_maximised(program) and not _is_manual(program)


def _is_manual(program: Program) -> bool:
    """Whether the script touches gradients by hand: `p.grad.neg_()`, `p.data += lr * p.grad`."""
    for value in program.of("attribute"):
        if value.name != "grad":
            continue
        if any(user.op in ("mul", "neg", "add", "sub", "setattr", "in_place") for user in value.users):
            return True
    return any(value.name == "grad" for value in program.of("setattr") if value.setting("value") is not None)


def sides(program: Program, term: Term) -> list[tuple[int, Product]]:
    """The sides of a clipped surrogate, each with its sign in the loss: -1 is right for a loss that is minimised."""
    return [(term.sign * one.sign * advantage_sign(one.factors), one) for one in program.terms.products(term.core)]


def policy_sign(program: Program, term: Term) -> int | None:
    """The sign of ratio * advantage in the loss; None if the sides of a surrogate differ or nothing is known."""
    if term.kind is TermKind.SURROGATE:
        signs = {sign for sign, _ in sides(program, term)}
        return signs.pop() if len(signs) == 1 else None
    if term.kind is TermKind.POLICY:
        return term.sign * advantage_sign(term.factors)
    return None


def advantage_sign(factors: tuple[Value, ...]) -> int:
    """-1 if one of the factors is baseline - reward, else 1."""
    sign = 1
    for factor in factors:
        sign *= turned(factor)
    return sign


def turned(factor: Value) -> int:
    """-1 if the value is the mean of something minus the thing itself; signs in front of it are not counted again."""
    current, seen = factor, set[int]()
    while current.input is not None and (current.op == "neg" or current.op in _STRIPPED) and id(current) not in seen:
        seen.add(id(current))
        current = current.input
    sign = 1
    while id(current) not in seen:
        seen.add(id(current))
        other = current.argument("other")
        if current.op == "sub" and current.input is not None and other is not None:
            if _is_level_of(current.input, other):
                return -sign
            return sign
        if current.op == "neg":
            sign = -sign
        elif current.op == "mul" and other is not None and isinstance(other.constant, int | float):
            sign = -sign if other.constant < 0 else sign
        elif current.op == "phi" or current.op not in (*PASSES, "div", "index", "clamp"):
            return sign
        following = current.input or next(iter(current.arguments.values()), None)
        if following is None:
            return sign
        current = following
    return sign


def centred(factor: Value) -> bool:
    """Whether the value is something minus its own mean, or the other way round: an advantage."""
    seen: set[int] = set()
    waiting = [factor]
    while waiting and len(seen) < 400:
        current = waiting.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        other = current.argument("other")
        if current.op == "sub" and current.input is not None and other is not None:
            if _is_level_of(other, current.input) or _is_level_of(current.input, other):
                return True
        if current.op not in ("forward", "generate", "multinomial"):
            waiting += current.arguments.values()
    return False


def _is_level_of(level: Value, of: Value) -> bool:
    """Whether one value is a mean of the other."""
    inner = _plain(level)
    if inner.op not in _LEVELS or inner.input is None:
        return False
    return _plain(inner.input) is _plain(of)


def _plain(value: Value) -> Value:
    seen: set[int] = set()
    while id(value) not in seen:
        seen.add(id(value))
        following = value.input or value.argument("data")
        shown = value.op in PASSES and value.op not in ("phi", "listing", "table", "element") and following is not None
        if not shown or following is None:
            break
        value = following
    return value


def is_advantage(program: Program, value: Value) -> bool:
    """Whether a factor of a policy term is more than a mask, a number or a setting."""
    if program.kinds.is_a(value, Kind.MASK, Kind.COUNT) or isinstance(value.constant, int | float):
        return False
    return centred(value)
