"""Several reports --> what they amount to: counts for the last line of a text, and for machines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from assay.doctor.report import Report
from assay.verdict import Severity, State

_FEW = 3  # checks that are named by their codes


@dataclass(frozen=True)
class Summary:
    inputs: int
    read: int
    with_findings: int
    findings: dict[Severity, int]
    clean: int  # something was judged, and all of it is right
    nothing_to_judge: int  # no check had anything to look at
    incomplete: int  # without a finding, but a check crashed
    unread: int
    crashed_checks: int
    crashed_inputs: int  # could not be analysed at all, by a fault of Assay

    @classmethod
    def of(cls, reports: Sequence[Report]) -> Summary:
        severities = Counter(word.severity for report in reports for word in report.diagnosis.findings)
        kinds = Counter(report.kind for report in reports)
        return cls(
            inputs=len(reports),
            read=len(reports) - kinds["unread"] - kinds["crashed"],
            with_findings=kinds["findings"],
            findings={severity: severities[severity] for severity in Severity},
            clean=kinds["clean"],
            nothing_to_judge=kinds["nothing to judge"],
            incomplete=kinds["incomplete"],
            unread=kinds["unread"],
            crashed_checks=sum(len(report.diagnosis.of(State.CRASHED)) for report in reports),
            crashed_inputs=kinds["crashed"],
        )

    def __str__(self) -> str:
        """45 inputs: 44 read, 3 findings in 2 of them (1 fatal, 2 harmful), 30 clean, 12 with nothing to judge, ..."""
        findings = sum(self.findings.values())
        severities = ", ".join(f"{count} {severity}" for severity, count in self.findings.items() if count)
        parts = [
            f"{self.read} read",
            f"{_count(findings, 'finding')} in {self.with_findings} of them ({severities})"
            if findings
            else "0 findings",
            f"{self.clean} clean",
        ]
        if self.nothing_to_judge:
            parts.append(f"{self.nothing_to_judge} with nothing to judge")
        if self.incomplete:
            parts.append(f"{self.incomplete} incomplete")
        if self.crashed_checks:
            parts.append(f"{_count(self.crashed_checks, 'check')} crashed")
        if self.crashed_inputs:
            parts.append(f"{self.crashed_inputs} not analysed, by a fault of Assay")
        if self.unread:
            parts.append(f"{self.unread} could not be read")
        return f"{_count(self.inputs, 'input')}: {', '.join(parts)}"

    def as_mapping(self) -> dict[str, object]:
        return {
            "inputs": self.inputs,
            "read": self.read,
            "with_findings": self.with_findings,
            "findings": {severity.value: count for severity, count in self.findings.items()},
            "clean": self.clean,
            "nothing_to_judge": self.nothing_to_judge,
            "incomplete": self.incomplete,
            "unread": self.unread,
            "crashed_checks": self.crashed_checks,
            "crashed_inputs": self.crashed_inputs,
        }


def missing_in_short(reports: Sequence[Report]) -> str:
    """The checks without data on one line, with what is missing most often; "" if there are none.

    21 checks; most often missing: curves (7), gradients (3)
    """
    codes = [word.code for report in reports for word in report.diagnosis.of(State.NOT_ENOUGH_DATA)]
    which = ", ".join(codes) if len(codes) <= _FEW else _count(len(codes), "check")
    names: Counter[str] = Counter()
    for report in reports:
        names.update({name: len(codes) for name, codes in report.missing().items()})
    most = ", ".join(f"{name} ({count})" if len(names) > 1 else name for name, count in names.most_common(3))
    return f"{which}; {'most often ' * (len(names) > 3)}missing: {most}" if codes else ""


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
