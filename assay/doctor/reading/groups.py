"""Groups in a script: how each prompt becomes several rows, and how rows become groups again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from assay.dataflow.value import UNKNOWN, Value
from assay.doctor.reading.advantages import plain
from assay.source.program import Program
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
    """Rows shaped into groups and reduced: `consecutive`: a group is a run of neighbours, else every n-th row."""

    value: Value
    consecutive: bool
    size: Value


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
            others = [one for name, one in value.arguments.items() if name.isdigit() and name != "1"]
            if many and all(one.constant == 1 for one in others) and not _is_statistic(value.input):
                yield Expansion(value, False, size)
        elif value.op == "listing" and value.name in ("interleaved", "tiled"):
            yield Expansion(value, value.name == "interleaved", value.arguments.get("repeats"))
        elif value.op == "list_repeat" and value.input is not None:
            thing = value.input.thing
            if not (thing.exact and len(thing.elements) <= 1):
                yield Expansion(value, False, value.argument("other"))


def _is_statistic(value: Value | None) -> bool:
    return value is not None and plain(value).op in ("mean", "std", "var", "sum", "median", "add", "sub", "div", "sqrt")


def groupings(program: Program) -> Iterator[Grouping]:
    """A mean over one dimension of rows that were shaped into two."""
    for mean in program.of("mean", "sum", "std"):
        turned = False
        shaped = mean.input
        while shaped is not None and shaped.op in ("cast", "clone", "detach", "transpose", "attribute", "permute"):
            turned ^= shaped.op in ("transpose", "permute") or (shaped.op == "attribute" and shaped.name in ("T", "mT"))
            if shaped.op == "attribute" and shaped.name not in ("T", "mT"):
                break
            shaped = shaped.input
        if shaped is None or not (
            shaped.op in ("view", "reshape") or (shaped.op == "method" and shaped.name == "unflatten")
        ):
            continue
        sizes = shape_of(shaped)
        dim = mean.setting("dim")
        if len(sizes) != 2 or dim not in (0, 1, -1):
            continue
        rows_first = sizes[0].constant == -1
        size = sizes[1] if rows_first else sizes[0]
        if sizes[1].constant == -1 and size.constant != 1:
            over_last = (dim in (1, -1)) ^ turned
            yield Grouping(shaped, over_last, size)  # view(G, -1): a run of neighbours has N / G rows
        elif rows_first and size.constant != 1:
            over_last = (dim in (1, -1)) ^ turned
            if over_last:
                yield Grouping(shaped, True, size)


def shape_of(shaped: Value) -> list[Value]:
    """The sizes that were asked for, as separate arguments or in a tuple."""
    sizes = [one for name, one in shaped.arguments.items() if name.isdigit()]
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
