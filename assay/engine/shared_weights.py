"""The built-in engine: Prompt[P] -> Rollout[P][G], sampled from the trainer's own weights.

A prompt is computed once and its keys and values are shared by the group; log-probs are float32 and belong to the
distribution that was sampled from; the sampled EOS is part of the rollout. Models of the Llama family are decoded by
a decoder made for the device (scheduler.py, llama/cpu.py, llama/cuda.py), every other model by what it offers
(policy/continuation.py): the same random numbers give the same rollouts on all of them, except for rounding.

Shape legend: P prompts, R = P * G rollouts, T completion tokens, N rows that are decoded side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from assay.config.sections import RolloutConfig
from assay.engine import scheduler
from assay.engine.decoded import DecodedRollouts
from assay.llama.cpu import CpuDecoder
from assay.llama.decoder import Decoder, Sampled
from assay.machine.device import as_current
from assay.policy.causal import CausalPolicy
from assay.policy.continuation import continue_prompts
from assay.sampling import draw
from assay.types import Prompt, Rollout


class SharedWeightsEngine:
    def __init__(self, policy: CausalPolicy) -> None:
        self.policy = policy
        self._cuda_decoder: Decoder | None = None  # its CUDA graphs are expensive to rebuild

    def publish(self) -> None:
        """Nothing to do: the weights are the trainer's own."""

    def release(self) -> None:
        """Nothing to do: caches live for one call, and what stays is small beside the weights."""

    @torch.no_grad()
    def generate(
        self,
        prompts: Sequence[Prompt],
        *,
        group_size: int,
        settings: RolloutConfig,
        seed: int,
        policy_version: int,
        greedy: bool = False,
        on_token: Callable[[int, int], None] = lambda done, limit: None,
    ) -> list[list[Rollout]]:
        """See Engine; at most settings.max_rows rollouts side by side, at least one group.

        Every token of every rollout has a random number of its own, drawn before the first: a rollout does not depend
        on what is decoded beside it."""
        if not prompts:
            return []
        policy, count = self.policy, len(prompts) * group_size
        uniforms_RT = None
        if not greedy:
            scheduler.check_numbers(count, settings.max_tokens, policy.device)
            generator = torch.Generator(policy.device).manual_seed(seed)
            uniforms_RT = torch.rand(count, settings.max_tokens, generator=generator, device=policy.device)
        decoded = DecodedRollouts(policy, settings, count)
        decoder = self._decoder(max(len(prompt.tokens) for prompt in prompts) + settings.max_tokens)
        with as_current(policy.device):
            if decoder is None:
                self._decode_portably(prompts, group_size, settings, uniforms_RT, decoded, on_token)
            else:
                scheduler.decode(
                    decoder, prompts, group_size, settings, policy.temperature, uniforms_RT, decoded, on_token
                )
        return [
            [decoded.rollout(number * group_size + member, prompt, policy_version) for member in range(group_size)]
            for number, prompt in enumerate(prompts)
        ]

    def _decode_portably(
        self,
        prompts: Sequence[Prompt],
        group_size: int,
        settings: RolloutConfig,
        uniforms_RT: Tensor | None,
        decoded: DecodedRollouts,
        on_token: Callable[[int, int], None],
    ) -> None:
        """As many whole groups side by side as fit into settings.max_rows, at least one, until all of them have
        ended."""
        at_once = max(settings.max_rows // group_size, 1)
        for first in range(0, len(prompts), at_once):
            part = prompts[first : first + at_once]
            numbers_N = np.arange(first * group_size, (first + len(part)) * group_size)
            rows = continue_prompts(self.policy, part, group_size)
            for position in range(settings.max_tokens):
                uniforms_N = None if uniforms_RT is None else uniforms_RT[numbers_N[0] : numbers_N[-1] + 1, position]
                drawn = draw(rows.logits(), uniforms_N, self.policy.temperature, settings)
                living_N = ~decoded.ended_R[numbers_N]
                decoded.take(numbers_N[living_N], Sampled.of([drawn.of_rows(torch.from_numpy(living_N))]))
                on_token(decoded.positions, decoded.ended_R.size * settings.max_tokens)
                if decoded.ended_R[numbers_N].all():
                    break
                rows.append(drawn.tokens_N)

    def _decoder(self, tokens: int) -> Decoder | None:
        """A decoder for sequences of up to that many tokens; None: the portable path."""
        family = self.policy.family_for(tokens)
        if family is None:
            return None
        if family.device.type == "cpu":
            return CpuDecoder(family)
        if family.device.type != "cuda":
            self.policy.say(
                f"tokens are sampled by the portable path, slowly, because no decoder is made for {family.device.type}"
            )
            return None
        if self._cuda_decoder is None or self._cuda_decoder.family is not family:
            from assay.llama.cuda import CudaDecoder  # Triton, which a machine without a GPU may lack

            self._cuda_decoder = None  # the old graphs go before the new ones come
            self._cuda_decoder = CudaDecoder(family)
        return self._cuda_decoder
