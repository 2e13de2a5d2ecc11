"""Micro-batches as their loss saw them, and rows of any length --> the arrays of a record Batch.

Shape legend: B completions, T completion tokens, N rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from assay.record.batch import Array


@dataclass(frozen=True)
class Part:
    """One micro-batch: tensors by the names of record/batch.py, [B, T], or [B] with one number per row.

    For a watched script these are numpy arrays."""

    rows: tuple[int, ...]  # numbers of its rows among all rows that were sampled together
    tensors: Mapping[str, Any]

    def only(self, kept: Sequence[int]) -> Part:
        """These rows of it, in this order."""
        chosen = self.each(lambda values_BT: values_BT[list(kept)])
        return replace(chosen, rows=tuple(self.rows[number] for number in kept))

    def each(self, change: Callable[[Tensor], Tensor]) -> Part:
        return replace(self, tensors={name: change(values) for name, values in self.tensors.items()})


def join(parts: Sequence[Part], rows: Sequence[int], width: int, pad: int = 0) -> dict[str, Array]:
    """The fields that all parts have: rows in this order, [B, width] or [B]; `pad` fills up the ids of tokens."""
    joined = {}
    for name in parts[0].tensors:
        if all(name in part.tensors for part in parts):
            pairs = [zip(part.rows, _as_array(part.tensors[name]), strict=True) for part in parts]
            values = {row: own for pair in pairs for row, own in pair}
            ordered = [values[row] for row in rows]
            fill = pad if name == "tokens" else 0
            joined[name] = np.stack(ordered) if np.ndim(ordered[0]) == 0 else stack(ordered, width, fill)
    return joined


def join_inputs(parts: Sequence[Part], given: Sequence[Mapping[str, Any]], rows: Sequence[int]) -> dict[str, Array]:
    """What the model was given in the pass of each part, where that had the same columns in all of them."""
    joined: dict[str, Array] = {}
    for name in given[0] if given and len(given) == len(parts) else ():
        values = [tensors.get(name) for tensors in given]
        shapes = [None if tensor is None else tuple(tensor.shape) for tensor in values]
        width = shapes[0][-1] if shapes[0] else 0
        if shapes == [(len(part.rows), width) for part in parts]:
            own = [Part(part.rows, {name: tensor}) for part, tensor in zip(parts, values, strict=True)]
            joined |= join(own, rows, width)
    return joined


def stack(rows: Sequence[Any], width: int = 0, fill: int = 0) -> Array:
    """[N, width], or as wide as the longest row: short rows are filled up, long ones are cut, None is a row of NaN."""
    arrays = [None if row is None else _as_array(row) for row in rows]
    known = [array for array in arrays if array is not None]
    width = width or max(map(len, known), default=0)
    dtype = np.result_type(*known) if len(known) == len(arrays) and known else np.dtype(np.float64)
    stacked = np.full((len(arrays), width), fill, dtype)
    for own, array in zip(stacked, arrays, strict=True):
        if array is None:
            own[:] = np.nan
        else:
            own[: len(array)] = array[:width]
    return stacked


def sampled_fields(
    prompts: Sequence[Sequence[int] | Array], sampled: Sequence[Sequence[int] | Array], width: int, pad: int = 0
) -> dict[str, Array]:
    """What every update knows of its rows, as they came from the sampler."""
    return {
        "sampled_tokens": stack(sampled, width, pad),
        "prompt_tokens": stack(prompts, fill=pad),
        "prompt_mask": stack([[1] * len(prompt) for prompt in prompts]),
        "lengths": np.array([len(tokens) for tokens in sampled]),
    }


def _as_array(values: Any) -> Array:
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        values = (values.float() if values.is_floating_point() else values).numpy()
    return np.asarray(values)
