"""silu(gate) * up of joined gates and ups, with the backward pass, one pass each.

Computed in float32; silu is rounded before it is multiplied, as the torch expression does.

Shape legend: N tokens, M width of the gate, J = 2 M gates and ups side by side.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from assay.llama.kernels.decode_small import BLOCK, gate_rows


def gate_and_up(gate_up_NJ: Tensor) -> Tensor:
    """gated_NM"""
    return _Gated.apply(gate_up_NJ)  # type: ignore[no-any-return]


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_up_NJ: Tensor) -> Any:
        gate_up_NJ = gate_up_NJ.contiguous()
        ctx.save_for_backward(gate_up_NJ)
        return gated_forward(gate_up_NJ)

    @staticmethod
    def backward(ctx: Any, dgated_NM: Tensor) -> Any:
        (gate_up_NJ,) = ctx.saved_tensors
        return gated_backward(gate_up_NJ, dgated_NM.contiguous(), None)


def gated_forward(gate_up_NJ: Tensor) -> Tensor:
    rows, width = gate_up_NJ.shape[0], gate_up_NJ.shape[1] // 2
    gated_NM = gate_up_NJ.new_empty(rows, width)
    if rows:
        gate_rows[(rows, triton.cdiv(width, BLOCK))](gate_up_NJ, gated_NM, width, DEPENDENT=False, BLOCK=BLOCK)
    return gated_NM


def gated_backward(gate_up_NJ: Tensor, dgated_NM: Tensor, again_NM: Tensor | None) -> Tensor:
    """dgate_up_NJ; into `again_NM` goes what the forward pass gave, for whoever did not keep it."""
    rows, width = dgated_NM.shape
    dgate_up_NJ = torch.empty_like(gate_up_NJ)
    if rows:
        _gate_backward[(rows, triton.cdiv(width, BLOCK))](
            gate_up_NJ, dgated_NM, dgate_up_NJ, dgated_NM if again_NM is None else again_NM, width,
            AGAIN=again_NM is not None, BLOCK=BLOCK, num_warps=4,
        )  # fmt: skip
    return dgate_up_NJ


@triton.jit
def _gate_backward(
    gate_up, dgated, dgate_up, again, width, AGAIN: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    gate = tl.load(gate_up + row * 2 * width + columns, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * width + width + columns, mask=inside, other=0.0).to(tl.float32)
    gradient = tl.load(dgated + row * width + columns, mask=inside, other=0.0).to(tl.float32)
    sigmoid = tl.sigmoid(gate)
    active = (gate * sigmoid).to(gate_up.dtype.element_ty).to(tl.float32)
    if AGAIN:
        tl.store(again + row * width + columns, (active * up).to(again.dtype.element_ty), mask=inside)
    dgate = gradient * up * sigmoid * (1.0 + gate * (1.0 - sigmoid))
    tl.store(dgate_up + row * 2 * width + columns, dgate.to(dgate_up.dtype.element_ty), mask=inside)
    tl.store(
        dgate_up + row * 2 * width + width + columns, (gradient * active).to(dgate_up.dtype.element_ty), mask=inside
    )
