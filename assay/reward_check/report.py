"""Report --> lines for a reader, or JSON for a machine. Causes stand first, what follows from them stands below."""

from __future__ import annotations

import json
from typing import Any

from assay.reward_check.types import Check, Report, Verdict
from assay.rewards.failures import failure_block
from assay.verdict import Severity, State, escaped, json_without_commands, without_commands

SCHEMA_VERSION = 1
FAILS = "REW02"  # the check that failures are shown with
_ORDER = {Severity.FATAL: 0, Severity.HARMFUL: 1, Severity.WASTEFUL: 2}
_COLOURS = {Severity.FATAL: "31;1", Severity.HARMFUL: "33;1", Severity.WASTEFUL: "36"}


def as_text(report: Report, *, verbose: bool, colour: bool) -> str:
    lines = [
        f"{escaped(', '.join(report.functions))} on {escaped(report.task)}: {report.calls} calls over "
        f"{report.problems} problems in {report.seconds:.1f} s",
        "",
    ]
    causes = [one for one in report.of(State.FINDING) if one[0].code not in report.consequences]
    for check, verdict in sorted(causes, key=lambda one: _rank(one[1])):
        lines += [*_finding(report, check, verdict, colour, verbose), ""]
    for state in (State.CRASHED, State.NOT_ENOUGH_DATA):
        lines += _by_reason(report, state)
    if report.stopped:
        lines.append(f"not all was asked: {report.stopped}")
    if verbose:
        lines += _by_reason(report, State.NOT_APPLICABLE)
        for check, verdict in report.of(State.HEALTHY):
            lines.append(f"healthy  {check.code} {check.name}: {verdict.headline}")
            lines += [f"             {line}" for line in verdict.evidence]
    counts = {state: len(report.of(state)) for state in State}
    findings = counts[State.FINDING]
    lines.append(
        f"{len(report.verdicts)} checks: {findings} finding{'s' * (findings != 1)}, {counts[State.HEALTHY]} healthy, "
        f"{counts[State.NOT_APPLICABLE]} not applicable, {counts[State.NOT_ENOUGH_DATA]} not enough data, "
        f"{counts[State.CRASHED]} crashed"
    )
    return "\n".join(map(without_commands, lines))


def as_json(report: Report) -> str:
    document: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "functions": list(report.functions),
        "task": report.task,
        "problems": report.problems,
        "calls": report.calls,
        "seconds": round(report.seconds, 3),
        "stopped": report.stopped,
        "exit_code": report.exit_code,
        "failures": [dict(facts) for facts in report.failures],
        "checks": [_as_mapping(report, check, verdict) for check, verdict in report.verdicts],
    }
    return json_without_commands(json.dumps(document, indent=2))


def _as_mapping(report: Report, check: Check, verdict: Verdict) -> dict[str, Any]:
    mapping: dict[str, Any] = {
        "code": check.code,
        "name": check.name,
        "state": verdict.state.value,
        "headline": verdict.headline,
        "evidence": list(verdict.evidence),
    }
    if verdict.state is State.FINDING:
        mapping |= {
            "severity": verdict.severity.value,
            "confidence": verdict.confidence.value,
            "fix": verdict.fix,
            "follows_from": report.consequences.get(check.code, ""),
        }
    return mapping


def _by_reason(report: Report, state: State) -> list[str]:
    """One line a reason: a reward that was never scored is the reason of many."""
    names: dict[str, list[str]] = {}
    for check, verdict in report.of(state):
        names.setdefault(verdict.headline, []).append(f"{check.code} {check.name}")
    return [f"{state}  {', '.join(checks)}: {headline}" for headline, checks in names.items()]


def _rank(verdict: Verdict) -> tuple[bool, int]:
    """What fails the command first, then by severity; equals stay in the order of the registry."""
    return not verdict.fails, _ORDER[verdict.severity]


def _finding(report: Report, check: Check, verdict: Verdict, colour: bool, verbose: bool) -> list[str]:
    word = f"{verdict.severity:<8}"
    painted = f"\x1b[{_COLOURS[verdict.severity]}m{word}\x1b[0m" if colour else word
    lines = [f"{painted} {check.code} {check.name}  {verdict.headline} [{verdict.confidence}]"]
    lines += [f"         {line}" for line in verdict.evidence]
    for facts in report.failures if check.code == FAILS else ():
        first, *others = failure_block(facts)
        lines += [f"         > {first}", *(f"           {line}" for line in others)]
    lines.append(f"         fix: {verdict.fix}")
    for other, consequence in report.of(State.FINDING):
        if report.consequences.get(other.code) == check.code:
            lines.append(f"         follows from it: {other.code} {other.name}  {consequence.headline}")
            lines += [f"             {line}" for line in consequence.evidence if verbose]
    return lines
