"""Float32 matrix products on a CPU by oneDNN, which is a tenth to a third faster at them than what torch calls itself.

torch has the operations for its own compiler. They are used while they are declared as they were known here; elsewhere,
and for every other dtype, `usable` is False and the caller calls torch. Both give the same product, except for
rounding.

Shape legend: N rows, I inputs, O outputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

PRODUCT = (
    "mkldnn::_linear_pointwise(Tensor X, Tensor W, Tensor? B, str attr, Scalar?[] scalars, str? algorithm) -> Tensor Y"
)
LAYOUT = "mkldnn::_reorder_linear_weight(Tensor self, int? batch_size=None) -> Tensor Y"


def usable(weight_OI: Tensor) -> bool:
    # of a slice of columns the product is hundreds of times slower
    return (
        weight_OI.dtype == torch.float32 and weight_OI.device.type == "cpu" and weight_OI.is_contiguous() and _known()
    )


@dataclass(frozen=True, slots=True)
class Cut:
    """How many numbers of a matrix a product takes at a time. The inputs of one go are added up one by one, and each
    sum is rounded: the fewer, the finer, and the slower."""

    inputs: int
    outputs: int | None = None  # None: all


@dataclass(frozen=True, slots=True, eq=False)
class LaidOut:
    """A copy of a weight in the order in which products read it; nothing but `product` can read it."""

    blocks: tuple[tuple[Tensor, ...], ...]  # of outputs, each in parts of the inputs

    @property
    def outputs(self) -> int:
        return sum(len(parts[0]) for parts in self.blocks)


def lay_out(weight_OI: Tensor, cut: Cut) -> LaidOut:
    outputs, inputs = weight_OI.shape
    blocks = weight_OI.chunk(-(-outputs // (cut.outputs or outputs)))
    count = -(-inputs // cut.inputs)
    return LaidOut(
        tuple(
            tuple(torch.ops.mkldnn._reorder_linear_weight(part_oi.contiguous()) for part_oi in block_oI.chunk(count, 1))
            for block_oI in blocks
        )
    )


def product(inputs_NI: Tensor, weight: LaidOut, bias_O: Tensor | None, room_NO: Tensor | None = None) -> Tensor:
    """outputs_NO = inputs @ weight^T + bias; of several blocks in `room_NO`, if it is given."""
    if len(weight.blocks) == 1:
        return _sum_of_parts(inputs_NI, weight.blocks[0], bias_O)
    outputs_NO = inputs_NI.new_empty(len(inputs_NI), weight.outputs) if room_NO is None else room_NO
    first = 0
    for parts in weight.blocks:
        here = slice(first, first + len(parts[0]))
        outputs_NO[:, here] = _sum_of_parts(inputs_NI, parts, None if bias_O is None else bias_O[here])
        first = here.stop
    return outputs_NO


def _sum_of_parts(inputs_NI: Tensor, parts: tuple[Tensor, ...], bias_O: Tensor | None) -> Tensor:
    if len(parts) == 1:
        return _product(inputs_NI, parts[0], bias_O)
    inputs = inputs_NI.split_with_sizes([part_OI.shape[1] for part_OI in parts], dim=1)
    outputs_NO = _product(inputs[0], parts[0], bias_O)
    for inputs_Ni, part_OI in zip(inputs[1:], parts[1:], strict=True):
        outputs_NO += _product(inputs_Ni, part_OI, None)
    return outputs_NO


def gradient_of_inputs(doutputs_NO: Tensor, weight_OI: Tensor) -> Tensor:
    """dinputs_NI = doutputs @ weight, of a weight as it is."""
    return _product(doutputs_NO, weight_OI.T, None)


def _product(inputs_NI: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> Tensor:
    outputs_NO: Tensor = torch.ops.mkldnn._linear_pointwise(inputs_NI, weight_OI, bias_O, "none", [], "")
    return outputs_NO


@cache
def _known() -> bool:
    # of other processors nothing was measured
    available = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if not available or not torch.backends.cpu.get_cpu_capability().startswith("AVX"):
        return False
    operations = (torch.ops.mkldnn, "_linear_pointwise", PRODUCT), (torch.ops.mkldnn, "_reorder_linear_weight", LAYOUT)
    return all(
        hasattr(names, name) and str(getattr(names, name).default._schema) == declared
        for names, name, declared in operations
    )
