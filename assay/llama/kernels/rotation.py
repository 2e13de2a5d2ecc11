"""Rotates joined queries and keys by their positions, after the norm of each head where there is one, with the
backward pass. Values stand behind them and stay as they are.

    left' = left cos - right sin;  right' = right cos + left sin      of the halves of a head

Shape legend: N tokens, C queries, keys and values side by side, T heads that are turned (of queries and of keys),
W width of a head, F half of it, P programs.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

PROGRAMS = 1056  # of the backward pass with norms: see kernels/norm.py


def rotate_heads(
    joined_NC: Tensor,
    cosines_NF: Tensor,
    sines_NF: Tensor,
    heads: int,
    key_heads: int,
    query_norm_W: Tensor | None,
    key_norm_W: Tensor | None,
    epsilon: float,
) -> Tensor:
    """turned_NC. Without norms the input itself is overwritten: nothing needs it any more, and a value is kept once."""
    if query_norm_W is None or key_norm_W is None:
        return _Rotated.apply(joined_NC, cosines_NF, sines_NF, heads + key_heads)  # type: ignore[no-any-return]
    return _NormedRotated.apply(  # type: ignore[no-any-return]
        joined_NC, cosines_NF, sines_NF, heads, key_heads, query_norm_W, key_norm_W, epsilon
    )


class _Rotated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, joined_NC: Tensor, cosines_NF: Tensor, sines_NF: Tensor, turning: int) -> Any:
        ctx.save_for_backward(cosines_NF, sines_NF)
        ctx.turning = turning
        ctx.mark_dirty(joined_NC)
        _launch_turn(joined_NC, joined_NC, cosines_NF, sines_NF, turning, turning)
        return joined_NC

    @staticmethod
    def backward(ctx: Any, dturned_NC: Tensor) -> Any:
        cosines_NF, sines_NF = ctx.saved_tensors
        djoined_NC = dturned_NC.clone(memory_format=torch.contiguous_format)
        _launch_turn(djoined_NC, djoined_NC, cosines_NF, sines_NF, ctx.turning, ctx.turning, back=True)
        return djoined_NC, None, None, None


class _NormedRotated(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, joined_NC: Tensor, cosines_NF: Tensor, sines_NF: Tensor, heads: int, key_heads: int,
        query_norm_W: Tensor, key_norm_W: Tensor, epsilon: float,
    ) -> Any:  # fmt: skip
        joined_NC = joined_NC.contiguous()
        turned_NC = joined_NC.clone()
        norms_2W = torch.stack([query_norm_W, key_norm_W])
        ctx.save_for_backward(joined_NC, cosines_NF, sines_NF, norms_2W)
        ctx.shape = heads, key_heads, epsilon
        _launch_turn(joined_NC, turned_NC, cosines_NF, sines_NF, heads, heads + key_heads, norms_2W, epsilon)
        return turned_NC

    @staticmethod
    def backward(ctx: Any, dturned_NC: Tensor) -> Any:
        joined_NC, cosines_NF, sines_NF, norms_2W = ctx.saved_tensors
        heads, key_heads, epsilon = ctx.shape
        rows, half = cosines_NF.shape
        dturned_NC = dturned_NC.contiguous()
        djoined_NC = dturned_NC.clone()
        programs = max(min(PROGRAMS, rows), 1)
        partial_P2W = torch.empty(programs, 2, 2 * half, dtype=torch.float32, device=joined_NC.device)
        _normed_backward[(programs,)](
            joined_NC, dturned_NC, djoined_NC, cosines_NF, sines_NF, norms_2W, partial_P2W, joined_NC.shape[1], epsilon,
            heads, heads + key_heads, rows, -(-rows // programs),
            HEADS=triton.next_power_of_2(heads + key_heads), HALF=half, BLOCK=triton.next_power_of_2(half), num_warps=4,
        )  # fmt: skip
        dquery_W, dkey_W = partial_P2W.sum(0).to(norms_2W.dtype)
        return djoined_NC, None, None, None, None, dquery_W, dkey_W, None


def _launch_turn(
    source_NC: Tensor, target_NC: Tensor, cosines_NF: Tensor, sines_NF: Tensor, heads: int, turning: int,
    norms_2W: Tensor | None = None, epsilon: float = 0.0, back: bool = False,
) -> None:  # fmt: skip
    rows, half = cosines_NF.shape
    if rows:
        _turn[(rows,)](
            source_NC, target_NC, cosines_NF, sines_NF, norms_2W, source_NC.shape[1], epsilon, heads, turning,
            NORMED=norms_2W is not None, BACK=back, HEADS=triton.next_power_of_2(turning), HALF=half,
            BLOCK=triton.next_power_of_2(half), num_warps=4,
        )  # fmt: skip


@triton.jit
def _turn(
    source, target, cosines, sines, norms, width, epsilon, heads, turning,
    NORMED: tl.constexpr, BACK: tl.constexpr, HEADS: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    head = tl.arange(0, HEADS)[:, None]
    lane = tl.arange(0, BLOCK)[None, :]
    inside = (head < turning) & (lane < HALF)
    kind = target.dtype.element_ty
    place = row * width + head * (2 * HALF) + lane
    left = tl.load(source + place, mask=inside, other=0.0).to(tl.float32)
    right = tl.load(source + place + HALF, mask=inside, other=0.0).to(tl.float32)
    if NORMED:
        scale = tl.rsqrt((tl.sum(left * left, 1) + tl.sum(right * right, 1)) / (2 * HALF) + epsilon)[:, None]
        factor = norms + tl.where(head >= heads, 2 * HALF, 0) + lane
        left_factor = tl.load(factor, mask=inside, other=0.0).to(tl.float32)
        right_factor = tl.load(factor + HALF, mask=inside, other=0.0).to(tl.float32)
        left = (left_factor * (left * scale).to(kind).to(tl.float32)).to(kind).to(tl.float32)
        right = (right_factor * (right * scale).to(kind).to(tl.float32)).to(kind).to(tl.float32)
    cosine = tl.load(cosines + row * HALF + lane, mask=lane < HALF, other=0.0)
    sine = tl.load(sines + row * HALF + lane, mask=lane < HALF, other=0.0)
    if BACK:
        sine = -sine
    tl.store(target + place, (left * cosine - right * sine).to(kind), mask=inside)
    tl.store(target + place + HALF, (right * cosine + left * sine).to(kind), mask=inside)


@triton.jit
def _normed_backward(
    source, dturned, gradients, cosines, sines, norms, partial, width, epsilon, heads, turning, rows, share,
    HEADS: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    head = tl.arange(0, HEADS)[:, None]
    lane = tl.arange(0, BLOCK)[None, :]
    inside = (head < turning) & (lane < HALF)
    is_query = (head < heads) & inside
    is_key = (head >= heads) & inside
    factor = norms + tl.where(head >= heads, 2 * HALF, 0) + lane
    left_factor = tl.load(factor, mask=inside, other=0.0).to(tl.float32)
    right_factor = tl.load(factor + HALF, mask=inside, other=0.0).to(tl.float32)
    left_query = tl.zeros((BLOCK,), dtype=tl.float32)
    right_query = tl.zeros((BLOCK,), dtype=tl.float32)
    left_key = tl.zeros((BLOCK,), dtype=tl.float32)
    right_key = tl.zeros((BLOCK,), dtype=tl.float32)
    first = program.to(tl.int64) * share
    for step in range(tl.minimum(share, rows - program * share)):
        row = first + step
        place = row * width + head * (2 * HALF) + lane
        left = tl.load(source + place, mask=inside, other=0.0).to(tl.float32)
        right = tl.load(source + place + HALF, mask=inside, other=0.0).to(tl.float32)
        scale = tl.rsqrt((tl.sum(left * left, 1) + tl.sum(right * right, 1)) / (2 * HALF) + epsilon)[:, None]
        left, right = left * scale, right * scale
        cosine = tl.load(cosines + row * HALF + lane, mask=lane < HALF, other=0.0)
        sine = tl.load(sines + row * HALF + lane, mask=lane < HALF, other=0.0)
        dleft = tl.load(dturned + place, mask=inside, other=0.0).to(tl.float32)
        dright = tl.load(dturned + place + HALF, mask=inside, other=0.0).to(tl.float32)
        dleft, dright = dleft * cosine + dright * sine, dright * cosine - dleft * sine
        left_query += tl.sum(tl.where(is_query, dleft * left, 0.0), 0)
        right_query += tl.sum(tl.where(is_query, dright * right, 0.0), 0)
        left_key += tl.sum(tl.where(is_key, dleft * left, 0.0), 0)
        right_key += tl.sum(tl.where(is_key, dright * right, 0.0), 0)
        dleft, dright = dleft * left_factor, dright * right_factor
        mean = ((tl.sum(dleft * left, 1) + tl.sum(dright * right, 1)) / (2 * HALF))[:, None]
        tl.store(gradients + place, (scale * (dleft - left * mean)).to(gradients.dtype.element_ty), mask=inside)
        tl.store(
            gradients + place + HALF, (scale * (dright - right * mean)).to(gradients.dtype.element_ty), mask=inside
        )
    lanes = tl.arange(0, BLOCK)
    sums = partial + program * (4 * HALF) + lanes
    tl.store(sums, left_query, mask=lanes < HALF)
    tl.store(sums + HALF, right_query, mask=lanes < HALF)
    tl.store(sums + 2 * HALF, left_key, mask=lanes < HALF)
    tl.store(sums + 3 * HALF, right_key, mask=lanes < HALF)
