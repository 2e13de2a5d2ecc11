"""The family's decoder on a CPU: all slots at once, through the trainer's own parameters.

Almost all of the time goes into matrix products, and there is one for each matrix: queries, keys and values together,
gate and up together, all slots together. Where memory allows, the matrices are copied into the order in which the
processor reads them, for one call and never longer: the next one sees what the optimizer did. A prompt's keys meet the
queries of all of its slots in one product; a slot's own keys stand apart, and one softmax runs over both. Heads of keys
come before slots in every cache: then both products read queries and shares as they stand.

Shape legend: L slots, D hidden size, O outputs, H heads, K heads of keys, G = H / K queries of a key head, W width of
a head, F half of it, P columns of prompts, T columns of own tokens, R rows of the prompt cache, M most slots of such a
row, A = P + T.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import embedding, silu

from assay.llama.decoder import CachedPrompt, Decoding, Sampled, Start, split_prompts
from assay.llama.family import Family
from assay.llama.forward import hidden_states, norm
from assay.llama.matrix import copied_bytes, head_matrix, layer_matrices
from assay.llama.packed import Packed
from assay.machine.memory import free_bytes
from assay.sampling import Drawn, draw

MARGIN = 0.8  # of the free memory is used
PROMPT_TOKENS_AT_A_TIME = 4096
COPIES_PAY_FROM = 8  # tokens of a rollout


class CpuDecoder:
    look_every = 1  # tokens are where they are looked at
    ahead = 0
    keep_below = 0.75

    def __init__(self, family: Family) -> None:
        self.family = family

    def slots_that_fit(self, prompts_per_slot: float, prompt_width: int, max_tokens: int) -> int:
        slot_bytes = self._slot_bytes(prompts_per_slot, prompt_width, max_tokens)
        return int(MARGIN * free_bytes(self.family.device) / slot_bytes)

    def _slot_bytes(self, prompts_per_slot: float, prompt_width: int, max_tokens: int) -> float:
        vocabulary = 2 * 4 * len(self.family.embedding_VD)  # logits and weights
        return self.family.bytes_per_token * (max_tokens + prompts_per_slot * prompt_width) + vocabulary

    def open(self, decoding: Decoding) -> None:
        family, settings = self.family, decoding.settings
        slots, prompt_width = decoding.slots, decoding.prompt_width
        self.settings, self.temperature, self.uniforms_RT = settings, decoding.temperature, decoding.uniforms_RT
        slot_bytes = self._slot_bytes(decoding.prompt_rows / slots, prompt_width, settings.max_tokens)
        needed = slots * slot_bytes + copied_bytes(family)
        copies = settings.max_tokens >= COPIES_PAY_FROM and needed <= MARGIN * free_bytes(self.family.device)
        self.matrices, self.head = layer_matrices(family, copies=copies), head_matrix(family, copies=copies)

        self.prompts = [_Cache.empty(family, 0, prompt_width) for _ in family.layers]
        self.own = [_Cache.empty(family, slots, settings.max_tokens) for _ in family.layers]
        self.logits_LV = torch.empty(slots, len(family.head.weight_OI), dtype=family.dtype)
        self.cosines_AF, self.sines_AF = family.rotations(torch.arange(prompt_width + settings.max_tokens))
        self.tokens_L, self.rollouts_L, self.prompt_rows_L, self.counts_L, self.prompts_L = (
            torch.zeros(slots, dtype=torch.long) for _ in range(5)
        )  # prompts_L, counts_L: tokens in the cache of the prompt and in the slot's own
        self.drawn: list[Drawn] = []
        self._arrange()

    def prefill(self, prompts: Sequence[CachedPrompt]) -> None:
        rows = max(row for row, _ in prompts) + 1
        if rows > self.prompts[0].rows:
            for layer, cache in enumerate(self.prompts):
                self.prompts[layer] = cache.with_rows(rows)
        for part in split_prompts(sorted(prompts, key=lambda prompt: len(prompt[1])), PROMPT_TOKENS_AT_A_TIME):
            self._prefill(part)

    def _prefill(self, prompts: Sequence[CachedPrompt]) -> None:
        packed = Packed.of_sequences([tokens for _, tokens in prompts], self.family.device)

        def keep(layer: int, keys_NKW: Tensor, values_NKW: Tensor) -> None:
            for (row, _), segment in zip(prompts, packed.segments, strict=True):
                here = slice(segment.start, segment.end)
                self.prompts[layer].write(row, keys_NKW[here], values_NKW[here])

        # by torch's own products, which are finer: all that is behind a prompt's huge first states feels their rounding
        with _as_the_parameters_are():
            hidden_states(self.family, packed, keep)

    def start(self, starts: Sequence[Start]) -> None:
        slots = torch.tensor([start.slot for start in starts])
        self.tokens_L[slots] = torch.tensor([start.last_token for start in starts])
        self.rollouts_L[slots] = torch.tensor([start.rollout for start in starts])
        self.prompt_rows_L[slots] = torch.tensor([start.prompt_row for start in starts])
        self.prompts_L[slots] = torch.tensor([start.prompt_tokens - 1 for start in starts])
        self.counts_L[slots] = 0
        self._arrange()

    def advance(self, positions: int) -> None:
        with _as_the_parameters_are():
            for _ in range(positions):
                self._step()

    def look(self) -> Callable[[], Sampled]:
        drawn, self.drawn = self.drawn, []
        sampled = Sampled.of(drawn)
        return lambda: sampled

    def keep(self, slots: Sequence[int]) -> None:
        kept = torch.tensor(slots)
        rows, self.prompt_rows_L = torch.unique(self.prompt_rows_L[kept], return_inverse=True)
        self.tokens_L, self.rollouts_L, self.counts_L, self.prompts_L = (
            each[kept] for each in (self.tokens_L, self.rollouts_L, self.counts_L, self.prompts_L)
        )
        for layer in range(len(self.own)):
            self.own[layer] = self.own[layer].select(kept, self.widths[1])
            self.prompts[layer] = self.prompts[layer].select(rows, self.widths[0])
        self.logits_LV = self.logits_LV[: len(kept)]
        self.drawn = [each.of_rows(kept) for each in self.drawn]
        self._arrange()

    def close(self) -> None:
        for name in ("prompts", "own", "logits_LV", "matrices", "head"):
            if hasattr(self, name):
                delattr(self, name)

    def _arrange(self) -> None:
        """Finds the slots of each prompt, for one product per prompt; a prompt with fewer slots repeats slot 0."""
        slots_of: list[list[int]] = [[] for _ in range(max(self.prompts[0].rows, 1))]
        self.places_L = torch.empty_like(self.prompt_rows_L)  # where a slot stands in the table of prompts
        for slot, row in enumerate(self.prompt_rows_L.tolist()):
            self.places_L[slot] = len(slots_of[row])
            slots_of[row].append(slot)
        most = max(map(len, slots_of))
        self.places_L += self.prompt_rows_L * most
        self.slots_RM = torch.tensor([slots + [0] * (most - len(slots)) for slots in slots_of])
        self.in_order = torch.equal(self.places_L, torch.arange(self.slots_RM.numel()))  # then nothing need be gathered

    def _step(self) -> None:
        family = self.family
        # a slot whose rollout has ended goes on until it is looked at; it stays within its room
        self.counts_L.clamp_(max=self.settings.max_tokens - 1)
        positions_L = self.prompts_L + self.counts_L
        cosines_L1W = self.cosines_AF[positions_L].repeat(1, 2).unsqueeze(1)
        sines_L1F = self.sines_AF[positions_L].unsqueeze(1)
        rotations = cosines_L1W, torch.cat([-sines_L1F, sines_L1F], dim=2)
        mask_1L1A = self._mask()
        newest = self._newest()
        states_LD = embedding(self.tokens_L, family.embedding_VD.detach())
        for number, (layer, matrices) in enumerate(zip(family.layers, self.matrices, strict=True)):
            normed_LD = norm(states_LD, layer.first_norm_D, family.epsilon)
            heads_LO = matrices.query_key_value.product(normed_LD)
            seen_LO = self._attention(number, heads_LO, rotations, mask_1L1A, newest)
            # added once it is whole: parts of it, added one by one to states a thousand times larger, would be rounded
            states_LD += matrices.output.product(seen_LO)
            normed_LD = norm(states_LD, layer.second_norm_D, family.epsilon)
            gate_LO, up_LO = matrices.gate_up.product(normed_LD).chunk(2, dim=1)
            states_LD += matrices.down.product(silu(gate_LO).mul_(up_LO))
        logits_LV = self.head.product(norm(states_LD, family.norm_D, family.epsilon), self.logits_LV)
        uniforms_L = None if self.uniforms_RT is None else self.uniforms_RT[self.rollouts_L, self.counts_L]
        drawn = draw(logits_LV, uniforms_L, self.temperature, self.settings)
        self.drawn.append(drawn)
        self.tokens_L = drawn.tokens_N
        self.counts_L += 1

    def _mask(self) -> Tensor | None:
        """mask_1L1A: 0 where a slot has a token in its prompt's columns and in its own, -inf elsewhere; None if it
        would be 0 everywhere."""
        self.widths = int(self.prompts_L.max()), int(self.counts_L.max()) + 1
        prompt_P, own_T = (torch.arange(width) for width in self.widths)
        hidden_LA = torch.cat(
            [prompt_P >= self.prompts_L.unsqueeze(1), own_T > self.counts_L.unsqueeze(1)],
            dim=1,
        )
        if not hidden_LA.any():
            return None
        return torch.zeros(hidden_LA.shape).masked_fill_(hidden_LA, -float("inf"))[None, :, None]

    def _newest(self) -> Tensor | None:
        """Where the newest keys and values go in a cache seen as one long list; None: into the last column in use."""
        slots = len(self.counts_L)
        if int(self.counts_L.min()) == self.widths[1] - 1:
            return None
        rows_KL = torch.arange(2 * self.family.key_heads * slots).view(-1, slots)
        return (rows_KL * self.settings.max_tokens + self.counts_L).flatten()

    def _attention(
        self,
        number: int,
        heads_LO: Tensor,
        rotations: tuple[Tensor, Tensor],
        mask_1L1A: Tensor | None,
        newest: Tensor | None,
    ) -> Tensor:
        """outputs_LO of the attention to the prompt and to the slot's own tokens, the newest among them."""
        family, own, prompts = self.family, self.own[number], self.prompts[number]
        slots, heads, key_heads, width = len(heads_LO), family.heads, family.key_heads, family.head_width
        heads_LHW = self._turn_heads(number, heads_LO, rotations)
        prompt_width, own_width = self.widths
        newest_KLW = heads_LHW[:, heads:].transpose(0, 1)
        if newest is None:
            own.both[:, :, own_width - 1] = newest_KLW
        else:
            own.both.view(-1, width).index_copy_(0, newest, newest_KLW.reshape(-1, width))

        # heads of keys first: then the queries of a slot stand together, and those of the slots of a prompt do
        queries_KLGW = heads_LHW[:, :heads].view(slots, key_heads, -1, width).transpose(0, 1).contiguous()
        scores_KLGA = torch.bmm(queries_KLGW.flatten(0, 1), own.keys[:, :, :own_width]).view(
            key_heads, slots, -1, own_width
        )
        if prompt_width:
            of_prompt = torch.bmm(self._by_prompt(queries_KLGW), prompts.keys[:, :, :prompt_width])
            scores_KLGA = torch.cat([self._by_slot(of_prompt), scores_KLGA], dim=-1)
        scores_KLGA = scores_KLGA.float().mul_(family.attention_scale)
        if mask_1L1A is not None:
            scores_KLGA += mask_1L1A
        shares_KLGA = scores_KLGA.softmax(dim=-1).to(family.dtype)
        own_shares, own_values = shares_KLGA[..., prompt_width:].flatten(0, 1), own.values[:, :own_width]
        if prompt_width:
            seen = torch.bmm(self._by_prompt(shares_KLGA[..., :prompt_width]), prompts.values[:, :prompt_width])
            seen = self._by_slot(seen).flatten(0, 1).baddbmm_(own_shares, own_values)
        else:
            seen = torch.bmm(own_shares, own_values)
        return seen.view(key_heads, slots, -1).transpose(0, 1).reshape(slots, -1)

    def _turn_heads(self, number: int, heads_LO: Tensor, rotations: tuple[Tensor, Tensor]) -> Tensor:
        """heads_LHW with queries and keys normed, where the model does that, and rotated, all where they stand."""
        family, layer = self.family, self.family.layers[number]
        heads_LHW = heads_LO.view(len(heads_LO), -1, family.head_width)
        turned_LHW = straight_LHW = heads_LHW[:, : family.heads + family.key_heads]
        if layer.query_norm is not None and layer.key_norm is not None:
            queries_LHW, keys_LKW = straight_LHW.split_with_sizes([family.heads, family.key_heads], dim=1)
            queries_LHW = norm(queries_LHW, layer.query_norm, family.epsilon)
            straight_LHW = torch.cat([queries_LHW, norm(keys_LKW, layer.key_norm, family.epsilon)], dim=1)
        _rotate(straight_LHW, *rotations, turned_LHW)
        return heads_LHW

    def _by_prompt(self, rows_KLGX: Tensor) -> Tensor:
        """[K, L, G, X] -> [K * R, M * G, X]: the slots of a prompt side by side."""
        prompts, most = self.slots_RM.shape
        rows = rows_KLGX if self.in_order else rows_KLGX.index_select(1, self.slots_RM.flatten())
        return rows.view(len(rows) * prompts, most * rows.shape[2], -1)

    def _by_slot(self, rows: Tensor) -> Tensor:
        """[K * R, M * G, X] -> [K, L, G, X]."""
        prompts, most = self.slots_RM.shape
        rows_KLGX = rows.view(self.family.key_heads, prompts * most, -1, rows.shape[2])
        return rows_KLGX if self.in_order else rows_KLGX.index_select(1, self.places_L)


def _as_the_parameters_are() -> torch.autocast:
    return torch.autocast("cpu", enabled=False)


class _Cache:
    """Keys and values of one layer: of the slots, or of the prompts. R: rows of either kind, C: columns."""

    def __init__(self, both: Tensor) -> None:
        self.both = both  # [2 K, R, C, W], keys before values
        keys, self.values = both.flatten(0, 1).chunk(2)  # [K * R, C, W]
        self.keys = keys.transpose(1, 2)

    @classmethod
    def empty(cls, family: Family, rows: int, columns: int) -> _Cache:
        # of zeros: what lies under a mask is multiplied by 0, which NaN would survive
        return cls(torch.zeros(2 * family.key_heads, rows, columns, family.head_width, dtype=family.dtype))

    @property
    def rows(self) -> int:
        return self.both.shape[1]

    def write(self, row: int, keys_NKW: Tensor, values_NKW: Tensor) -> None:
        self.both[:, row, : len(keys_NKW)] = torch.cat([keys_NKW, values_NKW], dim=1).transpose(0, 1)

    def with_rows(self, rows: int) -> _Cache:
        heads, before, columns, width = self.both.shape
        both = self.both.new_zeros(heads, rows, columns, width)
        both[:, :before] = self.both
        return _Cache(both)

    def select(self, rows: Tensor, columns: int) -> _Cache:
        """These rows alone, of which that many columns are in use."""
        heads, _, most, width = self.both.shape
        both = self.both.new_zeros(heads, len(rows), most, width)
        both[:, :, :columns] = self.both[:, rows, :columns]
        return _Cache(both)


def _rotate(heads_LHW: Tensor, cosines_L1W: Tensor, sines_L1W: Tensor, to_LHW: Tensor) -> None:
    """As forward.rotate, in three passes: sines are negative for the left half, which the right one is added to."""
    exact_LHW = heads_LHW.float()
    swapped_LHW = exact_LHW.roll(heads_LHW.shape[2] // 2, dims=2)
    torch.addcmul(exact_LHW * cosines_L1W, swapped_LHW, sines_L1W, out=to_LHW)
