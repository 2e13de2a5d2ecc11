"""A run from config to summary: start it, or take it up again."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from assay import config as configuration
from assay.config import Config
from assay.durable import replace_file
from assay.policy.causal import CausalPolicy
from assay.policy.load import load_policy
from assay.record import RunDirectory, describe_environment, read_evaluations, read_metrics
from assay.tasks import Task, open_task
from assay.train import checkpoint
from assay.train.display import Display
from assay.train.failure import RunFailed
from assay.train.interrupt import Interrupt, Interrupted
from assay.train.learner import Learner, frozen_copy
from assay.train.loop import Stages, train
from assay.train.place import Place
from assay.train.randomness import derived_seed, seed_global_generators
from assay.train.saver import Saver
from assay.train.verbs import Verbs, draw


def start(config: Config, path: Path) -> int:
    """Trains a new run in `path`. Returns the exit code."""
    with Interrupt() as interrupt, Display(config.run.steps) as display:
        try:
            task, policy = _equip(config, display, interrupt)
        except Interrupted as stop:  # there is nothing to save yet
            return stop.exit_code
        draw(task, policy, config, first=0)  # a prompt that does not fit is refused before anything is written
        text = configuration.to_toml(config, meanings=False)
        directory = RunDirectory.create(path, text, describe_environment(config.run.threads))
        return _carry_out(config, task, policy, directory, display, interrupt, None)


def resume(path: Path, steps: int | None = None) -> int:
    """Goes on with the run in `path` from its newest good checkpoint, up to `steps` if given."""
    directory = RunDirectory.open(path)
    config = configuration.load(directory.path / "config.toml")
    if steps is not None:
        config = replace(config, run=replace(config.run, steps=steps))
        replace_file(directory.path / "config.toml", configuration.to_toml(config, meanings=False).encode())
    checkpoints = directory.path / "checkpoints"
    checkpoint.remove_leftovers(checkpoints)
    damages: list[str] = []
    # a run killed before its first checkpoint has done nothing that is not simply done again
    started = any(checkpoints.iterdir())
    saved = checkpoint.load_latest(checkpoints, damages.append) if started else None
    done = saved.state["place"]["step"] if saved else 0
    with Interrupt() as interrupt, Display(config.run.steps, steps_before=done) as display:
        for sentence in damages:
            display.say(sentence)
            directory.append_event("damaged checkpoint", reason=sentence)
        try:
            task, policy = _equip(config, display, interrupt)
        except Interrupted as stop:
            return stop.exit_code
        return _carry_out(config, task, policy, directory, display, interrupt, saved)


def _equip(config: Config, display: Display, interrupt: Interrupt) -> tuple[Task, CausalPolicy]:
    def tick(done: int, total: int) -> None:
        display.progress(done, total, "warm start")
        interrupt.check()

    _set_up_torch(config)
    return open_task(config), load_policy(config, tick)


def _carry_out(
    config: Config,
    task: Task,
    policy: CausalPolicy,
    directory: RunDirectory,
    display: Display,
    interrupt: Interrupt,
    saved: checkpoint.Checkpoint | None,
) -> int:
    began = time.perf_counter()
    reference = frozen_copy(policy) if config.needs_reference else None
    planned = config.run.steps * config.updates_a_step
    learner = Learner(policy, reference, config.loss, config.optimizer, planned, check_interrupt=interrupt.check)
    verbs = Verbs(config, task, learner, directory, display, interrupt)
    saver = Saver(config, learner, interrupt, directory)
    place, work = Place(), None
    if saved is None:
        directory.rewind(-1)
        directory.append_event("start", steps=config.run.steps)
        seed_global_generators(derived_seed(config.run.seed, "global"))
    else:
        place, work = saver.restore(saved, verbs.credit, verbs.cut)
        directory.rewind(place.step)
        directory.append_event("resume", checkpoint=saved.path.name, step=place.step, update=place.update)
        display.say(f"resumed from {saved.path.name}: {place.step} of {config.run.steps} steps done")
        if work is not None:
            display.begin(place.step + 1)
    stages = Stages(
        draw=verbs.draw,
        generate=verbs.generate,
        score=verbs.score,
        choose=verbs.choose,
        credit=verbs.credit,
        pack=verbs.pack,
        learn=verbs.learn,
        record=verbs.record,
        safe_point=saver.safe_point,
    )
    try:
        if saved is None:
            verbs.evaluate(0)
        train(stages, place, work, config.run.steps)
        saver.save()
        if all(row["step"] != config.run.steps for row in read_evaluations(directory.path).rows):
            verbs.evaluate(config.run.steps)
    except Interrupted as stop:
        saver.save()
        directory.append_event("stopped", signal=str(stop))
        display.say(f"stopped by {stop} and saved; go on with: assay train --resume {directory.path}")
        return stop.exit_code
    except RunFailed as failure:
        directory.append_event("failed", reason=str(failure))
        raise
    finally:
        task.close()
    seconds = time.perf_counter() - began
    directory.append_event("finished", seconds=seconds)
    display.summary(directory.path, read_metrics(directory.path).rows, read_evaluations(directory.path).rows, seconds)
    return 0


def _set_up_torch(config: Config) -> None:
    """Same bits on the same machine: fixed threads, deterministic kernels."""
    torch.set_num_threads(config.run.threads)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read by cuBLAS when CUDA starts
    torch.use_deterministic_algorithms(True)
