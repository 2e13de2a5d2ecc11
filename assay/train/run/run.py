"""A run from config to summary: start it, or resume it."""

from __future__ import annotations

import fcntl
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path

from assay import config as configuration
from assay.config import Config, ConfigError
from assay.engine.engine import BrokenPolicy, NoRoom
from assay.engine.open import open_engine
from assay.machine import durable
from assay.policy.codec import PromptRefused
from assay.policy.load import load_policy
from assay.policy.policy import Policy
from assay.policy.where import source_of
from assay.record import (
    UPDATE_FILE,
    RunDirectory,
    RunError,
    checksums,
    describe_environment,
    read_evaluations,
    read_events,
    read_metrics,
    refuse_unwritable_name,
    writing,
)
from assay.record.evaluations import forget_answers
from assay.record.manifest import checkpoints
from assay.record.trust import LOGS, POLICY, REWARDS, is_signed, load_config, refuse_untrusted, signed
from assay.record.verify import check_history
from assay.record.weights import BEST, FINAL, clear_weights
from assay.rewards import Reward, open_rewards
from assay.tasks import Task, different_problems, open_task
from assay.train.evaluate.evaluate import heldout_prompts
from assay.train.evaluate.export import publish
from assay.train.examine import RunKnowledge
from assay.train.failure import RunFailed
from assay.train.loop import train
from assay.train.progress import CollectedGroups, Progress, StepInProgress
from assay.train.randomness import derived_seed, seed_global_generators
from assay.train.run import checkpoint
from assay.train.run.best import BestPolicy, StoppedEarly
from assay.train.run.budget import budgeted
from assay.train.run.changes import (
    Change,
    changed_sources,
    check_new_steps,
    check_step_under_way,
    refuse_edited,
    refuse_without_a_step,
    sources_of,
    unrecorded_changes,
    with_changes,
    with_packing_of,
)
from assay.train.run.cpu import set_up, settled
from assay.train.run.interrupt import Interrupt, Interrupted
from assay.train.run.opening import few_heldout, opening_facts, with_rate
from assay.train.run.recorder import Recorder
from assay.train.run.saver import KINDS, Saver
from assay.train.run.seed import ADAPTER, SEED, Seed, inherit, open_seeded, open_source, write_seed
from assay.train.show.clock import StageClock
from assay.train.show.display import Display
from assay.train.show.sinks import open_sinks, require_packages
from assay.train.step.choose import NoSignal
from assay.train.step.draw import TaskPrompts
from assay.train.step.failed_rewards import FailedRewards, RewardFailed
from assay.train.step.learner import Learner
from assay.train.step.pack import pack_step
from assay.train.step.score import is_scored_by_task
from assay.train.step.verbs import StepVerbs
from assay.train.watch import DoctorStop, RunWatch, Watcher

# what ends a run with a sentence for the user
FAILURES = (RunFailed, RunError, checkpoint.CheckpointError, PromptRefused, BrokenPolicy, NoRoom)


def start(config: Config, path: Path, watcher: Watcher | None = None) -> int:
    """Trains a new run in `path`. Returns the exit code. Without a watcher nothing is examined."""
    refuse_unwritable_name(path)
    config = settled(inherit(configuration.with_absolute_paths(config)))
    require_packages(config.log)
    set_up(config)
    with Interrupt() as interrupt, Display(config.run.steps) as display:
        try:
            display.doing(f"loading the task {config.task.name} and the model {config.model.path}")
            task = open_task(config)
            policy, config, seed = _open_policy(config, display.ticker("warm start", interrupt.check), display.say)
            config = with_rate(config, policy)
            TaskPrompts(task, policy, config).check(display.ticker("rows checked", interrupt.check))
            heldout = len(heldout_prompts(task, policy, config))
            config = budgeted(config, policy)
            reward = open_rewards(config, task, policy.codec.decode, interrupt.check, display.say)
        except Interrupted as stop:
            display.end(f"stopped by {stop} before training began; there is nothing to save")
            return stop.exit_code
        except PromptRefused as error:  # refused before anything is written
            raise ConfigError(str(error)) from error
        with closing(reward):
            text = configuration.to_toml(config, meanings=False)
            directory = RunDirectory.create(path, text, describe_environment(config.run.threads), signed(config))
            _introduce(config, directory, policy, task, heldout, display)
            with _only_writer(directory.path):
                _keep_seed(directory, policy, seed)
                process = TrainingProcess(config, task, reward, policy, directory, display, interrupt, None, watcher)
                return process.carry_out()


def resume(path: Path, overrides: Sequence[str] = (), watcher: Watcher | None = None, *, trust: bool = False) -> int:
    """Goes on with the run in `path` from its newest good checkpoint. `overrides` are changes of settings, as
    section.key=value. `trust` runs the code that a config of somebody else names."""
    refuse_unwritable_name(path)
    directory = RunDirectory.open(path)
    with _only_writer(directory.path):
        config_file = directory.path / "config.toml"
        recorded = load_config(directory.path)
        config = settled(with_changes(config_file, recorded, overrides)) if overrides else recorded
        if not trust:
            refuse_untrusted(directory.path, config, (POLICY, REWARDS, LOGS))
        damages: list[tuple[str, str]] = []  # kind of event, sentence
        saved = _newest_checkpoint(directory, lambda sentence: damages.append(("damaged checkpoint", sentence)))
        done = 0
        changed: list[Change] = []
        if saved is not None:
            refuse_edited(saved, recorded, directory.path)
            check_step_under_way(saved, config, directory.path)
            changed = unrecorded_changes(saved, config, read_events(directory.path).rows)
            done = saved.state["place"]["step"]
        last = -1 if saved is None else done
        check_history(directory.path, last, lambda sentence: damages.append(("damaged record", sentence)))
        if overrides:
            check_new_steps(recorded, config, saved)
            if saved is not None:
                refuse_without_a_step(changed, config, saved, directory.path)
        set_up(config)
        task = open_task(config)
        with Interrupt() as interrupt, Display(config.run.steps, steps_before=done) as display:
            for kind, sentence in damages:
                _report(kind, sentence, directory, display)
            if saved is not None:
                for kind, sentence in changed_sources(saved.state["sources"], sources_of(config, task), config):
                    _report(kind, sentence, directory, display)
            try:
                display.doing(f"loading the model {config.model.path}")
                tick = display.ticker("warm start", interrupt.check)
                if saved is None and not (directory.path / SEED).exists():
                    policy, _, seed = _open_policy(config, tick, display.say)
                else:
                    policy, seed = open_seeded(config, directory.path, tick, display.say), None
                if config.optimizer != recorded.optimizer:
                    config = budgeted(config, policy)
                heldout = len(heldout_prompts(task, policy, config))
                reward = open_rewards(config, task, policy.codec.decode, interrupt.check, display.say)
            except Interrupted as stop:
                display.end(f"stopped by {stop} before training went on; the run is as it was")
                return stop.exit_code
            except PromptRefused as error:
                raise ConfigError(str(error)) from error
            with closing(reward):
                _introduce(config, directory, policy, task, heldout, display)
                if config != recorded or not checksums.is_as_written(directory.path, config_file.name):
                    checksums.begin(directory.path)  # by these a change of ours differs from an edited file
                    directory.replace_file(config_file.name, configuration.to_toml(config, meanings=False).encode())
                for change in changed:
                    display.say(f"{change}, from step {done + 1} on")
                    directory.append_event("changed", step=done, **asdict(change))
                _keep_seed(directory, policy, seed)
                process = TrainingProcess(config, task, reward, policy, directory, display, interrupt, saved, watcher)
                return process.carry_out()


class TrainingProcess:
    """What one process does for a run, from its opened policy to its last sentence."""

    def __init__(
        self,
        config: Config,
        task: Task,
        reward: Reward,
        policy: Policy,
        directory: RunDirectory,
        display: Display,
        interrupt: Interrupt,
        saved: checkpoint.Checkpoint | None,
        watcher: Watcher | None,
    ) -> None:
        self.began = time.perf_counter()
        self.config, self.directory, self.display, self.saved = config, directory, display, saved
        first = TaskPrompts(task, policy, config).draw(Progress(), CollectedGroups())
        longest = max(first, key=lambda prompt: len(prompt.tokens))
        self.policy = policy = policy.check_shortcuts(longest, config.rollout.max_tokens)
        reference = None
        if config.needs_reference:
            is_seeded = (directory.path / SEED / ADAPTER).is_file()
            reference = policy.frozen_copy(keep_adapter=is_seeded)
        planned = config.run.steps * config.updates_a_step
        learner = Learner(policy, reference, config.loss, config.optimizer, planned, check_interrupt=interrupt.check)
        self.sinks = open_sinks(
            config.log,
            directory.path,
            directory.path.name,
            configuration.to_mapping(config),
            after_step=-1 if saved is None else saved.state["place"]["step"],
            on_failure=lambda sentence: _report("log failed", sentence, directory, display),
        )
        known = RunKnowledge(
            score_again=task.score if is_scored_by_task(config, task) else None,
            dataset_size=None if watcher is None else different_problems(task, among=2 * config.rollout.prompts),
        )
        self.watch = watch = RunWatch(watcher, config, learner, directory, display.say, known)
        failures = FailedRewards(config, display.say, directory.append_event)
        engine = open_engine(policy)
        self.clock = clock = StageClock(policy.device, display)
        self.recorder = recorder = Recorder(
            config, task, reward, learner, engine, directory, display, self.sinks, watch, failures, clock
        )
        prompts = TaskPrompts(task, policy, config)
        self.verbs = StepVerbs(
            config, learner, engine, prompts, reward, failures, clock, display.say, watch, recorder.dump
        )
        seed_global_generators(derived_seed(config.run.seed, "global"))
        self.saver = Saver(config, learner, interrupt, directory, sources_of(config, task))
        self.best = BestPolicy(config, directory.path, self.saver.save, self._publish_best)

    def carry_out(self) -> int:
        """Trains to the end of the run, or to its next stop. Returns the exit code."""
        progress, current = self._begin() if self.saved is None else self._restore(self.saved)
        try:
            with closing(self.sinks):
                stopped = self._train_and_evaluate(progress, current)
            if stopped is None and self.config.checkpoint.final:
                path, step = self.directory.path, self.saver.steps_done
                publish(self.policy, self.config, path, FINAL, step, self.display.say)
        except FAILURES as failure:
            facts = {"failure": failure.facts} if isinstance(failure, RewardFailed) and failure.facts else {}
            with suppress(RunError):  # a full disk may be what ended the run
                self.directory.append_event("failed", reason=str(failure), **facts)
            ended = RunFailed(str(failure))
            for line in getattr(failure, "__notes__", ()):
                ended.add_note(line)
            raise ended from failure
        trusted = "" if is_signed(self.directory.path, self.config) else " --trust"
        if stopped is not None:
            self.directory.append_event("stopped", signal=str(stopped))
            command = f"assay train --resume {shlex.quote(str(self.directory.path))}{trusted}"
            self.display.end(f"stopped by {stopped} and saved; go on with: {command}")
            return stopped.exit_code
        self._summarize(trusted)
        return 0

    def _begin(self) -> tuple[Progress, None]:
        self.directory.rewind(-1)
        forget_answers(self.directory.path, -1)
        size = sum(weight.numel() for weight in self.policy.model.parameters())
        self.directory.append_event("start", steps=self.config.run.steps, parameters=size)
        return Progress(), None

    def _restore(self, saved: checkpoint.Checkpoint) -> tuple[Progress, StepInProgress | None]:
        path, display, steps = self.directory.path, self.display, self.config.run.steps
        as_saved = with_packing_of(self.config, saved)
        progress, current = self.saver.restore(
            saved, self.verbs.credit, lambda samples, progress: pack_step(samples, as_saved, progress.step, self.policy)
        )
        self.directory.rewind(progress.step)
        forget_answers(path, progress.step)
        clear_weights(path, FINAL, display.say)  # of an earlier end; this run goes further
        self.best.resume(progress.step, display.say)
        facts = {"checkpoint": saved.path.name, "step": progress.step, "update": progress.update, "steps": steps}
        self.directory.append_event("resume", **facts)
        display.say(f"resumed from {saved.path.name}: {progress.step} of {steps} steps done")
        if progress.step >= steps:
            display.say(f"all {progress.step} steps are done; --set run.steps={2 * progress.step} would add as many")
        if current is not None:
            self.clock.begin(progress.step + 1)
            if as_saved != self.config and not current.updates:  # the passes are to be smaller, for instance
                batch = self.verbs.freeze(self.verbs.pack(current.samples, progress))
                current = replace(current, batch=batch)
        return progress, current

    def _train_and_evaluate(self, progress: Progress, current: StepInProgress | None) -> Interrupted | None:
        """The whole of the run. What a signal or a broken reward cuts short is saved; returns the signal, if any."""
        steps, saver = self.config.run.steps, self.saver
        try:
            if progress == Progress():
                self.recorder.evaluate(0)
            train(self.verbs.stages(self.recorder.record, self._safe_point), progress, current, steps)
            saver.save()
            self.recorder.evaluate(steps)
            self.best.look(steps)
        except StoppedEarly as early:
            saver.save()
            self.directory.append_event("stopped early", step=saver.steps_done, reason=str(early))
            self.display.say(str(early))
        except Interrupted as stop:
            saver.save()
            return stop
        except (RewardFailed, NoSignal, PromptRefused, DoctorStop):
            saver.save()
            raise
        return None

    def _safe_point(self, progress: Progress, current: StepInProgress | None) -> None:
        self.saver.safe_point(progress, current)
        self.watch.stop_if_asked()
        if current is None:
            self.best.look(progress.step)

    def _publish_best(self, step: int) -> None:
        publish(self.policy, self.config, self.directory.path, BEST, step, self.display.say)
        self.directory.append_event(BEST, step=step)

    def _summarize(self, trusted: str) -> None:
        seconds = time.perf_counter() - self.began
        watched = {"doctor_seconds": self.watch.seconds} if self.watch.is_watched else {}
        self.directory.append_event("finished", seconds=seconds, **watched)
        path, is_early = self.directory.path, self.saver.steps_done < self.config.run.steps
        self.display.summary(
            path,
            read_metrics(path).rows,
            read_evaluations(path).rows,
            seconds,
            go_on=" --change evaluate.patience=0" * is_early + trusted,
            names_best=bool(self.config.evaluate.every and self.config.checkpoint.best),
        )
        self.watch.finished()


def _open_policy(
    config: Config, tick: Callable[[int, int], None], say: Callable[[str], None]
) -> tuple[Policy, Config, Seed | None]:
    """The policy that a new run begins with; if it is that of another run, also what is to be kept of it."""
    source = source_of(config.model.path)
    return (load_policy(config, tick, say), config, None) if source is None else open_source(config, source, tick, say)


def _keep_seed(directory: RunDirectory, policy: Policy, seed: Seed | None) -> None:
    if seed is not None:
        write_seed(directory.path, policy, seed)
        checksums.note_directory(directory.path, SEED, directory.path / SEED)
        directory.append_event("seeded", **seed.facts)


def _introduce(
    config: Config, directory: RunDirectory, policy: Policy, task: Task, heldout: int, display: Display
) -> None:
    """Prints what is trained on what, and the numbers that the user may not have chosen."""
    display.facts(opening_facts(config, directory.path, policy, task, heldout))
    if warning := few_heldout(config, task, heldout):
        display.say(warning)


def _report(kind: str, sentence: str, directory: RunDirectory, display: Display) -> None:
    display.say(sentence)
    directory.append_event(kind, reason=sentence)


def _newest_checkpoint(directory: RunDirectory, report: Callable[[str], None]) -> checkpoint.Checkpoint | None:
    """None for a run that was killed before its first checkpoint: it starts again from the beginning."""
    root = directory.path / "checkpoints"
    with writing(directory.path):
        checkpoint.remove_leftovers(root)
        durable.remove_asides(directory.path / "dumps", UPDATE_FILE)
    steps = read_metrics(directory.path).rows  # damage is reported before anything is loaded
    if not checkpoints(root) and not steps:
        return None
    try:
        return checkpoint.load_latest(root, report, KINDS)
    except checkpoint.CheckpointError as error:
        raise RunError(str(error)) from error


@contextmanager
def _only_writer(path: Path) -> Iterator[None]:
    """Locks the run against a second process; the kernel releases the lock however this one ends."""
    try:
        mark = (path / "run.json").open("r+b")
    except OSError as error:
        raise RunError(
            f"{path} cannot be written ({error.strerror}), and training writes to it; copy the run to a place you may "
            "write to and resume it there"
        ) from error
    with mark:
        try:
            fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunError(f"{path} is being trained by another process; wait for it or stop it first") from None
        except OSError as error:
            raise RunError(f"{path / 'run.json'} cannot be locked: {durable.reason(error)}") from error
        yield
