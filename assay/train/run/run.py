"""A run from config to summary: start it, or take it up again."""

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
from assay.engine.builtin import BrokenPolicy, NoRoom
from assay.machine import durable
from assay.policy.causal import CausalPolicy
from assay.policy.codec import PromptRefused
from assay.policy.load import load_policy
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
from assay.tasks import Task, open_task
from assay.train.evaluate.evaluate import heldout_prompts
from assay.train.evaluate.export import publish
from assay.train.failure import RunFailed
from assay.train.loop import Stages, train
from assay.train.progress import Progress, StepInProgress
from assay.train.run import checkpoint
from assay.train.run.best import BestPolicy, StoppedEarly
from assay.train.run.budget import budgeted
from assay.train.run.changes import (
    Change,
    check_new_steps,
    check_step_under_way,
    refuse_edited,
    refuse_without_a_step,
    unrecorded_changes,
    with_changes,
    with_packing_of,
)
from assay.train.run.interrupt import Interrupt, Interrupted
from assay.train.run.machine import set_up, settled
from assay.train.run.opening import few_heldout, opening_facts, with_rate
from assay.train.run.randomness import derived_seed, seed_global_generators
from assay.train.run.recorder import Recorder
from assay.train.run.saver import KINDS, Saver
from assay.train.run.seed import inherit, open_seeded, open_source
from assay.train.run.seed_files import ADAPTER, SEED, Seed, write_seed
from assay.train.run.sources import changes, sources_of
from assay.train.show.clock import StageClock
from assay.train.show.display import Display
from assay.train.show.sinks import open_sinks, require_packages
from assay.train.step.choose import NoSignal
from assay.train.step.draw import TaskPrompts, check_rows, draw
from assay.train.step.failed_rewards import FailedRewards, RewardFailed
from assay.train.step.learner import Learner, frozen_copy, frozen_with_adapter
from assay.train.step.pack import cut, with_confirmed_sharing
from assay.train.step.verbs import StepStages
from assay.train.watch import DoctorStop, Watch, Watcher


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
            check_rows(task, policy, config, display.ticker("rows checked", interrupt.check))
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
                return _carry_out(config, task, reward, policy, directory, display, interrupt, None, watcher)


def resume(path: Path, asked: Sequence[str] = (), watcher: Watcher | None = None, *, trust: bool = False) -> int:
    """Goes on with the run in `path` from its newest good checkpoint. `asked` are changes of settings, as
    section.key=value. `trust` runs the code that a config of somebody else names."""
    refuse_unwritable_name(path)
    directory = RunDirectory.open(path)
    with _only_writer(directory.path):
        config_file = directory.path / "config.toml"
        recorded = load_config(directory.path)
        config = settled(with_changes(config_file, recorded, asked)) if asked else recorded
        if not trust:
            refuse_untrusted(directory.path, config, (POLICY, REWARDS, LOGS))
        damages: list[str] = []
        saved = _newest_checkpoint(directory, damages.append)
        done = 0
        changed: list[Change] = []
        if saved is not None:
            refuse_edited(saved, recorded, directory.path)
            check_step_under_way(saved, config, directory.path)
            changed = unrecorded_changes(saved, config, read_events(directory.path).rows)
            done = saved.state["place"]["step"]
        unverified: list[str] = []
        check_history(directory.path, -1 if saved is None else done, unverified.append)
        if asked:
            check_new_steps(recorded, config, saved)
            if saved is not None:
                refuse_without_a_step(changed, config, saved, directory.path)
        set_up(config)
        task = open_task(config)
        with Interrupt() as interrupt, Display(config.run.steps, steps_before=done) as display:
            for sentence in damages:
                display.say(sentence)
                directory.append_event("damaged checkpoint", reason=sentence)
            for sentence in unverified:
                display.say(sentence)
                directory.append_event("damaged record", reason=sentence)
            if saved is not None:
                for kind, sentence in changes(saved.state["sources"], sources_of(config, task), config):
                    display.say(sentence)
                    directory.append_event(kind, reason=sentence)
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
                    checksums.begin(directory.path)  # which tells a change of ours from an edited file
                    directory.replace_file(config_file.name, configuration.to_toml(config, meanings=False).encode())
                for change in changed:
                    display.say(f"{change}, from step {done + 1} on")
                    directory.append_event("changed", step=done, **asdict(change))
                _keep_seed(directory, policy, seed)
                return _carry_out(config, task, reward, policy, directory, display, interrupt, saved, watcher)


def _open_policy(
    config: Config, tick: Callable[[int, int], None], say: Callable[[str], None]
) -> tuple[CausalPolicy, Config, Seed | None]:
    """The policy that a new run begins with; if it is that of another run, also what is to be kept of it."""
    source = source_of(config.model.path)
    return (load_policy(config, tick, say), config, None) if source is None else open_source(config, source, tick, say)


def _keep_seed(directory: RunDirectory, policy: CausalPolicy, seed: Seed | None) -> None:
    if seed is not None:
        write_seed(directory.path, policy, seed)
        checksums.note_directory(directory.path, SEED, directory.path / SEED)
        directory.append_event("seeded", **seed.facts)


def _carry_out(
    config: Config,
    task: Task,
    reward: Reward,
    policy: CausalPolicy,
    directory: RunDirectory,
    display: Display,
    interrupt: Interrupt,
    saved: checkpoint.Checkpoint | None,
    watcher: Watcher | None,
) -> int:
    began = time.perf_counter()
    longest = max(draw(task, policy, config, first=0), key=lambda prompt: len(prompt.tokens))
    policy = with_confirmed_sharing(policy, longest, config.rollout.max_tokens)
    reference = None
    if config.needs_reference:
        is_seeded = (directory.path / SEED / ADAPTER).is_file()
        reference = frozen_with_adapter(policy) if is_seeded else frozen_copy(policy)
    planned = config.run.steps * config.updates_a_step
    learner = Learner(policy, reference, config.loss, config.optimizer, planned, check_interrupt=interrupt.check)
    sinks = open_sinks(
        config.log,
        directory.path,
        directory.path.name,
        configuration.to_mapping(config),
        after_step=-1 if saved is None else saved.state["place"]["step"],
        on_failure=lambda sentence: _sink_failed(sentence, directory, display),
    )
    watch = Watch(watcher, config, learner, directory, display.say)
    failures = FailedRewards(config, display.say, directory.append_event)
    clock = StageClock(policy.device, display)
    recorder = Recorder(config, task, reward, learner, directory, display, sinks, watch, failures, clock)
    verbs = StepStages(
        config,
        learner,
        TaskPrompts(task, policy, config),
        reward,
        failures,
        clock,
        say=display.say,
        watch=watch,
        on_update=recorder.dump_skipped,
    )
    seed_global_generators(derived_seed(config.run.seed, "global"))
    saver = Saver(config, learner, interrupt, directory, sources_of(config, task))

    def publish_best(step: int) -> None:
        publish(policy, config, directory.path, BEST, step, display.say)
        directory.append_event(BEST, step=step)

    best = BestPolicy(config, directory.path, saver.save, publish_best)
    progress, current = Progress(), None
    if saved is None:
        directory.rewind(-1)
        forget_answers(directory.path, -1)
        size = sum(weight.numel() for weight in policy.model.parameters())
        directory.append_event("start", steps=config.run.steps, parameters=size)
    else:
        before = with_packing_of(config, saved)
        progress, current = saver.restore(
            saved, verbs.credit, lambda samples, progress: cut(samples, before, progress.step, learner.policy)
        )
        directory.rewind(progress.step)
        forget_answers(directory.path, progress.step)
        clear_weights(directory.path, FINAL, display.say)  # of an earlier end; this run goes further
        best.resume(progress.step, display.say)
        facts = {
            "checkpoint": saved.path.name,
            "step": progress.step,
            "update": progress.update,
            "steps": config.run.steps,
        }
        directory.append_event("resume", **facts)
        display.say(f"resumed from {saved.path.name}: {progress.step} of {config.run.steps} steps done")
        if progress.step >= config.run.steps:
            display.say(f"all {progress.step} steps are done; --set run.steps={2 * progress.step} would add as many")
        if current is not None:
            clock.begin(progress.step + 1)
            if before != config and not current.updates:  # the passes are to be smaller, for instance
                current = replace(current, batch=verbs.freeze(verbs.pack(current.samples, progress)))

    def safe_point(progress: Progress, current: StepInProgress | None) -> None:
        saver.safe_point(progress, current)
        watch.stop_if_asked()
        if current is None:
            best.look(progress.step)

    stages = verbs.stages(recorder.record, safe_point)
    ends = (RunFailed, RunError, checkpoint.CheckpointError, PromptRefused, BrokenPolicy, NoRoom)
    try:
        with closing(sinks):
            stopped = _train_and_evaluate(config, recorder, saver, stages, best, progress, current)
        if stopped is None and config.checkpoint.final:
            publish(policy, config, directory.path, FINAL, saver.steps_done, display.say)
    except ends as failure:
        facts = {"failure": failure.facts} if isinstance(failure, RewardFailed) and failure.facts else {}
        with suppress(RunError):  # a full disk may be what ended the run
            directory.append_event("failed", reason=str(failure), **facts)
        ended = RunFailed(str(failure))
        for line in getattr(failure, "__notes__", ()):
            ended.add_note(line)
        raise ended from failure
    trusted = "" if is_signed(directory.path, config) else " --trust"
    if stopped is not None:
        directory.append_event("stopped", signal=str(stopped))
        command = f"assay train --resume {shlex.quote(str(directory.path))}{trusted}"
        display.end(f"stopped by {stopped} and saved; go on with: {command}")
        return stopped.exit_code
    seconds = time.perf_counter() - began
    watched = {"doctor_seconds": watch.seconds} if watch else {}
    directory.append_event("finished", seconds=seconds, **watched)
    steps, evaluations = read_metrics(directory.path).rows, read_evaluations(directory.path).rows
    is_early = saver.steps_done < config.run.steps
    display.summary(
        directory.path,
        steps,
        evaluations,
        seconds,
        go_on=" --change evaluate.patience=0" * is_early + trusted,
        names_best=bool(config.evaluate.every and config.checkpoint.best),
    )
    watch.finished()
    return 0


def _train_and_evaluate(
    config: Config,
    recorder: Recorder,
    saver: Saver,
    stages: Stages,
    best: BestPolicy,
    progress: Progress,
    current: StepInProgress | None,
) -> Interrupted | None:
    """The whole of the run. What a signal or a broken reward cuts short is saved; returns the signal, if one came."""
    try:
        if progress == Progress():
            recorder.evaluate(0)
        train(stages, progress, current, config.run.steps)
        saver.save()
        recorder.evaluate(config.run.steps)
        best.look(config.run.steps)
    except StoppedEarly as early:
        saver.save()
        recorder.directory.append_event("stopped early", step=saver.steps_done, reason=str(early))
        recorder.display.say(str(early))
    except Interrupted as stop:
        saver.save()
        return stop
    except (RewardFailed, NoSignal, PromptRefused, DoctorStop):
        saver.save()
        raise
    return None


def _introduce(
    config: Config, directory: RunDirectory, policy: CausalPolicy, task: Task, heldout: int, display: Display
) -> None:
    """Says what is about to be trained on what, and with which numbers that the user may not have chosen."""
    display.facts(opening_facts(config, directory.path, policy, task, heldout))
    if warning := few_heldout(config, task, heldout):
        display.say(warning)


def _sink_failed(sentence: str, directory: RunDirectory, display: Display) -> None:
    display.say(sentence)
    directory.append_event("log failed", reason=sentence)


def _newest_checkpoint(directory: RunDirectory, report: Callable[[str], None]) -> checkpoint.Checkpoint | None:
    """None for a run that was killed before its first checkpoint: it did nothing that is not simply done again."""
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
    """Locks the run against a second process; the kernel takes the lock back however this one ends."""
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
