"""ModelInputs -> Layout: the rows of a pass as packed tokens, without padding, for models of the Llama family.

What the rows hold is taken from the tensors of the inputs; how long they are is known without asking the device.

Shape legend: R rows of S tokens, B completions of T tokens (see ModelInputs), N packed tokens, M completion tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from assay.llama.packed import Packed, Segment
from assay.types import ModelInputs


@dataclass(frozen=True, slots=True)
class Layout:
    packed: Packed
    places_M: Tensor  # of the completion tokens among the B * T
    predictors_M: Tensor  # which of the N tokens predicts each of them


# the same inputs are computed several times: by the old policy, by the reference, in every epoch
_LAYOUTS: WeakKeyDictionary[ModelInputs, Layout] = WeakKeyDictionary()


def layout_of(inputs: ModelInputs) -> Layout:
    layout = _LAYOUTS.get(inputs)
    if layout is None:
        layout = _LAYOUTS[inputs] = _packed_layout(inputs)
    return layout


def longest_sequence(inputs: ModelInputs) -> int:
    """Tokens of a prompt and one of its completions, at most."""
    return max(prompt + max(completions) for prompt, *completions in inputs.trees)


def _packed_layout(inputs: ModelInputs) -> Layout:
    device = inputs.ids_RS.device
    kept_N = _inside([sum(tree) for tree in inputs.trees], inputs.ids_RS.shape[1], device)
    places_M = _inside(inputs.lengths, inputs.targets_BT.shape[1], device)
    numbers_N = torch.arange(len(kept_N), device=device)
    packed_RS = torch.zeros_like(inputs.ids_RS).flatten().index_copy(0, kept_N, numbers_N)
    return Layout(
        Packed(inputs.ids_RS.flatten()[kept_N], inputs.positions_RS.flatten()[kept_N], _segments(inputs)),
        places_M,
        predictors_M=packed_RS[inputs.predictors_BT.flatten()[places_M]],
    )


def _segments(inputs: ModelInputs) -> tuple[Segment, ...]:
    segments: list[Segment] = []
    start = 0
    for prompt, *completions in inputs.trees:
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
    """Flat indices of the non-padding positions of rows padded to `width`."""
    inside = np.arange(width) < np.array(lengths)[:, None]
    return torch.from_numpy(np.flatnonzero(inside)).to(device)
