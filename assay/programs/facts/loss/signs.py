"""Which way a loss pushes: the signs between a ratio and the loss, and inside the advantage."""

from __future__ import annotations

from itertools import islice

from assay.programs.facts.kinds import PASSES, Kind, is_blank
from assay.programs.facts.loss.terms import SurrogateSide, Term, TermKind
from assay.programs.facts.optimizer.optimizers import networks_held
from assay.programs.facts.optimizer.ownership import contains, trained_networks
from assay.programs.graph import Value
from assay.programs.program import Program
from assay.programs.walk import peel, walk

_LEVELS = ("mean", "nanmean", "median", "sum")
_SCATTERED = ("index_add", "scatter_add", "scatter_reduce", "scatter_mean", "bincount", "segment_reduce")
_VIEWS = (PASSES | {"index"}) - {"phi", "listing", "table", "element"}
_MOST_VALUES = 400  # values behind one


def is_maximised(program: Program) -> bool | None:
    """Whether the optimizer of the policy climbs: maximize=True. None where some do, and not which holds the policy."""
    ways = {_climbs(value) for value in program.of("optimizer")}
    if len(ways) > 1:
        trained = [model for loss, _ in program.losses for model in trained_networks(program, loss) or ()]
        ways = {
            _climbs(optimizer)
            for optimizer in program.of("optimizer")
            if any(contains(program, theirs, model) for theirs in networks_held(optimizer) or () for model in trained)
        }
        return ways.pop() if len(ways) == 1 else None
    return True in ways


def _climbs(optimizer: Value) -> bool:
    return optimizer.setting("maximize", False) is not False


def is_minimised(program: Program) -> bool:
    """Whether an optimizer of torch makes the step, or a library's trainer does, and downhill."""
    is_stepped = bool(program.of("step")) or any(value.name == "framework" for value in program.of("backward"))
    return is_stepped and is_maximised(program) is False and not _is_manual(program)


def _is_manual(program: Program) -> bool:
    """Whether the script touches gradients by hand: `p.grad.neg_()`, `p.data += lr * p.grad`."""
    for value in program.of("attribute"):
        if value.name != "grad":
            continue
        if any(user.op in ("mul", "neg", "add", "sub", "setattr", "in_place") for user in value.users):
            return True
    return any(value.name == "grad" for value in program.of("setattr") if value.setting("value") is not None)


def sides(program: Program, term: Term) -> list[tuple[int, SurrogateSide]]:
    """The sides of a clipped surrogate, each with its sign in the loss: -1 is right for a loss that is minimised."""
    return [
        (term.sign * product.sign * advantage_sign(product.factors), product)
        for product in program.terms.products(term.core)
    ]


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
        sign *= centre_sign(factor)
    return sign


def centre_sign(factor: Value) -> int:
    """-1 if the value is the mean of something minus the thing itself; its minus signs are counted elsewhere."""
    found = _centre(factor, set())
    return -1 if found is not None and _is_level_of(found[0], found[1]) else 1


def is_centred(factor: Value) -> bool:
    """Whether the value is something minus its own mean, or the other way round: an advantage."""
    behind = walk(factor, until=lambda value: value.op in ("forward", "generate", "multinomial"))
    return any(value.op == "sub" and _centre(value, set()) is not None for value in islice(behind, _MOST_VALUES))


def _centre(value: Value, seen: set[int]) -> tuple[Value, Value] | None:
    """The sides of the outermost subtraction of a mean that a value is made of by products and quotients."""
    if id(value) in seen:
        return None
    seen.add(id(value))
    inner, other = value.input, value.argument("other")
    if value.op == "sub" and inner is not None and other is not None:
        is_one = _is_level_of(other, inner) or _is_level_of(inner, other)
        return (inner, other) if is_one else None
    if value.op == "mul" and inner is not None and other is not None:
        return _centre(inner, seen) or _centre(other, seen)
    added = next((part for name, part in value.arguments.items() if name.startswith("+")), None)
    if value.op == "phi" and added is not None:  # a list that a loop fills
        return _centre(added, seen)
    if value.op != "phi" and value.op in (*PASSES, "div", "index", "clamp", "neg"):
        is_put = value.op == "setitem" and is_blank(inner)  # rows of a new tensor
        following = value.argument("value") if is_put else inner or next(iter(value.arguments.values()), None)
        return _centre(following, seen) if following is not None else None
    return None


def _is_level_of(level: Value, of: Value) -> bool:
    """Whether one value is a mean of the other: any arithmetic of its sum, as a leave-one-out mean is."""
    targets = {id(whole) for whole in _wholes(of)}
    waiting, seen = [(_plain(level), 6)], set[int]()
    while waiting:
        current, depth = waiting.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        if current.op in _LEVELS and current.input is not None:
            inner = _plain(current.input)
            masked = [_plain(part) for part in inner.inputs] if inner.op == "mul" else []
            if any(id(whole) in targets for value in (inner, *masked) for whole in _wholes(value)):
                return True
        elif current.name.rstrip("_") in _SCATTERED:
            if any(id(_plain(part)) in targets for name, part in current.arguments.items() if name != "input"):
                return True
        elif depth and current.op in ("div", "sub", "add", "mul"):
            waiting += [(_plain(part), depth - 1) for part in current.inputs]
    return False


def _wholes(value: Value) -> list[Value]:
    """The value, the list that it is an element of, and what is in a list: `r - sum(rewards) / n for r in rewards`."""
    found = [_plain(value)]
    while len(found) < 6 and found[-1].op == "element" and found[-1].input is not None:
        found.append(_plain(found[-1].input))
    if found[0].op == "listing":
        found += [_plain(part) for name, part in found[0].arguments.items() if name != "slice"]
    return found


def _plain(value: Value) -> Value:
    return peel(value, _VIEWS, by=("input", "data"))


def is_centred_factor(program: Program, value: Value) -> bool:
    """Whether a factor of a policy term is more than a mask, a number or a setting."""
    if program.kinds.is_a(value, Kind.MASK, Kind.COUNT) or isinstance(value.constant, int | float):
        return False
    return is_centred(value)
