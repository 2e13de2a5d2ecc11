"""The next token of every slot from its logits, which are read once: inverse CDF with one random number per token.

A first kernel finds, of each block of the vocabulary, the maximum and the sum of exponentials. A second one, with one
program per slot, finds the block in which the random number falls, reads it again, and writes down the token and
its log-prob in float32; it also moves the slot on. A token of probability 0 is never drawn. Where the probabilities are
not finite the log-prob is NaN, and the token is any that exists.

Shape legend: L slots, V vocabulary, B tokens of a block, N blocks, F fields of a slot.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from assay.llama.kernels.decode_state import (
    COLUMN,
    DONE,
    FIELDS,
    OWN_TOKENS,
    ROLLOUT,
    TOKEN,
    UNIFORMS,
    UNIFORMS_TOKENS,
    WRITTEN_SLOTS,
    WRITTEN_TOKENS,
    launch,
)

BLOCK = 4096
NOWHERE = tl.constexpr(2**30)


@triton.jit
def _block_sums(logits, temperature, sums, vocabulary, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr):
    if DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()
    block, slot = tl.program_id(0), tl.program_id(1)
    tokens_B = block * BLOCK + tl.arange(0, BLOCK)
    row = logits + slot.to(tl.int64) * vocabulary
    scaled_B = tl.load(row + tokens_B, mask=tokens_B < vocabulary, other=float("-inf")).to(tl.float32)
    scaled_B = scaled_B / tl.load(temperature)
    highest = tl.max(scaled_B, 0)
    total = tl.sum(tl.exp(scaled_B - tl.where(highest == float("-inf"), 0.0, highest)), 0)
    place = sums + (slot * tl.num_programs(0) + block) * 2
    tl.store(place, highest)
    tl.store(place + 1, total)


@triton.jit
def _pick(
    logits, temperature, sums, state, places, vocabulary, blocks,
    BLOCK: tl.constexpr, N: tl.constexpr, GREEDY: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    if DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()
    slot = tl.program_id(0)
    slot_state = state + slot * FIELDS
    done, rollout = tl.load(slot_state + DONE), tl.load(slot_state + ROLLOUT)
    block_N = tl.arange(0, N)
    held_N = block_N < blocks
    places_N = sums + (slot * blocks + block_N) * 2
    highest_N = tl.load(places_N, mask=held_N, other=float("-inf"))
    highest = tl.max(highest_N, 0)
    mass_N = tl.load(places_N + 1, mask=held_N, other=0.0) * tl.exp(highest_N - highest)
    total = tl.sum(mass_N, 0)
    if GREEDY:
        block = tl.min(tl.where(highest_N == highest, block_N, NOWHERE), 0)
        target = 0.0
    else:
        uniforms = tl.load(places + UNIFORMS).to(tl.pointer_type(tl.float32))
        row = tl.maximum(rollout, 0).to(tl.int64) * tl.load(places + UNIFORMS_TOKENS)
        target = tl.load(uniforms + row + done) * total
        until_N = tl.cumsum(mass_N, 0)
        block = tl.min(tl.where((until_N > target) & (mass_N > 0), block_N, NOWHERE), 0)
        last = tl.max(tl.where(mass_N > 0, block_N, 0), 0)  # where rounding has the number beyond all sums
        block = tl.where(block == NOWHERE, last, block)
        target -= tl.sum(tl.where(block_N < block, mass_N, 0.0), 0)
    block = tl.minimum(block, blocks - 1)
    tokens_B = block * BLOCK + tl.arange(0, BLOCK)
    row = logits + slot.to(tl.int64) * vocabulary
    scaled_B = tl.load(row + tokens_B, mask=tokens_B < vocabulary, other=float("-inf")).to(tl.float32)
    scaled_B = scaled_B / tl.load(temperature)
    if GREEDY:
        token = tl.min(tl.where(scaled_B == highest, tokens_B, NOWHERE), 0)
    else:
        mass_B = tl.exp(scaled_B - highest)
        until_B = tl.cumsum(mass_B, 0)
        token = tl.min(tl.where((until_B > target) & (mass_B > 0), tokens_B, NOWHERE), 0)
        last = tl.max(tl.where(mass_B > 0, tokens_B, 0), 0)
        token = tl.where(token == NOWHERE, last, token)
    token = tl.minimum(token, vocabulary - 1)
    chosen = tl.sum(tl.where(tokens_B == token, scaled_B, 0.0), 0)
    logprob = chosen - highest - tl.log(total)
    finite = (logprob <= 0) & (logprob > float("-inf")) & (total < float("inf"))
    _write_down(slot, token, tl.where(finite, logprob, float("nan")), slot_state, places)


@triton.jit
def _write_down(slot, token, logprob, slot_state, places):
    """The token and its log-prob into their column; the slot moves on, within its room."""
    column = tl.load(slot_state + COLUMN)
    written = tl.load(places + WRITTEN_TOKENS)
    spot = (2 * column).to(tl.int64) * tl.load(places + WRITTEN_SLOTS) + slot
    tl.store(written.to(tl.pointer_type(tl.int32)) + spot, token)
    tl.store(written.to(tl.pointer_type(tl.float32)) + spot + tl.load(places + WRITTEN_SLOTS), logprob)
    done = tl.load(slot_state + DONE)
    busy = (tl.load(slot_state + ROLLOUT) >= 0).to(tl.int32)
    tl.store(slot_state + TOKEN, token)
    tl.store(slot_state + COLUMN, column + 1)
    tl.store(slot_state + DONE, tl.minimum(done + busy, tl.load(places + OWN_TOKENS).to(tl.int32) - 1))


@triton.jit
def _take(tokens, logprobs, state, places, DEPENDENT: tl.constexpr):
    if DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()
    slot = tl.program_id(0)
    token, logprob = tl.load(tokens + slot).to(tl.int32), tl.load(logprobs + slot)
    _write_down(slot, token, logprob, state + slot * FIELDS, places)


def sums_room(slots: int, vocabulary: int, device: torch.device) -> Tensor:
    """sums_LN2: of each block, the maximum and the sum of exponentials."""
    return torch.zeros(slots, triton.cdiv(vocabulary, BLOCK), 2, device=device)


def pick(
    logits_LV: Tensor, temperature_1: Tensor, sums_LN2: Tensor, state_LF: Tensor, places: Tensor, greedy: bool
) -> None:
    """Draws a token for every slot, writes it down and moves the slot on."""
    slots, vocabulary = logits_LV.shape
    blocks = triton.cdiv(vocabulary, BLOCK)
    _block_sums[(blocks, slots)](
        logits_LV, temperature_1, sums_LN2, vocabulary, BLOCK=BLOCK, **launch(logits_LV.device, 4)
    )
    _pick[(slots,)](
        logits_LV, temperature_1, sums_LN2, state_LF, places, vocabulary, blocks,
        BLOCK=BLOCK, N=triton.next_power_of_2(blocks), GREEDY=greedy, **launch(logits_LV.device, 8),
    )  # fmt: skip


def take(tokens_L: Tensor, logprobs_L: Tensor, state_LF: Tensor, places: Tensor) -> None:
    """Writes down tokens that were drawn elsewhere and moves the slots on."""
    _take[(tokens_L.shape[0],)](tokens_L, logprobs_L, state_LF, places, **launch(tokens_L.device, 1))
