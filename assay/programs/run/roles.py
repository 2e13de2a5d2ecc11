"""What the loss was made of: new, old and reference log-probs, ratio, clip, advantages, mask. By data flow alone.

A role that is not certain is left out: a wrong one would accuse a sound script.

Shape legend: B completions, T tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from assay.programs.facts.kinds import Kind
from assay.programs.graph import RESHAPES, Value
from assay.programs.once import once
from assay.programs.run.kinds import KEEPS_NUMBERS, RunKinds, above, chosen_ids
from assay.programs.run.sight import is_mask, number_of, numbers_of, requires_grad, sight
from assay.programs.run.watched import Backward, Forward, WatchedRun
from assay.programs.walk import main_input, peel, walk
from assay.record.batch import Array

MOST_BACKWARDS = 24  # backwards that are looked at
_COST = re.compile(r"(^|_)(costs?|regrets?|tour_lengths?|makespans?|expenses?)(_|$)", re.IGNORECASE)
_WHOLE_COST = re.compile(r"((total|mean|tour|episode|batch)_)?(costs?|regrets?|lengths?|makespans?|expenses?)", re.I)
_LINEAR = KEEPS_NUMBERS | {"sum", "mean", "div", "mul", "masked_fill", "where", "neg", "clamp", "nan_to_num"}
_SHAPES = RESHAPES | set("neg expand expand_as repeat cast detach clone transpose permute index".split())
_UNCHANGED = KEEPS_NUMBERS | {"nan_to_num", "changed"}
_MASK_FORMS = _UNCHANGED | RESHAPES
_PRODUCTS = frozenset({"mul", "div"})
_CUT = _UNCHANGED | {"clamp", "minimum", "maximum", "min", "max", "neg"}


@dataclass(eq=False)
class LossPiece:
    """One tensor of new log-probs in the loss, and what belongs to it."""

    new: Value
    ids: Array  # as they stand in new
    forward: Forward
    old: Value | None = None  # of the same shape as new
    old_operand: Value | None = None  # what was subtracted, or summed before
    ref: Value | None = None
    ratio: Value | None = None  # what is multiplied by the advantages, unclipped
    advantages: Value | None = None
    sign: float = 1.0  # -1: the script multiplies by the negative of `advantages`
    are_costs: bool = False  # the script calls what its advantages are made of a cost: less is better, the sign says so
    mask: Value | None = None
    mask_is_inverted: bool = False
    product: Value | None = None
    correction: Value | None = None  # importance weight old / sampler
    clip: tuple[float | None, float | None] | None = None  # bounds of the clamp
    clamp: Value | None = None
    differences: Sequence[Value] = ()
    kl_differences: Sequence[Value] = ()  # those of them that lead to the reference
    unsure: set[str] = field(default_factory=set)


@dataclass(eq=False)
class Roles:
    loss: Value
    pieces: Sequence[LossPiece]
    flow: Flow


class Flow:
    """The values above a loss, and on which new log-probs each depends through gradients."""

    def __init__(self, loss: Value, kinds: RunKinds) -> None:
        self.kinds, self.loss = kinds, loss
        self.values = sorted(above(loss), key=lambda value: value.order)
        self.inside = {id(value) for value in self.values}
        self.finals = [value for value in self.values if self._is_final(value)]
        self.depends: dict[int, frozenset[int]] = {}
        mine = {id(value) for value in self.finals}
        for value in self.values:
            upon: frozenset[int] = frozenset()
            if requires_grad(value) or value.op == "listing" or value.thing is None:
                upon = upon.union(
                    *(self.depends.get(id(argument), frozenset()) for argument in value.arguments.values())
                )
            self.depends[id(value)] = upon | {id(value)} if id(value) in mine else upon

    def _is_final(self, value: Value) -> bool:
        if not requires_grad(value) or self.kinds.of(value) is not Kind.LOGPROBS:
            return False
        return any(self.kinds.of(user) is not Kind.LOGPROBS for user in self.users(value))

    def upon(self, value: Value | None) -> frozenset[int]:
        return frozenset() if value is None else self.depends.get(id(value), frozenset())

    def users(self, value: Value) -> list[Value]:
        """What was made of a value on the way to the loss."""
        return [user for user in value.users if id(user) in self.inside]

    def sides(self, op: str, new: Value) -> Iterator[tuple[Value, Value, Value]]:
        """(operation, the side that depends on the new log-probs, the other side)."""
        for value in self.values:
            one, other = value.input, value.arguments.get("other")
            if value.op == op and one is not None and other is not None:
                for mine, theirs in ((one, other), (other, one)):
                    if id(new) in self.upon(mine):
                        yield value, mine, theirs


def find_roles(loss: Value, kinds: RunKinds) -> Roles | None:
    """None if no log-probs of chosen tokens reach the loss through gradients."""
    flow = Flow(loss, kinds)
    pieces = []
    for final in flow.finals:
        forward, ids = kinds.forward_of(final), chosen_ids(final, kinds)
        if forward is None or ids is None:
            continue
        pieces.append(LossPiece(final, ids, forward))
    pieces = _only_newest(_without_copies(pieces, flow), flow)
    for piece in pieces:
        _find_product(piece, flow)
        _find_differences(piece, flow)
        _find_mask(piece, flow)
    pieces = _without_extras(pieces)
    return Roles(loss, pieces, flow) if pieces else None


@once
def flows(run: WatchedRun) -> list[tuple[Backward, Flow]]:
    """The first backwards of a run, each with the values above its loss, roles recognised or not."""
    return [
        (backward, backward.roles.flow if backward.roles is not None else Flow(backward.loss, run.kinds))
        for backward in backwards_since_sampling(run)[:MOST_BACKWARDS]
    ]


def backwards_since_sampling(run: WatchedRun) -> list[Backward]:
    """All if nothing was sampled: before, a script may have imitated answers."""
    sampled = [call.value.order for call in run.generations[:1]] + [draw.value.order for draw in run.samplings[:1]]
    return [backward for backward in run.backwards if not sampled or backward.loss.order > min(sampled)]


def _without_copies(pieces: list[LossPiece], flow: Flow) -> list[LossPiece]:
    """0.01 * new in one more term of the loss is made of new: the same rows, not further ones."""
    mine = {id(piece.new) for piece in pieces}
    return [piece for piece in pieces if not (flow.upon(piece.new) - {id(piece.new)}) & mine]


def _without_extras(pieces: list[LossPiece]) -> list[LossPiece]:
    """Of the same tokens of one pass only what advantages or a ratio weigh; the rest is a bonus, not further rows."""
    weighed = [piece for piece in pieces if piece.product is not None or piece.differences]
    return [
        piece
        for piece in pieces
        if piece in weighed
        or not any(other.forward is piece.forward and np.array_equal(other.ids, piece.ids) for other in weighed)
    ]


def _only_newest(pieces: list[LossPiece], flow: Flow) -> list[LossPiece]:
    """Where old was not detached, both sides of a difference need gradients: new is of the later pass."""
    older = set()
    for value in flow.values:
        if value.op == "sub":
            one, other = flow.upon(value.input), flow.upon(value.arguments.get("other"))
            if one and other and not one & other:
                order = {id(piece.new): piece.forward.value.order for piece in pieces}
                known = [key for key in one | other if key in order]
                older |= {key for key in known if order[key] < max(order[key] for key in known)}
    return [piece for piece in pieces if id(piece.new) not in older]


def _find_product(piece: LossPiece, flow: Flow) -> None:
    """The product of what depends on new and of what does not, which is not a number and not a mask."""
    found = [
        (value, pulled, weight)
        for value, pulled, weight in flow.sides("mul", piece.new)
        if id(piece.new) in flow.upon(value) and not requires_grad(weight) and _is_weight(weight, piece)
    ]
    found = _only_advantages(piece, found, flow)
    roots: list[Value] = []
    for _, _, weight in found:
        root = unwrapped(weight)[0]
        if not any(_is_same(root, known) for known in roots):
            roots.append(root)
    if len(roots) > 1:
        piece.unsure.add("advantages")  # which of them is it?
        return
    inner = {id(value) for value, _, _ in found}
    first = [
        (value, pulled, weight)
        for value, pulled, weight in found
        if not any(id(part) in inner for part in above(pulled))
    ]
    if not first:
        return
    for value, pulled, weight in first:
        clamp = next((part for part in _chain(pulled) if part.op == "clamp"), None)
        if clamp is not None and _around_one(clamp):
            piece.clamp, piece.clip = clamp, bounds(clamp)
        else:
            piece.product, piece.advantages = value, weight
            piece.ratio = pulled if _is_ratio(pulled) else None
    if piece.advantages is None:  # only a clamped one
        value, pulled, weight = first[0]
        piece.product, piece.advantages = value, weight
    # weights made of this very pass are not advantages: CISPO and its kin
    made_of = list(above(piece.advantages))
    # without any of them it is a critic in the same network
    of_policy = (Kind.LOGPROBS, Kind.LOG_SOFTMAX, Kind.PROBABILITIES, Kind.LOGITS)
    is_of_policy = any(flow.kinds.of(made) in of_policy for made in made_of)
    if is_of_policy and any(made is piece.forward.value for made in made_of):
        piece.unsure |= {"advantages", "ratio"}
        return
    piece.sign = unwrapped(piece.advantages)[1]
    if piece.ratio is None and piece.clip is None:
        is_cost = _is_cost(piece.advantages)
        if is_cost is None:
            piece.unsure.add("advantages")
        elif is_cost:
            piece.are_costs, piece.sign = True, -piece.sign


def _is_cost(value: Value) -> bool | None:
    """Whether its name says that less of it is better; None where it only speaks of a cost, as cost_saved does. By
    numbers alone a cost that is made smaller and a reward whose minus was forgotten are the same."""
    until = _SHAPES | {"sub", "div", "stack", "mul"}
    chain = list(walk(value, main_input, until=lambda inner: inner.op not in until))
    for made in chain:
        if made.op == "neg":
            return False
        left = re.split(r"(?<=[\w)\]])\s*-", made.place.text)[0] if made.op == "sub" else ""
        named = [name for name in (*made.names, *re.findall(r"-?\w+", left)) if _COST.search(name) and name[0] != "-"]
        if named:
            is_plain = all(map(_WHOLE_COST.fullmatch, named)) and not any(inner.op == "neg" for inner in chain)
            return True if is_plain else None
    return False


def _only_advantages(
    piece: LossPiece, found: list[tuple[Value, Value, Value]], flow: Flow
) -> list[tuple[Value, Value, Value]]:
    """Without importance weights, which are exp of a difference of log-probs, and gates made of the advantages."""
    roots = {id(root): root for _, _, weight in found for root in [unwrapped(weight)[0]]}
    if len(roots) < 2:
        return found
    others: set[int] = set()
    for key, root in roots.items():
        chain = _chain(root)
        exp = next(
            (part for part in chain if part.op == "exp" and part.input is not None and part.input.op == "sub"), None
        )
        if exp is not None and exp.input is not None and _is_chosen_difference(exp.input, flow.kinds):
            piece.correction = root
            others.add(key)
        elif any(id(made) in roots and made is not root for made in above(root)):
            others.add(key)
    return [product for product in found if id(unwrapped(product[2])[0]) not in others]


def is_corrected(backwards: Sequence[Backward]) -> bool:
    """Whether importance weights stand in the loss: an exp without a gradient, one for each token or row."""
    for backward in backwards:
        for piece in backward.pieces:
            if piece.correction is not None:
                return True
            columns = sight_of_new(piece)[1:]
            credit = set() if piece.advantages is None else {id(made) for made in above(piece.advantages)}
            for value in backward.roles.flow.values if backward.roles is not None else ():
                seen = sight(value)
                is_fixed = value.op == "exp" and seen is not None and not seen.requires_grad
                if is_fixed and id(value) in credit and _chain(value.input or value)[-1].op != "sub":
                    continue  # a reward may be exp of anything
                if is_fixed and seen is not None and seen.shape[1:] in (columns, ()):
                    return True
    return False


def _is_chosen_difference(value: Value, kinds: RunKinds) -> bool:
    sides = (value.input, value.arguments.get("other"))
    return any(side is not None and kinds.of(side) is Kind.LOGPROBS for side in sides)


def _is_weight(value: Value, piece: LossPiece) -> bool:
    seen = sight(value)
    if seen is None or not seen.is_floating or seen.size < 1:
        return False
    if seen.size == 1:
        return piece.ids.size == piece.ids.shape[-1] if piece.ids.ndim else True  # one row
    numbers = seen.numbers
    if numbers is not None and abs(float(numbers.flat[0])) == 1 and (numbers == numbers.flat[0]).all():
        return False  # it weighs nothing
    return not (is_mask(value) and seen.shape == sight_of_new(piece)) and not _only_masks(value, piece)


def _only_masks(value: Value, piece: LossPiece) -> bool:
    """mask / mask.sum(): a mask that is divided by something that was made of it."""
    mask = _mask_in(value, sight_of_new(piece))
    if mask is None or mask is value:
        return False
    root = peel(mask, _MASK_FORMS)
    layers = walk(value, main_input, until=lambda made: made is mask)
    return all(made.op not in _PRODUCTS or _is_scaled_by(made, root) for made in layers)


def _is_scaled_by(value: Value, root: Value) -> bool:
    other = value.arguments.get("other")
    if other is None or number_of(other) is not None:
        return True
    return any(peel(made, _MASK_FORMS) is root for made in above(other))


def _mask_in(value: Value, shape: tuple[int, ...]) -> Value | None:
    """The mask of this shape that a weight was multiplied with: the weight is 0 wherever it is."""
    numbers = numbers_of(value)
    if numbers is None or numbers.shape != shape:
        return None
    for made in walk(value, _factors, until=lambda inner: inner.op not in _PRODUCTS | _MASK_FORMS):
        mask = numbers_of(made) if is_mask(made) and shape == sight_shape(made) else None
        if mask is not None and mask.any() and not mask.all() and not numbers[~mask.astype(bool)].any():
            return made
    return None


def _factors(value: Value) -> list[Value]:
    """Of a product all, of a quotient what is divided."""
    inner = [value.input] if value.input is not None else []
    return inner + ([value.arguments["other"]] if value.op == "mul" and "other" in value.arguments else [])


def sight_shape(value: Value) -> tuple[int, ...]:
    seen = sight(value)
    return () if seen is None else seen.shape


def sight_of_new(piece: LossPiece) -> tuple[int, ...]:
    seen = sight(piece.new)
    return () if seen is None else seen.shape


def unwrapped(value: Value) -> tuple[Value, float]:
    """(what the weight was before it was only reshaped or negated, sign)."""
    layers = list(walk(value, main_input, until=lambda inner: inner.op not in _SHAPES or _is_picked(inner)))
    return layers[-1], (-1.0) ** sum(layer.op == "neg" for layer in layers)


def _is_picked(value: Value) -> bool:
    """x[rows], where a tensor says which."""
    return value.op == "index" and any(sight(key) is not None for key in value.keys)


def _is_same(one: Value, other: Value) -> bool:
    """adv[rows], written twice: the same operation on the same tensor, with the same numbers."""
    if one is other:
        return True
    if one.op != other.op or one.input is None or other.input is None:
        return False
    mine, theirs = numbers_of(one), numbers_of(other)
    if mine is None or theirs is None or not np.array_equal(mine, theirs):
        return False
    return _is_same(unwrapped(one.input)[0], unwrapped(other.input)[0])


def _chain(value: Value) -> list[Value]:
    """The value and what it only rounds, cuts or clamps."""
    return list(walk(value, main_input, until=lambda inner: inner.op not in _CUT))


def _is_ratio(value: Value) -> bool:
    """exp of something, or a difference that nobody took the exp of."""
    last = _chain(value)[-1]
    return last.op in ("exp", "sub", "div") and not any(part.op == "clamp" for part in _chain(value))


def _around_one(clamp: Value) -> bool:
    low, high = bounds(clamp)
    return (low is None or low <= 1) and (high is None or high >= 1) and (low, high) != (None, None)


def bounds(clamp: Value) -> tuple[float | None, float | None]:
    return number_of(clamp.arguments.get("min")), number_of(clamp.arguments.get("max"))


def _find_differences(piece: LossPiece, flow: Flow) -> None:
    """log p - log q: of those that lead to the product q is old, of the others the reference."""
    differences = [
        (value, theirs)
        for value, mine, theirs in flow.sides("sub", piece.new)
        if _is_linear_in(mine, piece.new, flow)
        and id(piece.new) not in flow.upon(theirs)
        and _is_logprobs(theirs, piece, flow.kinds)
    ]
    piece.differences = [value for value, _ in differences]
    pulled = {id(made) for made in above(piece.product)} if piece.product is not None else set()
    olds = [theirs for value, theirs in differences if id(value) in pulled]
    if len({id(old) for old in olds}) == 1:
        piece.old_operand, piece.old = olds[0], _of_shape(olds[0], piece)
    elif olds:
        piece.unsure.add("old")
    root = None if piece.old_operand is None else _root(piece.old_operand)
    refs = [(value, ref) for value, ref in differences if id(value) not in pulled and _root(ref) is not root]
    if len({id(_root(theirs)) for _, theirs in refs}) == 1 and _is_of_another(refs[0][1], piece, flow.kinds):
        piece.ref = _of_shape(refs[0][1], piece)
        piece.kl_differences = [value for value, _ in refs]


def _is_linear_in(value: Value, new: Value, flow: Flow) -> bool:
    if value is new:
        return True
    if id(new) not in flow.upon(value) or value.op not in _LINEAR:
        return False
    return any(_is_linear_in(argument, new, flow) for argument in value.arguments.values())


def _is_logprobs(value: Value, piece: LossPiece, kinds: RunKinds) -> bool:
    """Log-probs, or a tensor of their size of which nothing is known: from a buffer, a data loader."""
    if kinds.of(value) is Kind.LOGPROBS:
        return True
    seen, mine = sight(value), sight(piece.new)
    if seen is None or mine is None or not seen.is_floating or seen.size < 2:
        return False
    numbers = seen.numbers
    negative = numbers is not None and bool((numbers[np.isfinite(numbers)] <= 1e-3).all())
    return negative and (seen.shape == mine.shape or seen.shape == mine.shape[:1])


def _root(value: Value) -> Value:
    return peel(value, _UNCHANGED | {"sum", "mean", "masked_fill"})


def _of_shape(value: Value, piece: LossPiece) -> Value | None:
    """The value, or what was summed to it, in the shape of new."""
    terms = walk(value, main_input, until=lambda inner: inner.op not in _LINEAR)
    return next((term for term in terms if (seen := sight(term)) and seen.shape == sight_of_new(piece)), None)


def _is_of_another(value: Value, piece: LossPiece, kinds: RunKinds) -> bool:
    """Of another model, of the same with its adapter off, or, beside old log-probs, of one more pass of the policy."""
    forward = kinds.forward_of(value)
    if forward is None:
        return False
    if forward.model != piece.forward.model or forward.adapter_off:
        return True
    old = kinds.forward_of(piece.old_operand)
    return old is not None and forward.value is not piece.forward.value and forward.value is not old.value


def _find_mask(piece: LossPiece, flow: Flow) -> None:
    shape = sight_of_new(piece)
    for value in reversed(flow.values):
        if id(piece.new) not in flow.upon(value):
            continue
        for name, mask in value.arguments.items():
            seen = sight(mask)
            if seen is None or seen.shape != shape or not is_mask(mask) or id(piece.new) in flow.upon(mask):
                continue
            if (value.op, name) in _MASKS or (value.op == "index" and seen.dtype == "bool"):
                piece.mask, piece.mask_is_inverted = mask, value.op == "masked_fill"
                return
    inside = (_mask_in(weight, shape) for _, _, weight in flow.sides("mul", piece.new) if not requires_grad(weight))
    piece.mask = next((mask for mask in inside if mask is not None), None)


_MASKS = {
    ("mul", "input"), ("mul", "other"), ("masked_fill", "mask"), ("where", "condition"), ("masked_select", "mask"),
    ("dot", "input"), ("dot", "1"),
}  # fmt: skip
