"""What every contender is given: sizes, prompts, completions to learn from, a reward. Nothing here imports torch.

Everything is drawn from a seed, in token ids, so that all contenders get the same: a prompt is never tokenized on the
way to one of them and handed over as it is to another.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

ROLLOUT, UPDATE, STEP, SCALING = "rollout", "update", "step", "scaling"
MEASUREMENTS = (ROLLOUT, UPDATE, STEP, SCALING)
AXES = ("new_tokens", "group_size", "prompt_tokens")
FACTORS = (0.25, 0.5, 1.0, 2.0)  # of the axis that grows; the others stay
SMALLEST = {"new_tokens": 1, "group_size": 2, "prompt_tokens": 1}
PAD_ID = 0  # never part of a prompt
KINDS_OF_REWARD = 10_007  # a prime: two completions of a group hardly ever tie

Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Workload:
    """One batch: prompts of equal length, each continued `group_size` times by exactly `new_tokens` tokens.

    >>> Workload(prompts=8, group_size=4, prompt_tokens=64, new_tokens=32).tokens
    1024
    """

    prompts: int
    group_size: int
    prompt_tokens: int
    new_tokens: int

    @property
    def rows(self) -> int:
        return self.prompts * self.group_size

    @property
    def tokens(self) -> int:
        """New ones, of the whole batch."""
        return self.rows * self.new_tokens

    def __str__(self) -> str:
        return (
            f"{self.prompts} prompts x {self.group_size} completions, {self.prompt_tokens} + {self.new_tokens} tokens"
        )


@dataclass(frozen=True, slots=True)
class Job:
    """One measurement of one contender: iterations that warm up, and iterations that are timed."""

    measurement: str  # ROLLOUT, UPDATE or STEP
    workload: Workload
    warmup: int  # at least 1: the first iteration pays for what is made once
    timed: int

    @property
    def iterations(self) -> int:
        return self.warmup + self.timed


def prompts_of(workload: Workload, vocabulary: int, iteration: int) -> list[Tokens]:
    """The prompts of an iteration; another iteration has others, so that nobody can remember them."""
    source = random.Random(f"prompts {iteration}")
    return [_drawn(source, vocabulary, workload.prompt_tokens) for _ in range(workload.prompts)]


def completions_of(workload: Workload, vocabulary: int, iteration: int) -> list[list[Tokens]]:
    """Completions [P][G] to learn from when nothing is generated."""
    source = random.Random(f"completions {iteration}")
    return [
        [_drawn(source, vocabulary, workload.new_tokens) for _ in range(workload.group_size)]
        for _ in range(workload.prompts)
    ]


def reward_of(tokens: Sequence[int]) -> float:
    """Costs nothing and differs within a group, so that there is something to learn from."""
    return sum(tokens) % KINDS_OF_REWARD / KINDS_OF_REWARD


def checksum(rows: Iterable[Sequence[int]]) -> str:
    return hashlib.sha256(json.dumps([list(row) for row in rows]).encode()).hexdigest()


def points(base: Workload) -> dict[str, list[Workload]]:
    """By axis, what is measured to see how a step grows along it.

    >>> [workload.new_tokens for workload in points(Workload(8, 8, 64, 100))["new_tokens"]]
    [25, 50, 100, 200]
    """
    grown: dict[str, list[Workload]] = {}
    for axis in AXES:
        size = getattr(base, axis)
        sizes = dict.fromkeys(max(round(size * factor), SMALLEST[axis]) for factor in FACTORS)
        grown[axis] = [replace(base, **{axis: length}) for length in sizes]
    return grown


def _drawn(source: random.Random, vocabulary: int, count: int) -> Tokens:
    return tuple(source.randrange(PAD_ID + 1, vocabulary) for _ in range(count))
