"""What a step of GRPOTrainer has of its own: prompts from Python, and stats in place of a record."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from assay.config import Config
from assay.record.metrics import metrics_row, timings_row
from assay.train.failure import RunFailed
from assay.train.progress import CollectedGroups, Progress, StepInProgress
from assay.train.randomness import derived_seed
from assay.train.show.clock import StageClock
from assay.types import Prompt, StepRecord

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


@dataclass(slots=True)
class StepStats:
    """The verb `record` and the safe point of a step; the loop sets `stats` and `progress`."""

    config: Config
    clock: StageClock
    rewards: Sequence[str] = ()  # the names of the functions, where there are several
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
        for name in self.rewards:
            self.stats[f"reward_{name}_mean"] = _number(row[f"reward_{name}_mean"])
        if has_reference:
            self.stats["kl"] = _number(row["ref_kl"])
        self.stats["skipped"] = next((update.skipped for update in current.updates if update.skipped), "")
        if self.clock.display is not None:
            self.clock.display.finish_step(row, timings_row(record))


def _number(value: float | None) -> float:
    """nan, which a caller can print and compare, where a number does not exist."""
    return math.nan if value is None else value
