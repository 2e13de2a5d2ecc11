"""Reports --> lines for a terminal. Root causes first, what follows from them below, everything else is counted."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from assay.doctor.diagnosis import Word
from assay.doctor.report import NO_TRAINING, Report, escape
from assay.doctor.report.frame import diff, frame
from assay.doctor.report.summary import missing_in_short, sum_up
from assay.verdict import Edit, Severity, State

_COLOURS = {Severity.FATAL: "31;1", Severity.HARMFUL: "33;1", Severity.WASTEFUL: "36"}
_BOLD = "1"
MOST_FACTS = 5  # of a healthy check that is worth knowing
MOST_PLACES = 4  # of one finding
MOST_NOTES = 6  # above the findings of one input: the first finding must be on the first screen
MOST_CLEAN = 20  # clean inputs that are named one by one
MOST_NAMED = 5  # inputs that are named on one line
_INDENT = " " * 9  # the width of a severity and a space


def full(reports: Sequence[Report], *, width: int, colour: bool, all_passes: bool, why: bool = False) -> str:
    """One report whole; of several the findings first, then a line for each of the others, then the sum of it all."""
    if len(reports) == 1 and not reports[0].failure:
        return _one(reports[0], width, colour, all_passes, why)
    shown = [report for report in reports if report.has_block(all_passes)]
    others = [report for report in reports if not report.has_block(all_passes)]
    blocks = [_one(report, width, colour, all_passes, why, is_alone=False) for report in shown]
    rest = _others(others, width)
    missing = missing_in_short(reports)
    rest += _line(f"not enough data  {missing}", width) if missing and not all_passes else []
    blocks += ["\n".join(rest)] if rest else []
    return "\n\n".join([*blocks, "\n".join(_line(sum_up(reports), width))])


def _others(reports: Sequence[Report], width: int) -> list[str]:
    """The inputs without a finding: a line each, or their number if there are many; and what is wrong with some."""
    lines: list[str] = []
    clean = [report for report in reports if report.kind == "clean"]
    idle = [report for report in reports if report.kind == "nothing to judge"]
    for report in clean if len(clean) <= MOST_CLEAN else ():
        count = len(report.diagnosis.of(State.HEALTHY))
        lines += _line(f"clean    {report.path}: {report.looked_at}; {count} check{'s' * (count != 1)} healthy", width)
    if len(clean) > MOST_CLEAN:
        lines.append(f"clean    {len(clean)} inputs; --explain-all-passes lists them")
    if idle:
        names = ", ".join(report.path for report in idle[:MOST_NAMED])
        more = f", and {len(idle) - MOST_NAMED} more" if len(idle) > MOST_NAMED else ""
        lines += _line(f"nothing to judge  {names}{more}", width)
    for report in reports:
        for note in report.diagnosis.notes:
            lines += _line(f"note     {report.path}: {note}", width) if note != NO_TRAINING else []
        lines += _crashes(report, width, f" on {report.path}")
        lines += _line(report.failure, width) if report.failure else []
    return lines


def concise(reports: Sequence[Report], *, colour: bool) -> str:
    """One line per note and per finding, then the counts. Of several inputs the findings come first."""
    notes: list[str] = []
    found: list[str] = []
    failed: list[str] = []
    for report in reports:
        place = escape(report.path)
        kept = [note for note in report.diagnosis.notes if note != NO_TRAINING or len(reports) == 1]
        notes += [f"{place}: note {escape(note)}" for note in kept]
        for word in report.diagnosis.findings:
            cause = report.diagnosis.causes.get(word.code)
            follows = f" (follows from {cause})" if cause else ""
            where = next((f"{escape(str(position))}:{position.column + 1}" for position in word.verdict.places), place)
            found.append(
                f"{where}: {_paint(word, word.severity, colour)} {_title(word)}: {escape(word.verdict.message)} "
                f"[{word.confidence}]{follows}"
            )
        failed += [
            f"{place}: crashed {_title(word)}: {escape(word.verdict.message)}"
            for word in report.diagnosis.of(State.CRASHED)
        ]
        failed += [escape(report.failure)] if report.failure else []
    if len(reports) == 1 and not reports[0].failure:
        return "\n".join([*notes, *found, *failed, f"{escape(reports[0].path)}: {reports[0].counts}"])
    return "\n".join([*found, *notes, *failed, sum_up(reports)])


def wrap(text: str, width: int, first: str = "", rest: str = "") -> list[str]:
    """Lines of at most `width` characters, except for a longer word: codes and paths are never broken."""
    return textwrap.wrap(
        escape(text),
        max(width, 30),
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def bold(text: str, colour: bool) -> str:
    return f"\x1b[{_BOLD}m{text}\x1b[0m" if colour else text


def _rehearsal(rehearsal: Mapping[str, Any], width: int) -> list[str]:
    """How far it got, and what was stood in for."""
    ways = {"steps": "enough steps", "time": "the time limit", "failed": "its own failure", "obstacle": "an obstacle"}
    ways |= {"killed": "its process, before a report", "": "its process, while it ran"}
    events = ", ".join(f"{event} {seconds:.1f} s" for event, seconds in rehearsal["seconds"].items())
    ended = ways.get(rehearsal["ended"], "its last line")
    lines = _line(f"rehearsed  {events or 'not started'}; it ended with {ended}", width)
    # a model stands in for weights and for sizes: one line says it
    stood_in = list(dict.fromkeys(f"{made['what']} ({made['by']})" for made in rehearsal["replaced"]))
    more = f", and {len(stood_in) - MOST_NAMED} more" if len(stood_in) > MOST_NAMED else ""
    shown = ", ".join(stood_in[:MOST_NAMED])
    lines += _line(f"stand-ins  {shown}{more}", width) if stood_in else []
    walls = ", ".join(rehearsal["walls"])
    return [*lines, *(_line(f"sandbox    {walls}", width) if walls else []), ""]


def _one(report: Report, width: int, colour: bool, all_passes: bool, why: bool, is_alone: bool = True) -> str:
    lines = [bold(escape(report.path), colour) + f": {escape(report.looked_at)}", ""]
    lines += _rehearsal(report.rehearsal, width) if report.rehearsal is not None else []
    notes = report.diagnosis.notes
    most = len(notes) if all_passes or len(notes) <= MOST_NOTES else MOST_NOTES - 1
    lines += [line for note in notes[:most] for line in _line(f"note     {note}", width)]
    if len(notes) > most:
        lines.append(f"note     {len(notes) - most} more with --explain-all-passes")
    lines += [""] if notes else []
    for root in report.roots:
        lines += [*_finding(report, root, width, colour, why), ""]
    only = len(report.diagnosis.words) == 1  # only this check was chosen
    if report.notable and (is_alone or all_passes):
        lines.append(bold("worth knowing", colour))
        for word in report.notable:
            lines += _healthy(word, width, len(word.verdict.facts) if all_passes or only else MOST_FACTS)
        lines.append("")
    rest = _crashes(report, width)
    missing = missing_in_short([report])
    if all_passes:
        for name, codes in report.missing().items():
            rest += _line(f"not enough data  {name}: {', '.join(codes)}", width)
    elif missing and is_alone:
        rest += _line(f"not enough data  {missing}", width)
    lines += [*rest, ""] if rest else []
    if all_passes:
        for word in report.diagnosis.of(State.HEALTHY):
            shown = word.code in {notable.code for notable in report.notable}
            lines += _healthy(word, width, 0 if shown else len(word.verdict.facts))
        for word in report.diagnosis.of(State.NOT_APPLICABLE):
            lines += _line(f"not applicable  {_title(word)}: {word.verdict.message}", width)
        lines.append("")
    if is_alone or all_passes:
        lines += _line(report.counts, width)
    return "\n".join(lines).rstrip("\n")


def _crashes(report: Report, width: int, where: str = "") -> list[str]:
    return [
        line
        for word in report.diagnosis.of(State.CRASHED)
        for line in _line(f"crashed  {_title(word)}{where}: {word.verdict.message}", width)
    ]


def _finding(report: Report, word: Word, width: int, colour: bool, why: bool) -> list[str]:
    seen = f", seen in the {word.seen_in}" if word.seen_in else ""
    lines = [f"{_paint(word, f'{word.severity:<8}', colour)} {bold(_title(word), colour)} [{word.confidence}{seen}]"]
    lines += wrap(word.verdict.message, width, _INDENT, _INDENT)
    for fact in word.verdict.facts:
        lines += wrap(str(fact), width, f"{_INDENT}- ", f"{_INDENT}  ")
    lines += [f"{_INDENT}{escape(line)}" for line in word.verdict.examples]
    lines += _places(report, word, width, why)
    lines += wrap(f"fix: {word.fix}", width, _INDENT, _INDENT)
    if word.verdict.edit is not None:
        lines += [f"{_INDENT}{line}" for line in suggestion(word.verdict.edit, report)]
    lines.append(f"{_INDENT}more: assay explain {word.code}")
    for follower in report.diagnosis.consequences(word.code):
        sentence = f"follows from it: {_title(follower)}: {follower.verdict.message}"
        lines += wrap(sentence, width, f"{_INDENT}  ", f"{_INDENT}    ")
        lines += [f"{_INDENT}    {escape(line)}" for line in follower.verdict.examples if why]
    return lines


def _places(report: Report, word: Word, width: int, why: bool) -> list[str]:
    """Where it was seen: lines of a script, else the batch or the curves."""
    places = word.verdict.places
    if not places:
        seen = word.source or "the curves"
        more = f", and {word.batches - 1} more" if word.batches > 1 else ""
        if not more and seen in (report.path, Path(report.path).name):
            return []
        return wrap(f"seen in {seen}{more}", width, f"{_INDENT}- ", f"{_INDENT}  ")
    edit = word.verdict.edit
    first = places[0] if edit is None or edit.place.line == places[0].line else edit.place  # the cause before the sign
    shown = frame(first, report.lines)
    text = "" if shown else f"  {first.text}"
    lines = wrap(f"{first}{text}", width, f"{_INDENT}> ", f"{_INDENT}  ")
    lines += [f"{_INDENT}  {line}" for line in shown]
    rest = places[1:] if first is places[0] else places
    for place in rest[: MOST_PLACES - 1]:
        lines += wrap(f"see {place}  {place.text}", width, f"{_INDENT}- ", f"{_INDENT}  ")
    if len(rest) > MOST_PLACES - 1:
        lines.append(f"{_INDENT}- and {len(rest) - MOST_PLACES + 1} more places")
    if why:
        for sentence in word.verdict.why:
            lines += wrap(f"why: {sentence}", width, f"{_INDENT}- ", f"{_INDENT}  ")
    return lines


def suggestion(edit: Edit, report: Report) -> list[str]:
    """The edit as a diff, under a line that says who writes it."""
    who = "assay doctor --fix writes it" if edit.safe else "look at it first: --fix leaves it to you"
    shown = diff(edit, report.lines, context=0)  # the frame shows what is around it
    return [f"edit {escape(str(edit.place))} ({who}):", *(f"  {line}" for line in shown[2:])] if shown else []


def _healthy(word: Word, width: int, most: int) -> list[str]:
    lines = _line(f"healthy  {_title(word)}: {word.verdict.message}", width)
    for fact in word.verdict.facts[:most]:
        lines += wrap(str(fact), width, f"{_INDENT}- ", f"{_INDENT}  ")
    lines += [f"{_INDENT}{escape(line)}" for line in word.verdict.examples]
    if 0 < most < len(word.verdict.facts):
        lines.append(f"{_INDENT}- {len(word.verdict.facts) - most} more with --select {word.code}")
    return lines


def _line(sentence: str, width: int) -> list[str]:
    return wrap(sentence, width, "", _INDENT)


def _title(word: Word) -> str:
    return f"{word.code} {word.illness.name}"


def _paint(word: Word, text: str, colour: bool) -> str:
    return f"\x1b[{_COLOURS[word.severity]}m{text}\x1b[0m" if colour else text
