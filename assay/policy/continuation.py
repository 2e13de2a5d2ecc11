"""How a causal model that is not of the Llama family continues prompts: with Hugging Face's cache, or with nothing but
logits. Slower than the family's decoders (llama/cpu.py, llama/cuda.py), the same numbers.

Shape legend: P prompts, N = P * G rows, L tokens so far, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from assay.policy.causal import CausalPolicy
from assay.types import Prompt


class Continuation(Protocol):
    def logits(self) -> Tensor:
        """logits_NV of the next token of every row."""

    def append(self, tokens_N: Tensor) -> None: ...


def continue_prompts(policy: CausalPolicy, prompts: Sequence[Prompt], group_size: int) -> Continuation:
    """The rows of all groups, side by side."""
    return (CachedRows if policy.abilities.cache else RecomputedRows)(policy, prompts, group_size)


class CachedRows:
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


class RecomputedRows:
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
