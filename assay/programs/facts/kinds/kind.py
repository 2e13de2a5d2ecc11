"""The kinds of values that matter in policy-gradient code, and how one of them was recognised."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from assay.programs.graph import SAME_NUMBERS, Value
from assay.programs.walk import peel, walk


class Kind(StrEnum):
    OUTPUT = "output of a network"  # logits, hidden states or values: what is done with it tells
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


@dataclass(frozen=True, eq=False)
class Known:
    """A kind, the sentence that says why, and the value whose kind it follows from."""

    kind: Kind
    value: Value
    reason: str
    of: Known | None = None


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
        ones = [one for one in (first, second) if one is not None and one.constant == 1]
        return bool(ones)
    return False


_BLANK = frozenset("zeros empty zeros_like empty_like full full_like new_zeros new_empty new_full".split())
_SHAPED = frozenset(
    "index div mul cast view reshape flatten squeeze transpose permute masked_fill phi topk".split()
)  # between logits and their softmax


def is_normalised(value: Value) -> bool:
    """Whether a softmax is taken of it, after slices and divisions."""

    def shaped(one: Value) -> list[Value]:
        return [user for user in one.users if user.op in _SHAPED or (user.op == "setitem" and user.input is one)]

    return any(
        user.op in ("softmax", "log_softmax", "logsumexp", "cross_entropy")
        or (user.op == "categorical" and user.argument("logits") is one)
        for one in walk(value, shaped)
        for user in one.users
    )


def is_blank(value: Value | None) -> bool:
    """Whether a tensor is new and holds nothing but what was put into it: torch.zeros(n), in a loop too."""

    def before(one: Value) -> list[Value]:
        if one.op == "phi":
            return one.inputs
        return [one.input] if one.op in ("cast", "setitem") and one.input is not None else []

    return value is not None and all(
        one.op in ("phi", "cast", "setitem", "full") or one.name.rpartition(".")[2] in _BLANK
        for one in walk(value, before)
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
    spans = [one for one in keys if one.op == "slice" and one.arguments]
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
