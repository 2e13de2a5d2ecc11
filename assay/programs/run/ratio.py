"""What the advantages of a loss are multiplied by: which numbers, and how they move with the new log-probs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from assay.programs.graph import Value
from assay.programs.run.kinds import KEEPS_NUMBERS
from assay.programs.run.roles import Flow, LossPiece, flows, unwrapped
from assay.programs.run.sight import Sight, is_mask, numbers_of, requires_grad, sight
from assay.programs.run.watched import WatchedRun
from assay.programs.walk import peel, walk
from assay.record.batch import Array
from assay.verdict import Place

RATIO_FIT = 1e-4
COARSE_RATIO_FIT = 3e-2  # in 16 bits
_GROWS = KEEPS_NUMBERS | {"exp", "clamp", "sum", "mean", "masked_fill", "where", "nan_to_num", "expm1"}
Form = Callable[[Array, Array], Array]
FORMS: dict[str, Form] = {
    "new / old": lambda new, old: np.exp(new - old),
    "log-probs": lambda new, old: new,
    "old / new": lambda new, old: np.exp(old - new),
    "new - old, the logarithm of the ratio": lambda new, old: new - old,
    "old - new": lambda new, old: old - new,
    "exp of the ratio": lambda new, old: np.exp(np.exp(new - old)),
    "the quotient of the log-probs": lambda new, old: new / old,
    "the difference of the probabilities": lambda new, old: np.exp(new) - np.exp(old),
    "exp(new - old) - 1": lambda new, old: np.expm1(new - old),
    "a probability over a log-prob": lambda new, old: np.exp(new) / old,
    "a log-prob over a probability": lambda new, old: new / np.exp(old),
}


@dataclass(frozen=True)
class Factor:
    """What the advantages are multiplied by on one line, and the forms that fit it in all updates."""

    value: Value
    forms: frozenset[str]


def factors(run: WatchedRun) -> list[Factor]:
    """Of all updates together: a form that fits only some is not it."""
    found: dict[Place, Factor] = {}
    for backward, flow in flows(run):
        for piece in backward.pieces:
            for pulled in _pulled(piece, flow):
                forms = _forms(pulled, piece)
                if forms is not None:
                    known = found.get(pulled.place)
                    found[pulled.place] = Factor(pulled, forms if known is None else known.forms & forms)
    return list(found.values())


def _forms(pulled: Value, piece: LossPiece) -> frozenset[str] | None:
    """None where the numbers are not known, or too few."""
    old = piece.old or _other_logprobs(pulled, piece)
    numbers, new, before = numbers_of(pulled), numbers_of(piece.new), numbers_of(old)
    if numbers is None or new is None or before is None or not numbers.shape == new.shape == before.shape:
        return None
    inside = _counted(piece, new, before, numbers)
    if inside.sum() < 2:
        return None
    return frozenset(name for name, form in FORMS.items() if _fits(form, numbers, new, before, inside, piece))


def _pulled(piece: LossPiece, flow: Flow) -> Iterator[Value]:
    """Factors of the advantages that depend on the new log-probs, the clipped one left out."""
    if piece.advantages is None or "advantages" in piece.unsure:
        return
    advantages, seen = unwrapped(piece.advantages)[0], set()
    for value, pulled, weight in flow.sides("mul", piece.new):
        inner = without_sign(pulled)
        is_pulled = id(piece.new) in flow.upon(value) and unwrapped(weight)[0] is advantages
        if is_pulled and inner.op != "clamp" and id(inner) not in seen:
            seen.add(id(inner))
            yield inner


def without_sign(value: Value) -> Value:
    """What was negated or rounded."""
    return peel(value, ("neg", "cast"))


def _other_logprobs(pulled: Value, piece: LossPiece) -> Value | None:
    """Log-probs without a gradient that the factor is made of as well; None if there are none or several."""

    def is_other(value: Value) -> bool:
        return not requires_grad(value) and not is_mask(value) and _looks_like(value, sight(piece.new))

    def arguments(value: Value) -> list[Value]:
        return [argument for argument in value.arguments.values() if argument is not piece.new]

    behind = walk(pulled, arguments, until=lambda value: value.op in ("forward", "generate") or is_other(value))
    found = [value for value in behind if is_other(value)]
    return found[0] if len(found) == 1 else None


def _looks_like(value: Value, new: Sight | None) -> bool:
    numbers = numbers_of(value)
    if numbers is None or new is None or numbers.shape != new.shape or numbers.dtype.kind != "f":
        return False
    return bool(np.all(numbers <= 1e-3)) and bool(np.any(numbers < 0))


def _counted(piece: LossPiece, new: Array, old: Array, numbers: Array) -> Array:
    inside: Array = np.isfinite(new) & np.isfinite(old) & np.isfinite(numbers) & (old < 0) & (new < 0)
    mask = numbers_of(piece.mask)
    if mask is not None and mask.shape == new.shape:
        inside &= ~mask.astype(bool) if piece.mask_is_inverted else mask.astype(bool)
    return inside


def _fits(form: Form, numbers: Array, new: Array, old: Array, inside: Array, piece: LossPiece) -> bool:
    seen = sight(piece.new)
    limit = RATIO_FIT if seen is not None and seen.dtype in ("float32", "float64") else COARSE_RATIO_FIT
    with np.errstate(all="ignore"):
        expected = form(new, old)[inside]
    return bool(np.allclose(numbers[inside], expected, rtol=limit, atol=limit))


def slope(value: Value, piece: LossPiece, flow: Flow) -> int | None:
    """1: it grows with the new log-probs; -1: it falls; None: not known."""
    if value is piece.new:
        return 1
    depending = [(name, argument) for name, argument in value.arguments.items() if id(piece.new) in flow.upon(argument)]
    if len(depending) != 1:
        return None
    name, inner = depending[0]
    way = slope(inner, piece, flow)
    if way is None or value.op in _GROWS:
        return way
    if value.op == "neg":
        return -way
    if value.op == "sub":
        return way if name == "input" else -way
    if value.op == "div":
        other = next(argument for key, argument in value.arguments.items() if key != name)
        side = _side(other)
        return None if side is None else way * side * (1 if name == "input" else -1)
    if value.op == "mul":
        other = next(argument for key, argument in value.arguments.items() if key != name)
        if is_mask(other):
            return way
        return None if not isinstance(other.constant, (int, float)) else way if other.constant > 0 else -way
    return None


def _side(value: Value) -> int | None:
    """1: all its numbers are above 0; -1: none is; None: both, or not known."""
    numbers = np.asarray(value.constant) if isinstance(value.constant, (int, float)) else numbers_of(value)
    if numbers is None or not numbers.size:
        return None
    return 1 if np.all(numbers > 0) else -1 if np.all(numbers < 0) else None
