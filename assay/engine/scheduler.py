"""Continuous batching: a slot whose rollout has ended takes the next waiting rollout.

The scheduler knows slots, prompts and ends; a Decoder (llama/decoder.py) knows a device. Rollouts start in their order,
so that those of a group run at the same time and their prompt is prefilled once. When none waits any more, idle slots
are dropped, so that the last long rollouts are not decoded beside empty slots.

Shape legend: R rollouts, T completion tokens, L slots.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.config.sections import RolloutConfig
from assay.engine.decoded import DecodedRollouts
from assay.engine.engine import NoRoom
from assay.llama.decoder import Decoder, Decoding, Sampled, Start
from assay.machine.memory import free_bytes
from assay.types import Prompt

IDLE = -1
BYTES_PER_TOKEN = 16  # a random number; a token and its log-prob
ROWS_PER_GROUP = 2  # rows of the prompt cache for each group that fits into the slots: groups end raggedly


def check_numbers(rollouts: int, max_tokens: int, device: torch.device) -> None:
    """Refuses more rollouts than there is memory for their random numbers and what is noted of each token."""
    if rollouts * max_tokens * BYTES_PER_TOKEN > free_bytes(device):
        raise NoRoom(
            f"there is no memory for {rollouts:,} rollouts of up to {max_tokens:,} tokens; lower rollout.prompts, "
            "rollout.group_size or rollout.max_tokens"
        )


def decode(
    decoder: Decoder,
    prompts: Sequence[Prompt],
    group_size: int,
    settings: RolloutConfig,
    temperature: float,
    uniforms_RT: Tensor | None,
    decoded: DecodedRollouts,
    on_token: Callable[[int, int], None],
) -> None:
    """Fills `decoded`. `on_token(done, limit)` counts positions of all rollouts, and may raise."""
    rollouts = len(prompts) * group_size
    width = max(len(prompt.tokens) for prompt in prompts) - 1
    wanted = min(max(settings.max_rows, group_size), rollouts)
    prompts_per_slot = _prompt_rows(wanted, prompts, group_size) / wanted
    slots = min(wanted, decoder.slots_that_fit(prompts_per_slot, width, settings.max_tokens))
    if slots < 1:
        raise NoRoom(
            f"there is no memory for the cache of one rollout of {width + 1} + {settings.max_tokens} tokens; lower "
            "rollout.max_tokens, or give the model a smaller dtype or a device with more memory"
        )
    prompt_rows = _prompt_rows(slots, prompts, group_size)
    try:
        decoder.open(Decoding(slots, prompt_rows, width, settings, temperature, uniforms_RT))
        _Schedule(decoder, prompts, group_size, slots, prompt_rows).run(decoded, on_token)
    finally:
        decoder.close()


def _prompt_rows(slots: int, prompts: Sequence[Prompt], group_size: int) -> int:
    return min(len(prompts), ROWS_PER_GROUP * -(-slots // group_size) + 1)


class _Schedule:
    """Which rollout runs in which slot, and which wait."""

    def __init__(
        self, decoder: Decoder, prompts: Sequence[Prompt], group_size: int, slots: int, prompt_rows: int
    ) -> None:
        self.decoder, self.prompts, self.group_size = decoder, prompts, group_size
        self.rollouts_L = np.full(slots, IDLE)
        self.ahead = 0  # positions advanced since the last look
        self.skipped_L = np.zeros(slots, dtype=np.int64)  # of these, those before the rollout started
        self.next = 0  # the first rollout that waits
        self.count = len(prompts) * group_size
        self.row_of: dict[int, int] = {}  # of the prompt cache, for each prompt that is in it
        self.free_rows = list(range(prompt_rows))[::-1]
        self.unfinished = [group_size] * len(prompts)

    def run(self, decoded: DecodedRollouts, on_token: Callable[[int, int], None]) -> None:
        limit = self.count * decoded.limit
        while self.next < self.count or (self.rollouts_L != IDLE).any():
            self._fill()
            living = np.flatnonzero(self.rollouts_L != IDLE)
            rollouts, skipped = self.rollouts_L[living], self.skipped_L[living]
            left = decoded.limit - int((decoded.lengths_R[rollouts] - skipped).min()) - self.ahead
            now = max(min(self.decoder.look_every - self.ahead, left), 0)
            if now:
                self.decoder.advance(now)
            look = self.decoder.look()
            self.ahead = max(min(self.decoder.ahead, left - now), 0)
            if self.ahead:
                self.decoder.advance(self.ahead)
            ended = decoded.take(rollouts, *_of_slots(look(), living, skipped))
            self.skipped_L[:] = 0
            self._free(living[ended])
            on_token(decoded.positions, limit)
            self._shrink()

    def _fill(self) -> None:
        """Starts waiting rollouts. Prompts are prefilled several at a time: a few slots stay idle until that pays."""
        free = np.flatnonzero(self.rollouts_L == IDLE).tolist()
        enough = len(free) >= min(self.group_size, max(len(self.rollouts_L) // 8, 1))
        starts, new = [], []
        for slot in free:
            if self.next == self.count:
                break
            number = self.next // self.group_size
            prompt = self.prompts[number]
            if number not in self.row_of:
                if not enough or not self.free_rows:
                    break
                self.row_of[number] = self.free_rows.pop()
                new.append((self.row_of[number], prompt.tokens[:-1]))
            starts.append(Start(slot, self.next, self.row_of[number], len(prompt.tokens), prompt.tokens[-1]))
            self.rollouts_L[slot], self.skipped_L[slot] = self.next, self.ahead
            self.next += 1
        if new:
            self.decoder.prefill(new)
        if starts:
            self.decoder.start(starts)

    def _free(self, slots: NDArray[np.int64]) -> None:
        for slot in slots.tolist():
            number = int(self.rollouts_L[slot]) // self.group_size
            self.rollouts_L[slot] = IDLE
            self.unfinished[number] -= 1
            if not self.unfinished[number]:
                self.free_rows.append(self.row_of.pop(number))

    def _shrink(self) -> None:
        living = np.flatnonzero(self.rollouts_L != IDLE)
        if self.next < self.count or not 0 < len(living) <= self.decoder.keep_below * len(self.rollouts_L):
            return
        # a rollout stays in its slot if it can: the holes in front are filled from behind
        behind = living[living >= len(living)].tolist()
        kept = [slot if self.rollouts_L[slot] != IDLE else behind.pop() for slot in range(len(living))]
        self.decoder.keep(kept)
        self.rollouts_L, self.skipped_L = self.rollouts_L[kept], self.skipped_L[kept]


def _of_slots(
    sampled: Sampled, slots: NDArray[np.int64], skipped_L: NDArray[np.int64]
) -> tuple[Sampled, NDArray[np.int64]]:
    """(what these slots sampled, each from its own first position on; how many positions that is)."""
    count = sampled.tokens_LC.shape[1]
    columns_LC = np.minimum(np.arange(count) + skipped_L[:, None], count - 1)
    index = torch.from_numpy(slots)[:, None], torch.from_numpy(columns_LC)
    support_LCK = sampled.support_LCK
    theirs = Sampled(
        sampled.tokens_LC[index], sampled.logprobs_LC[index], None if support_LCK is None else support_LCK[index]
    )
    return theirs, count - skipped_L
