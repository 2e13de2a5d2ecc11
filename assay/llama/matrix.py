"""A matrix of the policy as the decoder on a CPU multiplies with it, for the length of one call.

Projections of the same input are one matrix. It is the trainer's own memory, or a copy in the order in which the
processor reads it fastest: that costs as much as one or two products, and each product is a fifth shorter after it.

Shape legend: L slots, I inputs, O outputs, K rank of an adapter.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import linear

from assay.llama.family import Family, LowRank, Projection, Stack
from assay.llama.joined import project
from assay.llama.kernels import onednn
from assay.llama.kernels.onednn import Cut, LaidOut

IN_A_LAYER = Cut(inputs=512)
# What the head rounds off is in the log-probs as it is, and is more than all layers together leave there. In parts of
# 192 it is summed up as torch's own product does it for the trainer, and what both round off alike does no harm. Blocks
# of outputs stay in the processor's cache, and are kept in one place: new pages of memory cost more than a copy.
IN_THE_HEAD = Cut(inputs=192, outputs=8192)


@dataclass(frozen=True, slots=True, eq=False)
class Matrix:
    parts: tuple[Projection, ...]
    weight_OI: Tensor | None  # of all parts; None: they lie apart, and are multiplied one by one
    bias_O: Tensor | None
    copy: LaidOut | None  # of the weight

    def product(self, inputs_LI: Tensor, room_LO: Tensor | None = None) -> Tensor:
        """outputs_LO of all parts, side by side; written to `room_LO` if that saves a copy."""
        if self.weight_OI is None:
            return torch.cat([project(inputs_LI, part) for part in self.parts], dim=1)
        if self.copy is None:
            outputs_LO = linear(inputs_LI, self.weight_OI, self.bias_O)
        else:
            outputs_LO = onednn.product(inputs_LI, self.copy, self.bias_O, room_LO)
        first = 0
        for part in self.parts:
            behind = first + len(part.weight_OI)
            if part.low_rank is not None:
                _add_adapter(outputs_LO[:, first:behind], inputs_LI, part.low_rank)
            first = behind
        return outputs_LO


@dataclass(frozen=True, slots=True)
class LayerMatrices:
    query_key_value: Matrix
    output: Matrix
    gate_up: Matrix
    down: Matrix


def layer_matrices(family: Family, *, copies: bool) -> list[LayerMatrices]:
    cut = IN_A_LAYER if copies else None
    return [
        LayerMatrices(
            _matrix(layer.query_key_value, cut),
            _matrix(Stack((layer.output,)), cut),
            _matrix(layer.gate_up, cut),
            _matrix(Stack((layer.down,)), cut),
        )
        for layer in family.layers
    ]


def head_matrix(family: Family, *, copies: bool) -> Matrix:
    return _matrix(Stack((family.head,)), IN_THE_HEAD if copies else None)


def _matrix(stack: Stack, cut: Cut | None) -> Matrix:
    weight_OI = stack.weight()
    bias_O = None if weight_OI is None else stack.bias()
    copy = None
    if cut is not None and weight_OI is not None and onednn.usable(weight_OI):
        copy = onednn.lay_out(weight_OI, cut)
    return Matrix(stack.parts, weight_OI, bias_O, copy)


def copied_bytes(family: Family) -> int:
    """Of all copies together."""
    return sum(projection.weight_OI.nbytes for projection in family.projections)


def _add_adapter(outputs_LO: Tensor, inputs_LI: Tensor, adapter: LowRank) -> None:
    low_LK = linear(inputs_LI.to(adapter.down_KI.dtype), adapter.down_KI)
    outputs_LO.add_(linear(low_LK, adapter.up_OK), alpha=adapter.scale)
