"""What a step of GRPOTrainer has of its own: prompts and a reward function from Python, and stats in place of a record.

The reward function runs in a thread of its own with a deadline: closures and models on a GPU work as they are, and a
call that never returns is an error instead of a silence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from threading import Thread
from typing import Any

import torch

from assay.config import Config
from assay.record.metrics import metrics_row, timings_row
from assay.rewards import Asked, OnScore
from assay.train.failure import RunFailed
from assay.train.progress import CollectedGroups, Progress, StepInProgress
from assay.train.randomness import derived_seed
from assay.train.show.clock import StageClock
from assay.train.user_checks import numbers
from assay.types import Prompt, Rollout, Score, StepRecord

Stats = dict[str, Any]

STATS = (  # what a caller gets of assay/record/metrics.py, which explains each
    "loss", "policy_loss", "kl_loss", "reward_mean", "reward_std", "zero_variance_share", "ratio_mean", "ratio_min",
    "ratio_max", "first_ratio_max_deviation", "clipped_share", "entropy", "gradient_norm", "learning_rate",
    "length_mean", "truncated_share", "mismatch_max", "rollouts_unscored", "updates_applied",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class CallerPrompts:
    """The prompts of one step, chosen by the caller."""

    prompts: Sequence[Prompt]
    seed: int

    def draw(self, progress: Progress, collected: CollectedGroups) -> Sequence[Prompt]:
        return self.prompts

    def sampling_seed(self, progress: Progress, collected: CollectedGroups) -> int:
        return derived_seed(self.seed, "rollout", progress.step)


@dataclass(frozen=True, slots=True)
class CallerReward:
    """A Reward: calls `function` once for all completions of a step."""

    function: Callable[[Sequence[Prompt], Sequence[Rollout]], Any]
    max_failed: float
    timeout: float
    device: torch.device

    def score(self, pairs: Sequence[Asked], on_score: OnScore) -> list[Score]:
        rewards = numbers(self._call([prompt for prompt, _ in pairs], [rollout for _, rollout in pairs]), "reward_fn")
        if len(rewards) != len(pairs):
            raise ValueError(
                f"reward_fn returned {len(rewards)} rewards for {len(pairs)} completions; return one for each, in "
                "their order"
            )
        unscored = [row for row, reward in enumerate(rewards) if reward is None]
        if len(unscored) > self.max_failed * len(rewards):
            raise RunFailed(
                f"reward_fn returned None for {len(unscored)} of {len(rewards)} completions (the first of them is "
                f"{unscored[0]}), more than {self.max_failed:.0%}; repair it, or give a bad answer a number"
            )
        return [Score.failed("returned None") if reward is None else Score.of({"reward": reward}) for reward in rewards]

    def close(self) -> None:
        pass

    def _call(self, prompts: Sequence[Prompt], rollouts: Sequence[Rollout]) -> Any:
        future: Future[Any] = Future()

        def call() -> None:
            try:
                if self.device.type == "cuda":
                    torch.cuda.set_device(self.device)  # a new thread would start on GPU 0
                future.set_result(self.function(prompts, rollouts))
            except BaseException as error:  # whatever it is, it is raised where the trainer waits
                future.set_exception(error)

        Thread(target=call, name="reward_fn", daemon=True).start()
        wait([future], timeout=self.timeout)
        if not future.done():
            raise TimeoutError(
                f"reward_fn did not return within reward_timeout = {self.timeout:g} seconds for {len(rollouts)} "
                "completions and is left behind in its thread; find out where it waits, or raise reward_timeout"
            )
        error = future.exception()
        if error is not None:
            error.add_note(f"raised by reward_fn, called for {len(rollouts)} completions; no update was made")
        return future.result()


@dataclass(slots=True)
class StepStats:
    """The verb `record` and the safe point of a step; the loop sets `stats` and `progress`."""

    config: Config
    clock: StageClock
    stats: Stats = field(default_factory=dict)
    progress: Progress = field(default_factory=Progress)

    def safe_point(self, progress: Progress, current: StepInProgress | None) -> None:
        self.progress = progress
        if current is None or not current.updates:
            return
        latest = current.updates[-1]
        if progress.skipped_in_a_row >= self.config.run.max_skipped:
            raise RunFailed(
                f"{progress.skipped_in_a_row} updates in a row were not finite; in the last one, in step "
                f"{progress.step}, {latest.skipped}; the weights are those before the first of them"
            )
        if not math.isfinite(latest.update_norm):
            raise RunFailed(
                f"the optimizer moved the weights by {latest.update_norm} in step {progress.step}, out of the range of "
                "numbers; lower its learning rate and start again from sound weights"
            )

    def record(self, current: StepInProgress, progress: Progress) -> None:
        has_reference = self.config.needs_reference
        record = StepRecord(
            step=progress.step,  # here the caller numbers the steps; `assay train` counts from 1
            policy_version=progress.policy_version,
            groups=current.collected.groups,
            samples=current.samples,
            updates=current.updates,
            old_logprobs=(),  # no statistic of a step looks at them again
            new_logprobs=(),
            ref_logprobs=() if has_reference else None,
            groups_without_signal=current.collected.without_signal,
            refill_rounds=0,
            seconds=self.clock.seconds,
        )
        row = metrics_row(record)
        self.stats = {"step": progress.step, **{name: _number(row[name]) for name in STATS}}
        self.stats["tokens"] = row["tokens_in_loss"]
        if has_reference:
            self.stats["kl"] = _number(row["ref_kl"])
        self.stats["skipped"] = next((update.skipped for update in current.updates if update.skipped), "")
        if self.clock.display is not None:
            self.clock.display.finish_step(row, timings_row(record))


def _number(value: float | None) -> float:
    """nan, which a caller can print and compare, where a number does not exist."""
    return math.nan if value is None else value
