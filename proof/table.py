"""Outcomes --> the two tables, their totals and whether the bar was reached; as Markdown and as JSON."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from assay.machine import durable
from assay.record import describe_environment
from proof.outcome import Outcome, share_named_first

NAMED_FIRST = 0.95  # share of the trials in which the planted illness must stand first
_PACKAGES = ("assay", "numpy", "torch", "transformers")


@dataclass(frozen=True)
class Report:
    planted: tuple[Outcome, ...]
    healthy: tuple[Outcome, ...]
    never_planted: tuple[str, ...] = ()  # codes of illnesses that say no way to plant them
    command: str = ""

    @property
    def failures(self) -> list[str]:
        """Why the bar was not reached, in sentences; none if it was."""
        failures: list[str] = []
        if share_named_first(self.planted) < NAMED_FIRST:
            share = share_named_first(self.planted)
            failures.append(f"only {share:.1%} of the planted faults were named first, {NAMED_FIRST:.0%} are wanted")
        for outcome in self.planted:
            who = f"{outcome.code} seed {outcome.seed}"
            failures += [f"{who}: {claim} is claimed and not so" for claim in outcome.false_claims]
            failures += _broken(who, outcome)
        for outcome in self.healthy:
            who = f"healthy {outcome.name} seed {outcome.seed}"
            failures += [f"{who}: {claim} is claimed of a healthy run" for claim in outcome.false_claims]
            failures += _broken(who, outcome)
        return failures

    def totals(self) -> list[str]:
        lines = []
        if self.planted:
            first = sum(outcome.first for outcome in self.planted)
            found = sum(outcome.found for outcome in self.planted)
            false = sum(len(outcome.false_claims) for outcome in self.planted)
            codes = len({outcome.code for outcome in self.planted})
            lines.append(
                f"planted: {codes} illnesses, {len(self.planted)} runs; named first in {first} "
                f"({share_named_first(self.planted):.1%}), found in {found}; false proven claims: {false}"
            )
        if self.never_planted:
            lines.append(f"never planted, and so not proven: {', '.join(self.never_planted)}")
        if self.healthy:
            false = sum(len(outcome.false_claims) for outcome in self.healthy)
            possible = sum(len(outcome.others) for outcome in self.healthy) - false
            lines.append(
                f"healthy: {len(self.healthy)} runs; claims above possible, or fatal: {false}; possible: {possible}"
            )
        return lines


def markdown(report: Report) -> str:
    environment = describe_environment(threads=1)
    versions = ", ".join(f"{name} {environment['packages'][name]}" for name in _PACKAGES)
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    lines = [f"{today}, `{report.command}`. Python {environment['python']}, {versions}.", ""]
    lines += [f"**{line[0].upper()}{line[1:]}.**" for line in report.totals()]
    if report.planted:
        lines += ["", "### Planted", "", *_rows(_PLANTED_HEAD, [_planted_row(own) for own in _by_name(report.planted)])]
    if report.healthy:
        lines += ["", "### Healthy", "", *_rows(_HEALTHY_HEAD, [_healthy_row(own) for own in _by_name(report.healthy)])]
    if report.failures:
        lines += ["", "### Below the bar", "", *(f"- {sentence}" for sentence in report.failures)]
    return "\n".join(lines) + "\n"


def save(report: Report, path: Path) -> None:
    """`path` in Markdown, and the same name with .json. What stands before the first table of an older file stays."""
    document: Mapping[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": report.command,
        "environment": describe_environment(threads=1),
        "planted": [asdict(outcome) for outcome in report.planted],
        "healthy": [asdict(outcome) for outcome in report.healthy],
        "failures": report.failures,
    }
    head, mark, _ = path.read_text(encoding="utf-8").partition(MARK) if path.exists() else ("", "", "")
    text = f"{head}{MARK}\n{markdown(report)}" if mark else markdown(report)
    path.parent.mkdir(parents=True, exist_ok=True)
    durable.replace_file(path, text.encode())
    durable.replace_file(path.with_suffix(".json"), json.dumps(document, indent=1).encode() + b"\n")


MARK = "<!-- what follows is written by python -m proof -->"
_PLANTED_HEAD = ("code", "illness", "how planted", "found", "first", "rank", "confidence", "also raised", "s")
_HEALTHY_HEAD = ("run", "settings", "steps", "checks that looked", "findings above possible", "possible", "s")


def _planted_row(own: Sequence[Outcome]) -> tuple[str, ...]:
    first = own[0]
    return (
        first.code,
        first.name,
        f"`{first.how}`" if first.how else "",
        _count(outcome.found for outcome in own),
        _count(outcome.first for outcome in own),
        _several(str(outcome.rank or "-") for outcome in own),
        _several(outcome.confidence or "-" for outcome in own),
        ", ".join(sorted({other for outcome in own for other in outcome.others})) or _errors(own),
        _seconds(own),
    )


def _healthy_row(own: Sequence[Outcome]) -> tuple[str, ...]:
    false = {claim for outcome in own for claim in outcome.false_claims}
    possible = {other for outcome in own for other in outcome.others} - false
    how = f"`{own[0].how}`" if own[0].how else ""
    return (
        own[0].name,
        how,
        _several(str(outcome.steps) for outcome in own),
        _several(str(outcome.looked) for outcome in own),
        ", ".join(sorted(false)) or _errors(own) or "none",
        ", ".join(sorted(possible)),
        _seconds(own),
    )


def _rows(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines]


def _by_name(outcomes: Sequence[Outcome]) -> list[list[Outcome]]:
    names = dict.fromkeys((outcome.code, outcome.name) for outcome in outcomes)
    return [[outcome for outcome in outcomes if (outcome.code, outcome.name) == name] for name in names]


def _count(values: Any) -> str:
    flags = list(values)
    return f"{sum(flags)}/{len(flags)}"


def _several(values: Any) -> str:
    return ", ".join(dict.fromkeys(values))


def _seconds(own: Sequence[Outcome]) -> str:
    return f"{sum(outcome.seconds for outcome in own) / len(own):.1f}"


def _errors(own: Sequence[Outcome]) -> str:
    return _several(outcome.error for outcome in own if outcome.error)


def _broken(who: str, outcome: Outcome) -> list[str]:
    broken = [f"{who}: the check {sentence}" for sentence in outcome.crashed]
    return [*broken, f"{who}: {outcome.error}"] if outcome.error else broken
