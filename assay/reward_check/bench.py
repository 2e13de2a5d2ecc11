"""Reward, problems -> Measured: asks all probes, asks some of them again, and keeps the time.

The whole takes about a minute at most: a reward that hangs costs its deadline a few times, and then no more is asked.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from assay.reward_check.probes import Probe, asked, is_ordinary, probes_of
from assay.reward_check.types import Answer, Measured, Pairs
from assay.rewards import Reward
from assay.types import Problem, Score

BUDGET = 60.0  # seconds
GIVE_UP = 8  # calls that ran out of time
PROCESSES = 4  # that score side by side, to see whether they are in each other's way
_REPEATS = 2  # further times that a call is made in the same process
_PASSES = 5  # over the ordinary probes, after the first: so much time must be left
_KEPT = 0.6  # the share of the time left that these passes may take

Open = Callable[[int], Reward]  # number of processes -> the reward
Completions = Sequence[tuple[Problem, Sequence[str]]]


@dataclass(slots=True)
class Clock:
    """What has been asked, and why no more is."""

    progress: Callable[[str], None]
    end: float
    calls: int = 0
    overdue: int = 0  # calls that ran out of time
    stopped: str = ""

    def may_ask(self) -> bool:
        if not self.stopped and self.overdue >= GIVE_UP:
            self.stopped = f"gave up after {GIVE_UP} calls that ran out of time"
        if not self.stopped and time.monotonic() > self.end:
            self.stopped = f"the {BUDGET:g} s that the check may take were over"
        return not self.stopped

    def count(self, index: int, score: Score) -> None:
        self.calls += 1
        self.overdue += is_overdue(score.error)
        self.progress(f"{self.calls} calls")


def is_overdue(error: str) -> bool:
    return "took longer than" in error


def measure(
    open_reward: Open,
    problems: Sequence[Problem],
    completions: Completions,
    known: Measured,
    progress: Callable[[str], None] = lambda text: None,
    budget: float = BUDGET,
) -> Measured:
    """`known` holds what needs no call: the names of the functions and the size of a step."""
    clock = Clock(progress, time.monotonic() + budget)
    reward = open_reward(1)
    try:
        answers = _one_by_one(reward, problems, probes_of(problems), clock)
        chosen = chosen_from(answers, clock)
        again: Pairs = ()
        for _ in range(_REPEATS):
            again += _pairs(chosen, _one_by_one(reward, problems, [one.probe for one in chosen], clock))
    finally:
        reward.close()
    fresh: Pairs = ()
    turned: Pairs = ()
    parallel: Pairs = ()
    groups: tuple[tuple[float | None, ...], ...] = ()
    if chosen and clock.may_ask():
        reward = open_reward(1)
        try:
            fresh = _pairs(chosen, _one_by_one(reward, problems, [one.probe for one in chosen], clock))
            turned = _pairs(chosen[::-1], _at_once(reward, problems, [one.probe for one in chosen[::-1]], clock))
        finally:
            reward.close()
    if clock.may_ask():
        reward = open_reward(PROCESSES)
        try:
            # each process gets a job in the first round: let these be answers that are worth something
            first = sorted(chosen, key=lambda one: one.reward is None or one.reward <= 0)
            parallel = _pairs(first, _at_once(reward, problems, [one.probe for one in first], clock))
            groups = _score_groups(reward, completions, clock)
        finally:
            reward.close()
    return replace(
        known,
        answers=tuple(answers),
        again=again,
        fresh=fresh,
        turned=turned,
        parallel=parallel,
        groups=groups,
        calls=clock.calls,
        stopped=clock.stopped,
    )


def _one_by_one(reward: Reward, problems: Sequence[Problem], probes: Sequence[Probe], clock: Clock) -> list[Answer]:
    answers: list[Answer] = []
    for probe in probes:
        if not clock.may_ask():
            break
        started = time.perf_counter()
        (score,) = reward.score([asked(problems[probe.problem], probe.text)], clock.count)
        seconds = time.perf_counter() - started
        # a first call, and one after a failure, may have waited for a process to start
        fair = bool(answers) and answers[-1].reward is not None
        answers.append(Answer(probe, score.reward, score.error, seconds if fair else None, score.failure))
    return answers


def _at_once(reward: Reward, problems: Sequence[Problem], probes: Sequence[Probe], clock: Clock) -> list[Answer]:
    if not probes or not clock.may_ask():
        return []
    scores = reward.score([asked(problems[probe.problem], probe.text) for probe in probes], clock.count)
    return [Answer(probe, score.reward, score.error) for probe, score in zip(probes, scores, strict=True)]


def chosen_from(answers: Sequence[Answer], clock: Clock) -> list[Answer]:
    """The ordinary answers of so many problems, from the first on, as can be scored again in the time left.

    From the first on: a second process is then asked the same from its start, and what differs is not its memory.
    """
    ordinary = [one for one in answers if is_ordinary(one.probe) and not is_overdue(one.error)]
    times = [one.seconds for one in ordinary if one.seconds is not None]
    if not times:
        return ordinary
    seconds = sum(times) / len(times)
    affordable = int(_KEPT * max(clock.end - time.monotonic(), 0.0) / max(_PASSES * seconds, 1e-9))
    last = max(ordinary[: max(affordable, 4)], key=lambda one: one.probe.problem).probe.problem
    return [one for one in ordinary if one.probe.problem <= last]


def _pairs(first: Sequence[Answer], second: Sequence[Answer]) -> Pairs:
    """Time may have run out before the second is complete."""
    return tuple(zip(first, second, strict=False))


def _score_groups(reward: Reward, completions: Completions, clock: Clock) -> tuple[tuple[float | None, ...], ...]:
    groups: list[tuple[float | None, ...]] = []
    for problem, texts in completions:
        if not clock.may_ask():
            break
        scores = reward.score([asked(problem, text) for text in texts], clock.count)
        groups.append(tuple(score.reward for score in scores))
    return tuple(groups)
