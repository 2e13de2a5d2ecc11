"""Groups in a script: how each prompt becomes several rows, and how rows become groups again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from assay.programs.facts.advantages.advantages import plain
from assay.programs.facts.sampling.tokens import encoding_behind, text_of
from assay.programs.graph import UNKNOWN, Value
from assay.programs.program import Program
from assay.programs.read.things import Listing, Table
from assay.programs.walk import follow, peel
from assay.verdict import Place


@dataclass(frozen=True, eq=False)
class Expansion:
    """Each prompt made several rows: `interleaved` p p q q, else tiled p q p q. `size`: how many of each."""

    value: Value
    interleaved: bool
    size: Value | None

    @property
    def place(self) -> Place:
        return self.value.place


@dataclass(frozen=True, eq=False)
class Grouping:
    """Rows shaped into groups and reduced: `consecutive`: a group is a run of neighbours, else every n-th row.

    `size` is how many rows a group has, `count` how many groups there are, as the text says; one of them may be -1.
    """

    value: Value
    consecutive: bool
    size: Value
    count: Value

    @property
    def across(self) -> bool:
        """Every n-th row of neighbours that were cut by n: view(-1, n).mean(0)."""
        return not self.consecutive and self.size.constant == -1


def expansions(program: Program) -> Iterator[Expansion]:
    """Of prompts or of what belongs to them. Statistics that are spread over their rows again are not meant."""
    for value in program.values:
        if value.op == "generate":
            size = value.argument("num_return_sequences")
            if size is not None and size.constant not in (1, None):
                yield Expansion(value, True, size)
        elif value.op == "repeat_interleave":
            if not _is_statistic(value.input):
                yield Expansion(value, True, value.argument("repeats"))
        elif value.op in ("repeat", "tile"):
            size = value.argument("1")
            many = size is not None and size.constant not in (1, -1)
            others = [part for name, part in value.arguments.items() if name.isdigit() and name != "1"]
            if many and all(side.constant == 1 for side in others) and not _is_statistic(value.input):
                yield Expansion(value, False, size)
        elif value.op == "listing" and value.name in ("interleaved", "tiled"):
            yield Expansion(value, value.name == "interleaved", value.arguments.get("repeats"))
        elif value.op == "list_repeat" and value.input is not None:
            thing = value.input.thing
            is_row = len(thing.elements) == 1 and isinstance(thing.elements[0].thing, Listing)
            if is_row or not (thing.exact and len(thing.elements) <= 1):
                yield Expansion(value, False, value.argument("other"))
        elif value.op in ("view", "reshape", "flatten"):
            yield from _stretched(value)
        elif value.op == "append":
            yield from _filled(value)


def _stretched(value: Value) -> Iterator[Expansion]:
    """prompts[:, None].expand(-1, n, -1).reshape(...): p p q q; with the new dimension in front p q p q."""
    wide = value.input
    new = wide.input if wide is not None and wide.op == "expand" else None
    if wide is None or new is None or _is_statistic(new.input):
        return
    sizes = shape_of(wide)
    keys = [key.constant for key in new.keys] if new.op == "index" else []
    at = new.setting("dim") if new.op == "unsqueeze" else keys.index(None) if None in keys else -1
    if at in (0, 1) and len(sizes) > at and sizes[at].constant not in (1, -1):
        yield Expansion(value, at == 1, sizes[at])


def _filled(append: Value) -> Iterator[Expansion]:
    """for p in prompts: for _ in range(n): rows.append(p)"""
    base, given, loops = append.input, append.argument("value"), append.context.loops
    if base is None or given is None or len(loops) < 2 or given.constant is not UNKNOWN:
        return
    outer, inner = loops[-2:]
    source, made = inner.source, given.thing.elements if isinstance(given.thing, Listing) else [given]
    is_counted = source is not None and source.op == "range" and set(source.arguments) == {"stop"}
    is_same = outer not in base.context.loops and all(inner not in part.context.loops for part in made)
    if source is not None and is_counted and is_same and any(outer in part.context.loops for part in made):
        yield Expansion(append, True, source.argument("stop"))


def _is_statistic(value: Value | None) -> bool:
    return value is not None and plain(value).op in ("mean", "std", "var", "sum", "median", "add", "sub", "div", "sqrt")


def groupings(program: Program) -> Iterator[Grouping]:
    """A mean over one dimension of rows that were shaped into two."""
    for mean in program.of("mean", "sum", "std"):
        turned = False
        shaped = mean.input
        while shaped is not None and (shaped.op in ("cast", "clone", "detach") or is_turn(shaped)):
            turned ^= is_turn(shaped)
            shaped = shaped.input
        if shaped is None or not is_shaped(shaped):
            continue
        sizes = shape_of(shaped)
        dim = mean.setting("dim")
        if len(sizes) != 2 or dim not in (0, 1, -1, -2):
            continue
        over_last = (dim in (1, -1)) ^ turned
        size, other = (sizes[1], sizes[0]) if over_last else (sizes[0], sizes[1])
        if size.constant != 1 and other.constant != 1:
            yield Grouping(shaped, over_last, size, other)


def shape_of(shaped: Value) -> list[Value]:
    """The sizes that were asked for, as separate arguments or in a tuple."""
    sizes = [part for name, part in shaped.arguments.items() if name.isdigit()]
    if shaped.op == "method":
        sizes = sizes[1:]  # unflatten(dim, sizes)
    if len(sizes) == 1 and sizes[0].op == "listing":
        sizes = list(sizes[0].thing.elements)
    return sizes


def same_size(one: Value | None, other: Value | None) -> bool:
    """The same setting, or the same number."""
    if one is None or other is None:
        return False
    return one is other or (one.constant is not UNKNOWN and one.constant == other.constant)


def is_of_several(expansion: Expansion) -> bool:
    """Whether it repeats several prompts: of one, every order is the same."""
    inner = expansion.value.input
    if expansion.value.op == "generate":
        return not _is_of_one(expansion.value)
    if inner is None:
        return True
    if _encoding(inner) is not None and _is_one_prompt(inner):
        return False
    inner = peel(inner, ("cast", "tensor", "clone", "detach"), by=("input", "data"))
    if inner.op == "unsqueeze" and inner.setting("dim") == 0:
        return False
    if inner.op == "element" and expansion.value.op in ("repeat", "tile"):
        return False  # one of the prompts: a loop goes through them
    is_single = inner.op == "listing" and inner.thing.exact and len(inner.thing.elements) == 1
    return not is_single and not (inner.op == "index" and inner.setting("0") is None)


def _is_of_one(generate: Value) -> bool:
    """Whether one prompt is answered: without padding, texts of different lengths make no batch."""
    given = next((one for name in ("input_ids", "**", "inputs", "1") if (one := generate.argument(name))), None)
    return given is not None and _is_one_prompt(given)


def _is_one_prompt(given: Value) -> bool:
    if is_one_row(given):
        return True
    encoding = _encoding(given)
    if encoding is None:
        return False
    text = text_of(encoding)
    if text is not None and text.op == "apply_chat_template" and _is_one_chat(text.argument("1")):
        return True
    listed = text is not None and isinstance(text.thing, Listing)
    if text is None or (listed and not (text.thing.exact and len(text.thing.elements) == 1)):
        return False
    return encoding.setting("padding", False) in (False, None) or listed or isinstance(text.constant, str)


def _is_one_chat(chat: Value | None) -> bool:
    """[{"role": ...}, ...]: messages, not chats."""
    thing = chat.thing if chat is not None else None
    return isinstance(thing, Listing) and bool(thing.elements) and isinstance(thing.elements[0].thing, Table)


def _encoding(given: Value) -> Value | None:
    """The call of a tokenizer behind ids; one that came as an argument is known by what it is asked for."""
    moves = ("index", "attribute", "cast", "clone", "moved", "repeat", "repeat_interleave", "expand")
    found = follow(given, lambda value: value.input if value.op in moves else None)
    return found if found.op == "call" and "return_tensors" in found.arguments else encoding_behind(given)


def is_one_row(ids: Value | None) -> bool:
    """torch.tensor([ids]), ids.unsqueeze(0), ids[None]: one row, however often it is repeated."""
    for _ in range(8):
        if ids is None:
            return False
        if (ids.op == "unsqueeze" and ids.setting("dim") == 0) or (ids.op == "index" and ids.setting("0") is None):
            return True
        data = ids.argument("data") or ids.input
        thing = data.thing if data is not None and data.op == "listing" else None
        if isinstance(thing, Listing) and thing.exact and len(thing.elements) == 1:
            return ids.op in ("tensor", "list_repeat")
        if ids.op not in ("tensor", "cast", "moved", "clone", "repeat", "expand", "repeat_interleave"):
            return False
        ids = data
    return False


def is_turn(value: Value) -> bool:
    """x.t(), x.T, x.transpose(0, 1): of what has two dimensions."""
    return value.op in ("transpose", "permute") or (value.op == "attribute" and value.name in ("T", "mT"))


def is_shaped(value: Value) -> bool:
    return value.op in ("view", "reshape") or (value.op == "method" and value.name == "unflatten")
