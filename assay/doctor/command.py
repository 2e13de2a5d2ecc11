"""The commands `assay doctor` and `assay explain`: words of the command line --> output and an exit code."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

from assay.doctor.catalogue import Illness, catalogue
from assay.doctor.explain import FAMILIES, answers, as_json, by_family, find, list_illnesses, page_on
from assay.doctor.inputs import Recompute, read_reports
from assay.doctor.report import LEVELS, Report, escape, write
from assay.doctor.report.select import UnknownCode, select
from assay.doctor.report.summary import sum_up
from assay.doctor.search import search
from assay.machine import durable
from assay.machine.user_error import UserError
from assay.verdict import State

_WIDEST = 120  # longer lines are hard to read
_NO_TERMINAL = (100, 24)  # columns and lines where there is none


class OutError(UserError, ValueError):
    """The report could not be written. The message is one sentence with the file."""


def run(
    paths: Sequence[Path],
    *,
    how: str = "full",
    chosen: Sequence[str] = (),
    ignored: Sequence[str] = (),
    fail_on: str = "error",
    all_passes: bool = False,
    out: Path | None = None,
    recompute: Recompute | None = None,
    why: bool = False,
    page: Callable[[Sequence[Report]], str] | None = None,
) -> int:
    """Reads every path before it prints. A lone path that cannot be read is raised, with nothing on stdout. `page`
    writes the reports in a form of its own."""
    reports = read_reports(paths, select(catalogue(), chosen, ignored), recompute)
    colour = out is None and in_colour()
    if page is not None:
        text = page(reports)
    else:
        text = write(reports, how, width=width_of_terminal(), colour=colour, all_passes=all_passes, why=why)
    if out is None:
        print_report(text)
    else:
        try:
            durable.replace_file(out, f"{text}\n".encode("utf-8", "backslashreplace"))
        except OSError as error:
            raise OutError(f"{out} could not be written: {durable.reason(error)}") from error
        counts = reports[0].counts if len(reports) == 1 else sum_up(reports)
        print(f"{escape(str(out))}: {counts}", file=sys.stderr)
    is_for_programs = how in ("json", "sarif") or page is not None  # nobody reads these as they are
    for report in reports if out is not None or is_for_programs else ():
        if report.failure:
            print(f"assay: {escape(report.failure)}", file=sys.stderr)
    return exit_code(reports, fail_on)


def run_fix(
    paths: Sequence[Path],
    *,
    writes: bool,
    chosen: Sequence[str] = (),
    ignored: Sequence[str] = (),
    fail_on: str = "error",
) -> int:
    """Prints the diff of all safe edits, and writes them if it is asked to: all files, or none where one cannot be.

    The exit code of --diff is 1 if there is anything to edit; that of --fix is of the findings that are left.
    """
    from assay.doctor import fix

    fixed = fix.fix(paths, select(catalogue(), chosen, ignored))
    if writes:
        for original, _ in fixed.changed:
            fix.require_writable(original.path)
        fixed.write()
    if fixed.changed:
        print_report("\n".join(escape(line) for line in fixed.diff.split("\n")))
    done = "made" if writes else "to make"
    count = len(fixed.ended)
    names = f" ({', '.join(dict.fromkeys(code for code, _ in fixed.ended))})" if fixed.ended else ""
    print(f"{count or 'no'} edit{'s' * (count != 1)} {done}{names}", file=sys.stderr)
    reports = [Report(str(path), diagnosis) for path, diagnosis in fixed.left]
    for report in reports:
        for word in report.diagnosis.findings:
            place = word.verdict.edit.place if word.verdict.edit else next(iter(word.verdict.places), report.path)
            why = "look at its edit first" if word.verdict.edit else "no mechanical edit"
            print(f"left: {escape(str(place))} {word.code} {word.illness.name} ({why})", file=sys.stderr)
    return exit_code(reports, fail_on) if writes else int(bool(fixed.changed))


def exit_code(reports: Sequence[Report], fail_on: str) -> int:
    """1: a finding at `fail_on` or above it; else 3: something of ours crashed; else 2: an input could not be read.

    "never" lets every finding pass, and nothing else.
    """
    failing = () if fail_on == "never" else LEVELS[: LEVELS.index(fail_on) + 1]
    if any(word.level in failing for report in reports for word in report.diagnosis.findings):
        return 1
    if any(report.crash or report.diagnosis.of(State.CRASHED) for report in reports):
        return 3
    return 2 if any(report.unread for report in reports) else 0


def explain(text: str, *, json: bool) -> int:
    """Of a code or a name its page, of a family its list, of plain words the illnesses that show so; of "" all."""
    known = by_family()
    shown: Illness | list[Illness] | None = find(text) if text else known
    family = [illness for illness in known if illness.family == text]
    if shown is None:
        shown = family or [hit.illness for hit in search(text, known)]
    if not shown:
        families = ", ".join(f"{name} ({words})" for name, words in FAMILIES.items())
        raise UnknownCode(
            f"{text[:60]!r} matches no symptom, code or name of an illness; 'assay explain' lists them all, "
            f"'assay explain RAT' one family: {families}"
        )
    if json:
        print_report(as_json(shown))
    elif isinstance(shown, Illness):
        print_report(page_on(shown, width=width_of_terminal(), colour=in_colour()))
    elif family or not text:
        print_report(list_illnesses(shown, width=width_of_terminal(), colour=in_colour()))
    else:
        print_report(answers(text, shown, width=width_of_terminal()))
    return 0


def in_colour(stream: TextIO | None = None) -> bool:
    stream = stream or sys.stdout
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def width_of_terminal() -> int:
    return min(shutil.get_terminal_size(_NO_TERMINAL).columns, _WIDEST)


def print_report(text: str, stream: TextIO | None = None) -> None:
    """To stdout, or to another stream; a terminal may not know every letter."""
    stream = stream or sys.stdout
    encoding = stream.encoding or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding), file=stream)
