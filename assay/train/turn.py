"""One step of GRPOTrainer: the verbs of train/loop.py around prompts and a reward function from Python.

The reward function runs in a thread of its own with a deadline: closures and models on a GPU current as they are, and a
call that never returns is an error instead of a silence.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from threading import Thread
from typing import Any

import torch

from assay.config import Config
from assay.engine.builtin import generate
from assay.record.metrics import metrics_row, timings_row
from assay.train.failure import RunFailed
from assay.train.loop import Stages
from assay.train.progress import CollectedGroups, Progress, StepInProgress
from assay.train.run.randomness import derived_seed
from assay.train.show.clock import StageClock
from assay.train.show.display import Display, describe_scores
from assay.train.step.choose import has_signal
from assay.train.step.credit import credit
from assay.train.step.learner import Learned, Learner
from assay.train.step.pack import cut
from assay.train.user_checks import numbers
from assay.types import Batch, Group, Minibatch, Prompt, Rollout, Sample, Score, StepRecord

Stats = dict[str, Any]
Reward = Callable[[Sequence[Prompt], Sequence[Rollout]], Any]

STATS = (  # the part of assay/record/metrics.py, where each has its one sentence, that is handed to a caller
    "loss", "policy_loss", "kl_loss", "reward_mean", "reward_std", "zero_variance_share", "ratio_mean", "ratio_min",
    "ratio_max", "first_ratio_max_deviation", "clipped_share", "entropy", "gradient_norm", "learning_rate",
    "length_mean", "truncated_share", "mismatch_max", "rollouts_unscored", "updates_applied",
)  # fmt: skip


class Turn:
    """`stats` and `progress` are there once the loop has run."""

    stats: Stats
    progress: Progress

    def __init__(
        self, config: Config, learner: Learner, prompts: Sequence[Prompt], reward: Reward, display: Display | None
    ) -> None:
        self.config = config
        self.learner = learner
        self.prompts = prompts
        self.reward = reward
        self.display = display
        self.clock = StageClock(learner.policy.device, display)

    def stages(self) -> Stages:
        return Stages(
            draw=self.draw,
            generate=self.generate,
            score=self.score,
            choose=self.choose,
            credit=lambda groups: credit(groups, self.config.advantage, {}, mask_truncated=False),
            pack=self.pack,
            freeze=self.freeze,
            learn=self.learn,
            record=self.record,
            safe_point=self.safe_point,
        )

    def draw(self, progress: Progress, collected: CollectedGroups) -> Sequence[Prompt]:
        self.clock.note("start", 0.0, f"{len(self.prompts)} prompts")
        return self.prompts

    def generate(
        self, prompts: Sequence[Prompt], progress: Progress, collected: CollectedGroups
    ) -> list[list[Rollout]]:
        policy, settings = self.learner.policy, self.config.rollout
        seed = derived_seed(self.config.run.seed, "rollout", progress.step)
        with self.clock.timed("generated"):
            return generate(
                policy,
                prompts,
                group_size=settings.group_size,
                settings=settings,
                generator=torch.Generator(policy.device).manual_seed(seed),
                policy_version=progress.policy_version,
                on_token=self._show_tokens,
            )

    def score(self, prompts: Sequence[Prompt], rollouts: Sequence[Sequence[Rollout]]) -> list[Group]:
        rows = [(prompt, rollout) for prompt, tries in zip(prompts, rollouts, strict=True) for rollout in tries]
        began = time.perf_counter()
        rewards = numbers(
            self._call_reward([prompt for prompt, _ in rows], [rollout for _, rollout in rows]), "reward_fn"
        )
        if len(rewards) != len(rows):
            raise ValueError(
                f"reward_fn returned {len(rewards)} rewards for {len(rows)} completions; return one for each, in their "
                "order"
            )
        unscored = [row for row, reward in enumerate(rewards) if reward is None]
        if len(unscored) > self.config.reward.max_failed * len(rewards):
            raise RunFailed(
                f"reward_fn returned None for {len(unscored)} of {len(rewards)} completions (the first of them is "
                f"{unscored[0]}), more than {self.config.reward.max_failed:.0%}; repair it, or give a bad answer "
                "a number"
            )
        known = [reward for reward in rewards if reward is not None]
        detail = describe_scores(statistics.fmean(known), statistics.stdev(known))
        self.clock.note("scored", time.perf_counter() - began, detail)
        scores = [Score.failed("returned None") if one is None else Score.of({"reward": one}) for one in rewards]
        size = self.config.rollout.group_size
        return [
            Group(prompt, tuple(tries), tuple(scores[first : first + size]))
            for prompt, tries, first in zip(prompts, rollouts, range(0, len(rows), size), strict=True)
        ]

    def choose(self, collected: CollectedGroups, groups: Sequence[Group]) -> CollectedGroups:
        flat = sum(not has_signal(group, self.config) for group in groups)
        return CollectedGroups(tuple(groups), prompts_drawn=len(groups), rounds=1, without_signal=flat, complete=True)

    def pack(self, samples: Sequence[Sample], progress: Progress) -> tuple[Minibatch, ...]:
        with self.clock.timed("loss"):
            return cut(samples, self.config, progress.step, self.learner.policy)

    def freeze(self, minibatches: Sequence[Minibatch]) -> Batch:
        with self.clock.timed("loss"):
            return self.learner.score(minibatches)

    def learn(self, current: StepInProgress, progress: Progress) -> Learned:
        turn = current.next_minibatch(progress)
        number = progress.step * self.config.updates_a_step + progress.update
        learned = self.learner.update(current.batch.minibatches[turn], current.batch.scored[turn], number)
        self.clock.note_update(learned)
        return learned

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
        has_reference = self.learner.reference is not None
        record = StepRecord(
            step=progress.step,
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
        if self.display is not None:
            self.display.finish_step(row, timings_row(record))

    def _call_reward(self, prompts: Sequence[Prompt], rollouts: Sequence[Rollout]) -> Any:
        future: Future[Any] = Future()
        device = self.learner.policy.device

        def call() -> None:
            try:
                if device.type == "cuda":
                    torch.cuda.set_device(device)  # a new thread would start on GPU 0
                future.set_result(self.reward(prompts, rollouts))
            except BaseException as error:  # whatever it is, it is raised where the trainer waits
                future.set_exception(error)

        Thread(target=call, name="reward_fn", daemon=True).start()
        seconds = self.config.reward.timeout
        wait([future], timeout=seconds)
        if not future.done():
            raise TimeoutError(
                f"reward_fn did not return within reward_timeout = {seconds:g} seconds for {len(rollouts)} "
                "completions and is left behind in its thread; find out where it waits, or raise reward_timeout"
            )
        error = future.exception()
        if error is not None:
            error.add_note(f"raised by reward_fn, called for {len(rollouts)} completions; no update was made")
        return future.result()

    def _show_tokens(self, done: int, limit: int) -> None:
        if self.display is not None:
            self.display.progress(done, limit, "tokens")


def _number(value: float | None) -> float:
    """nan, which a caller can print and compare, where a number does not exist."""
    return math.nan if value is None else value
