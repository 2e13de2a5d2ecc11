"""The model asked plainly: prompt + completion, one row, no padding, no cache, eval mode, log-softmax in float32.

It is the oracle against which the trainer's own scoring is held, so it shares no line with it: not the packing, not the
head, not the log-probs of grpo.py. Slow, and right by being simple.

Shape legend: L tokens of prompt and completion, T completion tokens, V vocabulary.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from assay.policy.policy import Policy

AT_A_TIME = 128  # tokens whose logits are copied to float32 together

Support = Sequence[Sequence[int]]  # of each completion token, those it was sampled among


def plain_logprobs(
    model: nn.Module,
    prompt_tokens: Sequence[int],
    tokens: Sequence[int],
    *,
    temperature: float,
    support: Support | None = None,
) -> Tensor:
    """logprobs_T of the completion `tokens`, float32 on the CPU. Modes and random states are left as they were."""
    with asked_plainly(model):
        return logprobs_of(plain_logits(model, prompt_tokens, tokens), tokens, temperature, support)


def plain_logits(model: nn.Module, prompt_tokens: Sequence[int], tokens: Sequence[int]) -> Tensor:
    """logits_TV that predict the completion tokens, as the model returns them; call it inside `asked_plainly`. A model
    that can is told to leave out those of the prompt, which nobody needs and a large vocabulary makes costly."""
    if not prompt_tokens:
        raise ValueError("the prompt holds no token, so nothing predicts the first completion token; give its ids")
    device = next(model.parameters()).device
    ids_1L = torch.tensor([[*map(int, prompt_tokens), *map(int, tokens)]], dtype=torch.int64, device=device)
    how: dict[str, Any] = {"use_cache": False} if hasattr(getattr(model, "config", None), "use_cache") else {}
    if "logits_to_keep" in inspect.signature(model.forward).parameters:
        how["logits_to_keep"] = len(tokens) + 1
    output = model(ids_1L, **how)
    logits_LV = (output if isinstance(output, Tensor) else output.logits)[0]
    # the prompt's last token predicts the first of the completion; the completion's last token predicts nothing
    return logits_LV[-len(tokens) - 1 : -1]


def logprobs_of(logits_TV: Tensor, tokens: Sequence[int], temperature: float, support: Support | None = None) -> Tensor:
    """log softmax(logits / temperature) at the tokens, over their supports alone if given."""
    parts = [torch.zeros(0)]
    for first in range(0, len(tokens), AT_A_TIME):
        places = range(first, min(first + AT_A_TIME, len(tokens)))
        scaled_tV = logits_TV[first : first + AT_A_TIME].float() / temperature
        if support is not None:
            outside_tV = torch.ones_like(scaled_tV, dtype=torch.bool)
            for row, place in enumerate(places):
                outside_tV[row, list(support[place])] = False
            scaled_tV = scaled_tV.masked_fill(outside_tV, -torch.inf)  # a token outside of its support: log 0
        chosen_t = torch.tensor([int(tokens[place]) for place in places], device=scaled_tV.device)
        rows_t = torch.arange(len(places), device=scaled_tV.device)
        parts.append(torch.log_softmax(scaled_tV, dim=1)[rows_t, chosen_t].cpu())
    return torch.cat(parts)


@contextlib.contextmanager
def asked_plainly(model: nn.Module) -> Iterator[None]:
    """Eval mode, no gradients; every module's mode and torch's random states are put back."""
    training = [module for module in model.modules() if module.training]
    device = next(model.parameters()).device
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            for module in training:  # not model.eval(): a module may do more there, and no one would undo it
                module.training = False
            yield
    finally:
        for module in training:
            module.training = True


@contextlib.contextmanager
def policy_asked_plainly(policy: Policy) -> Iterator[nn.Module]:
    """The policy's model; of the reference of a policy with adapters, the model with its adapters switched off."""
    with contextlib.ExitStack() as stack:
        if policy.without_adapter:
            stack.enter_context(policy.adapter.disable_adapter())
        stack.enter_context(asked_plainly(policy.model))
        yield policy.model
