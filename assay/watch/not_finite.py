"""The first operation that made NaN or infinity of numbers that were finite."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from assay.dataflow.value import Value
from assay.watch.trace import Trace, numbers_of, sight

# -inf is how tokens are taken out of logits, and log(0) of a mask is meant
_MEANT = frozenset("given full full_like masked_fill where tensor constant setitem empty empty_like new_full triu tril".split())


def first_not_finite(trace: Trace) -> Value | None:
    known: dict[int, bool | None] = {}
    for value in trace.graph.values:
        finite = known[id(value)] = _is_finite(value)
        if finite is False and value.op not in _MEANT:
            if all(known.get(id(one), _is_finite(one)) is not False for one in _inputs(value)):
                return value
    return None


def _inputs(value: Value) -> Iterator[Value]:
    for one in value.arguments.values():
        yield from _inputs(one) if one.op == "listing" else (one,)


def _is_finite(value: Value) -> bool | None:
    seen = sight(value)
    if seen is None or not seen.is_floating:
        return None
    if seen.summary:
        return bool(seen.summary["finite"])
    numbers = numbers_of(value)
    return None if numbers is None else bool(np.isfinite(numbers).all())
