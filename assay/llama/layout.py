"""Microbatch -> Layout: the rows of a micro-batch as packed tokens, without padding, for models of the Llama family.

What the rows hold is taken from the micro-batch's own tensors; how long they are is known without asking the device.

Shape legend: R rows of S tokens, B completions of T tokens (see Microbatch), N packed tokens, M completion tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from assay.llama.family import Family
from assay.llama.packed import Packed, Segment
from assay.types import Microbatch


@dataclass(frozen=True, slots=True)
class Layout:
    packed: Packed
    places_M: Tensor  # of the completion tokens among the B * T
    predictors_M: Tensor  # which of the N tokens predicts each of them


# a micro-batch is computed several times: by the old policy, by the reference, in every epoch
_LAYOUTS: WeakKeyDictionary[Microbatch, Layout] = WeakKeyDictionary()


def layout_of(batch: Microbatch) -> Layout:
    layout = _LAYOUTS.get(batch)
    if layout is None:
        layout = _LAYOUTS[batch] = _laid_out(batch)
    return layout


def longest_sequence(batch: Microbatch) -> int:
    """Tokens of a prompt and one of its completions, at most."""
    return max(prompt + max(completions) for prompt, *completions in batch.trees)


def fits_window(family: Family, batch: Microbatch) -> bool:
    """Whether no sequence is longer than the family's window of attention."""
    return family.longest is None or longest_sequence(batch) <= family.longest


def _laid_out(batch: Microbatch) -> Layout:
    device = batch.ids_RS.device
    kept_N = _inside([sum(tree) for tree in batch.trees], batch.ids_RS.shape[1], device)
    places_M = _inside(batch.lengths, batch.targets_BT.shape[1], device)
    numbers_N = torch.arange(len(kept_N), device=device)
    packed_RS = torch.zeros_like(batch.ids_RS).flatten().index_copy(0, kept_N, numbers_N)
    return Layout(
        Packed(batch.ids_RS.flatten()[kept_N], batch.positions_RS.flatten()[kept_N], _segments(batch)),
        places_M,
        predictors_M=packed_RS[batch.predictors_BT.flatten()[places_M]],
    )


def _segments(batch: Microbatch) -> tuple[Segment, ...]:
    segments: list[Segment] = []
    start = 0
    for prompt, *completions in batch.trees:
        if len(completions) == 1:
            segments.append(Segment(start, start + prompt + completions[0]))
            start += prompt + completions[0]
            continue
        stem = len(segments)
        segments.append(Segment(start, start + prompt))
        start += prompt
        for length in completions:
            segments.append(Segment(start, start + length, stem))
            start += length
    return tuple(segments)


def _inside(lengths: list[int] | tuple[int, ...], width: int, device: torch.device) -> Tensor:
    """The places of what is no padding, in rows of `width` laid one behind the other."""
    inside = np.arange(width) < np.array(lengths)[:, None]
    return torch.from_numpy(np.flatnonzero(inside)).to(device)
