"""Trace --> what is printed: the doctor's report, and the ratio of each update of each rollout batch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from assay.doctor.catalogue import catalogue
from assay.doctor.command import exit_code
from assay.doctor.diagnosis import diagnose
from assay.doctor.evidence import Evidence
from assay.doctor.report import Report, write
from assay.doctor.report.select import select
from assay.machine.faults import FAULTS
from assay.programs.read.program import Program, read_program
from assay.programs.read.text import SourceError
from assay.programs.run.marks import mark
from assay.programs.run.not_finite import first_not_finite
from assay.programs.run.ratios import ratio_lines
from assay.programs.run.trace import Trace


def report(trace: Trace, settings: Mapping[str, Any]) -> dict[str, Any]:
    """{text, counts, code}: in the form that was asked for; `code` is the exit code of the findings."""
    evidence = evidence_of(trace)
    illnesses = select(catalogue(), settings["chosen"], settings["ignored"])
    told = Report.of(trace.script, evidence, diagnose(evidence, illnesses))
    how = settings["how"]
    text = write([told], how, width=settings["width"], colour=settings["colour"], all_passes=settings["all_passes"])
    if how == "full":
        text = "\n".join([text, "", *ratio_lines(trace)])
    return {"text": text, "counts": told.counts, "code": exit_code([told], settings["fail_on"] or "never")}


def evidence_of(trace: Trace, *, read: bool = True) -> Evidence:
    """The run, its batches, and the script's text: what the run does not prove may still be read there."""
    trace.not_finite = trace.not_finite or first_not_finite(trace)
    if not trace.is_marked:
        trace.is_marked = True
        try:
            mark(trace)
        except FAULTS as error:
            trace.notes.append(
                f"the run was not judged to its end, by a fault of assay: {type(error).__name__}: {error}"
            )
    notes = [*_sentences(trace), *trace.notes]
    programs: tuple[Program, ...] = ()
    if read:
        shown = Path(trace.script)
        try:
            # the script may have gone to another folder meanwhile
            programs = (read_program(shown if shown.exists() else Path(trace.folder) / shown),)
        except SourceError as error:
            notes.append(str(error))
        except FAULTS as error:
            notes.append(f"the text could not be read, by a fault of assay: {type(error).__name__}: {error}")
    seen = trace if trace.torch_was_used else None
    return Evidence(batches=tuple(trace.batches), notes=tuple(notes), trace=seen, programs=programs)


def _sentences(trace: Trace) -> list[str]:
    """What the reader must know before the findings."""
    if not trace.torch_was_used:
        return ["the script did not import torch: nothing could be observed"]
    lines = []
    if trace.failure is not None:
        where = f" at {trace.failure.place}" if trace.failure.place is not None else ""
        lines.append(
            f"the script ended with {trace.failure.kind}{where}: {trace.failure.message.partition(chr(10))[0][:200]}"
        )
    first = trace.not_finite
    if first is not None:
        lines.append(
            f"the first number that is not finite was made at {first.place}: {first.place.text} ({first.op}), of "
            "numbers that are"
        )
    if not trace.updates:
        lines.append("no optimizer step was observed")
    elif not trace.batches and any(one.roles is not None for update in trace.updates for one in update.backwards):
        lines.append(
            f"{len(trace.updates)} optimizer steps were observed, but none of them could be read as a step of the "
            "model whose log-probs are in the loss"
        )
    elif not trace.batches:
        lines.append(
            f"{len(trace.updates)} optimizer steps were observed, but no log-probs of chosen tokens were recognised in "
            "a loss"
        )
    return lines
