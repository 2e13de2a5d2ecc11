"""`assay doctor --format html`: the doctor's reports as a page; of one run or log with all else that the page shows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from assay.doctor.report import Report
from assay.doctor.report.summary import sum_up
from assay.report import chart as drawing
from assay.report.markup import element, join
from assay.report.opened import with_report
from assay.report.page import document, navigation, page_of
from assay.report.verdict import headline, verdict


def page_of_reports(reports: Sequence[Report]) -> str:
    if len(reports) == 1 and not reports[0].failure:
        run = with_report(Path(reports[0].path), reports[0])
        if run.rows or run.evidence.batches:
            return page_of(run)
    return _verdicts(reports)


def _verdicts(reports: Sequence[Report]) -> str:
    """One part per input, those with findings first; the others are a line each."""
    shown = [report for report in reports if report.has_block(all_passes=False)] or list(reports)[: len(reports) == 1]
    others = [report for report in reports if report not in shown]
    parts = [
        element(
            "section", element("p", report.path, class_="quiet"), verdict(report), id=f"input-{place}", class_="block"
        )
        for place, report in enumerate(shown, start=1)
    ]
    if others:
        lines = [
            element("li", element("b", report.path), ": ", report.failure or headline(report)[1]) for report in others
        ]
        parts.append(
            element("section", element("h2", "Other inputs"), element("ul", lines), id="others", class_="block")
        )
    names = {f"input-{place}": Path(report.path).name or report.path for place, report in enumerate(shown, start=1)}
    title = sum_up(reports) if len(reports) > 1 else reports[0].path
    head = element("header", element("p", "assay doctor", class_="brand"), element("h1", title))
    body = join(
        head, navigation({**names, **({"others": "Others"} if others else {})}), element("main", parts, id="main")
    )
    data = {
        "charts": [], "sources": [], "completions": [], "prompts": [], "channels": {}, "svg_style": drawing.STYLE,
        "live": False, "version": "",
    }  # fmt: skip
    return document("report of assay doctor", body, data)
