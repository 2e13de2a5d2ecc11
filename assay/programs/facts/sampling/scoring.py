"""Where a script computes log-probs of chosen tokens, and of which numbers a value is made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from assay.programs.facts.kinds import PASSES, SCORES, Kind, is_number
from assay.programs.facts.origin import is_network_call
from assay.programs.graph import UNKNOWN, Value
from assay.programs.once import once
from assay.programs.program import Program
from assay.programs.read.things import Listing
from assay.programs.walk import ancestors, follow, peel, walk

DRAWS = frozenset({"generate", "multinomial", "sample", "rsample", "argmax"})
# of these only the input is data: the rest chooses, masks or counts
_CHOOSES = frozenset(
    "index masked_fill masked_select gather index_select take_along_dim repeat repeat_interleave expand view reshape "
    "flatten squeeze unsqueeze transpose permute pad roll flip split chunk tile cast".split()
)
_PICKS = frozenset("gather index index_select take_along_dim".split())
# from weights back to logits
_FOLLOWED = frozenset("index attribute softmax log_softmax exp log add sub clamp where sort topk gather".split())


@dataclass(frozen=True, eq=False)
class Scoring:
    """Log-probs of tokens: `value` is made of `logits` and `tokens` by `normaliser`; `is_trained`: in a loss."""

    value: Value
    tokens: Value
    logits: Value
    normaliser: Value
    is_trained: bool


@once
def scorings(program: Program) -> list[Scoring]:
    losses = [backward.input for backward in program.of("backward") if backward.input is not None]
    behind = {id(part) for loss in losses for part in ancestors(loss)}
    found = []
    for value in program.values:
        parts = _parts(program, value)
        if parts is None:
            continue
        tokens, logits, normaliser = parts
        gradient = program.origins.gradient(value)
        is_trained = gradient is not False and (id(value) in behind or not losses)
        found.append(Scoring(value, tokens, logits, normaliser, is_trained))
    return found


def _parts(program: Program, value: Value) -> tuple[Value, Value, Value] | None:
    """(tokens, logits, normaliser) of an operation that picks log-probs by token."""
    kinds = program.kinds
    if value.op in ("gather", "take_along_dim", "index"):
        source = value.input
        token = value.argument("index") if value.op != "index" else _last_key(value)
        if source is None or token is None:
            return None
        if kinds.is_a(value, Kind.LOGPROBS) and kinds.is_a(source, Kind.LOG_SOFTMAX):
            normaliser = _normaliser(source)
            if normaliser is None or normaliser.input is None:
                return None
            return token, normaliser.input, normaliser
        if kinds.is_a(value, Kind.TOKEN_LOGITS) and kinds.is_a(source, *SCORES):
            for user in _later(value):
                other = user.argument("other")
                if user.op == "sub" and other is not None and kinds.is_a(other, Kind.LOGSUMEXP):
                    return token, source, other
        return None
    if value.op in ("cross_entropy", "nll_loss"):
        target, source = value.argument("target"), value.input
        if source is None or target is None:
            return None
        if value.op == "cross_entropy":
            return target, source, value
        normaliser = _normaliser(source)
        return (target, normaliser.input, normaliser) if normaliser is not None and normaliser.input else None
    if value.op == "log_prob" and value.input is not None and value.input.op == "categorical":
        given = value.input.argument("logits") or value.input.argument("probs")
        token = value.argument("1") or value.argument("value")
        return (token, given, value.input) if given is not None and token is not None else None
    if value.op == "call" and value.name.rpartition(".")[2] in ("selective_log_softmax", "logprobs_from_logits"):
        given, token = value.argument("0") or value.argument("logits"), value.argument("1") or value.argument("index")
        return (token, given, value) if given is not None and token is not None else None
    return None


def _last_key(value: Value) -> Value | None:
    keys = value.keys
    return keys[-1] if keys and keys[-1].op != "slice" and keys[-1].constant is UNKNOWN else None


def _later(value: Value, depth: int = 4) -> Iterator[Value]:
    for user in value.users:
        yield user
        if depth and (user.op in PASSES or user.op == "index"):
            yield from _later(user, depth - 1)


def _normaliser(value: Value) -> Value | None:
    """The log-softmax behind values over the vocabulary."""
    ends = ("log_softmax", "softmax")
    found = follow(value, lambda current: current.input if current.op not in (*ends, "phi") else None)
    return found if found.op in ends else None


def data_of(value: Value) -> list[Value]:
    """The arguments whose numbers are in the value; what only chooses among them is left out."""
    if value.op in DRAWS or value.op == "forward":
        return []
    if value.op in _CHOOSES:
        inner = value.input
        if value.op == "index" and inner is not None and isinstance(inner.constant, str):
            return value.inputs  # a letter of an alphabet: the key is the data
        if value.op in _PICKS and (picked := [key for key in value.inputs if key is not inner and _is_draw(key)]):
            return [*([inner] if inner is not None else []), *picked]  # the likeliest tokens, one of them drawn
        return [inner] if inner is not None else []
    if value.op in ("len", "full", "list_repeat"):  # sizes are not data
        return [
            one for name in ("fill_value", "input") if (one := value.argument(name)) is not None and value.op != "len"
        ]
    if value.op == "where":
        return [one for name in ("input", "other") if (one := value.argument(name)) is not None]
    if value.op == "setitem":
        return [one for name in ("input", "value") if (one := value.argument(name)) is not None]
    return [*value.inputs, *lists_of(value)]


def _is_draw(value: Value) -> bool:
    return peel(value, ("unsqueeze", "squeeze", "cast", "view", "reshape")).op in DRAWS - {"generate"}


def lists_of(value: Value) -> list[Value]:
    """The lists that a list was joined from or cut out of: its arguments are their elements."""
    thing = value.thing
    if not isinstance(thing, Listing):
        return []
    return [part for part in (*thing.parts, thing.cut_from) if part is not None and part is not value]


def ancestors_and_lists(value: Value) -> Iterator[Value]:
    """The value and all it was made of, the lists it was joined from among them."""
    return walk(value, lambda current: (*current.arguments.values(), *lists_of(current)))


def made_of(value: Value) -> Iterator[Value]:
    """The value and the numbers it is made of, back to where tokens are drawn."""
    return walk(value, data_of)


@dataclass(frozen=True)
class Scale:
    """The numbers that logits were divided ("div") or multiplied ("mul") by; `late`: after a log-softmax."""

    factors: tuple[tuple[str, Value], ...]
    late: tuple[tuple[str, Value], ...]
    forward: Value

    @property
    def temperature(self) -> float | None:
        """What logits are divided by in all; None where the text does not show the number of a factor."""
        product = 1.0
        for op, factor in self.factors:
            number = number_of(factor)
            if number is None or number == 0:
                return None
            product = product * number if op == "div" else product / number
        return product


def number_of(value: Value) -> float | None:
    """The number a value is, or is by default."""
    if isinstance(value.constant, int | float) and not isinstance(value.constant, bool):
        return float(value.constant)
    default = value.arguments.get("default") if value.op == "parameter" else None
    return number_of(default) if default is not None else None


def is_off(value: Value) -> bool:
    """Whether the text's own settings say that the value is not made: it stands in the other branch."""
    return any(
        branch.condition.constant is not UNKNOWN and bool(branch.condition.constant) != branch.side
        for branch in value.context.branches
    )


def scale_of(program: Program, value: Value | None) -> Scale | None:
    """What was done to logits from a network to this value; None where something on the way is not known."""
    factors: list[tuple[str, Value]] = []
    late: list[tuple[str, Value]] = []
    seen: set[int] = set()
    current = value
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        if is_network_call(current, program.kinds):
            return Scale(tuple(factors), tuple(late), current)
        if current.op == "phi":
            current = _likely_arm(current, seen)
            continue
        other = current.argument("other")
        if current.op in ("div", "mul") and other is not None:
            inner, factor = current.input, other
            if current.op == "mul" and is_number(inner) and inner is not None:
                inner, factor = other, inner
            if program.kinds.is_a(factor, *SCORES, Kind.PROBABILITIES):
                return None
            if not _is_sum(factor):
                factors.append((current.op, factor))
            current = inner
            continue
        if current.op in ("log_softmax", "softmax"):
            late, factors = factors + late, []
        if current.op == "attribute" and current.input is not None and current.input.op == "categorical":
            current = current.input
        if current.op == "categorical":
            late, factors = factors + late, []
            current = current.argument("logits") or current.argument("probs")
            continue
        if current.op == "scatter" and current.argument("src") is not None:
            current = current.argument("src")  # sorted weights are put back where they were
            continue
        if current.op not in PASSES and current.op not in _FOLLOWED:
            return None
        current = current.argument("data") or current.argument("tensors") or current.input or _first(current)
    return None


def _is_sum(factor: Value) -> bool:
    """probs / probs.sum().clamp(min=1e-9)"""
    return peel(factor, ("clamp", "add", "maximum", "unsqueeze", "where")).op == "sum"


def _first(value: Value) -> Value | None:
    return next(iter(value.arguments.values()), None)


def _likely_arm(phi: Value, seen: set[int]) -> Value | None:
    """Of several values the one that the settings choose; else the one to which more was done."""
    arms = [part for part in phi.inputs if id(part) not in seen and not is_off(part) and part.constant is not None]
    return max(arms, key=lambda value: value.order, default=None)
