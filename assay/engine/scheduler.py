"""Continuous batching: a lane whose rollout has ended is given the next rollout that waits.

The scheduler knows lanes, prompts and ends; a Decoder (decoder.py) knows a device. Rollouts are seated in their order,
so that those of a group sit together and their prompt is remembered once. When none waits any more, lanes that have
ended are taken away, so that the last long rollouts are not decoded beside empty lanes.

Shape legend: R rollouts, T completion tokens, L lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.config.sections import RolloutConfig
from assay.engine.engine import NoRoom
from assay.engine.rows import Rows
from assay.llama.decoder import Decoder, Sampled, Seat
from assay.machine.memory import free_bytes
from assay.types import Prompt

IDLE = -1
BYTES_A_TOKEN = 16  # a random number; a token and its log-prob
SPARE_SLOTS = 2  # prompts remembered for each one whose whole group has lanes: groups end raggedly


def check_numbers(rollouts: int, max_tokens: int, device: torch.device) -> None:
    """Refuses more rollouts than there is memory for their random numbers and what is noted of each token."""
    if rollouts * max_tokens * BYTES_A_TOKEN > free_bytes(device):
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
    rows: Rows,
    on_token: Callable[[int, int], None],
) -> None:
    """Fills the rows. `on_token(done, limit)` counts positions of all rollouts, and may raise."""
    rollouts = len(prompts) * group_size
    width = max(len(prompt.tokens) for prompt in prompts) - 1
    wanted = min(max(settings.max_rows, group_size), rollouts)
    slots_a_lane = _slots(wanted, prompts, group_size) / wanted
    lanes = min(wanted, decoder.lanes_that_fit(slots_a_lane, width, settings.max_tokens))
    if lanes < 1:
        raise NoRoom(
            f"there is no memory for the cache of one rollout of {width + 1} + {settings.max_tokens} tokens; lower "
            "rollout.max_tokens, or give the model a smaller dtype or a device with more memory"
        )
    slots = _slots(lanes, prompts, group_size)
    try:
        decoder.open(
            lanes=lanes,
            prompt_slots=slots,
            prompt_width=width,
            settings=settings,
            temperature=temperature,
            uniforms_RT=uniforms_RT,
        )
        _Seating(decoder, prompts, group_size, lanes, slots).run(rows, on_token)
    finally:
        decoder.close()


def _slots(lanes: int, prompts: Sequence[Prompt], group_size: int) -> int:
    return min(len(prompts), SPARE_SLOTS * -(-lanes // group_size) + 1)


class _Seating:
    """Who sits where, and who waits."""

    def __init__(self, decoder: Decoder, prompts: Sequence[Prompt], group_size: int, lanes: int, slots: int) -> None:
        self.decoder, self.prompts, self.group_size = decoder, prompts, group_size
        self.rollouts_L = np.full(lanes, IDLE)
        self.ahead = 0  # positions advanced since the last look
        self.skipped_L = np.zeros(lanes, dtype=np.int64)  # of these, those before the rollout took its seat
        self.next = 0  # the first rollout that waits
        self.count = len(prompts) * group_size
        self.slot_of: dict[int, int] = {}  # of each prompt that is remembered
        self.free_slots = list(range(slots))[::-1]
        self.unfinished = [group_size] * len(prompts)

    def run(self, rows: Rows, on_token: Callable[[int, int], None]) -> None:
        limit = self.count * rows.limit
        while self.next < self.count or (self.rollouts_L != IDLE).any():
            self._fill()
            living = np.flatnonzero(self.rollouts_L != IDLE)
            rollouts, skipped = self.rollouts_L[living], self.skipped_L[living]
            left = rows.limit - int((rows.lengths_R[rollouts] - skipped).min()) - self.ahead
            now = max(min(self.decoder.look_every - self.ahead, left), 0)
            if now:
                self.decoder.advance(now)
            look = self.decoder.look()
            self.ahead = max(min(self.decoder.ahead, left - now), 0)
            if self.ahead:
                self.decoder.advance(self.ahead)
            ended = rows.take(rollouts, *_of_lanes(look(), living, skipped))
            self.skipped_L[:] = 0
            self._leave(living[ended])
            on_token(rows.positions, limit)
            self._shrink()

    def _fill(self) -> None:
        """Seats who waits. Prompts are remembered several at a time: a few lanes stay empty until that pays."""
        free = np.flatnonzero(self.rollouts_L == IDLE).tolist()
        enough = len(free) >= min(self.group_size, max(len(self.rollouts_L) // 8, 1))
        seats, new = [], []
        for lane in free:
            if self.next == self.count:
                break
            number = self.next // self.group_size
            prompt = self.prompts[number]
            if number not in self.slot_of:
                if not enough or not self.free_slots:
                    break
                self.slot_of[number] = self.free_slots.pop()
                new.append((self.slot_of[number], prompt.tokens[:-1]))
            seats.append(Seat(lane, self.next, self.slot_of[number], len(prompt.tokens), prompt.tokens[-1]))
            self.rollouts_L[lane], self.skipped_L[lane] = self.next, self.ahead
            self.next += 1
        if new:
            self.decoder.remember(new)
        if seats:
            self.decoder.seat(seats)

    def _leave(self, lanes: NDArray[np.int64]) -> None:
        for lane in lanes.tolist():
            number = int(self.rollouts_L[lane]) // self.group_size
            self.rollouts_L[lane] = IDLE
            self.unfinished[number] -= 1
            if not self.unfinished[number]:
                self.free_slots.append(self.slot_of.pop(number))

    def _shrink(self) -> None:
        living = np.flatnonzero(self.rollouts_L != IDLE)
        if self.next < self.count or not 0 < len(living) <= self.decoder.keep_below * len(self.rollouts_L):
            return
        # a lane stays where it is if it can: the holes in front are filled from behind
        behind = living[living >= len(living)].tolist()
        kept = [lane if self.rollouts_L[lane] != IDLE else behind.pop() for lane in range(len(living))]
        self.decoder.keep(kept)
        self.rollouts_L, self.skipped_L = self.rollouts_L[kept], self.skipped_L[kept]


def _of_lanes(
    sampled: Sampled, lanes: NDArray[np.int64], skipped_L: NDArray[np.int64]
) -> tuple[Sampled, NDArray[np.int64]]:
    """(of these lanes, each from its own first position on; how many positions that is)."""
    count = sampled.tokens_LC.shape[1]
    columns_LC = np.minimum(np.arange(count) + skipped_L[:, None], count - 1)
    index = torch.from_numpy(lanes)[:, None], torch.from_numpy(columns_LC)
    support_LCK = sampled.support_LCK
    theirs = Sampled(
        sampled.tokens_LC[index], sampled.logprobs_LC[index], None if support_LCK is None else support_LCK[index]
    )
    return theirs, count - skipped_L
