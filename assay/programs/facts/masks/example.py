"""A worked example: what a mask of a script holds for four rows of tokens, computed from the text of the script.

The rows: one ends in the middle, one is cut off, one ends at once, one ends in its last place. After its end a row is
filled with padding. What the text does not say is Unclear, and then nothing is concluded.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice
from typing import Any

import numpy as np

from assay.programs.facts.kinds import Kind
from assay.programs.facts.masks.endings import Endings
from assay.programs.facts.masks.example_rows import (
    COMPLETION,
    END,
    IN_NUMPY,
    LENGTHS,
    PAD,
    PROMPT,
    PROMPT_TOKEN,
    ROWS,
    Number,
    Unclear,
    as_array,
    as_number,
    cast,
    completions,
    expand,
    prompts,
)
from assay.programs.graph import Loop, Value
from assay.programs.program import Program
from assay.programs.read.things import Listing
from assay.programs.walk import ancestors, peel

Steps = dict[int, int]  # turn of each loop, by the id of the Loop
_DEEPEST = 120
_SAME = frozenset("cast clone detach leave moved tensor in_place".split())
# what numpy raises where shapes or types do not fit: the example is then no example of this
_MISFITS = (ValueError, IndexError, TypeError, KeyError, OverflowError, ArithmeticError, AttributeError)


class Worked:
    """Evaluates values of a program on the example rows."""

    def __init__(self, program: Program, endings: Endings, pad_is_end: bool, choice: int = 0) -> None:
        self.program = program
        self.endings = endings
        self.pad = END if pad_is_end else PAD
        self.fill = self.pad
        self.choice = choice  # which of two branches is taken, where the text does not decide: 0 the first, -1 the last
        self.assumed = False  # a parameter of which nothing is known was taken for tokens of completions
        self._known: dict[tuple[int, tuple[tuple[int, int], ...]], Number] = {}
        self._token_loops: set[int] = set()
        self._given: dict[int, bool] = {}
        self._depth = 0

    def of(self, value: Value, steps: Steps | None = None) -> Number:
        """Raises Unclear."""
        steps = dict(steps or {})
        for loop in value.context.loops:
            if id(loop) not in steps:  # seen after the loop has ended, or from another loop over the same rows
                row = self._row(steps) if self._is_row_loop(id(loop)) else None
                steps[id(loop)] = self._turns(loop) - 1 if row is None else row
        inside = tuple(sorted((id(loop), steps[id(loop)]) for loop in value.context.loops))
        if value.op in ("phi", "listing", "element", "index"):
            inside = tuple(sorted(steps.items()))
        key = (id(value), (*inside, (0, -1 if (row := self._row(steps)) is None else row)))
        if key in self._known:
            if self._known[key] is Unclear:
                raise Unclear
            return self._known[key]
        if self._depth > _DEEPEST:
            raise Unclear
        self._depth += 1
        self._known[key] = Unclear  # what needs itself is not known
        try:
            found = self._found(value, steps)
        except (Unclear, *_MISFITS):
            if value.op not in ("leave", "index", "listing", "tensor", "element") or self._row(steps) is None:
                raise Unclear from None
            if not self.program.kinds.is_a(value, Kind.SAMPLED):
                raise Unclear from None
            found = self._tokens_of_row(steps)  # one row of what was sampled, in whatever way it was cut out
        finally:
            self._depth -= 1
        self._known[key] = found
        return found

    # loops

    def _turns(self, loop: Loop) -> int:
        if self.endings.is_drawing(loop):
            return COMPLETION
        return ROWS if self._is_row_loop(id(loop)) else 1

    def _phi(self, value: Value, steps: Steps) -> Number:
        if value.name == "turn":
            inside = [loop for loop in self.endings.loops if loop.place == value.place and id(loop) in steps]
            turn = steps[id(inside[-1])] if inside else 0
            if turn <= 0 or "1" not in value.arguments:
                try:
                    return self.of(value.arguments["0"], steps)
                except Unclear:
                    # what a loop starts from that draws tokens behind it is the prompt
                    if not inside or not self.endings.is_drawing(inside[-1]) or not self._is_growing(value):
                        raise
                    return prompts(self.pad) if self._row(steps) is None else [PROMPT_TOKEN] * PROMPT
            return self.of(value.arguments["1"], {**steps, id(inside[-1]): turn - 1})
        options = [part for part in value.arguments.values() if part.constant is not None]
        if not options:
            raise Unclear
        return self.of(options[self.choice], steps)

    def _is_growing(self, value: Value) -> bool:
        last = peel(value.arguments["1"], ("phi",), by=("0",))
        return last.op == "cat" and self.program.kinds.is_a(last, Kind.SAMPLED)

    def _listing(self, value: Value, steps: Steps) -> Number:
        thing = value.thing
        if not isinstance(thing, Listing):
            raise Unclear
        if thing.exact:
            return [self.of(part, steps) for part in thing.elements]
        joined_from = [part.thing for part in thing.parts if isinstance(part.thing, Listing)]
        if joined_from and sum(len(part.elements) for part in joined_from) == len(thing.elements):
            return [item for part in thing.parts for item in self._part(part, steps)]
        if len(thing.elements) != 1:
            raise Unclear
        element = thing.elements[0]
        if self.program.kinds.is_a(element, Kind.SAMPLED) and self._row(steps) is not None:
            return self._tokens_of_row(steps)
        more = [loop for loop in element.context.loops if loop not in value.context.loops]
        if len(more) > 1 and value.place.line == element.place.line:
            more = more[-1:]  # a comprehension over what a loop has made
        if len(more) != 1:
            raise Unclear
        (loop,) = more
        row = self._row(steps)
        if row is not None and self._is_of_tokens(loop):
            self._token_loops.add(id(loop))
            drawing = {id(part): 0 for part in self.endings.loops if self.endings.is_drawing(part)}
            return [
                self.of(element, {**steps, **dict.fromkeys(drawing, turn), id(loop): turn})
                for turn in range(LENGTHS[row])
            ]
        if not self.endings.is_drawing(loop):
            steps = {key: turn for key, turn in steps.items() if not self._is_row_loop(key)}
        return [self.of(element, {**steps, id(loop): turn}) for turn in range(self._turns(loop))]

    def _part(self, part: Value, steps: Steps) -> Number:
        """A list within a list; one that is neither sampled nor known, in a row of its own, is the prompt."""
        try:
            return self.of(part, steps)
        except Unclear:
            if self._row(steps) is None or self.program.kinds.of(part) is not None:
                raise
            return [PROMPT_TOKEN] * PROMPT

    def _is_row_loop(self, key: int) -> bool:
        return self.endings.is_row_loop(key) and key not in self._token_loops

    def _is_of_tokens(self, loop: Loop) -> bool:
        """Whether a loop within one row goes through its tokens."""
        source = loop.source
        if source is None or not self.program.kinds.is_a(source, Kind.SAMPLED):
            return False
        if isinstance(source.thing, Listing) and len(source.thing.elements) == 1:
            element = source.thing.elements[0]
            return element.op not in ("listing", "tensor", "table") and element.name != "tolist"
        return True

    def _row(self, steps: Steps) -> int | None:
        rows = [turn for key, turn in steps.items() if self._is_row_loop(key)]
        return rows[-1] if rows else None

    def _tokens_of_row(self, steps: Steps) -> list[int]:
        row = self._row(steps)
        if row is None:
            raise Unclear
        tokens: list[int] = completions(False, self.fill)[row].tolist()
        return tokens[: LENGTHS[row]]

    # values

    def _found(self, value: Value, steps: Steps) -> Number:
        method = getattr(self, f"_{value.op}", None)
        token = self._token_id(value)
        if token is not None:
            return token
        if isinstance(value.constant, int | float | bool | str) or value.constant in (None, Ellipsis):
            return value.constant
        if method is not None:
            return method(value, steps)
        if value.op in _SAME:
            inner = value.input or value.argument("data")
            if inner is None:
                raise Unclear
            found = self.of(inner, steps)
            return cast(as_array(found) if isinstance(found, list) else found, value.name)
        if value.op in IN_NUMPY:
            names = [name for name in value.arguments if name not in ("dtype", "device", "engine", "out")]
            return IN_NUMPY[value.op](**self._settings(value, steps, names))
        raise Unclear

    def _settings(self, value: Value, steps: Steps, names: Collection[str]) -> dict[str, Number]:
        return {name: self.of(value.arguments[name], steps) for name in value.arguments if name in names}

    def _token_id(self, value: Value) -> int | None:
        """The end or the padding token, where a name of an API or of the script says so."""
        which = self.endings.which(value)
        return END if which == "end" else self.pad if which == "pad" else None

    def _eq(self, value: Value, steps: Steps) -> Number:
        sides: list[Number] = []
        inputs = [value.arguments["input"], value.arguments["other"]]
        for side, other in (inputs, inputs[::-1]):
            try:
                sides.append(self.of(side, steps))
            except Unclear:
                opaque = ("parameter", "attribute", "index", "call", "method", "element")
                if self._token_id(other) is None or side.op not in opaque or self._row(steps) is not None:
                    raise
                self.assumed = True
                sides.append(completions(False, self.fill))
        for at in (0, 1):
            tokens = np.ndim(sides[1 - at]) and np.size(sides[1 - at]) and np.max(sides[1 - at]) >= PAD
            if (tokens or np.max(sides[1 - at]) >= PAD) and isinstance(inputs[at].constant, int):
                sides[at] = self._named_number(inputs[at].constant)
        return IN_NUMPY[value.op](sides[0], sides[1])

    _ne = _eq

    def _named_number(self, number: int) -> int:
        """A bare number that is compared with tokens."""
        if number < 0 or number >= PAD:
            return number
        which = self.endings.number(number)
        if not which:
            raise Unclear
        return END if which == "end" else self.pad

    def _generate(self, value: Value, steps: Steps) -> Number:
        given = value.argument("pad_token_id")
        fill = self._token_id(given) if given is not None else None
        return np.concatenate([prompts(self.pad), completions(False, fill or self.fill)], axis=1)

    def _multinomial(self, value: Value, steps: Steps) -> Number:
        loop = self.endings.drawing_loop(value)
        if loop is None:
            raise Unclear
        drawn = completions(True, self.fill)[:, steps[id(loop)]]
        row = self._row(steps)
        if row is not None:
            return drawn[row]
        return drawn[:, None] if value.op == "multinomial" else drawn

    _sample = _multinomial

    def _argmax(self, value: Value, steps: Steps) -> Number:
        if self.program.kinds.is_a(value, Kind.SAMPLED):
            return self._multinomial(value, steps)
        return IN_NUMPY["argmax"](**self._settings(value, steps, value.arguments))

    def _attribute(self, value: Value, steps: Steps) -> Number:
        if value.name == "shape":
            return self._shape(value, steps)
        if value.name == "sequences" and value.input is not None:
            return self.of(value.input, steps)
        if value.name == "token_ids":
            return self._tokens_of_row(steps)
        if value.name == "T" and value.input is not None:
            return np.asarray(self.of(value.input, steps)).T
        raise Unclear

    def _shape(self, value: Value, steps: Steps) -> Number:
        inner = value.input
        if inner is None:
            raise Unclear
        if self.program.kinds.of(inner) is None and self._is_given(inner):
            return [ROWS, PROMPT]
        return list(np.shape(self.of(inner, steps)))

    def _is_given(self, value: Value) -> bool:
        """Neither sampled nor scored nor made of such: what the model was given."""
        if id(value) not in self._given:
            near = islice(ancestors(value), 400)
            made = ("generate", "multinomial", "sample", "forward")
            self._given[id(value)] = not any(part.op in made for part in near)
        return self._given[id(value)]

    def _method(self, value: Value, steps: Steps) -> Number:
        inner = value.input
        if inner is None:
            raise Unclear
        arguments = [part for name, part in value.arguments.items() if name.isdigit()]
        if value.name == "size":
            shape = self._shape(value, steps)
            dim = value.argument("dim") or (arguments[0] if arguments else None)
            return shape if dim is None else shape[self.of(dim, steps)]
        if value.name in ("new_ones", "new_zeros", "new_full") and arguments:
            sizes = self._sizes(value, steps)
            return np.full(sizes, 1 if value.name == "new_ones" else 0)
        if value.name in ("ndim", "dim", "numel"):
            array = np.asarray(self.of(inner, steps))
            return array.size if value.name == "numel" else array.ndim
        raise Unclear

    def _len(self, value: Value, steps: Steps) -> Number:
        inner = value.arguments["input"]
        try:
            return len(self.of(inner, steps))
        except Unclear:
            if self.program.kinds.of(inner) is not None:
                raise
            row = self._row(steps)
            return ROWS if row is None else PROMPT

    def _element(self, value: Value, steps: Steps) -> Number:
        """What a loop over rows takes: their number, tokens that were sampled, or the prompt."""
        row = self._row(steps)
        if row is None:
            raise Unclear
        if value.name == "counter" or (value.input is not None and value.input.op == "range"):
            return row
        if self.program.kinds.is_a(value, Kind.SAMPLED):
            return self._tokens_of_row(steps)
        raise Unclear

    def _index(self, value: Value, steps: Steps) -> Number:
        inner = value.arguments["input"]
        base = self.of(inner, steps)
        keys: list[Any] = []
        for name, key in value.arguments.items():
            if name == "input":
                continue
            try:
                keys.append(self._key(key, steps))
            except Unclear:
                if len(value.arguments) == 2 and key.op != "slice" and np.ndim(base) == 2 and self._row(steps) is None:
                    return base  # some of the rows: each of them may be picked
                # cut where the prompt ends, as far as a whole sequence goes
                if key.op != "slice" or np.ndim(base) != 2 or len(keys) != 1:
                    raise
                if _is_setting(key.argument("stop")) and "start" not in key.arguments:
                    keys.append(slice(None))  # a limit that is a setting
                    continue
                if "stop" in key.arguments or np.shape(base)[1] != PROMPT + COMPLETION:
                    raise
                keys.append(slice(PROMPT, None))
        if isinstance(base, list | tuple):
            return base[keys[0]]
        return base[tuple(keys)]

    def _key(self, key: Value, steps: Steps) -> Any:
        if key.op == "slice":
            bounds = [self._bound(key.argument(name), steps) for name in ("start", "stop", "step")]
            return slice(*bounds)
        found = self.of(key, steps)
        return np.asarray(found) if isinstance(found, list) else found

    def _bound(self, bound: Value | None, steps: Steps) -> int | None:
        if bound is not None and bound.op == "len" and isinstance(bound.constant, int) and self._row(steps) is None:
            return PROMPT  # the length of a prompt that the text spells out; ours is another
        found = None if bound is None else self.of(bound, steps)
        return None if found is None else int(found)

    def _setitem(self, value: Value, steps: Steps) -> Number:
        array = np.array(self.of(value.arguments["input"], steps))
        keys = tuple(self._key(key, steps) for key in value.keys)
        given = value.arguments["value"]
        try:
            array[keys] = self.of(given, steps)
        except Unclear:
            if self._row(steps) is None or self.program.kinds.of(given) is not None:
                raise
            array[keys] = PROMPT_TOKEN
        return array

    # new tensors: filled, counted, joined, padded, shaped

    def _call(self, value: Value, steps: Steps) -> Number:
        last = value.name.rpartition(".")[2]
        if last in ("ones_like", "zeros_like", "full_like", "empty_like"):
            shape = self._shape_like(value.arguments.get("0") or value.arguments["input"], steps)
            if last == "full_like":
                return np.full(shape, self.of(value.arguments.get("1") or value.arguments["fill_value"], steps))
            return np.full(shape, 1 if last == "ones_like" else 0)
        if last in ("ones", "zeros", "empty"):
            return np.full(self._made_sizes(value, steps), 1 if last == "ones" else 0)
        if last == "isin" and len(value.arguments) >= 2:
            return np.isin(*[self.of(value.arguments[name], steps) for name in ("0", "1")])
        raise Unclear

    def _shape_like(self, like: Value, steps: Steps) -> Any:
        try:
            return np.shape(self.of(like, steps))
        except Unclear:
            if self.program.kinds.of(like) is not None:
                raise
            return (ROWS, PROMPT)

    def _sizes(self, value: Value, steps: Steps) -> list[int]:
        start = "size" if "size" in value.arguments else ""
        given = [part for name, part in value.arguments.items() if name.isdigit() or name == start]
        sizes = [self.of(argument, steps) for argument in given]
        flat = sizes[0] if len(sizes) == 1 and isinstance(sizes[0], list | tuple) else sizes
        return [int(part) for part in flat]

    def _made_sizes(self, value: Value, steps: Steps) -> list[int]:
        """Of a new tensor. A size that the text spells out is the script's number of rows or of tokens: ours differ."""
        given = [part for name, part in value.arguments.items() if name.isdigit() or name == "size"]
        if len(given) == 1 and isinstance(given[0].thing, Listing):
            given = given[0].thing.elements
        sizes: list[int] = []
        for at, argument in enumerate(given):
            if len(given) == 1 and isinstance(shape := self.of(argument, steps), list | tuple):  # torch.ones(x.shape)
                return [int(size) for size in shape]
            spelt = isinstance(argument.constant, int) and argument.constant > 1 and at < 2
            sizes.append((ROWS, COMPLETION)[at] if spelt else int(self.of(argument, steps)))
        return sizes

    def _full(self, value: Value, steps: Steps) -> Number:
        return np.full(self._made_sizes(value, steps), self.of(value.arguments["fill_value"], steps))

    def _arange(self, value: Value, steps: Steps) -> Number:
        bounds = self._settings(value, steps, ("start", "end", "step"))
        return np.arange(*[int(bound) for bound in bounds.values()])

    def _cat(self, value: Value, steps: Steps) -> Number:
        parts = value.arguments.get("tensors")
        if parts is None or not isinstance(parts.thing, Listing) or not parts.thing.elements:
            raise Unclear
        dim = int(value.setting("dim", 0))
        if dim == 0 and (not parts.thing.exact or value.name.endswith("vstack")):
            return self._batch_of(parts.thing.elements, steps)
        if not parts.thing.exact:
            raise Unclear
        found: list[Number] = []
        for part in parts.thing.elements:
            try:
                found.append(self.of(part, steps))
            except Unclear:
                # what stands before sampled tokens, and is neither sampled nor scored, is the prompt
                if found or dim not in (1, -1) or self.program.kinds.of(part) is not None:
                    raise
                found.append(prompts(self.pad))
        return np.concatenate([as_number(part) for part in found], axis=dim)

    def _batch_of(self, parts: list[Value], steps: Steps) -> Number:
        """Batches that a loop collected, one below the other: the example is one of them."""
        found = [self.of(part, steps) for part in parts[-1:]]
        if np.ndim(found[0]) != 2:
            raise Unclear
        return found[0]

    def _stack(self, value: Value, steps: Steps) -> Number:
        parts = self.of(value.arguments["tensors"], steps)
        return np.stack([np.asarray(part) for part in parts], axis=int(value.setting("dim", 0)))

    def _pad_sequence(self, value: Value, steps: Steps) -> Number:
        rows = self.of(value.arguments["sequences"], steps)
        fill = value.argument("padding_value")
        if value.setting("batch_first", False) is not True:
            raise Unclear
        filler = 0 if fill is None else self.of(fill, steps)
        width = max((len(row) for row in rows), default=0)
        return np.array([[*row, *([filler] * (width - len(row)))] for row in rows])

    def _list_repeat(self, value: Value, steps: Steps) -> Number:
        inner = value.arguments["input"]
        return list(self.of(inner, steps)) * int(self.of(value.arguments["other"], steps))

    def _view(self, value: Value, steps: Steps) -> Number:
        return np.reshape(self.of(value.arguments["input"], steps), self._sizes(value, steps))

    _reshape = _view

    def _expand(self, value: Value, steps: Steps) -> Number:
        return expand(self.of(value.arguments["input"], steps), self._sizes(value, steps))

    def _and(self, value: Value, steps: Steps) -> Number:
        return all(bool(self.of(part, steps)) for part in value.arguments.values())

    def _max(self, value: Value, steps: Steps) -> Number:
        inner = value.input or value.argument("0")
        if inner is None:
            raise Unclear
        found = self.of(inner, steps)
        if isinstance(found, list):
            return max(found)
        return IN_NUMPY["max"](found, **self._settings(value, steps, ("dim", "keepdim")))


def _is_setting(value: Value | None) -> bool:
    """A number that is not a length of a tensor: given by a setting, or a sum of such."""
    known = ("config", "constant", "attribute", "index", "parameter", "add", "mul", "table", "instance")
    return value is not None and all(part.op in known for part in islice(ancestors(value), 20))
