"""The built-in engine: Prompt[P] -> Rollout[P][G], sampled from the trainer's own weights.

Plain PyTorch. A prompt is computed once and its keys and values are shared by the group; log-probs are float32 and
belong to the distribution that was sampled from; the sampled EOS is part of the rollout. A model without Hugging
Face's cache is run over the whole sequence for every token: slow, but the same numbers.

Shape legend: P prompts, N = P * G rows, L tokens so far, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from assay.grpo import token_logprobs
from assay.policy.causal import CausalPolicy
from assay.types import Prompt, Rollout, StopReason


class BrokenPolicy(ArithmeticError):
    """The policy gives no probabilities to sample from."""


class Decoder(Protocol):
    def logits(self) -> Tensor:
        """logits_NV of the next token of every row."""

    def append(self, tokens_N: Tensor) -> None: ...


@torch.no_grad()
def generate(
    policy: CausalPolicy,
    prompts: Sequence[Prompt],
    *,
    group_size: int,
    max_tokens: int,
    generator: torch.Generator,
    policy_version: int,
    greedy: bool = False,
    on_token: Callable[[int, int], None] = lambda done, limit: None,
) -> list[list[Rollout]]:
    """`group_size` rollouts for each prompt. `on_token(done, max_tokens)` is called after each decoded position."""
    decoder: Decoder
    if policy.has_cache:
        decoder = CachedDecoder(policy, prompts, group_size)
    else:
        decoder = PlainDecoder(policy, prompts, group_size)
    rows = len(prompts) * group_size
    alive_N = torch.ones(rows, dtype=torch.bool, device=policy.device)
    tokens: list[Tensor] = []
    logprobs: list[Tensor] = []
    for position in range(max_tokens):
        logits_NV = decoder.logits()
        if not logits_NV.float().logsumexp(dim=1).isfinite().all():
            raise BrokenPolicy(
                "the policy's probabilities of the next token are not finite: its weights have grown out of bounds; "
                "lower the learning rate or lengthen its warm-up, and start anew"
            )
        if greedy:
            tokens_N = logits_NV.argmax(dim=1)
        else:
            probabilities_NV = (logits_NV.float() / policy.temperature).softmax(dim=1)
            tokens_N = torch.multinomial(probabilities_NV, 1, generator=generator).squeeze(1)
        logprobs.append(token_logprobs(logits_NV.unsqueeze(1), tokens_N.unsqueeze(1), policy.temperature).squeeze(1))
        tokens.append(tokens_N)
        alive_N &= tokens_N != policy.eos_id
        on_token(position + 1, max_tokens)
        if not alive_N.any():
            break
        if position + 1 < max_tokens:
            decoder.append(tokens_N)
    tokens_NT, logprobs_NT = torch.stack(tokens, dim=1).tolist(), torch.stack(logprobs, dim=1).tolist()
    return [
        [
            _rollout(policy, prompt, tokens_NT[row], logprobs_NT[row], policy_version)
            for row in range(first, first + group_size)
        ]
        for prompt, first in zip(prompts, range(0, rows, group_size), strict=True)
    ]


def _rollout(
    policy: CausalPolicy, prompt: Prompt, tokens: list[int], logprobs: list[float], policy_version: int
) -> Rollout:
    """Cuts a row after its first EOS; what was decoded behind it never happened."""
    ended = policy.eos_id in tokens
    length = tokens.index(policy.eos_id) + 1 if ended else len(tokens)
    return Rollout(
        prompt_id=prompt.id,
        tokens=tuple(tokens[:length]),
        sampler_logprobs=tuple(logprobs[:length]),
        stop=StopReason.EOS if ended else StopReason.LENGTH,
        policy_version=policy_version,
        text=policy.codec.decode(tokens[: length - 1] if ended else tokens[:length]),
    )


class CachedDecoder:
    """Prompts padded on the left and computed once; their cache is then repeated for the group."""

    def __init__(self, policy: CausalPolicy, prompts: Sequence[Prompt], group_size: int) -> None:
        self.model = policy.model
        width = max(len(prompt.tokens) for prompt in prompts)
        pads = [width - len(prompt.tokens) for prompt in prompts]
        # the id under the padding is arbitrary: the attention mask hides it
        ids_PL = torch.tensor(
            [[0] * pad + list(prompt.tokens) for pad, prompt in zip(pads, prompts, strict=True)], device=policy.device
        )
        visible_PL = torch.arange(width, device=policy.device) >= torch.tensor(pads, device=policy.device).unsqueeze(1)
        positions_PL = (visible_PL.cumsum(dim=1) - 1).clamp(min=0)
        output = self.model(ids_PL, attention_mask=visible_PL.long(), position_ids=positions_PL, use_cache=True)
        self.cache = output.past_key_values
        self.cache.batch_repeat_interleave(group_size)
        self.visible_NL = visible_PL.repeat_interleave(group_size, dim=0)
        self.position_N1 = positions_PL[:, -1:].repeat_interleave(group_size, dim=0)
        self.logits_NV: Tensor = output.logits[:, -1].repeat_interleave(group_size, dim=0)

    def logits(self) -> Tensor:
        return self.logits_NV

    def append(self, tokens_N: Tensor) -> None:
        self.visible_NL = torch.cat([self.visible_NL, self.visible_NL.new_ones(len(tokens_N), 1)], dim=1)
        self.position_N1 = self.position_N1 + 1
        output = self.model(
            tokens_N.unsqueeze(1),
            attention_mask=self.visible_NL.long(),
            position_ids=self.position_N1,
            past_key_values=self.cache,
            use_cache=True,
        )
        self.logits_NV = output.logits[:, -1]


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
