"""Tokens that a script bans when it scores: logits set to -inf, and whether such a token stands under the mask."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from assay.programs.facts.kinds import SCORES, Kind
from assay.programs.facts.masks.endings import Endings
from assay.programs.graph import Value
from assay.programs.program import Program
from assay.programs.walk import ancestors, walk

_CHOSEN = (Kind.LOGPROBS, Kind.NEGATIVE_LOGPROBS, Kind.TOKEN_LOGITS)
_CHOOSES = {
    "gather": "index",
    "take_along_dim": "index",
    "cross_entropy": "target",
    "log_prob": "1",
    "nll_loss": "target",
}


@dataclass(frozen=True, eq=False)
class Ban:
    """Logits set to -inf at `value` for a token; `chosen` looks log-probs of tokens up in them."""

    value: Value
    token: Value
    chosen: Value


def bans(program: Program, loss: Value) -> Iterator[Ban]:
    for chosen in ancestors(loss):
        if chosen.op in _CHOOSES and chosen.input is not None and program.kinds.is_a(chosen, *_CHOSEN):
            for value in islice(walk(chosen.input, _logits_behind), 80):
                token = _banned(program, value)
                if token is not None:
                    yield Ban(value, token, chosen)


def _logits_behind(value: Value) -> list[Value]:
    followed = ("output",) if value.op == "forward" else _FOLLOWED if value.op in _THROUGH else ()
    return [part for name, part in value.arguments.items() if name in followed]


_THROUGH = frozenset(
    "log_softmax softmax log div mul cast clone detach index setitem masked_fill where method view reshape flatten "
    "transpose phi add categorical squeeze unsqueeze sub in_place".split()
)
_FOLLOWED = ("input", "0", "1", "logits", "probs")


def _banned(program: Program, value: Value) -> Value | None:
    """The token whose logit is set to -inf."""
    if value.op == "setitem" and is_minus_infinity(value.argument("value")):
        if not program.kinds.is_a(value.input, *SCORES):
            return None
        keys = value.keys
        return keys[-1] if len(keys) > 1 and keys[-1].op != "slice" else None
    if value.op == "method" and value.name in ("index_fill", "index_fill_"):
        given = [value.arguments[name] for name in ("1", "2", "3") if name in value.arguments]
        return _only(given[1]) if len(given) == 3 and is_minus_infinity(given[2]) else None
    if value.op == "masked_fill" and is_minus_infinity(value.argument("value")):
        for part in islice(ancestors(value.arguments["mask"]), 20):
            if part.op == "setitem" and part.setting("value") is True:
                keys = part.keys
                return keys[-1] if len(keys) == 1 else None
    return None


def _only(value: Value) -> Value:
    """The one element of torch.tensor([x])."""
    data = value.argument("data") or value
    elements = getattr(data.thing, "elements", [])
    return elements[0] if len(elements) == 1 else value


def is_minus_infinity(value: Value | None) -> bool:
    if value is None:
        return False
    if value.constant == float("-inf"):
        return True
    inner = value.input
    if value.op == "cast" and inner is not None and isinstance(inner.constant, str):
        return inner.constant.strip().lower() in ("-inf", "-infinity")
    if value.op == "neg" and inner is not None:
        name = inner.name or getattr(inner.thing, "path", "")
        is_word = inner.op == "cast" and inner.input is not None and inner.input.constant in ("inf", "Inf", "infinity")
        return is_word or (inner.op == "library" and name.endswith(".inf"))
    return False


def is_under_mask(program: Program, endings: Endings, ban: Ban) -> Value | None:
    """The tokens that are looked up, where the banned one fills them after the end of a row."""
    tokens = ban.chosen.argument(_CHOOSES[ban.chosen.op])
    if tokens is None:
        return None
    near = list(islice(ancestors(tokens), 300))
    if ban.chosen.op in ("cross_entropy", "nll_loss") and any(value.constant == -100 for value in near[:60]):
        refilled = any(value.op in ("masked_fill", "where") and _fills(value, ban.token) for value in near[:30])
        return tokens if refilled else None
    refills = [value for value in near[:8] if value.op in ("masked_fill", "where", "clamp")]
    if any(program.kinds.is_a(fill, Kind.SAMPLED) for fill in refills) and not any(
        _fills(value, ban.token) for value in near[:8]
    ):
        return None  # padding was replaced by another token
    is_pad = endings.which(ban.token) == "pad"
    if isinstance(ban.token.constant, int) and not is_pad:
        is_pad = endings.number(ban.token.constant) == "pad"
    return tokens if is_pad and endings.are_seen else None


def _fills(value: Value, token: Value) -> bool:
    given = [part for name, part in value.arguments.items() if name in ("value", "other", "input")]
    same = [
        argument for argument in given if isinstance(argument.constant, int) and argument.constant == token.constant
    ]
    return any(argument is token for argument in given) or bool(same)
