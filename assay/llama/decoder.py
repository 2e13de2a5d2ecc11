"""What the scheduler (lanes.py) asks of a device: lanes of rollouts that advance together, one token at a time.

A lane decodes one rollout. Its cache is that of its prompt, shared by the group, and its own: the prompt's last token
and what was sampled so far. Prompts are remembered without their last token, which is the first input of every lane:
so there is one kind of decoding step, and a prompt of one token needs no special case.

Shape legend: R rollouts, T completion tokens, L lanes, C positions advanced, K tokens of a support, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from assay.config.sections import RolloutConfig
from assay.llama.family import Family


@dataclass(frozen=True, slots=True)
class Seat:
    """A rollout that begins in a lane."""

    lane: int
    rollout: int  # its row in the table of random numbers
    prompt_slot: int
    prompt_tokens: int  # of the whole prompt; all but the last are in the slot
    last_token: int


@dataclass(frozen=True, slots=True)
class Sampled:
    """What every lane was given since the last look, on the CPU; behind an end it is to be thrown away."""

    tokens_LC: Tensor
    logprobs_LC: Tensor  # float32; NaN where the policy gives no finite probabilities
    support_LCK: Tensor | None


class Decoder(Protocol):
    family: Family
    look_every: int  # positions worth advancing between two looks
    ahead: int  # positions worth advancing before a look is read, so that the device has work while the host reads it
    keep_below: float  # `keep` is worth its cost when no more than this share of the lanes lives

    def lanes_that_fit(self, prompt_slots_a_lane: float, prompt_width: int, max_tokens: int) -> int:
        """How many lanes the free memory holds, with a margin; 0: not even one."""

    def open(
        self,
        *,
        lanes: int,
        prompt_slots: int,
        prompt_width: int,
        settings: RolloutConfig,
        temperature: float,
        uniforms_RT: Tensor | None,
    ) -> None:
        """Makes room for prompts of prompt_width tokens besides their last one. Rollout r draws its token t with the
        random number uniforms_RT[r, t], wherever it sits and whoever sits beside it; None: every token is the
        likeliest."""

    def remember(self, prompts: Sequence[tuple[int, Sequence[int]]]) -> None:
        """(slot, tokens) of prompts, each without its last token, which may leave none."""

    def seat(self, seats: Sequence[Seat]) -> None: ...

    def advance(self, positions: int) -> None:
        """So many tokens more for every lane, ended or not; a lane at its limit of tokens stays within its room."""

    def look(self) -> Callable[[], Sampled]:
        """What every lane, in its order, was given since the last look. To call the result waits for it; the lanes may
        advance before that."""

    def keep(self, lanes: Sequence[int]) -> None:
        """Lanes that go on, in their new order, with what they were given since the last look; the others are gone, and
        with them prompts that no lane has and the work of a step. Nothing is seated afterwards."""

    def close(self) -> None:
        """Gives the cache's memory back; what was prepared (graphs, tables) may stay."""
