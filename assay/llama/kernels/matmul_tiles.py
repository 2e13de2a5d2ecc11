"""How a matmul of few rows is cut into tiles, by its shape alone: the same shape always gives the same bits.

The rule sums up what was measured on an H200 for models of 135M, 0.5B and 1.5B parameters (benchmarks/gpu_matmul.py
measures it again); nothing is timed while a run goes on. Where it says None, cuBLAS with small kernels beside it was
faster: fused kernels win by their fewer launches, which no longer count once a matmul is large.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

PROCESSORS = 132  # of the device that was measured: what needs more programs than this is computed in turns
LARGEST_MATRIX = 4_500_000  # weights
MOST_WORK = 1_150_000_000  # products


@dataclass(frozen=True, slots=True)
class Tile:
    """What one program computes, and with what.

    `splits` programs share the inputs of a tile; the last of them to arrive adds the sums up in a fixed order.
    """

    rows: int
    outputs: int  # of a gated matmul: that many gates and that many ups
    inputs: int  # at a time
    warps: int = 4
    stages: int = 4  # blocks of inputs that are on their way from memory
    splits: int = 1

    def count(self, rows: int, outputs: int) -> int:
        """
        >>> Tile(64, 32, 128).count(rows=65, outputs=96)
        6
        """
        return -(-rows // self.rows) * -(-outputs // self.outputs)


def fitting(tile: Tile, matrices: int, shared: int) -> Tile:
    """The tile with at most as many blocks on their way as `shared` bytes of shared memory hold; `matrices` is 2 for a
    gated matmul.

    >>> fitting(Tile(64, 64, 128, stages=4), 2, shared=101_376)
    Tile(rows=64, outputs=64, inputs=128, warps=4, stages=2, splits=1)
    """
    a_block = (tile.rows + matrices * tile.outputs) * tile.inputs * 2
    return replace(tile, stages=max(min(tile.stages, shared // a_block), 1))


def normed_tile(rows: int, inputs: int, outputs: int, dtype: torch.dtype) -> Tile | None:
    """For norm(x) @ W^T.

    >>> normed_tile(rows=64, inputs=896, outputs=1152, dtype=torch.bfloat16)
    Tile(rows=64, outputs=32, inputs=128, warps=4, stages=4, splits=1)
    >>> normed_tile(rows=64, inputs=896, outputs=151_936, dtype=torch.bfloat16) is None
    True
    """
    if not _is_small(rows, inputs, outputs, 1, dtype):
        return None
    tile = _square_tile(rows, inputs, outputs)
    return tile if tile.count(rows, outputs) <= PROCESSORS else None


def residual_tile(rows: int, inputs: int, outputs: int, dtype: torch.dtype) -> Tile | None:
    """For x + y @ W^T: with many inputs and few outputs there would be too few tiles, so that they are split.

    >>> residual_tile(rows=64, inputs=4864, outputs=896, dtype=torch.bfloat16)
    Tile(rows=64, outputs=32, inputs=128, warps=4, stages=4, splits=2)
    """
    if inputs <= outputs:
        return normed_tile(rows, inputs, outputs, dtype)
    if not _is_small(rows, inputs, outputs, 1, dtype):
        return None
    if rows > 512:
        tile = Tile(128, 64, 64, stages=5)
    elif rows > 128:
        tile = replace(_block(inputs, 2 if inputs > 2048 else 1), rows=64, outputs=64)
    else:
        outputs_a_tile = 32 if outputs <= 768 or 32 < rows <= 64 else 64
        tile = replace(_block(inputs, 2 if rows > 32 else 4), rows=_rows(rows), outputs=outputs_a_tile)
    return tile if tile.count(rows, outputs) <= PROCESSORS else None


def gated_tile(rows: int, inputs: int, outputs: int, dtype: torch.dtype) -> Tile | None:
    """For silu(norm(x) @ gate^T) * (norm(x) @ up^T); `outputs` are those of gate and up together.

    >>> gated_tile(rows=256, inputs=576, outputs=3072, dtype=torch.bfloat16)
    Tile(rows=64, outputs=64, inputs=64, warps=4, stages=5, splits=1)
    """
    if not _is_small(rows, inputs, outputs, 2, dtype):
        return None
    if rows > 256:
        tile = Tile(128, 64, 64, warps=8, stages=5)
        return tile if tile.count(rows, outputs // 2) <= 100 else None
    for outputs_a_tile in (16, 32, 64):
        tile = replace(_block(inputs), rows=_rows(rows), outputs=outputs_a_tile)
        if tile.rows * tile.outputs >= 512 and tile.count(rows, outputs // 2) <= 100:
            return tile
    return None


def _is_small(rows: int, inputs: int, outputs: int, matrices: int, dtype: torch.dtype) -> bool:
    """cuBLAS alone computes float32: there the tensor cores have no part, and so no launch is too expensive."""
    weights = inputs * outputs
    return dtype.itemsize == 2 and weights <= matrices * LARGEST_MATRIX and rows * weights <= MOST_WORK


def _square_tile(rows: int, inputs: int, outputs: int) -> Tile:
    block = _block(inputs)
    if rows <= 32:
        tile = replace(block, rows=16, outputs=32)
        return tile if rows <= 16 or tile.count(rows, outputs) <= 72 else replace(tile, rows=32)
    narrow, wide = replace(block, rows=64, outputs=32), replace(block, rows=64, outputs=64)
    if rows <= 64 or (rows <= 256 and block.inputs == 64 and narrow.count(rows, outputs) <= 72):
        return narrow
    if rows <= 256 or (block.inputs == 128 and wide.count(rows, outputs) <= 120):
        return wide
    return Tile(128, 64, 64, stages=5)


def _block(inputs: int, splits: int = 1) -> Tile:
    """Inputs at a time, if possible without a remainder."""
    if inputs % (128 * splits) == 0:
        return Tile(16, 32, 128, stages=4, splits=splits)
    return Tile(16, 32, 64, stages=5, splits=splits)


def _rows(rows: int) -> int:
    return 16 if rows <= 16 else 32 if rows <= 32 else 64
