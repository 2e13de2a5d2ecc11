"""The first operation that made NaN or infinity of numbers that were finite."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from assay.programs.graph import Value
from assay.programs.once import once
from assay.programs.run.sight import numbers_of, sight
from assay.programs.run.watched import WatchedRun

_GIVEN = frozenset("given constant empty empty_like new_empty".split())
_LOGS = frozenset("log log_softmax log1p".split())  # elsewhere -inf is how tokens are taken out of logits


@once
def first_not_finite(run: WatchedRun) -> Value | None:
    known: dict[int, bool | None] = {}
    for value in run.graph.values:
        finite = known[id(value)] = _is_finite(value)
        if finite is not False or value.op in _GIVEN:
            continue
        if all(known.get(id(argument), _is_finite(argument)) is not False for argument in _inputs(value)):
            return value
    return None


def _inputs(value: Value) -> Iterator[Value]:
    for argument in value.arguments.values():
        yield from _inputs(argument) if argument.op == "listing" else (argument,)


def _is_finite(value: Value) -> bool | None:
    seen = sight(value)
    if seen is None or not seen.is_floating:
        return None
    if seen.is_finite is not None:
        return seen.is_finite
    numbers = numbers_of(value)
    if numbers is None:
        return None
    bad = np.isnan(numbers) | (numbers == np.inf)
    return not bool((bad | (numbers == -np.inf) if value.op in _LOGS else bad).any())
