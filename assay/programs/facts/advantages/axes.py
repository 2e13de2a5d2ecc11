"""Rows in groups: which dimension runs over prompts, and which over the answers to one prompt.

A dimension has a label: "p" runs over prompts, "g" over the answers to one prompt, "pg" over rows prompt by prompt
(a a b b), "gp" over rows by turns (a b a b), "1" has size 1. "first" and "second" are the two dimensions of rows that
were cut in two where the text does not say which is which, or where the cut is across prompts; "other" runs over rows
whose order was changed. None: the text says nothing of the dimensions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from assay.programs.facts.advantages.advantages import weighs_policy
from assay.programs.facts.advantages.groups import (
    Expansion,
    expansions,
    is_of_several,
    is_shaped,
    is_turn,
    same_size,
    shape_of,
)
from assay.programs.facts.kinds import Kind
from assay.programs.graph import UNKNOWN, Loop, Value
from assay.programs.once import once
from assay.programs.program import Program
from assay.programs.read.things import Listing
from assay.programs.walk import ancestors, loop_source, peel

Labels = tuple[str, ...] | None
_DEEPEST = 40
_KEEPS = frozenset(
    "cast clone detach leave neg exp abs square sqrt clamp nan_to_num masked_fill moved in_place setitem scaled "
    "rsqrt reciprocal tanh".split()
)
_ELEMENTWISE = frozenset("add sub mul div pow where minimum maximum".split())
_REDUCES = frozenset("mean nanmean median sum std var amax amin max min".split())
_OTHER = {"p": "g", "g": "p"}
_ROWS: dict[tuple[str, ...], str] = {("p", "g"): "pg", ("g", "p"): "gp"}
# what people call the number of answers to one prompt, and the number of prompts
_MEMBERS = re.compile(
    r"(^|_)(g|group|groups?_?size|group_?n|num_?gens?|n_?gens?|(num_|n_)?generations?|(num_|n_)?samples?(_per_prompt)?"
    r"|num_return_sequences|k|(num_|n_)?rollouts?(_per_prompt)?|(num_|n_)?completions?|(num_|n_)?responses?"
    r"|(num_|n_)?answers|per_prompt|\w+_per_(prompt|question|problem|group))$",
    re.IGNORECASE,
)
_PROMPTS = re.compile(
    r"(^|_)(p|prompts|(num_|n_)(prompts|questions|problems|groups)|questions|problems|prompts_per_\w+|n_?prompts"
    r"|num_?prompts|groups_per_\w+)$",
    re.IGNORECASE,
)


@dataclass(frozen=True, eq=False)
class Reduced:
    """What a mean or a spread was taken over: the label of the dimension; "" for all rows at once."""

    label: str
    shaped: Value  # what the dimensions were known by


class Axes:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.spread = [expansion for expansion in expansions(program) if is_of_several(expansion)]
        ways = {expansion.interleaved for expansion in self.spread}
        self.order = "" if len(ways) != 1 else "pg" if ways.pop() else "gp"
        self.is_open = any(_joins_copies(value) for value in program.of("cat"))
        self._known: dict[int, Labels] = {}

    def of(self, value: Value | None, depth: int = _DEEPEST) -> Labels:
        if value is None or depth == 0:
            return None
        if id(value) not in self._known:
            self._known[id(value)] = None  # what is made of itself is not known
            self._known[id(value)] = self._found(value, depth)
        return self._known[id(value)]

    def reduced(self, statistic: Value) -> Reduced | None:
        """What a mean, a sum or a spread runs over; None where the text does not say."""
        numbers = statistic.input or statistic.argument("0")
        labels = self.of(numbers)
        if labels is None or numbers is None:
            return None
        dims = _dims(statistic)
        if dims is None:
            return None
        over = [label for at, label in enumerate(labels) if not dims or at in _places(dims, labels)]
        over = [label for label in over if label != "1"]
        return Reduced(over[0], _cut(numbers)) if len(over) == 1 else None

    def role(self, size: Value | None) -> str:
        """g: as many as a prompt has answers; p: as many as there are prompts; "": not known."""
        if size is None:
            return ""
        if any(same_size(expansion.size, size) for expansion in self.spread):
            return "g"
        if _counts_prompts(size, self.spread):
            return "p"
        names = [name for name in (*size.names, size.name) if name]
        members, prompts = (any(pattern.search(name) for name in names) for pattern in (_MEMBERS, _PROMPTS))
        is_other = size.constant is not UNKNOWN and any(is_sized(expansion) for expansion in self.spread)
        if members == prompts or (members and is_other):
            return ""
        return "g" if members else "p"

    # one value

    def _found(self, value: Value, depth: int) -> Labels:
        if isinstance(value.constant, int | float) or value.op in ("config", "len"):
            return ()
        if value.op in _KEEPS:
            return self.of(value.input, depth - 1)
        if value.op in _ELEMENTWISE:
            names = ("input", "exponent") if value.op == "pow" else ("input", "other")
            sides = [value.argument(name) for name in names if name in value.arguments]
            found = [self.of(side, depth - 1) for side in sides]
            known = [labels for labels in found if labels is not None]
            return _broadcast(known) if len(known) == len(found) else None
        if value.op in _REDUCES:
            return self._reduction(value, depth)
        if is_shaped(value):
            return self._shaped(value, depth)
        if is_turn(value):
            inner = self.of(value.input, depth - 1)
            return inner[::-1] if inner is not None and len(inner) == 2 else None
        if value.op == "method" and value.name == "ravel":
            return self._flatten(value, depth)
        method = getattr(self, f"_{value.op}", None)
        return method(value, depth) if method is not None else None

    def _shaped(self, value: Value, depth: int) -> Labels:
        sizes = shape_of(value)
        inner = self.of(value.input, depth - 1)
        ones = [size for size in sizes if size.constant == 1]
        others = [size for size in sizes if size.constant != 1]
        if len(others) == 1 and inner is not None:
            flat = _flat(inner)
            return tuple("1" if size in ones else flat for size in sizes) if flat else None
        if len(sizes) != 2 or ones:
            return None
        if inner is not None and len(inner) == 2 and "1" not in inner and not _flat(inner):
            return None
        rows = _flat(inner) if inner is not None else self._order_of(value.input)
        return self._cut_in_two(rows or "", sizes[0], sizes[1])

    def _order_of(self, rows: Value | None) -> str:
        nested = nested_order(self, rows)
        return nested or self.order

    def _cut_in_two(self, rows: str, outer: Value, inner: Value) -> Labels:
        """Rows in this order, laid out in `outer` lines of `inner` neighbours."""
        first, second = self.role(outer), self.role(inner)
        if rows == "other":
            return ("first", "second")
        if rows == "pg":
            if second == "g" or (first == "p" and second != "p"):
                return ("p", "g")
            return ("first", "second")
        if rows == "gp":
            if first == "g" or (second == "p" and first != "p"):
                return ("g", "p")
            return ("first", "second")
        if self.is_open:
            return ("first", "second")
        if {first, second} == {"p", "g"}:
            return (first, second)
        if first == second or self.spread:
            return ("first", "second")
        if second == "g" or first == "p":
            return ("p", "g")
        return ("g", "p") if inner.constant == -1 or second == "p" else ("first", "second")

    def _flatten(self, value: Value, depth: int) -> Labels:
        inner = self.of(value.input, depth - 1)
        flat = _flat(inner) if inner is not None and "start_dim" not in value.arguments else ""
        return (flat,) if flat else None

    def _reduction(self, value: Value, depth: int) -> Labels:
        inner = self.of(value.input, depth - 1)
        dims = _dims(value)
        if dims is None or inner is None:
            return () if dims == () else None
        if not dims:
            return ()
        keep = value.setting("keepdim", False)
        at = _places(dims, inner)
        if not isinstance(keep, bool) or not at:
            return None
        return tuple("1" if place in at else label for place, label in enumerate(inner) if keep or place not in at)

    def _phi(self, value: Value, depth: int) -> Labels:
        parts = [part for part in value.inputs if part is not value]
        found = {self.of(part, depth - 1) for part in parts}
        return found.pop() if len(found) == 1 else None

    def _tensor(self, value: Value, depth: int) -> Labels:
        data = value.argument("data")
        if data is None or data.op != "listing":
            return self.of(data, depth - 1)
        return self._rows_of(value, data)

    def _rows_of(self, value: Value, data: Value) -> Labels:
        """torch.tensor([a number for each row])."""
        thing = data.thing
        if not isinstance(thing, Listing) or thing.exact or not weighs_policy(self.program, value):
            return None
        if any(isinstance(element.thing, Listing) for element in thing.elements):
            return nested_lists(self, data)
        order = self._order_of(data)
        return (order,) if order and len(thing.elements) == 1 and not thing.parts else None

    def _stack(self, value: Value, depth: int) -> Labels:
        data = value.argument("tensors")
        if data is None or value.setting("dim", 0) != 0:
            return None
        piece = self._piece_of(data, depth - 1)
        return (_OTHER[piece], piece) if piece else self._rows_of(value, data)

    def _cat(self, value: Value, depth: int) -> Labels:
        data = value.argument("tensors")
        piece = self._piece_of(data, depth - 1) if data is not None else ""
        return (_OTHER[piece] + piece,) if piece else None

    def _piece_of(self, data: Value, depth: int) -> str:
        """What one of several pieces of the rows runs over: [rows[i:i + n] for i in ...], rows.split(n)."""
        thing = data.thing
        if data.op in ("split", "chunk"):
            labels = self._part(data, depth)
        elif isinstance(thing, Listing) and not thing.exact and len(thing.elements) == 1 and not thing.parts:
            more = [loop for loop in thing.elements[0].context.loops if loop not in data.context.loops]
            labels = self.of(thing.elements[0], depth) if len(more) == 1 else None
        else:
            labels = None
        return labels[0] if labels is not None and labels in (("p",), ("g",)) else ""

    def _unsqueeze(self, value: Value, depth: int) -> Labels:
        inner, dim = self.of(value.input, depth - 1), value.setting("dim")
        if inner is None or not isinstance(dim, int):
            return None
        at = dim if dim >= 0 else len(inner) + 1 + dim
        return (*inner[:at], "1", *inner[at:])

    def _squeeze(self, value: Value, depth: int) -> Labels:
        inner, dim = self.of(value.input, depth - 1), value.setting("dim", None)
        if inner is None or (dim is not None and not isinstance(dim, int)):
            return None
        at = range(len(inner)) if dim is None else [dim % len(inner)] if -len(inner) <= dim < len(inner) else []
        return tuple(label for place, label in enumerate(inner) if place not in at or label != "1")

    def _index(self, value: Value, depth: int) -> Labels:
        inner = self.of(value.input, depth - 1)
        keys = value.keys
        if len(keys) == 1 and keys[0].op == "slice" and keys[0].arguments:
            return self._piece(value, value.input, keys[0], depth)
        if inner is None:
            return None
        found: list[str] = []
        at = 0
        for key in keys:
            if key.constant is None:
                found.append("1")
                continue
            if at >= len(inner):
                return None
            if key.op == "slice" and not key.arguments:
                found.append(inner[at])
            elif not (isinstance(key.constant, int) or key.op == "element") or inner[at] not in ("p", "g", "1"):
                return None
            at += 1
        return (*found, *inner[at:])

    def _listing(self, value: Value, depth: int) -> Labels:
        thing, cut = value.thing, value.argument("slice")
        if not isinstance(thing, Listing) or thing.cut_from is None or cut is None:
            return None
        return self._piece(value, thing.cut_from, cut, depth)

    def _piece(self, value: Value, whole: Value | None, cut: Value, depth: int) -> Labels:
        """rows[i * n:(i + 1) * n], or every n-th row: rows[i::n]."""
        inner = self.of(whole, depth - 1)
        rows = inner[0] if inner is not None and len(inner) == 1 else self._order_of(whole) if not inner else ""
        if rows not in ("pg", "gp"):
            return None
        step = cut.argument("step")
        size = step or _length(cut)
        role = self.role(size)
        if not role or not value.context.loops:
            return None
        by_step = {("pg", "g"): "p", ("gp", "p"): "g"}
        by_length = {("pg", "g"): "g", ("gp", "p"): "p"}
        return ((by_step if step is not None else by_length).get((rows, role), "first"),)

    def _element(self, value: Value, depth: int) -> Labels:
        source = value.input
        if source is not None and source.op in ("split", "chunk"):
            return self._part(source, depth)
        inner = self.of(source, depth - 1)
        return inner[1:] if inner is not None and len(inner) == 2 and inner[0] in ("p", "g") else None

    def _part(self, cut: Value, depth: int) -> Labels:
        """One of the pieces of rows.split(n) or rows.chunk(n)."""
        rows = self.of(cut.input, depth - 1)
        order = rows[0] if rows is not None and len(rows) == 1 else self._order_of(cut.input)
        role = self.role(cut.argument("size") if cut.op == "split" else cut.argument("chunks"))
        return ("g",) if order == "pg" and role == ("g" if cut.op == "split" else "p") else None

    def _repeat_interleave(self, value: Value, depth: int) -> Labels:
        inner = self.of(value.input, depth - 1)
        if inner is None or not inner or any(label != "1" for label in inner[1:]):
            return None
        spread = {"p": "pg", "g": "gp"}.get(inner[0])
        return (spread, *inner[1:]) if spread else None

    def _repeat(self, value: Value, depth: int) -> Labels:
        inner = self.of(value.input, depth - 1)
        spread = {"p": "gp", "g": "pg"}.get(inner[0]) if inner is not None and len(inner) == 1 else None
        return (spread,) if spread else None

    _tile = _repeat

    def _expand_as(self, value: Value, depth: int) -> Labels:
        return self.of(value.argument("other"), depth - 1)


@dataclass(frozen=True, eq=False)
class Reordering:
    """Rows that were cut in two dimensions, turned, and joined again: row 1 is where row n was."""

    value: Value
    cut: Value


def reorderings(program: Program) -> Iterator[Reordering]:
    """Of what weighs the policy. One that comes after another may put the rows back: neither is meant then."""
    found = list(_joined(program))
    for joined in found:
        others = [other.value for other in found if other is not joined]
        if not any(value in ancestors(joined.value) or joined.value in ancestors(value) for value in others):
            yield joined


def _joined(program: Program) -> Iterator[Reordering]:
    known = axes(program)
    for value in program.of("flatten", "view", "reshape", "method"):
        if not weighs_policy(program, value) or value.input is None:
            continue
        before, after = known.of(value.input), known.of(value)
        if before is None or after is None or [label for label in after if label != "1"] == list(before):
            continue
        wide = tuple(label for label in before if label != "1")
        cuts = [part for part in ancestors(value.input) if is_shaped(part) and _is_cut(known.of(part))]
        if len(wide) == 2 and cuts and known.of(cuts[0]) == wide[::-1]:
            yield Reordering(value, cuts[0])


def _is_cut(labels: Labels) -> bool:
    return labels is not None and len(labels) == 2 and "1" not in labels


def are_tokens_turned(program: Program) -> bool:
    """Whether tokens, masks or log-probs are turned too: then rows stand in another order on purpose."""
    kinds = (Kind.SAMPLED, Kind.LOGPROBS, Kind.MASK, Kind.RATIO, Kind.LOG_RATIO)
    return any(is_turn(value) and program.kinds.is_a(value, *kinds) for value in program.values)


@once
def axes(program: Program) -> Axes:
    return Axes(program)


def _joins_copies(value: Value) -> bool:
    """torch.cat([prompts] * n): by turns, unless it was one prompt."""
    given = value.argument("tensors")
    return given is not None and given.op == "list_repeat"


def is_sized(expansion: Expansion) -> bool:
    return expansion.size is not None and expansion.size.constant is not UNKNOWN


def nested_order(axes_of: Axes, rows: Value | None) -> str:
    """pg, where a list was filled in a loop over prompts and within it once for each answer; gp the other way round."""
    listed = peel(rows, ("cast", "tensor", "clone", "detach", "stack"), by=("input", "data", "tensors"))
    thing = listed.thing if listed is not None else None
    if listed is None or not isinstance(thing, Listing) or thing.exact or len(thing.elements) != 1:
        return ""
    loops = [loop for loop in thing.elements[0].context.loops if loop not in listed.context.loops]
    if len(loops) != 2:
        return ""
    outer, inner = (_turns_of(axes_of, loop) for loop in loops)
    if inner == "g" and outer in ("p", "all"):
        return "pg"
    return "gp" if outer == "g" and inner in ("p", "all") else ""


def nested_lists(axes_of: Axes, listed: Value) -> Labels:
    """[[a number for each answer] for each prompt]"""
    elements = listed.thing.elements
    inner = elements[0]
    if len(elements) != 1 or not isinstance(inner.thing, Listing) or len(inner.thing.elements) != 1:
        return None
    outer_loops = [loop for loop in inner.context.loops if loop not in listed.context.loops]
    inner_loops = [loop for loop in inner.thing.elements[0].context.loops if loop not in inner.context.loops]
    if len(outer_loops) != 1 or len(inner_loops) != 1:
        return None
    outer, within = _turns_of(axes_of, outer_loops[0]), _turns_of(axes_of, inner_loops[0])
    if within == "g" and outer in ("p", "all"):
        return ("p", "g")
    return ("g", "p") if outer == "g" and within in ("p", "all") else None


def _turns_of(axes_of: Axes, loop: Loop) -> str:
    """g: a loop that counts the answers to a prompt; p: that counts prompts; all: over what is listed."""
    source = loop_source(loop)
    if source is None:
        return ""
    if source.op != "range":
        return "all"
    return axes_of.role(source.argument("stop")) if "step" not in source.arguments else ""


def _counts_prompts(size: Value, spread: list[Expansion]) -> bool:
    """len(prompts), prompts.shape[0]: of what was repeated, before it was."""
    counted: Value | None = None
    if size.op == "len":
        counted = size.input
    elif size.op == "index" and size.setting("0") == 0 and size.input is not None and size.input.name == "shape":
        counted = size.input.input
    elif size.op == "method" and size.name == "size" and size.setting("1", size.setting("dim")) == 0:
        counted = size.input
    if counted is None:
        return False
    return any(counted is prompts for expansion in spread for prompts in _repeated(expansion))


def _repeated(expansion: Expansion) -> list[Value]:
    """The prompts that are repeated: what an operation is applied to, or what a comprehension runs over."""
    value = expansion.value
    if value.op != "listing":
        return [value.input] if value.input is not None else []
    loops = [loop for element in value.thing.elements for loop in element.context.loops]
    sources = [loop_source(loop) for loop in loops if loop not in value.context.loops]
    return [source for source in sources if source is not None and source.op != "range"]


def _cut(numbers: Value) -> Value:
    """Where rows were laid out in two dimensions; else the numbers themselves."""
    return next((value for value in ancestors(numbers) if is_shaped(value)), numbers)


def _dims(statistic: Value) -> tuple[int, ...] | None:
    """The dimensions of a reduction; () for all of them; None where the text does not say."""
    name = "dim" if "dim" in statistic.arguments else "1" if statistic.op == "call" else "dim"
    given = statistic.argument(name)
    if given is None or given.constant is None:
        return ()
    if isinstance(given.thing, Listing) and given.thing.exact and len(given.thing.elements) == 1:
        given = given.thing.elements[0]  # dim=(0,)
    return (given.constant,) if isinstance(given.constant, int) else None


def _places(dims: tuple[int, ...], labels: tuple[str, ...]) -> list[int]:
    return [dim % len(labels) for dim in dims if -len(labels) <= dim < len(labels)]


def _flat(labels: tuple[str, ...]) -> str:
    """The order of rows after a flatten; "" where it is not known."""
    wide = tuple(label for label in labels if label != "1")
    if len(wide) == 1:
        return wide[0]
    if wide == ("first", "second"):
        return "rows"
    return _ROWS.get(wide, "other" if wide == ("second", "first") else "")


def _length(cut: Value) -> Value | None:
    """n of i * n:(i + 1) * n and of i:i + n."""
    start, stop = cut.argument("start"), cut.argument("stop")
    if start is None or stop is None:
        return None
    if stop.op == "add":
        return next((side for side, rest in _sides(stop) if _is_same(rest, start)), None)
    if start.op != "mul" or stop.op != "mul":
        return None
    for size, counter in _sides(start):
        for other, following in _sides(stop):
            is_next = following.op == "add" and any(
                _is_same(part, counter) and rest.constant == 1 for rest, part in _sides(following)
            )
            if is_next and (same_size(size, other) or _is_same(size, other)):
                return size
    return None


def _sides(value: Value) -> list[tuple[Value, Value]]:
    first, second = value.input, value.argument("other")
    return [] if first is None or second is None else [(first, second), (second, first)]


def _is_same(one: Value, other: Value) -> bool:
    if one is other:
        return True
    same = one.op == other.op and one.op in ("mul", "add", "element") and len(one.inputs) == len(other.inputs)
    return same and all(_is_same(a, b) or same_size(a, b) for a, b in zip(one.inputs, other.inputs, strict=True))


def _broadcast(known: list[tuple[str, ...]]) -> Labels:
    width = max(len(labels) for labels in known)
    found: list[str] = []
    for column in zip(*(("1",) * (width - len(labels)) + labels for labels in known), strict=True):
        named = {label for label in column if label != "1"}
        if len(named) > 1:
            return None
        found.append(named.pop() if named else "1")
    return tuple(found)
