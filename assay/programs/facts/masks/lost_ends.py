"""End tokens that never reach the loss: rows that are cut before them, and masks that leave each of them out."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from assay.programs.facts.kinds import Kind
from assay.programs.facts.masks.masks import fillings
from assay.programs.facts.sampling.scoring import made_of, scorings
from assay.programs.graph import Value
from assay.programs.program import Program
from assay.programs.read.things import Listing
from assay.programs.walk import peel, users, walk

_SAME = frozenset("cast clone detach leave tensor squeeze unsqueeze view reshape phi".split())


def cut_before_end(program: Program) -> Iterator[Value]:
    """row[:row.index(end)]: drawn tokens that go on to be trained without the one that ended them."""
    cuts = [value for value in program.values if value.op in ("index", "listing") and _stops_at_end(program, value)]
    if not cuts:
        return
    trained = {id(value) for scoring in scorings(program) if scoring.is_trained for value in made_of(scoring.tokens)}
    for cut in cuts:
        if id(cut) in trained and not _is_ended_again(program, cut):
            yield cut


def _stops_at_end(program: Program, cut: Value) -> bool:
    if not program.kinds.is_a(cut, Kind.SAMPLED):
        return False
    keys = [key for key in cut.keys if key.op == "slice"]
    stop = peel(keys[-1].argument("stop"), ("cast", "leave")) if keys else None
    if stop is None or stop.op != "method" or stop.name != "index":
        return False
    end = stop.argument("1")
    return end is not None and fillings(program).endings.which(end) == "end"


def _is_ended_again(program: Program, cut: Value) -> bool:
    """row[:n] + [end]."""
    which = fillings(program).endings.which
    held = (*_SAME, "add", "listing", "append")
    for user in islice(walk(cut.users, users, until=lambda value: value.op not in held), 60):
        parts = [*user.inputs, *(element for part in user.inputs for element in _elements(part))]
        if user.op in ("add", "listing", "append", "cat") and any(which(part) == "end" for part in parts):
            return True
    return False


def _elements(value: Value) -> list[Value]:
    return value.thing.elements[:4] if isinstance(value.thing, Listing) else []


def masks_without_ends(program: Program) -> Iterator[tuple[Value, Value]]:
    """x[mask & (tokens != end)]: (the mask, the comparison), of tokens that are picked from the policy's."""
    for picked in program.of("index", "masked_select"):
        keys = picked.keys
        if picked.input is None or len(keys) != 1 or not program.kinds.is_a(keys[0], Kind.MASK):
            continue
        leaf = _without_end(program, keys[0])
        if leaf is not None and program.terms.is_policy(picked.input):
            yield keys[0], leaf


def _without_end(program: Program, mask: Value, depth: int = 8) -> Value | None:
    """tokens != end among conditions that must all hold."""
    if depth == 0:
        return None
    if mask.op == "ne":
        sides = [side for side in (mask.input, mask.argument("other")) if side is not None]
        ends = [side for side in sides if fillings(program).endings.which(side) == "end"]
        tokens = [side for side in sides if program.kinds.is_a(side, Kind.SAMPLED)]
        return mask if ends and tokens and not _is_shifted(tokens[0]) else None
    if mask.op in ("logical_and", "mul", "and"):
        return next((found for part in mask.inputs if (found := _without_end(program, part, depth - 1))), None)
    if mask.op in ("index", "cast", "clone") and mask.input is not None and not _is_shifted(mask):
        return _without_end(program, mask.input, depth - 1)
    return None


def _is_shifted(tokens: Value) -> bool:
    """ids[:, :-1]: the token before each, not the token itself."""
    return tokens.op == "index" and any(key.op == "slice" and "stop" in key.arguments for key in tokens.keys)
