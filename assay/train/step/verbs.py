"""The verbs of a step, bound to one learner, timed and shown: each body exists once, for `assay train` and GRPOTrainer.

The two differ in where prompts come from, what scores the answers and where the step is written. The computations live
in files of their own: engine/, draw.py, score.py, choose.py, credit.py, pack.py, learner.py.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Protocol

from assay.config import Config
from assay.engine.engine import Engine
from assay.machine.terminal import plural
from assay.rewards import Reward
from assay.train.loop import Stages
from assay.train.progress import CollectedGroups, Progress, StepInProgress
from assay.train.show.clock import StageClock
from assay.train.show.display import describe_scores
from assay.train.step.choose import choose
from assay.train.step.credit import credit
from assay.train.step.failed_rewards import FailedRewards
from assay.train.step.learner import Learner
from assay.train.step.pack import pack_step
from assay.train.step.score import reward_weights, score
from assay.train.watch import RunWatch
from assay.types import FrozenBatch, Group, Learned, Minibatch, Prompt, Rollout, Sample, Update


class PromptSource(Protocol):
    def draw(self, progress: Progress, collected: CollectedGroups) -> Sequence[Prompt]: ...
    def sampling_seed(self, progress: Progress, collected: CollectedGroups) -> int: ...


@dataclass(frozen=True, slots=True)
class StepVerbs:
    """`stages()` hands them to the loop. `on_update` is called after each optimizer update, with the step and the
    progress before it."""

    config: Config
    learner: Learner
    engine: Engine
    source: PromptSource
    reward: Reward
    failures: FailedRewards
    clock: StageClock
    say: Callable[[str], None] = lambda sentence: None
    watch: RunWatch | None = None
    on_update: Callable[[StepInProgress, Progress, Update], None] = lambda current, progress, update: None

    def stages(
        self,
        record: Callable[[StepInProgress, Progress], None],
        safe_point: Callable[[Progress, StepInProgress | None], None],
    ) -> Stages:
        return Stages(
            self.draw, self.generate, self.score, self.choose, self.credit, self.pack, self.freeze, self.learn,
            record, safe_point,
        )  # fmt: skip

    def draw(self, progress: Progress, collected: CollectedGroups) -> Sequence[Prompt]:
        if collected.rounds == 0:
            self.clock.begin(progress.step + 1)
        with self.clock.timed("start") as describe:
            prompts = self.source.draw(progress, collected)
            describe(plural(len(prompts), "prompt"))
            return prompts

    def generate(
        self, prompts: Sequence[Prompt], progress: Progress, collected: CollectedGroups
    ) -> list[list[Rollout]]:
        with self.clock.timed("generated"):
            self.engine.publish()
            rollouts = self.engine.generate(
                prompts,
                group_size=self.config.rollout.group_size,
                settings=self.config.rollout,
                seed=self.source.sampling_seed(progress, collected),
                policy_version=progress.policy_version,
                on_token=self.clock.ticker("tokens", self.learner.check_interrupt),
            )
            self.engine.release()
            return rollouts

    def score(self, prompts: Sequence[Prompt], rollouts: Sequence[Sequence[Rollout]]) -> list[Group]:
        with self.clock.timed("scored") as describe:
            groups = score(
                prompts,
                rollouts,
                config=self.config,
                reward=self.reward,
                learner=self.learner,
                failures=self.failures,
                on_scored=self.clock.ticker("scored", self.learner.check_interrupt),
            )
            rewards = [reward for group in groups for reward in group.rewards if reward is not None]
            mean = statistics.fmean(rewards) if rewards else None
            std = statistics.stdev(rewards) if len(rewards) > 1 else None
            describe(describe_scores(mean, std))
            return groups

    def choose(self, collected: CollectedGroups, groups: Sequence[Group]) -> CollectedGroups:
        return choose(collected, groups, self.config, self.say)

    def credit(self, groups: Sequence[Group]) -> tuple[Sample, ...]:
        weights = reward_weights(self.config)
        return credit(groups, self.config.advantage, weights, mask_truncated=self.config.rollout.truncated == "mask")

    def pack(self, samples: Sequence[Sample], progress: Progress) -> tuple[Minibatch, ...]:
        with self.clock.timed("loss"):
            return pack_step(samples, self.config, progress.step, self.learner.policy)

    def freeze(self, minibatches: Sequence[Minibatch]) -> FrozenBatch:
        with self.clock.timed("loss"):
            return self.learner.freeze(minibatches)

    def learn(self, current: StepInProgress, progress: Progress) -> Learned:
        index = current.next_minibatch(progress)
        minibatch, frozen = current.batch.minibatches[index], current.batch.frozen[index]
        number = progress.step * self.config.updates_a_step + progress.update
        with nullcontext() if self.watch is None else self.watch.examination(current, progress) as examination:
            learned = self.learner.update(minibatch, frozen, number, observer=examination)
        self.clock.note_update(learned)
        if self.watch is not None and examination is not None:
            self.watch.examined(examination, learned.update)
        self.on_update(current, progress, learned.update)
        return learned
