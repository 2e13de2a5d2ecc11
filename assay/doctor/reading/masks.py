"""Masks of a loss: what multiplies, selects or fills tokens between their log-probs and the loss."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from assay.dataflow.kinds import Kind
from assay.dataflow.terms import Term, TermKind
from assay.dataflow.value import Value
from assay.doctor.reading.arrays import Unclear
from assay.doctor.reading.endings import Endings
from assay.doctor.reading.worked import COMPLETION, LENGTHS, PROMPT, ROWS, Worked
from assay.source.program import Program

_LEAVES = (Kind.LOGPROBS, Kind.NEGATIVE_LOGPROBS, Kind.LOGITS, Kind.OUTPUT, Kind.LOG_SOFTMAX, Kind.ENTROPY)
_MOST = 400


@dataclass(frozen=True, eq=False)
class Applied:
    """A mask where it meets the tokens. `kept`: 1 keeps a token; False for masked_fill, whose mask takes away."""

    value: Value
    at: Value
    kept: bool = True


@dataclass(eq=False)
class Masked:
    """One loss, and all masks between it and the log-probs of the policy."""

    loss: Value
    masks: list[Applied] = field(default_factory=list)
    selects: bool = False  # rows or positions are picked in a way that is not followed


@dataclass(frozen=True, eq=False)
class Filled:
    """What a mask holds on the example rows: 1 where a token counts."""

    mask: Applied
    numbers: Any  # [ROWS, width]
    offset: int  # of the first token of the completion; 0 where it holds completions only
    assumed: bool

    @property
    def completion(self) -> Any:
        return self.numbers[:, self.offset :]

    @property
    def prompt(self) -> Any:
        return self.numbers[:, : self.offset]

    @property
    def misses_ends(self) -> bool:
        """A token counts, but the one that ended the row does not."""
        rows = [row for row in range(ROWS) if row != 1]
        ends = [self.completion[row, LENGTHS[row] - 1] for row in rows]
        return bool(self.completion[1].all()) and not any(ends)

    @property
    def goes_on(self) -> bool:
        """What comes after the end counts."""
        return all(self.completion[row, LENGTHS[row] :].all() for row in (0, 2))

    @property
    def empty_rows(self) -> bool:
        return bool((self.numbers == 0).all(axis=1).any())


def losses(program: Program) -> Iterator[Masked]:
    for loss, terms in program.losses:
        if any(term.kind in (TermKind.SURROGATE, TermKind.POLICY) for term in terms):
            yield _masked(program, loss)


def _masked(program: Program, loss: Value) -> Masked:
    found = Masked(loss)
    seen = {id(loss)}
    waiting = [loss]
    while waiting and len(seen) < _MOST:
        value = waiting.pop()
        for mask, rest in _parts(program, value):
            if mask is not None:
                found.masks.append(mask)
            if rest is not None and id(rest) not in seen:
                seen.add(id(rest))
                waiting.append(rest)
        found.selects |= value.op in ("masked_select", "scatter", "scatter_add", "einsum", "matmul")
        if value.op == "index" and _is_select(program, value):
            found.selects = True
    return found


def _parts(program: Program, value: Value) -> Iterator[tuple[Applied | None, Value | None]]:
    """(mask, what it is applied to) of one operation on the way from a loss to log-probs."""
    other = value.argument("other")
    if program.kinds.is_a(value, *_LEAVES) and value.op in ("gather", "log_prob", "cross_entropy", "forward", "index"):
        return
    if value.op == "mul" and value.input is not None and other is not None:
        for one, rest in ((value.input, other), (other, value.input)):
            if is_mask(program, one):
                yield Applied(one, value), rest
                return
        yield None, value.input
        yield None, other
        return
    if value.op == "masked_fill" and value.input is not None:
        mask = value.argument("mask")
        yield (Applied(mask, value, kept=False) if mask is not None else None), value.input
        return
    if value.op == "where":
        condition, first = value.argument("condition"), value.input
        kept = first is None or not isinstance(first.constant, int | float)
        if condition is not None:
            yield Applied(condition, value, kept), first if kept else other
        return
    for name, one in value.arguments.items():
        if value.op in ("div",) and name == "other":
            continue
        if value.op in ("gather", "index", "index_select") and name != "input":
            continue
        if value.op in ("forward", "generate", "multinomial", "sample", "call", "function", "constant"):
            return
        yield None, one


def is_mask(program: Program, value: Value) -> bool:
    """By what was done to it; ones and zeros that are made as they are count too."""
    if program.kinds.is_a(value, Kind.MASK):
        return True
    current: Value | None = value
    for _ in range(8):
        if current is None:
            return False
        if current.op == "call" and current.name.rpartition(".")[2] in ("ones_like", "ones", "zeros_like", "zeros"):
            return True
        if program.kinds.is_a(current, Kind.MASK):
            return True
        if current.op == "cat":
            parts = current.argument("tensors")
            elements = getattr(getattr(parts, "thing", None), "elements", [])
            return any(is_mask(program, one) for one in elements[-2:] if one is not current)
        if current.op not in ("cast", "index", "view", "clone", "detach", "setitem", "phi", "tensor", "reshape"):
            return False
        current = current.input or current.argument("data") or current.argument("0")
    return False


def _is_select(program: Program, value: Value) -> bool:
    """x[mask]: tokens are picked."""
    keys = [key for name, key in value.arguments.items() if name != "input"]
    return any(program.kinds.is_a(key, Kind.MASK) for key in keys)


class Fillings:
    """What masks of a program hold on the example rows; `pad_is_end` says under which reading."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.endings = Endings(program)
        shared = self.endings.shared
        self.pad_is_end = shared is not None
        self.is_certain = shared is None or shared[1]
        self.where = shared[0] if shared is not None else None

    def of(self, mask: Applied) -> Filled | None:
        """None where the text does not say."""
        worked = Worked(self.program, self.endings, self.pad_is_end)
        try:
            numbers = np.asarray(worked.of(mask.value))
        except Unclear:
            return None
        if numbers.ndim != 2 or numbers.shape[0] != ROWS or not np.isin(numbers, (0, 1)).all():
            return None
        offsets = {COMPLETION: 0, PROMPT + COMPLETION: PROMPT, PROMPT + COMPLETION - 1: PROMPT - 1}
        width = numbers.shape[1]
        if width not in offsets:
            return None
        numbers = numbers.astype(bool)
        return Filled(mask, numbers if mask.kept else ~numbers, offsets[width], worked.assumed)

    def under_other_reading(self, mask: Applied) -> Filled | None:
        """The same with a padding token of its own."""
        other = Fillings.__new__(Fillings)
        other.program, other.endings, other.pad_is_end = self.program, self.endings, not self.pad_is_end
        return other.of(mask)


def token_terms(terms: list[Term]) -> list[Term]:
    return [term for term in terms if term.kind in (TermKind.SURROGATE, TermKind.POLICY, TermKind.KL)]
