"""Masks of a loss: what multiplies, selects or fills tokens between their log-probs and the loss."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np

from assay.programs.facts.kinds import Kind
from assay.programs.facts.masks.endings import Endings
from assay.programs.facts.masks.example import Worked
from assay.programs.facts.masks.example_rows import COMPLETION, LENGTHS, PROMPT, ROWS, Unclear
from assay.programs.graph import UNKNOWN, Value
from assay.programs.once import once
from assay.programs.program import Program
from assay.programs.walk import ancestors, follow, walk

_LEAVES = (Kind.LOGPROBS, Kind.NEGATIVE_LOGPROBS, Kind.LOGITS, Kind.OUTPUT, Kind.LOG_SOFTMAX, Kind.ENTROPY)
_ENDS = frozenset("forward generate multinomial sample call log_prob cross_entropy nll_loss entropy logsumexp".split())
_SELECTS = frozenset({"masked_select", "scatter", "scatter_add", "einsum", "matmul"})
_MOST_VALUES = 400
# the same rows somewhere else: collected, stored, taken out, padded to another width
_CARRIES = frozenset(
    "phi cast clone detach index element listing cat stack pad pad_sequence unbind table attribute split chunk zip "
    "enumerate list_repeat items values".split()
)
_OF_ONE = frozenset("cast clone detach index element pad unbind attribute split chunk".split())
_MOST_CARRIED = 120


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
    way: list[Value] = field(default_factory=list)  # what lies between it and the log-probs
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
        ends = [self.completion[row, LENGTHS[row] - 1] for row in (0, 2, 3)]
        before = [self.completion[row, : LENGTHS[row] - 1].all() for row in (0, 3)]
        return all(before) and not any(ends)

    @property
    def goes_on(self) -> bool:
        """What comes after the end counts."""
        return all(self.completion[row, LENGTHS[row] :].all() for row in (0, 2))

    @property
    def drops_truncated(self) -> bool:
        """A row that was cut off does not count at all."""
        return not self.numbers[1].any()

    @property
    def empty_rows(self) -> bool:
        return bool((self.numbers == 0).all(axis=1).any())

    def why(self, row: str, kept: str) -> tuple[str, ...]:
        """How the mask treats an example row, and where it meets the loss."""
        return (
            f"line {definition(self.mask.value).place.line}: of a row `{row}` the mask keeps {kept}",
            f"line {self.mask.at.place.line}: the loss of each token is multiplied by it",
        )


def losses(program: Program) -> Iterator[Masked]:
    for loss, terms in program.losses:
        if any(term.is_policy for term in terms):
            yield _masked(program, loss)


def _masked(program: Program, loss: Value) -> Masked:
    found = Masked(loss)
    way = walk(loss, lambda current: [part for part in _parts(program, current)[1] if program.terms.is_policy(part)])
    for value in islice(way, _MOST_VALUES):
        found.way.append(value)
        found.masks += _parts(program, value)[0]
        found.selects |= value.op in _SELECTS or (value.op == "index" and _is_select(program, value))
    return found


def _parts(program: Program, value: Value) -> tuple[list[Applied], list[Value]]:
    """The masks of one operation on the way from a loss to log-probs, and where the way goes on."""
    first, other = value.input, value.argument("other")
    if value.op == "sum" and first is not None and first.op == "mul" and program.kinds.is_a(value, Kind.LOGPROBS):
        # log-probs of a row, summed under its mask
        return [], [first] if any(program.kinds.is_a(side, Kind.LOGPROBS) for side in first.inputs) else []
    if value.op in _ENDS or (program.kinds.is_a(value, *_LEAVES) and value.op in ("gather", "index", "sub", "sum")):
        return [], []
    if value.op == "mul" and first is not None and other is not None:
        policy = [side for side in (first, other) if program.terms.is_policy(side)]
        masks = [Applied(side, value) for side in (first, other) if not any(side is mine for mine in policy)]
        return masks, policy
    if value.op == "masked_fill" and first is not None:
        mask = value.argument("mask")
        return ([Applied(mask, value, kept=False)] if mask is not None else []), [first]
    if value.op == "where":
        condition = value.argument("condition")
        kept = first is None or not isinstance(first.constant, int | float)
        sides = [side for side in (first, other) if side is not None]
        return ([Applied(condition, value, kept)] if condition is not None else []), sides
    if value.op == "div":
        return [], [first] if first is not None else []
    if value.op in ("index", "index_select"):
        return [], [first] if first is not None else []
    return [], list(value.arguments.values())


def _is_select(program: Program, value: Value) -> bool:
    """x[mask]: tokens are picked."""
    keys = value.keys
    return any(program.kinds.is_a(key, Kind.MASK) for key in keys)


class Fillings:
    """What masks of a program hold on the example rows."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.endings = Endings(program)
        self.shared = self.endings.shared  # where padding is made the end token
        self._found: dict[tuple[int, bool, bool], list[Filled]] = {}

    def of(self, mask: Applied, pad_is_end: bool | None = None) -> list[Filled]:
        """One for each way that the branches of the script can go; nothing where the text does not say."""
        pad_is_end = self.shared is not None if pad_is_end is None else pad_is_end
        key = (id(mask.value), mask.kept, pad_is_end)
        if key not in self._found:
            found = self._ways(mask, pad_is_end)
            for carried in [] if found else self._carried(mask.value):
                found = found or self._ways(replace(mask, value=carried), pad_is_end)
            self._found[key] = found
        return self._found[key]

    def _ways(self, mask: Applied, pad_is_end: bool) -> list[Filled]:
        found: list[Filled] = []
        for choice in (0, -1):
            filled = self._filled(mask, choice, pad_is_end)
            if filled is not None and not any(np.array_equal(filled.numbers, value.numbers) for value in found):
                found.append(filled)
        return found

    def _carried(self, mask: Value) -> list[Value]:
        """The masks that a buffer, a record or rows that were padded again have carried to where one is applied."""
        if isinstance(mask.constant, int | float):
            return []
        way = list(islice(walk(mask, self._carriers), _MOST_CARRIED))[1:]
        way = [value for value in way if value.op in ("setitem", "index") or self.program.kinds.is_a(value, Kind.MASK)]
        made = [value for value in way if value.op not in _CARRIES]
        if len(made) > 1:  # fields of one record: the one that has the same name
            names = {mask.name, *mask.names}
            return [value for value in way if value.op in ("cast", "setitem") and names & set(value.names)][:1]
        return way

    def _carriers(self, value: Value) -> list[Value]:
        if value.op not in _CARRIES:
            return []
        held = list(getattr(value.thing, "elements", ()))
        keys = value.keys if value.op == "index" else []
        if len(keys) > 1 and any("start" in key.arguments for key in keys[1:]):
            return []  # other positions
        parts = [value.input] if value.op in _OF_ONE else [*value.inputs, *held]
        return [part for part in parts if part is not None and part.constant is UNKNOWN]

    def _filled(self, mask: Applied, choice: int, pad_is_end: bool) -> Filled | None:
        worked = Worked(self.program, self.endings, pad_is_end, choice)
        try:
            numbers = np.asarray(worked.of(mask.value))
        except (Unclear, ValueError):  # rows of different lengths are not a mask of a batch
            return None
        if numbers.ndim != 2 or numbers.shape[0] != ROWS or not np.isin(numbers, (0, 1)).all():
            return None
        offsets = {COMPLETION: 0, PROMPT + COMPLETION: PROMPT, PROMPT + COMPLETION - 1: PROMPT - 1}
        if (width := numbers.shape[1]) not in offsets:
            return None
        numbers = numbers.astype(bool)
        return Filled(mask, numbers if mask.kept else ~numbers, offsets[width], worked.assumed)

    @cached_property
    def losses(self) -> list[tuple[Masked, list[list[Filled]]]]:
        """Each loss, and what those of its masks hold of which the text says it."""
        found = []
        for masked in losses(self.program):
            filled = [self.of(mask) for mask in masked.masks]
            found.append((masked, [filling for filling in filled if filling]))
        return found

    def is_masked_elsewhere(self, masked: Masked) -> bool:
        """Whether a factor of which nothing is known may hold another mask: advantages that were masked before."""
        for mask in masked.masks:
            if self.of(mask) or isinstance(mask.value.constant, int | float):
                continue
            if self.program.kinds.is_a(mask.value, Kind.MASK):
                return True
            for value in islice(ancestors(mask.value), 80):
                others = value.inputs if value.op == "mul" else []
                if any(not part.goes_on for other in others for part in self.of(Applied(other, value))):
                    return True
        return False


@once
def fillings(program: Program) -> Fillings:
    return Fillings(program)


def definition(mask: Value) -> Value:
    """Where a mask is made, behind the rows that are picked of it and its casts."""

    def onward(current: Value) -> Value | None:
        options = [part for part in current.inputs if part.constant is not None] if current.op == "phi" else []
        following = current.input if current.op != "phi" else options[0] if options else None
        if current.op not in ("index", "cast", "phi", "clone", "detach", "unsqueeze", "leave") or following is None:
            return None
        is_made_here = (
            following.op in ("parameter", "constant", "call", "method", "element", "generate")
            or (current.op == "cast" and following.op not in ("index", "phi", "cast"))
            or (current.op == "index" and following.op in ("multinomial", "sample", "eq", "ne"))
        )
        return None if is_made_here else following

    return follow(mask, onward)
