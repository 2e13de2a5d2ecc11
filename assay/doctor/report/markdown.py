"""Reports --> a page of Markdown, to paste into an issue or a job summary."""

from __future__ import annotations

import re
from collections.abc import Sequence

from assay.doctor.diagnosis import Word
from assay.doctor.report import NO_TRAINING, Report, escape
from assay.doctor.report.frame import diff
from assay.doctor.report.summary import missing_in_short, sum_up
from assay.doctor.report.text import MOST_CLEAN
from assay.verdict import State


def page(reports: Sequence[Report], *, all_passes: bool, why: bool = False) -> str:
    """One input whole; of several those with findings first, then a list of the others and the sum of it all."""
    if len(reports) == 1 and not reports[0].failure:
        return "\n".join(_one(reports[0], all_passes, why))
    blocks = [_one(report, all_passes, why, is_alone=False) for report in reports if report.has_block(all_passes)]
    return "\n\n".join("\n".join(block) for block in [*blocks, _summary(reports, all_passes)])


def _summary(reports: Sequence[Report], all_passes: bool) -> list[str]:
    others = [report for report in reports if not report.has_block(all_passes)]
    lines = ["# assay doctor: summary", "", f"{sum_up(reports)}.", ""]
    names = [report.path for report in others if report.kind == "clean"]
    if len(names) > MOST_CLEAN:
        lines.append(f"- clean: {len(names)} inputs")
    else:
        lines += [f"- clean: {plain(name)}" for name in names]
    for report in others:
        lines += [f"- {plain(report.failure)}"] if report.failure else []
        lines += [
            f"- note: {plain(report.path)}: {plain(note)}" for note in report.diagnosis.notes if note != NO_TRAINING
        ]
        lines += [
            f"- crashed: {_title(word)} on {plain(report.path)}: {plain(word.verdict.message)}"
            for word in report.diagnosis.of(State.CRASHED)
        ]
    missing = missing_in_short(reports)
    lines += [f"- not enough data: {plain(missing)}"] if missing else []
    return lines if lines[-1] else lines[:-1]


def plain(text: str) -> str:
    r"""Text that Markdown and HTML leave as it is.

    >>> plain("a|b <i>*c*</i> d_e")
    'a\\|b &lt;i&gt;\\*c\\*&lt;/i&gt; d\\_e'
    """
    quoted = re.sub(r"([\\`*_\[\]|#~$@])", r"\\\1", escape(text))
    return quoted.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _one(report: Report, all_passes: bool, why: bool, is_alone: bool = True) -> list[str]:
    lines = [f"# assay doctor: {plain(report.path)}", "", f"{plain(report.looked_at)}. {report.counts}.", ""]
    if report.diagnosis.notes:
        lines += [*(f"- note: {plain(note)}" for note in report.diagnosis.notes), ""]
    for root in report.roots:
        lines += [*_finding(report, root, why), ""]
    if report.notable and (is_alone or all_passes):
        lines += ["## Worth knowing", ""]
        for word in report.notable:
            lines += [f"- {_title(word)}: {plain(word.verdict.message)}", *_facts(word, "  ")]
        lines.append("")
    rest = [f"- crashed: {_title(word)}: {plain(word.verdict.message)}" for word in report.diagnosis.of(State.CRASHED)]
    missing = missing_in_short([report])
    if all_passes:
        rest += [f"- not enough data: {plain(name)}: {', '.join(codes)}" for name, codes in report.missing().items()]
    elif missing and is_alone:
        rest.append(f"- not enough data: {plain(missing)}")
    lines += ["## Not judged", "", *rest, ""] if rest else []
    if all_passes:
        lines += ["## Healthy", ""]
        lines += [f"- {_title(word)}: {plain(word.verdict.message)}" for word in report.diagnosis.of(State.HEALTHY)]
        lines.append("")
    return lines[:-1]


def _finding(report: Report, word: Word, why: bool) -> list[str]:
    lines = [
        f"## {word.severity}: {_title(word)}",
        "",
        f"{plain(word.verdict.message)} ({word.confidence})",
        "",
        *_facts(word),
        *(f"- {plain(str(place))}: {plain(place.text)}" for place in word.verdict.places),
        *(f"- why: {plain(sentence)}" for sentence in word.verdict.why if why),
        f"- fix: {plain(word.fix)}",
        f"- more: `assay explain {word.code}`",
    ]
    for follower in report.diagnosis.consequences(word.code):
        lines.append(f"- follows from it: {_title(follower)}: {plain(follower.verdict.message)}")
    return [*lines, *_edit(report, word)]


def _edit(report: Report, word: Word) -> list[str]:
    """A block that is longer than any run of backticks in it."""
    edit = word.verdict.edit
    shown = [] if edit is None else diff(edit, report.lines)
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", "\n".join(shown))), default=0))
    return ["", f"{fence}diff", *shown, fence] if shown else []


def _facts(word: Word, indent: str = "") -> list[str]:
    return [f"{indent}- {plain(str(fact))}" for fact in word.verdict.facts]


def _title(word: Word) -> str:
    return f"{word.code} `{word.illness.name}`"
