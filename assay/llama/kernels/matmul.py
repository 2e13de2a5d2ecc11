"""The matmuls of a decoding step, each with its neighbours: y = norm(x) @ W^T, h = silu(gate) * up, x += y @ W^T.

By the shape alone it is decided whether one fused kernel computes it, or cuBLAS with a small kernel before or behind.
Nothing is allocated and nothing waits, so that the step can be captured as a CUDA graph. One layer is

    normed_matmul(stream, query_key_value, bias, out=heads)
    stream = residual_matmul(seen, output, bias, stream, second_norm)
    normed_matmul(stream, gate_up, bias, out=hidden, gated=True)
    stream = residual_matmul(hidden, down, bias, stream, first_norm_of_the_next_layer)

Shape legend: B rows, D hidden size, O outputs, I inputs, P parts of a row's sum of squares.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
from torch import Tensor

from assay.llama.kernels.decode_small import add_norm, gate
from assay.llama.kernels.decode_state import launch
from assay.llama.kernels.matmul_kernels import LINE_BYTES, normed_kernel, residual_kernel
from assay.llama.kernels.matmul_tiles import Tile, fitting, gated_tile, normed_tile, residual_tile
from assay.llama.kernels.shared_memory import shared_memory

COLUMNS = 32  # of the states in a part of a row's sum of squares, at least
SUMS = 1 << 22  # floats that split matmuls may leave for their last program
TILES = 1024  # of a split matmul, at most
MOST_LINES = 64  # of a row of weights that are fetched early


@dataclass(frozen=True, slots=True, eq=False)
class Room:
    """Scratch memory of a step, for up to a number of rows."""

    weighted: Tensor
    normed: Tensor
    products: Tensor  # of a matmul of cuBLAS, before its neighbours
    squares: Tensor
    sums: Tensor
    arrivals: Tensor

    @classmethod
    def make(cls, rows: int, hidden: int, widest: int, dtype: torch.dtype, device: torch.device) -> Room:
        """`widest`: gates and ups together, or the hidden size if that is more."""

        def empty(size: int, kind: torch.dtype) -> Tensor:
            return torch.zeros(size, dtype=kind, device=device)

        return cls(
            weighted=empty(rows * hidden, dtype),
            normed=empty(rows * hidden, dtype),
            products=empty(rows * max(widest, hidden), dtype),
            squares=empty(rows * triton.cdiv(hidden, COLUMNS), torch.float32),
            sums=empty(SUMS, torch.float32),
            arrivals=empty(TILES, torch.int32),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """The states between two layers, and what is known of their coming norm."""

    states_BD: Tensor
    norm_D: Tensor
    epsilon: float
    parts: int  # of the sums of squares in the room
    is_normed: bool  # the room holds the norm itself, too
    room: Room

    @property
    def rows(self) -> int:
        return self.states_BD.shape[0]

    def scratch(self, table: Tensor, width: int) -> Tensor:
        return table[: self.rows * width].view(self.rows, width)

    def normed(self) -> Tensor:
        """norm(states)_BD, computed now if it was not before."""
        normed_BD = self.scratch(self.room.normed, self.states_BD.shape[1])
        if not self.is_normed:
            add_norm(self.states_BD, None, self.norm_D, self.epsilon, normed_BD)
        return normed_BD


def begin(states_BD: Tensor, norm_D: Tensor, epsilon: float, room: Room) -> Stream:
    """States that no matmul of ours has written, such as embeddings."""
    stream = Stream(states_BD, norm_D, epsilon, parts=1, is_normed=True, room=room)
    _prepare(stream, None)
    return stream


def normed_matmul(
    stream: Stream, weight_OD: Tensor, bias_O: Tensor | None, out_BO: Tensor, gated: bool = False
) -> None:
    """out = norm(states) @ weight^T + bias. Gated: out = silu(norm(states) @ gate^T) * (norm(states) @ up^T), and the
    rows of weight are those of gate, then of up."""
    outputs, inputs = weight_OD.shape
    tile = (gated_tile if gated else normed_tile)(stream.rows, inputs, outputs, out_BO.dtype)
    if tile is not None:
        fused_normed(stream, weight_OD, bias_O, out_BO, tile, gated)
    else:
        plain_normed(stream, weight_OD, bias_O, out_BO, gated)


def residual_matmul(
    inputs_BI: Tensor, weight_DI: Tensor, bias_D: Tensor | None, stream: Stream, norm_D: Tensor
) -> Stream:
    """states += inputs @ weight^T + bias, in place; norm_D is the weight of the norm that comes next."""
    outputs, inputs = weight_DI.shape
    tile = residual_tile(stream.rows, inputs, outputs, inputs_BI.dtype)
    if tile is not None:
        return fused_residual(inputs_BI, weight_DI, bias_D, stream, norm_D, tile)
    return plain_residual(inputs_BI, weight_DI, bias_D, stream, norm_D)


def plain_normed(stream: Stream, weight_OD: Tensor, bias_O: Tensor | None, out_BO: Tensor, gated: bool = False) -> None:
    products = stream.scratch(stream.room.products, weight_OD.shape[0]) if gated else out_BO
    matmul(stream.normed(), weight_OD, bias_O, products)
    if gated:
        gate(products, out_BO)


def plain_residual(
    inputs_BI: Tensor, weight_DI: Tensor, bias_D: Tensor | None, stream: Stream, norm_D: Tensor
) -> Stream:
    change_BD = stream.scratch(stream.room.products, weight_DI.shape[0])
    matmul(inputs_BI, weight_DI, bias_D, change_BD)
    stream = replace(stream, norm_D=norm_D, parts=1, is_normed=True)
    _prepare(stream, change_BD)
    return stream


def fused_normed(
    stream: Stream, weight_OD: Tensor, bias_O: Tensor | None, out_BO: Tensor, tile: Tile, gated: bool = False
) -> None:
    rows, outputs = out_BO.shape
    inputs = weight_OD.shape[1]
    assert all(tensor.is_contiguous() for tensor in (out_BO, weight_OD))
    tile = fitting(tile, 1 + gated, shared_memory(out_BO.device))
    grid = (triton.cdiv(rows, tile.rows), triton.cdiv(outputs, tile.outputs))
    normed_kernel[grid](
        stream.room.weighted,
        stream.room.squares,
        weight_OD,
        bias_O,
        out_BO,
        rows,
        outputs,
        stream.parts,
        stream.epsilon,
        PARTS=triton.next_power_of_2(triton.cdiv(inputs, COLUMNS)),
        GATED=gated,
        BIAS=bias_O is not None,
        **_cut(tile, inputs, weight_OD),
        **launch(out_BO.device, tile.warps, tile.stages),
    )


def fused_residual(
    inputs_BI: Tensor, weight_DI: Tensor, bias_D: Tensor | None, stream: Stream, norm_D: Tensor, tile: Tile
) -> Stream:
    rows, inputs = inputs_BI.shape
    outputs = weight_DI.shape[0]
    row_tiles, parts = triton.cdiv(rows, tile.rows), triton.cdiv(outputs, tile.outputs)
    if tile.splits > 1:
        assert row_tiles * parts <= TILES
        assert row_tiles * parts * tile.splits * tile.rows * tile.outputs <= SUMS
    assert tile.outputs >= COLUMNS
    assert all(tensor.is_contiguous() for tensor in (inputs_BI, weight_DI, stream.states_BD))
    tile = fitting(tile, 1, shared_memory(inputs_BI.device))
    residual_kernel[(row_tiles * tile.splits, parts)](
        inputs_BI,
        weight_DI,
        bias_D,
        stream.states_BD,
        norm_D,
        stream.room.weighted,
        stream.room.squares,
        stream.room.sums,
        stream.room.arrivals,
        rows,
        outputs,
        SHARE=triton.cdiv(inputs, tile.splits * tile.inputs) * tile.inputs,
        STEP=int(inputs % tile.inputs > 0),
        BIAS=bias_D is not None,
        SPLITS=tile.splits,
        **_cut(tile, inputs, weight_DI),
        **launch(inputs_BI.device, tile.warps, tile.stages),
    )
    return replace(stream, norm_D=norm_D, parts=parts, is_normed=False)


def _prepare(stream: Stream, change_BD: Tensor | None) -> None:
    """Adds the change and writes all that a coming matmul may want, fused or not."""
    prepared = stream.room.weighted, stream.room.squares
    add_norm(stream.states_BD, change_BD, stream.norm_D, stream.epsilon, stream.room.normed, prepared)


def matmul(inputs_BI: Tensor, weight_OI: Tensor, bias_O: Tensor | None, out_BO: Tensor) -> None:
    if bias_O is None:
        torch.mm(inputs_BI, weight_OI.t(), out=out_BO)
    else:
        torch.addmm(bias_O, inputs_BI, weight_OI.t(), out=out_BO)


def _cut(tile: Tile, inputs: int, weight: Tensor) -> dict[str, Any]:
    lines = triton.cdiv(inputs, tile.splits) * weight.element_size() // LINE_BYTES.value
    return {
        "INPUTS": inputs,
        "EVEN": inputs % (tile.inputs * tile.splits) == 0,
        "LINES": min(MOST_LINES, triton.next_power_of_2(max(1, lines))),
        "M": tile.rows,
        "N": tile.outputs,
        "K": tile.inputs,
    }
