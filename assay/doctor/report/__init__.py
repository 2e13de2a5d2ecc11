"""Diagnosis --> what is printed: text for a reader, JSON, SARIF and annotations for machines, Markdown to paste.

Every writer is one short file and a pure function of its reports. Machine output and Markdown never hold a prompt or
a completion: where a message quotes one, TEXT_LEFT_OUT stands in its place.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from assay.doctor.diagnosis import Diagnosis, Word
from assay.doctor.evidence import Batch, Evidence
from assay.doctor.report.frame import Lines, read_lines
from assay.machine.terminal import escape, quote
from assay.record import METRICS_FILE
from assay.verdict import Fact, State, Verdict

__all__ = ["FORMATS", "LEVELS", "Crash", "Report", "escape", "write"]

FORMATS = ("full", "concise", "json", "sarif", "github", "md")
LEVELS = ("error", "warning", "note")  # gravest first
TEXT_LEFT_OUT = "<text left out>"
# what a reward raised, in the reason of a failed run: its author may have put the completion in it
_LAST_FAILURE = re.compile(r"(?<=; the last failure: ).*(?=; repair the reward)", re.DOTALL)
# measurements that are worth a look even where nothing is wrong
WORTH_KNOWING = ("MET07", "SAMP06", "LOSS05", "PERF03")
NO_TRAINING = "no loss, optimizer or sampling was recognised here"  # a note of a script


@dataclass(frozen=True)
class Crash:
    """A fault of Assay that ended the analysis of one input."""

    kind: str  # of the exception
    message: str
    place: str = ""  # the line of ours that raised it

    def __str__(self) -> str:
        message = f": {self.message}" if self.message else ""
        where = f" at {self.place}" if self.place else ""
        return f"a fault of Assay, please report it: {self.kind}{where}{message}"


@dataclass(frozen=True)
class Report:
    """What the doctor says of one path. `path` is shown as the user wrote it."""

    path: str
    diagnosis: Diagnosis
    looked_at: str = ""  # curves and batches, in words
    is_empty: bool = False  # neither a batch nor a step of a curve
    quotes: tuple[str, ...] = field(default=(), repr=False)  # prompts and completions as `quote`, the longest first
    unread: str = ""  # the sentence on why nothing of it could be read
    crash: Crash | None = None
    lines: Lines = field(default_factory=dict, repr=False)  # of the files that findings point at
    rehearsal: Mapping[str, Any] | None = None  # of a script that was rehearsed: how far it got, and with what

    @classmethod
    def of(cls, path: str, evidence: Evidence, diagnosis: Diagnosis) -> Report:
        texts = {text for batch in evidence.batches for rows in _private(batch) for text in rows if text}
        quotes = sorted(set(map(quote, texts)), key=lambda quote: (-len(quote), quote))
        is_empty = not (evidence.batches or evidence.curves or evidence.programs or evidence.run or evidence.reward)
        lines = read_lines(diagnosis) if evidence.programs else {}
        return cls(path, diagnosis, _looked_at(evidence), is_empty, tuple(quotes), lines=lines)

    @property
    def kind(self) -> str:
        """What it amounts to, in one word or two."""
        if self.unread or self.crash:
            return "unread" if self.unread else "crashed"
        if self.diagnosis.findings:
            return "findings"
        if self.diagnosis.of(State.CRASHED):
            return "incomplete"  # a check that crashed is never a pass
        return "clean" if self.diagnosis.of(State.HEALTHY) else "nothing to judge"

    def has_block(self, all_passes: bool) -> bool:
        """Whether it is shown whole beside others, and not in one line."""
        return self.kind == "findings" or (all_passes and self.kind not in ("unread", "crashed"))

    @property
    def failure(self) -> str:
        """Why there is no diagnosis: one sentence that names the path; "" if there is one."""
        if self.crash is not None:
            return f"{self.path}: crashed: {self.crash}"
        reason = self.unread.removeprefix(f"{self.path} ").removeprefix("could not be read: ")
        return f"{self.path}: could not be read: {reason}" if reason else ""

    @property
    def roots(self) -> list[Word]:
        return [word for word in self.diagnosis.findings if word.code not in self.diagnosis.causes]

    @property
    def notable(self) -> list[Word]:
        return [word for word in self.diagnosis.of(State.HEALTHY) if word.code in WORTH_KNOWING]

    @property
    def counts(self) -> str:
        """57 checks: 1 finding, 40 healthy, 9 not applicable, 7 not enough data, 0 crashed"""
        found = {state: len(self.diagnosis.of(state)) for state in State}
        words = {**{state: str(state) for state in State}, State.FINDING: "finding" + "s" * (found[State.FINDING] != 1)}
        checks = len(self.diagnosis.words)
        return f"{checks} check{'s' * (checks != 1)}: " + ", ".join(f"{found[state]} {words[state]}" for state in State)

    def place(self, word: Word) -> str:
        """The file that the word is about, if there is one; else the path itself."""
        if word.verdict.places:
            return word.verdict.places[0].file
        root = Path(self.path)
        names = (word.source, f"examined/{word.source}") if word.source else (METRICS_FILE,)
        return next((str(root / name) for name in names if os.path.isfile(root / name)), self.path)

    def missing(self) -> dict[str, list[str]]:
        """What was not there --> codes of the checks that wanted it, the most wanted first; one line if nothing was."""
        wanted: dict[str, list[str]] = {}
        without = self.diagnosis.of(State.NOT_ENOUGH_DATA)
        if self.is_empty and len(without) > 1:
            return {"a recorded step": [f"{len(without)} checks"]}
        for word in without:
            for name in missing_names(word.verdict.message):
                wanted.setdefault(name, []).append(word.code)
        return dict(sorted(wanted.items(), key=lambda item: (-len(item[1]), item[0])))

    def without_texts(self) -> Report:
        """The same report, with every quoted prompt and completion taken out."""
        words = tuple(replace(word, verdict=self._without_texts(word.verdict)) for word in self.diagnosis.words)
        notes = tuple(self._left_out(note) for note in self.diagnosis.notes)
        crash = self.crash and replace(self.crash, message="")  # it may quote anything
        return replace(self, diagnosis=replace(self.diagnosis, words=words, notes=notes), quotes=(), crash=crash)

    def _without_texts(self, verdict: Verdict) -> Verdict:
        facts = tuple(
            replace(fact, what=self._left_out(fact.what), value=self._value(fact.value)) for fact in verdict.facts
        )
        message, fix = self._left_out(verdict.message), self._left_out(verdict.fix)
        return replace(verdict, message=message, facts=facts, fix=fix, examples=())

    def _value(self, value: float | int | str) -> float | int | str:
        if not isinstance(value, str):
            return value
        # a fact may hold the text itself, not its quoted form
        return TEXT_LEFT_OUT if quote(value) in self.quotes else self._left_out(value)

    def _left_out(self, sentence: str) -> str:
        sentence = _LAST_FAILURE.sub(TEXT_LEFT_OUT, sentence)
        if "'" in sentence or '"' in sentence:
            for quote in self.quotes:
                sentence = sentence.replace(quote, TEXT_LEFT_OUT)
        return sentence


def write(
    reports: Sequence[Report],
    how: str,
    *,
    width: int = 100,
    colour: bool = False,
    all_passes: bool = False,
    why: bool = False,
) -> str:
    """The reports in one of FORMATS.

    The options after `how` change text and Markdown only; JSON, SARIF and annotations do not depend on them.
    """
    from assay.doctor.report import document, github, markdown, sarif, text

    if how == "full":
        return text.full(reports, width=width, colour=colour, all_passes=all_passes, why=why)
    if how == "concise":
        return text.concise(reports, colour=colour)
    bare = [report.without_texts() for report in reports]
    if how == "md":
        return markdown.page(bare, all_passes=all_passes, why=why)
    return {"json": document.write, "sarif": sarif.write, "github": github.write}[how](bare)


def file_and_cell(name: str) -> tuple[str, str]:
    """The file, and which of its cells: "" of a script.

    >>> file_and_cell("a.ipynb#cell3"), file_and_cell("a#cell3.py")
    (('a.ipynb', 'cell 3'), ('a#cell3.py', ''))
    """
    match = re.fullmatch(r"(.*\.ipynb)#cell(\d+)", name, re.DOTALL)
    return (match[1], f"cell {match[2]}") if match else (name, "")


def step_of(facts: Sequence[Fact]) -> int | None:
    return next((fact.step for fact in facts if fact.step is not None), None)


def missing_names(message: str) -> list[str]:
    """The fields that a check missed; a sentence stays whole.

    >>> missing_names("mask, old_logprobs"), missing_names("metrics of 20 steps, or more")
    (['mask', 'old_logprobs'], ['metrics of 20 steps, or more'])
    """
    return message.split(", ") if re.fullmatch(r"\w+(, \w+)*", message) else [message]


def _private(batch: Batch) -> list[Sequence[str]]:
    return [rows for name, rows in batch.texts.items() if name != "prompt_id"]


def _looked_at(evidence: Evidence) -> str:
    parts = []
    for program in evidence.programs:
        files = f" in {len(program.files)} files" if len(program.files) > 1 else ""
        parts.append(f"the source, {program.lines} line{'s' * (program.lines != 1)}{files}")
    if evidence.run is not None:
        parts.append(str(evidence.run))
    if evidence.reward is not None:
        trial = evidence.reward
        parts.append(f"{trial.calls} calls over {trial.problems} problems in {trial.seconds:.1f} s")
    if evidence.curves is not None:
        steps = len(evidence.curves)
        parts.append(f"curves of {steps} step{'s' * (steps != 1)}")
    if evidence.batches:
        known = sorted({batch.step for batch in evidence.batches if batch.step is not None})
        shown_steps = [str(step) for step in known] if len(known) <= 6 else [f"{known[0]} to {known[-1]}"]
        where = f" of step{'s' * (len(known) != 1)} {', '.join(shown_steps)}" if known else ""
        count = len(evidence.batches)
        parts.append(f"{count} batch{'es' * (count != 1)}{where}")
    return ", ".join(parts) or "nothing that could be looked at"
