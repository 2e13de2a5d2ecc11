"""How completions end in a script: its end and padding tokens, whether they are one, and the loops that draw tokens."""

from __future__ import annotations

import re
from functools import cached_property
from itertools import islice

from assay.programs.facts.kinds import Kind
from assay.programs.graph import UNKNOWN, Loop, Value
from assay.programs.program import Program
from assay.programs.walk import ancestors, loop_source, peel

_SUFFIX = r"(_?(token|tok))?(_?(ids?|idx|index|value))?$"
_END = re.compile(
    rf"(^|_)(eos|eot|endoftext|im_end){_SUFFIX}|^END$|(^|_)(end|stop)_?(token|tok|id)(_?(id|idx))?$", re.I
)
_PAD = re.compile(rf"(^|_)(pad|padding){_SUFFIX}", re.I)
_ENDINGS = ("</s>", "<end>", "<stop>", "<|end|>", "<eot>")
_MOST_BEHIND = 40
_SCALARS = frozenset("constant attribute index parameter method call config phi element cast leave len".split())
_ARITHMETIC = frozenset("add sub mul floordiv mod neg maximum minimum max min".split())
_OF_TENSORS = frozenset("eq ne cumsum sum generate multinomial sample forward argmax cat stack gather tensor".split())


class Endings:
    def __init__(self, program: Program) -> None:
        self.program = program

    def which(self, value: Value) -> str:
        """ "end" or "pad" where a name says that the value is that token; else ""."""
        if isinstance(value.constant, str | bool | float) or value.constant is None or not _is_number(value):
            return ""
        names = [*value.names, value.name if value.op in ("attribute", "index", "parameter", "element") else ""]
        names += [key for key in _entries(value) if key]
        is_pad = any(_PAD.search(name) for name in names)
        if any(_is_end(name) for name in names):
            return "pad" if is_pad and value.context.branches else "end"  # padding, if a condition makes it the end
        return "pad" if is_pad else ""

    def number(self, number: int) -> str:
        """Which token a bare number is, by the constants of the script."""
        ends, pads = self._numbers
        return "end" if number in ends else "pad" if number in pads else ""

    @cached_property
    def _numbers(self) -> tuple[set[int], set[int]]:
        ends: set[int] = set()
        pads: set[int] = set()
        for value in self.program.values:
            if value.names and isinstance(value.constant, int) and not isinstance(value.constant, bool):
                if any(_is_end(name) for name in value.names):
                    ends.add(value.constant)
                if any(_PAD.search(name) for name in value.names):
                    pads.add(value.constant)
        return ends, pads

    @cached_property
    def shared(self) -> tuple[Value, bool] | None:
        """Where padding is made the end token, and whether it always is: a condition may decide."""
        for value in self.program.values:
            if value.op == "setattr" and value.name in ("pad_token", "pad_token_id"):
                given = value.argument("value")
                if given is not None and given.name in ("eos_token", "eos_token_id"):
                    return value, not value.context.branches
            if value.op == "call" and "pad_token" in value.arguments and "eos_token" in value.arguments:
                pad, end = value.setting("pad_token"), value.setting("eos_token")
                if isinstance(pad, str) and pad == end:
                    return value, True
            both = any(_is_end(name) for name in value.names) and any(_PAD.search(name) for name in value.names)
            if both and _is_number(value):
                return value, not value.context.branches
        ends, pads = self._numbers
        if len(ends) == 1 and ends == pads:
            named = [part for part in self.program.values if part.constant in pads and _named(part, _PAD)]
            return (named[0], True) if named else None
        return None

    # loops

    @cached_property
    def loops(self) -> list[Loop]:
        """Every loop, outer ones first."""
        found: dict[int, Loop] = {}
        for value in self.program.values:
            for loop in value.context.loops:
                found.setdefault(id(loop), loop)
        return list(found.values())

    @cached_property
    def _row_loops(self) -> set[int]:
        return {id(loop) for loop in self.loops if not self.is_drawing(loop) and is_of_rows(loop)}

    def is_row_loop(self, key: int) -> bool:
        """Whether the loop with this id goes through rows."""
        return key in self._row_loops

    @cached_property
    def _drawing(self) -> set[int]:
        found: set[int] = set()
        for value in self.program.of("multinomial", "sample", "argmax"):
            loop = self.drawing_loop(value)
            if loop is not None:
                found.add(id(loop))
        return found

    def drawing_loop(self, value: Value) -> Loop | None:
        """The loop that draws one token per turn."""
        drawn = value.op in ("multinomial", "sample") or self.program.kinds.is_a(value, Kind.SAMPLED)
        return value.context.loops[-1] if drawn and value.context.loops else None

    def is_drawing(self, loop: Loop) -> bool:
        return id(loop) in self._drawing

    @cached_property
    def is_named(self) -> bool:
        """Whether the script speaks of an end token at all."""
        return any(self.which(value) == "end" for value in self.program.values)

    @cached_property
    def are_seen(self) -> bool:
        """Whether rows of a batch end before the others: a model's own generate(), or a test of the end token."""
        for value in self.program.values:
            if value.op == "generate":
                return True
            if value.op in ("eq", "ne"):
                sides = [value.input, value.argument("other")]
                if any(side is not None and self.which(side) == "end" for side in sides):
                    return True
        return False


def _is_number(value: Value) -> bool:
    """One number: given, looked up, or computed from such: len(chars), vocabulary - 1."""
    if value.op in _SCALARS:
        return True
    if value.op not in _ARITHMETIC:
        return False
    return isinstance(value.constant, int) or not any(
        part.op in _OF_TENSORS for part in islice(ancestors(value), _MOST_BEHIND)
    )


def _entries(value: Value) -> list[str]:
    """The entry of a vocabulary that a value is: stoi["<eos>"], without the signs around it."""
    if value.op == "method" and value.name in ("index", "token_to_id", "convert_tokens_to_ids", "get", "find"):
        keys = [part.constant for name, part in value.arguments.items() if name != "input"]
    elif value.op in ("index", "element"):
        keys = [value.name, *(key.constant for name, key in value.arguments.items() if name in ("0", "key"))]
    else:
        return []
    texts = [key for key in keys if isinstance(key, str)]
    return ["eos" if text in _ENDINGS else text.strip("<>[]|/ ").replace("|", "") for text in texts if text]


def _is_end(name: str) -> bool:
    return bool(name) and not name.startswith("is_") and _END.search(name) is not None


def _named(value: Value, pattern: re.Pattern[str]) -> bool:
    return any(pattern.search(name) for name in value.names)


def is_of_rows(loop: Loop) -> bool:
    """`for i, (p, c) in enumerate(zip(prompts, completions))`, `for row in rows`; not `for step in range(100)`."""
    source = loop_source(loop)
    if source is None:
        return False
    if source.op == "range":
        stop = source.argument("stop")
        counted = stop is not None and stop.constant is UNKNOWN and stop.op in ("len", "method", "index")
        return counted and "step" not in source.arguments
    return peel(source, ("phi",), by=("0",)).op in ("zip", "listing", "leave", "element", "list_repeat")
