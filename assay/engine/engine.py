"""What the rest of the house knows of an engine: prompts in, rollouts out.

shared_weights.py is one: it samples from the trainer's own weights, in the trainer's process. An engine with weights of
its own (vLLM) fits as well: `publish` copies the weights, `release` makes room for the update. open.py decides which
engine a run has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from assay.config.sections import RolloutConfig
from assay.types import Prompt, Rollout


class BrokenPolicy(ArithmeticError):
    """The policy gives no probabilities to sample from."""


class NoRoom(MemoryError):
    """The memory does not hold the cache of a single rollout."""


class Engine(Protocol):
    """One object serves a whole run, rollouts and evaluations alike: what it has prepared is expensive to rebuild."""

    def publish(self) -> None:
        """What is generated from now on is sampled from the policy's weights as they are now."""

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
        """`group_size` rollouts for each prompt. Same weights, same prompts, same seed: same rollouts. With `greedy`
        every token is the likeliest one. `Rollout.sampler_logprobs` belong to the distribution that was sampled from,
        temperature and support applied. `on_token(done, limit)` counts decoded positions of all rollouts, and may
        raise."""

    def release(self) -> None:
        """Gives back memory that only sampling needs; the next `generate` takes it again."""
