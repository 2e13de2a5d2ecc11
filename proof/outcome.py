"""Diagnosis --> Outcome: was the planted illness named first, and was anything claimed that is not so?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from assay.doctor.catalogue import Illness
from assay.doctor.diagnosis import Diagnosis, Word
from assay.verdict import Confidence, Severity, State
from proof.plants.plant import Plant
from proof.plants.runs import plants


@dataclass(frozen=True, slots=True)
class Outcome:
    """One trial. Of a healthy run `code` is "" and every finding above possible is a false claim."""

    name: str
    seed: int
    code: str = ""
    how: str = ""  # it was planted, or configured
    rank: int = 0  # of the planted illness among the findings, from 1; 0: not found
    confidence: str = ""
    message: str = ""  # what the doctor said of it
    others: tuple[str, ...] = ()  # further findings: "RAT01 proven"
    false_claims: tuple[str, ...] = ()
    crashed: tuple[str, ...] = ()  # checks that broke
    notes: tuple[str, ...] = ()
    steps: int = 0  # that the run recorded
    looked: int = 0  # checks that had the data for a word of their own: a finding, healthy
    seconds: float = 0.0
    error: str = ""  # the trial itself broke

    @property
    def found(self) -> bool:
        return self.rank > 0

    @property
    def first(self) -> bool:
        return self.rank == 1

    @property
    def sound(self) -> bool:
        """Nothing false was said and nothing broke."""
        return not (self.false_claims or self.crashed or self.error)


def of_planted(illness: Illness, seed: int, diagnosis: Diagnosis, *, steps: int, seconds: float) -> Outcome:
    """A proven finding is false if it is neither the planted illness nor a consequence of it."""
    findings = diagnosis.findings
    codes = [word.code for word in findings]
    rank = codes.index(illness.code) + 1 if illness.code in codes else 0
    false = [
        word
        for word in findings
        if word.confidence is Confidence.PROVEN
        and word.code not in {illness.code, *illness.explains}
        and diagnosis.causes.get(word.code) != illness.code
    ]
    return _outcome(
        diagnosis,
        false,
        name=illness.name,
        seed=seed,
        code=illness.code,
        how=describe(plants().get(illness.code)),
        rank=rank,
        confidence=str(findings[rank - 1].confidence) if rank else "",
        message=findings[rank - 1].verdict.message if rank else _silence(illness, diagnosis),
        steps=steps,
        seconds=seconds,
    )


def of_healthy(
    name: str, how: str, seed: int, diagnosis: Diagnosis, *, steps: int, seconds: float, error: str = ""
) -> Outcome:
    """Every finding above possible is false, and so is a fatal one of whatever confidence."""
    findings = diagnosis.findings
    false = [word for word in findings if word.confidence is not Confidence.POSSIBLE or word.severity is Severity.FATAL]
    message = " | ".join(word.verdict.message for word in findings)
    facts = {"name": name, "seed": seed, "how": how, "message": message, "steps": steps, "seconds": seconds}
    return _outcome(diagnosis, false, error=error, **facts)


def _outcome(diagnosis: Diagnosis, false: Sequence[Word], **facts: Any) -> Outcome:
    """What an outcome takes from the diagnosis whether or not something was planted."""
    others = [word for word in diagnosis.findings if word.code != facts.get("code")]
    return Outcome(
        others=tuple(map(_code_and_confidence, others)),
        false_claims=tuple(map(_code_and_confidence, false)),
        crashed=tuple(f"{word.code} {word.verdict.message}" for word in diagnosis.of(State.CRASHED)),
        notes=diagnosis.notes,
        looked=len(diagnosis.of(State.HEALTHY)) + len(diagnosis.of(State.FINDING)),
        **facts,
    )


def describe(plant: Plant | None) -> str:
    """How the illness was planted: what was wrapped, set, or edited.

    >>> describe(Plant(("optimizer.epochs=2",), {"assay.train.step.verbs.score": lambda original: original}))
    'wraps verbs.score; optimizer.epochs=2'
    """
    if plant is None:
        return ""
    wrapped = [".".join(dotted.split(".")[-2:]) for dotted in plant.replaces]
    parts = [f"wraps {', '.join(wrapped)}"] if wrapped else []
    parts += ["edits the batch"] if plant.edits else []
    return "; ".join([*parts, *plant.settings])


def share_named_first(outcomes: Sequence[Outcome]) -> float:
    return sum(outcome.first for outcome in outcomes) / len(outcomes) if outcomes else 1.0


def _silence(illness: Illness, diagnosis: Diagnosis) -> str:
    (word,) = [word for word in diagnosis.words if word.code == illness.code]
    return f"{word.verdict.state}: {word.verdict.message}"


def _code_and_confidence(word: Word) -> str:
    return f"{word.code} {word.confidence}"
