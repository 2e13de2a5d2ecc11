"""Which positions of a sequence a tensor holds, as far as slices say: logits[:, p - 1 : -1] are p - 1 to L - 2.

A position is a linear expression of numbers that the text does not know: the length of a sequence, of a prompt.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace

from assay.programs.facts.kinds import SCORES, Kind
from assay.programs.facts.origin import given_to, is_network_call
from assay.programs.facts.sampling.tokens import encoding_behind
from assay.programs.graph import UNKNOWN, Value
from assay.programs.program import Program
from assay.programs.read.things import Listing, Table
from assay.programs.walk import follow, loop_source, walk

Linear = dict[Hashable, int]  # coefficient of each unknown; that of 1 is the constant

# the same positions
_KEEPS = frozenset(
    "cast clone detach tensor div mul log_softmax softmax clamp nan_to_num view reshape flatten transpose "
    "log exp".split()
)
_INPUTS = ("input_ids", "0", "ids", "idx", "tokens", "x", "input", "inputs", "seq", "sequences")
_DEEP = 40


@dataclass(frozen=True, eq=False)
class Span:
    """Positions `start` to `end` of the sequence `root`. `is_row`: one row, the batch is gone."""

    root: Value
    start: Linear
    end: Linear
    is_row: bool = False


def constant(linear: Linear) -> int | None:
    """The number an expression is, where nothing unknown is left in it."""
    return linear.get(1, 0) if all(key == 1 or not count for key, count in linear.items()) else None


def plus(one: Linear, other: Linear, sign: int = 1) -> Linear:
    total = dict(one)
    for key, count in other.items():
        total[key] = total.get(key, 0) + sign * count
    return {key: count for key, count in total.items() if count}


class Spans:
    def __init__(self, program: Program) -> None:
        self.program = program
        self._built: list[Value] = []  # batches that were put together by hand, no two of them alike

    def of(self, value: Value, depth: int = _DEEP) -> Span:
        """The span of a tensor; itself whole where nothing is known of how it was cut."""
        inner = value.input
        if value.op == "phi" and depth and (start := filled_tensor(value)) is not None:
            return self.of(start, depth - 1)
        if value.op in ("setitem", "masked_fill", "where") and depth and inner is not None and is_ignored(value):
            return self.of(inner, depth - 1)
        if value.op in BUILT:
            value = self._first_alike(value)
            inner = value.input
        whole = Span(value, {}, self.length(value, depth))
        if depth == 0 or (inner is None and value.op not in ("forward", "tensor", "call")):
            return whole
        if is_network_call(value, self.program.kinds):
            return self._of_output(value, depth) or whole
        if value.op == "index" and inner is not None:
            return self._of_index(value, inner, depth) or whole
        if value.op == "element" and inner is not None and not value.name and is_turn_of(value):
            span = self.of(inner, depth - 1)
            return whole if span.is_row else replace(span, is_row=True)
        if value.op == "attribute" and value.name in ("logits", "sequences", "input_ids") and inner is not None:
            if value.name == "input_ids":
                encoding = encoding_behind(value)
                return self.of(encoding, depth - 1) if encoding is not None else whole
            return self.of(inner, depth - 1) if inner.op in ("generate", "forward", "call") else whole
        if value.op in ("unsqueeze", "squeeze") and inner is not None:
            dim = value.setting("dim", value.setting("1", -1))
            if dim in (-1, 2):
                return self.of(inner, depth - 1)
            span = self.of(inner, depth - 1)
            is_row = value.op == "squeeze"
            return replace(span, is_row=is_row) if dim == 0 and span.is_row != is_row else whole
        if value.op == "pad" and inner is not None:
            return self._of_pad(value, inner, depth) or whole
        if value.op == "roll" and inner is not None and value.setting("dim", value.setting("dims")) in (1, -1):
            shift = value.setting("shifts")
            if isinstance(shift, int):
                span = self.of(inner, depth - 1)
                return replace(span, start=plus(span.start, {1: -shift}), end=plus(span.end, {1: -shift}))
        if value.op in ("masked_fill", "where") and inner is not None:
            return self.of(inner, depth - 1) if self._is_scores(inner) else whole
        if value.op in _KEEPS and inner is not None:
            other = value.argument("other")
            if value.op in ("div", "mul") and other is not None and not self._is_scores(inner):
                return whole
            return self.of(inner, depth - 1)
        return whole

    def _first_alike(self, value: Value) -> Value:
        for tensor in self._built:
            if tensor is value or are_alike(tensor, value):
                return tensor
        self._built.append(value)
        return value

    def _is_scores(self, value: Value) -> bool:
        return self.program.kinds.is_a(value, *SCORES, Kind.LOG_SOFTMAX, Kind.PROBABILITIES)

    def _of_output(self, call: Value, depth: int) -> Span | None:
        """Logits stand at the positions of the ids that went in."""
        ids = given_ids(call)
        if ids is None or _is_cached(call) or _cuts_inside(call):
            return None
        span = self.of((encoding_behind(ids) or ids) if ids.op == "table" else ids, depth - 1)
        for name in ("given_logits_to_keep", "given_num_logits_to_keep", "logits_to_keep", "num_logits_to_keep"):
            kept = call.argument(name)
            if kept is not None:
                return replace(span, start=plus(span.end, self.linear(kept, depth - 1), -1))
        return span

    def _of_index(self, value: Value, inner: Value, depth: int) -> Span | None:
        keys = value.keys
        if value.name == "unpacked" or (is_network_call(inner, self.program.kinds) and len(keys) == 1):
            is_counted = is_counter(keys[0]) and _gives_tensor(inner)
            if not self._is_scores(value) or (value.setting("0") != 0 and not is_counted):
                return None
            span = self.of(inner, depth - 1)
            return replace(span, is_row=True) if _gives_tensor(inner) else span
        if isinstance(value.name, str) and value.name in ("logits", "sequences"):
            return self.of(inner, depth - 1)
        if isinstance(keys[0].constant, str):
            encoding = encoding_behind(value) if value.name == "input_ids" else None
            return self.of(encoding, depth - 1) if encoding is not None else None  # other fields stand for themselves
        if keys[0].constant is Ellipsis:
            return self.of(inner, depth - 1) if len(keys) == 2 and keys[1].constant in (None, 0) else None
        if any(key.constant is Ellipsis for key in keys):
            return None
        span = self.of(inner, depth - 1)
        if span.is_row and keys[0].constant is None:
            return self._rest(replace(span, is_row=False), keys[1:], depth)  # row[None]: a batch of one
        if not span.is_row:
            if keys[0].op != "slice":
                if self.program.kinds.is_a(keys[0], Kind.MASK):
                    return None  # positions, not rows
                is_row = isinstance(keys[0].constant, int) or is_counter(keys[0])
                span, keys = replace(span, is_row=is_row), keys[1:]
            elif is_piece(keys[0]):
                keys = keys[1:]  # ids[i:i + 1]
            elif keys[0].arguments:
                return None  # rows of a batch, or positions of one row: not known
            else:
                keys = keys[1:]
        return self._rest(span, keys, depth)

    def _rest(self, span: Span, keys: list[Value], depth: int) -> Span | None:
        """The positions that the last keys choose."""
        keys = [key for key in keys if key.constant is not None]
        if not keys:
            return span
        if keys[0].op != "slice" or "step" in keys[0].arguments or any(key.arguments for key in keys[1:]):
            return None
        return self._cut(span, keys[0], depth)

    def at(self, value: Value) -> tuple[Value, Linear] | None:
        """The sequence and the position of one token: ids[i, t], row[t]."""
        inner = value.input
        keys = value.keys if value.op == "index" and inner is not None else []
        if inner is None or not keys or keys[-1].op == "slice" or keys[-1].constant is None:
            return None
        span = self.of(inner)
        if len(keys) != (1 if span.is_row else 2) or (len(keys) == 2 and not is_counter(keys[0])):
            return None
        return span.root, plus(span.start, self.linear(keys[-1]))

    def _cut(self, span: Span, cut: Value, depth: int) -> Span:
        start, end = span.start, span.end
        first, last = cut.argument("start"), cut.argument("stop")
        if first is not None and first.constant is not None:
            linear = self.linear(first, depth - 1)
            start = plus(span.end, linear) if self._from_end(first) else plus(span.start, linear)
        if last is not None and last.constant is not None:
            linear = self.linear(last, depth - 1)
            end = plus(span.end, linear) if self._from_end(last) else plus(span.start, linear)
        return replace(span, start=start, end=end)

    def _from_end(self, bound: Value) -> bool:
        """-1, -n, -n - 1 count from the end."""
        if isinstance(bound.constant, int):
            return bound.constant < 0
        if bound.op == "neg":
            return True
        if bound.op in ("sub", "add") and bound.input is not None:
            return bound.input.op == "neg"
        return False

    def _of_pad(self, value: Value, inner: Value, depth: int) -> Span | None:
        widths = value.argument("pad")
        elements = getattr(widths.thing, "elements", None) if widths is not None else None
        numbers = [element.constant for element in elements] if elements is not None else []
        if not numbers or not all(isinstance(number, int) for number in numbers):
            return None
        at = 2 if len(numbers) == 4 else 0 if not self._is_scores(inner) and len(numbers) == 2 else None
        if at is None:
            return None
        span = self.of(inner, depth - 1)
        return replace(span, start=plus(span.start, {1: -numbers[at]}), end=plus(span.end, {1: numbers[at + 1]}))

    # lengths

    def length(self, value: Value, depth: int = _DEEP) -> Linear:
        """The length of a whole sequence."""
        parts = cat_parts(value)
        if parts is not None and depth:
            total: Linear = {}
            for part in parts:
                span = self.of(part, depth - 1)
                total = plus(total, plus(span.end, span.start, -1))
            return total
        return {("length", id(value)): 1}

    def linear(self, value: Value, depth: int = _DEEP) -> Linear:
        if isinstance(value.constant, int) and not isinstance(value.constant, bool):
            return {1: value.constant} if value.constant else {}
        if depth == 0:
            return {id(value): 1}
        other = value.argument("other")
        if value.op in ("add", "sub") and value.input is not None and other is not None:
            return plus(
                self.linear(value.input, depth - 1), self.linear(other, depth - 1), 1 if value.op == "add" else -1
            )
        if value.op == "neg" and value.input is not None:
            return plus({}, self.linear(value.input, depth - 1), -1)
        if value.op == "cast" and value.input is not None and value.name in ("int", "long"):
            return self.linear(value.input, depth - 1)
        measured = self._measured(value, depth)
        if measured is not None:
            span = self.of(measured, depth - 1)
            return plus(span.end, span.start, -1)
        return {expression_key(value): 1}

    def _measured(self, value: Value, depth: int) -> Value | None:
        """The tensor whose tokens a value counts: x.size(1), x.shape[1], B, T = x.shape; len(row) of one row."""
        if value.op == "len" and value.input is not None:
            return value.input if self.of(value.input, depth - 1).is_row else None
        shape: Value | None = None
        dim: object = UNKNOWN
        if value.op == "method" and value.name == "size":
            shape, dim = value, value.setting("1", value.setting("dim"))
        elif value.op == "index" and value.input is not None:
            inner = value.input
            if (inner.op == "attribute" and inner.name == "shape") or (inner.op == "method" and inner.name == "size"):
                shape, dim = inner, value.setting("0")
        if shape is None or shape.input is None or not isinstance(dim, int):
            return None
        if dim == 0:
            return shape.input if self.of(shape.input, depth - 1).is_row else None
        of_scores = self._is_scores(shape.input)
        return shape.input if dim == 1 or (dim == -1 and not of_scores) or (dim == -2 and of_scores) else None

    def located(self, tokens: Span, within: Value) -> Linear | None:
        """Where in the sequence `within` a span of tokens starts; None where it is not part of it."""
        if tokens.root is within:
            return tokens.start
        offset: Linear = {}
        for part in cat_parts(within) or []:
            span = self.of(part)
            if span.root is tokens.root:
                return plus(offset, plus(tokens.start, span.start, -1))
            offset = plus(offset, plus(span.end, span.start, -1))
        return None


def is_counter(key: Value) -> bool:
    """i of `for i in range(n)` and of enumerate(rows)."""
    return key.op == "element" and (key.name == "counter" or (key.input is not None and key.input.op == "range"))


def is_turn_of(element: Value) -> bool:
    """Whether a value is what a loop takes from a tensor in each turn, alone or beside others in a zip."""
    source = element.input
    loops = [loop_source(loop) for loop in element.context.loops]
    return any(loop is not None and (loop is source or (loop.op == "zip" and source in loop.inputs)) for loop in loops)


def is_piece(cut: Value) -> bool:
    """i:i + n, or i * n:(i + 1) * n: rows of a batch that a loop goes through."""
    start, stop = cut.argument("start"), cut.argument("stop")
    if cut.op != "slice" or start is None or stop is None or "step" in cut.arguments:
        return False
    is_scaled = start.op == "mul" and any(is_counter(part) for part in start.inputs)
    is_after = stop.op == "add" and any(part is start for part in stop.inputs)
    return (is_after and (is_counter(start) or is_scaled)) or (is_scaled and stop.op == "mul")


def _gives_tensor(call: Value) -> bool:
    """Whether a network of the script gives one tensor, of which [0] is the first row, and not a tuple."""
    output = call.argument("output")
    return call.op == "forward" and output is not None and not isinstance(output.thing, Listing | Table)


def given_ids(call: Value) -> Value | None:
    """The token ids that a call of a network is given."""
    names = {name.removeprefix("given_"): given for name, given in call.arguments.items()}
    if any(name in names for name in ("decoder_input_ids", "inputs_embeds", "pixel_values")):
        return None
    named = [names[name] for name in _INPUTS if name in names]
    ids = next(iter([*named, *given_to(call)]), None)
    labels = names.get("labels")
    if ids is None or labels is None or labels is ids:
        return ids
    encoding = encoding_behind(ids)
    return ids if encoding is not None and encoding_behind(labels) is encoding else None  # a decoder has its own


def _is_cached(call: Value) -> bool:
    for name, part in call.arguments.items():
        if (
            name.removeprefix("given_") in ("past_key_values", "past", "cache", "kv_cache")
            and part.constant is not None
        ):
            return True
    return False


def _cuts_inside(call: Value) -> bool:
    """Whether the network's own forward shortens the sequence."""

    def onward(value: Value) -> list[Value]:
        following = value.argument("output") or (value.input if value.op != "forward" else None)
        return [following] if following is not None else []

    return any(value.op in ("index", "roll", "pad", "cat") for value in walk(onward(call), onward))


def cat_parts(value: Value) -> list[Value] | None:
    if value.op != "cat" or value.setting("dim", value.setting("1", 0)) not in (1, -1):
        return None
    parts = value.argument("tensors")
    thing = getattr(parts, "thing", None)
    return list(thing.elements) if thing is not None and getattr(thing, "exact", False) else None


# How the rows of a padded batch are laid out: two tensors that are filled alike have the same positions


BUILT = frozenset({"setitem", "tensor", "pad_sequence", "stack"})
_LONGEST = 12
_FORM = ("cast", "clone", "detach", "unsqueeze")
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
    keys = [part for name, part in change.arguments.items() if name.isdigit() or name == "mask"]
    return written < 0 or any(_is_of_negative(key) for key in keys)


def filled_tensor(phi: Value) -> Value | None:
    """What a loop fills, row by row; None where it does something else to it."""
    last = phi.argument("1")
    if last is None or phi.name != "turn":
        return None
    start = follow(last, lambda value: value.input if value.op == "setitem" and is_ignored(value) else None)
    return phi.argument("0") if start is phi else None


def _is_of_negative(key: Value) -> bool:
    other = key.setting("other") if key.op in ("eq", "lt") else None
    return isinstance(other, int) and (other < 0 or (key.op == "lt" and other == 0))


def _writes(value: Value) -> set[Hashable]:
    """Where something is written in a loop over rows, and what."""

    def before(change: Value) -> list[Value]:
        inner = change.argument("0") if change.op == "phi" else change.input if change.op == "setitem" else None
        return [inner] if inner is not None else []

    found: set[Hashable] = set()
    for change in walk(value, before):
        written = change.argument("value")
        keys = [key for name, key in change.arguments.items() if name.isdigit()]
        is_row = change.op == "setitem" and len(keys) == 2 and keys[1].op == "slice"
        if is_row and written is not None and written.constant is UNKNOWN:
            found.add((*(expression_key(key) for key in keys), expression_key(written)))
    return found


def _of_batch(value: Value | None, depth: int = _LONGEST) -> Layout:
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
        return (
            tuple(part for element in thing.elements for part in _of_row(element, depth - 1))
            if thing.exact
            else (id(row),)
        )
    if isinstance(thing, Listing) and thing.cut_from is None:
        if thing.parts and not row.name:
            return tuple(part for value in thing.parts for part in _of_row(value, depth - 1))
        if thing.exact:
            return ("elements",) * len(thing.elements)
    return (id(row),)


def _of_repeat(row: Value) -> Layout:
    times, one = row.arguments["other"], row.arguments["input"]
    elements = getattr(one.thing, "elements", ())
    if len(elements) != 1:
        return (id(row),)
    if times.op == "len" and times.input is not None:
        return _of_row(times.input, _LONGEST)
    if times.op == "sub":
        return ("padding",)
    return ("elements",) * times.constant if isinstance(times.constant, int) and times.constant < 9 else (id(row),)


def expression_key(value: Value, depth: int = 5) -> Hashable:
    """The same expression on the same values is the same number."""
    if depth == 0 or not value.arguments or value.op in ("phi", "call", "element", "config"):
        return id(value) if value.constant is UNKNOWN else ("constant", repr(value.constant))
    return (
        value.op,
        value.name,
        tuple((name, expression_key(part, depth - 1)) for name, part in sorted(value.arguments.items())),
    )
