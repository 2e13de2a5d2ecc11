"""Evidence --> Diagnosis: every illness of the catalogue gives its word; one root cause stands first.

Each check looks at each piece of evidence of its kind. Of several verdicts on one illness the gravest counts; a check
that breaks is reported as crashed, never as healthy.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from assay.doctor.catalogue import KINDS, Illness, catalogue, illnesses_looking_at
from assay.doctor.evidence import Curves, Evidence
from assay.doctor.evidence.batches import curves_of_batches
from assay.doctor.evidence.usable import usable
from assay.doctor.facts.trend import STEPS
from assay.machine.faults import FAULTS
from assay.programs.program import Program
from assay.verdict import LOUD, Confidence, Missing, Severity, State, Verdict, not_applicable, not_enough_data

NOTHING = "nothing of the kind was recognised in the script"
_NEEDED = {
    "batch": "a recorded batch",
    "batches": "recorded batches of several steps",
    "curves": "curves",
    "source": "the script",
    "run": "a run under assay watch",
}
# a finding is never surer than its evidence allows: a text did not run, and a curve has many causes, unless it shows
# the thing itself (Verdict.is_direct)
_SUREST = {Program: Confidence.LIKELY, Curves: Confidence.POSSIBLE}


@dataclass(frozen=True, slots=True)
class Word:
    """What the doctor says of one illness: the verdict that counts, and on what it was given."""

    illness: Illness
    verdict: Verdict
    source: str = ""  # the script, batch or reward it was given on; "" for curves and a watched run
    batches: int = 0  # pieces of evidence with a finding
    seen_in: str = ""  # of a script that ran: "run" or "text"

    @property
    def code(self) -> str:
        return self.illness.code

    @property
    def severity(self) -> Severity:
        return self.verdict.severity or self.illness.severity

    @property
    def confidence(self) -> Confidence:
        return self.verdict.confidence

    @property
    def fix(self) -> str:
        return self.verdict.fix or self.illness.fix

    def record(self, step: int | None, cause: str | None) -> dict[str, Any]:
        """Its line in findings.jsonl."""
        return {
            "step": step,
            "code": self.code,
            "name": self.illness.name,
            "severity": str(self.severity),
            "confidence": str(self.confidence),
            "message": self.verdict.message,
            "evidence": [str(fact) for fact in self.verdict.facts],
            "source": self.source,
            "fix": self.fix,
            "follows_from": cause,
        }

    @property
    def loudness(self) -> tuple[int, ...]:
        """By state. Findings: what is at least likely before what is possible, what spoils learning before what only
        costs time, then by how sure and then how grave they are.

        Whether learning is spoilt is a real difference: a likely fatal finding stands above a proven waste. Whether it
        is fatal or harmful is one of degree, by the usual form of an illness: there the surer finding stands first,
        because the other may follow from it.

        Of several words on one illness the loudest counts, of equals the first."""
        state = self.verdict.state
        if state is not State.FINDING:
            return (LOUD[state],)
        sure = self.confidence is not Confidence.POSSIBLE
        spoils = self.severity is not Severity.WASTEFUL
        return LOUD[state], sure, spoils, self.confidence.rank, self.severity.rank

    @property
    def level(self) -> str:
        """error: proven and more than waste, all that fails a CI job by default; note: merely possible."""
        if self.confidence is Confidence.POSSIBLE:
            return "note"
        if self.confidence is Confidence.PROVEN and self.severity is not Severity.WASTEFUL:
            return "error"
        return "warning"


@dataclass(frozen=True)
class Diagnosis:
    """`findings` with root causes first; `causes` maps the code of a consequence to the code of its root cause."""

    words: tuple[Word, ...]
    causes: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def of(self, state: State) -> list[Word]:
        return [word for word in self.words if word.verdict.state is state]

    @property
    def findings(self) -> list[Word]:
        """The loudest first (Word.loudness); what follows from another finding comes after all that do not."""
        found = self.of(State.FINDING)
        return sorted(found, key=lambda word: (word.code in self.causes, *_loudest_first(word), word.code))

    def consequences(self, code: str) -> list[Word]:
        return [word for word in self.findings if self.causes.get(word.code) == code]


def diagnose(evidence: Evidence, illnesses: Sequence[Illness] | None = None) -> Diagnosis:
    if illnesses is None:
        illnesses = catalogue() if evidence.reward is not None else illnesses_looking_at(*KINDS)
    evidence = usable(evidence)
    if evidence.curves is None:
        evidence = replace(evidence, curves=curves_of_batches(evidence.batches))
    # a check judges by the NaN or Inf that came out; a warning on the way would only litter a training log
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)
        words = tuple(_word(illness, evidence) for illness in illnesses)
    return Diagnosis(words, root_causes(words), evidence.notes)


def root_causes(words: Sequence[Word]) -> dict[str, str]:
    """Code of each finding that follows from another -> code of the finding at the end of that chain.

    A cause explains what it lists, if it is as sure as its consequence or at least likely.
    """
    found = sorted((word for word in words if word.verdict.state is State.FINDING), key=_loudest_first)
    causes: dict[str, str] = {}
    for word in found:
        for other in found:
            sure = other.confidence.rank >= min(word.confidence.rank, Confidence.LIKELY.rank)
            if other is not word and other.illness.can_cause(word.illness) and sure:
                mutual = word.illness.can_cause(other.illness)
                is_first = mutual and _as_root(word, other) <= _as_root(other, word)
                if not is_first and _root(other.code, causes) != word.code:  # in a ring of causes one is the root
                    causes.setdefault(word.code, other.code)
    return {code: _root(code, causes) for code in causes if _root(code, causes) != code}


def _as_root(word: Word, other: Word) -> tuple[Any, ...]:
    """Of two that can cause each other the smaller is the root. Between a law and an illness the surer one is, and the
    illness where they are equal: it says how the law is broken."""
    is_law, is_other_law = bool(word.illness.explained_by), bool(other.illness.explained_by)
    if is_law != is_other_law:
        return -word.confidence.rank, is_law
    return *_loudest_first(word), word.code


def _root(code: str, causes: Mapping[str, str]) -> str:
    seen = {code}
    while code in causes and causes[code] not in seen:
        code = causes[code]
        seen.add(code)
    return code


def _loudest_first(word: Word) -> tuple[int, ...]:
    return tuple(-part for part in word.loudness)


def _word(illness: Illness, evidence: Evidence) -> Word:
    # of equals the first counts: the whole run before a batch, a late batch before an early one
    looks: tuple[tuple[Callable[[Any], Verdict | Iterable[Verdict]] | None, list[tuple[Any, str]]], ...] = (
        (illness.run, [(evidence.run, "")]),
        (illness.source, [(program, program.path) for program in evidence.programs]),
        (illness.batches, [(evidence.history or None, f"{len(evidence.history)} batches")]),
        (illness.curves, [(evidence.curves, "")]),
        (illness.batch, [(batch, batch.source) for batch in reversed(evidence.batches)]),
        (illness.reward, [(evidence.reward, evidence.reward.name if evidence.reward else "")]),
    )
    said = [
        (check, Word(illness, _verdict(illness, check, piece), source))
        for check, pieces in looks
        if check is not None
        for piece, source in pieces
        if piece is not None
    ]
    by_numbers = [word for check, word in said if check in (illness.run, illness.batch)]
    words = _without_contradicted([word for _, word in said], by_numbers if evidence.run is not None else [])
    if not words:
        if illness.needs_a_call:
            return Word(illness, not_enough_data("a reward to call (assay reward-check)"))
        if evidence.programs and evidence.run is None:
            return Word(illness, not_enough_data("a run of the script (assay watch)"))
        kinds = [kind for kind in KINDS if illness.looks_at(kind)]
        # a run under watch is too short for curves: the message says how long it must be
        needed = _NEEDED if evidence.run is None else {**_NEEDED, "curves": f"curves of {STEPS} steps or more"}
        return Word(illness, not_enough_data(" or ".join(needed[kind] for kind in kinds)))
    loudest = max(words, key=lambda word: word.loudness)
    found = [word for word in words if word.verdict.state is State.FINDING]
    texts = {program.path for program in evidence.programs}
    seen_in = "" if evidence.run is None else "text" if loudest.source in texts else "run"
    verdict = loudest.verdict
    if loudest in found and not verdict.places:  # a batch knows no lines; the text does
        verdict = replace(verdict, places=next((word.verdict.places for word in found if word.verdict.places), ()))
    return Word(illness, verdict, loudest.source, len(found), seen_in)


def _without_contradicted(words: list[Word], by_numbers: list[Word]) -> list[Word]:
    """Without what a text was suspected of and the numbers of its run show not to be so: their verdict says it."""
    judged = [word for word in by_numbers if word.verdict.state in (State.HEALTHY, State.FINDING)]
    suspected = [word for word in words if word.verdict.is_settled_by_numbers]
    if not suspected or not judged or any(word.verdict.state is State.FINDING for word in judged):
        return words
    place = suspected[0].verdict.places[0]
    note = f"{judged[0].verdict.message}; line {place.line} looked otherwise, and the numbers of the run contradict it"
    kept = [word for word in words if word not in suspected and word is not judged[0]]
    return [replace(judged[0], verdict=replace(judged[0].verdict, message=note)), *kept]


def _verdict(illness: Illness, check: Callable[[Any], Verdict | Iterable[Verdict]], piece: Any) -> Verdict:
    """Of a check that yields a verdict for each thing it looked at: the one that stands for all."""
    try:
        said = check(piece)
        verdict = said if isinstance(said, Verdict) else _strongest(illness, list(said), piece)
        surest = _SUREST.get(type(piece), Confidence.PROVEN)
        is_surer = verdict.state is State.FINDING and not verdict.is_direct and verdict.confidence.rank > surest.rank
        return replace(verdict, confidence=surest) if is_surer else verdict
    except Missing as missing:
        return not_enough_data(str(missing))
    except FAULTS as error:  # a check of ours is wrong: it may stand in somebody's training loop
        return Verdict(State.CRASHED, f"{type(error).__name__}: {error}")


def _strongest(illness: Illness, verdicts: Sequence[Verdict], piece: Any) -> Verdict:
    """The surest finding, with the places of the others; else what was looked at."""
    verdicts = [verdict for verdict in verdicts if not _is_of_caller(verdict, piece)]
    findings = [verdict for verdict in verdicts if verdict.state is State.FINDING]
    found = [finding for finding in findings if not _is_ignored(illness, finding, piece)]
    if found:
        first = max(found, key=lambda verdict: verdict.confidence.rank)
        each = tuple(dict.fromkeys(place for verdict in found for place in verdict.places[:1]))
        places = (*first.places, *(place for place in each if place not in first.places))
        settled = all(finding.is_settled_by_numbers for finding in found)
        return replace(first, places=places, found_at=each, is_settled_by_numbers=settled)
    if findings:
        return not_applicable("a comment in the script asks to ignore it")
    return max(verdicts, key=lambda verdict: LOUD[verdict.state], default=not_applicable(NOTHING))


def _is_of_caller(verdict: Verdict, piece: Any) -> bool:
    """Whether a finding is about a line of the file that calls the script: it belongs to that file's report."""
    is_finding = isinstance(piece, Program) and verdict.state is State.FINDING
    return is_finding and any(place.file in piece.callers for place in verdict.places[:1])


def _is_ignored(illness: Illness, verdict: Verdict, piece: Any) -> bool:
    return isinstance(piece, Program) and any(
        piece.ignores_at(place, illness.code, illness.name) for place in verdict.places[:1]
    )
