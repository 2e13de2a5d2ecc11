"""The family's decoder on a CPU: all lanes at once, through the trainer's own parameters.

Almost all of the time goes into matrix products, and there is one for each matrix: queries, keys and values together,
gate and up together, all lanes together. Where memory allows, the matrices are copied into the order in which the
processor reads them, for one call and never longer: the next one sees what the optimizer did. A prompt's keys meet the
queries of all of its lanes in one product; a lane's own keys stand apart, and one softmax runs over both. Caches are
made once and written in place.

Shape legend: L lanes, D hidden size, O outputs, H heads, K heads of keys, G = H / K queries of a key head, W width of
a head, F half of it, P columns of prompts, T columns of own tokens, S prompt slots, M most lanes of a slot, A = P + T.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import embedding, silu

from assay.config.sections import RolloutConfig
from assay.engine.decoder import Sampled, Seat
from assay.engine.matrix import copied_bytes, layer_matrices, single
from assay.engine.sampling import Drawn, draw
from assay.policy.family import Family
from assay.policy.forward import hidden_states, norm
from assay.policy.memory import free_bytes
from assay.policy.packed import Packed

MARGIN = 0.8  # of the free memory is used
PROMPT_TOKENS_AT_A_TIME = 4096
COPIES_PAY_FROM = 8  # tokens of a rollout


class CpuDecoder:
    look_every = 1  # tokens are where they are looked at
    keep_below = 0.75

    def __init__(self, family: Family) -> None:
        self.family = family

    def lanes_that_fit(self, prompt_slots_a_lane: float, prompt_width: int, max_tokens: int) -> int:
        lane_bytes = self._lane_bytes(prompt_slots_a_lane, prompt_width, max_tokens)
        return int(MARGIN * free_bytes(self.family.device) / lane_bytes)

    def _lane_bytes(self, prompt_slots_a_lane: float, prompt_width: int, max_tokens: int) -> float:
        family = self.family
        token = 2 * len(family.layers) * family.key_heads * family.head_width * family.dtype.itemsize
        vocabulary = 2 * 4 * len(family.embedding_VD)  # logits and weights
        return token * (max_tokens + prompt_slots_a_lane * prompt_width) + vocabulary

    def open(
        self,
        *,
        lanes: int,
        prompt_slots: int,
        prompt_width: int,
        settings: RolloutConfig,
        temperature: float,
        uniforms_RT: Tensor | None,
    ) -> None:
        family = self.family
        self.settings, self.temperature, self.uniforms_RT = settings, temperature, uniforms_RT
        needed = lanes * self._lane_bytes(prompt_slots / lanes, prompt_width, settings.max_tokens) + copied_bytes(
            family
        )
        copies = settings.max_tokens >= COPIES_PAY_FROM and needed <= MARGIN * free_bytes(self.family.device)
        self.matrices, self.head = layer_matrices(family, copies=copies), single(family.head, copies=copies)

        def caches(rows: int, columns: int) -> list[Tensor]:
            # of zeros: what lies under a mask is multiplied by 0, which NaN would survive
            shape = rows, family.key_heads, columns, family.head_width
            return [torch.zeros(shape, dtype=family.dtype) for _ in family.layers]

        self.prompt_keys, self.prompt_values = caches(prompt_slots, prompt_width), caches(prompt_slots, prompt_width)
        self.own_keys, self.own_values = caches(lanes, settings.max_tokens), caches(lanes, settings.max_tokens)
        self.cosines_AF, self.sines_AF = family.rotations(torch.arange(prompt_width + settings.max_tokens))
        self.tokens_L, self.rollouts_L, self.slots_L, self.counts_L, self.prompts_L = (
            torch.zeros(lanes, dtype=torch.long) for _ in range(5)
        )  # prompts_L, counts_L: tokens in the cache of the prompt and in the lane's own
        self.drawn: list[Drawn] = []
        self._arrange()

    def remember(self, prompts: Sequence[tuple[int, Sequence[int]]]) -> None:
        part: list[tuple[int, Sequence[int]]] = []
        for slot, tokens in sorted(prompts, key=lambda prompt: len(prompt[1])):
            if part and sum(len(tokens) for _, tokens in part) + len(tokens) > PROMPT_TOKENS_AT_A_TIME:
                self._remember(part)
                part = []
            if tokens:
                part.append((slot, tokens))
        if part:
            self._remember(part)

    def _remember(self, prompts: Sequence[tuple[int, Sequence[int]]]) -> None:
        packed = Packed.of_sequences([tokens for _, tokens in prompts], self.family.device)

        def keep(layer: int, keys_NKW: Tensor, values_NKW: Tensor) -> None:
            for (slot, tokens), segment in zip(prompts, packed.segments, strict=True):
                here = slice(segment.start, segment.end)
                self.prompt_keys[layer][slot, :, : len(tokens)] = keys_NKW[here].transpose(0, 1)
                self.prompt_values[layer][slot, :, : len(tokens)] = values_NKW[here].transpose(0, 1)

        hidden_states(self.family, packed, keep)

    def seat(self, seats: Sequence[Seat]) -> None:
        lanes = torch.tensor([seat.lane for seat in seats])
        self.tokens_L[lanes] = torch.tensor([seat.last_token for seat in seats])
        self.rollouts_L[lanes] = torch.tensor([seat.rollout for seat in seats])
        self.slots_L[lanes] = torch.tensor([seat.prompt_slot for seat in seats])
        self.prompts_L[lanes] = torch.tensor([seat.prompt_tokens - 1 for seat in seats])
        self.counts_L[lanes] = 0
        self._arrange()

    def advance(self, positions: int) -> None:
        for _ in range(positions):
            self._step()

    def sampled(self) -> Sampled:
        drawn, self.drawn = self.drawn, []
        supports = [each.support_NK for each in drawn if each.support_NK is not None]
        return Sampled(
            torch.stack([each.tokens_N for each in drawn], dim=1),
            torch.stack([each.logprobs_N for each in drawn], dim=1),
            torch.stack(supports, dim=1) if supports else None,
        )

    def keep(self, lanes: Sequence[int]) -> None:
        kept = torch.tensor(lanes)
        slots, self.slots_L = torch.unique(self.slots_L[kept], return_inverse=True)
        self.tokens_L, self.rollouts_L, self.counts_L, self.prompts_L = (
            each[kept] for each in (self.tokens_L, self.rollouts_L, self.counts_L, self.prompts_L)
        )
        for caches, order in (
            (self.own_keys, kept),
            (self.own_values, kept),
            (self.prompt_keys, slots),
            (self.prompt_values, slots),
        ):
            for layer, cache in enumerate(caches):
                moved = (order != torch.arange(len(order))).nonzero().squeeze(1)
                cache[moved] = cache[order[moved]]
                caches[layer] = cache[: len(order)]
        self._arrange()

    def close(self) -> None:
        for name in ("prompt_keys", "prompt_values", "own_keys", "own_values", "matrices", "head"):
            if hasattr(self, name):
                delattr(self, name)

    def _arrange(self) -> None:
        """The lanes of each slot, for one product a slot; a slot with fewer lanes than another repeats lane 0."""
        lanes_of: list[list[int]] = [[] for _ in range(int(self.slots_L.max()) + 1)]
        self.places_L = torch.empty_like(self.slots_L)  # where a lane stands in the table of slots
        for lane, slot in enumerate(self.slots_L.tolist()):
            self.places_L[lane] = len(lanes_of[slot])
            lanes_of[slot].append(lane)
        most = max(map(len, lanes_of))
        self.places_L += self.slots_L * most
        self.lanes_SM = torch.tensor([lanes + [0] * (most - len(lanes)) for lanes in lanes_of])
        self.in_order = torch.equal(self.places_L, torch.arange(self.lanes_SM.numel()))  # then nothing need be gathered

    def _step(self) -> None:
        family = self.family
        # a lane that has ended goes on until it is looked at; it stays within its room
        self.counts_L.clamp_(max=self.settings.max_tokens - 1)
        positions_L = self.prompts_L + self.counts_L
        cosines_L1W = self.cosines_AF[positions_L].repeat(1, 2).unsqueeze(1)
        sines_L1F = self.sines_AF[positions_L].unsqueeze(1)
        rotations = cosines_L1W, torch.cat([-sines_L1F, sines_L1F], dim=2)
        mask_L11A = self._mask()
        heads = torch.arange(len(self.counts_L) * family.key_heads)
        # the row of each lane and key head in a cache seen as one long list
        self.newest = heads * self.settings.max_tokens + self.counts_L.repeat_interleave(family.key_heads)
        states_LD = embedding(self.tokens_L, family.embedding_VD.detach())
        for number, (layer, matrices) in enumerate(zip(family.layers, self.matrices, strict=True)):
            normed_LD = norm(states_LD, layer.first_norm_D, family.epsilon)
            heads_LO = matrices.query_key_value.product(normed_LD)
            # added once it is whole: parts of it, added one by one to states a thousand times larger, would be rounded
            states_LD += matrices.output.product(self._attention(number, heads_LO, rotations, mask_L11A))
            normed_LD = norm(states_LD, layer.second_norm_D, family.epsilon)
            gate_LO, up_LO = matrices.gate_up.product(normed_LD).chunk(2, dim=1)
            states_LD += matrices.down.product(silu(gate_LO).mul_(up_LO))
        logits_LV = self.head.product(norm(states_LD, family.norm_D, family.epsilon))
        uniforms_L = None if self.uniforms_RT is None else self.uniforms_RT[self.rollouts_L, self.counts_L]
        drawn = draw(logits_LV, uniforms_L, self.temperature, self.settings)
        self.drawn.append(drawn)
        self.tokens_L = drawn.tokens_N
        self.counts_L += 1

    def _mask(self) -> Tensor:
        """mask_L11A: 0 where a lane has a token in its prompt's columns and in its own, -inf elsewhere."""
        self.widths = int(self.prompts_L.max()), int(self.counts_L.max()) + 1
        prompt_P, own_T = (torch.arange(width) for width in self.widths)
        hidden_LA = torch.cat(
            [prompt_P >= self.prompts_L.unsqueeze(1), own_T > self.counts_L.unsqueeze(1)],
            dim=1,
        )
        return torch.zeros(hidden_LA.shape).masked_fill_(hidden_LA, -float("inf"))[:, None, None]

    def _attention(self, number: int, heads_LO: Tensor, rotations: tuple[Tensor, Tensor], mask_L11A: Tensor) -> Tensor:
        """outputs_LO of the attention to the prompt and to the lane's own tokens, the newest among them."""
        family, layer = self.family, self.family.layers[number]
        lanes, key_heads, width = len(heads_LO), family.key_heads, family.head_width
        queries_LHW, keys_LKW, values_LKW = heads_LO.view(lanes, -1, width).split_with_sizes(
            [family.heads, key_heads, key_heads], dim=1
        )
        if layer.query_norm is not None and layer.key_norm is not None:
            queries_LHW = norm(queries_LHW, layer.query_norm, family.epsilon)
            keys_LKW = norm(keys_LKW, layer.key_norm, family.epsilon)
            straight_LHW = torch.cat([queries_LHW, keys_LKW], dim=1)
        else:
            straight_LHW = heads_LO.view(lanes, -1, width)[:, : family.heads + key_heads]
        turned_LHW = _rotated(straight_LHW, *rotations)
        queries_LHW, keys_LKW = turned_LHW.split_with_sizes([family.heads, key_heads], dim=1)
        self.own_keys[number].view(-1, width).index_copy_(0, self.newest, keys_LKW.reshape(-1, width))
        self.own_values[number].view(-1, width).index_copy_(0, self.newest, values_LKW.reshape(-1, width))

        queries_LKGW = queries_LHW.reshape(lanes, key_heads, -1, width)
        prompt_width, own_width = self.widths
        own_keys, own_values = (
            cache[number].flatten(0, 1)[:, :own_width] for cache in (self.own_keys, self.own_values)
        )
        own_scores = torch.bmm(queries_LKGW.flatten(0, 1), own_keys.transpose(1, 2)).view(
            lanes, key_heads, -1, own_width
        )
        if prompt_width == 0:
            shares = (own_scores.float() * family.attention_scale + mask_L11A).softmax(dim=-1).to(family.dtype)
            return torch.bmm(shares.flatten(0, 1), own_values).view(lanes, -1)
        slots = len(self.lanes_SM)
        prompt_keys, prompt_values = (
            cache[number][:slots].flatten(0, 1)[:, :prompt_width] for cache in (self.prompt_keys, self.prompt_values)
        )
        prompt_scores = self._of_lanes(torch.bmm(self._of_slots(queries_LKGW), prompt_keys.transpose(1, 2)))
        scores_LKGA = torch.cat([prompt_scores, own_scores], dim=-1).float().mul_(family.attention_scale)
        shares_LKGA = scores_LKGA.add_(mask_L11A).softmax(dim=-1).to(family.dtype)
        seen_LKGW = self._of_lanes(torch.bmm(self._of_slots(shares_LKGA[..., :prompt_width]), prompt_values))
        return torch.baddbmm(seen_LKGW.flatten(0, 1), shares_LKGA[..., prompt_width:].flatten(0, 1), own_values).view(
            lanes, -1
        )

    def _of_slots(self, rows_LKGX: Tensor) -> Tensor:
        """[L, K, G, X] -> [S * K, M * G, X]: what the lanes of a slot ask, side by side."""
        slots, most = self.lanes_SM.shape
        rows = rows_LKGX if self.in_order else rows_LKGX.index_select(0, self.lanes_SM.flatten())
        rows_SMKGX = rows.view(slots, most, *rows.shape[1:])
        return rows_SMKGX.transpose(1, 2).reshape(slots * rows_LKGX.shape[1], -1, rows_LKGX.shape[3])

    def _of_lanes(self, rows: Tensor) -> Tensor:
        """[S * K, M * G, X] -> [L, K, G, X]."""
        slots, most = self.lanes_SM.shape
        rows_SMKGX = rows.view(slots, self.family.key_heads, most, -1, rows.shape[2]).transpose(1, 2)
        rows_LKGX = rows_SMKGX.flatten(0, 1)
        return rows_LKGX if self.in_order else rows_LKGX.index_select(0, self.places_L)


def _rotated(heads_LHW: Tensor, cosines_L1W: Tensor, sines_L1W: Tensor) -> Tensor:
    """As forward.rotated, in three passes: sines are negative for the left half, which the right one is added to."""
    exact_LHW = heads_LHW.float()
    swapped_LHW = exact_LHW.roll(heads_LHW.shape[2] // 2, dims=2)
    return torch.addcmul(exact_LHW * cosines_L1W, swapped_LHW, sines_L1W).to(heads_LHW.dtype)
