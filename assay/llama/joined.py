"""Projections of one input as one matrix product, with the gradient of each parameter; and the gate with what follows.

On a CPU oneDNN computes float32 gradients of inputs: it is faster, and torch's own product, which is more exact, stays
where the trainer's numbers have to be the sampler's.

Shape legend: N tokens, I inputs, O outputs of all parts, M width of the gate, J = 2 M, D hidden size, K ranks of all
adapters.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from assay.llama.family import LowRank, Projection, Stack
from assay.llama.kernels import onednn


def project(inputs_NI: Tensor, projection: Projection) -> Tensor:
    """outputs_NO"""
    weight_OI, bias_O, adapter = projection.weight_OI, projection.bias_O, projection.low_rank
    if onednn.usable(weight_OI):
        outputs_NO = _Product.apply(inputs_NI, weight_OI, bias_O)  # type: ignore[no-untyped-call]
    else:
        outputs_NO = linear(inputs_NI, weight_OI, bias_O)
    return outputs_NO if adapter is None else _add_low_rank(inputs_NI, outputs_NO, adapter.down_KI, _scaled_up(adapter))


def project_all(inputs_NI: Tensor, stack: Stack) -> Tensor:
    """outputs_NO of all parts, side by side."""
    weight_OI = stack.weight()
    if weight_OI is None:  # a copied model: its parameters lie apart
        return torch.cat([project(inputs_NI, part) for part in stack.parts], dim=1)
    bias_O = stack.bias()
    parameters = [part.weight_OI for part in stack.parts]
    if bias_O is not None:
        parameters += [part.bias_O for part in stack.parts if part.bias_O is not None]
    outputs_NO: Tensor = _Joined.apply(inputs_NI, weight_OI, bias_O, stack.widths, *parameters)  # type: ignore[no-untyped-call]
    adapters = [part.low_rank for part in stack.parts]
    present = [adapter for adapter in adapters if adapter is not None]
    if not present:
        return outputs_NO
    # each adapter reaches its own part alone: their second matrices are the blocks of one, zero elsewhere
    ups = [
        part.weight_OI.new_zeros(width, 0) if adapter is None else _scaled_up(adapter)
        for part, width, adapter in zip(stack.parts, stack.widths, adapters, strict=True)
    ]
    up_OK: Tensor = torch.block_diag(*ups)  # type: ignore[no-untyped-call]
    return _add_low_rank(inputs_NI, outputs_NO, torch.cat([adapter.down_KI for adapter in present]), up_OK)


def _scaled_up(adapter: LowRank) -> Tensor:
    return adapter.up_OK * adapter.scale


def _add_low_rank(inputs_NI: Tensor, outputs_NO: Tensor, down_KI: Tensor, up_OK: Tensor) -> Tensor:
    low_NK = linear(inputs_NI.to(down_KI.dtype), down_KI)
    return (outputs_NO + linear(low_NK, up_OK.to(low_NK.dtype))).to(outputs_NO.dtype)


class _Product(torch.autograd.Function):
    """A product whose gradient of the inputs oneDNN computes."""

    @staticmethod
    def forward(ctx: Any, inputs_NI: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> Any:
        ctx.save_for_backward(inputs_NI, weight_OI)
        return linear(inputs_NI, weight_OI, bias_O)

    @staticmethod
    def backward(ctx: Any, doutputs_NO: Tensor) -> Any:
        inputs_NI, weight_OI = ctx.saved_tensors
        of_inputs, of_weight, of_bias = ctx.needs_input_grad
        return (
            onednn.gradient_of_inputs(doutputs_NO, weight_OI) if of_inputs else None,
            doutputs_NO.T @ inputs_NI if of_weight else None,
            doutputs_NO.sum(0) if of_bias else None,
        )


class _Joined(torch.autograd.Function):
    """One product with the joined weights; their gradient is one product too, handed out in slices."""

    @staticmethod
    def forward(
        ctx: Any, inputs_NI: Tensor, weight_OI: Tensor, bias_O: Tensor | None, widths: tuple[int, ...], *each: Tensor
    ) -> Any:
        ctx.save_for_backward(inputs_NI, weight_OI)
        ctx.widths, ctx.has_bias = widths, bias_O is not None
        return linear(inputs_NI, weight_OI, bias_O)

    @staticmethod
    def backward(ctx: Any, doutputs_NO: Tensor) -> Any:
        inputs_NI, weight_OI = ctx.saved_tensors
        dinputs_NI = None
        if ctx.needs_input_grad[0]:
            fast = onednn.usable(weight_OI)
            dinputs_NI = onednn.gradient_of_inputs(doutputs_NO, weight_OI) if fast else doutputs_NO @ weight_OI
        parts = len(ctx.widths)
        wanted = ctx.needs_input_grad[4:]
        gradients: list[Tensor | None] = [None] * len(wanted)
        if any(wanted[:parts]):
            gradients[:parts] = torch.split(doutputs_NO.T @ inputs_NI, ctx.widths)
        if ctx.has_bias and any(wanted[parts:]):
            gradients[parts:] = torch.split(doutputs_NO.sum(0), ctx.widths)
        return (dinputs_NI, None, None, None, *gradients)


class GatedProjection(torch.autograd.Function):
    """(silu(gate) * up) @ down^T with a kernel for the gate. The gate's output is computed again in the backward
    pass, which reads gate and up anyway: it is a third of all that a layer would keep."""

    @staticmethod
    def forward(ctx: Any, gate_up_NJ: Tensor, down_DM: Tensor, bias_D: Tensor | None) -> Any:
        from assay.llama.kernels.gate import gated_forward

        ctx.save_for_backward(gate_up_NJ, down_DM)
        return linear(gated_forward(gate_up_NJ), down_DM, bias_D)

    @staticmethod
    def backward(ctx: Any, doutputs_ND: Tensor) -> Any:
        from assay.llama.kernels.gate import gated_backward

        gate_up_NJ, down_DM = ctx.saved_tensors
        dgated_NM = doutputs_ND @ down_DM
        gated_NM = torch.empty_like(dgated_NM) if ctx.needs_input_grad[1] else None
        dgate_up_NJ = gated_backward(gate_up_NJ, dgated_NM, gated_NM)
        ddown_DM = None if gated_NM is None else doutputs_ND.T @ gated_NM
        return dgate_up_NJ, ddown_DM, doutputs_ND.sum(0) if ctx.needs_input_grad[2] else None
