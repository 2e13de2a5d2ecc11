"""One token more for every slot: the family's decoding step as a fixed row of kernels in fixed buffers.

Nothing in it allocates, waits for the device or looks at a number of a slot, so that a CUDA graph can hold it. The
weights are read where the trainer has them; adapters are small products beside the large ones, never merged.

Shape legend: L slots, D hidden size, O outputs, I inputs, K rank of an adapter, V vocabulary, F fields of a slot.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from assay.llama.family import Family, Layer, Projection, Stack
from assay.llama.kernels.decode_adapter import Beside, add_low_rank, low_room
from assay.llama.kernels.decode_attention import Heads, Tiles, attend, remember, split_room
from assay.llama.kernels.decode_small import add_norm, embed, gate
from assay.llama.kernels.decode_state import FIELDS, PLACES
from assay.llama.kernels.matmul import Room, begin, matmul, normed_matmul, residual_matmul
from assay.llama.kernels.pick import pick, sums_room
from assay.llama.kernels.shared_memory import shared_memory
from assay.llama.packed import Packed, attention

Ending = Literal["drawn", "likeliest", "logits"]


@dataclass(frozen=True, slots=True, eq=False)
class OutputColumns:
    """A matrix that fills some columns of an output."""

    first: int
    last: int
    weight_OI: Tensor
    bias_O: Tensor | None


class StackProduct:
    """Projections of one input side by side, with their adapters."""

    def __init__(self, stack: Stack) -> None:
        lasts = [sum(stack.widths[: number + 1]) for number in range(len(stack.parts))]
        firsts = [0, *lasts[:-1]]
        joined = stack.weight()
        if joined is not None:
            self.columns = [OutputColumns(0, lasts[-1], joined, stack.bias())]
        else:
            self.columns = [
                OutputColumns(
                    first, last, part.weight_OI.detach(), None if part.bias_O is None else part.bias_O.detach()
                )
                for first, last, part in zip(firsts, lasts, stack.parts, strict=True)
            ]
        self.adapters = [
            Beside(first, last, low_rank.down_KI.detach(), low_rank.up_OK.detach(), low_rank.scale)
            for first, last, low_rank in zip(firsts, lasts, (part.low_rank for part in stack.parts), strict=True)
            if low_rank is not None
        ]

    @classmethod
    def of(cls, projection: Projection) -> StackProduct:
        return cls(Stack((projection,)))

    @property
    def whole(self) -> tuple[Tensor, Tensor | None]:
        """(weight_OI, bias_O) of a product that is one matrix."""
        (columns,) = self.columns
        return columns.weight_OI, columns.bias_O

    def run(self, inputs_LI: Tensor, outputs_LO: Tensor, low: Tensor | None) -> None:
        for columns in self.columns:
            matmul(inputs_LI, columns.weight_OI, columns.bias_O, outputs_LO[:, columns.first : columns.last])
        if self.adapters:
            assert low is not None
            add_low_rank(inputs_LI, outputs_LO, self.adapters, low)


class LayerStep:
    def __init__(self, layer: Layer) -> None:
        self.first_norm_D = layer.first_norm_D.detach()
        self.query_key_value = StackProduct(layer.query_key_value)
        self.norms = (
            None
            if layer.query_norm is None or layer.key_norm is None
            else (layer.query_norm.detach(), layer.key_norm.detach())
        )
        self.output = StackProduct.of(layer.output)
        self.second_norm_D = layer.second_norm_D.detach()
        self.gate_up = StackProduct(layer.gate_up)
        self.down = StackProduct.of(layer.down)


class Step:
    """Buffers for a number of slots, and what happens in them."""

    def __init__(self, family: Family, slots: int) -> None:
        device, dtype = family.device, family.dtype
        self.addresses = addresses(family)
        self.slots = slots
        self.embedding_VD = family.embedding_VD.detach()
        self.layers = [LayerStep(layer) for layer in family.layers]
        self.following = [*(layer.first_norm_D for layer in self.layers[1:]), family.norm_D.detach()]  # norms
        self.head = StackProduct.of(family.head)
        self.epsilon = family.epsilon
        self.heads = Heads(family.heads, family.key_heads, family.head_width, family.attention_scale, family.epsilon)
        hidden, inner = family.embedding_VD.shape[1], family.layers[0].down.weight_OI.shape[1]
        wide = (family.heads + 2 * family.key_heads) * family.head_width

        def buffer(width: int) -> Tensor:
            return torch.zeros(slots, width, dtype=dtype, device=device)

        self.states_LD, self.normed_LD, self.change_LD = buffer(hidden), buffer(hidden), buffer(hidden)
        self.qkv_LO, self.seen_LO = buffer(wide), buffer(family.heads * family.head_width)
        self.gate_up_LO, self.gated_LI = buffer(2 * inner), buffer(inner)
        self.logits_LV = buffer(family.head.weight_OI.shape[0])
        self.sums_LN2 = sums_room(slots, self.logits_LV.shape[1], device)
        adapters = [product.adapters for product in self.products()]
        self.low = low_room(slots, adapters, device) if any(adapters) else None
        # fused products need whole matrices, and no adapter between a product and its neighbour
        whole = self.low is None and all(stack.weight() is not None for stack in family.stacks)
        self.room = Room.make(slots, hidden, 2 * inner, dtype, device) if whole else None
        self.split_room = split_room(self.heads, device)
        self.state_LF = torch.zeros(slots, FIELDS.value, dtype=torch.int32, device=device)
        self.places = torch.zeros(PLACES.value, dtype=torch.int64, device=device)
        self.temperature_1 = torch.ones(1, device=device)

    def products(self) -> Iterator[StackProduct]:
        for layer in self.layers:
            yield from (layer.query_key_value, layer.output, layer.gate_up, layer.down)
        yield self.head

    def tiles(self, slots: int, context: int) -> Tiles:
        shared = shared_memory(self.states_LD.device)
        return Tiles.for_slots(slots, self.heads, context, self.states_LD.dtype, shared)

    def launch(self, slots: int, tiles: Tiles, ending: Ending) -> None:
        """A step of the first `slots` slots: their logits or, further, the next token of each, which moves it on."""
        embed(self.state_LF[:slots], self.embedding_VD, self.states_LD[:slots])
        normed_LD = (
            self._plain_layers(slots, tiles) if self.room is None else self._fused_layers(slots, tiles, self.room)
        )
        logits_LV = self.logits_LV[:slots]
        self.head.run(normed_LD, logits_LV, self.low)
        if ending != "logits":
            state_LF, is_greedy = self.state_LF[:slots], ending == "likeliest"
            pick(logits_LV, self.temperature_1, self.sums_LN2, state_LF, self.places, is_greedy)

    def _fused_layers(self, slots: int, tiles: Tiles, room: Room) -> Tensor:
        """normed_LD after the last layer."""
        qkv_LO, seen_LO, gated_LI = self.qkv_LO[:slots], self.seen_LO[:slots], self.gated_LI[:slots]
        stream = begin(self.states_LD[:slots], self.layers[0].first_norm_D, self.epsilon, room)
        for number, (layer, next_norm_D) in enumerate(zip(self.layers, self.following, strict=True)):
            normed_matmul(stream, *layer.query_key_value.whole, qkv_LO)
            self._attend(slots, tiles, number)
            stream = residual_matmul(seen_LO, *layer.output.whole, stream, layer.second_norm_D)
            normed_matmul(stream, *layer.gate_up.whole, gated_LI, gated=True)
            stream = residual_matmul(gated_LI, *layer.down.whole, stream, next_norm_D)
        return stream.normed()

    def _plain_layers(self, slots: int, tiles: Tiles) -> Tensor:
        """The same, with room for adapters between the products."""
        states_LD, normed_LD, change_LD = self.states_LD[:slots], self.normed_LD[:slots], self.change_LD[:slots]
        gate_up_LO, gated_LI, low = self.gate_up_LO[:slots], self.gated_LI[:slots], self.low
        add_norm(states_LD, None, self.layers[0].first_norm_D, self.epsilon, normed_LD)
        for number, (layer, next_norm_D) in enumerate(zip(self.layers, self.following, strict=True)):
            layer.query_key_value.run(normed_LD, self.qkv_LO[:slots], low)
            self._attend(slots, tiles, number)
            layer.output.run(self.seen_LO[:slots], change_LD, low)
            add_norm(states_LD, change_LD, layer.second_norm_D, self.epsilon, normed_LD)
            layer.gate_up.run(normed_LD, gate_up_LO, low)
            gate(gate_up_LO, gated_LI)
            layer.down.run(gated_LI, change_LD, low)
            add_norm(states_LD, change_LD, next_norm_D, self.epsilon, normed_LD)
        return normed_LD

    def _attend(self, slots: int, tiles: Tiles, number: int) -> None:
        attend(
            self.qkv_LO[:slots],
            self.seen_LO[:slots],
            self.state_LF[:slots],
            self.places,
            number,
            self.heads,
            tiles,
            self.split_room,
            self.layers[number].norms,
        )


@torch.no_grad()
def prefill_prompts(step: Step, packed: Packed, rows_N: Tensor) -> None:
    """Writes keys and values of packed prompts into their rows of the prompt cache.

    Written with the kernels of a step because launching is most of the work: the forward pass of the policy, which
    could be differentiated, took 32 ms on an H200 for 900 tokens and for 3,600 alike (135M)."""
    tokens, heads, low = len(rows_N), step.heads, None

    def buffer(like_LO: Tensor) -> Tensor:
        return like_LO.new_empty(tokens, like_LO.shape[1])

    states_ND = step.embedding_VD[packed.ids_N]
    normed_ND, change_ND, qkv_NO = buffer(step.normed_LD), buffer(step.change_LD), buffer(step.qkv_LO)
    gate_up_NO, gated_NI = buffer(step.gate_up_LO), buffer(step.gated_LI)
    turned_NO = states_ND.new_empty(tokens, (heads.heads + heads.key_heads) * heads.width)
    turned_NTW = turned_NO.view(tokens, -1, heads.width)
    queries_NHW, keys_NKW = turned_NTW[:, : heads.heads], turned_NTW[:, heads.heads :]
    values_NKW = qkv_NO.view(tokens, -1, heads.width)[:, heads.heads + heads.key_heads :]
    if step.low is not None:
        low = low_room(tokens, [product.adapters for product in step.products()], rows_N.device)
    add_norm(states_ND, None, step.layers[0].first_norm_D, step.epsilon, normed_ND)
    for number, (layer, next_norm_D) in enumerate(zip(step.layers, step.following, strict=True)):
        layer.query_key_value.run(normed_ND, qkv_NO, low)
        remember(qkv_NO, turned_NO, rows_N, packed.positions_N, step.places, number, heads, layer.norms)
        if number + 1 == len(step.layers):
            return  # the states after the last layer are not needed
        seen_NHW = attention(queries_NHW, keys_NKW, values_NKW, packed, heads.scale)
        layer.output.run(seen_NHW.flatten(1), change_ND, low)
        add_norm(states_ND, change_ND, layer.second_norm_D, step.epsilon, normed_ND)
        layer.gate_up.run(normed_ND, gate_up_NO, low)
        gate(gate_up_NO, gated_NI)
        layer.down.run(gated_NI, change_ND, low)
        add_norm(states_ND, change_ND, next_norm_D, step.epsilon, normed_ND)


def bytes_per_slot(family: Family) -> int:
    """About how many bytes the buffers of a step hold for one slot."""
    hidden, inner = family.embedding_VD.shape[1], family.layers[0].down.weight_OI.shape[1]
    wide = 2 * (family.heads + family.key_heads) * family.head_width
    return (3 * hidden + wide + 3 * inner + family.head.weight_OI.shape[0]) * family.dtype.itemsize + 1024


def bytes_per_prompt_token(family: Family) -> int:
    """About how many bytes are held for one token while prompts are computed."""
    return bytes_per_slot(family) - family.head.weight_OI.shape[0] * family.dtype.itemsize


def addresses(family: Family) -> tuple[int, ...]:
    """Where the weights are in memory: a captured graph reads them there."""
    tensors: list[Tensor] = [family.embedding_VD, family.norm_D]
    for layer in family.layers:
        norms = (layer.first_norm_D, layer.second_norm_D, layer.query_norm, layer.key_norm)
        tensors += [tensor for tensor in norms if tensor is not None]
    for part in family.projections:
        tensors += [part.weight_OI, *([] if part.bias_O is None else [part.bias_O])]
        if part.low_rank is not None:
            tensors += [part.low_rank.down_KI, part.low_rank.up_OK]
    return tuple(tensor.data_ptr() for tensor in tensors)
