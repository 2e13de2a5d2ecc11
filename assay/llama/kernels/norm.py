"""Adds to the residual stream and norms the sum, in one pass, with the backward pass.

    sum = states + delta;  normed = weight * round(sum / sqrt(mean(sum^2) + epsilon))

Everything is computed in float32 and rounded where the torch expressions of llama/forward.py round: the sum before it
is normed, the quotient before it is weighed. The gradient of the weight is a sum over tokens; each program adds up its
own rows in order, so it has the same bits every time.

Shape legend: N tokens, D hidden size, P programs.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

PROGRAMS = 528  # of the backward pass: four for each multiprocessor of a large device, and few partial sums


def add_norm(states_ND: Tensor, delta_ND: Tensor | None, weight_D: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """(sum_ND, normed_ND); without a delta the sum is the states themselves."""
    return _AddNorm.apply(states_ND, delta_ND, weight_D, epsilon)  # type: ignore[no-any-return]


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states_ND: Tensor, delta_ND: Tensor | None, weight_D: Tensor, epsilon: float) -> Any:
        sums_ND, normed_ND, scales_N = _launch_forward(states_ND, delta_ND, weight_D, epsilon)
        ctx.save_for_backward(sums_ND, weight_D, scales_N)
        ctx.set_materialize_grads(False)
        # also without a delta the sum is handed on from here: the gradients of both outputs are added in float32, so
        # that they have the same bits wherever the sum was made
        return (sums_ND.view_as(sums_ND) if delta_ND is None else sums_ND), normed_ND

    @staticmethod
    def backward(ctx: Any, dsums_ND: Tensor | None, dnormed_ND: Tensor) -> Any:
        sums_ND, weight_D, scales_N = ctx.saved_tensors
        dstates_ND, dweight_D = _launch_backward(
            sums_ND, weight_D, scales_N, dnormed_ND, dsums_ND, ctx.needs_input_grad[2]
        )
        return dstates_ND, dstates_ND if ctx.needs_input_grad[1] else None, dweight_D, None


def _launch_forward(
    states_ND: Tensor, delta_ND: Tensor | None, weight_D: Tensor, epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    rows, width = states_ND.shape
    states_ND = states_ND.contiguous()
    delta_ND = None if delta_ND is None else delta_ND.contiguous()
    sums_ND = states_ND if delta_ND is None else torch.empty_like(states_ND)
    normed_ND = torch.empty_like(states_ND)
    scales_N = torch.empty(rows, dtype=torch.float32, device=states_ND.device)
    if rows:
        _add_norm_forward[(rows,)](
            states_ND, states_ND if delta_ND is None else delta_ND, weight_D, sums_ND, normed_ND, scales_N,
            width, epsilon, ADD=delta_ND is not None, BLOCK=triton.next_power_of_2(width), num_warps=4,
        )  # fmt: skip
    return sums_ND, normed_ND, scales_N


def _launch_backward(
    sums_ND: Tensor, weight_D: Tensor, scales_N: Tensor, dnormed_ND: Tensor, dsums_ND: Tensor | None, weigh: bool
) -> tuple[Tensor, Tensor | None]:
    rows, width = sums_ND.shape
    dstates_ND = torch.empty_like(sums_ND)
    programs = max(min(PROGRAMS, rows), 1)
    partial_PD = torch.empty(programs if weigh else 1, width, dtype=torch.float32, device=sums_ND.device)
    _add_norm_backward[(programs,)](
        sums_ND, weight_D, scales_N, dnormed_ND.contiguous(), dnormed_ND if dsums_ND is None else dsums_ND.contiguous(),
        dstates_ND, partial_PD, rows, width, -(-rows // programs),
        ADD=dsums_ND is not None, WEIGH=weigh, BLOCK=triton.next_power_of_2(width), num_warps=4,
    )  # fmt: skip
    return dstates_ND, partial_PD.sum(0).to(weight_D.dtype) if weigh else None


@triton.jit
def _add_norm_forward(
    states, delta, weight, sums, normed, scales, width, epsilon, ADD: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    value = tl.load(states + row * width + columns, mask=inside, other=0.0)
    if ADD:
        added = tl.load(delta + row * width + columns, mask=inside, other=0.0)
        value = (value.to(tl.float32) + added.to(tl.float32)).to(sums.dtype.element_ty)
        tl.store(sums + row * width + columns, value, mask=inside)
    exact = value.to(tl.float32)
    scale = tl.rsqrt(tl.sum(exact * exact, 0) / width + epsilon)
    tl.store(scales + row, scale)
    factor = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    rounded = (exact * scale).to(normed.dtype.element_ty).to(tl.float32)
    tl.store(normed + row * width + columns, (factor * rounded).to(normed.dtype.element_ty), mask=inside)


@triton.jit
def _add_norm_backward(
    sums, weight, scales, dnormed, dsums, dstates, partial, rows, width, share,
    ADD: tl.constexpr, WEIGH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    factor = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    summed = tl.zeros((BLOCK,), dtype=tl.float32)
    first = program.to(tl.int64) * share
    for step in range(tl.minimum(share, rows - program * share)):
        row = first + step
        place = row * width + columns
        scale = tl.load(scales + row)
        quotient = tl.load(sums + place, mask=inside, other=0.0).to(tl.float32) * scale
        gradient = tl.load(dnormed + place, mask=inside, other=0.0).to(tl.float32)
        if WEIGH:
            summed += gradient * quotient.to(sums.dtype.element_ty).to(tl.float32)
        gradient = gradient * factor
        change = scale * (gradient - quotient * (tl.sum(gradient * quotient, 0) / width))
        if ADD:
            change += tl.load(dsums + place, mask=inside, other=0.0).to(tl.float32)
        tl.store(dstates + place, change.to(dstates.dtype.element_ty), mask=inside)
    if WEIGH:
        tl.store(partial + program * width + columns, summed, mask=inside)
