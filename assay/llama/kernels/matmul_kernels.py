"""Matmuls of few rows with their neighbours fused in: a norm before, silu * up or the residual behind.

The norm is cut in two. Whoever changes the states also writes them times the weight of the coming norm, and sums of
their squares, a part for each tile of columns; whoever reads them multiplies by the reciprocal root at the very end,
which a row's norm allows. So no program must see a whole row before it can begin.

From Hopper on (DEPENDENT) a kernel may be launched while the one before still runs; it fetches weights, waits for the
end of that kernel by itself, and only then lets its own successor begin: if it did so earlier, several kernels would
wait on the processors at once and be in each other's way, as was measured.

Every sum has an order that the shapes fix: equal inputs give equal bits.

Shape legend: B rows, D hidden size, O outputs, I inputs, P parts of a row's sum of squares; within a program M rows,
N outputs, K inputs of a tile.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from assay.llama.kernels.decode_small import gated

LINE_BYTES = tl.constexpr(128)  # what memory hands over at a time


@triton.jit
def _prefetch(weight, outputs_N, start, INPUTS: tl.constexpr, LINES: tl.constexpr):
    """Asks for the weights of a tile, which wait for nobody, while the kernel before still computes."""
    line: tl.constexpr = LINE_BYTES // (weight.dtype.element_ty.primitive_bitwidth // 8)
    inputs_L = tl.minimum(start + tl.arange(0, LINES) * line, INPUTS - 1)
    addresses_NL = weight + outputs_N[:, None] * INPUTS + inputs_L[None, :]
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;",
        "=r,l",
        [addresses_NL.to(tl.int64)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def _block(addresses, places, INPUTS: tl.constexpr, EVEN: tl.constexpr):
    """A block of inputs; behind the last input there are zeros."""
    if EVEN:
        return tl.load(addresses)
    return tl.load(addresses, mask=places < INPUTS, other=0.0)


@triton.jit(do_not_specialize=["parts"])
def normed_kernel(
    weighted,  # [B, D]: states times the norm's weight
    squares,  # [P, B]: parts of the sum of the states' squares
    weight,  # [O, D], or gates and ups [2 * O, D]
    bias,  # [O] or [2 * O]
    out,  # [B, O]
    rows,
    outputs,
    parts,
    epsilon,
    INPUTS: tl.constexpr,
    PARTS: tl.constexpr,  # a power of two
    GATED: tl.constexpr,
    BIAS: tl.constexpr,
    EVEN: tl.constexpr,
    LINES: tl.constexpr,  # of a row of weights, to be fetched early
    DEPENDENT: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
):
    row_tile = tl.program_id(0)  # the fastest: neighbours share weights, which come from farther away than rows
    output_tile = tl.program_id(1)
    rows_M = row_tile * M + tl.arange(0, M)
    outputs_N = output_tile * N + tl.arange(0, N)
    held_M = tl.minimum(rows_M, rows - 1)
    held_N = tl.minimum(outputs_N, outputs - 1)
    if DEPENDENT:
        if row_tile == 0:
            _prefetch(weight, held_N, 0, INPUTS, LINES)
            if GATED:
                _prefetch(weight + outputs * INPUTS, held_N, 0, INPUTS, LINES)
        gdc_wait()
        gdc_launch_dependents()
    parts_P = tl.arange(0, PARTS)
    squares_MP = tl.load(squares + parts_P[None, :] * rows + held_M[:, None], mask=parts_P[None, :] < parts, other=0.0)
    inputs_K = tl.arange(0, K)
    left = weighted + held_M[:, None] * INPUTS + inputs_K[None, :]
    right = weight + held_N[None, :] * INPUTS + inputs_K[:, None]
    sums_MN = tl.zeros((M, N), tl.float32)
    ups_MN = tl.zeros((M, N), tl.float32)
    for first in range(0, INPUTS, K):
        left_MK = _block(left + first, first + inputs_K[None, :], INPUTS, EVEN)
        right_KN = _block(right + first, first + inputs_K[:, None], INPUTS, EVEN)
        sums_MN = tl.dot(left_MK, right_KN, sums_MN, input_precision="ieee")
        if GATED:
            second_KN = _block(right + outputs * INPUTS + first, first + inputs_K[:, None], INPUTS, EVEN)
            ups_MN = tl.dot(left_MK, second_KN, ups_MN, input_precision="ieee")
    scale_M = tl.rsqrt(tl.sum(squares_MP, axis=1) / INPUTS + epsilon)
    sums_MN = sums_MN * scale_M[:, None]
    if BIAS:
        sums_MN += tl.load(bias + held_N)[None, :].to(tl.float32)
    if GATED:
        ups_MN = ups_MN * scale_M[:, None]
        if BIAS:
            ups_MN += tl.load(bias + outputs + held_N)[None, :].to(tl.float32)
        dtype = out.dtype.element_ty
        sums_MN = gated(sums_MN.to(dtype).to(tl.float32), ups_MN.to(dtype).to(tl.float32), dtype)
    within_MN = (rows_M < rows)[:, None] & (outputs_N < outputs)[None, :]
    tl.store(out + rows_M[:, None] * outputs + outputs_N[None, :], sums_MN.to(out.dtype.element_ty), mask=within_MN)


@triton.jit
def residual_kernel(
    table,  # [B, I]
    weight,  # [D, I]
    bias,  # [D]
    states,  # [B, D]: read and written
    norm,  # [D]: the weight of the coming norm
    weighted,  # [B, D]
    squares,  # [P, B]
    sums,  # [tiles, splits, M, N]: what the programs of a tile leave for the last of them
    arrivals,  # [tiles]: how many programs of a tile have arrived; all zero before and afterwards
    rows,
    outputs,
    INPUTS: tl.constexpr,
    SHARE: tl.constexpr,  # of the inputs, for each of the splits: a multiple of K
    BIAS: tl.constexpr,
    EVEN: tl.constexpr,
    STEP: tl.constexpr,  # 0: K divides the inputs, so that a block is there wholly or not at all
    LINES: tl.constexpr,
    DEPENDENT: tl.constexpr,
    SPLITS: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
):
    split = tl.program_id(0) % SPLITS
    row_tile = tl.program_id(0) // SPLITS
    output_tile = tl.program_id(1)
    rows_M = row_tile * M + tl.arange(0, M)
    outputs_N = output_tile * N + tl.arange(0, N)
    held_M = tl.minimum(rows_M, rows - 1)
    held_N = tl.minimum(outputs_N, outputs - 1)
    start = split * SHARE
    if DEPENDENT:
        if row_tile == 0:
            _prefetch(weight, held_N, start, INPUTS, LINES)
        gdc_wait()
        gdc_launch_dependents()
    inputs_K = tl.arange(0, K)
    left = table + held_M[:, None] * INPUTS + inputs_K[None, :]
    right = weight + held_N[None, :] * INPUTS + inputs_K[:, None]
    sums_MN = tl.zeros((M, N), tl.float32)
    for block in range(SHARE // K):
        first = start + block * K
        left_MK = _block(left + first, first + inputs_K[None, :] * STEP, INPUTS, EVEN)
        right_KN = _block(right + first, first + inputs_K[:, None] * STEP, INPUTS, EVEN)
        sums_MN = tl.dot(left_MK, right_KN, sums_MN, input_precision="ieee")
    if SPLITS > 1:
        tile = output_tile * (tl.num_programs(0) // SPLITS) + row_tile
        place_MN = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
        mine = sums + tile.to(tl.int64) * (SPLITS * M * N)
        tl.store(mine + split * (M * N) + place_MN, sums_MN)
        tl.debug_barrier()  # every thread of this program has stored before one of them says so
        arrived = tl.atomic_add(arrivals + tile, 1, sem="acq_rel")
        if arrived == SPLITS - 1:
            tl.store(arrivals + tile, 0)
            sums_MN = tl.zeros((M, N), tl.float32)
            for other in range(SPLITS):
                sums_MN += tl.load(mine + other * (M * N) + place_MN, cache_modifier=".cg")
            _add(sums_MN, bias, states, norm, weighted, squares, rows, outputs, rows_M, outputs_N, output_tile, BIAS)
    else:
        _add(sums_MN, bias, states, norm, weighted, squares, rows, outputs, rows_M, outputs_N, output_tile, BIAS)


@triton.jit
def _add(
    sums_MN,
    bias,
    states,
    norm,
    weighted,
    squares,
    rows,
    outputs,
    rows_M,
    outputs_N,
    output_tile,
    BIAS: tl.constexpr,
):
    """Adds a tile to the states and writes what the coming norm wants to know."""
    dtype = states.dtype.element_ty
    held_N = tl.minimum(outputs_N, outputs - 1)
    if BIAS:
        sums_MN += tl.load(bias + held_N)[None, :].to(tl.float32)
    within_MN = (rows_M < rows)[:, None] & (outputs_N < outputs)[None, :]
    place_MN = rows_M[:, None] * outputs + outputs_N[None, :]
    old_MN = tl.load(states + place_MN, mask=within_MN, other=0.0).to(tl.float32)
    new_MN = (old_MN + sums_MN.to(dtype).to(tl.float32)).to(dtype)
    tl.store(states + place_MN, new_MN, mask=within_MN)
    exact_MN = tl.where(within_MN, new_MN.to(tl.float32), 0.0)
    norm_N = tl.load(norm + held_N).to(tl.float32)
    tl.store(weighted + place_MN, (exact_MN * norm_N[None, :]).to(dtype), mask=within_MN)
    tl.store(squares + output_tile * rows + rows_M, tl.sum(exact_MN * exact_MN, axis=1), mask=rows_M < rows)
