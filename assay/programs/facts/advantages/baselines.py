"""Rewards on their way to the loss: whether something of other rows is subtracted from them, or nothing is."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from assay.programs.facts.advantages.advantages import plain
from assay.programs.facts.kinds import Kind
from assay.programs.facts.sampling.tokens import is_text
from assay.programs.graph import UNKNOWN, Loop, Value
from assay.programs.program import Program
from assay.programs.read.things import Listing
from assay.programs.walk import ancestors, peel, walk

_MOST_VALUES = 400  # values behind one
_REDUCED = frozenset("mean nanmean median sum min max amin amax".split())
_OPAQUE = frozenset("parameter unknown call method attribute config forward".split())
_LIBRARIES = ("torch.", "numpy.", "builtins.", "random.")  # whose functions keep no averages
_DRAWN = frozenset({"generate", "multinomial", "sample", "decode", "batch_decode"})
_ENDS = (Kind.SAMPLED, Kind.MASK, Kind.LOGPROBS, Kind.LOG_RATIO)
_DIFFERENCES = frozenset({"sub", "rsub"})
_ARITHMETIC = frozenset(
    "add mul div neg view reshape flatten squeeze unsqueeze expand expand_as repeat repeat_interleave tile index cast "
    "clone detach leave tensor stack cat transpose permute scaled nan_to_num split chunk clamp std var sqrt "
    "phi setitem sub listing pow in_place moved".split()
)
_TRUTHS = frozenset("eq ne lt le gt ge not and logical_and logical_or logical_not any all".split())


def has_baseline(program: Program, value: Value) -> bool:
    """Whether something that other rows, a critic or an average has made is subtracted on the way to a value.

    A length penalty within the function that judges one row is its own business, and so is a KL penalty.
    """
    return any(
        part.op in _DIFFERENCES and not _is_penalty(program, part) and not _is_of_one_row(program, value, part)
        for part in _behind(program, value)
    )


def _behind(program: Program, value: Value) -> Iterator[Value]:
    """What a number was computed from, as far back as the tokens that were drawn and their log-probs."""

    def is_end(one: Value) -> bool:
        return one.op in (*_DRAWN, "slice") or is_text(one) or program.kinds.is_a(one, *_ENDS)

    return islice(walk(value, _numbers, until=is_end), _MOST_VALUES)


def _numbers(value: Value) -> list[Value]:
    """What a value was made of; which element is read or written says nothing of its number."""
    picks = value.op in ("index", "setitem")
    return [part for name, part in value.arguments.items() if not picks or name in ("input", "value")]


def _is_penalty(program: Program, difference: Value) -> bool:
    """reward - beta * (log-prob - reference log-prob)."""
    taken = difference.argument("other")
    if taken is None:
        return False
    if program.kinds.is_a(difference, Kind.LOG_RATIO):
        return True
    near = [taken, *(taken.inputs if taken.op in ("mul", "sum", "mean") else [])]
    return any(program.kinds.is_a(value, Kind.LOG_RATIO) for value in near)


def _is_of_one_row(program: Program, factor: Value, difference: Value) -> bool:
    """Whether a difference is taken within a loop over rows, of nothing but that row."""
    inner = [loop for loop in difference.context.loops if loop not in factor.context.loops]
    taken = difference.argument("other")
    if not inner or taken is None:
        return False
    behind = list(islice(_behind(program, taken), 80))
    return len(behind) < 80 and not any(_is_of_others(value, inner[-1]) for value in behind)


def _is_of_others(value: Value, loop: Loop) -> bool:
    """Whether a number that is used in a loop over rows comes from outside of the row."""
    if value.op in _REDUCED:
        inner = value.input or value.argument("0")
        return inner is None or loop not in inner.context.loops
    if value.op not in _OPAQUE or value.constant is not UNKNOWN or loop in value.context.loops or is_text(value):
        return False
    return value.name != "shape" and not value.name.startswith(_LIBRARIES)


def raw_rewards(program: Program, weights: list[Value]) -> list[Value]:
    """Those factors of the policy's gradient that are rewards as they are; none where one of them is not known."""
    found: list[Value] = []
    for factor in weights:
        if has_baseline(program, factor):
            return []
        rewards = _rewards_behind(program, factor)
        if not rewards or any(_is_compared(reward) for reward in rewards):
            return []
        if all(_is_judgement(program, reward) for reward in rewards):
            found.append(factor)
        elif not all(_is_truth(reward) for reward in rewards):
            return []
    return found


def _is_compared(row: Value) -> bool:
    """Whether a number of a row was made with a mean or a spread: it is an advantage already."""
    return any(value.op in ("mean", "nanmean", "std", "var") for value in islice(ancestors(row), 60))


def _rewards_behind(program: Program, factor: Value) -> list[Value]:
    """The numbers of single rows that a factor is made of; nothing where it is made of something unknown as well."""
    found: list[Value] = []

    def is_left_out(one: Value) -> bool:
        return one.constant is not UNKNOWN or program.kinds.is_a(one, Kind.LOG_RATIO) or _is_blank(one)

    def is_filled(one: Value) -> bool:
        return one.op == "setitem" and _is_made_in_loop(one, _start(one))

    def behind(one: Value) -> list[Value]:
        if is_left_out(one) or isinstance(one.thing, Listing):
            return []
        return [one.arguments["input"]] if is_filled(one) else _numbers(one)

    for count, value in enumerate(walk(factor, behind)):
        if is_left_out(value):
            continue
        if count > _MOST_VALUES or value.op not in _ARITHMETIC:
            return []
        if isinstance(value.thing, Listing):
            rows = [row for row in value.thing.elements if _is_made_in_loop(row, value)]
            if len(rows) != len(value.thing.elements) or not rows:
                return []
            found += rows
        elif is_filled(value):
            found.append(value.arguments["value"])
    return found


def _start(filled: Value) -> Value:
    """What a tensor was before the first of its elements was written."""
    return peel(filled, ("setitem", "phi"), by=("input", "0"))


def _is_blank(value: Value) -> bool:
    """torch.zeros(n), to be filled."""
    last = value.name.rpartition(".")[2]
    return value.op in ("call", "method", "full") and last.startswith(("zeros", "empty", "full", "new_zeros"))


def _is_made_in_loop(one: Value, container: Value) -> bool:
    return any(loop not in container.context.loops for loop in one.context.loops)


def _is_truth(value: Value) -> bool:
    return plain(value).op in _TRUTHS


def _is_judgement(program: Program, value: Value) -> bool:
    """A number of one row that is made of what was drawn: no mask, no length, no log-prob."""
    number = plain(value)
    if number.op in (*_TRUTHS, "len", "gather", "multinomial") or number.op in _OPAQUE - {"call"}:
        return False
    if program.kinds.of(number) is not None or program.origins.forwards(number):
        return False
    if number.op == "call" and not any(name.isdigit() for name in number.arguments):
        return False
    if _is_drawn(program, number):
        return True
    # if right: 1.0, else 0.0
    decided = bool(number.context.branches) or any(part.op == "phi" for part in islice(ancestors(number), 12))
    sources = [loop.source for loop in number.context.loops if loop.source is not None]
    return decided and any(_is_drawn(program, source) for source in sources)


def _is_drawn(program: Program, value: Value) -> bool:
    return any(
        part.op in _DRAWN or program.kinds.is_a(part, Kind.SAMPLED) for part in islice(ancestors(value), _MOST_VALUES)
    )
