"""Rows and their rewards: what is zipped with what, and whether both stand in the same order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from assay.programs.facts.advantages.groups import Expansion, expansions, is_of_several
from assay.programs.facts.kinds import Kind
from assay.programs.facts.masks.endings import is_of_rows
from assay.programs.facts.sampling.tokens import is_text
from assay.programs.graph import Loop, Value
from assay.programs.program import Program
from assay.programs.read.things import Listing, Table
from assay.programs.walk import ancestors, loop_source

_THROUGH = ("phi", "leave", "cast", "tensor", "clone", "progress", "enumerate", "detach")
_REDUCTIONS = frozenset("sum any all max min mean len median".split())
_UNORDERED_RESULTS = ("builtins.any", "builtins.all", "builtins.set", "set", "sorted", "statistics.fmean")
_UNORDERED = ("as_completed", "imap_unordered")


@dataclass(frozen=True, eq=False)
class Mispairing:
    value: Value  # the zip, the loop's source or the append
    cause: Value
    reason: str


def scored_loops(program: Program) -> list[Loop]:
    """Loops in which rewards are made."""
    found: dict[int, Loop] = {}
    for value in program.values:
        if id(value) in program.policy_factor_ids:
            for loop in value.context.loops:
                found.setdefault(id(loop), loop)
    return list(found.values())


def mispairings(program: Program) -> Iterator[Mispairing]:
    loops = scored_loops(program)
    spread = list(expansions(program))
    for loop in loops:
        source = loop_source(loop)
        if source is None:
            continue
        if source.op == "zip":
            yield from _zipped(program, source, spread)
            continue
        moved = reordering(source)
        if moved is None or moved.op == "reversed" or not _is_of_rows(program, moved):
            continue
        if _is_within_a_row(program, source) and _makes_one_number(program, loop):
            continue
        if not _is_scored_so(program, moved):
            yield Mispairing(source, moved, "rewards are made in another order than the rows that are scored")
    yield from _looked_up(program, loops, spread)
    yield from _collected(program)


def zips(program: Program) -> list[Value]:
    """Every zip in which rewards are made."""
    return [loop.source for loop in scored_loops(program) if loop.source is not None and _zip_of(loop) is not None]


def _zip_of(loop: Loop) -> Value | None:
    source = loop_source(loop)
    return source if source is not None and source.op == "zip" else None


def _zipped(program: Program, zipped: Value, spread: list[Expansion]) -> Iterator[Mispairing]:
    sides = list(zipped.arguments.values())
    moved = [reordering(side) or _counted_down(side) for side in sides]
    if len(sides) < 2 or _is_within_a_row(program, zipped):
        return
    if any(value is not None for value in moved) and not all(value is not None for value in moved):
        cause = next(value for value in moved if value is not None)
        others = [side for side, value in zip(sides, moved, strict=True) if value is None]
        follows = cause.op == "reversed" and _counted_down(cause) is not None
        if not follows and not feeds(others, cause) and not _is_scored_so(program, cause):
            yield Mispairing(zipped, cause, "one side of the zip is in another order than the other")
        return
    tiled = [_expansion(side, spread) for side in sides]
    for side, part in zip(sides, tiled, strict=True):
        if (
            part is None
            or part.interleaved
            or not is_of_several(part)
            or feeds([other for other in sides if other is not side], part.value)
            or not _are_rows_interleaved(program, sides, side, spread)
        ):
            continue
        yield Mispairing(
            zipped,
            part.value,
            "the whole list is repeated (a b a b), but the rows of one prompt follow each other (a a b b)",
        )
        return


def _is_within_a_row(program: Program, value: Value) -> bool:
    """Whether it stands in a loop over rows: what is turned round there are the tokens of one row."""
    busy = {
        id(loop) for part in program.of("generate", "multinomial", "sample", "backward") for loop in part.context.loops
    }
    return any((is_of_rows(loop) or _is_over_texts(loop)) and id(loop) not in busy for loop in value.context.loops)


def _is_over_texts(loop: Loop) -> bool:
    source = loop_source(loop)
    return source is not None and source.op == "batch_decode"


def _makes_one_number(program: Program, loop: Loop) -> bool:
    """Whether the turns of a loop are added up, or counted: sum(w in answer for w in set(words)) has no order."""
    factors = program.policy_factor_ids
    appended = (value.argument("value") for value in program.of("append") if loop in value.context.loops)
    listed = (
        value
        for value in program.of("listing")
        if isinstance(value.thing, Listing)
        and any(part.context.loops[len(value.context.loops) :][:1] == (loop,) for part in value.thing.elements)
    )
    return not any(value is not None and id(value) in factors for value in appended) and all(
        user.op in _REDUCTIONS or user.name in _UNORDERED_RESULTS
        for value in listed
        for user in value.users
        if id(user) in factors
    )


def _counted_down(side: Value) -> Value | None:
    """reversed(range(n)), a loop over time: what is beside it is not a list of rows."""
    inner = side.input if side.op == "reversed" else None
    return side if inner is not None and inner.op == "range" else None


def reordering(value: Value, depth: int = 8) -> Value | None:
    """Where a list is sorted, reversed or shuffled on the way to a value."""
    if depth == 0:
        return None
    if value.op == "listing" and value.name == "sorted" and _is_set(value):
        return None  # the numbers of rows that are still open, put in order
    if value.op == "reversed":
        return value if value.input is not None and value.input.op != "range" else None
    if value.op == "listing" and value.name in ("sorted", "set"):
        return value
    if value.op == "call" and value.name in ("random.sample", "numpy.random.permutation", "builtins.sorted"):
        return value
    cut = value.argument("slice") if value.op == "listing" else None
    if cut is not None and cut.setting("step") == -1:
        return value
    if value.op == "index":
        keys = value.keys
        if len(keys) == 1 and keys[0].op == "slice" and keys[0].setting("step") == -1:
            return value
        return None
    if value.op in _THROUGH:
        inner = value.input or value.argument("data") or value.argument("0")
        return reordering(inner, depth - 1) if inner is not None else None
    return None


def _is_of_rows(program: Program, moved: Value) -> bool:
    """Whether what is moved are completions."""
    if program.kinds.is_a(moved, Kind.SAMPLED):
        return True
    return any(is_text(value) or program.kinds.is_a(value, Kind.SAMPLED) for value in islice(ancestors(moved), 12))


def _is_scored_so(program: Program, moved: Value) -> bool:
    """Whether the network scores the rows in that other order too."""
    for loss, _ in program.losses:
        for call in program.origins.forwards(loss):
            if any(value is moved for value in islice(ancestors(call), 2000)):
                return True
    return False


def _expansion(value: Value, spread: list[Expansion], depth: int = 8) -> Expansion | None:
    for expansion in spread:
        if expansion.value is value:
            return expansion
    inner = value.input or value.argument("data") or value.argument("0")
    if value.op == "mul" and inner is not None and _is_list(inner):
        return Expansion(value, False, value.argument("other"))
    if depth == 0 or value.op not in (*_THROUGH, "listing") or inner is None:
        return None
    if value.op == "listing" and not (isinstance(value.thing, Listing) and value.thing.parts):
        return None
    return _expansion(value.thing.parts[0] if value.op == "listing" else inner, spread, depth - 1)


def _is_set(listed: Value) -> bool:
    """Whether a list was made of a set: a set has no order to lose."""
    parts = listed.thing.parts if isinstance(listed.thing, Listing) else ()
    return any(value.op == "listing" and value.name == "set" for part in parts for value in islice(ancestors(part), 4))


def _is_list(value: Value) -> bool:
    return value.op == "phi" and all(isinstance(part.thing, Listing) for part in value.inputs)


def _are_rows_interleaved(program: Program, sides: list[Value], tiled: Value, spread: list[Expansion]) -> bool:
    """Whether the completions of one prompt stand next to each other."""
    others = [side for side in sides if side is not tiled]
    if not any(_is_of_rows(program, side) for side in others):
        return False
    tiles = [
        expansion
        for expansion in spread
        if not expansion.interleaved and expansion.value is not tiled and is_of_several(expansion)
    ]
    if any(feeds(others, expansion.value) for expansion in tiles):
        return False
    return any(expansion.interleaved for expansion in spread) or _is_drawn_by_prompt(program)


def feeds(sides: list[Value], value: Value) -> bool:
    """Whether lists are made of a value, or in a loop over it: what a loop makes stands in the order of its source."""
    return any(
        part is value or any(_runs_over(loop, value) for loop in part.context.loops)
        for side in sides
        for part in islice(ancestors(side), 3000)
    )


def _runs_over(loop: Loop, value: Value) -> bool:
    source = loop_source(loop)
    return source is value or (source is not None and source.op == "zip" and value in source.arguments.values())


def _looked_up(program: Program, loops: list[Loop], spread: list[Expansion]) -> Iterator[Mispairing]:
    """answers[i % prompts] beside rows that stand prompt by prompt: a a b b is looked up as a b a b."""
    several = [expansion for expansion in spread if is_of_several(expansion) and expansion.size is not None]
    if not several or not all(expansion.interleaved for expansion in several):
        return
    for remainder in program.of("mod"):
        by = remainder.argument("other")
        row_loops = [loop for loop in remainder.context.loops if loop in loops and _is_over_rows(program, loop)]
        if by is None or not row_loops or any(user.op != "index" for user in remainder.users):
            continue
        counter = remainder.input
        counts = counter is not None and counter.op == "element" and counter.context.loops[-1:] == (row_loops[-1],)
        named = by.op == "len" or by.place.line != remainder.place.line
        if (
            counts
            and named
            and not any(by is expansion.size or _is_same_setting(by, expansion.size) for expansion in several)
        ):
            reason = (
                "the rows of one prompt follow each other (a a b b), but this looks up what belongs to them as a b a b"
            )
            yield Mispairing(row_loops[-1].source or remainder, remainder, reason)


def _is_over_rows(program: Program, loop: Loop) -> bool:
    source = loop_source(loop)
    texts = source is not None and source.op in ("batch_decode", "index") and _is_of_rows(program, source)
    return texts or is_of_rows(loop)


def _is_same_setting(one: Value, other: Value | None) -> bool:
    return other is not None and one.place == other.place


def _is_drawn_by_prompt(program: Program) -> bool:
    """Whether tokens are drawn in a loop over prompts: the completions of one then follow each other."""
    for drawn in program.of("generate", "multinomial", "sample"):
        if any(is_of_rows(loop) for loop in drawn.context.loops):
            return True
    return False


def _collected(program: Program) -> Iterator[Mispairing]:
    """Results that are appended as they come."""
    for appended in program.of("append"):
        given = appended.argument("value")
        if given is None or isinstance(given.thing, Listing) or id(given) not in program.policy_factor_ids:
            continue
        for loop in appended.context.loops:
            source = loop_source(loop)
            if source is None or not source.name.endswith(_UNORDERED):
                continue
            futures = source.argument("0") or source.argument("1") or source.input
            if futures is not None and isinstance(futures.thing, Table):
                continue  # each future knows its row
            yield Mispairing(appended, source, "results are collected in the order in which they are done")
    for loop in scored_loops(program):
        source = loop.source
        if source is None or not source.name.endswith(_UNORDERED):
            continue
        futures = source.argument("0")
        listed = [
            value
            for value in program.of("listing")
            if isinstance(value.thing, Listing)
            and any(id(part) in program.policy_factor_ids for part in (value, *value.thing.elements))
            and any(loop in part.context.loops and loop not in value.context.loops for part in value.thing.elements)
            and not any(isinstance(part.thing, Listing) for part in value.thing.elements)
            and value.place.line == source.place.line
        ]
        if listed and (futures is None or not isinstance(futures.thing, Table)):
            yield Mispairing(listed[0], source, "results are collected in the order in which they are done")
