"""A run from config to summary: start it, or take it up again."""

from __future__ import annotations

import fcntl
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from assay import config as configuration
from assay import durable
from assay.config import Config, ConfigError
from assay.engine.builtin import BrokenPolicy, NoRoom
from assay.policy.causal import CausalPolicy
from assay.policy.codec import PromptRefused
from assay.policy.load import load_policy
from assay.record import RunDirectory, RunError, describe_environment, read_evaluations, read_metrics
from assay.record.evaluations import forget_answers
from assay.rewards import Reward, open_rewards
from assay.tasks import Task, open_task
from assay.train import checkpoint
from assay.train.budget import budgeted
from assay.train.choose import NoSignal
from assay.train.display import Display
from assay.train.evaluate import heldout_prompts
from assay.train.export import export_weights
from assay.train.failure import RunFailed
from assay.train.interrupt import Interrupt, Interrupted
from assay.train.learner import Learner, frozen_copy
from assay.train.loop import Stages, train
from assay.train.machine import set_up, settled
from assay.train.pack import with_confirmed_sharing
from assay.train.place import Place, Work
from assay.train.randomness import derived_seed, seed_global_generators
from assay.train.saved_policy import FINAL
from assay.train.saver import Saver, refuse_other_settings
from assay.train.score import RewardFailed
from assay.train.sinks import open_sinks, require_packages
from assay.train.sources import changes, sources_of
from assay.train.verbs import Verbs, check_rows, draw
from assay.train.watch import DoctorStop, Watch, Watcher

FILE_OPTIONS = ("heldout_file",)  # options of tasks that name files


def start(config: Config, path: Path, watcher: Watcher | None = None) -> int:
    """Trains a new run in `path`. Returns the exit code. Without a watcher nothing is examined."""
    config = settled(_with_absolute_paths(config))
    require_packages(config.log)
    set_up(config)
    task = open_task(config)
    with Interrupt() as interrupt, Display(config.run.steps) as display:
        try:
            policy = load_policy(config, _ticker(display, interrupt, "warm start"), display.say)
            check_rows(task, policy, config, _ticker(display, interrupt, "rows checked"))
            heldout_prompts(task, policy, config)
            config = budgeted(config, policy)
            reward = open_rewards(config, task, policy.codec.decode, interrupt.check)
        except Interrupted as stop:
            display.say(f"stopped by {stop} before training began; there is nothing to save")
            return stop.exit_code
        except PromptRefused as error:  # refused before anything is written
            raise ConfigError(str(error)) from error
        with closing(reward):
            text = configuration.to_toml(config, meanings=False)
            directory = RunDirectory.create(path, text, describe_environment(config.run.threads))
            with _only_writer(directory.path):
                return _carry_out(config, task, reward, policy, directory, display, interrupt, None, watcher)


def resume(path: Path, steps: int | None = None, watcher: Watcher | None = None) -> int:
    """Goes on with the run in `path` from its newest good checkpoint, up to `steps` if given."""
    directory = RunDirectory.open(path)
    with _only_writer(directory.path):
        config_file = directory.path / "config.toml"
        config = configuration.load(config_file)
        damages: list[str] = []
        saved = _newest_checkpoint(directory, damages.append)
        done = 0
        if saved is not None:
            refuse_other_settings(config, saved, config_file)
            done = saved.state["place"]["step"]
        if steps is not None:
            _check_new_steps(steps, config, saved)
            config = replace(config, run=replace(config.run, steps=steps))
        set_up(config)
        task = open_task(config)
        with Interrupt() as interrupt, Display(config.run.steps, steps_before=done) as display:
            for sentence in damages:
                display.say(sentence)
                directory.append_event("damaged checkpoint", reason=sentence)
            if saved is not None:
                for sentence in changes(saved.state["sources"], sources_of(config, task), config):
                    display.say(sentence)
                    directory.append_event("reward changed", reason=sentence)
            try:
                policy = load_policy(config, _ticker(display, interrupt, "warm start"), display.say)
                reward = open_rewards(config, task, policy.codec.decode, interrupt.check)
            except Interrupted as stop:
                display.say(f"stopped by {stop} before training went on; the run is as it was")
                return stop.exit_code
            with closing(reward):
                if steps is not None:
                    try:
                        durable.replace_file(config_file, configuration.to_toml(config, meanings=False).encode())
                    except OSError as error:
                        raise RunError(f"{config_file} could not be written: {durable.reason(error)}") from error
                return _carry_out(config, task, reward, policy, directory, display, interrupt, saved, watcher)


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
    reference = frozen_copy(policy) if config.needs_reference else None
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
    verbs = Verbs(config, task, reward, learner, directory, display, interrupt, sinks, watch)
    seed_global_generators(derived_seed(config.run.seed, "global"))
    saver = Saver(config, learner, interrupt, directory, sources_of(config, task))
    place, work = Place(), None
    if saved is None:
        directory.rewind(-1)
        forget_answers(directory.path, -1)
        size = sum(weight.numel() for weight in policy.model.parameters())
        directory.append_event("start", steps=config.run.steps, parameters=size)
    else:
        place, work = saver.restore(saved, verbs.credit, verbs.cut)
        directory.rewind(place.step)
        forget_answers(directory.path, place.step)
        with suppress(FileNotFoundError):  # the weights of an earlier end; this run goes further
            shutil.rmtree(directory.path / FINAL)
        directory.append_event("resume", checkpoint=saved.path.name, step=place.step, update=place.update)
        display.say(f"resumed from {saved.path.name}: {place.step} of {config.run.steps} steps done")
        if work is not None:
            verbs.clock.begin(place.step + 1)

    def safe_point(place: Place, work: Work | None) -> None:
        saver.safe_point(place, work)
        watch.stop_if_asked()

    stages = Stages(
        draw=verbs.draw,
        generate=verbs.generate,
        score=verbs.score,
        choose=verbs.choose,
        credit=verbs.credit,
        pack=verbs.pack,
        learn=verbs.learn,
        record=verbs.record,
        safe_point=safe_point,
    )
    failures = (RunFailed, RunError, checkpoint.CheckpointError, PromptRefused, BrokenPolicy, NoRoom)
    try:
        with closing(sinks):
            stopped = _train_and_evaluate(config, verbs, saver, stages, place, work)
        if stopped is None and config.checkpoint.final:
            export_weights(policy, directory.path / FINAL, merge=False, source=config.model.path, replace=True)
    except failures as failure:
        with suppress(RunError):  # a full disk may be what ended the run
            directory.append_event("failed", reason=str(failure))
        raise RunFailed(str(failure)) from failure
    if stopped is not None:
        directory.append_event("stopped", signal=str(stopped))
        display.say(f"stopped by {stopped} and saved; go on with: assay train --resume {directory.path}")
        return stopped.exit_code
    seconds = time.perf_counter() - began
    watched = {"doctor_seconds": watch.seconds} if watch else {}
    directory.append_event("finished", seconds=seconds, **watched)
    display.summary(directory.path, read_metrics(directory.path).rows, read_evaluations(directory.path).rows, seconds)
    watch.finished()
    return 0


def _train_and_evaluate(
    config: Config, verbs: Verbs, saver: Saver, stages: Stages, place: Place, work: Work | None
) -> Interrupted | None:
    """The whole of the run. What a signal or a broken reward cuts short is saved; returns the signal, if one came."""
    try:
        if place == Place():
            verbs.evaluate(0)
        train(stages, place, work, config.run.steps)
        saver.save()
        verbs.evaluate(config.run.steps)
    except Interrupted as stop:
        saver.save()
        return stop
    except (RewardFailed, NoSignal, PromptRefused, DoctorStop):
        saver.save()
        raise
    return None


def _sink_failed(sentence: str, directory: RunDirectory, display: Display) -> None:
    display.say(sentence)
    directory.append_event("log failed", reason=sentence)


def _with_absolute_paths(config: Config) -> Config:
    """A resumed run must find the same files, whichever directory it is resumed from."""
    model, task = config.model, config.task
    functions = tuple(
        f"{Path(path).resolve()}:{name}" if Path(path).is_file() else spec
        for spec in config.reward.functions
        for path, _, name in [spec.rpartition(":")]
    )
    options = {
        name: _absolute(value) if name in FILE_OPTIONS and isinstance(value, str) else value
        for name, value in task.options.items()
    }
    return replace(
        config,
        model=replace(model, path=_absolute(model.path)),
        task=replace(task, name=_absolute(task.name), options=options),
        reward=replace(config.reward, functions=functions),
        judge=replace(config.judge, path=_absolute(config.judge.path)),
    )


def _absolute(name: str) -> str:
    """Names that are no files (embedded, sort_digits, a model on the hub) stay as they are."""
    return str(Path(name).resolve()) if name and Path(name).exists() else name


def _ticker(display: Display, interrupt: Interrupt, what: str) -> Callable[[int, int], None]:
    def tick(done: int, total: int) -> None:
        display.progress(done, total, what)
        interrupt.check()

    return tick


def _newest_checkpoint(directory: RunDirectory, report: Callable[[str], None]) -> checkpoint.Checkpoint | None:
    """None for a run that was killed before its first checkpoint: it did nothing that is not simply done again."""
    root = directory.path / "checkpoints"
    checkpoint.remove_leftovers(root)
    durable.remove_asides(directory.path / "dumps")
    if not any(root.glob("*")) and not read_metrics(directory.path).rows:
        return None
    try:
        return checkpoint.load_latest(root, report)
    except checkpoint.CheckpointError as error:
        raise RunError(str(error)) from error


def _check_new_steps(steps: int, config: Config, saved: checkpoint.Checkpoint | None) -> None:
    if steps != config.run.steps and config.optimizer.schedule != "constant":
        raise ConfigError(
            f"run.steps = {steps} would move the end of the {config.optimizer.schedule} learning-rate schedule, by "
            f"which the steps so far were trained, from step {config.run.steps}; only a constant one can be extended"
        )
    if saved is None:
        return
    done, under_way = saved.state["place"]["step"], saved.state["work"] is not None
    if steps < done + under_way:
        begun = f" and begun step {done + 1}" if under_way else ""
        raise ConfigError(f"run.steps = {steps}, but the run has done {done} steps{begun} already; give a larger one")


@contextmanager
def _only_writer(path: Path) -> Iterator[None]:
    """Locks the run against a second process; the kernel takes the lock back however this one ends."""
    with (path / "run.json").open("r+b") as mark:
        try:
            fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunError(f"{path} is being trained by another process; wait for it or stop it first") from None
        yield
