"""How the rows of a padded batch are laid out: two tensors that are filled alike have the same positions.

labels[i, n:m] = completion beside ids[i, n:m] = completion; [0] * len(prompt) + [1] * len(completion) beside
prompt + completion.
"""

from __future__ import annotations

from collections.abc import Hashable

from assay.programs.graph import UNKNOWN, Value
from assay.programs.read.things import Listing

BUILT = frozenset({"setitem", "tensor", "pad_sequence", "stack"})
_DEEP = 12
_FORM = ("cast", "clone", "detach", "contiguous", "unsqueeze")
Layout = tuple[Hashable, ...]


def are_alike(one: Value, other: Value) -> bool:
    """Whether the text shows that position t of one is position t of the other."""
    if one.op == "setitem" and other.op == "setitem":
        return bool(_writes(one) & _writes(other))
    layout = _of_batch(one)
    return len(layout) > 1 and layout == _of_batch(other)


def is_ignored(change: Value) -> bool:
    """labels[:, :n] = -100, labels[labels == -100] = 0: positions stay where they are."""
    written = change.setting("value")
    if change.op == "where":
        written = change.setting("other")
    if not isinstance(written, int) or isinstance(written, bool):
        return False
    keys = [one for name, one in change.arguments.items() if name.isdigit() or name == "mask"]
    return written < 0 or any(_is_of_negative(key) for key in keys)


def filled(phi: Value) -> Value | None:
    """What a loop fills, row by row; None where it does something else to it."""
    first, last = phi.argument("0"), phi.argument("1")
    for _ in range(_DEEP):
        if last is None or last is phi:
            break
        if last.op != "setitem" or not is_ignored(last):
            return None
        last = last.input
    return first if phi.name == "turn" and last is phi else None


def _is_of_negative(key: Value) -> bool:
    other = key.setting("other") if key.op in ("eq", "lt") else None
    return isinstance(other, int) and (other < 0 or (key.op == "lt" and other == 0))


def _writes(value: Value) -> set[Hashable]:
    """Where something is written in a loop over rows, and what."""
    found: set[Hashable] = set()
    current: Value | None = value
    for _ in range(_DEEP):
        if current is None or current.op not in ("setitem", "phi"):
            break
        if current.op == "phi":
            current = current.argument("0")
            continue
        written = current.arguments["value"]
        keys = [key for name, key in current.arguments.items() if name.isdigit()]
        if len(keys) == 2 and keys[1].op == "slice" and written.constant is UNKNOWN:
            found.add((*(same(key) for key in keys), same(written)))
        current = current.input
    return found


def _of_batch(value: Value | None, depth: int = _DEEP) -> Layout:
    """The layout of the one kind of row that a batch is made of; () where it is not known."""
    if value is None or depth == 0:
        return ()
    if value.op in ("tensor", "pad_sequence", "stack"):
        return _of_batch(value.argument("data") or value.argument("sequences") or value.argument("tensors"), depth - 1)
    thing = value.thing
    if not isinstance(thing, Listing) or len(thing.elements) != 1 or thing.exact:
        return ()
    return tuple(part for part in _of_row(thing.elements[0], depth - 1) if part != "padding")


def _of_row(row: Value, depth: int) -> Layout:
    """Lengths of the parts that stand one behind the other."""
    if depth == 0:
        return (id(row),)
    if row.op == "tensor" or row.op in _FORM:
        inner = row.argument("data") or row.input
        return _of_row(inner, depth - 1) if inner is not None else (id(row),)
    if row.op == "list_repeat":
        return _of_repeat(row)
    if row.op == "add" and row.input is not None:
        return (*_of_row(row.input, depth - 1), *_of_row(row.arguments["other"], depth - 1))
    thing = row.thing
    if row.op == "cat" and isinstance(thing := getattr(row.argument("tensors"), "thing", None), Listing):
        return tuple(part for one in thing.elements for part in _of_row(one, depth - 1)) if thing.exact else (id(row),)
    if isinstance(thing, Listing) and thing.cut_from is None:
        if thing.parts and not row.name:
            return tuple(part for one in thing.parts for part in _of_row(one, depth - 1))
        if thing.exact:
            return ("elements",) * len(thing.elements)
    return (id(row),)


def _of_repeat(row: Value) -> Layout:
    times, one = row.arguments["other"], row.arguments["input"]
    elements = getattr(one.thing, "elements", ())
    if len(elements) != 1:
        return (id(row),)
    if times.op == "len" and times.input is not None:
        return _of_row(times.input, _DEEP)
    if times.op == "sub":
        return ("padding",)
    return ("elements",) * times.constant if isinstance(times.constant, int) and times.constant < 9 else (id(row),)


def same(value: Value, depth: int = 5) -> Hashable:
    """The same expression on the same values is the same number."""
    if depth == 0 or not value.arguments or value.op in ("phi", "call", "element", "config"):
        return id(value) if value.constant is UNKNOWN else ("constant", repr(value.constant))
    return value.op, value.name, tuple((name, same(one, depth - 1)) for name, one in sorted(value.arguments.items()))
