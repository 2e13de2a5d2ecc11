"""What a value is: logits, log-probs, a ratio, a mask. Known by what was done to it, never by how it is called.

`Kinds(graph).of(value)` answers from the operations that made it; where nothing is known of what went in (a parameter
of a function that nobody calls), from what is made of it: exp(a - b) that is clamped around 1 is a ratio.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from assay.programs.graph import RESHAPES, SAME_NUMBERS, UNKNOWN, Graph, Value
from assay.programs.walk import peel, walk


class Kind(StrEnum):
    OUTPUT = "output of a network"  # logits, hidden states or values: what is done with it decides
    LOGITS = "logits over the vocabulary"
    PROBABILITIES = "probabilities over the vocabulary"
    LOG_SOFTMAX = "log-probs over the vocabulary"
    LOGSUMEXP = "normaliser of logits"
    TOKEN_LOGITS = "logits of chosen tokens"
    TOKEN_PROBABILITIES = "probabilities of chosen tokens"
    LOGPROBS = "log-probs of chosen tokens"
    NEGATIVE_LOGPROBS = "negative log-probs of chosen tokens"
    DISTRIBUTION = "a distribution over the vocabulary"
    ENTROPY = "entropy"
    LOG_RATIO = "difference of log-probs"
    RATIO = "ratio of probabilities"
    CLIPPED_RATIO = "clipped ratio"
    EXP_RATIO = "exp of a ratio"
    SAMPLED = "sampled tokens"
    MASK = "mask"
    COUNT = "running count of a mask"


SCORES = (Kind.LOGITS, Kind.OUTPUT)
ONE_OF = {
    Kind.LOG_SOFTMAX: Kind.LOGPROBS,
    Kind.PROBABILITIES: Kind.TOKEN_PROBABILITIES,
    Kind.LOGITS: Kind.TOKEN_LOGITS,
    Kind.OUTPUT: Kind.TOKEN_LOGITS,
}  # of a vocabulary: of one token
LOG_OF = {
    Kind.PROBABILITIES: Kind.LOG_SOFTMAX,
    Kind.TOKEN_PROBABILITIES: Kind.LOGPROBS,
    Kind.RATIO: Kind.LOG_RATIO,
}
EXP_OF = {
    Kind.LOG_SOFTMAX: Kind.PROBABILITIES,
    Kind.LOGPROBS: Kind.TOKEN_PROBABILITIES,
    Kind.LOG_RATIO: Kind.RATIO,
    Kind.RATIO: Kind.EXP_RATIO,
    Kind.CLIPPED_RATIO: Kind.EXP_RATIO,
}
LIBRARY_LOGPROBS = frozenset(
    "selective_log_softmax logprobs_from_logits get_per_token_logps compute_transition_scores _get_per_token_logps "
    "_get_per_token_logps_and_entropies".split()
)
# still the same kind of thing
PASSES = SAME_NUMBERS | frozenset(
    "leave tensor listing repeat_interleave tile roll flip masked_select masked_fill setitem nan_to_num scaled phi "
    "in_place deepcopy table".split()
)
# still that kind of thing after a division
DIVIDED = (
    *SCORES, Kind.PROBABILITIES, Kind.LOG_SOFTMAX, Kind.LOGPROBS, Kind.LOG_RATIO, Kind.NEGATIVE_LOGPROBS, Kind.MASK,
    Kind.ENTROPY,
)  # fmt: skip
COMPARES = frozenset("eq ne lt le gt ge logical_and logical_or logical_not not isfinite isnan in".split())
_OF_INPUT = frozenset("setitem masked_fill masked_select index_select repeat_interleave expand_as pad".split())
_HOLDERS = frozenset({"phi", "listing", "table"})  # of things that may be of several kinds
_ADDED = (*SCORES, Kind.LOGPROBS, Kind.MASK, Kind.COUNT, Kind.PROBABILITIES, Kind.TOKEN_PROBABILITIES)


# of one question, which asks for what comes later only in the body of a loop
DEEPEST = 120
MOST_ASKED = 2_000

# whatever they are given
_ALWAYS = {
    "softmax": (Kind.PROBABILITIES, "a softmax"),
    "log_softmax": (Kind.LOG_SOFTMAX, "a log-softmax"),
    "entropy": (Kind.ENTROPY, "entropy of a distribution"),
    "multinomial": (Kind.SAMPLED, "drawn by multinomial"),
    "generate": (Kind.SAMPLED, "returned by generate()"),
    "cross_entropy": (Kind.NEGATIVE_LOGPROBS, "cross-entropy with token ids"),
    "nll_loss": (Kind.NEGATIVE_LOGPROBS, "negative log-likelihood of token ids"),
}
_SUMMED = (Kind.LOGPROBS, Kind.NEGATIVE_LOGPROBS, Kind.LOG_RATIO, Kind.ENTROPY)
_VOCABULARY = (*SCORES, Kind.PROBABILITIES, Kind.LOG_SOFTMAX)
# what an operation does, and the kind that it makes of another
_TURNS: dict[str, tuple[str, dict[Kind, Kind]]] = {
    "argmax": ("the likeliest token", dict.fromkeys(_VOCABULARY, Kind.SAMPLED)),
    "clamp": ("clamped", {kind: kind for kind in Kind} | {Kind.RATIO: Kind.CLIPPED_RATIO}),
    "cumsum": ("a running count", {Kind.MASK: Kind.COUNT}),
    "exp": ("exp of it", EXP_OF),
    "log": ("its logarithm", LOG_OF),
    "log_prob": ("log_prob of a distribution", {Kind.DISTRIBUTION: Kind.LOGPROBS}),
    "mean": ("averaged", {kind: kind for kind in _SUMMED}),
    "neg": (
        "its negative",
        {
            Kind.LOGPROBS: Kind.NEGATIVE_LOGPROBS,
            Kind.NEGATIVE_LOGPROBS: Kind.LOGPROBS,
            Kind.LOG_RATIO: Kind.LOG_RATIO,
        },
    ),
    "sample": ("drawn from a distribution", {Kind.DISTRIBUTION: Kind.SAMPLED}),
}
_BLANK = frozenset("zeros empty zeros_like empty_like full full_like new_zeros new_empty new_full".split())
# what is done to a difference of log-probs before its exp
_BEFORE_EXP = RESHAPES | frozenset("clamp nan_to_num mul div sum mean masked_fill cast setitem".split())
_SHAPED = frozenset(
    "index div mul cast view reshape flatten squeeze transpose permute masked_fill phi topk".split()
)  # between logits and their softmax


@dataclass(frozen=True, eq=False)
class Known:
    """A kind, the sentence that says why, and the value whose kind it follows from."""

    kind: Kind
    value: Value
    reason: str
    of: Known | None = None


class Kinds:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._known: dict[int, Known | None] = {}
        self._passing: set[int] = set()  # asked, and not known, within one question
        self._depth = 0

    def of(self, value: Value | None) -> Known | None:
        if value is None:
            return None
        if id(value) in self._known:
            return self._known[id(value)]
        if not self._passing:
            self._answer_before(value)
        return self._answer(value)

    def _answer_before(self, value: Value) -> None:
        """Answers all that the value is made of, in the order in which it was made: no question goes deep."""
        unknown = walk(
            value, lambda current: [part for part in current.arguments.values() if id(part) not in self._known]
        )
        for part in sorted(unknown, key=lambda current: current.order):
            self._answer(part)

    def _answer(self, value: Value) -> Known | None:
        if id(value) in self._known:
            return self._known[id(value)]
        if id(value) in self._passing or self._depth > DEEPEST or len(self._passing) > MOST_ASKED:
            return None  # in a loop a value may be made of itself: the other inputs decide
        self._passing.add(id(value))
        is_outermost = len(self._passing) == 1
        self._depth += 1
        known = self._made(value) or used_as(value, self)
        self._depth -= 1
        if is_outermost:
            self._passing.clear()  # what was not found on the way may rest on a loop that was cut
        if known is not None or is_outermost:
            self._known[id(value)] = known
        return known

    def is_a(self, value: Value | None, *kinds: Kind) -> bool:
        known = self.of(value)
        return known is not None and known.kind in kinds

    def why(self, value: Value) -> tuple[str, ...]:
        """The chain of facts by which a value was recognised, nearest first."""
        lines: list[str] = []
        known = self.of(value)
        while known is not None and len(lines) < 12:
            lines.append(f"line {known.value.place.line}: {known.value.shown} is {known.kind}: {known.reason}")
            known = known.of
        return tuple(lines)

    def _made(self, value: Value) -> Known | None:
        if value.op in _ALWAYS:
            return Known(_ALWAYS[value.op][0], value, _ALWAYS[value.op][1], self.of(value.input))
        if value.op in _TURNS:
            return self._turned(value, value.op)
        method = getattr(self, f"_{value.op}", None)
        if method is not None:
            known: Known | None = method(value)
            return known
        if value.op in PASSES:
            return self._passed(value)
        if value.op in COMPARES:
            return Known(Kind.MASK, value, "a comparison")
        return None

    def _turned(self, value: Value, op: str) -> Known | None:
        """What an operation makes of one kind."""
        inner = self.of(value.input)
        if op == "log" and inner is None and value.input is not None and value.input.op in ("add", "clamp"):
            inner = self.of(value.input.input)  # log(p + 1e-8)
        reason, turns = _TURNS[op]
        return Known(turns[inner.kind], value, reason, inner) if inner is not None and inner.kind in turns else None

    def _passed(self, value: Value) -> Known | None:
        """The kind of what went in; of several, the one that all that are known agree on."""
        inputs = [part for name, part in value.arguments.items() if name != "key"]
        if value.op == "setitem" and is_span_of_ones(value):
            return Known(Kind.MASK, value, "a span of ones in a tensor of zeros")
        if value.op in _OF_INPUT:
            filled = value.op == "setitem" and is_blank(value.input)
            inputs = [value.arguments[name] for name in ("value" if filled else "input",) if name in value.arguments]
        found = [known for part in inputs if (known := self.of(part)) is not None]
        if value.op == "cat":
            found = [known for known in found if known.kind is Kind.SAMPLED][:1] or found
        if not found or (value.op in _HOLDERS and len({known.kind for known in found}) > 1):
            return None
        return Known(found[0].kind, value, f"{value.op.replace('_', ' ')} of it", found[0])

    # networks

    def _attribute(self, value: Value) -> Known | None:
        if value.name == "logits":
            inner = value.input
            called = inner is not None and inner.op in ("forward", "call", "phi", "method", "parameter", "index")
            if called and not self.is_a(inner, Kind.DISTRIBUTION):
                return Known(Kind.LOGITS, value, "the logits of a model's output")
        if value.name in ("logits", "probs", "mode") and self.is_a(value.input, Kind.DISTRIBUTION):
            return self._of_distribution(value)
        if value.name == "sequences":
            return self._kept(value, value.input, Kind.SAMPLED)
        if value.name in ("attention_mask", "completion_mask", "action_mask", "loss_mask", "response_mask"):
            return Known(Kind.MASK, value, "a field that libraries name so")
        if value.name in ("data", "T", "mT"):
            return self._kept(value, value.input)
        if value.name == "values" and value.input is not None and value.input.op in ("sort", "topk"):
            return self._kept(value, value.input.input)
        of_max = value.input if value.name == "indices" and value.input and takes_best(value.input) else None
        return self._turned(of_max, "argmax") if of_max is not None else None

    def _of_distribution(self, value: Value) -> Known:
        """torch normalises the logits that a Categorical is given: its own are log-probs."""
        kinds = {"logits": Kind.LOG_SOFTMAX, "probs": Kind.PROBABILITIES, "mode": Kind.SAMPLED}
        return Known(kinds[value.name], value, f"the {value.name} of a distribution", self.of(value.input))

    def _kept(self, value: Value, inner: Value | None, *kinds: Kind) -> Known | None:
        known = self.of(inner)
        if known is None or (kinds and known.kind not in kinds):
            return None
        return Known(known.kind, value, "the same numbers", known)

    def _forward(self, value: Value) -> Known | None:
        if value.name in ("CrossEntropyLoss", "NLLLoss"):
            return Known(Kind.NEGATIVE_LOGPROBS, value, f"nn.{value.name}")
        if (end := last_layer(value)) in ("Softmax", "LogSoftmax"):
            return Known(Kind.PROBABILITIES if end == "Softmax" else Kind.LOG_SOFTMAX, value, f"nn.{end}")
        inner = self.of(value.arguments.get("output"))
        if inner is not None and inner.kind is not Kind.OUTPUT:
            return Known(inner.kind, value, "what the network's forward returns", inner)
        return Known(Kind.OUTPUT, value, "a call of a network")

    def _logsumexp(self, value: Value) -> Known | None:
        inner = self.of(value.input)
        return Known(Kind.LOGSUMEXP, value, "logsumexp", inner) if inner is None or inner.kind in SCORES else None

    def _categorical(self, value: Value) -> Known | None:
        given = value.arguments.get("logits") or value.arguments.get("probs")
        return Known(Kind.DISTRIBUTION, value, "a categorical distribution", self.of(given))

    # choosing tokens

    def _gather(self, value: Value) -> Known | None:
        if is_order(value.input) and self.is_a(value.argument("index"), Kind.SAMPLED):
            return Known(Kind.SAMPLED, value, "tokens at drawn places of an order", self.of(value.argument("index")))
        return self._chosen(value, self.of(value.input))

    _take_along_dim = _gather

    def _index(self, value: Value) -> Known | None:
        if value.name == "attention_mask":
            return Known(Kind.MASK, value, "a field that libraries name so")
        if value.input is not None and value.input.op in ("sort", "topk") and not takes_best(value.input):
            return self._kept(value, value.input.input) if value.setting("0") == 0 else None
        if value.input is not None and takes_best(value.input) and value.setting("0") in (0, 1):
            return self._turned(value.input, "argmax") if value.setting("0") == 1 else None
        if value.name == "unpacked" and value.input is not None and value.input.op == "generate":
            return self._kept(value, value.input) if value.setting("0") == 0 else None  # tokens come first
        inner = self.of(value.input)
        if is_order(value.input) and self.is_a(value.argument("0"), Kind.SAMPLED):
            return Known(Kind.SAMPLED, value, "tokens at drawn places of an order", self.of(value.argument("0")))
        if inner is None:
            is_output = value.name == "logits" and value.input is not None and value.input.op in ("forward", "call")
            return Known(Kind.LOGITS, value, "a model's output called logits by its library") if is_output else None
        keys = value.keys
        by_tensor = [
            key for key in keys if key.op != "slice" and not isinstance(key.constant, int) and key.constant is UNKNOWN
        ]
        if inner.kind in _VOCABULARY and len(keys) >= 2 and len(by_tensor) >= 2:
            return self._chosen(value, inner)  # logprobs[torch.arange(T), ids]
        if inner.kind in _VOCABULARY and len(keys) == 1 and self.is_a(keys[0], Kind.SAMPLED):
            return self._chosen(value, inner)  # logprobs[token], of one position
        return Known(inner.kind, value, "a part of it", inner)

    def _chosen(self, value: Value, inner: Known | None) -> Known | None:
        if inner is None or inner.kind not in ONE_OF:
            return None if inner is None else Known(inner.kind, value, "a part of it", inner)
        return Known(ONE_OF[inner.kind], value, "those at the token ids", inner)

    def _call(self, value: Value) -> Known | None:
        last = value.name.rpartition(".")[2]
        if last in LIBRARY_LOGPROBS:
            return Known(Kind.LOGPROBS, value, "a library's log-probs of chosen tokens")
        if last in ("ones_like", "zeros_like") and self.is_a(value.argument("0"), Kind.MASK):
            return Known(Kind.MASK, value, "of the form of a mask")
        if value.op == "call" and "callee" in value.arguments and is_normalised(value):
            return Known(Kind.OUTPUT, value, "a call whose result goes into a softmax")
        return None

    _method = _call

    # arithmetic

    def _sub(self, value: Value) -> Known | None:
        left, right = self.of(value.input), self.of(value.argument("other"))
        kinds = left.kind if left else None, right.kind if right else None
        if kinds[1] is Kind.LOGSUMEXP and kinds[0] in (Kind.TOKEN_LOGITS, *SCORES):
            kind = Kind.LOGPROBS if kinds[0] is Kind.TOKEN_LOGITS else Kind.LOG_SOFTMAX
            return Known(kind, value, "minus their logsumexp", left)
        if kinds == (Kind.LOGPROBS, Kind.LOGPROBS) or kinds == (Kind.NEGATIVE_LOGPROBS, Kind.NEGATIVE_LOGPROBS):
            return Known(Kind.LOG_RATIO, value, "a difference of log-probs", left)
        numeric = is_number(value.input) or is_number(value.argument("other")) or None not in kinds
        if (Kind.MASK in kinds or Kind.COUNT in kinds) and numeric:  # not rewards of 0 and 1 minus their mean
            return Known(Kind.COUNT if Kind.COUNT in kinds else Kind.MASK, value, "arithmetic of masks", left or right)
        if left is not None and right is None and left.kind in SCORES:
            return Known(left.kind, value, "shifted", left)  # minus its maximum, a penalty
        other = value.argument("other")
        is_constant = other is not None and isinstance(other.constant, int | float)
        if left is not None and left.kind in (Kind.LOGPROBS, Kind.LOG_RATIO) and right is None and is_constant:
            return Known(left.kind, value, "shifted", left)
        if left is not None and left.kind in SCORES and right is not None and right.kind in SCORES:
            return Known(left.kind, value, "shifted", left)
        return None

    def _add(self, value: Value) -> Known | None:
        left, right = self.of(value.input), self.of(value.argument("other"))
        for side, other in ((left, right), (right, left)):
            fits = side is not None and (other is None or other.kind in (side.kind, Kind.MASK, Kind.COUNT))
            if side is not None and side.kind in _ADDED and fits:
                return Known(side.kind, value, "with something added", side)
        return None

    def _mul(self, value: Value) -> Known | None:
        left, right = self.of(value.input), self.of(value.argument("other"))
        if left is not None and right is not None:
            if left.kind is Kind.MASK or right.kind is Kind.MASK:
                other = right if left.kind is Kind.MASK else left
                return Known(other.kind, value, "under a mask", other)
            return None
        known = left or right
        other_value = value.argument("other") if left is not None else value.input
        if known is None or other_value is None:
            return None
        if known.kind in SCORES and is_number(other_value):
            return Known(known.kind, value, "scaled", known)
        if known.kind is Kind.MASK:
            return None
        scales = is_number(other_value) and other_value.op != "parameter"  # which may be the advantages
        is_ratio = known.kind in (Kind.RATIO, Kind.CLIPPED_RATIO)
        return Known(known.kind, value, "scaled", known) if scales and not is_ratio else None

    def _div(self, value: Value) -> Known | None:
        left, right = self.of(value.input), self.of(value.argument("other"))
        if left is None:
            return None
        if left.kind is Kind.TOKEN_PROBABILITIES and right is not None and right.kind is Kind.TOKEN_PROBABILITIES:
            return Known(Kind.RATIO, value, "a quotient of probabilities", left)
        if left.kind in DIVIDED:
            return Known(left.kind, value, "divided", left)
        return None

    def _sum(self, value: Value) -> Known | None:
        inner = value.input
        if inner is not None and inner.op == "mul":
            kinds = {known.kind for part in inner.inputs if (known := self.of(part)) is not None}
            if kinds == {Kind.PROBABILITIES, Kind.LOG_SOFTMAX}:
                return Known(Kind.ENTROPY, value, "sum of p log p", self.of(inner.input))
            if Kind.LOG_SOFTMAX in kinds and any(part.op in ("one_hot", "cast") for part in inner.inputs):
                return Known(Kind.LOGPROBS, value, "picked by a one-hot", self.of(inner.input))
        known = self.of(inner)
        return Known(known.kind, value, "summed", known) if known is not None and known.kind in _SUMMED else None

    def _einsum(self, value: Value) -> Known | None:
        logs = [part for part in value.inputs if self.is_a(part, Kind.LOG_SOFTMAX)]
        picked = bool(logs) and any(is_one_hot(part) for part in value.inputs)
        return Known(Kind.LOGPROBS, value, "picked by a one-hot", self.of(logs[0])) if picked else None

    def _leave(self, value: Value) -> Known | None:
        known = self._passed(value)
        if known is not None and value.name in ("item", "float") and known.kind in ONE_OF:
            return Known(ONE_OF[known.kind], value, "one number of it", known)
        is_score = known is not None and known.kind is Kind.MASK and value.name in ("float", "int", "item")
        return None if is_score else known  # float(answer == truth) is a number, no mask

    def _where(self, value: Value) -> Known | None:
        found = [known for name in ("input", "other") if (known := self.of(value.argument(name))) is not None]
        agreed = len({known.kind for known in found}) == 1
        return Known(found[0].kind, value, "where a condition holds", found[0]) if agreed else None


def used_as(value: Value, kinds: Kinds) -> Known | None:
    """A ratio is clamped around 1; a difference of log-probs is what its exp is taken of."""
    inner, other = value.input, value.argument("other")
    if value.op == "exp" and inner is not None and _is_clipped(value) and _is_difference(inner):
        return Known(Kind.RATIO, value, "exp of a difference that is clamped around 1")
    if value.op == "div" and _is_clipped(value) and other is not None and not is_number(other):
        return Known(Kind.RATIO, value, "a quotient that is clamped around 1")
    if value.op == "sub" and any(user.op == "exp" and _is_clipped(user) for user in _made_before_exp(value)):
        return Known(Kind.LOG_RATIO, value, "its exp is clamped around 1")
    if value.op == "mul" and any(user.op == "exp" for user in value.users):
        logs = [
            known for part in value.inputs if (known := kinds.of(part)) is not None and known.kind is Kind.LOG_RATIO
        ]
        if len(logs) == 1:
            return Known(Kind.LOG_RATIO, value, "a difference of log-probs under something, before its exp", logs[0])
    if value.op == "sub" and inner is not None and other is not None and _has_exp(value, inner):
        sides = [(inner, kinds.of(inner)), (other, kinds.of(other))]
        ours = [known for _, known in sides if known is not None and known.kind is Kind.LOGPROBS]
        strangers = [side for side, known in sides if known is None and not is_number(side)]
        if len(ours) == 1 and len(strangers) == 1:
            return Known(
                Kind.LOG_RATIO, value, "log-probs and something else, of whose difference the exp is taken", ours[0]
            )
    return None


def _is_clipped(value: Value) -> bool:
    return any(user.op == "clamp" and user.input is value and around_one(user) for user in value.users)


def _has_exp(difference: Value, inner: Value) -> bool:
    """Whether the exp is taken of it, or of the same difference written a second time."""
    same = [user for user in inner.users if user.op == "sub" and user.arguments == difference.arguments]
    return any(user.op in ("exp", "expm1") for value in (difference, *same) for user in _made_before_exp(value))


def _is_difference(value: Value) -> bool:
    """Whether it is a difference, or one that was bounded, masked or summed."""
    return peel(value, _BEFORE_EXP).op == "sub"


def _made_before_exp(difference: Value) -> Iterator[Value]:
    """What is made of a difference on the way to its exp: bounded, masked, summed."""
    return walk(
        difference,
        lambda one: one.users if one is difference or one.op in _BEFORE_EXP else (),
        until=lambda one: one is not difference and one.op not in _BEFORE_EXP,
    )


def around_one(clamp: Value) -> bool:
    """Whether a clamp has the bounds of a clipped ratio: below and above 1, or one of them.

    A bound that is not known counts if it is written as 1 minus or 1 plus something.
    """
    low, high = clamp.argument("min"), clamp.argument("max")
    if low is None and high is None:
        return False
    return (low is None or _near_one(low, below=True)) and (high is None or _near_one(high, below=False))


def _near_one(bound: Value, below: bool) -> bool:
    if isinstance(bound.constant, int | float):
        return 0.0 < bound.constant < 1.0 if below else 1.0 < bound.constant <= 20.0
    if bound.op in ("sub", "add"):
        first, second = bound.input, bound.argument("other")
        ones = [side for side in (first, second) if side is not None and side.constant == 1]
        return bool(ones)
    return False


def is_normalised(value: Value) -> bool:
    """Whether a softmax is taken of it, after slices and divisions."""

    def shaped(one: Value) -> list[Value]:
        return [user for user in one.users if user.op in _SHAPED or (user.op == "setitem" and user.input is one)]

    return any(
        user.op in ("softmax", "log_softmax", "logsumexp", "cross_entropy")
        or (user.op == "categorical" and user.argument("logits") is part)
        for part in walk(value, shaped)
        for user in part.users
    )


def is_blank(value: Value | None) -> bool:
    """Whether a tensor is new and holds nothing but what was put into it: torch.zeros(n), in a loop too."""

    def before(one: Value) -> list[Value]:
        if one.op == "phi":
            return one.inputs
        return [one.input] if one.op in ("cast", "setitem") and one.input is not None else []

    return value is not None and all(
        part.op in ("phi", "cast", "setitem", "full") or part.name.rpartition(".")[2] in _BLANK
        for part in walk(value, before)
    )


def is_number(value: Value | None) -> bool:
    """A constant, a setting, or something that is not a tensor as far as can be seen."""
    if value is None:
        return False
    if isinstance(value.constant, int | float):
        return True
    return value.op in ("config", "len", "parameter", "attribute") and value.name not in ("logits", "data")


def is_span_of_ones(change: Value) -> bool:
    """mask[i, start:end] = 1, in a new tensor: of tokens, for rewards are set one by one."""
    keys = change.keys
    spans = [key for key in keys if key.op == "slice" and key.arguments]
    return bool(spans) and change.setting("value") in (1, True) and is_blank(change.input)


def takes_best(value: Value) -> bool:
    """max(-1), or topk(1): (values, indices) of the likeliest."""
    return value.op == "max" or (value.op == "topk" and value.setting("k") == 1)


def is_order(value: Value | None) -> bool:
    """The indices of a sort or of the best few: what is drawn from them is a place among them, not a token."""
    if value is None:
        return False
    if value.op == "argsort":
        return True
    is_second = value.name == "indices" if value.op == "attribute" else value.op == "index" and value.setting("0") == 1
    return is_second and value.input is not None and value.input.op in ("sort", "topk")


def is_one_hot(value: Value) -> bool:
    """A one-hot code in another precision."""
    return peel(value, ("cast",)).op == "one_hot"


def last_layer(forward: Value) -> str:
    """The layer of torch.nn that makes the output of a call: that of nn.Sequential is its last. "": not known."""
    model = forward.arguments.get("model")
    if model is not None and model.op == "submodule":
        model = model.arguments.get("layer", model)
    if model is None or model.op != "module":
        return forward.name
    layer = model
    while layer.name == "Sequential":
        if not layer.arguments or (inner := list(layer.arguments.values())[-1]).op != "module":
            return ""
        layer = inner
    return layer.name
