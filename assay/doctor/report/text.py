"""Reports --> lines for a terminal. Root causes first, what follows from them below, everything else is counted."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

from assay.doctor.diagnosis import Word
from assay.doctor.report import Report, escaped
from assay.verdict import Severity, State

_COLOURS = {Severity.FATAL: "31;1", Severity.HARMFUL: "33;1", Severity.WASTEFUL: "36"}
_BOLD = "1"
MOST_FACTS = 5  # of a healthy check that is worth knowing
MOST_PLACES = 4  # of one finding
_INDENT = " " * 9  # the width of a severity and a space


def full(reports: Sequence[Report], *, width: int, colour: bool, all_passes: bool, why: bool = False) -> str:
    return "\n\n".join(_one(report, width, colour, all_passes, why) for report in reports)


def concise(reports: Sequence[Report], *, colour: bool) -> str:
    """One line a note, one a finding, and the counts."""
    lines = []
    for report in reports:
        place = escaped(report.path)
        lines += [f"{place}: note {escaped(note)}" for note in report.diagnosis.notes]
        for word in report.diagnosis.findings:
            cause = report.diagnosis.causes.get(word.code)
            follows = f" (follows from {cause})" if cause else ""
            where = next((f"{escaped(str(one))}:{one.column + 1}" for one in word.verdict.places), place)
            lines.append(
                f"{where}: {_painted(word, word.severity, colour)} {_title(word)}: {escaped(word.verdict.message)} "
                f"[{word.confidence}]{follows}"
            )
        lines += [f"{place}: crashed {_title(word)}: {escaped(word.verdict.message)}" for word in _crashed(report)]
        lines.append(f"{place}: {report.counts}")
    return "\n".join(lines)


def wrapped(text: str, width: int, first: str = "", rest: str = "") -> list[str]:
    """Lines no wider than `width`, but for a word that is: codes and paths are never broken."""
    return textwrap.wrap(
        escaped(text),
        max(width, 30),
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def bold(text: str, colour: bool) -> str:
    return f"\x1b[{_BOLD}m{text}\x1b[0m" if colour else text


def _one(report: Report, width: int, colour: bool, all_passes: bool, why: bool) -> str:
    lines = [bold(escaped(report.path), colour) + f": {escaped(report.looked_at)}", ""]
    if report.diagnosis.notes:
        lines += [line for note in report.diagnosis.notes for line in _line(f"note     {note}", width)]
        lines.append("")
    only = len(report.diagnosis.words) == 1  # somebody asked for just this
    for root in report.roots:
        lines += [*_finding(report, root, width, colour, why), ""]
    if report.notable:
        lines.append(bold("worth knowing", colour))
        for word in report.notable:
            lines += _healthy(word, width, len(word.verdict.facts) if all_passes or only else MOST_FACTS)
        lines.append("")
    rest = [
        line for word in _crashed(report) for line in _line(f"crashed  {_title(word)}: {word.verdict.message}", width)
    ]
    for name, codes in report.missing().items():
        rest += _line(f"not enough data  {name}: {', '.join(codes)}", width)
    lines += [*rest, ""] if rest else []
    if all_passes:
        for word in report.diagnosis.of(State.HEALTHY):
            shown = word.code in {one.code for one in report.notable}
            lines += _healthy(word, width, 0 if shown else len(word.verdict.facts))
        for word in report.diagnosis.of(State.NOT_APPLICABLE):
            lines += _line(f"not applicable  {_title(word)}: {word.verdict.message}", width)
        lines.append("")
    return "\n".join([*lines, *_line(report.counts, width)])


def _finding(report: Report, word: Word, width: int, colour: bool, why: bool) -> list[str]:
    seen = f", seen in the {word.seen_in}" if word.seen_in else ""
    lines = [f"{_painted(word, f'{word.severity:<8}', colour)} {bold(_title(word), colour)} [{word.confidence}{seen}]"]
    lines += wrapped(word.verdict.message, width, _INDENT, _INDENT)
    for fact in word.verdict.facts:
        lines += wrapped(str(fact), width, f"{_INDENT}- ", f"{_INDENT}  ")
    lines += _places(report, word, width, why)
    lines += wrapped(f"fix: {word.fix}", width, _INDENT, _INDENT)
    if word.verdict.edit is not None:
        edit = word.verdict.edit
        sentence = f"edit {edit.place}: {edit.place.text} -> {edit.replacement}"
        lines += wrapped(sentence, width, _INDENT, f"{_INDENT}  ")
    lines.append(f"{_INDENT}more: assay explain {word.code}")
    for follower in report.diagnosis.consequences(word.code):
        sentence = f"follows from it: {_title(follower)}: {follower.verdict.message}"
        lines += wrapped(sentence, width, f"{_INDENT}  ", f"{_INDENT}    ")
    return lines


def _places(report: Report, word: Word, width: int, why: bool) -> list[str]:
    """Where it was seen: lines of a script, else the batch or the curves."""
    places = word.verdict.places
    if not places:
        seen = word.source or "the curves"
        more = f", and {word.batches - 1} more" if word.batches > 1 else ""
        if not more and seen == Path(report.path).name:
            return []
        return wrapped(f"seen in {seen}{more}", width, f"{_INDENT}- ", f"{_INDENT}  ")
    lines = wrapped(f"{places[0]}  {places[0].text}", width, f"{_INDENT}> ", f"{_INDENT}  ")
    for place in places[1:MOST_PLACES]:
        lines += wrapped(f"see {place}  {place.text}", width, f"{_INDENT}- ", f"{_INDENT}  ")
    if len(places) > MOST_PLACES:
        lines.append(f"{_INDENT}- and {len(places) - MOST_PLACES} more places")
    if why:
        for sentence in word.verdict.why:
            lines += wrapped(f"why: {sentence}", width, f"{_INDENT}- ", f"{_INDENT}  ")
    return lines


def _healthy(word: Word, width: int, most: int) -> list[str]:
    lines = _line(f"healthy  {_title(word)}: {word.verdict.message}", width)
    for fact in word.verdict.facts[:most]:
        lines += wrapped(str(fact), width, f"{_INDENT}- ", f"{_INDENT}  ")
    if 0 < most < len(word.verdict.facts):
        lines.append(f"{_INDENT}- {len(word.verdict.facts) - most} more with --select {word.code}")
    return lines


def _line(sentence: str, width: int) -> list[str]:
    return wrapped(sentence, width, "", _INDENT)


def _crashed(report: Report) -> list[Word]:
    return report.diagnosis.of(State.CRASHED)


def _title(word: Word) -> str:
    return f"{word.code} {word.illness.name}"


def _painted(word: Word, text: str, colour: bool) -> str:
    return f"\x1b[{_COLOURS[word.severity]}m{text}\x1b[0m" if colour else text
