"""What the scheduler (engine/scheduler.py) asks of a device: a batch of slots that advance together, token by token.

A slot decodes one rollout at a time. It reads two caches: that of its prompt, a row of the prompt cache that the group
shares, and its own, with the prompt's last token and what was sampled so far. Prompts are prefilled without their last
token, which is the first input of every slot: so there is one kind of decoding step, and a prompt of one token needs no
special case.

Shape legend: R rollouts, T completion tokens, L slots, C positions advanced, K tokens of a support, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from assay.config.sections import RolloutConfig
from assay.llama.family import Family
from assay.sampling import Drawn

CachedPrompt = tuple[int, Sequence[int]]  # row of the prompt cache, tokens


@dataclass(frozen=True, slots=True, eq=False)
class Decoding:
    """What a decoder is opened for. Rollout r draws its token t with the random number uniforms_RT[r, t], in whatever
    slot and beside whatever rollouts."""

    slots: int
    prompt_rows: int  # of the prompt cache
    prompt_width: int  # tokens of the longest prompt besides its last one
    settings: RolloutConfig
    temperature: float
    uniforms_RT: Tensor | None  # None: every token is the likeliest


@dataclass(frozen=True, slots=True)
class Start:
    """A rollout that begins in a slot."""

    slot: int
    rollout: int  # its row in the table of random numbers
    prompt_row: int  # of the prompt cache
    prompt_tokens: int  # of the whole prompt; all but the last are in the cache
    last_token: int


@dataclass(frozen=True, slots=True)
class Sampled:
    """What was sampled in every slot since the last look, on the CPU; tokens behind an end are to be thrown away."""

    tokens_LC: Tensor
    logprobs_LC: Tensor  # float32; NaN where the policy gives no finite probabilities
    support_LCK: Tensor | None

    @classmethod
    def of(cls, drawn: Sequence[Drawn]) -> Sampled:
        """What was drawn at each position, one after the other."""
        supports = [each.support_NK for each in drawn if each.support_NK is not None]
        return cls(
            torch.stack([each.tokens_N for each in drawn], dim=1).cpu(),
            torch.stack([each.logprobs_N for each in drawn], dim=1).cpu(),
            torch.stack(supports, dim=1).cpu() if supports else None,
        )


class Decoder(Protocol):
    family: Family
    look_every: int  # positions worth advancing between two looks
    ahead: int  # positions worth advancing before a look is read, so that the device has work while the host reads it
    keep_below: float  # `keep` is worth its cost when no more than this share of the slots is in use

    def slots_that_fit(self, prompts_per_slot: float, prompt_width: int, max_tokens: int) -> int:
        """How many slots the free memory holds, with a margin; 0: not even one."""

    def open(self, decoding: Decoding) -> None:
        """Makes room for it."""

    def prefill(self, prompts: Sequence[CachedPrompt]) -> None:
        """Prompts without their last token, which may leave none."""

    def start(self, starts: Sequence[Start]) -> None: ...

    def advance(self, positions: int) -> None:
        """Decodes `positions` more tokens in every slot, ended or not; a slot at its limit stays within its room."""

    def look(self) -> Callable[[], Sampled]:
        """What was sampled in every slot, in their order, since the last look. Calling the result waits for it; the
        slots may advance before that."""

    def keep(self, slots: Sequence[int]) -> None:
        """Keeps these slots, in this new order, with what they sampled since the last look. The others are dropped, and
        with them prompts that no slot needs. Nothing starts afterwards."""

    def close(self) -> None:
        """Gives the cache's memory back; what was prepared (graphs, tables) may stay."""


def split_prompts(prompts: Sequence[CachedPrompt], most: int) -> Iterator[list[CachedPrompt]]:
    """Prompts that are computed together: at most `most` tokens, except for a single prompt that has more.

    >>> [[row for row, _ in part] for part in split_prompts([(0, "ab"), (1, "cd"), (2, "e"), (3, "fghij")], most=3)]
    [[0], [1, 2], [3]]
    """
    part: list[CachedPrompt] = []
    tokens = 0
    for row, prompt in prompts:
        if part and tokens + len(prompt) > most:
            yield part
            part, tokens = [], 0
        if prompt:
            part.append((row, prompt))
        tokens += len(prompt)
    if part:
        yield part
