"""Which rows and tokens break a law, in words: "the last token of every row", "all tokens with a negative advantage".

Shape legend: B completions, T completion tokens.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from assay.doctor.facts.logprobs import row_spans
from assay.record.batch import Array, Batch
from assay.verdict import Fact

MOST_COLUMNS = 512  # that are tried as an end
MOST_ROWS = 6  # that are listed by number


def describe(batch: Batch, off_BT: Array, among_BT: Array) -> str:
    """The tokens of `off_BT` in words: by what exactly they have in common against the rest of `among_BT`, else by
    their number."""
    off_BT, count, total = off_BT & among_BT, int((off_BT & among_BT).sum()), int(among_BT.sum())
    if count == total:
        return f"all {total} tokens"
    for words, pattern_BT in _patterns(batch, among_BT):
        if np.array_equal(pattern_BT & among_BT, off_BT):
            return f"{words} ({count} of {total} tokens)"
    rows_B = np.asarray(off_BT.any(axis=1))
    if not (among_BT[rows_B] & ~off_BT[rows_B]).any():
        return f"all tokens of {_rows(rows_B)} ({count} of {total} tokens)"
    new_BT, old_BT = batch.get("new_logprobs"), batch.get("old_logprobs")
    if new_BT is not None and old_BT is not None:
        for words, pattern_BT in (("likelier", new_BT > old_BT), ("less likely", new_BT < old_BT)):
            if np.array_equal(pattern_BT & among_BT, off_BT):
                return f"all tokens that became {words} ({count} of {total} tokens)"
    return f"{count} of {total} tokens, in {_rows(rows_B)}"


def worst(what: str, size_BT: Array, step: int | None, limit: float | None = None) -> Fact:
    """A fact at the token where `size_BT` is largest; a NaN is larger than any number."""
    sizes_BT = np.where(np.isnan(size_BT), np.inf, size_BT)
    row, token = np.unravel_index(int(np.argmax(sizes_BT)), sizes_BT.shape)
    return Fact(what, float(size_BT[row, token]), limit, step, int(row), int(token))


def _rows(rows_B: Array) -> str:
    numbers = np.flatnonzero(rows_B).tolist()
    if len(numbers) == 1 or not numbers:
        return f"row {numbers[0]}" if numbers else "no row"
    if numbers[-1] - numbers[0] == len(numbers) - 1 and len(numbers) > 2:  # a block: a chunk, or a worker
        if numbers[0] == 0:
            return f"the first {len(numbers)} of {len(rows_B)} rows"
        is_end = numbers[-1] == len(rows_B) - 1
        return f"the last {len(numbers)} of {len(rows_B)} rows" if is_end else f"rows {numbers[0]} to {numbers[-1]}"
    if len(numbers) > MOST_ROWS:
        return f"{len(numbers)} of {len(rows_B)} rows"
    return f"rows {', '.join(map(str, numbers))}"


def _patterns(batch: Batch, among_BT: Array) -> Iterator[tuple[str, Array]]:
    """What tokens can have in common, the simplest first."""
    rows, width = among_BT.shape
    columns_T = np.arange(width)
    _, end_B = row_spans(batch)
    last_BT = columns_T == end_B[:, None] - 1
    first_BT = columns_T == np.argmax(among_BT, axis=1)[:, None]
    yield "the last token of every row", last_BT
    yield "every token except the last of its row", ~last_BT
    yield "the first token of every row", first_BT
    yield "every token except the first of its row", ~first_BT
    advantages = batch.get("advantages")
    if advantages is not None:
        advantages_BT = advantages if advantages.ndim == 2 else np.broadcast_to(advantages[:, None], among_BT.shape)
        yield "all tokens with a negative advantage", advantages_BT < 0
        yield "all tokens with a positive advantage", advantages_BT > 0
        yield "all tokens with an advantage", advantages_BT != 0
        yield "all tokens whose advantage is 0", advantages_BT == 0
    finished_B = batch.get("finished")
    if finished_B is not None:
        cut_B1 = ~finished_B[:, None]
        yield "the rows that the token limit cut off", np.broadcast_to(cut_B1, among_BT.shape)
        yield "the rows that ended by themselves", np.broadcast_to(~cut_B1, among_BT.shape)
        yield "the last token of rows that the token limit cut off", last_BT & cut_B1
        yield "the last token of rows that ended by themselves", last_BT & ~cut_B1
        yield "all but the first token of rows that the token limit cut off", ~first_BT & cut_B1
    behind_B = batch.get("packed_behind")
    if behind_B is not None:
        behind_BT = np.broadcast_to(behind_B[:, None] > 0, among_BT.shape)
        yield "all rows that stand behind another one in their packed line", behind_BT
    for remainder, words in ((1, "every second row, from row 1"), (0, "every second row, from row 0")):
        yield words, np.broadcast_to((np.arange(rows) % 2 == remainder)[:, None], among_BT.shape)
    for count in (2, 3, 4):
        tail_BT = columns_T >= end_B[:, None] - count
        yield f"the last {count} tokens of every row", tail_BT
        if finished_B is not None:
            yield f"the last {count} tokens of rows that the token limit cut off", tail_BT & ~finished_B[:, None]
    for remainder, words in ((1, "every second token, from token 1"), (0, "every second token, from token 0")):
        yield words, np.broadcast_to(columns_T % 2 == remainder, among_BT.shape)
    for column in range(1, min(width, MOST_COLUMNS)):
        yield f"all tokens from column {column} on", np.broadcast_to(columns_T >= column, among_BT.shape)
        yield f"all tokens before column {column}", np.broadcast_to(columns_T < column, among_BT.shape)
    for column in np.flatnonzero(among_BT.any(axis=0))[:4].tolist():
        yield f"the tokens in column {column}", np.broadcast_to(columns_T == column, among_BT.shape)
