"""The small kernels around the matrix products of a decoding step: embedding, norm, addition and norm, gate.

They round where the model in PyTorch rounds: a norm before its weight, an activation before its product.

Shape legend: L slots, D hidden size, I inner size of the gated layer, O gates and ups, F fields of a slot.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from assay.llama.kernels.decode_state import FIELDS, TOKEN, launch

BLOCK = 1024  # gates at a time


@triton.jit
def _embed(state, embedding, states, HIDDEN: tl.constexpr, BLOCK: tl.constexpr):
    slot = tl.program_id(0)
    inner_D = tl.arange(0, BLOCK)
    held_D = inner_D < HIDDEN
    token = tl.load(state + slot * FIELDS + TOKEN).to(tl.int64)
    row_D = tl.load(embedding + token * HIDDEN + inner_D, mask=held_D, other=0.0)
    tl.store(states + slot * HIDDEN + inner_D, row_D, mask=held_D)


@triton.jit
def _row(
    states,  # [L, D]: read, and written if there is a change
    change,  # [L, D]: is added to the states
    norm,  # [D]
    weighted,  # [L, D]
    squares,  # [1, L]
    normed,  # [L, D]
    width,
    epsilon,
    CHANGE: tl.constexpr,
    PREPARE: tl.constexpr,
    DEPENDENT: tl.constexpr,
    D: tl.constexpr,  # a power of two
):
    """The whole norm of a row and, if that is to be prepared, what the fused matmuls want to know of it."""
    row = tl.program_id(0).to(tl.int64)
    columns_D = tl.arange(0, D)
    within_D = columns_D < width
    place_D = row * width + columns_D
    dtype = states.dtype.element_ty
    if DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()
    norm_D = tl.load(norm + columns_D, mask=within_D, other=0.0).to(tl.float32)
    states_D = tl.load(states + place_D, mask=within_D, other=0.0).to(tl.float32)
    if CHANGE:
        change_D = tl.load(change + place_D, mask=within_D, other=0.0).to(tl.float32)
        new_D = (states_D + change_D).to(dtype)
        tl.store(states + place_D, new_D, mask=within_D)
        states_D = new_D.to(tl.float32)
    total = tl.sum(states_D * states_D)
    if PREPARE:
        tl.store(squares + row, total)
        tl.store(weighted + place_D, (states_D * norm_D).to(dtype), mask=within_D)
    unit_D = (states_D * tl.rsqrt(total / width + epsilon)).to(dtype).to(tl.float32)
    tl.store(normed + place_D, (unit_D * norm_D).to(dtype), mask=within_D)


@triton.jit
def gated(gate, up, dtype):
    """silu(gate) * up of float32 numbers."""
    return (gate * tl.sigmoid(gate)).to(dtype).to(tl.float32) * up


@triton.jit
def gate_rows(gate_up, out, width, DEPENDENT: tl.constexpr, BLOCK: tl.constexpr):
    """gate_up [N, 2 * width]: gates, then ups; out [N, width]."""
    # in the first place of the grid, which alone may have more than 65,535: a prompt may have as many tokens
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    if DEPENDENT:
        gdc_launch_dependents()
    gate = tl.load(gate_up + row * 2 * width + columns, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * width + width + columns, mask=inside, other=0.0).to(tl.float32)
    dtype = out.dtype.element_ty
    tl.store(out + row * width + columns, gated(gate, up, dtype).to(dtype), mask=inside)


def embed(state_LF: Tensor, embedding_VD: Tensor, states_LD: Tensor) -> None:
    """states_LD = embeddings of the slots' next inputs. The first kernel of a step, and launched in the ordinary way:
    those behind it may then rely on all that the last step wrote without waiting for each other."""
    slots, hidden = states_LD.shape
    block = triton.next_power_of_2(hidden)
    _embed[(slots,)](state_LF, embedding_VD, states_LD, HIDDEN=hidden, BLOCK=block, num_warps=4)


def add_norm(
    states_LD: Tensor,
    change_LD: Tensor | None,
    weight_D: Tensor,
    epsilon: float,
    normed_LD: Tensor,
    prepared: tuple[Tensor, Tensor] | None = None,
) -> None:
    """states_LD += change_LD in place, if there is a change; normed_LD = the norm of that. `prepared` (weighted_LD,
    squares_1L) is for the fused matmuls."""
    slots, width = states_LD.shape
    # what prepares follows cuBLAS, which lets nobody begin before its end: the usual launch is a little faster there
    how = launch(states_LD.device, 4)
    if prepared is not None:
        how = {name: value for name, value in how.items() if name != "launch_pdl"}
    _row[(slots,)](
        states_LD,
        change_LD,
        weight_D,
        *(prepared or (None, None)),
        normed_LD,
        width,
        epsilon,
        CHANGE=change_LD is not None,
        PREPARE=prepared is not None,
        D=triton.next_power_of_2(width),
        **how,
    )


def gate(gate_up_LO: Tensor, gated_LI: Tensor) -> None:
    """gated_LI = silu(gate) * up; gate_up_LO holds the two side by side. It follows cuBLAS."""
    slots, inner = gated_LI.shape
    is_dependent = launch(gated_LI.device, 4)["DEPENDENT"]
    gate_rows[(slots, triton.cdiv(inner, BLOCK))](gate_up_LO, gated_LI, inner, is_dependent, BLOCK=BLOCK)
