"""The verbs of one run, bound to its policy, task and learner; each is timed, shown and, at the end, recorded.

The verbs themselves live in their own files: engine/builtin.py, score.py, choose.py, credit.py, pack.py, learner.py.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import fields

import torch
from safetensors.torch import save

from assay.config import Config
from assay.engine.builtin import generate
from assay.policy.causal import CausalPolicy
from assay.policy.codec import PromptRefused, PromptTooLong
from assay.record import RunDirectory, read_evaluations
from assay.record.evaluations import write_answers
from assay.record.metrics import Row, metrics_row, timings_row
from assay.rewards import Reward
from assay.tasks import Task
from assay.train.evaluate.evaluate import evaluate
from assay.train.progress import CollectedGroups, Progress, StepInProgress
from assay.train.run.interrupt import Interrupt
from assay.train.run.machine import starvation
from assay.train.run.randomness import derived_seed
from assay.train.show.clock import StageClock
from assay.train.show.completions import table_of, table_steps
from assay.train.show.display import Display, describe_scores
from assay.train.show.sinks import Sinks
from assay.train.show.summary import heldout_fact
from assay.train.step.choose import choose
from assay.train.step.credit import credit
from assay.train.step.failed_rewards import FailedRewards
from assay.train.step.learner import Learned, Learner
from assay.train.step.pack import cut
from assay.train.step.score import reward_weights, score
from assay.train.watch import Watch
from assay.types import NO_SIGNAL, Batch, Group, Microbatch, Minibatch, Prompt, Rollout, Sample, Scored, StepRecord

# of |old - sampler|: the largest in float32, where sound models show 3e-5; the mean in bfloat16, where single tokens
# are off by up to 1 and the mean is 0.03
MISMATCH_LIMIT = {"float32": ("mismatch_max", 1e-3), "bfloat16": ("mismatch_mean", 0.1)}
SILENT = 5  # steps without any update at the beginning of a run
SKIP = 1_000_003  # far away in the numbers of problems; a finite source begins anew
MOST_SKIPPED = 100
MOST_CHECKED = 20_000
RATIO_LIMIT = 1e-3  # of |ratio - 1| before any update; the same arithmetic twice gives 0


def fields_of(noun: Microbatch | Scored) -> dict[str, object]:
    """The fields of a noun by name, tensors shared (dataclasses.asdict would copy them)."""
    return {field.name: getattr(noun, field.name) for field in fields(noun)}


def draw(task: Task, policy: CausalPolicy, config: Config, first: int) -> list[Prompt]:
    """The prompts of one round, from training problem number `first` on."""
    return [_prompt(task, policy, config, first + index) for index in range(config.rollout.prompts)]


def _prompt(task: Task, policy: CausalPolicy, config: Config, index: int) -> Prompt:
    """Problem number `index`. In the place of one that is too long stands another, always the same one."""
    places = [index] if config.task.long_prompts == "fail" else [index + turn * SKIP for turn in range(MOST_SKIPPED)]
    for place in places:
        try:
            return policy.prompt(task.training_problem(place), config.rollout.max_tokens)
        except PromptTooLong as error:
            refusal = error
    if config.task.long_prompts == "fail":
        raise PromptRefused(f"{refusal}, or set task.long_prompts = 'skip'") from refusal
    raise PromptRefused(f"{MOST_SKIPPED} prompts in a row are too long; {refusal}") from refusal


def check_rows(task: Task, policy: CausalPolicy, config: Config, on_row: Callable[[int, int], None]) -> None:
    """Tokenizes the first prompts before anything is written: all rows of a file, up to so many that nobody waits."""
    rows = min(getattr(task, "sizes", (0, 0))[0], MOST_CHECKED)
    wanted = max(rows, config.rollout.prompts)
    for index in range(wanted):
        _prompt(task, policy, config, index)
        if index % 100 == 99:
            on_row(index + 1, wanted)


class Verbs:
    def __init__(
        self,
        config: Config,
        task: Task,
        reward: Reward,
        learner: Learner,
        directory: RunDirectory,
        display: Display,
        interrupt: Interrupt,
        sinks: Sinks,
        watch: Watch,
    ) -> None:
        self.config = config
        self.task = task
        self.reward = reward
        self.learner = learner
        self.policy = learner.policy
        self.directory = directory
        self.display = display
        self.interrupt = interrupt
        self.sinks = sinks
        self.watch = watch
        self._alarmed = False
        self._starved = False
        self._silent_steps = 0
        self.failures = FailedRewards(config, display.say, directory.append_event)
        self.clock = StageClock(learner.policy.device, display)

    def draw(self, progress: Progress, collected: CollectedGroups) -> list[Prompt]:
        if collected.rounds == 0:
            self.clock.begin(progress.step + 1)
        with self.clock.timed("start"):
            return draw(self.task, self.policy, self.config, first=progress.cursor + collected.prompts_drawn)

    def generate(
        self, prompts: Sequence[Prompt], progress: Progress, collected: CollectedGroups
    ) -> list[list[Rollout]]:
        seed = derived_seed(self.config.run.seed, "rollout", progress.step, collected.rounds)
        with self.clock.timed("generated"):
            return generate(
                self.policy,
                prompts,
                group_size=self.config.rollout.group_size,
                settings=self.config.rollout,
                generator=torch.Generator(self.policy.device).manual_seed(seed),
                policy_version=progress.policy_version,
                on_token=self._ticker("tokens"),
            )

    def score(self, prompts: Sequence[Prompt], rollouts: Sequence[Sequence[Rollout]]) -> list[Group]:
        with self.clock.timed("scored") as describe:
            groups = score(
                prompts,
                rollouts,
                config=self.config,
                reward=self.reward,
                learner=self.learner,
                failures=self.failures,
                on_scored=self._ticker("scored"),
            )
            rewards = [reward for group in groups for reward in group.rewards if reward is not None]
            mean = statistics.fmean(rewards) if rewards else None
            std = statistics.stdev(rewards) if len(rewards) > 1 else None
            describe(describe_scores(mean, std))
            return groups

    def choose(self, collected: CollectedGroups, groups: Sequence[Group]) -> CollectedGroups:
        return choose(collected, groups, self.config, self.display.say)

    def credit(self, groups: Sequence[Group]) -> tuple[Sample, ...]:
        weights = reward_weights(self.config)
        return credit(groups, self.config.advantage, weights, mask_truncated=self.config.rollout.truncated == "mask")

    def pack(self, samples: Sequence[Sample], progress: Progress) -> tuple[Minibatch, ...]:
        with self.clock.timed("loss"):
            return cut(samples, self.config, progress.step, self.policy)

    def freeze(self, minibatches: Sequence[Minibatch]) -> Batch:
        with self.clock.timed("loss"):
            return self.learner.score(minibatches)

    def learn(self, current: StepInProgress, progress: Progress) -> Learned:
        turn = current.next_minibatch(progress)
        number = progress.step * self.config.updates_a_step + progress.update
        minibatch, scored = current.batch.minibatches[turn], current.batch.scored[turn]
        with self.watch.examination(current, progress) as look:
            learned = self.learner.update(minibatch, scored, number, observer=look)
        self.clock.note_update(learned)
        if look is not None:
            self.watch.examined(look, learned.update)
        skipped = learned.update.skipped
        if skipped and skipped != NO_SIGNAL:
            self._dump(current, progress, skipped)
        return learned

    def record(self, current: StepInProgress, progress: Progress) -> None:
        old = [
            [new if fixed.old_BT is None else fixed.old_BT for fixed, new in zip(parts, news, strict=True)]
            for parts, news in zip(current.batch.scored, current.new_logprobs, strict=True)
        ]
        ref = [[fixed.ref_BT for fixed in parts] for parts in current.batch.scored]
        has_reference = any(fixed.ref_BT is not None for parts in current.batch.scored for fixed in parts)
        step = StepRecord(
            step=progress.step + 1,
            policy_version=progress.policy_version,
            groups=(*current.collected.groups, *current.collected.left_out),
            samples=current.samples,
            updates=current.updates,
            old_logprobs=current.logprobs_by_row(old),
            new_logprobs=current.logprobs_by_row(current.new_logprobs),
            ref_logprobs=current.logprobs_by_row(ref) if has_reference else None,
            groups_without_signal=current.collected.without_signal,
            refill_rounds=current.collected.rounds - 1,
            seconds=self.clock.seconds,
            memory_bytes=self.clock.memory,
        )
        self.directory.append_step(step, keep=self.config.record.rollouts, extremes=self.config.record.extremes)
        row, timings = metrics_row(step), timings_row(step)
        self.sinks.step(row)
        if self.watch:
            self.watch.step(step, row, timings)
        else:
            self._check(row)
        every = self.config.loss.reference_every
        if every and step.step % every == 0:
            self.learner.renew_reference()
            self.directory.append_event("reference renewed", step=step.step)
        self._look_at_the_cpu()
        self._look_for_a_signal(row)
        self.display.finish_step(row, timings)
        if step.step in table_steps(self.config.log.completions, self.config.run.steps):
            table = table_of(step)
            self.display.completions(table)
            self.sinks.completions(table)
        if self.config.evaluate.every and step.step % self.config.evaluate.every == 0:
            self.evaluate(step.step)

    def evaluate(self, step: int) -> None:
        """The held-out evaluation after `step`, unless there is none to make or it is on record already."""
        done = {row["step"] for row in read_evaluations(self.directory.path).rows}
        if not self.config.evaluate.prompts or step in done:
            return
        self.display.doing(f"evaluating up to {self.config.evaluate.prompts} held-out prompts")
        evaluation = evaluate(
            self.policy,
            self.task,
            self.reward,
            self.config,
            step,
            self._ticker("held-out tokens"),
            self._ticker("held-out answers scored"),
            self.failures,
        )
        write_answers(self.directory.path, step, evaluation.answers)
        self.directory.append_evaluation(evaluation.row)
        self.sinks.evaluation(evaluation.row)
        self.display.facts(heldout_fact(evaluation.row))

    def _check(self, row: Row) -> None:
        """Says once, aloud, if the arithmetic is off: sampler against trainer, or new against old before any update.
        A run that is watched has this, and more, from its watcher."""
        name, limit = MISMATCH_LIMIT[self.config.model.dtype]
        mismatch, deviation = row[name], row["first_ratio_max_deviation"]
        if self._alarmed or not ((mismatch or 0.0) > limit or (deviation or 0.0) > RATIO_LIMIT):
            return
        self._alarmed = True
        self.directory.append_event("inexact", step=row["step"], **{name: mismatch}, first_ratio=deviation)
        self.display.say(
            f"step {row['step']} is not exact: sampler and trainer differ by {mismatch} in a log-prob ({name}, "
            f"limit {limit}) and the first ratio is off by {deviation} (limit {RATIO_LIMIT}); do not trust this run"
        )

    def _look_for_a_signal(self, row: Row) -> None:
        """Says once if nothing has been learned since the beginning."""
        self._silent_steps = self._silent_steps + 1 if row["policy_version"] == 0 else 0
        if self._silent_steps == SILENT:
            self.display.say(
                f"{SILENT} steps without a single update: no group had two different rewards to compare (mean "
                f"{row['reward_mean']}); look at the answers in rollouts/, or try the reward with assay reward-check"
            )

    def _look_at_the_cpu(self) -> None:
        """Says once if the work waits for a CPU that is busy with something else."""
        wall = sum(seconds for stage, seconds in self.clock.seconds.items() if stage != "scored")
        sentence = starvation(wall, self.clock.cpu_seconds, self.config.run.threads)
        if sentence and not self._starved and self.policy.device.type == "cpu":
            self._starved = True
            self.display.say(sentence)

    def _dump(self, current: StepInProgress, progress: Progress, reason: str) -> None:
        """Keeps what a skipped update was given, so that the cause can be looked for."""
        name = f"step-{progress.step + 1:06d}-update-{progress.update + 1}.safetensors"
        turn = current.next_minibatch(progress)
        tensors = {
            f"{part}.{key}": value.contiguous()
            for part, (batch, fixed) in enumerate(
                zip(current.batch.minibatches[turn].microbatches, current.batch.scored[turn], strict=True)
            )
            for key, value in {**fields_of(batch), **fields_of(fixed)}.items()
            if isinstance(value, torch.Tensor)
        }
        self.directory.replace_file(f"dumps/{name}", save(tensors, metadata={"reason": reason}))
        self.directory.append_event("skipped update", step=progress.step + 1, update=progress.update + 1, reason=reason)
        self.display.say(f"step {progress.step + 1}, update {progress.update + 1} skipped: {reason}; see dumps/{name}")

    def _ticker(self, what: str) -> Callable[[int, int], None]:
        """For long work: shows how far it has come, and is where a signal can stop it."""

        def tick(done: int, total: int) -> None:
            self.display.progress(done, total, what)
            self.interrupt.check()

        return tick
