"""What the test bench of a reward measures, and how it judges: Measured --> Verdict."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from assay.reward_check.probes import Probe, Role
from assay.types import Failure
from assay.verdict import Confidence, Severity, State, escaped, shown

_LONGEST_REASON = 160


@dataclass(frozen=True, slots=True)
class Answer:
    """What a reward made of one probe: a number, or the reason why there is none."""

    probe: Probe
    reward: float | None
    error: str = ""
    seconds: float | None = None  # None: not a fair measurement, a process was being started
    failure: Failure | None = None  # where the error came from, if that is known


Pairs = tuple[tuple[Answer, Answer], ...]


@dataclass(frozen=True, slots=True)
class Measured:
    """All that the bench saw of a reward. The checks read nothing else."""

    functions: tuple[str, ...]
    answers: tuple[Answer, ...]  # each probe, asked alone
    again: Pairs = ()  # the same call in the same process, later
    fresh: Pairs = ()  # the same calls in the same order in a new process
    turned: Pairs = ()  # the same as one batch, in reverse order
    parallel: Pairs = ()  # the same as one batch, with several processes
    groups: tuple[tuple[float | None, ...], ...] = ()  # rewards of the completions file, by prompt
    rollouts_a_step: int = 1
    side_by_side: int = 1  # how many answers are scored at once
    deadline: float = 2.0  # seconds a call may take here
    training_deadline: float = 2.0  # and in training
    calls: int = 0
    stopped: str = ""  # why some probes were not asked; "" = all were

    def rewards(self, *roles: Role) -> list[float]:
        return [one.reward for one in self.answers if one.reward is not None and (not roles or one.probe.role in roles)]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The word of one check. A finding is severe, sure to a degree, and has a fix."""

    state: State
    headline: str  # one sentence with the numbers; for "not enough data", what is missing
    evidence: tuple[str, ...] = ()
    severity: Severity = Severity.HARMFUL
    confidence: Confidence = Confidence.PROVEN
    fix: str = ""

    @property
    def fails(self) -> bool:
        return (
            self.state is State.FINDING
            and self.severity is not Severity.WASTEFUL
            and self.confidence is not Confidence.POSSIBLE
        )


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that is looked at. `explains`: the codes whose findings follow from this one."""

    code: str
    name: str
    judge: Callable[[Measured], Verdict]
    explains: frozenset[str] = frozenset()
    severity: Severity = Severity.HARMFUL  # the gravest it can come to
    symptoms: tuple[str, ...] = ()  # what a user sees, in the words that a user types into a search

    @property
    def summary(self) -> str:
        """What is wrong, in one line: the first of the check's docstring."""
        first = self._docstring[0].rstrip(".")
        return first[:1].lower() + first[1:]

    @property
    def explanation(self) -> str:
        """Why it hurts and what to do: the rest of it."""
        return self._docstring[2].strip()

    @property
    def _docstring(self) -> tuple[str, str, str]:
        return (inspect.getdoc(self.judge) or "").partition("\n")


@dataclass(frozen=True, slots=True)
class Report:
    """The verdicts of all checks, in the order of the registry, on one reward and one task."""

    functions: tuple[str, ...]
    task: str
    problems: int
    calls: int
    seconds: float
    stopped: str  # why not all probes were asked; "" = all were
    verdicts: tuple[tuple[Check, Verdict], ...]
    consequences: Mapping[str, str] = field(default_factory=dict)  # code of a finding -> code of its cause
    failures: tuple[Mapping[str, Any], ...] = ()  # one of each kind, as in an event of a run

    def of(self, state: State) -> list[tuple[Check, Verdict]]:
        return [(check, verdict) for check, verdict in self.verdicts if verdict.state is state]

    @property
    def exit_code(self) -> int:
        if self.of(State.CRASHED):
            return 3
        return int(any(verdict.fails for _, verdict in self.verdicts))


def healthy(headline: str, *evidence: str) -> Verdict:
    return Verdict(State.HEALTHY, headline, evidence)


def not_applicable(reason: str) -> Verdict:
    return Verdict(State.NOT_APPLICABLE, reason)


def not_enough_data(missing: str) -> Verdict:
    return Verdict(State.NOT_ENOUGH_DATA, missing)


def reason(text: str) -> str:
    """The reason of a failure on one line: it may quote hostile text, or be a page long."""
    return escaped(text if len(text) <= _LONGEST_REASON else f"{text[: _LONGEST_REASON - 2]}..")


def example(answer: Answer) -> str:
    """One line of evidence: which text, under which problem, got what."""
    got = f"{answer.reward:g}" if answer.reward is not None else reason(answer.error)
    where = f"{answer.probe.role}, {answer.probe.name}"
    return f"problem {answer.probe.problem + 1}, {where}: {shown(answer.probe.text)} -> {got}"
