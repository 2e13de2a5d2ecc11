"""New tensors of a worked example: filled, counted, joined, padded, shaped."""

from __future__ import annotations

from typing import Any

import numpy as np

from assay.programs.facts.masks.example.operations import OPERATIONS, Number, Unclear, expanded, joined, padded, shaped
from assay.programs.facts.masks.example.rows import COMPLETION, PROMPT, ROWS, prompts
from assay.programs.graph import Value
from assay.programs.program import Program
from assay.programs.read.things import Listing

Steps = dict[int, int]  # turn of each loop, by the id of the Loop


class Making:
    program: Program
    pad: int

    def of(self, value: Value, steps: Steps | None = None) -> Number:
        raise NotImplementedError

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
        given = [one for name, one in value.arguments.items() if name.isdigit() or name == start]
        sizes = [self.of(one, steps) for one in given]
        flat = sizes[0] if len(sizes) == 1 and isinstance(sizes[0], list | tuple) else sizes
        return [int(one) for one in flat]

    def _made_sizes(self, value: Value, steps: Steps) -> list[int]:
        """Of a new tensor. A size that the text spells out is the script's number of rows or of tokens: ours differ."""
        given = [one for name, one in value.arguments.items() if name.isdigit() or name == "size"]
        if len(given) == 1 and isinstance(given[0].thing, Listing):
            given = given[0].thing.elements
        sizes: list[int] = []
        for at, one in enumerate(given):
            if len(given) == 1 and isinstance(shape := self.of(one, steps), list | tuple):  # torch.ones(x.shape)
                return [int(size) for size in shape]
            spelt = isinstance(one.constant, int) and one.constant > 1 and at < 2
            sizes.append((ROWS, COMPLETION)[at] if spelt else int(self.of(one, steps)))
        return sizes

    def _full(self, value: Value, steps: Steps) -> Number:
        return np.full(self._made_sizes(value, steps), self.of(value.arguments["fill_value"], steps))

    def _arange(self, value: Value, steps: Steps) -> Number:
        bounds = [self.of(one, steps) for name, one in value.arguments.items() if name in ("start", "end", "step")]
        return np.arange(*[int(one) for one in bounds])

    def _cat(self, value: Value, steps: Steps) -> Number:
        parts = value.arguments.get("tensors")
        if parts is None or not isinstance(parts.thing, Listing) or not parts.thing.exact:
            raise Unclear
        dim = int(value.setting("dim", 0))
        found: list[Number] = []
        for part in parts.thing.elements:
            try:
                found.append(self.of(part, steps))
            except Unclear:
                # what stands before sampled tokens, and is neither sampled nor scored, is the prompt
                if found or dim not in (1, -1) or self.program.kinds.of(part) is not None:
                    raise
                found.append(prompts(self.pad))
        return joined(found, dim)

    def _stack(self, value: Value, steps: Steps) -> Number:
        parts = self.of(value.arguments["tensors"], steps)
        return np.stack([np.asarray(one) for one in parts], axis=int(value.setting("dim", 0)))

    def _pad_sequence(self, value: Value, steps: Steps) -> Number:
        rows = self.of(value.arguments["sequences"], steps)
        fill = value.argument("padding_value")
        if value.setting("batch_first", False) is not True:
            raise Unclear
        return padded([list(row) for row in rows], 0 if fill is None else self.of(fill, steps))

    def _list_repeat(self, value: Value, steps: Steps) -> Number:
        inner = value.arguments["input"]
        return list(self.of(inner, steps)) * int(self.of(value.arguments["other"], steps))

    def _view(self, value: Value, steps: Steps) -> Number:
        return shaped(self.of(value.arguments["input"], steps), self._sizes(value, steps))

    _reshape = _view

    def _expand(self, value: Value, steps: Steps) -> Number:
        return expanded(self.of(value.arguments["input"], steps), self._sizes(value, steps))

    def _flatten(self, value: Value, steps: Steps) -> Number:
        return np.ravel(self.of(value.arguments["input"], steps))

    def _and(self, value: Value, steps: Steps) -> Number:
        return all(bool(self.of(one, steps)) for one in value.arguments.values())

    def _max(self, value: Value, steps: Steps) -> Number:
        inner = value.input or value.argument("0")
        if inner is None:
            raise Unclear
        found = self.of(inner, steps)
        if isinstance(found, list):
            return max(found)
        settings = {name: self.of(one, steps) for name, one in value.arguments.items() if name in ("dim", "keepdim")}
        return OPERATIONS["max"](found, **settings)
