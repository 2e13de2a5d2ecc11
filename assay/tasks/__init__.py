"""Where prompts come from. `open_task` turns the [task] section into a Task.

A name is a built-in task, reasoning_gym/FAMILY, or the path of a file or directory with rows of one's own.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from assay.config import Config, ConfigError, nearest, read_options
from assay.tasks.addition import Addition, AdditionOptions
from assay.tasks.json_object import JsonObject, JsonOptions
from assay.tasks.rows import ENDINGS, files_of
from assay.tasks.sort_digits import SortDigits, SortDigitsOptions
from assay.tasks.two_words import TwoWords, TwoWordsOptions
from assay.types import Problem, Prompt, Rollout, Score

REASONING_GYM = "reasoning_gym/"
NEEDS_ANSWER = {"task", "exact", "last_number", "math"}  # rewards that compare with the answer of a row


class Task(Protocol):
    """Problems by number. The same number always gives the same problem; after the last, numbers start again."""

    @property
    def own_reward(self) -> str:
        """package.module:function that reward workers import to score this task; "" = `score` does it here."""

    @property
    def fingerprint(self) -> str:
        """Changes when the source of the problems changes; "" = the problems come from this package alone."""

    def training_problem(self, index: int) -> Problem: ...

    def heldout_problem(self, index: int) -> Problem:
        """A problem that no training index ever gives."""

    def score(self, prompt: Prompt, rollout: Rollout) -> Score:
        """The task's own reward; it must not be asked of a task with an `own_reward`."""


# name -> its options, and the task made of them and run.seed
BUILT_IN: dict[str, tuple[type[Any], Callable[[Any, int], Task]]] = {
    "sort_digits": (SortDigitsOptions, SortDigits.of),
    "addition": (AdditionOptions, Addition),
    "json": (JsonOptions, JsonObject),
    "two_words": (TwoWordsOptions, TwoWords),
}


def different_problems(task: Task, *, among: int) -> int:
    """How many of the first training problems read differently: all of a small data set, else at least this many."""
    return len({(problem.text, repr(problem.messages)) for problem in map(task.training_problem, range(among))})


def open_task(config: Config) -> Task:
    name, raw_options, seed = config.task.name, config.task.options, config.run.seed
    if name in BUILT_IN:
        kind, make = BUILT_IN[name]
        return make(read_options(kind, raw_options, "task.options"), seed)
    if name.startswith(REASONING_GYM):
        if not has_reasoning_gym():
            raise ConfigError(
                f"task.name = {name!r} needs the package reasoning-gym: pip install 'assay[reasoning-gym]'"
            )
        from assay.tasks.reasoning_gym import ReasoningGym

        return ReasoningGym(name.removeprefix(REASONING_GYM), raw_options, seed)
    if is_path(name):
        from assay.tasks.files import FileOptions, FileTask

        return FileTask(
            Path(name).expanduser(),
            read_options(FileOptions, raw_options, "task.options"),
            seed,
            needs_answer=not config.reward.functions or not NEEDS_ANSWER.isdisjoint(config.reward.functions),
            needs_heldout=config.evaluate.prompts > 0,
        )
    raise ConfigError(
        f"task.name = {name!r} is not a built-in task ({', '.join(BUILT_IN)}), not a reasoning_gym/FAMILY, "
        f"not an existing directory, and not a file that ends in {', '.join(ENDINGS)}{_suggestion(name)}"
    )


def check_task(config: Config) -> None:
    """Refuses what `open_task` would refuse, as far as that can be said without reading any row."""
    name, raw_options = config.task.name, config.task.options
    if is_path(name) and name not in BUILT_IN:
        from assay.tasks.files import FileOptions

        files_of(Path(name).expanduser())
        options = read_options(FileOptions, raw_options, "task.options")
        if options.heldout_file:
            files_of(Path(options.heldout_file).expanduser())
    elif not name.startswith(REASONING_GYM) or not has_reasoning_gym():
        open_task(config)


def _suggestion(name: str) -> str:
    """The end of an error message: a family may have been named without its prefix."""
    own = nearest(name, list(BUILT_IN))
    return own or nearest(name.rpartition("/")[2], _family_names()).replace("'", f"'{REASONING_GYM}", 1)


def _family_names() -> list[str]:
    """The families of reasoning-gym, read from its files: importing it takes seconds."""
    package = importlib.util.find_spec("reasoning_gym")
    files = Path(package.origin).parent.rglob("*.py") if package and package.origin else ()
    return [name for file in files for name in re.findall(r'^DATASET_NAME = "(\w+)"', file.read_text("utf-8"), re.M)]


def is_path(name: str) -> bool:
    return name.endswith(ENDINGS) or os.path.isdir(os.path.expanduser(name))


def has_reasoning_gym() -> bool:
    return importlib.util.find_spec("reasoning_gym") is not None
