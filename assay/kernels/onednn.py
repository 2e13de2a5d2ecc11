"""Float32 matrix products on a CPU by oneDNN, which is a tenth to a third faster at them than what torch calls itself.

torch has the operations for its own compiler. They are used while they are declared as they were known here; elsewhere,
and for every other dtype, whoever asks is told no and calls torch. Both give the numbers of the product, but for
rounding.

Shape legend: N rows, I inputs, O outputs.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

PRODUCT = (
    "mkldnn::_linear_pointwise(Tensor X, Tensor W, Tensor? B, str attr, Scalar?[] scalars, str? algorithm) -> Tensor Y"
)
# summed up one by one, more are rounded twice as coarsely as torch's own product does it
INPUTS_AT_A_TIME = 288
LAYOUT = "mkldnn::_reorder_linear_weight(Tensor self, int? batch_size=None) -> Tensor Y"


def usable(weight_OI: Tensor) -> bool:
    # of a slice of columns the product is hundreds of times slower
    return (
        weight_OI.dtype == torch.float32 and weight_OI.device.type == "cpu" and weight_OI.is_contiguous() and _known()
    )


def laid_out(weight_OI: Tensor) -> tuple[Tensor, ...]:
    """A copy in the order in which products read it, in parts of the inputs; nothing but `product` can read it."""
    count = -(-weight_OI.shape[1] // INPUTS_AT_A_TIME)
    return tuple(
        torch.ops.mkldnn._reorder_linear_weight(part_OI.contiguous()) for part_OI in weight_OI.chunk(count, dim=1)
    )


def product(inputs_NI: Tensor, parts: tuple[Tensor, ...], bias_O: Tensor | None) -> Tensor:
    """outputs_NO = inputs @ weight^T + bias, of a weight that `laid_out` has made."""
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
