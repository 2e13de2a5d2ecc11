"""Rows of a pass that hold several answers, one behind the other: each answer becomes a row of its own.

Shape legend: B rows of the pass, N answers, T token columns, S tokens given to the model, P prompt tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from assay.programs.run.rollouts import SampledRows
from assay.record.batch import FIELDS, Array

LEAST_PACKED = 2  # rows with several answers


def unpacked(fields: Mapping[str, Any], rollouts: Sequence[SampledRows]) -> dict[str, Any] | None:
    """The same fields with a row for each answer, prompts padded on the left; None where rows are not packed, or where
    not every token of the loss belongs to an answer that was sampled."""
    given_BS, tokens_BT, mask_BT = (fields.get(name) for name in ("input_ids", "tokens", "mask"))
    if given_BS is None or tokens_BT is None or mask_BT is None or not rollouts:
        return None
    shift = int(given_BS.shape[1] - tokens_BT.shape[1])
    if shift not in (0, 1) or not np.array_equal(given_BS[:, shift:], tokens_BT):
        return None
    newest = max(rollout.moment for rollout in rollouts)
    texts = [
        (rollout.prompt(row).tolist(), rollout.completion(row).tolist())
        for rollout in rollouts
        if rollout.moment == newest
        for row in range(len(rollout.lengths_B))
    ]
    texts.sort(key=lambda text: -len(text[0]) - len(text[1]))
    spans = [_answers(given_S.tolist(), texts) for given_S in given_BS]
    if sum(len(row) > 1 for row in spans) < LEAST_PACKED:
        return None
    covered_BT = np.zeros(mask_BT.shape, dtype=bool)
    for number, row in enumerate(spans):
        for _, first, last in row:
            covered_BT[number, max(first - shift, 0) : last - shift] = True
    if (mask_BT & ~covered_BT).any():
        return None
    places = [(number, *span) for number, row in enumerate(spans) for span in row]
    width = max(last - first for _, _, first, last in places)
    wide = max(first - start for _, start, first, _ in places)
    inputs_NS = np.zeros((len(places), wide + width), dtype=given_BS.dtype)
    attended_NS = np.zeros(inputs_NS.shape, dtype=bool)
    for row_S, attended_S, (number, start, first, last) in zip(inputs_NS, attended_NS, places, strict=True):
        columns = slice(wide - (first - start), wide + last - first)
        row_S[columns], attended_S[columns] = given_BS[number, start:last], True
    found = {
        name: _cut(value, places, shift, width)
        for name, value in fields.items()
        if isinstance(value, np.ndarray) and value.shape == tokens_BT.shape and "BT" in FIELDS[name].shapes
    }
    plain = {name: value for name, value in fields.items() if not isinstance(value, np.ndarray)}
    return plain | found | {"input_ids": inputs_NS, "attention_mask": attended_NS}


def _answers(given: list[int], texts: Sequence[tuple[list[int], list[int]]]) -> list[tuple[int, int, int]]:
    """(start, first token of the completion, end) of the sampled rows that stand in it, one right behind the other."""
    spans, at = [], 0
    while at < len(given):
        whole = ((prompt, prompt + answer) for prompt, answer in texts)
        stands = next(((prompt, text) for prompt, text in whole if given[at : at + len(text)] == text), None)
        if stands is None:
            break
        prompt, text = stands
        spans.append((at, at + len(prompt), at + len(text)))
        at += len(text)
    return spans


def _cut(array_BT: Array, places: Sequence[tuple[int, int, int, int]], shift: int, width: int) -> Array:
    cut_NT = np.zeros((len(places), width), dtype=array_BT.dtype)
    for row_T, (number, _, first, last) in zip(cut_NT, places, strict=True):
        row_T[: last - first] = array_BT[number, first - shift : last - shift]
    return cut_NT
