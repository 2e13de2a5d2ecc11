"""The test bench of a reward: config --> Report, before any GPU hour is spent on it.

The reward is opened as training opens it: the same functions, processes and deadline. Problems are drawn from the task,
texts whose order is known without a model are scored, and each check gives its word on what was measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from assay.config import Config
from assay.reward_check import answers, behaviour
from assay.reward_check.bench import Open, measure
from assay.reward_check.completions import read_completions
from assay.reward_check.probes import asked, decode
from assay.reward_check.types import Check, Measured, Report, Verdict, reason
from assay.rewards import Reward, open_rewards
from assay.rewards.failures import failure_facts, failure_kind
from assay.tasks import Task, open_task
from assay.types import Problem, Score
from assay.verdict import Severity, State

# in the order of causes: what stands above may explain what stands below
CHECKS: tuple[Check, ...] = (
    Check(
        "REW02",
        "reward_fails",
        behaviour.fails,
        severity=Severity.FATAL,
        symptoms=(
            "reward function raises",
            "reward function crashes",
            "reward times out",
            "reward returns nan",
            "reward returns None",
        ),
    ),
    Check(
        "REW01",
        "reward_constant",
        behaviour.is_constant,
        frozenset({"REW04", "REW05", "REW06", "REW07", "REW12", "REW14", "REW16", "REW17", "ADV09"}),
        severity=Severity.FATAL,
    ),
    Check(
        "REW08",
        "reward_random",
        behaviour.not_deterministic,
        frozenset({"REW03", "REW04", "REW05", "REW06", "REW07", "REW09", "REW10", "REW13", "REW16", "REW17", "ADV04"}),
        symptoms=(
            "reward is random",
            "reward is not deterministic",
            "same completion gets different rewards",
        ),
    ),
    Check(
        "REW09",
        "reward_has_memory",
        behaviour.remembers,
        frozenset(
            {"REW03", "REW04", "REW05", "REW06", "REW07", "REW10", "REW13", "REW14", "REW16", "REW17", "ADV04", "ADV09"}
        ),
        symptoms=(
            "reward depends on the order",
            "reward has state",
            "reward changes between calls",
        ),
    ),
    Check(
        "REW10",
        "unsafe_in_parallel",
        behaviour.unsafe_in_parallel,
        symptoms=(
            "reward breaks with several workers",
            "race condition in the reward",
            "reward is not thread safe",
        ),
    ),
    Check(
        "REW16",
        "right_answer_unrecognised",
        answers.unrecognised,
        frozenset({"REW04", "REW05", "REW06", "REW07", "REW14", "REW17", "ADV09"}),
        severity=Severity.FATAL,
        symptoms=(
            "right answer gets 0",
            "correct answers are not recognised",
            "reward is always 0",
            "accuracy reward is 0",
            "answer extraction fails",
            "format of the answer is not parsed",
            "reward does not increase",
        ),
    ),
    Check(
        "REW03",
        "wrong_beats_right",
        answers.wrong_beats_right,
        frozenset({"REW04", "REW05", "REW06", "REW07", "REW17"}),
        severity=Severity.FATAL,
        symptoms=(
            "wrong answers get more reward",
            "reward prefers bad answers",
        ),
    ),
    Check(
        "REW04",
        "full_marks_for_nonsense",
        answers.pays_nonsense,
        frozenset({"REW05", "REW06", "REW07", "REW14", "REW17", "ADV09"}),
        severity=Severity.FATAL,
        symptoms=(
            "nonsense gets full reward",
            "reward is always 1",
            "garbage is rewarded",
        ),
    ),
    Check(
        "REW06",
        "answer_ignored",
        answers.answer_blind,
        frozenset({"REW05", "REW07", "REW14", "REW17", "ADV09"}),
        severity=Severity.FATAL,
        symptoms=(
            "reward ignores the answer",
            "reward does not depend on correctness",
        ),
    ),
    Check(
        "REW05",
        "empty_answer_pays",
        answers.pays_empty,
        frozenset({"REW17"}),
        severity=Severity.FATAL,
        symptoms=(
            "empty answer gets reward",
            "model answers with nothing",
            "model outputs empty completions",
            "answers get shorter",
        ),
    ),
    Check(
        "REW07",
        "substring_pays",
        answers.pays_substring,
        frozenset({"REW17"}),
        symptoms=(
            "reward by substring",
            "model lists all answers",
            "answer found inside a longer text counts",
        ),
    ),
    Check(
        "REW17",
        "shortcut_pays",
        answers.pays_shortcut,
        symptoms=(
            "format alone gets full reward",
            "model finds a shortcut",
            "reward hacking",
            "reward without solving the task",
        ),
    ),
    Check(
        "REW11",
        "reward_too_large",
        behaviour.too_large,
        symptoms=(
            "reward is huge",
            "reward scale too large",
        ),
    ),
    Check("ADV04", "degenerate_std", behaviour.degenerate_std),
    Check("ADV09", "zero_signal", behaviour.zero_signal, frozenset({"REW12"}), severity=Severity.FATAL),
    Check(
        "REW12",
        "reward_saturated",
        behaviour.saturated,
        severity=Severity.WASTEFUL,
        symptoms=(
            "reward is already 1",
            "task too easy",
            "reward is saturated",
            "all completions are right",
        ),
    ),
    Check(
        "REW13",
        "length_pays",
        answers.length_bias,
        severity=Severity.FATAL,
        symptoms=(
            "reward by length",
            "longer answers get more reward",
            "completions get longer",
            "model pads its answers",
        ),
    ),
    Check(
        "REW14",
        "question_ignored",
        answers.ignores_question,
        symptoms=(
            "reward ignores the question",
            "same answer for every question is rewarded",
        ),
    ),
    Check(
        "REW15",
        "reward_slow",
        behaviour.is_slow,
        severity=Severity.WASTEFUL,
        symptoms=(
            "reward is slow",
            "reward function takes too long",
            "scoring is slow",
        ),
    ),
)
SHOWN_FAILURES = 4  # kinds
# what a check of ours can raise when it is wrong; it is then reported as crashed, never as healthy
_BUGS = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)


def check(
    config: Config,
    *,
    samples: int = 8,
    timeout: float = 2.0,
    completions: Path | None = None,
    progress: Callable[[str], None] = lambda text: None,
    report: Callable[[str], None] = lambda sentence: None,
) -> Report:
    """Opens the config's reward and task, and judges the reward. A bad config is a ConfigError. `report` is called with
    the first lines that the reward prints."""
    started = time.monotonic()
    task = open_task(config)
    problems = [task.training_problem(index) for index in range(samples)]
    groups = read_completions(completions, task) if completions is not None else []
    judged_at_once = config.judge.concurrency if config.judge.url else 1
    functions = config.reward.functions or ("task",)
    known = Measured(
        functions=functions,
        answers=(),
        rollouts_a_step=config.rollout.prompts * config.rollout.group_size,
        side_by_side=judged_at_once if functions == ("judge",) else config.reward.workers,
        deadline=min(timeout, config.reward.timeout),
        training_deadline=config.reward.timeout,
    )
    measured = measure(_opener(config, task, known.deadline, report), problems, groups, known, progress)
    verdicts = judge(measured)
    return Report(
        functions=functions,
        task=config.task.name,
        problems=samples,
        calls=measured.calls,
        seconds=time.monotonic() - started,
        stopped=measured.stopped,
        verdicts=verdicts,
        consequences=causes(verdicts),
        failures=_failures(measured, problems),
    )


def judge(measured: Measured, checks: Sequence[Check] = CHECKS) -> tuple[tuple[Check, Verdict], ...]:
    return tuple((one, _judge(one, measured)) for one in checks)


def causes(verdicts: Sequence[tuple[Check, Verdict]]) -> dict[str, str]:
    """Code of each finding that follows from another -> code of the first cause that explains it."""
    found = [one for one, verdict in verdicts if verdict.state is State.FINDING]
    explained: dict[str, str] = {}
    for number, cause in enumerate(found):
        if cause.code in explained:
            continue  # its consequences are those of its own cause
        for other in found[number + 1 :]:
            if other.code in cause.explains:
                explained.setdefault(other.code, cause.code)
    return explained


def _judge(one: Check, measured: Measured) -> Verdict:
    try:
        return one.judge(measured)
    except _BUGS as error:
        return Verdict(State.CRASHED, reason(f"{type(error).__name__}: {error}"))


def _failures(measured: Measured, problems: Sequence[Problem]) -> tuple[dict[str, Any], ...]:
    """One failure of each kind, with all that is known of it."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for answer in measured.answers:
        score = Score.failed(answer.error, answer.failure)
        if answer.error and failure_kind(score) not in found and len(found) < SHOWN_FAILURES:
            prompt, rollout = asked(problems[answer.probe.problem], answer.probe.text)
            found[failure_kind(score)] = failure_facts(prompt, rollout, score)
    return tuple(found.values())


def _opener(config: Config, task: Task, timeout: float, report: Callable[[str], None]) -> Open:
    def open_reward(workers: int) -> Reward:
        settings = replace(config.reward, workers=workers, timeout=timeout)
        return open_rewards(replace(config, reward=settings), task, decode, report=report)

    return open_reward
