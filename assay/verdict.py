"""The doctor's word: what a check may say, how grave it is, how sure.

Nothing is silently healthy: a check that lacks its data says which, and a check that breaks is counted as crashed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from assay.machine.terminal import without_commands as without_commands


class State(StrEnum):
    FINDING = "finding"
    HEALTHY = "healthy"
    NOT_APPLICABLE = "not applicable"
    NOT_ENOUGH_DATA = "not enough data"
    CRASHED = "crashed"


# of several verdicts on one illness: a finding first, then a crash, then the word of a check that had its data
LOUD = {State.FINDING: 4, State.CRASHED: 3, State.HEALTHY: 2, State.NOT_APPLICABLE: 1, State.NOT_ENOUGH_DATA: 0}


class _Ranked(StrEnum):
    """Members from the gravest, or surest, on."""

    @property
    def rank(self) -> int:
        """0 of the last member, more of those before it."""
        return len(type(self)) - 1 - list(type(self)).index(self)


class Severity(_Ranked):
    FATAL = "fatal"  # cannot learn what it is meant to
    HARMFUL = "harmful"  # learns worse
    WASTEFUL = "wasteful"  # pays more


class Confidence(_Ranked):
    PROVEN = "proven"  # an invariant was recomputed and failed
    LIKELY = "likely"  # a pattern that has one usual cause
    POSSIBLE = "possible"  # may be meant so; what most curves can say


class Missing(Exception):
    """Raised by evidence that is asked for what it does not hold; the check then has not enough data."""

    def __init__(self, *names: str) -> None:
        super().__init__(", ".join(names))
        self.names = names


@dataclass(frozen=True, slots=True)
class Fact:
    """One number of the evidence: what, how much, against which limit, and where it stands.

    >>> str(Fact("largest |new - old|", 0.31, limit=0.001, step=1, row=3, token=7))
    'largest |new - old| = 0.31 (limit 0.001) at step 1, row 3, token 7'
    """

    what: str
    value: float | int | str
    limit: float | int | None = None
    step: int | None = None
    row: int | None = None
    token: int | None = None

    def __str__(self) -> str:
        limit = "" if self.limit is None else f" (limit {_number(self.limit)})"
        places = [f"{name} {place}" for name in ("step", "row", "token") if (place := getattr(self, name)) is not None]
        where = f" at {', '.join(places)}" if places else ""
        return f"{self.what} = {_number(self.value)}{limit}{where}"


@dataclass(frozen=True, slots=True)
class Place:
    """Where something stands in a source file. Lines from 1, columns from 0, in characters; the end is exclusive."""

    file: str
    line: int
    column: int = 0
    end_line: int = 0
    end_column: int = 0
    text: str = ""  # the expression, on one line, shortened

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Edit:
    """A change of the text at a place, after which the finding is gone: an empty place is one to insert at.

    `safe` means that nothing is left to choose: `assay doctor --fix` writes it.
    """

    place: Place
    replacement: str
    safe: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one check says of one piece of evidence. Of a finding: a sentence with numbers, facts, how sure.

    A verdict on a script has the place it speaks of first in `places`; `why` is the chain of facts by which the values
    there were recognised.
    """

    state: State
    message: str
    facts: tuple[Fact, ...] = ()
    confidence: Confidence = Confidence.PROVEN
    severity: Severity | None = None  # None: the illness's own
    fix: str = ""  # "": the illness's own
    places: tuple[Place, ...] = ()
    why: tuple[str, ...] = ()
    edit: Edit | None = None  # doctor/prove_edits.py gives it
    found_at: tuple[Place, ...] = ()  # of several findings that were put together, the place of each
    examples: tuple[str, ...] = ()  # evidence in words: a text, and the reward that it got
    is_direct: bool = False  # a curve that is the thing itself (NaN, a rate of 0), so it may be surer than possible
    is_settled_by_numbers: bool = False  # of a text: the checks of a run's numbers answer the very same question


def finding(
    message: str,
    *facts: Fact,
    confidence: Confidence = Confidence.PROVEN,
    severity: Severity | None = None,
    fix: str = "",
    places: tuple[Place, ...] = (),
    why: tuple[str, ...] = (),
    examples: tuple[str, ...] = (),
) -> Verdict:
    return Verdict(State.FINDING, message, facts, confidence, severity, fix, places, why, examples=examples)


def seen_directly(
    message: str,
    *facts: Fact,
    confidence: Confidence = Confidence.LIKELY,
    severity: Severity | None = None,
    fix: str = "",
) -> Verdict:
    """A finding in curves that show the thing itself, not a sign of it: it is as sure as it says."""
    return Verdict(State.FINDING, message, facts, confidence, severity, fix, is_direct=True)


def likely(message: str, *, places: tuple[Place, ...], why: tuple[str, ...] = (), fix: str = "") -> Verdict:
    """A finding in the text of a script: a pattern that has one usual cause, since no text proves what a run does."""
    return finding(message, confidence=Confidence.LIKELY, places=places, why=why, fix=fix)


def suspected(message: str, *, confidence: Confidence = Confidence.LIKELY, **where: Any) -> Verdict:
    """A finding in a text that is withdrawn where the numbers of a run show that it is not so."""
    return replace(finding(message, confidence=confidence, **where), is_settled_by_numbers=True)


def healthy(message: str, *facts: Fact, places: tuple[Place, ...] = ()) -> Verdict:
    return Verdict(State.HEALTHY, message, facts, places=places)


def not_applicable(reason: str) -> Verdict:
    return Verdict(State.NOT_APPLICABLE, reason)


def not_enough_data(missing: str) -> Verdict:
    """`missing` names the field, or how much of it would be enough: "old_logprobs", "metrics of 20 steps"."""
    return Verdict(State.NOT_ENOUGH_DATA, missing)


def _number(value: float | int | str) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
