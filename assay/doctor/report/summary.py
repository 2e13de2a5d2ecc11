"""Several reports --> what they amount to: counts for the last line of a text, and for machines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from assay.doctor.report import Report
from assay.verdict import Severity, State

_FEW_CODES = 3  # checks that are named by their codes


def totals(reports: Sequence[Report]) -> dict[str, Any]:
    severities = Counter(word.severity for report in reports for word in report.diagnosis.findings)
    kinds = Counter(report.kind for report in reports)
    return {
        "inputs": len(reports),
        "read": len(reports) - kinds["unread"] - kinds["crashed"],
        "with_findings": kinds["findings"],
        "findings": {severity.value: severities[severity] for severity in Severity},
        "clean": kinds["clean"],  # something was judged, and all of it is right
        "nothing_to_judge": kinds["nothing to judge"],  # no check had anything to look at
        "incomplete": kinds["incomplete"],  # without a finding, but a check crashed
        "unread": kinds["unread"],
        "crashed_checks": sum(len(report.diagnosis.of(State.CRASHED)) for report in reports),
        "crashed_inputs": kinds["crashed"],  # could not be analysed at all, by a fault of Assay
    }


def sum_up(reports: Sequence[Report]) -> str:
    """45 inputs: 44 read, 3 findings in 2 of them (1 fatal, 2 harmful), 30 clean, 12 with nothing to judge, ..."""
    counts = totals(reports)
    findings = sum(counts["findings"].values())
    severities = ", ".join(f"{count} {severity}" for severity, count in counts["findings"].items() if count)
    where = f" in {counts['with_findings']} of them ({severities})" if findings else ""
    parts = [f"{counts['read']} read", f"{_count(findings, 'finding')}{where}", f"{counts['clean']} clean"]
    optional = {
        "nothing_to_judge": f"{counts['nothing_to_judge']} with nothing to judge",
        "incomplete": f"{counts['incomplete']} incomplete",
        "crashed_checks": f"{_count(counts['crashed_checks'], 'check')} crashed",
        "crashed_inputs": f"{counts['crashed_inputs']} not analysed, by a fault of Assay",
        "unread": f"{counts['unread']} could not be read",
    }
    parts += [words for name, words in optional.items() if counts[name]]
    return f"{_count(counts['inputs'], 'input')}: {', '.join(parts)}"


def missing_in_short(reports: Sequence[Report]) -> str:
    """The checks without data on one line, with what is missing most often; "" if there are none.

    21 checks; most often missing: curves (7), gradients (3)
    """
    codes = [word.code for report in reports for word in report.diagnosis.of(State.NOT_ENOUGH_DATA)]
    which = ", ".join(codes) if len(codes) <= _FEW_CODES else _count(len(codes), "check")
    names: Counter[str] = Counter()
    for report in reports:
        names.update({name: len(codes) for name, codes in report.missing().items()})
    most = ", ".join(f"{name} ({count})" if len(names) > 1 else name for name, count in names.most_common(3))
    return f"{which}; {'most often ' * (len(names) > 3)}missing: {most}" if codes else ""


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
