"""A loss --> its terms: policy, KL, entropy, value; each with its sign, its factors and how it is reduced."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from assay.programs.facts.kinds import PASSES, Kind, Kinds, is_blank
from assay.programs.facts.origin import Origins
from assay.programs.graph import Value
from assay.programs.walk import peel, walk

MOST_TERMS = 64
_NAMED = (
    Kind.RATIO, Kind.CLIPPED_RATIO, Kind.LOGPROBS, Kind.NEGATIVE_LOGPROBS, Kind.LOG_RATIO, Kind.EXP_RATIO,
)  # fmt: skip
_REDUCTIONS = ("mean", "sum", "nanmean")
_VIEWS = ("div", "unsqueeze", "view", "expand", "cast", "detach", "index", "expand_as", "reshape", "squeeze", "clone")


class TermKind(StrEnum):
    SURROGATE = "clipped surrogate"  # min or max of two products
    POLICY = "policy gradient"  # a ratio or log-probs times an advantage
    KL = "KL"
    ENTROPY = "entropy"
    VALUE = "value"
    DETACHED = "without gradient"
    OTHER = "something else"


@dataclass(frozen=True, eq=False)
class Term:
    """sign * core * factors, reduced. A SURROGATE's core is the min or max; a KL's the estimate of each token.

    `sign` is of the core as it stands: signs inside a min or max are in `inner`.
    """

    kind: TermKind
    sign: int
    core: Value
    factors: tuple[Value, ...] = ()
    reductions: tuple[Value, ...] = ()
    estimator: str = ""  # of a KL: k1 k2 k3 abs full
    joined: Value | None = None  # the sum or difference in which it meets the other terms

    @property
    def is_policy(self) -> bool:
        return self.kind in (TermKind.SURROGATE, TermKind.POLICY)


@dataclass(frozen=True)
class _Path:
    """What stands between a loss and a part of it."""

    sign: int = 1
    factors: tuple[Value, ...] = ()
    reductions: tuple[Value, ...] = ()
    joined: Value | None = None

    def term(self, kind: TermKind, core: Value, estimator: str = "") -> Term:
        return Term(kind, self.sign, core, self.factors, self.reductions, estimator, self.joined)

    def turned(self) -> _Path:
        return replace(self, sign=-self.sign)

    def times(self, factor: Value) -> _Path:
        sign, factors = _signed(factor, self.sign, self.factors)
        return replace(self, sign=sign, factors=factors)


@dataclass(frozen=True, eq=False)
class SurrogateSide:
    """One side of a surrogate: sign * ratio * factors."""

    sign: int
    ratio: Value
    factors: tuple[Value, ...]
    is_clipped: bool


class Terms:
    def __init__(self, kinds: Kinds, origins: Origins) -> None:
        self.kinds = kinds
        self.origins = origins
        self._products: dict[int, list[SurrogateSide]] = {}

    def of(self, loss: Value) -> list[Term]:
        found: list[Term] = []
        seen: set[tuple[int, int, frozenset[int]]] = set()
        waiting = [(loss, _Path())]
        while waiting and len(found) < MOST_TERMS:
            value, path = waiting.pop()
            way = id(value), path.sign, frozenset(map(id, path.factors))  # in a loop it comes back to the same
            if way not in seen:
                seen.add(way)
                waiting += reversed(self._expand(value, path, found))
        return found

    def _expand(self, value: Value, path: _Path, found: list[Term]) -> list[tuple[Value, _Path]]:
        """The parts of which a value is the sum, in order; what is a term of its own is added to those found."""
        estimator = self.kl_estimator(value)
        inner, other = value.input, value.argument("other")
        if estimator:
            found.append(path.term(TermKind.KL, value, estimator))
        elif value.op in ("minimum", "maximum") and self.products(value):
            found.append(path.term(TermKind.SURROGATE, value))
        elif value.op in ("add", "sub") and inner is not None and other is not None and not self._is_whole(value):
            joined = replace(path, joined=value)
            return [(inner, joined), (other, joined.turned() if value.op == "sub" else joined)]
        elif value.op == "neg" and inner is not None and not self._is_leaf(value):
            return [(inner, path.turned())]
        elif value.op == "mul" and inner is not None and other is not None:
            return self._product(value, path, found)
        elif inner is not None and self._is_reduced(value):
            return [(inner, replace(path, reductions=(*path.reductions, value)))]
        elif value.op in ("detach", "leave"):
            found.append(path.term(TermKind.DETACHED, value))
        elif value.op == "where":
            return [(value.arguments[name], path) for name in ("input", "other") if name in value.arguments]
        elif (value.op in PASSES or value.op in ("index", "phi", "clamp")) and not self._is_leaf(value):
            if value.op == "setitem" and is_blank(inner):
                return [(value.arguments["value"], path)]
            return [(part, path) for part in ([inner] if inner is not None else value.inputs)]
        else:
            found.append(self._leaf(value, path))
        return []

    def _is_reduced(self, value: Value) -> bool:
        if value.op == "div":
            return not self._is_leaf(value)
        return value.op in _REDUCTIONS and not self.kinds.is_a(value, Kind.ENTROPY)

    def _product(self, value: Value, path: _Path, found: list[Term]) -> list[tuple[Value, _Path]]:
        left, right = value.arguments["input"], value.arguments["other"]
        for constant, rest in ((left, right), (right, left)):
            if isinstance(constant.constant, int | float) and constant.constant != 0:
                scaled = replace(path, factors=(*path.factors, constant))
                return [(rest, scaled.turned() if constant.constant < 0 else scaled)]
        ours, theirs = self.is_policy(left), self.is_policy(right)
        if ours and not theirs:
            return [(left, path.times(right))]
        if theirs and not ours:
            return [(right, path.times(left))]
        found.append(self._leaf(value, path))
        return []

    def is_policy(self, value: Value) -> bool:
        """Whether the value depends on the policy being trained, as far as can be seen."""
        if self.kinds.is_a(value, Kind.MASK, Kind.COUNT):
            return False
        gradient = self.origins.gradient(value)
        if gradient is not None:
            return gradient
        return self._holds(value)

    def _holds(self, value: Value) -> bool:
        """Whether it is made of log-probs or ratios, where nothing is known of gradients."""
        kinds = (Kind.LOGPROBS, Kind.RATIO, Kind.CLIPPED_RATIO, Kind.LOG_RATIO, Kind.EXP_RATIO)
        attached = walk(value, until=lambda current: current.op in ("detach", "leave"))
        return any(part.op not in ("detach", "leave") and self.kinds.is_a(part, *kinds) for part in attached)

    def _is_whole(self, value: Value) -> bool:
        """A difference that is one thing: new - ref, logits - logsumexp."""
        return value.op == "sub" and self.kinds.is_a(value, Kind.LOG_RATIO, Kind.LOGPROBS, Kind.LOG_SOFTMAX)

    def _is_leaf(self, value: Value) -> bool:
        """A quotient of probabilities, negative log-probs: things with a name of their own."""
        return self.kinds.is_a(value, *_NAMED) and value.op not in PASSES

    def _leaf(self, value: Value, path: _Path) -> Term:
        known = self.kinds.of(value)
        kind = known.kind if known is not None else None
        if self.origins.gradient(value) is False and kind is not Kind.MASK:
            return path.term(TermKind.DETACHED, value)
        if kind in (Kind.RATIO, Kind.CLIPPED_RATIO, Kind.LOGPROBS, Kind.EXP_RATIO):
            return path.term(TermKind.POLICY, value)
        if kind is Kind.NEGATIVE_LOGPROBS:
            return path.turned().term(TermKind.POLICY, value)
        if kind is Kind.LOG_RATIO:
            return path.term(TermKind.KL, value, "k1")
        if kind is Kind.ENTROPY:
            return path.term(TermKind.ENTROPY, value)
        if value.op in ("mse_loss", "pow", "square", "smooth_l1_loss", "maximum") and self.origins.forwards(value):
            return path.term(TermKind.VALUE, value)
        if value.op == "mul" and all(self.is_policy(part) for part in value.inputs):
            return path.term(TermKind.POLICY, value)
        return path.term(TermKind.OTHER, value)

    # surrogates

    def products(self, extreme: Value) -> list[SurrogateSide]:
        """The sides of min(ratio * A, clipped * A), in any spelling; empty if it is something else."""
        if id(extreme) not in self._products:
            sides = [extreme.input, extreme.argument("other")]
            found = [product for side in sides if side is not None and (product := self._side(side)) is not None]
            self._products[id(extreme)] = found if len(found) == 2 else []
        return self._products[id(extreme)]

    def factors(self, term: Term) -> list[Value]:
        """All that a term is multiplied by, on the sides of a surrogate too."""
        return [*term.factors, *(factor for side in self.products(term.core) for factor in side.factors)]

    def _side(self, value: Value) -> SurrogateSide | None:
        sign = 1
        factors: list[Value] = []
        seen: set[int] = set()
        current: Value | None = value
        while current is not None and id(current) not in seen:
            seen.add(id(current))
            known = self.kinds.of(current)
            ratios = (Kind.RATIO, Kind.CLIPPED_RATIO, Kind.LOG_RATIO, Kind.EXP_RATIO)
            if known is not None and known.kind in ratios and current.op not in PASSES:
                return SurrogateSide(sign, current, tuple(factors), peel(current, PASSES).op == "clamp")
            other = current.argument("other")
            if current.op == "neg":
                sign, current = -sign, current.input
            elif current.op == "mul" and current.input is not None and other is not None:
                ours = self.is_policy(current.input)
                if ours and self.is_policy(other):
                    ours = self.kinds.is_a(peel(current.input, ("neg",)), Kind.RATIO, Kind.CLIPPED_RATIO)
                factor = other if ours else current.input
                sign, more = _signed(factor, sign, ())
                factors += more
                current = current.input if ours else other
            elif current.op in PASSES or current.op in ("index", "div", "clamp"):
                current = current.input or next(iter(current.inputs), None)
            else:
                return None
        return None

    # KL

    def kl_estimator(self, value: Value) -> str:
        """k1, k2, k3, abs or full where the value is an estimate of the KL to a reference; else nothing."""
        if value.op == "kl_div":
            return "full"
        inner = value.input
        is_power = value.op in ("square", "abs") or (value.op == "pow" and value.setting("exponent") == 2)
        if is_power and self.kinds.is_a(inner, Kind.LOG_RATIO):
            return "abs" if value.op == "abs" else "k2"
        if value.op == "mul" and value.input is value.argument("other") and self.kinds.is_a(inner, Kind.LOG_RATIO):
            return "k2"
        if value.op in ("add", "sub"):
            parts = self.additive(value)
            ratios = [part for _, part in parts if self.kinds.is_a(part, Kind.RATIO) or part.op == "expm1"]
            logs = [part for _, part in parts if self.kinds.is_a(part, Kind.LOG_RATIO)]
            if ratios and logs and len(parts) <= 4:
                return "k3"
        return ""

    def additive(self, value: Value, sign: int = 1, depth: int = 6) -> list[tuple[int, Value]]:
        """The summands of a sum, with their signs; a difference of log-probs stays whole."""
        other = value.argument("other")
        whole = self.kinds.is_a(value, Kind.LOG_RATIO, Kind.RATIO)
        if depth and value.op in ("add", "sub") and value.input is not None and other is not None and not whole:
            right = -sign if value.op == "sub" else sign
            return self.additive(value.input, sign, depth - 1) + self.additive(other, right, depth - 1)
        if depth and value.op == "neg" and value.input is not None and not whole:
            return self.additive(value.input, -sign, depth - 1)
        if depth and value.op == "cast" and value.input is not None and not whole:
            return self.additive(value.input, sign, depth - 1)
        return [(sign, value)]


def _signed(factor: Value, sign: int, factors: tuple[Value, ...]) -> tuple[int, tuple[Value, ...]]:
    """A factor without its minus signs, which go to the term."""
    return sign * _sign_of(factor), (*factors, factor)


def _sign_of(factor: Value, depth: int = 12) -> int:
    """-1 for an odd number of minus signs before a value, through products, quotients and views."""
    inner, other = factor.input, factor.argument("other")
    if depth == 0:
        return 1
    if isinstance(factor.constant, int | float):
        return -1 if factor.constant < 0 else 1
    if factor.op == "neg" and inner is not None:
        return -_sign_of(inner, depth - 1)
    if factor.op == "mul" and inner is not None and other is not None:
        return _sign_of(inner, depth - 1) * _sign_of(other, depth - 1)
    if factor.op in _VIEWS and inner is not None:
        return _sign_of(inner, depth - 1)
    return 1
