"""Which ids a network read that nobody called as a module: a function over a dict of layers, a loop over a cell, a
direct call of forward(). They are what its tables of embeddings were asked for.

Shape legend: B rows, S tokens that were read, T windows, W tokens of a window, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np

from assay.programs.graph import Value
from assay.programs.run.sight import Sight, numbers_of, sight
from assay.programs.walk import walk
from assay.record.batch import Array

MOST_OPERATIONS = 20_000  # between the ids and what was made of them


def read_ids(made: Value, parameters: Collection[int]) -> Value | None:
    """All that was looked up on the way to a value, in order; [B, S], or as the script had it. None where that is not
    clear. `parameters`: ids of the Values that are parameters."""
    whole = sight(made)
    found = list(_lookups(made, parameters))
    if whole is None or not whole.shape or not found:
        return None
    of_words = [lookup for lookup in found if lookup[1] == whole.shape[-1]]
    asked = [ids for ids, _ in of_words or found if not _are_positions(ids)]
    numbers = [numbers_of(ids) for ids in asked]
    if len(asked) == 1 and numbers[0] is not None and numbers[0].ndim < 3:
        return asked[0]
    rows_BS = _joined([array for array in numbers if array is not None])
    if rows_BS is None or len(numbers) != sum(array is not None for array in numbers):
        return None
    seen = Sight(rows_BS.shape, "int64", data=rows_BS)
    parts = {str(number): ids for number, ids in enumerate(asked)}
    return Value("read", parts, made.place, made.context, made.order, thing=seen)


def follows_reading(given: Array, chosen: Array) -> bool:
    """Whether what was chosen is what was read next, row by row: words, not actions at states."""
    if given.ndim != 2 or chosen.ndim != 2 or len(given) != len(chosen) or chosen.shape[1] < 2:
        return False
    for first in range(1, given.shape[1] + 1):
        both = min(given.shape[1] - first, chosen.shape[1])
        if both >= chosen.shape[1] - 1:
            known = chosen[:, :both] >= 0
            if known.any() and (given[:, first : first + both] == chosen[:, :both])[known].all():
                return True
    return False


def _lookups(made: Value, parameters: Collection[int]) -> Iterator[tuple[Value, int]]:
    """The ids of each lookup in a table of parameters and how many rows the table has, oldest first."""
    found = []
    for count, value in enumerate(walk(made, _floats)):
        if count > MOST_OPERATIONS:
            return
        table = value.arguments.get("weight") or value.arguments.get("1") if value.op == "embedding" else value.input
        ids = value.input if value.op in ("embedding", "one_hot") else value.keys[0] if value.op == "index" else None
        seen = sight(ids)
        if ids is None or seen is None or seen.is_floating or seen.dtype == "bool" or not seen.shape:
            continue
        if value.op == "index" and (len(value.keys) != 1 or id(value.input) not in parameters):
            continue
        rows, one_hot = sight(table), sight(value)
        width = one_hot.shape[-1] if value.op == "one_hot" and one_hot is not None else rows.shape[0] if rows else 0
        found.append((value.order, ids, width))
    for _, ids, width in sorted(found, key=lambda lookup: lookup[0]):
        yield ids, width


def _floats(value: Value) -> list[Value]:
    """What numbers were made of; the ids of a lookup are not asked where they come from."""
    seen = [(argument, sight(argument)) for argument in value.arguments.values()]
    return [argument for argument, known in seen if known is None or known.is_floating or argument.op == "one_hot"]


def _are_positions(ids: Value) -> bool:
    """0, 1, 2, ... in every row, or the same in all rows."""
    numbers = numbers_of(ids)
    if numbers is None or numbers.size < 2:
        return numbers is not None and not numbers.ndim
    return numbers.shape[-1] > 1 and bool((np.diff(numbers, axis=-1) == 1).all())


def _joined(parts: Sequence[Array]) -> Array | None:
    """[B, S] of columns that were read one after the other, or of windows that move on by one."""
    columns = []
    for part in parts:
        if part.ndim == 3:
            if len(parts) > 1 or not (part[:, 1:, :-1] == part[:, :-1, 1:]).all():
                return None
            return np.concatenate([part[:, 0], part[:, 1:, -1]], axis=1)
        columns.append(part[:, None] if part.ndim == 1 else part)
    if not columns or len({len(column) for column in columns}) != 1 or any(column.ndim != 2 for column in columns):
        return None
    return np.concatenate(columns, axis=1)
