"""The small kernels of a decoding step around its matrix products: embedding and norm, addition and norm, gate.

They round where the model in PyTorch rounds: a norm before its weight, an activation before its product.

Shape legend: L lanes, D hidden size, I inner size of the gated layer, F fields of a lane.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from assay.kernels.decode_state import FIELDS, TOKEN, launch


@triton.jit
def _normed(states_D, weight_D, epsilon, HIDDEN: tl.constexpr, dtype: tl.constexpr):
    exact_D = states_D.to(tl.float32)
    exact_D *= tl.rsqrt(tl.sum(exact_D * exact_D, 0) / HIDDEN + epsilon)
    return (exact_D.to(dtype).to(tl.float32) * weight_D.to(tl.float32)).to(dtype)


@triton.jit
def _embed(state, embedding, states, HIDDEN: tl.constexpr, BLOCK: tl.constexpr):
    lane = tl.program_id(0)
    inner_D = tl.arange(0, BLOCK)
    held_D = inner_D < HIDDEN
    token = tl.load(state + lane * FIELDS + TOKEN).to(tl.int64)
    row_D = tl.load(embedding + token * HIDDEN + inner_D, mask=held_D, other=0.0)
    tl.store(states + lane * HIDDEN + inner_D, row_D, mask=held_D)


@triton.jit
def _norm(states, weight, normed, epsilon, HIDDEN: tl.constexpr, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr):
    if DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()
    lane = tl.program_id(0).to(tl.int64)
    inner_D = tl.arange(0, BLOCK)
    held_D = inner_D < HIDDEN
    states_D = tl.load(states + lane * HIDDEN + inner_D, mask=held_D, other=0.0)
    weight_D = tl.load(weight + inner_D, mask=held_D, other=0.0)
    normed_D = _normed(states_D, weight_D, epsilon, HIDDEN, states_D.dtype)
    tl.store(normed + lane * HIDDEN + inner_D, normed_D, mask=held_D)


@triton.jit
def _add_norm(
    states, change, weight, normed, epsilon, HIDDEN: tl.constexpr, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr
):
    if DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()
    lane = tl.program_id(0).to(tl.int64)
    inner_D = tl.arange(0, BLOCK)
    held_D = inner_D < HIDDEN
    row = lane * HIDDEN + inner_D
    weight_D = tl.load(weight + inner_D, mask=held_D, other=0.0)
    states_D = tl.load(states + row, mask=held_D, other=0.0)
    dtype = states_D.dtype
    states_D = (states_D.to(tl.float32) + tl.load(change + row, mask=held_D, other=0.0).to(tl.float32)).to(dtype)
    tl.store(states + row, states_D, mask=held_D)
    tl.store(normed + row, _normed(states_D, weight_D, epsilon, HIDDEN, dtype), mask=held_D)


@triton.jit
def _gate(gate_up, gated, INNER: tl.constexpr, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr):
    if DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()
    # in the first place of the grid, which alone may have more than 65,535: a prompt may have as many tokens
    lane = tl.program_id(0).to(tl.int64)
    inner_I = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    held_I = inner_I < INNER
    row = gate_up + lane * 2 * INNER
    gate_I = tl.load(row + inner_I, mask=held_I, other=0.0)
    up_I = tl.load(row + INNER + inner_I, mask=held_I, other=0.0).to(tl.float32)
    exact_I = gate_I.to(tl.float32)
    exact_I = (exact_I / (1.0 + tl.exp(-exact_I))).to(gate_I.dtype).to(tl.float32)
    tl.store(gated + lane * INNER + inner_I, (exact_I * up_I).to(gate_I.dtype), mask=held_I)


def embed(state_LF: Tensor, embedding_VD: Tensor, states_LD: Tensor) -> None:
    """states_LD = embeddings of the lanes' next inputs. The first kernel of a step, and launched in the ordinary way:
    those behind it may then rely on all that the last step wrote without waiting for each other."""
    lanes, hidden = states_LD.shape
    block = triton.next_power_of_2(hidden)
    _embed[(lanes,)](state_LF, embedding_VD, states_LD, HIDDEN=hidden, BLOCK=block, num_warps=_warps(block))


def norm(states_LD: Tensor, weight_D: Tensor, epsilon: float, normed_LD: Tensor) -> None:
    lanes, hidden = states_LD.shape
    block = triton.next_power_of_2(hidden)
    _norm[(lanes,)](
        states_LD, weight_D, normed_LD, epsilon, HIDDEN=hidden, BLOCK=block, **launch(states_LD.device, _warps(block))
    )


def add_norm(states_LD: Tensor, change_LD: Tensor, weight_D: Tensor, epsilon: float, normed_LD: Tensor) -> None:
    """states_LD += change_LD in place; normed_LD = the norm of that."""
    lanes, hidden = states_LD.shape
    block = triton.next_power_of_2(hidden)
    _add_norm[(lanes,)](
        states_LD,
        change_LD,
        weight_D,
        normed_LD,
        epsilon,
        HIDDEN=hidden,
        BLOCK=block,
        **launch(states_LD.device, _warps(block)),
    )


def gate(gate_up_LO: Tensor, gated_LI: Tensor) -> None:
    """gated_LI = silu(gate) * up; gate_up_LO holds the two side by side."""
    lanes, inner = gated_LI.shape
    _gate[(lanes, triton.cdiv(inner, 1024))](
        gate_up_LO, gated_LI, INNER=inner, BLOCK=1024, **launch(gated_LI.device, 4)
    )


def _warps(block: int) -> int:
    return min(max(block // 256, 1), 8)
