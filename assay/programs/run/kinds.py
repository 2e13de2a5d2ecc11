"""What a recorded value is, by the operations that made it: logits, probabilities, log-probs, those of chosen tokens.

Names play no part. A value of which this cannot be said is None.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.programs.facts.kinds import LOG_OF, ONE_OF, Kind
from assay.programs.graph import SAME_NUMBERS, UNKNOWN, Value
from assay.programs.run.readings import read_ids
from assay.programs.run.rows import replay
from assay.programs.run.sight import is_mask, numbers_of, sight
from assay.programs.walk import walk
from assay.record.batch import Array

if TYPE_CHECKING:
    from assay.programs.run.watched import Forward

KEEPS_NUMBERS = SAME_NUMBERS | {"index", "attribute"}  # in a run what has an index or x.T is a tensor
_SAME = KEEPS_NUMBERS | {"changed", "setitem", "repeat_interleave", "nan_to_num"}
_SAME_LOGITS = _SAME | {"div", "mul", "masked_fill", "where", "clamp", "scatter", "add", "topk", "sort"}

_SUMS = frozenset("sum einsum vecdot linalg_vecdot".split())
_BY_HAND = frozenset("div sub exp mul log add pow".split())
MOST_SUMMED = 65_536  # numbers of a tensor that are added up
ROUNDING = 1e-4  # of sums of float32
DRAWS = frozenset(("multinomial", "sample", "leave"))
_ORIGINS = frozenset(("forward", "generate", "multinomial", "sample"))

_CHOSEN = frozenset(ONE_OF.values())


class RunKinds:
    """Kinds of values, remembered; and which pass a value came from. What Kinds (facts/kinds.py) is for a text."""

    def __init__(self) -> None:
        self.logits: set[int] = set()  # ids of Values that are a model's logits
        self.forwards: dict[int, Forward] = {}  # by id of the Value of the pass
        # parameters that the script itself uses: the tensor, and how often it was stepped before
        self.parameters: dict[int, tuple[weakref.ref[Any], int]] = {}
        self.owner: Callable[[Any], int] | None = None  # the number of the model that a parameter belongs to
        self._learned: dict[int, Forward | None] = {}
        self._owners: dict[int, int] = {}  # by id of the Value of a parameter, as far as it was asked
        self._read: set[int] = set()  # ids of those of which it is known what they read
        self._kinds: dict[int, Kind | None] = {}
        self._kept: list[Value] = []  # an id is only good as long as its Value lives

    def of(self, value: Value) -> Kind | None:
        unknown: list[Value] = []
        current: Value | None = value
        while current is not None and id(current) not in self._kinds:  # x[i] += y in a loop makes long chains
            unknown.append(current)
            self._kinds[id(current)] = None  # stops the recursion if a value is met again
            current = current.input
        self._kept += unknown
        for made in reversed(unknown):
            self._kinds[id(made)] = self._kind(made)
        return self._kinds[id(value)]

    def is_chosen(self, value: Value) -> bool:
        return self.of(value) is Kind.LOGPROBS

    def _kind(self, value: Value) -> Kind | None:
        if id(value) in self.logits:
            return _distribution(value) or Kind.LOGITS  # a network may end with a softmax
        op = value.op
        first = value.input
        if op == "log_prob":
            return Kind.LOGPROBS
        if op in ("cat", "stack", "pad_sequence", "listing"):
            return self._of_parts(value)
        if op in _SUMS and (picked := one_of_each(value)) is not None:
            kind = self.of(picked[0]) or self._by_numbers(picked[0])
            return None if kind is None else ONE_OF.get(kind)
        if first is None:
            return None
        if op == "sum" and _is_joint(value):
            return Kind.LOGPROBS
        inner = self.of(first)
        if op in ("log_softmax", "softmax") and inner is not None:
            return Kind.LOG_SOFTMAX if op == "log_softmax" else Kind.PROBABILITIES
        if op in ("log_softmax", "softmax") and (_is_vocabulary_wide(first) or self.learned_in(first) is not None):
            return Kind.LOG_SOFTMAX if op == "log_softmax" else Kind.PROBABILITIES
        if inner is None:
            return self._of_actions(value, first) or self._by_numbers(value)
        if op == "log":
            return LOG_OF.get(inner)
        if op == "logsumexp":
            return Kind.LOGSUMEXP if inner is Kind.LOGITS else None
        if op in ("gather", "take_along_dim"):
            return ONE_OF.get(inner, inner if inner in _CHOSEN else None)  # chosen ones, at some positions
        if op in ("cross_entropy", "nll_loss"):
            reduction = value.setting("reduction", "mean")
            return Kind.NEGATIVE_LOGPROBS if reduction == "none" else None
        if op == "neg" or (op == "mul" and value.setting("other") == -1):
            return {Kind.NEGATIVE_LOGPROBS: Kind.LOGPROBS, Kind.LOGPROBS: Kind.NEGATIVE_LOGPROBS}.get(inner)
        if op == "sub":
            other = value.arguments.get("other")
            less = None if other is None else self.of(other)
            if less is Kind.LOGSUMEXP:
                return {Kind.TOKEN_LOGITS: Kind.LOGPROBS, Kind.LOGITS: Kind.LOG_SOFTMAX}.get(inner)
            if inner is Kind.LOGITS and less is None:
                return self._by_numbers(value) or Kind.LOGITS
            return None
        if op == "index" and inner in ONE_OF and _takes_tokens(value, first):
            return ONE_OF[inner]
        if op in _SAME or (inner in (Kind.LOG_SOFTMAX, Kind.LOGPROBS) and op in ("div", "mul") and _by_a_number(value)):
            return inner
        if inner is Kind.LOGITS and op in _SAME_LOGITS:
            return Kind.LOGITS
        if inner is Kind.PROBABILITIES and op in ("clamp", "add", "div"):
            return Kind.PROBABILITIES
        if (
            inner in (Kind.LOGPROBS, Kind.NEGATIVE_LOGPROBS)
            and op in ("mul", "masked_fill", "where")
            and self._is_masking(value)
        ):
            return inner
        return None

    def _by_numbers(self, value: Value) -> Kind | None:
        """A distribution that was made by hand shows in its numbers: they, or exp of them, add up to 1 in every row."""
        if value.op not in _BY_HAND or (kind := _distribution(value)) is None:
            return None
        return kind if self.forward_of(value) is not None else None

    def _of_actions(self, value: Value, first: Value) -> Kind | None:
        """Of logits that no pass returned: what is done to them shows that they are."""
        if self.learned_in(first) is None:
            return None
        if value.op == "logsumexp":
            return Kind.LOGSUMEXP
        if value.op == "cross_entropy" and value.setting("reduction", "mean") == "none":
            return Kind.NEGATIVE_LOGPROBS
        other = value.arguments.get("other")
        if value.op != "sub" or other is None or self.of(other) is not Kind.LOGSUMEXP:
            return None
        logits = other.input if other.op == "logsumexp" else other.input.input if other.input is not None else None
        if logits is first:
            return Kind.LOG_SOFTMAX
        is_one = first.op in ("gather", "take_along_dim", "index", *SAME_NUMBERS)
        return Kind.LOGPROBS if is_one and logits is not None and any(made is logits for made in walk(first)) else None

    def learned_in(self, value: Value | None) -> Forward | None:
        """The operation that made the value of a parameter, outside of any model's pass; the last if there are several.

        What was drawn or compared is not learned, nor what is made of it."""
        waiting = [] if value is None else [value]
        while waiting:
            current = waiting[-1]
            inner = [] if self._ends_learning(current) else list(current.arguments.values())
            unknown = [argument for argument in inner if id(argument) not in self._learned]
            if unknown and id(current) not in self._learned:
                self._learned[id(current)] = None  # stops at a value that is met again
                waiting += unknown
                continue
            waiting.pop()
            passes = [found for argument in inner if (found := self._learned.get(id(argument))) is not None]
            used = [id(argument) for argument in inner if id(argument) in self.parameters]
            self._kept.append(current)
            number = self._owner_of(used[0]) if used else None
            if number is not None:
                self._learned[id(current)] = _pass_of(current, number, self.parameters[used[0]][1])
            else:
                self._learned[id(current)] = max(passes, key=lambda found: found.value.order, default=None)
        return None if value is None else self._learned[id(value)]

    def note_owners(self) -> None:
        """Of all parameters so far: when the script is over they may be gone."""
        for key in self.parameters.keys() - self._owners.keys():
            self._owner_of(key)

    def _owner_of(self, key: int) -> int | None:
        tensor = self.parameters[key][0]()
        if tensor is not None and self.owner is not None:
            self._owners[key] = self.owner(tensor)
        return self._owners.get(key)

    def renumber(self, numbers: Mapping[int, int]) -> None:
        """What layers did by themselves was done by the model that they belong to."""
        self._owners = {key: numbers.get(number, number) for key, number in self._owners.items()}
        for forward in self._learned.values():
            if forward is not None and forward.model in numbers:
                forward.model = numbers[forward.model]

    def _ends_learning(self, value: Value) -> bool:
        seen = sight(value)
        if value.op in ("forward", "generate", "sample", "multinomial", "given", "constant"):
            return True
        return id(value) in self.parameters or (seen is not None and not seen.is_floating)

    def _of_parts(self, value: Value) -> Kind | None:
        kinds = {
            self.of(part) for part in value.arguments.values() if part.op != "constant" or part.constant is UNKNOWN
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
        found = next((self.forwards.get(id(made)) for made in above(value) if made.op == "forward"), None)
        if found is not None:
            return found
        learned = self.learned_in(value.input if value.op in DRAWS and value.input is not None else value)
        if learned is not None and id(learned) not in self._read:
            self._read.add(id(learned))
            learned.input_ids = read_ids(learned.value, self.parameters)
        return learned

    def pass_of(self, value: Value | None) -> Forward | None:
        """The pass whose log-probs of chosen tokens these are."""
        return self.forward_of(value) if value is not None and self.of(value) is Kind.LOGPROBS else None


def _distribution(value: Value) -> Kind | None:
    """Probabilities, or their logarithms, over the last dimension, by their sums."""
    seen = sight(value)
    if seen is None or not seen.is_floating or seen.shape[-1:] in ((), (1,)):
        return None
    numbers = seen.numbers if seen.size <= MOST_SUMMED else seen.rows
    if numbers is None or not numbers.size or np.isnan(numbers).any():
        return None
    if (numbers >= 0).all():
        return Kind.PROBABILITIES if np.abs(numbers.sum(axis=-1) - 1).max() <= ROUNDING else None
    if (numbers <= ROUNDING).all():
        return Kind.LOG_SOFTMAX if np.abs(np.exp(numbers).sum(axis=-1) - 1).max() <= ROUNDING else None
    return None


def _pass_of(value: Value, model: int, version: int) -> Forward:
    from assay.programs.run.watched import Forward

    return Forward(value, model, version, dropout=0, input_ids=None, attention_mask=None, position_ids=None)


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
    return walk(value, until=lambda made: made.op in _ORIGINS and (made is not value or made.op not in DRAWS))


def _by_a_number(value: Value) -> bool:
    other = value.arguments.get("other")
    if other is None or other.op == "element":  # whose constant says which element it is
        return False
    return isinstance(other.constant, (int, float)) and other.constant != -1


def _is_vocabulary_wide(value: Value) -> bool:
    seen = sight(value)
    return seen is not None and seen.is_finite is not None


def _takes_tokens(value: Value, first: Value) -> bool:
    """logprobs[rows, places, ids]: the last key is a number or a tensor of integers, and the last dimension goes; or
    logprobs[is_chosen], where one of each row is."""
    before, behind = sight(first), sight(value)
    if before is None or behind is None:
        return False
    keys = value.keys
    if len(keys) == 1 and is_one_of_each(keys[0], before.shape):
        return True
    last = keys[-1] if len(keys) == len(before.shape) else None
    if last is not None and isinstance(last.constant, int) and not isinstance(last.constant, bool):
        return len(behind.shape) < len(before.shape)
    seen = sight(last)
    return seen is not None and seen.dtype in ("int64", "int32") and len(behind.shape) < len(before.shape)


def is_one_of_each(value: Value, shape: tuple[int, ...]) -> bool:
    """0 and 1 of this shape, one 1 in each row."""
    seen, numbers = sight(value), numbers_of(value)
    if seen is None or numbers is None or seen.shape != shape or not shape or shape[-1] < 2:
        return False
    return is_mask(value) and bool((numbers.sum(axis=-1) == 1).all())


def one_of_each(value: Value) -> tuple[Value, Value] | None:
    """Of (numbers * one_hot).sum(-1), or of einsum in its place: numbers and one_hot."""
    inner, seen = value.input if value.op == "sum" else value, sight(value)
    if inner is None or seen is None or (value.op == "sum" and inner.op != "mul"):
        return None
    sides = [made for made in _tensors(inner) if sight(made) is not None]
    whole = sight(sides[0]) if len(sides) == 2 else None
    if whole is None or seen.shape not in (whole.shape[:-1], (*whole.shape[:-1], 1)):
        return None
    for numbers, chosen in (sides, sides[::-1]):
        if is_one_of_each(chosen, whole.shape):
            return numbers, chosen
    return None


def _tensors(value: Value) -> Iterator[Value]:
    for argument in value.arguments.values():
        yield from _tensors(argument) if argument.op == "listing" else (argument,)


def _is_joint(value: Value) -> bool:
    """The log-prob of an action of several parts, each of them yes or no."""
    inner, seen = value.input, sight(value)
    made_of = None if inner is None or inner.op != "log_prob" else inner.input
    whole = sight(inner)
    if made_of is None or made_of.op != "bernoulli" or whole is None or seen is None:
        return False
    return value.setting("dim", None) in (-1, len(whole.shape) - 1) and len(whole.shape) > 1


def _is_whole(numbers: Array) -> bool:
    return bool((numbers >= 0).all() and (numbers == np.round(numbers)).all())


def chosen_ids(value: Value, kinds: RunKinds) -> Array | None:
    """The token ids whose log-probs these are, as they stand in `value`."""

    def at(source: Value) -> Array | None:
        ids: Value | None = None
        if source.op in ("gather", "take_along_dim"):
            were_chosen = source.input is not None and kinds.of(source.input) in _CHOSEN  # then it picks positions
            ids = None if were_chosen else source.arguments.get("index")
        elif source.op in ("cross_entropy", "nll_loss"):
            ids = source.arguments.get("target")
        elif source.op == "log_prob":
            ids = source.arguments.get("value")
        elif source.op == "index" and source.input is not None and kinds.of(source.input) in ONE_OF:
            ids = source.keys[-1] if kinds.of(source) in ONE_OF.values() else None
            if ids is not None and isinstance(ids.constant, int) and sight(source) is not None:
                return np.full(sight(source).shape, ids.constant)  # type: ignore[union-attr]
        numbers, seen = numbers_of(ids), sight(source)
        if source.op in _SUMS and (picked := one_of_each(source)) is not None:
            numbers = numbers_of(picked[1])
        if source.op == "sum" and _is_joint(source) and source.input is not None:
            parts = numbers_of(source.input.arguments.get("value"))
            return None if parts is None else (parts > 0.5) @ (1 << (np.arange(parts.shape[-1]) % 62))
        if numbers is not None and seen is not None and numbers.dtype.kind in "bf" and numbers.size > seen.size:
            numbers = numbers.argmax(axis=-1)  # one of each row is 1
            numbers = numbers.reshape(seen.shape) if numbers.size == seen.size else numbers
        if numbers is not None and source.op == "log_prob" and numbers.dtype.kind == "f" and _is_whole(numbers):
            numbers = numbers.astype(np.int64)  # yes and no, as Bernoulli has them
        if numbers is None or seen is None or numbers.dtype.kind not in "iu":
            return None
        return numbers if numbers.shape == seen.shape else None

    return replay(value, at)
