"""The built-in engine: Prompt[P] -> Rollout[P][G], sampled from the trainer's own weights.

A prompt is computed once and its keys and values are shared by the group; log-probs are float32 and belong to the
distribution that was sampled from; the sampled EOS is part of the rollout. Models of the Llama family are decoded by
a decoder made for the device (scheduler.py, llama/cpu.py, llama/cuda.py), every other model by what it offers
(portable.py): the same random numbers give the same rollouts on all of them, but for rounding.

Shape legend: P prompts, R = P * G rollouts, T completion tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch

from assay.config.sections import RolloutConfig
from assay.engine import portable, scheduler
from assay.engine.rows import Rows
from assay.llama.cpu import CpuDecoder
from assay.llama.decoder import Decoder
from assay.machine.device import as_current
from assay.policy.causal import CausalPolicy
from assay.types import Prompt, Rollout


class SharedWeightsEngine:
    sampler_logprobs: Literal["sampled"] = "sampled"

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
        rows = Rows(policy, settings, count)
        decoder = self._decoder(max(len(prompt.tokens) for prompt in prompts) + settings.max_tokens)
        with as_current(policy.device):
            if decoder is None:
                portable.decode(policy, prompts, group_size, settings, uniforms_RT, rows, on_token)
            else:
                scheduler.decode(
                    decoder, prompts, group_size, settings, policy.temperature, uniforms_RT, rows, on_token
                )
        return [
            [rows.rollout(number * group_size + member, prompt, policy_version) for member in range(group_size)]
            for number, prompt in enumerate(prompts)
        ]

    def _decoder(self, tokens: int) -> Decoder | None:
        """A decoder for sequences of up to so many tokens; None: the portable path."""
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
