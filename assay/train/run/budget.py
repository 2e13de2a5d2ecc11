"""How many tokens one pass of an update may have: decided at the start of a run and kept in its config.

The bytes per token are measured on the model: what a small pass keeps for its gradient. A pass may use half of the free
memory that the optimizer and the reference leave, and never more tokens than make it fast.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from assay.config import Config
from assay.machine.memory import free_bytes
from assay.policy.policy import Policy
from assay.train.step.pack import pack_rows
from assay.types import Prompt, Rollout, Sample, StopReason

# larger passes are hardly faster and need more memory. On a GPU every pass costs the host some 80 ms; a model with many
# bytes per token hides that behind the arithmetic of fewer tokens
MOST_TOKENS = {"cpu": 2**13, "cuda": 2**15}
MOST_BYTES_ON_A_CPU = 2**31
MOST_OF_A_GPU = 1 / 8  # of its memory
LEAST_TOKENS = 2**9
PROBE_ROWS, PROBE_TOKENS = 2, 24  # of the pass that is measured


def budgeted(config: Config, policy: Policy) -> Config:
    """The config with a number in `optimizer.pass_tokens`, where passes are cut by tokens."""
    optimizer = config.optimizer
    if optimizer.microbatches or optimizer.pass_tokens:
        return config
    kind = "cuda" if policy.device.type == "cuda" else "cpu"
    rest = free_bytes(policy.device) - standing_bytes(policy, needs_reference=config.needs_reference)
    tokens = pass_tokens(bytes_a_token(policy, config), min(rest // 2, _most_bytes(policy.device)), MOST_TOKENS[kind])
    return replace(config, optimizer=replace(optimizer, pass_tokens=tokens))


def _most_bytes(device: torch.device) -> int:
    if device.type != "cuda":
        return MOST_BYTES_ON_A_CPU
    return int(torch.cuda.get_device_properties(device).total_memory * MOST_OF_A_GPU)


def pass_tokens(token_bytes: int, room_bytes: int, most: int) -> int:
    """A power of two, so that a little more or less free memory does not change the cut.

    >>> pass_tokens(1_000_000, 4_000_000_000, 16_384), pass_tokens(1_000_000, 40_000_000_000, 16_384)
    (2048, 16384)
    """
    tokens = most
    while tokens > LEAST_TOKENS and tokens * token_bytes > room_bytes:
        tokens //= 2
    return tokens


def bytes_a_token(policy: Policy, config: Config) -> int:
    """Bytes that a pass keeps for its gradient, without the weights."""
    length = max(min(PROBE_TOKENS, (policy.context or PROBE_TOKENS) - 1), 1)
    samples = [
        Sample(Prompt(f"{row}", "", (row,), ""), _answer(f"{row}", length), 1.0, in_loss=True)
        for row in range(PROBE_ROWS)
    ]
    (minibatch,) = pack_rows(
        samples,
        range(PROBE_ROWS),
        policy.packing(share_prompts=config.optimizer.share_prompts),
        minibatches=1,
        microbatches=1,
        max_tokens=length,
    )
    weights = {weight.untyped_storage().data_ptr() for weight in policy.model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        # kept alive, or several tensors would use the same memory
        graph = policy.logprobs(minibatch.microbatches[0].inputs)
    del graph
    return sum(kept.values()) // (PROBE_ROWS * (length + 1))


def _answer(prompt_id: str, length: int) -> Rollout:
    return Rollout(prompt_id, (0,) * length, (0.0,) * length, StopReason.LENGTH, 0, "")


def standing_bytes(policy: Policy, *, needs_reference: bool) -> int:
    """Bytes that training will hold all the time: masters, gradients, Adam's moments, the reference."""
    total = 0
    for weight in policy.model.parameters():
        if weight.requires_grad:
            has_master = weight.dtype not in (torch.float32, torch.float64)
            total += weight.numel() * (12 + 4 * has_master)
        if needs_reference and policy.adapter is None:
            total += weight.nbytes
    return total
