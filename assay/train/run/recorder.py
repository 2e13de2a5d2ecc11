"""What a run writes and says of its steps: the record, evaluations, dumps of skipped updates, and one-time warnings."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from safetensors.torch import save

from assay.config import Config
from assay.engine.engine import Engine
from assay.record import RunDirectory, read_evaluations
from assay.record.evaluations import write_answers
from assay.record.metrics import FIRST_RATIO_LIMIT, Row, metrics_row, mismatch_limit, timings_row
from assay.rewards import Reward
from assay.tasks import Task
from assay.train.evaluate.evaluate import evaluate
from assay.train.progress import Progress, StepInProgress
from assay.train.run.cpu import starvation
from assay.train.show.clock import StageClock
from assay.train.show.completions import table_of, table_steps
from assay.train.show.display import Display
from assay.train.show.sinks import Sinks
from assay.train.show.summary import heldout_fact
from assay.train.step.failed_rewards import FailedRewards
from assay.train.step.learner import Learner
from assay.train.watch import RunWatch
from assay.types import NO_SIGNAL, StepRecord, Update

SILENT = 5  # steps without any update at the beginning of a run


@dataclass(slots=True)
class Recorder:
    config: Config
    task: Task
    reward: Reward
    learner: Learner
    engine: Engine
    directory: RunDirectory
    display: Display
    sinks: Sinks
    watch: RunWatch
    failures: FailedRewards
    clock: StageClock
    _reported_inexact: bool = False
    _reported_starvation: bool = False
    _silent_steps: int = 0

    def record(self, current: StepInProgress, progress: Progress) -> None:
        """The verb `record`: writes a finished step, shows it, and evaluates if that is due."""
        step = _step_record(current, progress, self.clock)
        self.directory.append_step(step, keep=self.config.record.rollouts, extremes=self.config.record.extremes)
        row, timings = metrics_row(step), timings_row(step)
        self.sinks.step(row)
        if self.watch.is_watched:
            self.watch.step(step, row, timings)
        else:
            self._report_inexact_numbers(row)
        every = self.config.loss.reference_every
        if every and step.step % every == 0:
            self.learner.renew_reference()
            self.directory.append_event("reference renewed", step=step.step)
        self._report_a_busy_cpu()
        self._report_a_missing_signal(row)
        self.display.finish_step(row, timings)
        if step.step in table_steps(self.config.log.completions, self.config.run.steps):
            table = table_of(step)
            self.display.completions(table)
            self.sinks.completions(table)
        if self.config.evaluate.every and step.step % self.config.evaluate.every == 0:
            self.evaluate(step.step)

    def evaluate(self, step: int) -> None:
        """The held-out evaluation after `step`, unless the run makes none or has this one on record."""
        done = {row["step"] for row in read_evaluations(self.directory.path).rows}
        if not self.config.evaluate.prompts or step in done:
            return
        self.display.doing(f"evaluating up to {self.config.evaluate.prompts} held-out prompts")
        check = self.learner.check_interrupt
        evaluation = evaluate(
            self.engine,
            self.learner.policy,
            self.task,
            self.reward,
            self.config,
            step,
            self.display.ticker("held-out tokens", check),
            self.display.ticker("held-out answers scored", check),
            self.failures,
        )
        write_answers(self.directory.path, step, evaluation.answers)
        self.directory.append_evaluation(evaluation.row)
        self.sinks.evaluation(evaluation.row)
        self.display.facts(heldout_fact(evaluation.row))

    def dump(self, current: StepInProgress, progress: Progress, update: Update) -> None:
        """Keeps the inputs of an update that was skipped because a number was not finite."""
        if not update.skipped or update.skipped == NO_SIGNAL:
            return
        step, number = progress.step + 1, progress.update + 1
        name = f"step-{step:06d}-update-{number}.safetensors"
        index = current.next_minibatch(progress)
        microbatches, frozen = current.batch.minibatches[index].microbatches, current.batch.frozen[index]
        tensors = {
            f"{part}.{field.name}": value.contiguous()
            for part, (batch, fixed) in enumerate(zip(microbatches, frozen, strict=True))
            for noun in (batch, batch.inputs, fixed)
            for field in fields(noun)
            if isinstance(value := getattr(noun, field.name), torch.Tensor)
        }
        self.directory.replace_file(f"dumps/{name}", save(tensors, metadata={"reason": update.skipped}))
        self.directory.append_event("skipped update", step=step, update=number, reason=update.skipped)
        self.display.say(f"step {step}, update {number} skipped: {update.skipped}; see dumps/{name}")

    def _report_inexact_numbers(self, row: Row) -> None:
        """Says once if sampler and trainer differ, or new and old before any update. A watched run has this, and more,
        from its watcher."""
        name, limit = mismatch_limit(self.config.model.dtype)
        mismatch, deviation = row[name], row["first_ratio_max_deviation"]
        if self._reported_inexact or not ((mismatch or 0.0) > limit or (deviation or 0.0) > FIRST_RATIO_LIMIT):
            return
        self._reported_inexact = True
        self.directory.append_event("inexact", step=row["step"], **{name: mismatch}, first_ratio=deviation)
        self.display.say(
            f"step {row['step']} is not exact: sampler and trainer differ by {mismatch} in a log-prob ({name}, "
            f"limit {limit}) and the first ratio is off by {deviation} (limit {FIRST_RATIO_LIMIT}); do not trust "
            "this run"
        )

    def _report_a_missing_signal(self, row: Row) -> None:
        """Says once if no update was made since the beginning."""
        self._silent_steps = self._silent_steps + 1 if row["policy_version"] == 0 else 0
        if self._silent_steps == SILENT:
            self.display.say(
                f"{SILENT} steps without a single update: no group had two different rewards to compare (mean "
                f"{row['reward_mean']}); look at the answers in rollouts/, or try the reward with assay reward-check"
            )

    def _report_a_busy_cpu(self) -> None:
        """Says once if the run waits for a CPU that is busy with something else."""
        wall = sum(seconds for stage, seconds in self.clock.seconds.items() if stage != "scored")
        sentence = starvation(wall, self.clock.cpu_seconds, self.config.run.threads)
        if sentence and not self._reported_starvation and self.learner.policy.device.type == "cpu":
            self._reported_starvation = True
            self.display.say(sentence)


def _step_record(current: StepInProgress, progress: Progress, clock: StageClock) -> StepRecord:
    frozen = current.batch.frozen
    old = [
        [new if fixed.old_BT is None else fixed.old_BT for fixed, new in zip(parts, news, strict=True)]
        for parts, news in zip(frozen, current.new_logprobs, strict=True)
    ]
    ref = [[fixed.ref_BT for fixed in parts] for parts in frozen]
    has_reference = any(fixed.ref_BT is not None for parts in frozen for fixed in parts)
    return StepRecord(
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
        seconds=clock.seconds,
        memory_bytes=clock.memory,
    )
