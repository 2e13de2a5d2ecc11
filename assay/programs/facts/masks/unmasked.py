"""Losses in which nothing says which tokens count, although the rows of a batch end at different places.

Absence is only a fact where the whole way from the loss to the log-probs was followed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from assay.programs.facts.advantages.groups import is_one_row
from assay.programs.facts.advantages.shapes import Shapes
from assay.programs.facts.kinds import Kind
from assay.programs.facts.masks.counts import behind_tokens
from assay.programs.facts.masks.masks import Masked, fillings, losses
from assay.programs.facts.masks.padding import padded_by, prompts_of_draw
from assay.programs.facts.origin import is_network_call
from assay.programs.facts.positions import given_ids
from assay.programs.facts.sampling.draws import draws, passes_of
from assay.programs.facts.sampling.scoring import made_of
from assay.programs.facts.sampling.tokens import is_encoding
from assay.programs.graph import Value
from assay.programs.program import Program
from assay.programs.read.things import Listing
from assay.programs.walk import peel, walk

_REDUCES = ("mean", "sum", "nanmean")
_PICKS = frozenset("masked_select masked_fill where nan_to_num einsum matmul pad_sequence".split())
_MANY = frozenset("repeat_interleave repeat expand list_repeat tile pad_sequence".split())
_BY_ROW = ((), ("B",), ("B", "1"), ("P", "1"), ("P", "G"), ("L",))  # one number per row at most
_SEARCHES = ("eq", "ne", "argmax")
_MOST = 200


@dataclass(frozen=True, eq=False)
class Bare:
    """A sum or mean over all positions of log-probs, and what shows that not all of them are tokens of their row.

    `is_drawn`: the policy drew these tokens; else a tokenizer or the script padded them.
    """

    reduction: Value
    scored: Value
    rows: Value
    is_drawn: bool


def bare_reductions(program: Program) -> Iterator[Bare]:
    shapes = Shapes(program)
    for masked in losses(program):
        if masked.selects or not _is_bare(program, masked, shapes):
            continue
        for value in masked.way:
            if value.op not in _REDUCES or value.input is None or value.setting("dim", None) not in (None, 1, -1):
                continue
            scored = behind_tokens(program, value.input)
            tokens = _tokens_of(scored) if scored is not None else None
            uneven = _uneven(program, tokens) if tokens is not None else None
            if scored is not None and uneven is not None and _is_whole(program, value, scored, shapes):
                yield Bare(value, scored, *uneven)
                break


def _is_bare(program: Program, masked: Masked, shapes: Shapes) -> bool:
    """Whether nothing between the loss and the log-probs can leave tokens out."""
    if any(_picks(program, value) for value in masked.way):
        return False
    factors = [mask.value for mask in masked.masks if not isinstance(mask.value.constant, int | float)]
    return not any(_may_mask(program, factor, shapes) for factor in factors)


def _picks(program: Program, value: Value) -> bool:
    """Whether an operation may leave tokens out: where(...), x[mask] = 0."""
    if value.op == "setitem":
        return value.setting("value") == 0 or any(program.kinds.is_a(key, Kind.MASK) for key in value.keys)
    return value.op in _PICKS


def _may_mask(program: Program, factor: Value, shapes: Shapes) -> bool:
    """Whether a factor may be 0 at some tokens of a row: a mask that nobody summed over them, a table of lists."""

    def is_end(value: Value) -> bool:
        is_summed = value.op in ("sum", "mean", "len") and value.setting("dim", None) in (None, 1, -1)
        is_known = is_summed or is_network_call(value, program.kinds) or shapes.of(value) in _BY_ROW
        inner = peel(value, ("cast", "neg"))
        return is_known or any(_is_flat(part) for part in (inner, *inner.inputs))

    def is_open(value: Value) -> bool:
        is_mask = program.kinds.is_a(value, Kind.MASK, Kind.COUNT) or "mask" in value.name
        return is_mask or value.op in ("parameter", "unknown") or _is_table(value)

    return any(is_open(value) for value in islice(walk(factor, until=is_end), _MOST) if not is_end(value))


def _is_flat(value: Value) -> bool:
    """torch.tensor([a number for each row])"""
    thing = getattr(value.argument("data"), "thing", None) if value.op == "tensor" else None
    if not isinstance(thing, Listing) or thing.exact or not thing.elements:
        return False
    return all(element.op in ("len", "div", "leave") for element in thing.elements)


def _is_table(value: Value) -> bool:
    """torch.tensor([a list for each row])"""
    thing = getattr(value.argument("data"), "thing", None) if value.op == "tensor" else None
    return isinstance(thing, Listing) and any(isinstance(element.thing, Listing) for element in thing.elements)


def _is_whole(program: Program, reduction: Value, scored: Value, shapes: Shapes) -> bool:
    """Whether a reduction counts every position: no mask is met between it and the log-probs."""

    def is_end(value: Value) -> bool:
        return value is scored or is_network_call(value, program.kinds) or shapes.of(value) in _BY_ROW

    between = islice(walk(reduction.inputs, until=is_end), _MOST)
    return not any(program.kinds.is_a(part, Kind.MASK, Kind.COUNT) or _picks(program, part) for part in between)


def _tokens_of(scored: Value) -> Value | None:
    if scored.setting("ignore_index", None) is not None:
        return None
    return scored.argument("index") or scored.argument("target") or scored.argument("1")


def _uneven(program: Program, tokens: Value) -> tuple[Value, bool] | None:
    """What fills the shorter rows of a batch of tokens, and whether they were drawn."""
    drawn = {id(draw) for draw in draws(program)}
    for made in islice(made_of(tokens), _MOST):
        if _is_cut_at_its_end(made):
            return None
        if id(made) in drawn:
            if _is_of_several(program, made, tokens) and _ends(program, made):
                return made, True
        elif made.op == "pad_sequence" or (is_encoding(made) and padded_by(made) is not None):
            return made, False
    return None


def _is_cut_at_its_end(value: Value) -> bool:
    """row[:stop], where a search in the tokens of the row says where it stops."""
    cuts = [key for key in value.keys if key.op == "slice"] if value.op == "index" else []
    is_row = bool(cuts) and (value.keys[0].op != "slice" or getattr(value.input, "op", "") == "element")
    stops = [stop for cut in cuts if (stop := cut.argument("stop")) is not None]
    behind = (part for stop in stops for part in islice(walk(stop), _MOST))
    return is_row and any(part.op in _SEARCHES for part in behind)


def _is_of_several(program: Program, draw: Value, tokens: Value) -> bool:
    """Whether several rows are drawn together."""
    if draw.op == "generate":
        if draw.setting("num_return_sequences", 1) not in (1, None):
            return True
        starts = [prompts_of_draw(draw)]
    else:
        starts = [tokens, *(given_ids(call) for call in passes_of(program, draw))]
    for start in starts:
        if start is None or is_one_row(start):
            continue
        behind = list(islice(made_of(start), _MOST))
        if any(part.op in _MANY or (is_encoding(part) and padded_by(part) is not None) for part in behind):
            return True
    return False


def _ends(program: Program, draw: Value) -> bool:
    """Whether rows may end before the last column: generate() stops them, or the script names an end token."""
    if draw.op == "generate":
        never = draw.setting("eos_token_id", 0) in (None, -1)
        return not never and not {"min_new_tokens", "min_length"} & draw.arguments.keys()
    return fillings(program).endings.is_named
