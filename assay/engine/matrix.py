"""A matrix of the policy as the decoder on a CPU multiplies with it, for the length of one call.

Projections of the same input are one matrix. It is the trainer's own memory, or a copy in the order in which the
processor reads it fastest: that costs as much as one or two products, and each product is a fifth shorter after it.

Shape legend: L lanes, I inputs, O outputs, K rank of an adapter.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import linear

from assay.kernels import onednn
from assay.policy.family import Family, Projection, Stack
from assay.policy.joined import project


@dataclass(frozen=True, slots=True, eq=False)
class Matrix:
    parts: tuple[Projection, ...]
    weight_OI: Tensor | None  # of all parts; None: they lie apart, and are multiplied one by one
    bias_O: Tensor | None
    copy: tuple[Tensor, ...] | None  # of the weight, laid out

    def product(self, inputs_LI: Tensor) -> Tensor:
        """outputs_LO of all parts, one behind the other."""
        if self.weight_OI is None:
            return torch.cat([project(inputs_LI, part) for part in self.parts], dim=1)
        if self.copy is None:
            outputs_LO = linear(inputs_LI, self.weight_OI, self.bias_O)
        else:
            outputs_LO = onednn.product(inputs_LI, self.copy, self.bias_O)
        first = 0
        for part in self.parts:
            width = len(part.weight_OI)
            _add_adapter(outputs_LO[:, first : first + width], inputs_LI, part)
            first += width
        return outputs_LO


@dataclass(frozen=True, slots=True)
class LayerMatrices:
    query_key_value: Matrix
    output: Matrix
    gate_up: Matrix
    down: Matrix


def layer_matrices(family: Family, *, copies: bool) -> list[LayerMatrices]:
    return [
        LayerMatrices(
            _stacked(layer.query_key_value, copies),
            single(layer.output, copies=copies),
            _stacked(layer.gate_up, copies),
            single(layer.down, copies=copies),
        )
        for layer in family.layers
    ]


def single(projection: Projection, *, copies: bool) -> Matrix:
    return _matrix((projection,), projection.weight_OI.detach(), projection.bias_O, copies)


def _stacked(stack: Stack, copies: bool) -> Matrix:
    weight_OI = stack.weight()
    return _matrix(stack.parts, weight_OI, None if weight_OI is None else stack.bias(), copies)


def _matrix(parts: tuple[Projection, ...], weight_OI: Tensor | None, bias_O: Tensor | None, copies: bool) -> Matrix:
    copied = copies and weight_OI is not None and onednn.usable(weight_OI)
    return Matrix(parts, weight_OI, bias_O, onednn.laid_out(weight_OI) if copied and weight_OI is not None else None)


def copied_bytes(family: Family) -> int:
    """What all copies take."""
    stacks: Iterable[Projection] = (part for stack in family.stacks for part in stack.parts)
    singles = (projection for layer in family.layers for projection in (layer.output, layer.down))
    return sum(part.weight_OI.nbytes for part in (*stacks, *singles, family.head))


def _add_adapter(outputs_LO: Tensor, inputs_LI: Tensor, projection: Projection) -> None:
    if projection.low_rank is not None:
        adapter = projection.low_rank
        low_LK = linear(inputs_LI.to(adapter.down_KI.dtype), adapter.down_KI)
        outputs_LO.add_(linear(low_LK, adapter.up_OK), alpha=adapter.scale)
