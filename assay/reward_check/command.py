"""The command `assay reward-check`: its words -> settings -> the trial of a reward -> the doctor's diagnosis of it.

The reward is opened as training opens it: the same functions, processes and deadline.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from assay.config import Config
from assay.doctor.catalogue import illnesses_looking_at
from assay.doctor.command import in_colour, print_report, width_of_terminal
from assay.doctor.diagnosis import Diagnosis, Word, diagnose
from assay.doctor.evidence import Evidence, RewardTrial
from assay.doctor.report import Report, write
from assay.machine.terminal import ProgressLine, escape, json_without_commands
from assay.reward_check.completions import read_completions
from assay.reward_check.probes import as_rollout, decode
from assay.reward_check.trial import try_reward
from assay.rewards import Reward, open_rewards
from assay.rewards.failures import failure_block, failure_facts, failure_kind
from assay.tasks import open_task
from assay.types import Problem, Score
from assay.verdict import Confidence, Severity, State

SCHEMA_VERSION = 1
SHOWN_FAILURES = 4  # kinds
FAILS = "REW02"  # the illness that failures are shown with


@dataclass(frozen=True)
class CheckResult:
    trial: RewardTrial
    diagnosis: Diagnosis
    failures: tuple[Mapping[str, Any], ...] = ()  # one of each kind, as in an event of a run

    @property
    def exit_code(self) -> int:
        return 3 if self.diagnosis.of(State.CRASHED) else int(any(map(fails, self.diagnosis.findings)))


def settings(functions: Sequence[str], task: str | None, options: Sequence[str]) -> list[str]:
    """The overrides that these words of the command line stand for.

    >>> settings(["math"], "sort_digits", ["max_digits=5"])
    ['reward.functions=["math"]', 'reward.weights=[]', 'task.name="sort_digits"', 'task.options.max_digits=5']
    """
    # weights belong to the functions of a config, which these replace
    words = [f"reward.functions={json.dumps(list(functions))}", "reward.weights=[]"] if functions else []
    words += [f"task.name={json.dumps(task)}"] if task is not None else []
    return words + [f"task.options.{option}" for option in options]


def run(config: Config, samples: int, timeout: float, completions: Path | None, *, as_json: bool, verbose: bool) -> int:
    progress = ProgressLine()

    def say(sentence: str) -> None:
        progress.clear()
        sys.stderr.write(f"{escape(sentence)}\n".encode("ascii", "backslashreplace").decode())

    try:
        result = check(
            config,
            samples=samples,
            timeout=timeout,
            completions=completions,
            progress=lambda text: progress.show(f"reward-check: {text}"),
            report=say,
        )
    finally:
        progress.clear()
    print_report(write_json(result) if as_json else write_text(result, verbose=verbose))
    return result.exit_code


def check(
    config: Config,
    *,
    samples: int = 8,
    timeout: float = 2.0,
    completions: Path | None = None,
    progress: Callable[[str], None] = lambda text: None,
    report: Callable[[str], None] = lambda sentence: None,
) -> CheckResult:
    """Opens the config's reward and task, and judges the reward. A bad config is a ConfigError. `report` is called with
    the first lines that the reward prints."""
    started = time.monotonic()
    task = open_task(config)
    problems = [task.training_problem(index) for index in range(samples)]
    groups = read_completions(completions, task) if completions is not None else []
    functions = config.reward.functions or ("task",)
    known = RewardTrial(
        functions,
        task=config.task.name,
        rollouts_per_step=config.rollout.prompts * config.rollout.group_size,
        scored_at_once=(
            (config.judge.concurrency if config.judge.url else 1) if functions == ("judge",) else config.reward.workers
        ),
        deadline=min(timeout, config.reward.timeout),
        training_deadline=config.reward.timeout,
    )

    def open_reward(workers: int) -> Reward:
        limits = replace(config.reward, workers=workers, timeout=known.deadline)
        return open_rewards(replace(config, reward=limits), task, decode, report=report)

    trial = try_reward(open_reward, problems, groups, known, progress)
    trial = replace(trial, seconds=time.monotonic() - started)
    return CheckResult(trial, judge(trial), _failures(trial, problems))


def judge(trial: RewardTrial) -> Diagnosis:
    notes = (f"not all was asked: {trial.stopped}",) if trial.stopped else ()
    return diagnose(Evidence(reward=trial, notes=notes), illnesses_looking_at("reward"))


def fails(word: Word) -> bool:
    """Whether a finding fails the command: more than waste, and more than possible."""
    return word.severity is not Severity.WASTEFUL and word.confidence is not Confidence.POSSIBLE


def write_text(result: CheckResult, *, verbose: bool) -> str:
    """The doctor's report; a reward that fails shows one failure of each kind below its examples."""
    blocks = [
        f"{'  ' if number else '> '}{line}"
        for facts in result.failures
        for number, line in enumerate(failure_block(facts))
    ]
    words = tuple(
        replace(word, verdict=replace(word.verdict, examples=(*word.verdict.examples, *blocks)))
        if word.code == FAILS
        else word
        for word in result.diagnosis.words
    )
    diagnosis = replace(result.diagnosis, words=words)
    report = Report.of(result.trial.name, Evidence(reward=result.trial), diagnosis)
    return write([report], "full", width=width_of_terminal(), colour=in_colour(), all_passes=verbose, why=verbose)


def write_json(result: CheckResult) -> str:
    trial = result.trial
    document = {
        "schema_version": SCHEMA_VERSION,
        "functions": list(trial.functions),
        "task": trial.task,
        "problems": trial.problems,
        "calls": trial.calls,
        "seconds": round(trial.seconds, 3),
        "stopped": trial.stopped,
        "exit_code": result.exit_code,
        "failures": [dict(facts) for facts in result.failures],
        "checks": [_as_mapping(word, result.diagnosis.causes) for word in result.diagnosis.words],
    }
    return json_without_commands(json.dumps(document, indent=2))


def _as_mapping(word: Word, causes: Mapping[str, str]) -> dict[str, Any]:
    mapping: dict[str, Any] = {
        "code": word.code,
        "name": word.illness.name,
        "state": word.verdict.state.value,
        "headline": word.verdict.message,
        "evidence": list(word.verdict.examples),
    }
    if word.verdict.state is not State.FINDING:
        return mapping
    return mapping | {
        "severity": word.severity.value,
        "confidence": word.confidence.value,
        "fix": word.fix,
        "follows_from": causes.get(word.code, ""),
    }


def _failures(trial: RewardTrial, problems: Sequence[Problem]) -> tuple[dict[str, Any], ...]:
    """One failure of each kind, with all that is known of it."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for probe_score in trial.scores:
        score = Score.failed(probe_score.error, probe_score.failure)
        if probe_score.error and failure_kind(score) not in found and len(found) < SHOWN_FAILURES:
            prompt, rollout = as_rollout(problems[probe_score.probe.problem], probe_score.probe.text)
            found[failure_kind(score)] = failure_facts(prompt, rollout, score)
    return tuple(found.values())
