"""A clock around the methods of TRL's GRPOTrainer: what each step took, and each of its stages."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback

from benchmarks.stopwatch import Stopwatch

STAGE_OF_METHOD = {
    "get_batch_samples": "start",
    "_tokenize_prompts": "start",
    "_generate": "generated",
    "_calculate_rewards": "scored",
    "training_step": "loss",
}


class TrainerClock(TrainerCallback):  # type: ignore[misc]
    """By the wall and by the CPU of this process, in this order. TRL counts an update as a step."""

    def __init__(
        self,
        on_step: Callable[[], None],
        updates_a_step: int = 1,
        wall: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.on_step, self.updates_a_step = on_step, updates_a_step
        self.clocks = (wall, time.process_time)
        self.watches = tuple(Stopwatch(clock) for clock in self.clocks)
        self.clipping_began: tuple[float, ...] = (0.0, 0.0)
        self.ends: list[tuple[float, ...]] = []  # of the steps; the first one is the beginning
        self.stages: list[tuple[dict[str, float], ...]] = []

    def attach(self, trainer: Any) -> None:
        trainer.add_callback(self)
        for name, stage in STAGE_OF_METHOD.items():
            method = getattr(trainer, name)
            for watch in self.watches:
                method = watch.timed(stage, method)
            setattr(trainer, name, method)
        clip = trainer._clip_grad_norm

        def clip_under_the_clock(*args: Any, **settings: Any) -> Any:
            self.clipping_began = self._now()
            return clip(*args, **settings)

        trainer._clip_grad_norm = clip_under_the_clock

    def on_train_begin(self, *args: Any, **others: Any) -> None:
        self.ends.append(self._now())

    def on_step_end(self, args: Any, state: Any, *others: Any, **more: Any) -> None:
        # from the clip to here it ran the optimizer and the schedule and dropped gradients
        now = self._now()
        for watch, ended, began in zip(self.watches, now, self.clipping_began, strict=True):
            watch.add("stepped", ended - began)
        if state.global_step % self.updates_a_step == 0:
            self.ends.append(now)
            self.stages.append(tuple(watch.take() for watch in self.watches))
            self.on_step()

    def _now(self) -> tuple[float, ...]:
        return tuple(clock() for clock in self.clocks)
