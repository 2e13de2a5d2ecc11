"""What a script prints and logs: each number with the label it is shown under, and whether the two agree."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from assay.programs.facts.kinds import Kind
from assay.programs.facts.loss.signs import is_centred
from assay.programs.graph import UNKNOWN, Value
from assay.programs.program import Program
from assay.programs.read.things import Listing, Table
from assay.programs.walk import ancestors, peel, users, walk
from assay.verdict import Place

_SAME = ("leave", "cast", "detach", "clone")
_SPECIFIER = re.compile(r"%[-+ #0]*\d*(?:\.\d+)?[a-zA-Z]")
_SHOWS = ("print", "log", "info", "debug", "add_scalar", "write", "set_postfix", "log_metrics")
_SHARES = ("frac", "fraction", "share", "percent", "pct")
_MEANS = ("mean", "avg", "average")
_TOTALS = ("total", "sum", "cumulative", "running")


@dataclass(frozen=True)
class Metric:
    """`what`: how the number differs from its label; "" where it does not, as far as is looked."""

    label: str
    places: tuple[Place, ...]
    what: str = ""


def check_labels(program: Program) -> Iterator[Metric]:
    losses = {id(part) for loss, _ in program.losses for part in ancestors(loss)}
    healthy: dict[Place, str] = {}
    reported: set[Place] = set()
    for label, value in labels(program):
        number = _plain(value)
        if number.place in reported or number.constant == 0:
            continue
        found = _as_kl(program, label, number) or _as_share(program, label, number)
        found = found or _as_mean(label, number) or _as_reward(program, label, number)
        found = found or _as_total(program, label, value, losses)
        if found:
            reported.add(number.place)
            yield Metric(label, (number.place,), found)
        elif any(word in label.lower() for word in ("kl", *_SHARES)):
            healthy[number.place] = label
    for place, label in healthy.items():
        if place not in reported:
            yield Metric(label, (place,))


def labels(program: Program) -> Iterator[tuple[str, Value]]:
    """(label, value) of texts with numbers in them, of tables with names, and of variables that are shown."""
    for value in program.of("string"):
        pieces = value.name.split("{}")
        for piece, shown in zip(pieces, value.inputs, strict=False):
            yield _last_word(piece), shown
            for name in shown.names[:1]:
                yield name, shown
    for value in program.of("mod"):
        template, given = value.setting("input"), value.argument("other")
        if isinstance(template, str) and given is not None:
            pieces = _SPECIFIER.split(template)
            several = given.thing.elements if isinstance(given.thing, Listing) else [given]
            for piece, shown in zip(pieces, several, strict=False):
                yield _last_word(piece), shown
    for value in program.of("table"):
        if isinstance(value.thing, Table):
            for key, shown in value.thing.entries.items():
                if isinstance(key, str):
                    yield key, shown
    for value in program.of("leave", "append"):
        shown = value.argument("value") or value
        for side in (shown, shown.input):
            for name in side.names[:2] if side is not None else ():
                yield name, shown


def _last_word(text: str) -> str:
    found = re.findall(r"[A-Za-z][A-Za-z_/]*", text)
    return found[-1] if found else ""


def _words(label: str) -> list[str]:
    return [value for value in re.split(r"[^a-z]+", label.lower()) if value]


def _plain(value: Value) -> Value:
    return peel(value, _SAME)


def _as_kl(program: Program, label: str, number: Value) -> str:
    if not label.lower().replace("_", "").endswith("kl"):
        return ""
    core = _averaged(program, number.input if number.op == "neg" else number)
    if core is not None and program.kinds.is_a(core, Kind.RATIO, Kind.CLIPPED_RATIO):
        return f"`{label}` is the mean of a ratio of probabilities, `{number.place.text}`, not of its logarithm"
    return ""


def _averaged(program: Program, value: Value | None) -> Value | None:
    """What a mean is taken of, with a mask or without; None if it is not a mean."""
    if value is None:
        return None
    if value.op == "div" and value.input is not None and value.input.op == "sum":
        value = value.input
    elif value.op not in ("mean", "nanmean"):
        return None
    inner = value.input
    if inner is not None and inner.op == "mul":
        sides = [part for part in inner.inputs if not program.kinds.is_a(part, Kind.MASK)]
        inner = sides[0] if sides else inner
    return inner


def _is_full_sum(number: Value) -> bool:
    return number.op == "sum" and "dim" not in number.arguments and not number.name.startswith("builtins")


def _is_divided(number: Value) -> bool:
    """Whether something divides it later, in place as well."""
    kept = (*_SAME, "phi", "add", "index", "listing", "in_place", "setattr")
    return any(
        user.op in ("div", "call", "method", "mul") and user.name.rpartition(".")[2] not in _SHOWS
        for user in islice(walk(number.users, users, until=lambda value: value.op not in kept), 40)
    )


def _as_share(program: Program, label: str, number: Value) -> str:
    if not any(word in label.lower() for word in _SHARES) or not _is_full_sum(number) or _is_divided(number):
        return ""
    counted = peel(number.input, _SAME)
    parts = counted.inputs if counted is not None and counted.op == "mul" else [counted]
    if all(program.kinds.is_a(part, Kind.MASK) for part in parts if part is not None):
        return f"`{label}` is a count, `{number.place.text}`, and nothing divides it"
    return ""


def _as_mean(label: str, number: Value) -> str:
    if not any(word in _words(label) for word in _MEANS) or not _is_full_sum(number) or _is_divided(number):
        return ""
    return f"`{label}` is a sum, `{number.place.text}`, and nothing divides it"


def _as_reward(program: Program, label: str, number: Value) -> str:
    if not any(word in label.lower() for word in ("reward", "score", "return")) or number.op != "mean":
        return ""
    part = number.input
    if part is not None and "dim" not in number.arguments and "adv" not in label.lower() and _is_weight(program, part):
        return f"`{label}` is the mean of the advantages, `{number.place.text}`: it is 0 whatever the rewards are"
    if part is None or part.op != "index" or part.input is None or id(part.input) not in program.policy_factor_ids:
        return ""
    key = part.argument("0")
    if (
        key is None
        or key.op != "slice"
        or not key.arguments
        or id(part) in program.policy_factor_ids
        or "1" in part.arguments
        or (part.context.loops and any(bound.constant is UNKNOWN for bound in key.inputs))
    ):
        return ""  # the part of one turn, which is shown with that turn
    return f"`{label}` is the mean of a part of the step's rewards, `{part.place.text}`"


def _is_weight(program: Program, value: Value) -> bool:
    """Whether a value is what log-probs or ratios are multiplied by in a loss, and has its mean taken away."""
    factors = [factor for _, terms in program.losses for term in terms for factor in program.terms.factors(term)]
    return any(_plain(factor) is value for factor in factors) and is_centred(value)


def _as_total(program: Program, label: str, value: Value, losses: set[int]) -> str:
    """total = x in a loop, after total = 0 before it: the last turn's number."""
    if not any(word in _words(label) for word in _TOTALS) or label not in value.names or id(value) in losses:
        return ""
    loops = value.context.loops
    starts = [
        part
        for part in program.of("constant")
        if part.constant == 0
        and label in part.names
        and part.order < value.order
        and len(part.context.loops) < len(loops)
    ]
    if not starts or loops[: len(starts[-1].context.loops)] != starts[-1].context.loops or value.op in ("phi", "add"):
        return ""
    if any(label in part.names and part.op in ("phi", "constant") for part in list(ancestors(value))[:80]):
        return ""
    shown = [user for user in value.users if user.op in ("string", "table", "mod", "listing")]
    if shown and all(len(user.context.loops) < len(loops) for user in shown):
        return f"`{label}` starts at 0 and is overwritten in each turn: it is the last turn's number"
    return ""
