"""What the device allows at best: seconds below which a rollout or an update cannot be done. Arithmetic only.

A decode step must read every weight once, and the keys and values of all tokens so far: of a prompt once for its whole
group at best, once for every row in most engines. A token costs two operations for every weight in the forward pass and
four in the backward pass. What is left out (prompts' keys while they are computed, norms, sampling, the optimizer) only
makes the floor lower: nobody can be faster than it on the same bandwidth and the same rate of matrix products.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from benchmarks.model.workload import ROLLOUT, UPDATE, Workload


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of a model."""

    body: int  # weights that every token is multiplied with
    head: int  # weights between the last hidden state and the logits; an input embedding is looked up, not multiplied
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    context: int
    bytes_a_number: int

    @property
    def weight_bytes(self) -> int:
        return (self.body + self.head) * self.bytes_a_number

    @property
    def cache_bytes_a_token(self) -> int:
        return 2 * self.layers * self.kv_heads * self.head_size * self.bytes_a_number


@dataclass(frozen=True, slots=True)
class Limits:
    """What a device was measured to do."""

    bytes_a_second: float  # of a copy, reading and writing counted
    operations_a_second: float  # of a large matrix product in the dtype of the weights


def decode_bytes(sizes: Sizes, workload: Workload, *, shared_prompts: bool) -> int:
    """Read by a whole rollout: the first token comes from the prompts' pass, each later one reads what came before."""
    lengths_of_own = sum(range(1, workload.new_tokens))
    readers = workload.prompts if shared_prompts else workload.rows
    cached = readers * workload.prompt_tokens * (workload.new_tokens - 1) + workload.rows * lengths_of_own
    return workload.new_tokens * sizes.weight_bytes + cached * sizes.cache_bytes_a_token


def rollout_operations(sizes: Sizes, workload: Workload) -> int:
    """Each prompt once, each new token but a row's last; logits for all new tokens."""
    through_body = workload.prompts * workload.prompt_tokens + workload.rows * (workload.new_tokens - 1)
    return 2 * (sizes.body * through_body + sizes.head * workload.tokens) + _attention(
        sizes, workload, workload.new_tokens - 1
    )


def update_operations(sizes: Sizes, workload: Workload) -> int:
    """Forward and backward, each prompt once; logits for the completion tokens alone."""
    through_body = workload.prompts * workload.prompt_tokens + workload.rows * workload.new_tokens
    return 6 * (sizes.body * through_body + sizes.head * workload.tokens) + 3 * _attention(
        sizes, workload, workload.new_tokens
    )


def floor_seconds(measurement: str, sizes: Sizes, workload: Workload, limits: Limits) -> float:
    """Of a rollout the slower one of bandwidth and arithmetic; of a whole step rollout and update, one by one."""
    if measurement == ROLLOUT:
        return max(
            decode_bytes(sizes, workload, shared_prompts=True) / limits.bytes_a_second,
            rollout_operations(sizes, workload) / limits.operations_a_second,
        )
    update = update_operations(sizes, workload) / limits.operations_a_second
    return update if measurement == UPDATE else update + floor_seconds(ROLLOUT, sizes, workload, limits)


def described(sizes: Sizes, workload: Workload, limits: Limits) -> dict[str, Any]:
    """All floors of a workload, in seconds and in new tokens per second, each from what it is made of."""
    by_bytes = {
        name: decode_bytes(sizes, workload, shared_prompts=shared) / limits.bytes_a_second
        for name, shared in (
            ("bandwidth, prompt read once a group", True),
            ("bandwidth, prompt read by each row", False),
        )
    }
    seconds = {
        **{f"rollout: {name}": value for name, value in by_bytes.items()},
        "rollout: arithmetic": rollout_operations(sizes, workload) / limits.operations_a_second,
        "update: arithmetic, prompt computed once": update_operations(sizes, workload) / limits.operations_a_second,
    }
    return {name: {"seconds": value, "tokens_per_second": workload.tokens / value} for name, value in seconds.items()}


def _attention(sizes: Sizes, workload: Workload, new: int) -> int:
    """Forward: two products of a head's size for each query and each key it sees; `new` tokens per row are queries."""
    prompt = workload.prompt_tokens
    seen_by_prompt = workload.prompts * sum(range(1, prompt + 1))
    seen_by_new = workload.rows * (prompt * new + sum(range(1, new + 1)))
    return 4 * sizes.layers * sizes.heads * sizes.head_size * (seen_by_prompt + seen_by_new)
