"""The built-in engine: Prompt[P] -> Rollout[P][G], sampled from the trainer's own weights.

Plain PyTorch. A prompt is computed once and its keys and values are shared by the group; log-probs are float32 and
belong to the distribution that was sampled from; the sampled EOS is part of the rollout. A model without Hugging
Face's cache is run over the whole sequence for every token: slow, but the same numbers.

Shape legend: P prompts, N = P * G rows, L tokens so far, V vocabulary, K tokens of a support.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from assay.config.sections import RolloutConfig
from assay.engine.stop import stop_at
from assay.grpo import restricted, token_logprobs
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
    settings: RolloutConfig,
    generator: torch.Generator,
    policy_version: int,
    greedy: bool = False,
    on_token: Callable[[int, int], None] = lambda done, limit: None,
) -> list[list[Rollout]]:
    """`group_size` rollouts for each prompt; as many groups side by side as fit into settings.max_rows, at least one.

    Random numbers come from the one generator in the order of decoding: no two rows share them. `on_token(done, limit)`
    counts decoded positions."""
    at_once = max(settings.max_rows // group_size, 1)
    parts = [prompts[first : first + at_once] for first in range(0, len(prompts), at_once)]
    groups: list[list[Rollout]] = []
    for number, part in enumerate(parts):

        def tick(position: int, before: int = number * settings.max_tokens) -> None:
            on_token(before + position, len(parts) * settings.max_tokens)

        rows = _decode(policy, part, group_size, settings, generator, greedy, tick)
        for first, prompt in zip(range(0, len(rows.tokens), group_size), part, strict=True):
            groups.append([rows.rollout(row, prompt, policy_version) for row in range(first, first + group_size)])
    return groups


def _decode(
    policy: CausalPolicy,
    prompts: Sequence[Prompt],
    group_size: int,
    settings: RolloutConfig,
    generator: torch.Generator,
    greedy: bool,
    on_position: Callable[[int], None],
) -> Rows:
    decoder: Decoder = (CachedDecoder if policy.abilities.cache else PlainDecoder)(policy, prompts, group_size)
    ends = torch.tensor(policy.eos_ids, device=policy.device)
    rows = Rows(policy, settings, len(prompts) * group_size)
    for position in range(settings.max_tokens):
        logits_NV = decoder.logits().float()
        if not logits_NV.logsumexp(dim=1).isfinite().all():
            raise BrokenPolicy(
                "the policy's probabilities of the next token are not finite: its weights have grown out of bounds; "
                "lower the learning rate or lengthen its warm-up, and start anew"
            )
        support_NK = None
        if greedy:
            tokens_N = logits_NV.argmax(dim=1)
        else:
            if settings.top_k:
                support_NK = support(logits_NV / policy.temperature, settings)
                logits_NV = restricted(logits_NV.unsqueeze(1), support_NK.unsqueeze(1)).squeeze(1)
            probabilities_NV = (logits_NV / policy.temperature).softmax(dim=1)
            tokens_N = torch.multinomial(probabilities_NV, 1, generator=generator).squeeze(1)
        logprobs_N = token_logprobs(logits_NV.unsqueeze(1), tokens_N.unsqueeze(1), policy.temperature).squeeze(1)
        rows.append(tokens_N, logprobs_N, support_NK, torch.isin(tokens_N, ends))
        on_position(position + 1)
        if not rows.alive:
            break
        if position + 1 < settings.max_tokens:
            decoder.append(tokens_N)
    return rows


def support(scaled_NV: Tensor, settings: RolloutConfig) -> Tensor:
    """ids_NK of the tokens that may be sampled: the top_k likeliest, of these the smallest set that holds top_p of
    their probability, of these none below min_p of the likeliest. A row with fewer than K repeats its likeliest."""
    values_NK, ids_NK = scaled_NV.topk(min(settings.top_k, scaled_NV.shape[1]), dim=1)
    probabilities_NK = values_NK.softmax(dim=1)
    # the probability of all likelier tokens; as a product, for a cumulative sum has no repeatable kernel on a GPU
    likelier_KK = torch.ones(ids_NK.shape[1], ids_NK.shape[1], device=ids_NK.device).triu(diagonal=1)
    before_NK = probabilities_NK @ likelier_KK
    kept_NK = probabilities_NK >= settings.min_p * probabilities_NK[:, :1]
    if settings.top_p < 1:  # of rounding alone, what is before a token may reach 1
        kept_NK &= before_NK < settings.top_p
    return ids_NK.where(kept_NK, ids_NK[:, :1])


class Rows:
    """What has been decoded so far, and which rows have ended, where and why."""

    def __init__(self, policy: CausalPolicy, settings: RolloutConfig, count: int) -> None:
        self.policy = policy
        self.stops = settings.stop
        self.tokens: list[list[int]] = [[] for _ in range(count)]
        self.logprobs: list[list[float]] = [[] for _ in range(count)]
        self.supports: list[list[tuple[int, ...]]] | None = [[] for _ in range(count)] if settings.top_k else None
        self.ended: dict[int, StopReason] = {}
        self.texts: dict[int, str] = {}  # of rows that a stop string ended, up to it

    @property
    def alive(self) -> int:
        return len(self.tokens) - len(self.ended)

    def append(self, tokens_N: Tensor, logprobs_N: Tensor, support_NK: Tensor | None, ends_N: Tensor) -> None:
        """One more token for every row that has not ended; what is decoded behind an end never happened."""
        supports = [None] * len(tokens_N) if support_NK is None else support_NK.tolist()
        columns = zip(tokens_N.tolist(), logprobs_N.tolist(), supports, ends_N.tolist(), strict=True)
        for row, (token, logprob, among, is_end) in enumerate(columns):
            if row in self.ended:
                continue
            self.tokens[row].append(token)
            self.logprobs[row].append(logprob)
            if self.supports is not None:
                self.supports[row].append((token,) if among is None else tuple(dict.fromkeys(among)))
            if is_end:
                self.ended[row] = StopReason.EOS
            elif (text := stop_at(self.tokens[row], self.stops, self.policy.codec.decode)) is not None:
                self.ended[row], self.texts[row] = StopReason.STOP, text

    def rollout(self, row: int, prompt: Prompt, policy_version: int) -> Rollout:
        tokens, stop = self.tokens[row], self.ended.get(row, StopReason.LENGTH)
        if stop is StopReason.STOP:
            text = self.texts[row]
        else:
            text = self.policy.codec.decode(tokens[:-1] if stop is StopReason.EOS else tokens)
        return Rollout(
            prompt_id=prompt.id,
            tokens=tuple(tokens),
            sampler_logprobs=tuple(self.logprobs[row]),
            stop=stop,
            policy_version=policy_version,
            text=text,
            support=None if self.supports is None else tuple(self.supports[row]),
        )


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
