"""Slots in the middle of their completions, with caches full of random numbers, for the tests of decoding kernels."""

from dataclasses import dataclass

import torch

from assay.llama.kernels import decode_state as fields


@dataclass
class Scene:
    state_LF: torch.Tensor
    places: torch.Tensor
    own: torch.Tensor  # [layer, keys or values, row, key head, token, width]
    prompts: torch.Tensor
    rotations_NW: torch.Tensor
    uniforms_RT: torch.Tensor
    written_C2L: torch.Tensor


def scene(slots, *, layers=2, key_heads=2, width=8, own_tokens=7, prompt_rows=3, prompt_tokens=9, dtype=torch.float32):
    """`slots`: (prompt row, tokens of the prompt before its last one, tokens done) of each."""
    generator = torch.Generator().manual_seed(3)
    count = len(slots)
    own = torch.randn(layers, 2, count + 1, key_heads, own_tokens, width, generator=generator).to(dtype)
    prompts = torch.randn(layers, 2, prompt_rows, key_heads, prompt_tokens, width, generator=generator).to(dtype)
    angles = torch.rand(prompt_tokens + own_tokens, width // 2, generator=generator) * 6
    rotations_NW = torch.cat([angles.cos(), angles.sin()], dim=1)
    uniforms_RT = torch.rand(count, own_tokens, generator=generator)
    written_C2L = torch.zeros(own_tokens, 2, count, dtype=torch.int32)
    state_LF = torch.zeros(count, fields.FIELDS.value, dtype=torch.int32)
    for slot, (cache_row, before, done) in enumerate(slots):
        state_LF[slot, fields.PROMPT_ROW.value] = cache_row
        state_LF[slot, fields.BEFORE.value] = before
        state_LF[slot, fields.DONE.value] = done
        state_LF[slot, fields.OWN_ROW.value] = count - slot  # not the slot's own number, which would hide a mistake
        state_LF[slot, fields.ROLLOUT.value] = slot
    places = torch.zeros(fields.PLACES.value, dtype=torch.int64)
    for field, number in (
        (fields.OWN_CACHE, own.data_ptr()),
        (fields.OWN_ROWS, count + 1),
        (fields.OWN_TOKENS, own_tokens),
        (fields.PROMPT_CACHE, prompts.data_ptr()),
        (fields.PROMPT_ROWS, prompt_rows),
        (fields.PROMPT_TOKENS, prompt_tokens),
        (fields.ROTATIONS, rotations_NW.data_ptr()),
        (fields.UNIFORMS, uniforms_RT.data_ptr()),
        (fields.UNIFORMS_TOKENS, own_tokens),
        (fields.WRITTEN_TOKENS, written_C2L.data_ptr()),
        (fields.WRITTEN_SLOTS, count),
    ):
        places[field.value] = number
    return Scene(state_LF, places, own, prompts, rotations_NW, uniforms_RT, written_C2L)
