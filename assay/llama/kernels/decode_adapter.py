"""Low-rank adapters beside the matmuls of a decoding step: outputs += scale * (inputs @ down^T) @ up^T.

Two kernels serve the adapters of up to three projections of one input (queries, keys and values; gate and up). The
first makes the few numbers of low rank, its inputs cut into shares; the second adds the shares up, always in the same
order, and raises them to the outputs. Both compute in the adapters' own dtype, which may be another than the model's;
where the outputs are rounded to 16 bits anyway, float32 adapters are multiplied by the tensor cores, in tf32.

Shape legend: L slots, I inputs, O outputs, R rank (padded), M slots of a tile, N outputs of a tile, K inputs at a time.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from assay.llama.kernels.decode_state import launch
from assay.llama.kernels.shared_memory import shared_memory

MOST = 3  # adapters side by side
SHARE = tl.constexpr(512)  # inputs
M = 16
N = 64
K = 64


@dataclass(frozen=True, slots=True, eq=False)
class Beside:
    """An adapter that adds to the columns first..last of an output."""

    first: int
    last: int
    down_RI: Tensor
    up_OR: Tensor
    scale: float

    @property
    def rank(self) -> int:
        return self.down_RI.shape[0]


@triton.jit
def _chosen(part, first, second, third):
    return tl.where(part == 0, first, tl.where(part == 1, second, third))


@triton.jit
def _lower(
    inputs, low, down_0, down_1, down_2, rank_0, rank_1, rank_2, slots,
    INPUTS: tl.constexpr, R: tl.constexpr, M: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """low[share, part, slot, rank] in float32."""
    if DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()
    part, share = tl.program_id(1), tl.program_id(2)
    slots_M = tl.program_id(0).to(tl.int64) * M + tl.arange(0, M)  # prompts have many tokens
    ranks_R = tl.arange(0, R)
    down = tl.multiple_of(_chosen(part, down_0, down_1, down_2), 16)
    rank = _chosen(part, rank_0, rank_1, rank_2)
    sums_MR = tl.zeros((M, R), tl.float32)
    for start in range(0, SHARE, K):
        inputs_K = share * SHARE + start + tl.arange(0, K)
        held_K = inputs_K < INPUTS
        held_MK = (slots_M < slots)[:, None] & held_K[None, :]
        inputs_MK = tl.load(inputs + slots_M[:, None] * INPUTS + inputs_K[None, :], mask=held_MK, other=0.0)
        held_RK = (ranks_R < rank)[:, None] & held_K[None, :]
        down_RK = tl.load(down + ranks_R[:, None] * INPUTS + inputs_K[None, :], mask=held_RK, other=0.0)
        sums_MR = tl.dot(inputs_MK.to(down_RK.dtype), tl.trans(down_RK), sums_MR, input_precision=PRECISION)
    rows_M = (share * tl.num_programs(1) + part) * slots + slots_M
    tl.store(low + rows_M[:, None] * R + ranks_R[None, :], sums_MR, mask=(slots_M < slots)[:, None])


@triton.jit
def _raise(
    low, outputs, up_0, up_1, up_2, rank_0, rank_1, rank_2, first_0, first_1, first_2, last_0, last_1, last_2,
    scale_0, scale_1, scale_2, slots, row, tiles_0, tiles_1,
    PARTS: tl.constexpr, SHARES: tl.constexpr, R: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    PRECISION: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    if DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()
    tile = tl.program_id(0)
    part = tl.where(tile < tiles_0, 0, tl.where(tile < tiles_0 + tiles_1, 1, 2))
    tile -= _chosen(part, 0, tiles_0, tiles_0 + tiles_1)
    up = tl.multiple_of(_chosen(part, up_0, up_1, up_2), 16)
    rank, scale = _chosen(part, rank_0, rank_1, rank_2), _chosen(part, scale_0, scale_1, scale_2)
    first, last = _chosen(part, first_0, first_1, first_2), _chosen(part, last_0, last_1, last_2)
    slots_M = tl.program_id(1).to(tl.int64) * M + tl.arange(0, M)
    held_M = slots_M < slots
    ranks_R = tl.arange(0, R)
    low_MR = tl.zeros((M, R), tl.float32)
    for share in range(SHARES):
        rows_M = (share * PARTS + part) * slots + slots_M
        low_MR += tl.load(low + rows_M[:, None] * R + ranks_R[None, :], mask=held_M[:, None], other=0.0)
    outputs_N = tile * N + tl.arange(0, N)
    held_N = outputs_N < last - first
    held_NR = held_N[:, None] & (ranks_R < rank)[None, :]
    up_NR = tl.load(up + outputs_N[:, None] * rank + ranks_R[None, :], mask=held_NR, other=0.0)
    added_MN = tl.dot(low_MR.to(up_NR.dtype), tl.trans(up_NR), input_precision=PRECISION)
    spots = outputs + slots_M[:, None] * row + first + outputs_N[None, :]
    held_MN = held_M[:, None] & held_N[None, :]
    sums_MN = tl.load(spots, mask=held_MN, other=0.0).to(tl.float32) + added_MN * scale
    tl.store(spots, sums_MN.to(outputs.dtype.element_ty), mask=held_MN)


def low_room(slots: int, stacks: Sequence[Sequence[Beside]], device: torch.device) -> Tensor:
    """Room for the numbers of low rank of any of these stacks."""
    sizes = [len(stack) * _shares(stack) * _padded_rank(stack) for stack in stacks if stack]
    return torch.zeros(slots * max(sizes), device=device)


def add_low_rank(inputs_LI: Tensor, outputs_LO: Tensor, adapters: Sequence[Beside], low: Tensor) -> None:
    """Adds what the adapters make of the inputs to their columns of the outputs."""
    slots, inputs = inputs_LI.shape
    assert len(adapters) <= MOST
    # an absent adapter repeats the first and has no tiles
    three = [*adapters, *[adapters[0]] * (MOST - len(adapters))]
    tiles = [triton.cdiv(adapter.last - adapter.first, N) for adapter in adapters] + [0] * (MOST - len(adapters))
    rank, shares, row_tiles = _padded_rank(adapters), _shares(adapters), triton.cdiv(slots, M)
    ranks = [adapter.rank for adapter in three]
    inputs_K = inputs_at_a_time(rank, adapters[0].down_RI.dtype, shared_memory(inputs_LI.device))
    precision = "ieee" if outputs_LO.dtype.itemsize > 2 else "tf32"
    _lower[(row_tiles, len(adapters), shares)](
        inputs_LI, low, *[adapter.down_RI for adapter in three], *ranks, slots,
        INPUTS=inputs, R=rank, M=M, K=inputs_K, PRECISION=precision, **launch(inputs_LI.device, 4, 3),
    )  # fmt: skip
    _raise[(sum(tiles), row_tiles)](
        low, outputs_LO, *[adapter.up_OR for adapter in three], *ranks,
        *[adapter.first for adapter in three], *[adapter.last for adapter in three],
        *[adapter.scale for adapter in three], slots, outputs_LO.stride(0), tiles[0], tiles[1],
        PARTS=len(adapters), SHARES=shares, R=rank, M=M, N=N, PRECISION=precision,
        **launch(inputs_LI.device, 4),
    )  # fmt: skip


def inputs_at_a_time(rank: int, dtype: torch.dtype, shared: int) -> int:
    """Of two blocks of an adapter's lower matrix, which are on their way at once.

    >>> [inputs_at_a_time(rank, torch.float32, shared=232_448) for rank in (64, 256, 512)]
    [64, 64, 32]
    """
    inputs = K
    while inputs > 16 and 2 * (rank + M) * inputs * dtype.itemsize > shared:
        inputs //= 2
    return inputs


def _shares(adapters: Sequence[Beside]) -> int:
    return int(triton.cdiv(adapters[0].down_RI.shape[1], SHARE.value))


def _padded_rank(adapters: Sequence[Beside]) -> int:
    return int(max(triton.next_power_of_2(max(adapter.rank for adapter in adapters)), 16))
