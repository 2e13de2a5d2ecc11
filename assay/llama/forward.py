"""The forward pass of the Llama family over packed tokens, for the update and for prompts.

It gives the numbers of the Hugging Face model, except for rounding (probe.py sees to that), without padding and with a
prompt computed once for all of its completions. The same kernels run in the same order with gradients and without, and
when a layer is computed again: the numbers have the same bits.

Shape legend: N tokens, D hidden size, C queries, keys and values side by side, H heads, K heads of keys, W width of a
head, F half of it, J gates and ups side by side.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import embedding, silu
from torch.utils.checkpoint import checkpoint

from assay.llama.family import Family, Layer
from assay.llama.joined import GatedProjection, project, project_all
from assay.llama.packed import Packed, attention
from assay.machine.device import as_current

KeysAndValues = Callable[[int, Tensor, Tensor], None]
FUSED_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def hidden_states(
    family: Family, packed: Packed, keep: KeysAndValues | None = None, *, checkpointing: bool = False
) -> Tensor:
    """states_ND after the last norm. `keep(layer, keys_NKW, values_NKW)` is given what a cache would hold: keys are
    rotated. `checkpointing` keeps only what goes into a layer, and computes the layer again in the backward pass."""
    with as_current(family.device):
        return _hidden_states(family, packed, keep, checkpointing)


def _hidden_states(family: Family, packed: Packed, keep: KeysAndValues | None, checkpointing: bool) -> Tensor:
    rotations = family.rotations(packed.positions_N)
    states_ND, delta_ND = embedding(packed.ids_N, family.embedding_VD, family.untrained_id), None
    for number, layer in enumerate(family.layers):
        if checkpointing and torch.is_grad_enabled():
            states_ND = checkpoint(
                _layer_sum, family, layer, packed, rotations, states_ND, use_reentrant=False, preserve_rng_state=False
            )
            continue
        kept = None if keep is None else _for_layer(keep, number)
        states_ND, delta_ND = _layer(family, layer, packed, rotations, states_ND, delta_ND, kept)
    return add_norm(states_ND, delta_ND, family.norm_D, family.epsilon)[1]


def _layer(
    family: Family,
    layer: Layer,
    packed: Packed,
    rotations: tuple[Tensor, Tensor],
    states_ND: Tensor,
    delta_ND: Tensor | None,
    keep: Callable[[Tensor, Tensor], None] | None,
) -> tuple[Tensor, Tensor]:
    """(states_ND, delta_ND), still to be added up: the next norm adds them in the same pass."""
    states_ND, normed_ND = add_norm(states_ND, delta_ND, layer.first_norm_D, family.epsilon)
    turned_NC = _turn_heads(family, layer, project_all(normed_ND, layer.query_key_value), rotations)
    queries_NHW, keys_NKW, values_NKW = _heads(family, turned_NC)
    if keep is not None:
        keep(keys_NKW, values_NKW)
    seen_NHW = attention(queries_NHW, keys_NKW, values_NKW, packed, family.attention_scale)
    states_ND, normed_ND = add_norm(
        states_ND, project(seen_NHW.flatten(1), layer.output), layer.second_norm_D, family.epsilon
    )
    return states_ND, _gated_down(layer, project_all(normed_ND, layer.gate_up))


def _layer_sum(
    family: Family, layer: Layer, packed: Packed, rotations: tuple[Tensor, Tensor], states_ND: Tensor
) -> Tensor:
    states_ND, delta_ND = _layer(family, layer, packed, rotations, states_ND, None, None)
    return states_ND + delta_ND


def _for_layer(keep: KeysAndValues, number: int) -> Callable[[Tensor, Tensor], None]:
    return lambda keys_NKW, values_NKW: keep(number, keys_NKW, values_NKW)


def _uses_kernels(values: Tensor) -> bool:
    """Whether Triton kernels compute with these values; elsewhere torch does; only rounding differs."""
    return values.is_cuda and values.dtype in FUSED_DTYPES


def add_norm(states_ND: Tensor, delta_ND: Tensor | None, weight_D: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """(states + delta, their norm)."""
    if _uses_kernels(states_ND):
        from assay.llama.kernels.norm import add_norm as fused

        return fused(states_ND, delta_ND, weight_D, epsilon)
    if delta_ND is not None:
        states_ND = states_ND + delta_ND
    return states_ND, norm(states_ND, weight_D, epsilon)


def _turn_heads(family: Family, layer: Layer, joined_NC: Tensor, rotations: tuple[Tensor, Tensor]) -> Tensor:
    """Queries and keys normed, where the model does that, and rotated; values as they are."""
    if _uses_kernels(joined_NC):
        from assay.llama.kernels.rotation import rotate_heads as fused

        return fused(
            joined_NC, *rotations, family.heads, family.key_heads, layer.query_norm, layer.key_norm, family.epsilon
        )
    queries, keys, values = _heads(family, joined_NC)
    if layer.query_norm is not None and layer.key_norm is not None:
        queries = norm(queries, layer.query_norm, family.epsilon)
        keys = norm(keys, layer.key_norm, family.epsilon)
    queries, keys = rotate(queries, *rotations), rotate(keys, *rotations)
    return torch.cat([queries, keys, values], dim=1).flatten(1)


def _heads(family: Family, joined_NC: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(queries_NHW, keys_NKW, values_NKW), views."""
    joined_NTW = joined_NC.view(len(joined_NC), -1, family.head_width)
    queries_NHW, keys_NKW, values_NKW = torch.split(
        joined_NTW, [family.heads, family.key_heads, family.key_heads], dim=1
    )
    return queries_NHW, keys_NKW, values_NKW


def _gated_down(layer: Layer, gate_up_NJ: Tensor) -> Tensor:
    fused, down = _uses_kernels(gate_up_NJ), layer.down
    if fused and down.low_rank is None:
        outputs_ND: Tensor = GatedProjection.apply(gate_up_NJ, down.weight_OI, down.bias_O)  # type: ignore[no-untyped-call]
        return outputs_ND
    if fused:
        from assay.llama.kernels.gate import gate_and_up

        return project(gate_and_up(gate_up_NJ), down)
    gate_NM, up_NM = gate_up_NJ.chunk(2, dim=1)
    return project(silu(gate_NM) * up_NM, down)


def norm(values: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Root mean square norm over the last dimension, computed in float32 or better."""
    exact = values.to(torch.promote_types(values.dtype, torch.float32))
    exact = exact * torch.rsqrt(exact.square().mean(-1, keepdim=True) + epsilon)
    return weight * exact.to(values.dtype)


def rotate(heads_NHW: Tensor, cosines_NF: Tensor, sines_NF: Tensor) -> Tensor:
    left_NHF, right_NHF = heads_NHW.to(torch.promote_types(heads_NHW.dtype, torch.float32)).chunk(2, dim=-1)
    cosines_N1F, sines_N1F = cosines_NF.unsqueeze(1), sines_NF.unsqueeze(1)
    turned = (left_NHF * cosines_N1F - right_NHF * sines_N1F, right_NHF * cosines_N1F + left_NHF * sines_N1F)
    return torch.cat(turned, dim=-1).to(heads_NHW.dtype)
