"""A tiny policy and hand-made samples for tests. Nothing here is warm-started: weights are random and fixed."""

from __future__ import annotations

from dataclasses import replace

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from assay.policy.causal import CausalPolicy
from assay.policy.codec import TokenizerCodec
from assay.policy.embedded import tokenizer
from assay.policy.probe import examine_policy
from assay.types import Prompt, Rollout, Sample, StopReason

EOS_ID = 1


def tiny_policy(seed: int = 0, temperature: float = 1.0, dtype: torch.dtype = torch.float32) -> CausalPolicy:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=13,
                hidden_size=16,
                intermediate_size=32,
                num_hidden_layers=2,
                num_attention_heads=2,
                max_position_embeddings=32,
                initializer_range=0.3,
                eos_token_id=EOS_ID,
                pad_token_id=EOS_ID,  # as in SmolLM2: padding must never be told by its id
                bos_token_id=None,
            )
        )
    return examine_policy(CausalPolicy(model.to(dtype).eval(), TokenizerCodec(tokenizer()), (EOS_ID,), temperature))


def portable_policy(seed: int = 0, temperature: float = 1.0, dtype: torch.dtype = torch.float32) -> CausalPolicy:
    """The same numbers, by the path that works for every architecture."""
    return replace(tiny_policy(seed, temperature, dtype), family=None)


def prompt(number: int, tokens: tuple[int, ...]) -> Prompt:
    return Prompt(id=f"p{number}", text="", tokens=tokens, answer="")


def sample(
    number: int,
    prompt_tokens: tuple[int, ...],
    tokens: tuple[int, ...],
    advantage: float | tuple[float, ...],
    *,
    sampler: float = -1.0,
    in_loss: bool = True,
) -> Sample:
    stop = StopReason.EOS if tokens[-1] == EOS_ID else StopReason.LENGTH
    rollout = Rollout(f"p{number}", tokens, (sampler,) * len(tokens), stop, 0, "")
    return Sample(prompt(number, prompt_tokens), rollout, advantage, in_loss)


def uneven_samples() -> list[Sample]:
    """Eight rows with prompts of 1 to 4 tokens and completions of 1 to 6; EOS ends some and stands in a prompt."""
    return [
        sample(0, (2, 3), (4, 5, 6, EOS_ID), 1.0),
        sample(0, (2, 3), (EOS_ID,), -0.5),
        sample(1, (7,), (8, 9, 10, 11, 12, 2), -0.25),
        sample(1, (7,), (3, EOS_ID), 0.75),
        sample(2, (4, EOS_ID, 5, 6), (7, 8, EOS_ID), 1.25),
        sample(2, (4, EOS_ID, 5, 6), (9, 9, 9, 9, EOS_ID), -1.5),
        sample(3, (10, 11, 12), (2, 2), 0.3),
        sample(3, (10, 11, 12), (3, 4, 5, EOS_ID), -0.3),
    ]
