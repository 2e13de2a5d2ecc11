"""Lanes in the middle of their completions, with caches full of random numbers, for the tests of decoding kernels."""

from dataclasses import dataclass

import torch

from assay.llama.kernels import decode_state as fields


@dataclass
class Scene:
    state_LF: torch.Tensor
    places: torch.Tensor
    own: torch.Tensor  # [layer, keys or values, slot, key head, token, width]
    prompts: torch.Tensor
    rotations_NW: torch.Tensor
    uniforms_RT: torch.Tensor
    written_C2L: torch.Tensor


def scene(lanes, *, layers=2, key_heads=2, width=8, own_tokens=7, prompt_slots=3, prompt_tokens=9, dtype=torch.float32):
    """`lanes`: (prompt slot, tokens of the prompt before its last one, tokens done) of each."""
    generator = torch.Generator().manual_seed(3)
    count = len(lanes)
    own = torch.randn(layers, 2, count + 1, key_heads, own_tokens, width, generator=generator).to(dtype)
    prompts = torch.randn(layers, 2, prompt_slots, key_heads, prompt_tokens, width, generator=generator).to(dtype)
    angles = torch.rand(prompt_tokens + own_tokens, width // 2, generator=generator) * 6
    rotations_NW = torch.cat([angles.cos(), angles.sin()], dim=1)
    uniforms_RT = torch.rand(count, own_tokens, generator=generator)
    written_C2L = torch.zeros(own_tokens, 2, count, dtype=torch.int32)
    state_LF = torch.zeros(count, fields.FIELDS.value, dtype=torch.int32)
    for lane, (slot, before, done) in enumerate(lanes):
        state_LF[lane, fields.PROMPT_SLOT.value] = slot
        state_LF[lane, fields.BEFORE.value] = before
        state_LF[lane, fields.DONE.value] = done
        state_LF[lane, fields.OWN_SLOT.value] = count - lane  # not the lane's own number, which would hide a mistake
        state_LF[lane, fields.ROLLOUT.value] = lane
    places = torch.zeros(fields.PLACES.value, dtype=torch.int64)
    for field, number in (
        (fields.OWN_CACHE, own.data_ptr()),
        (fields.OWN_SLOTS, count + 1),
        (fields.OWN_TOKENS, own_tokens),
        (fields.PROMPT_CACHE, prompts.data_ptr()),
        (fields.PROMPT_SLOTS, prompt_slots),
        (fields.PROMPT_TOKENS, prompt_tokens),
        (fields.ROTATIONS, rotations_NW.data_ptr()),
        (fields.UNIFORMS, uniforms_RT.data_ptr()),
        (fields.UNIFORMS_TOKENS, own_tokens),
        (fields.WRITTEN_TOKENS, written_C2L.data_ptr()),
        (fields.WRITTEN_LANES, count),
    ):
        places[field.value] = number
    return Scene(state_LF, places, own, prompts, rotations_NW, uniforms_RT, written_C2L)
