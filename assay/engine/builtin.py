"""The built-in engine: Prompt[P] -> Rollout[P][G], sampled from the trainer's own weights.

A prompt is computed once and its keys and values are shared by the group; log-probs are float32 and belong to the
distribution that was sampled from; the sampled EOS is part of the rollout. Models of the Llama family are decoded by
a decoder made for the device (lanes.py, cpu.py, cuda.py), every other model by what it offers (portable.py): the same
random numbers give the same rollouts on all of them, but for rounding.

Shape legend: P prompts, R = P * G rollouts, T completion tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from weakref import WeakKeyDictionary

import torch

from assay.config.sections import RolloutConfig
from assay.engine import lanes, portable
from assay.engine.lanes import NoRoom
from assay.engine.rows import BrokenPolicy, Rows
from assay.llama.cpu import CpuDecoder
from assay.llama.decoder import Decoder
from assay.llama.family import Family
from assay.machine.device import as_current
from assay.policy.causal import CausalPolicy
from assay.types import Prompt, Rollout

__all__ = ["BrokenPolicy", "NoRoom", "generate"]

_cuda_decoders: WeakKeyDictionary[Family, Decoder] = WeakKeyDictionary()  # what they have prepared is dear


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
    """`group_size` rollouts for each prompt; at most settings.max_rows side by side, at least one group.

    Every token of every rollout has a random number of its own, drawn from the generator before the first: a rollout
    does not depend on what is decoded beside it. `on_token(done, limit)` counts decoded positions of all rollouts."""
    if not prompts:
        return []
    count = len(prompts) * group_size
    uniforms_RT = None
    if not greedy:
        lanes.check_numbers(count, settings.max_tokens, policy.device)
        uniforms_RT = torch.rand(count, settings.max_tokens, generator=generator, device=policy.device)
    rows = Rows(policy, settings, count)
    decoder = _decoder(policy, max(len(prompt.tokens) for prompt in prompts) + settings.max_tokens)
    with as_current(policy.device):
        if decoder is None:
            portable.decode(policy, prompts, group_size, settings, uniforms_RT, rows, on_token)
        else:
            lanes.decode(decoder, prompts, group_size, settings, policy.temperature, uniforms_RT, rows, on_token)
    return [
        [rows.rollout(number * group_size + member, prompt, policy_version) for member in range(group_size)]
        for number, prompt in enumerate(prompts)
    ]


def _decoder(policy: CausalPolicy, tokens: int) -> Decoder | None:
    """A decoder for sequences of up to so many tokens; None: the portable path."""
    family = policy.family_for(tokens)
    if family is None:
        return None
    if family.device.type == "cpu":
        return CpuDecoder(family)
    if family.device.type != "cuda":
        policy.say(
            f"tokens are sampled by the portable path, slowly, because no decoder is made for {family.device.type}"
        )
        return None
    if family not in _cuda_decoders:
        from assay.llama.cuda import CudaDecoder  # Triton, which a machine without a GPU may lack

        _cuda_decoders[family] = CudaDecoder(family)
    return _cuda_decoders[family]
