"""einops.rearrange, reduce and repeat with plain patterns --> the operations of torch that do the same."""

from __future__ import annotations

from assay.programs.graph import Value
from assay.programs.read.interpreter import Interpreter
from assay.programs.read.things import Call

Axis = tuple[str, ...]  # the names in one dimension: (p g) is one of two


def arrange(interpreter: Interpreter, name: str, given: Call) -> Value | None:
    """None where the pattern is not one of dimensions by name, or more than a cut, an order and a join."""
    operand, pattern = given.first, given.positional[1].constant if len(given.positional) > 1 else None
    if operand is None or not isinstance(pattern, str) or pattern.count("->") != 1:
        return None
    left, right = (_axes(side) for side in pattern.split("->"))
    if left is None or right is None or name not in ("rearrange", "reduce", "repeat"):
        return None
    if name == "repeat":
        return _repeated(interpreter, operand, left, right, given)
    names = [axis for dimension in left for axis in dimension]
    kept = [axis for dimension in right for axis in dimension]
    if len(set(names)) != len(names) or not set(kept) <= set(names):
        return None
    node, value = given.node, operand
    if len(names) > len(left):
        unknown = interpreter.constant(node, -1)
        sizes = [given.keywords.get(axis, unknown) for axis in names]
        value = interpreter.new("view", node, {"input": value, **_sized(sizes)}, name=name)
    if name == "reduce":
        return _reduced(interpreter, value, names, right, given)
    if kept != names:
        if sorted(kept) != sorted(names):
            return None
        value = _ordered(interpreter, value, [names.index(axis) for axis in kept], given)
    if len(kept) > len(right):
        if len(right) != 1:
            return None
        value = interpreter.new("flatten", node, {"input": value}, name=name)
    elif not all(right):
        for place, dimension in enumerate(right):
            if not dimension:
                value = interpreter.new(
                    "unsqueeze", node, {"input": value, "dim": interpreter.constant(node, place)}, name=name
                )
    return value


def _axes(side: str) -> list[Axis] | None:
    """The dimensions of one side; () for a 1."""
    found: list[Axis] = []
    words = side.replace("(", " ( ").replace(")", " ) ").split()
    inside: list[str] | None = None
    for word in words:
        if word == "(":
            inside = []
        elif word == ")":
            if inside is None:
                return None
            found.append(tuple(inside))
            inside = None
        elif not word.isidentifier() and word != "1":
            return None
        elif inside is not None:
            inside.append(word)
        else:
            found.append(() if word == "1" else (word,))
    return found if inside is None else None


def _sized(sizes: list[Value]) -> dict[str, Value]:
    return {str(number + 1): size for number, size in enumerate(sizes)}


def _ordered(interpreter: Interpreter, value: Value, order: list[int], given: Call) -> Value:
    places = [interpreter.constant(given.node, place) for place in order]
    return interpreter.new("permute", given.node, {"input": value, **_sized(places)}, name="rearrange")


def _repeated(interpreter: Interpreter, value: Value, left: list[Axis], right: list[Axis], given: Call) -> Value | None:
    """repeat(x, "p t -> (p g) t", g=8): each row in place; with (g p) the whole again and again."""
    rows = right[0] if right else ()
    if not left or len(left[0]) != 1 or len(rows) != 2 or left[1:] != right[1:] or left[0][0] not in rows:
        return None
    size = given.keywords.get(next(axis for axis in rows if axis != left[0][0]))
    if size is None:
        return None
    node = given.node
    if rows[0] == left[0][0]:
        arguments = {"input": value, "repeats": size, "dim": interpreter.constant(node, 0)}
        return interpreter.new("repeat_interleave", node, arguments, name="repeat")
    ones = [interpreter.constant(node, 1) for _ in left[1:]]
    return interpreter.new("repeat", node, {"input": value, **_sized([size, *ones])}, name="repeat")


def _reduced(interpreter: Interpreter, value: Value, names: list[str], right: list[Axis], given: Call) -> Value | None:
    """reduce(x, "p g -> p 1", "mean") is x.mean(1, keepdim=True)."""
    how = given.positional[2].constant if len(given.positional) > 2 else given.keywords.get("reduction")
    how = how.constant if isinstance(how, Value) else how
    kept = [axis for dimension in right for axis in dimension]
    gone = [place for place, axis in enumerate(names) if axis not in kept]
    whole = [axis if axis in kept else "" for axis in names]
    shown = [dimension[0] if dimension else "" for dimension in right if len(dimension) < 2]
    keep = shown == whole
    if how not in ("mean", "sum", "max", "min") or len(gone) != 1 or len(shown) != len(right):
        return None
    if not keep and shown != [axis for axis in whole if axis]:
        return None
    node = given.node
    arguments = {
        "input": value,
        "dim": interpreter.constant(node, gone[0]),
        "keepdim": interpreter.constant(node, keep),
    }
    return interpreter.new(how, node, arguments, name="reduce")
