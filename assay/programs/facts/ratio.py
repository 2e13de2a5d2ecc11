"""The ratios that a policy loss is made of, and the two log-probs behind each: by gradient, never by name."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from assay.programs.facts.kinds import PASSES, SCORES, Kind, around_one
from assay.programs.facts.loss.terms import SurrogateSide, Term, TermKind
from assay.programs.facts.origin import is_network_call, network, same_network
from assay.programs.facts.sampling.samplers import draws_behind, is_touched, loads_into
from assay.programs.graph import UNKNOWN, Value
from assay.programs.program import Program
from assay.programs.walk import follow, peel, walk

RATIOS = (Kind.RATIO, Kind.CLIPPED_RATIO, Kind.EXP_RATIO)
_THROUGH = PASSES | {"exp", "expm1", "clamp", "sum", "mean", "nanmean", "index", "log"}
_SAME = PASSES - {"phi", "stack", "cat", "listing", "table", "setitem", "in_place", "pad_sequence", "roll", "flip"}
_MOST_DIFFERENCES = 6  # alternatives of one value


@dataclass(frozen=True, eq=False)
class Use:
    """A ratio as it stands in a policy objective: a side of min or max, or a plain product with the advantage."""

    ratio: Value
    core: Value  # the min or max, else the ratio
    factors: tuple[Value, ...]
    loss: Value | None = None  # None: nothing that is seen differentiates it
    term: Term | None = None
    product: SurrogateSide | None = None

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


def surrogates(program: Program) -> list[tuple[Value, list[SurrogateSide]]]:
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
                found += [Use(product.ratio, term.core, product.factors, loss, term, product) for product in products]
            elif term.kind is TermKind.POLICY and program.kinds.is_a(term.core, *RATIOS):
                found.append(Use(term.core, term.core, term.factors, loss, term))
    known = {id(use.core) for use in found}
    for value, products in surrogates(program):
        if id(value) not in known:
            found += [Use(product.ratio, value, product.factors, product=product) for product in products]
    return list({(id(use.ratio), id(use.core)): use for use in reversed(found)}.values())[::-1]


def differences(program: Program, ratio: Value) -> list[Difference]:
    """The subtractions or quotients that a ratio is made of; several where a branch decides."""
    return list(_walk(program, ratio, 1, True, None, set()))[:_MOST_DIFFERENCES]


def _walk(
    program: Program, value: Value, sign: int, straight: bool, summed: bool | None, seen: set[int]
) -> Iterator[Difference]:
    if id(value) in seen:
        return
    seen.add(id(value))
    kinds, inner, other = program.kinds, value.input, value.argument("other")
    if value.op == "phi":
        for item in value.inputs:
            yield from _walk(program, item, sign, False, summed, seen)
    elif value.op in ("neg", "reciprocal") and inner is not None:
        yield from _walk(program, inner, -sign, straight, summed, seen)
    elif value.op == "pow" and inner is not None and isinstance(power := value.setting("exponent"), int | float):
        yield from _walk(program, inner, -sign if power < 0 else sign, straight, summed, seen)
    elif inner is not None and other is not None:
        yield from _of_two(program, value, inner, other, sign, straight, summed, seen)
    elif value.op in _THROUGH:
        if summed is None and value.op in ("sum", "mean", "nanmean"):
            summed = value.op == "sum"
        following = inner if inner is not None else next((part for part in value.inputs if kinds.of(part)), None)
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
        both = [kinds.of(side) for side in (inner, other)]
        if all(part is not None and part.kind is Kind.TOKEN_PROBABILITIES for part in both):
            left_value, right_value = (inner, other) if sign > 0 else (other, inner)
            yield Difference(value, _without_exp(left_value), _without_exp(right_value), straight, summed is True)
        elif inner.constant == 1:
            yield from _walk(program, other, -sign, straight, summed, seen)
        else:
            yield from _walk(program, inner, sign, straight, False if summed is None else summed, seen)
    elif value.op == "mul":
        for factor, rest in ((inner, other), (other, inner)):
            if isinstance(factor.constant, int | float) and factor.constant:
                yield from _walk(program, rest, -sign if factor.constant < 0 else sign, straight, summed, seen)
                return
        masked = kinds.is_a(inner, Kind.MASK, Kind.COUNT)
        yield from _walk(program, other if masked else inner, sign, straight, summed, seen)


def _is_summed(value: Value) -> bool:
    return peel(value, (*_SAME, "index")).op == "sum"


def _without_exp(value: Value) -> Value:
    current = without_views(value)
    return current.input if current.op == "exp" and current.input is not None else value


def without_views(value: Value) -> Value:
    """The value itself, without casts, views and copies; a detach is kept."""
    return peel(value, _SAME - {"detach", "leave", "masked_fill"})


def before_detach(value: Value) -> Value:
    """The value that was detached, copied, or stored in rows that are read again."""

    def before(one: Value) -> Value | None:
        is_copy = one.op in ("detach", "leave", "clone")
        inner = read_back(one) or (one.input if is_copy else None)
        return without_views(inner) if inner is not None else None

    return follow(without_views(value), before)


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


def is_differentiated(program: Program, value: Value, cuts: Collection[str] = ("detach", "leave")) -> bool:
    """Whether what is made of it reaches a loss that is differentiated, and not by way of `cuts` alone."""
    losses = {id(loss) for loss, _ in program.losses}
    reached = walk(value, lambda current: [user for user in current.users if user.op not in cuts])
    return any(id(part) in losses for part in reached)


# The clamps of a clipped objective: which they are, what their bounds do, and whether a loss sees them


LOWEST, HIGHEST = 0.0, 4.0  # a clamp that begins below and ends above these holds nothing back


def clamp_of(ratio: Value) -> Value | None:
    """The clamp that made it, through casts and views."""
    inner = peel(ratio, PASSES)
    return inner if inner.op == "clamp" else None


def dead_bounds(clamp: Value) -> str:
    """The bounds, if no ratio of a real run reaches them; else nothing."""
    low, high = clamp.setting("min", None), clamp.setting("max", None)
    if not isinstance(low, int | float) or not isinstance(high, int | float):
        return ""
    return f"{low:g} and {high:g}" if low <= LOWEST and high >= HIGHEST else ""


def has_exchanged_bounds(program: Program, clamp: Value) -> bool:
    """clamp(ratio, 1 + eps, 1 - eps)"""
    low, high = clamp.argument("min"), clamp.argument("max")
    if low is None or high is None or not program.kinds.is_a(clamp.input, Kind.RATIO):
        return False
    if isinstance(low.constant, int | float) and isinstance(high.constant, int | float):
        return low.constant > high.constant
    is_one = [any(part.constant == 1 for part in bound.inputs) for bound in (low, high)]
    return all(is_one) and low.op == "add" and high.op == "sub"


def is_around_the_product(program: Program, clamp: Value) -> bool:
    """clamp(ratio * advantages, 1 - eps, 1 + eps)"""
    inner = clamp.input
    if inner is None or inner.op != "mul" or not clamped_around_one(clamp):
        return False
    for side, rest in ((inner.input, inner.argument("other")), (inner.argument("other"), inner.input)):
        if program.kinds.is_a(peel(side, ("neg",)), Kind.RATIO) and rest is not None:
            return not program.kinds.is_a(rest, Kind.MASK, Kind.COUNT) and not isinstance(rest.constant, int | float)
    return False


# How two sets of log-probs were scored: by which network, at which temperature, with which mask


def scored_apart(program: Program, one: Difference, loss: Value | None) -> tuple[str, Value] | None:
    """In what way new and old log-probs cannot be equal before the first update, and where old is made."""
    left, right = program.origins.forwards(one.left), program.origins.forwards(one.right)
    if not left or not right or any(call.op != "forward" for call in (*left, *right)):
        return None
    other = _frozen(program, right, loss)
    if other is not None:
        return f"{one.right.shown} are the log-probs of a network that neither samples nor is trained", other
    if not all(same_network(left[0].arguments["model"], call.arguments["model"]) for call in (*left, *right)):
        return None
    hot, cold = temperature(program, one.left), temperature(program, one.right)
    if hot is not None and cold is not None and hot != cold:
        return f"{one.left.shown} is scored at temperature {hot:g}, {one.right.shown} at {cold:g}", right[0]
    if len(left) == 1 and len(right) == 1 and {_is_blind(right[0]), _is_blind(left[0])} == {True, False}:
        blind = one.right if _is_blind(right[0]) else one.left
        return f"{blind.shown} is scored with a mask of ones, the other side with the mask of the padding", right[0]
    return None


def _frozen(program: Program, calls: list[Value], loss: Value | None) -> Value | None:
    """The call, if the network behind it is not the trained one, gets no weights in a loop, and draws nothing."""
    if loss is None or not program.origins.trained():
        return None
    drawers = [model for _, model in draws_behind(program, loss)]
    if not drawers:
        return None
    for call in calls:
        model = network(call.arguments["model"])
        if any(same_network(model, value) for value in (*drawers, *program.origins.trained())):
            return None
        if model.context.loops or is_touched(program, model):
            return None
        if any(load.context.loops for load in loads_into(program, model)):
            return None
    return calls[0]


def temperature(program: Program, value: Value) -> float | None:
    """What logits are divided by on the way to log-probs; None where the text does not say."""
    product = 1.0
    for current in walk(value, lambda part: _data(program, part)):
        if current.op in ("phi", "parameter", "element") or (current.op == "mul" and _is_score(program, current.input)):
            return None
        if current.op == "div" and _is_score(program, current.input):
            by = current.arguments["other"].constant
            if by is UNKNOWN or not isinstance(by, int | float) or by == 0:
                return None
            product *= by
    return product


def _data(program: Program, value: Value) -> list[Value]:
    """What the numbers of a value are made of, back to a network: not what picks, masks or shapes them."""
    if is_network_call(value, program.kinds):
        return []
    if value.op in ("listing", "stack", "cat"):
        return [part for name, part in value.arguments.items() if name != "dim"]
    if value.op in ("sub", "mul"):
        return [part for part in value.inputs if not program.kinds.is_a(part, Kind.MASK, Kind.COUNT, Kind.LOGSUMEXP)]
    names = ("input", "data", "logits", "probs")
    return [part for name, part in value.arguments.items() if name in names]


def _is_score(program: Program, value: Value | None) -> bool:
    return program.kinds.is_a(value, *SCORES)


def _is_blind(call: Value) -> bool | None:
    """Whether the attention mask is all ones; None without a mask."""
    mask = call.argument("given_attention_mask")
    if mask is None:
        return None
    return mask.name.endswith("ones_like") or mask.name.endswith(".ones")
