"""Attention of one new token per slot, from the raw products of queries, keys and values to the sum of values.

One program takes a slot and a head of keys with all the heads of queries that share it: it norms them (Qwen3), rotates
them, writes the new key and value into the slot's own cache, and attends to the prompt's cache, which the group shares,
to the slot's own, and to the new token itself. Only valid entries are read. Where slots are few, several programs share
the context, and a second kernel joins their results: exactly, and always in the same order.

Shape legend: L slots, H heads, K heads of keys, G heads of queries that share one (padded), W width of a head (padded),
B entries of the cache seen at a time, S splits of the context, N tokens.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from assay.llama.kernels.decode_state import (
    BEFORE,
    DONE,
    FIELDS,
    OWN_CACHE,
    OWN_ROW,
    OWN_ROWS,
    OWN_TOKENS,
    PROMPT_CACHE,
    PROMPT_ROW,
    PROMPT_ROWS,
    PROMPT_TOKENS,
    ROTATIONS,
    launch,
)

SPLIT_PROGRAMS = 512  # at most, that share the context: about four for each of 132 multiprocessors
LOG2_E = tl.constexpr(1.4426950408889634)


@dataclass(frozen=True, slots=True)
class Heads:
    heads: int
    key_heads: int
    width: int
    scale: float  # of the products of queries and keys
    epsilon: float  # of the norms of queries and keys


@dataclass(frozen=True, slots=True)
class Tiles:
    """How the kernel is cut; it changes the order of sums, never what is summed."""

    splits: int
    block: int
    warps: int
    stages: int

    @classmethod
    def for_slots(cls, slots: int, heads: Heads, context: int, dtype: torch.dtype, shared: int) -> Tiles:
        """A fixed choice by shape: one that is timed on the spot would make the bits depend on the weather. `shared`:
        bytes of shared memory, into which it must fit."""
        programs, is_wide = slots * heads.key_heads, heads.width > 64
        splits = _splits(programs, context)
        if dtype.itemsize > 2:  # exact products run on the ordinary units, which want small tiles
            tiles = cls(splits, block=32, warps=4, stages=1)
        elif programs <= (132 if is_wide else 264):
            tiles = cls(splits, block=128, warps=4, stages=3)
        elif is_wide:
            tiles = cls(splits, block=32, warps=1, stages=4)
        else:
            tiles = cls(splits, block=64, warps=1, stages=3)
        while tiles.shared_bytes(heads, dtype) > shared:
            if tiles.stages > 2:
                tiles = replace(tiles, stages=tiles.stages - 1)
            else:
                tiles = replace(tiles, block=tiles.block // 2)
        return tiles

    def shared_bytes(self, heads: Heads, dtype: torch.dtype) -> int:
        """What the compiler was seen to lay into shared memory: keys and values on their way, queries and weights."""
        width = _padded_width(heads)
        on_their_way = 2 * max(self.stages - 1, 1) * self.block * width
        return (on_their_way + _padded_group(heads) * (width + self.block)) * dtype.itemsize


def _splits(programs: int, context: int) -> int:
    """A power of two: as many as keep the device busy, none of them with less than 256 tokens of context to see."""
    splits = 1
    while splits < 32 and programs * splits * 2 <= SPLIT_PROGRAMS and context >= splits * 2 * 256:
        splits *= 2
    return splits


def _padded_width(heads: Heads) -> int:
    return int(max(triton.next_power_of_2(heads.width), 16))


def _padded_group(heads: Heads) -> int:
    return int(max(triton.next_power_of_2(heads.heads // heads.key_heads), 16))


@triton.jit
def _rotate(
    base, heads_G, held_G, weight, cosine_W, sine_W, epsilon,
    WIDTH: tl.constexpr, W: tl.constexpr, NORMED: tl.constexpr,
):  # fmt: skip
    """heads_GW, normed and rotated, in the dtype they are stored in."""
    half: tl.constexpr = WIDTH // 2
    width_W = tl.arange(0, W)
    held_W = width_W < WIDTH
    across_W = tl.where(width_W < half, width_W + half, width_W - half)
    held = held_G[:, None] & held_W[None, :]
    rows = base + heads_G[:, None] * WIDTH
    here = tl.load(rows + width_W[None, :], mask=held, other=0.0)
    across = tl.load(rows + across_W[None, :], mask=held, other=0.0)
    dtype = here.dtype
    exact, exact_across = here.to(tl.float32), across.to(tl.float32)
    if NORMED:
        factor = tl.rsqrt(tl.sum(exact * exact, 1) / WIDTH + epsilon)[:, None]
        weight_W = tl.load(weight + width_W, mask=held_W, other=0.0).to(tl.float32)
        weight_across_W = tl.load(weight + across_W, mask=held_W, other=0.0).to(tl.float32)
        # rounded where the model rounds
        exact = (exact * factor).to(dtype).to(tl.float32) * weight_W[None, :]
        exact_across = (exact_across * factor).to(dtype).to(tl.float32) * weight_across_W[None, :]
        exact, exact_across = exact.to(dtype).to(tl.float32), exact_across.to(dtype).to(tl.float32)
    return (exact * cosine_W[None, :] + exact_across * sine_W[None, :]).to(dtype)


@triton.jit
def _angles(rotation, WIDTH: tl.constexpr, W: tl.constexpr):
    """(cosine_W, sine_W) of a position; the sine's sign is that of the half across."""
    half: tl.constexpr = WIDTH // 2
    width_W = tl.arange(0, W)
    angle_W = tl.where(width_W < half, width_W, width_W - half)
    cosine_W = tl.load(rotation + angle_W, mask=width_W < WIDTH, other=0.0)
    sine_W = tl.load(rotation + half + angle_W, mask=width_W < WIDTH, other=0.0)
    return cosine_W, tl.where(width_W < half, -sine_W, sine_W)


@triton.jit
def _see_block(
    queries_GW, keys, values, start, count, scale, highest_G, total_G, sums_GW,
    WIDTH: tl.constexpr, W: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The running softmax after BLOCK more entries of a cache."""
    width_W = tl.arange(0, W)
    tokens_B = start + tl.arange(0, BLOCK)
    held_B = tokens_B < count
    held = held_B[:, None] & (width_W < WIDTH)[None, :]
    offsets = tokens_B[:, None] * WIDTH + width_W[None, :]
    keys_BW = tl.load(keys + offsets, mask=held, other=0.0)
    scores_GB = tl.dot(queries_GW, tl.trans(keys_BW), input_precision="ieee") * scale
    scores_GB = tl.where(held_B[None, :], scores_GB, float("-inf"))
    higher_G = tl.maximum(highest_G, tl.max(scores_GB, 1))
    weights_GB = tl.exp2(scores_GB - higher_G[:, None])
    fade_G = tl.exp2(highest_G - higher_G)
    values_BW = tl.load(values + offsets, mask=held, other=0.0)
    sums_GW = sums_GW * fade_G[:, None]
    sums_GW += tl.dot(weights_GB.to(values_BW.dtype), values_BW, input_precision="ieee")
    return higher_G, total_G * fade_G + tl.sum(weights_GB, 1), sums_GW


@triton.jit(do_not_specialize=["layer"])
def _attend(
    qkv, outputs, parts, part_sums, state, places, query_norm, key_norm, layer, scale, epsilon,
    HEADS: tl.constexpr, KEY_HEADS: tl.constexpr, WIDTH: tl.constexpr, G: tl.constexpr, W: tl.constexpr,
    BLOCK: tl.constexpr, SPLITS: tl.constexpr, NORMED: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    head, slot, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    group: tl.constexpr = HEADS // KEY_HEADS
    dtype = outputs.dtype.element_ty
    slot_state = state + slot * FIELDS
    done = tl.load(slot_state + DONE)
    before = tl.load(slot_state + BEFORE)
    rotation = tl.load(places + ROTATIONS).to(tl.pointer_type(tl.float32)) + (before + done).to(tl.int64) * WIDTH
    # caches are aligned, which is what lets whole vectors be read
    own_tokens = tl.load(places + OWN_TOKENS)
    own_rows = tl.load(places + OWN_ROWS)
    own_keys = tl.multiple_of(tl.load(places + OWN_CACHE).to(tl.pointer_type(dtype)), 16)
    own_row = (2 * layer * own_rows + tl.load(slot_state + OWN_ROW)) * KEY_HEADS + head
    own_keys += own_row * own_tokens * WIDTH
    own_values = own_keys + own_rows * KEY_HEADS * own_tokens * WIDTH
    prompt_tokens = tl.load(places + PROMPT_TOKENS)
    prompt_rows = tl.load(places + PROMPT_ROWS)
    prompt_keys = tl.multiple_of(tl.load(places + PROMPT_CACHE).to(tl.pointer_type(dtype)), 16)
    prompt_row = (2 * layer * prompt_rows + tl.load(slot_state + PROMPT_ROW)) * KEY_HEADS + head
    prompt_keys += prompt_row * prompt_tokens * WIDTH
    prompt_values = prompt_keys + prompt_rows * KEY_HEADS * prompt_tokens * WIDTH

    width_W = tl.arange(0, W)
    held_W = width_W < WIDTH
    cosine_W, sine_W = _angles(rotation, WIDTH, W)
    if DEPENDENT:  # what was read so far, no kernel of this step writes
        gdc_wait()
        gdc_launch_dependents()
    sharing_G = tl.arange(0, G)
    held_G = sharing_G < group
    row = qkv + slot * (HEADS + 2 * KEY_HEADS) * WIDTH
    queries_GW = _rotate(row, head * group + sharing_G, held_G, query_norm, cosine_W, sine_W, epsilon, WIDTH, W, NORMED)
    one = tl.arange(0, 1)
    key_1W = _rotate(row, HEADS + head + one, one < 1, key_norm, cosine_W, sine_W, epsilon, WIDTH, W, NORMED)
    value_W = tl.load(row + (HEADS + KEY_HEADS + head) * WIDTH + width_W, mask=held_W, other=0.0)
    if split == 0:
        tl.store(own_keys + done * WIDTH + one[:, None] + width_W[None, :], key_1W, mask=held_W[None, :])
        tl.store(own_values + done * WIDTH + width_W, value_W, mask=held_W)

    # the new token begins the running softmax, in one of the splits
    scale *= LOG2_E
    highest_G = tl.sum(queries_GW.to(tl.float32) * key_1W.to(tl.float32), 1) * scale
    highest_G = tl.where(split == 0, highest_G, float("-inf"))
    total_G = tl.where(split == 0, tl.full((G,), 1.0, tl.float32), 0.0)
    sums_GW = tl.where(split == 0, tl.zeros((G, W), tl.float32) + value_W.to(tl.float32)[None, :], 0.0)
    # one loop over both caches, so that what comes next is on its way from memory without a pause
    prompt_blocks = tl.cdiv(before, BLOCK)
    for number in range(split, prompt_blocks + tl.cdiv(done, BLOCK), SPLITS):
        of_prompt = number < prompt_blocks
        keys = tl.multiple_of(tl.where(of_prompt, prompt_keys, own_keys), 16)
        values = tl.multiple_of(tl.where(of_prompt, prompt_values, own_values), 16)
        count = tl.where(of_prompt, before, done)
        start = tl.where(of_prompt, number, number - prompt_blocks) * BLOCK
        highest_G, total_G, sums_GW = _see_block(
            queries_GW, keys, values, start, count, scale, highest_G, total_G, sums_GW, WIDTH, W, BLOCK
        )

    heads_G = head * group + sharing_G
    held = held_G[:, None] & held_W[None, :]
    if SPLITS == 1:
        spots = outputs + (slot * HEADS + heads_G[:, None]) * WIDTH + width_W[None, :]
        tl.store(spots, (sums_GW / total_G[:, None]).to(dtype), mask=held)
    else:
        rows_G = (slot * SPLITS + split) * HEADS + heads_G
        tl.store(part_sums + rows_G[:, None] * WIDTH + width_W[None, :], sums_GW, mask=held)
        tl.store(parts + rows_G * 2, highest_G, mask=held_G)
        tl.store(parts + rows_G * 2 + 1, total_G, mask=held_G)


@triton.jit
def _join(
    parts, part_sums, outputs,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, W: tl.constexpr, SPLITS: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    if DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()
    head, slot = tl.program_id(0), tl.program_id(1)
    width_W = tl.arange(0, W)
    rows_S = (slot * SPLITS + tl.arange(0, SPLITS)) * HEADS + head
    highest_S = tl.load(parts + rows_S * 2)
    fade_S = tl.exp2(highest_S - tl.max(highest_S, 0))
    total = tl.sum(fade_S * tl.load(parts + rows_S * 2 + 1), 0)
    held = (width_W < WIDTH)[None, :]
    sums_SW = tl.load(part_sums + rows_S[:, None] * WIDTH + width_W[None, :], mask=held, other=0.0)
    summed_W = tl.sum(sums_SW * fade_S[:, None], 0) / total
    spots = outputs + (slot * HEADS + head) * WIDTH + width_W
    tl.store(spots, summed_W.to(outputs.dtype.element_ty), mask=width_W < WIDTH)


@triton.jit(do_not_specialize=["layer"])
def _remember(
    qkv, turned, rows, positions, places, query_norm, key_norm, layer, epsilon,
    HEADS: tl.constexpr, KEY_HEADS: tl.constexpr, WIDTH: tl.constexpr, G: tl.constexpr, W: tl.constexpr,
    NORMED: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """One program a token of a prompt and a head of keys."""
    if DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    group: tl.constexpr = HEADS // KEY_HEADS
    width_W = tl.arange(0, W)
    held_W = width_W < WIDTH
    cache_row, position = tl.load(rows + token), tl.load(positions + token)
    rotation = tl.load(places + ROTATIONS).to(tl.pointer_type(tl.float32)) + position * WIDTH
    cosine_W, sine_W = _angles(rotation, WIDTH, W)
    row = qkv + token * (HEADS + 2 * KEY_HEADS) * WIDTH
    sharing_G, one = tl.arange(0, G), tl.arange(0, 1)
    held_G, heads_G = sharing_G < group, head * group + sharing_G
    queries_GW = _rotate(row, heads_G, held_G, query_norm, cosine_W, sine_W, epsilon, WIDTH, W, NORMED)
    key_1W = _rotate(row, HEADS + head + one, one < 1, key_norm, cosine_W, sine_W, epsilon, WIDTH, W, NORMED)
    value_W = tl.load(row + (HEADS + KEY_HEADS + head) * WIDTH + width_W, mask=held_W, other=0.0)
    spots = turned + token * (HEADS + KEY_HEADS) * WIDTH
    held_GW, width_1W = held_G[:, None] & held_W[None, :], one[:, None] + width_W[None, :]
    tl.store(spots + heads_G[:, None] * WIDTH + width_W[None, :], queries_GW, mask=held_GW)
    tl.store(spots + (HEADS + head) * WIDTH + width_1W, key_1W, mask=held_W[None, :])
    tokens, count = tl.load(places + PROMPT_TOKENS), tl.load(places + PROMPT_ROWS)
    cache = tl.load(places + PROMPT_CACHE).to(tl.pointer_type(turned.dtype.element_ty))
    cache += (((2 * layer * count + cache_row) * KEY_HEADS + head) * tokens + position) * WIDTH
    tl.store(cache + width_1W, key_1W, mask=held_W[None, :])
    tl.store(cache + count * KEY_HEADS * tokens * WIDTH + width_W, value_W, mask=held_W)


def split_room(heads: Heads, device: torch.device) -> tuple[Tensor, Tensor]:
    """(parts, part_sums): what programs that share a context leave for the joining."""
    rows = SPLIT_PROGRAMS * (heads.heads // heads.key_heads)
    return torch.zeros(rows, 2, device=device), torch.zeros(rows, heads.width, device=device)


def attend(
    qkv_LO: Tensor,
    outputs_LO: Tensor,
    state_LF: Tensor,
    places: Tensor,
    layer: int,
    heads: Heads,
    tiles: Tiles,
    room: tuple[Tensor, Tensor],
    norms: tuple[Tensor, Tensor] | None,
) -> None:
    """outputs_LO = attention of every slot's new token; `norms` are those of queries and keys."""
    slots = qkv_LO.shape[0]
    parts, part_sums = room
    query_norm, key_norm = norms if norms is not None else (qkv_LO, qkv_LO)
    width = _padded_width(heads)
    _attend[(heads.key_heads, slots, tiles.splits)](
        qkv_LO, outputs_LO, parts, part_sums, state_LF, places, query_norm, key_norm, layer, heads.scale, heads.epsilon,
        HEADS=heads.heads, KEY_HEADS=heads.key_heads, WIDTH=heads.width, W=width,
        G=_padded_group(heads), BLOCK=tiles.block, SPLITS=tiles.splits, NORMED=norms is not None,
        **launch(qkv_LO.device, tiles.warps, tiles.stages),
    )  # fmt: skip
    if tiles.splits > 1:
        _join[(heads.heads, slots)](
            parts, part_sums, outputs_LO, HEADS=heads.heads, WIDTH=heads.width, W=width, SPLITS=tiles.splits,
            **launch(qkv_LO.device, 2),
        )  # fmt: skip


def remember(
    qkv_NO: Tensor,
    turned_NO: Tensor,
    rows_N: Tensor,
    positions_N: Tensor,
    places: Tensor,
    layer: int,
    heads: Heads,
    norms: tuple[Tensor, Tensor] | None,
) -> None:
    """turned_NO = queries and keys of prompts as attention wants them; keys and values go into the cache of prompts."""
    query_norm, key_norm = norms if norms is not None else (qkv_NO, qkv_NO)
    _remember[(qkv_NO.shape[0], heads.key_heads)](
        qkv_NO, turned_NO, rows_N, positions_N, places, query_norm, key_norm, layer, heads.epsilon,
        HEADS=heads.heads, KEY_HEADS=heads.key_heads, WIDTH=heads.width, W=triton.next_power_of_2(heads.width),
        G=triton.next_power_of_2(heads.heads // heads.key_heads), NORMED=norms is not None,
        **launch(qkv_NO.device, 1),
    )  # fmt: skip
