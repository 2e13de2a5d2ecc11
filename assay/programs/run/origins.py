"""What a recorded value is, by the operations that made it: logits, probabilities, log-probs, those of chosen tokens.

Names play no part. A value of which this cannot be said is None.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from assay.programs.graph import SAME_NUMBERS, UNKNOWN, Value
from assay.programs.run.rows import replay
from assay.programs.run.sight import is_mask, numbers_of, sight
from assay.programs.walk import walk
from assay.record.batch import Array

if TYPE_CHECKING:
    from assay.programs.run.watched import Forward

LOGITS, PROBABILITIES, LOGPROBS = "logits", "probabilities", "logprobs"  # of the whole vocabulary
CHOSEN = "chosen"  # log-probs of chosen tokens
CHOSEN_NEGATIVE, CHOSEN_PROBABILITIES, CHOSEN_LOGITS = "chosen_negative", "chosen_probabilities", "chosen_logits"
LOG_SUM = "log_sum"  # logsumexp of logits

KEEPS_NUMBERS = SAME_NUMBERS | {"index", "attribute"}  # in a run what has an index or x.T is a tensor
_SAME = KEEPS_NUMBERS | {"output", "changed", "setitem", "repeat_interleave", "nan_to_num"}
_SAME_LOGITS = _SAME | {"div", "mul", "masked_fill", "where", "clamp", "scatter", "add", "topk", "sort"}


class ValueOrigins:
    """Kinds of values, remembered; and which pass a value came from."""

    def __init__(self) -> None:
        self.logits: set[int] = set()  # ids of Values that are a model's logits
        self.forwards: dict[int, Forward] = {}  # by id of the Value of the pass
        self._kinds: dict[int, str | None] = {}
        self._kept: list[Value] = []  # an id is only good as long as its Value lives

    def kind(self, value: Value) -> str | None:
        key = id(value)
        if key not in self._kinds:
            self._kept.append(value)
            self._kinds[key] = None  # a value never is its own ancestor here; a listing may be deep
            self._kinds[key] = self._kind(value)
        return self._kinds[key]

    def is_chosen(self, value: Value) -> bool:
        return self.kind(value) == CHOSEN

    def _kind(self, value: Value) -> str | None:
        if id(value) in self.logits:
            return LOGITS
        op = value.op
        first = value.input
        if op == "log_prob":
            return CHOSEN
        if op in ("cat", "stack", "pad_sequence", "listing"):
            return self._of_parts(value)
        if first is None:
            return None
        inner = self.kind(first)
        if op in ("log_softmax", "softmax") and inner is not None:
            return LOGPROBS if op == "log_softmax" else PROBABILITIES
        if op in ("log_softmax", "softmax") and _is_vocabulary_wide(first):
            return LOGPROBS if op == "log_softmax" else PROBABILITIES
        if inner is None:
            return None
        if op == "log":
            return {PROBABILITIES: LOGPROBS, CHOSEN_PROBABILITIES: CHOSEN}.get(inner)
        if op == "logsumexp":
            return LOG_SUM if inner == LOGITS else None
        if op in ("gather", "take_along_dim"):
            return _CHOSEN_OF.get(inner)
        if op in ("cross_entropy", "nll_loss"):
            reduction = value.setting("reduction", "mean")
            return CHOSEN_NEGATIVE if reduction == "none" else None
        if op == "neg" or (op == "mul" and value.setting("other") == -1):
            return {CHOSEN_NEGATIVE: CHOSEN, CHOSEN: CHOSEN_NEGATIVE}.get(inner)
        if op == "sub":
            other = value.arguments.get("other")
            less = None if other is None else self.kind(other)
            if less == LOG_SUM:
                return {CHOSEN_LOGITS: CHOSEN, LOGITS: LOGPROBS}.get(inner)
            return LOGITS if inner == LOGITS and less is None else None
        if op == "index" and inner in _CHOSEN_OF and _takes_tokens(value, first):
            return _CHOSEN_OF[inner]
        if op in _SAME or (inner in (LOGPROBS, CHOSEN) and op in ("div", "mul") and _by_a_number(value)):
            return inner
        if inner == LOGITS and op in _SAME_LOGITS:
            return LOGITS
        if inner == PROBABILITIES and op in ("clamp", "add", "div"):
            return PROBABILITIES
        if inner in (CHOSEN, CHOSEN_NEGATIVE) and op in ("mul", "masked_fill", "where") and self._is_masking(value):
            return inner
        return None

    def _of_parts(self, value: Value) -> str | None:
        kinds = {
            self.kind(part) for part in value.arguments.values() if part.op != "constant" or part.constant is UNKNOWN
        }
        return kinds.pop() if len(kinds) == 1 else None

    def _is_masking(self, value: Value) -> bool:
        """By truth values, or by 0 and 1 for each number: rewards of 0 and 1, one for each row, are not a mask."""
        masks = [
            argument
            for name, argument in value.arguments.items()
            if name in ("other", "mask", "condition") and is_mask(argument)
        ]
        shapes = [(seen, sight(value)) for argument in masks if (seen := sight(argument)) is not None]
        return any(seen.dtype == "bool" or (whole is not None and seen.shape == whole.shape) for seen, whole in shapes)

    def forward_of(self, value: Value | None) -> Forward | None:
        """The nearest pass that the value was made of."""
        if value is None:
            return None
        return next((self.forwards.get(id(made)) for made in above(value) if made.op == "forward"), None)

    def pass_of(self, value: Value | None) -> Forward | None:
        """The pass whose log-probs of chosen tokens these are."""
        return self.forward_of(value) if value is not None and self.kind(value) == CHOSEN else None


_CHOSEN_OF = {LOGPROBS: CHOSEN, PROBABILITIES: CHOSEN_PROBABILITIES, LOGITS: CHOSEN_LOGITS}


def differences_in(values: Iterable[Value]) -> Iterator[tuple[Value, Value, Value]]:
    """log p - log q, or p / q."""
    for value in values:
        one, other = value.input, value.arguments.get("other")
        if one is None or other is None:
            continue
        if value.op == "sub":
            yield value, one, other
        elif value.op == "div" and one.op == other.op == "exp" and one.input is not None and other.input is not None:
            yield value, one.input, other.input


def above(value: Value) -> Iterator[Value]:
    """The value and what it was made of, nearest first; ids that a model was given do not count as made of."""
    return walk(value, until=lambda made: made.op in ("forward", "generate"))


def _by_a_number(value: Value) -> bool:
    other = value.arguments.get("other")
    return other is not None and isinstance(other.constant, (int, float)) and other.constant != -1


def _is_vocabulary_wide(value: Value) -> bool:
    seen = sight(value)
    return seen is not None and seen.is_finite is not None


def _takes_tokens(value: Value, first: Value) -> bool:
    """logprobs[rows, places, ids]: keys are tensors of integers, and the last dimension goes."""
    before, behind = sight(first), sight(value)
    if before is None or behind is None:
        return False
    keys = value.keys
    last = keys[-1] if len(keys) == len(before.shape) else None
    seen = sight(last)
    return seen is not None and seen.dtype in ("int64", "int32") and len(behind.shape) < len(before.shape)


def chosen_ids(value: Value, origins: ValueOrigins) -> Array | None:
    """The token ids whose log-probs these are, as they stand in `value`."""

    def at(source: Value) -> Array | None:
        ids: Value | None = None
        if source.op in ("gather", "take_along_dim"):
            ids = source.arguments.get("index")
        elif source.op in ("cross_entropy", "nll_loss"):
            ids = source.arguments.get("target")
        elif source.op == "log_prob":
            ids = source.arguments.get("value")
        elif source.op == "index" and source.input is not None and origins.kind(source.input) in _CHOSEN_OF:
            ids = source.keys[-1] if origins.kind(source) in _CHOSEN_OF.values() else None
        numbers, seen = numbers_of(ids), sight(source)
        if numbers is None or seen is None or numbers.dtype.kind not in "iu":
            return None
        return numbers if numbers.shape == seen.shape else None

    return replay(value, at)
