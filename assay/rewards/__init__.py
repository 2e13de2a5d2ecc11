"""What an answer is worth: `open_rewards` turns the [reward] section into one Reward.

A function that returns a number gives a component of its own name; one that returns a dict gives `function/key`, or
`key` alone where it is the only function and has no weight. The reward is the weighted sum of all components.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from assay.config import Config, ConfigError, nearest
from assay.rewards.call import NAMES
from assay.rewards.combined import Combined
from assay.rewards.pool import Pool, RewardSpec
from assay.types import Prompt, Rollout, Score

if TYPE_CHECKING:
    from assay.tasks import Task

Asked = tuple[Prompt, Rollout]
OnScore = Callable[[int, Score], None]  # the place among the pairs, its score

BUILT_IN = {
    "exact": "assay.rewards.builtin:exact",
    "last_number": "assay.rewards.builtin:last_number",
    "math": "assay.rewards.math_answer:equal",
    "format": "assay.rewards.builtin:whole_match",
}


class Reward(Protocol):
    """Scores completions, many at a time. One that cannot be scored gets a failed Score, never a number."""

    def score(self, pairs: Sequence[Asked], on_score: OnScore) -> list[Score]:
        """Scores in the order of `pairs`. `on_score` is called with each as it is known, in any order; it may raise."""

    def close(self) -> None: ...


def function_name(function: str) -> str:
    """The name that the components of a reward function carry.

    >>> function_name("rewards/mine.py:style"), function_name("math")
    ('style', 'math')
    """
    return function.rpartition(":")[2]


def open_rewards(
    config: Config,
    task: Task,
    decode: Callable[[Sequence[int]], str],
    check_interrupt: Callable[[], None] = lambda: None,
    report: Callable[[str], None] = lambda sentence: None,
) -> Reward:
    """All of reward.functions as one. `decode` turns completion tokens into text: process rewards are placed by it.

    `check_interrupt` is called twice a second or more while rewards are waited for, here and in `score`. It may raise.
    `report` is called with the first lines that functions print.
    """
    asked_for = config.reward.functions or ("task",)
    names = tuple(map(function_name, asked_for))
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"reward.functions names {name!r} twice; rename one, or their components would be mixed")
    if not config.reward.step_separator:
        raise ConfigError("reward.step_separator is empty; give the text that ends a step, for instance '\\n'")
    in_task = task.score if "task" in asked_for and not task.own_reward else None
    in_workers = [
        _worker_function(name, function, config, task.own_reward)
        for name, function in zip(names, asked_for, strict=True)
        if function != "judge" and not (function == "task" and in_task)
    ]
    pool = _open_pool(in_workers, config, task, check_interrupt, report) if in_workers else None
    try:
        judge = _open_judge(config, check_interrupt) if "judge" in asked_for else None
    except BaseException:
        if pool is not None:
            pool.close()
        raise
    return Combined(
        names=names,
        weights=dict(zip(names, config.reward.weights, strict=bool(config.reward.weights))),
        in_task=in_task,
        pool=pool,
        judge=judge,
        decode=decode,
        separator=config.reward.step_separator,
    )


def check_functions(config: Config) -> None:
    """Refuses what `open_rewards` would refuse, as far as that can be said without a task, a process or a judge."""
    for function in config.reward.functions:
        if function not in ("task", "judge"):
            _worker_function(function_name(function), function, config, "")
    if "judge" in config.reward.functions and config.judge.path:
        from assay.rewards.judge_http import check_judge_path

        check_judge_path(config.judge.path)


def _worker_function(name: str, function: str, config: Config, own_reward: str) -> RewardSpec:
    if function == "task":
        return RewardSpec(name, own_reward)
    if function in BUILT_IN:
        if function == "math" and importlib.util.find_spec("math_verify") is None:
            raise ConfigError("reward.functions = 'math' needs math-verify: pip install 'assay[math]'")
        fixed = {"pattern": _checked_pattern(config.reward.format)} if function == "format" else {}
        return RewardSpec(name, BUILT_IN[function], fixed)
    place, colon, _ = function.rpartition(":")
    if not colon and not function.endswith(".py") and "/" not in function:
        known = ("task", *BUILT_IN, "judge")
        raise ConfigError(
            f"reward.functions = {function!r} is neither file.py:function nor one of {', '.join(known)}"
            f"{nearest(function, known)}"
        )
    if not colon or not name.isidentifier() or not place:
        raise ConfigError(f"reward.functions = {function!r} is not of the form file.py:function")
    if not place.endswith(".py"):
        file = f"{place.replace('.', '/')}.py"
        raise ConfigError(
            f"reward.functions = {function!r} names a module, and a reward function must stand in a file: give "
            f"{file if os.path.isfile(file) else 'path/to/file.py'}:{name}"
        )
    if not os.path.isfile(place):
        raise ConfigError(f"reward.functions = {function!r}: there is no file {place}")
    return RewardSpec(name, function)


def _checked_pattern(pattern: str) -> str:
    if not pattern:
        raise ConfigError("reward.functions = 'format' needs reward.format, a regular expression for the whole answer")
    try:
        re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"reward.format = {pattern!r} is not a regular expression: {error}") from error
    return pattern


def _open_pool(
    functions: Sequence[RewardSpec],
    config: Config,
    task: Task,
    check_interrupt: Callable[[], None],
    report: Callable[[str], None],
) -> Pool:
    reward = config.reward
    pool = Pool(
        functions,
        workers=reward.workers,
        timeout=reward.timeout,
        separator=reward.step_separator,
        check_interrupt=check_interrupt,
        report=report,
    )
    unknown = list(pool.unknown_parameters())
    fields = list(task.training_problem(0).fields) if unknown else []
    for function, name in unknown:
        if name not in fields:
            pool.close()
            raise ConfigError(
                f"reward.functions = {function.spec!r} asks for {name!r}, which is neither one of {', '.join(NAMES)} "
                f"nor a field of the first problem ({', '.join(fields) or 'it has none'})"
                f"{nearest(name, [*NAMES, *fields])}"
            )
    return pool


def _open_judge(config: Config, check_interrupt: Callable[[], None]) -> Reward:
    if config.judge.path:
        from assay.rewards.judge_model import JudgeModel

        return JudgeModel(config.judge, "cuda" if config.run.device == "cuda" else "cpu", check_interrupt)
    from assay.rewards.judge_http import HttpJudge

    return HttpJudge(config.judge, config.reward.timeout, check_interrupt)
