"""Reward, problems -> RewardTrial: asks all probes, asks some of them again, and keeps the time.

The whole takes about a minute at most: a reward that hangs costs its deadline a few times, and then no more is asked.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from assay.doctor.evidence.reward import Pairs, Probe, ProbeScore, RewardTrial, is_timeout
from assay.reward_check.probes import as_rollout, is_ordinary, probes_of
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
    timeouts: int = 0
    stopped: str = ""

    def may_ask(self) -> bool:
        if not self.stopped and self.timeouts >= GIVE_UP:
            self.stopped = f"gave up after {GIVE_UP} calls that ran out of time"
        if not self.stopped and time.monotonic() > self.end:
            self.stopped = f"the {BUDGET:g} s that the check may take were over"
        return not self.stopped

    def count(self, index: int, score: Score) -> None:
        self.calls += 1
        self.timeouts += is_timeout(score.error)
        self.progress(f"{self.calls} calls")


def try_reward(
    open_reward: Open,
    problems: Sequence[Problem],
    completions: Completions,
    known: RewardTrial,
    progress: Callable[[str], None] = lambda text: None,
    budget: float = BUDGET,
) -> RewardTrial:
    """`known` holds what needs no call: the names of the functions and the size of a step."""
    clock = Clock(progress, time.monotonic() + budget)
    repeated: Pairs = ()
    new_process: Pairs = ()
    reversed_batch: Pairs = ()
    parallel: Pairs = ()
    groups: tuple[tuple[float | None, ...], ...] = ()
    with closing(open_reward(1)) as reward:
        scores = _one_by_one(reward, problems, probes_of(problems), clock)
        again = to_ask_again(scores, clock)
        for _ in range(_REPEATS):
            repeated += _pairs(again, _one_by_one(reward, problems, _probes(again), clock))
    if again and clock.may_ask():
        with closing(open_reward(1)) as reward:
            new_process = _pairs(again, _one_by_one(reward, problems, _probes(again), clock))
            reversed_batch = _pairs(again[::-1], _at_once(reward, problems, _probes(again[::-1]), clock))
    if clock.may_ask():
        with closing(open_reward(PROCESSES)) as reward:
            # each process gets a job in the first round: let these be answers that are worth something
            paid_first = sorted(again, key=lambda score: score.reward is None or score.reward <= 0)
            parallel = _pairs(paid_first, _at_once(reward, problems, _probes(paid_first), clock))
            groups = _score_groups(reward, completions, clock)
    return replace(
        known,
        scores=tuple(scores),
        repeated=repeated,
        new_process=new_process,
        reversed_batch=reversed_batch,
        parallel=parallel,
        groups=groups,
        problems=len(problems),
        calls=clock.calls,
        stopped=clock.stopped,
    )


def _one_by_one(reward: Reward, problems: Sequence[Problem], probes: Sequence[Probe], clock: Clock) -> list[ProbeScore]:
    scores: list[ProbeScore] = []
    for probe in probes:
        if not clock.may_ask():
            break
        started = time.perf_counter()
        (score,) = reward.score([as_rollout(problems[probe.problem], probe.text)], clock.count)
        seconds = time.perf_counter() - started
        # a first call, and one after a failure, may have waited for a process to start
        is_fair = bool(scores) and scores[-1].reward is not None
        scores.append(ProbeScore(probe, score.reward, score.error, seconds if is_fair else None, score.failure))
    return scores


def _at_once(reward: Reward, problems: Sequence[Problem], probes: Sequence[Probe], clock: Clock) -> list[ProbeScore]:
    if not probes or not clock.may_ask():
        return []
    scores = reward.score([as_rollout(problems[probe.problem], probe.text) for probe in probes], clock.count)
    return [ProbeScore(probe, score.reward, score.error) for probe, score in zip(probes, scores, strict=True)]


def to_ask_again(scores: Sequence[ProbeScore], clock: Clock) -> list[ProbeScore]:
    """The ordinary answers of the first problems, as many as can be scored again in the time left.

    The first problems: a second process then gets the same calls from its start, so its memory explains no difference.
    """
    ordinary = [score for score in scores if is_ordinary(score.probe) and not score.timed_out]
    times = [score.seconds for score in ordinary if score.seconds is not None]
    if not times:
        return ordinary
    seconds = sum(times) / len(times)
    affordable = int(_KEPT * max(clock.end - time.monotonic(), 0.0) / max(_PASSES * seconds, 1e-9))
    last = max(score.probe.problem for score in ordinary[: max(affordable, 4)])
    return [score for score in ordinary if score.probe.problem <= last]


def _probes(scores: Sequence[ProbeScore]) -> list[Probe]:
    return [score.probe for score in scores]


def _pairs(first: Sequence[ProbeScore], second: Sequence[ProbeScore]) -> Pairs:
    """Time may have run out before the second is complete."""
    return tuple(zip(first, second, strict=False))


def _score_groups(reward: Reward, completions: Completions, clock: Clock) -> tuple[tuple[float | None, ...], ...]:
    groups: list[tuple[float | None, ...]] = []
    for problem, texts in completions:
        if not clock.may_ask():
            break
        scores = reward.score([as_rollout(problem, text) for text in texts], clock.count)
        groups.append(tuple(score.reward for score in scores))
    return tuple(groups)
