"""Decoding with whatever a model offers: Hugging Face's cache, or nothing but logits. Slower than the family's
decoders (cpu.py, cuda.py), the same numbers.

Shape legend: P prompts, N = P * G rows, L tokens so far, V vocabulary, R rollouts, T completion tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from assay.config.sections import RolloutConfig
from assay.engine.rows import Rows
from assay.llama.decoder import Sampled
from assay.policy.causal import CausalPolicy
from assay.sampling import draw
from assay.types import Prompt


class Continuation(Protocol):
    def logits(self) -> Tensor:
        """logits_NV of the next token of every row."""

    def append(self, tokens_N: Tensor) -> None: ...


def decode(
    policy: CausalPolicy,
    prompts: Sequence[Prompt],
    group_size: int,
    settings: RolloutConfig,
    uniforms_RT: Tensor | None,
    rows: Rows,
    on_token: Callable[[int, int], None],
) -> None:
    """As many whole groups side by side as fit into settings.max_rows, at least one, until all of them have ended."""
    at_once = max(settings.max_rows // group_size, 1)
    for first in range(0, len(prompts), at_once):
        part = prompts[first : first + at_once]
        numbers_N = np.arange(first * group_size, (first + len(part)) * group_size)
        decoder: Continuation = (CachedDecoder if policy.abilities.cache else PlainDecoder)(policy, part, group_size)
        for position in range(settings.max_tokens):
            uniforms_N = None if uniforms_RT is None else uniforms_RT[numbers_N[0] : numbers_N[-1] + 1, position]
            drawn = draw(decoder.logits(), uniforms_N, policy.temperature, settings)
            living_N = ~rows.ended_R[numbers_N]
            among = torch.from_numpy(living_N)
            support_NK = None if drawn.support_NK is None else drawn.support_NK.cpu()[among].unsqueeze(1)
            tokens_N1, logprobs_N1 = (each.cpu()[among].unsqueeze(1) for each in (drawn.tokens_N, drawn.logprobs_N))
            rows.take(numbers_N[living_N], Sampled(tokens_N1, logprobs_N1, support_NK))
            on_token(rows.positions, rows.ended_R.size * settings.max_tokens)
            if rows.ended_R[numbers_N].all():
                break
            decoder.append(drawn.tokens_N)


class CachedDecoder:
    """Prompts padded on the left and computed once; their cache is then repeated for the group."""

    def __init__(self, policy: CausalPolicy, prompts: Sequence[Prompt], group_size: int) -> None:
        self.policy = policy
        width = max(len(prompt.tokens) for prompt in prompts)
        pads = [width - len(prompt.tokens) for prompt in prompts]
        # the id under the padding is arbitrary: the attention mask hides it
        ids_PL = torch.tensor(
            [[0] * pad + list(prompt.tokens) for pad, prompt in zip(pads, prompts, strict=True)], device=policy.device
        )
        visible_PL = torch.arange(width, device=policy.device) >= torch.tensor(pads, device=policy.device).unsqueeze(1)
        positions_PL = (visible_PL.cumsum(dim=1) - 1).clamp(min=0)
        logits_PV, self.cache = policy.next_logits(ids_PL, attention_mask=visible_PL.long(), position_ids=positions_PL)
        self.cache.batch_repeat_interleave(group_size)
        self.visible_NL = visible_PL.repeat_interleave(group_size, dim=0)
        self.position_N1 = positions_PL[:, -1:].repeat_interleave(group_size, dim=0)
        self.logits_NV: Tensor = logits_PV.repeat_interleave(group_size, dim=0)

    def logits(self) -> Tensor:
        return self.logits_NV

    def append(self, tokens_N: Tensor) -> None:
        self.visible_NL = torch.cat([self.visible_NL, self.visible_NL.new_ones(len(tokens_N), 1)], dim=1)
        self.position_N1 = self.position_N1 + 1
        self.logits_NV, self.cache = self.policy.next_logits(
            tokens_N.unsqueeze(1),
            attention_mask=self.visible_NL.long(),
            position_ids=self.position_N1,
            past_key_values=self.cache,
        )


class PlainDecoder:
    """Recomputes whole rows, padded on the right, for every token."""

    def __init__(self, policy: CausalPolicy, prompts: Sequence[Prompt], group_size: int) -> None:
        self.policy = policy
        self.rows = [list(prompt.tokens) for prompt in prompts for _ in range(group_size)]

    def logits(self) -> Tensor:
        width = max(map(len, self.rows))
        ids_NL = torch.tensor([row + [0] * (width - len(row)) for row in self.rows], device=self.policy.device)
        last_N = torch.tensor([len(row) - 1 for row in self.rows], device=self.policy.device)
        return self.policy.logits(ids_NL)[torch.arange(len(self.rows), device=ids_NL.device), last_N]

    def append(self, tokens_N: Tensor) -> None:
        for row, token in zip(self.rows, tokens_N.tolist(), strict=True):
            row.append(token)
