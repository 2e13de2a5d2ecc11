"""WatchedRun --> what is printed: the doctor's report, and the ratio of each update of each rollout batch."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from assay.doctor.catalogue import catalogue
from assay.doctor.command import exit_code
from assay.doctor.diagnosis import diagnose
from assay.doctor.evidence import Curves, Evidence
from assay.doctor.prove_edits import with_edits
from assay.doctor.report import Report, write
from assay.doctor.report.select import select
from assay.machine.faults import FAULTS
from assay.programs.program import Program
from assay.programs.read.script import read_program
from assay.programs.read.text import SourceError
from assay.programs.run.not_finite import first_not_finite
from assay.programs.run.not_understood import not_understood
from assay.programs.run.watched import WatchedRun
from assay.verdict import Confidence
from assay.watch.ratio_table import ratio_lines


def report(run: WatchedRun, settings: Mapping[str, Any], curves: Curves | None = None) -> dict[str, Any]:
    """{text, counts, code, findings}: `text` in the chosen format; `code` is the exit code of the findings."""
    evidence = replace(evidence_of(run), curves=curves)
    illnesses = select(catalogue(), settings["chosen"], settings["ignored"])
    diagnosis = with_edits(diagnose(evidence, illnesses), evidence.programs)
    result = Report.of(run.script, evidence, diagnosis)
    how = settings["how"]
    text = write([result], how, width=settings["width"], colour=settings["colour"], all_passes=settings["all_passes"])
    if how == "full":
        text = "\n".join([text, "", *ratio_lines(run)])
    return {
        "text": text,
        "counts": result.counts,
        "code": exit_code([result], settings["fail_on"] or "never"),
        "findings": [
            [word.code, word.confidence.value, word.verdict.message]
            for word in diagnosis.findings
            if word.confidence is not Confidence.POSSIBLE  # a note is not worth a second report
        ],
    }


def evidence_of(run: WatchedRun, *, read: bool = True) -> Evidence:
    """The run, its batches, and the script's text: what the run does not prove may still be read there."""
    notes = [*_sentences(run), *run.notes]
    programs: tuple[Program, ...] = ()
    if read:
        shown = Path(run.script)
        try:
            # the script may have gone to another folder meanwhile
            programs = (read_program(shown if shown.exists() else Path(run.folder) / shown),)
        except SourceError as error:
            notes.append(str(error))
        except FAULTS as error:
            notes.append(f"the text could not be read, by a fault of assay: {type(error).__name__}: {error}")
    is_trl = bool(run.batches) and not run.updates  # its calls were not recorded
    stopped_at_name = run.failure is not None and run.failure.is_of_names
    seen = run if (run.torch_was_used and not is_trl) or stopped_at_name else None
    return Evidence(batches=tuple(run.batches), notes=tuple(notes), run=seen, programs=programs)


def _cause(run: WatchedRun) -> list[str]:
    """Why a script ended before it imported torch, where its surroundings are the likely reason."""
    kind = run.failure.kind if run.failure is not None else ""
    causes = {
        "ModuleNotFoundError": f"assay runs it with {sys.executable}: install the module there, or install assay in "
        "the environment in which the script runs by itself",
        "FileNotFoundError": f"it ran in {run.folder}: start assay watch in the folder that the script's paths "
        "start from",
        "SyntaxError": f"Python {sys.version.partition(' ')[0]} could not read the text, so no line of it ran",
    }
    causes["IndentationError"] = causes["TabError"] = causes["SyntaxError"]
    return [causes[kind]] if kind in causes else []


def _sentences(run: WatchedRun) -> list[str]:
    """What the reader must know before the findings."""
    lines = []
    if run.failure is not None:
        where = f" at {run.failure.place}" if run.failure.place is not None else ""
        lines.append(
            f"the script ended with {run.failure.kind}{where}: {run.failure.message.partition(chr(10))[0][:200]}"
        )
    if not run.torch_was_used:
        return [*lines, *_cause(run), "the script did not import torch: nothing could be observed"]
    first = first_not_finite(run)
    if first is not None:
        lines.append(
            f"the first number that is not finite was made at {first.place}: {first.place.text} ({first.op}), of "
            "numbers that are"
        )
    if not run.updates and run.batches:
        lines.append("the script trains with TRL: the doctor was attached to its trainer")
    elif not run.updates:
        lines.append("no optimizer step was observed")
    elif not run.batches and any(backward.roles is not None for update in run.updates for backward in update.backwards):
        lines.append(
            f"{len(run.updates)} optimizer steps were observed, but none of them could be read as a step of the "
            "model whose log-probs are in the loss"
        )
    elif not run.batches:
        lines.append(
            f"{len(run.updates)} optimizer steps were observed, but no log-probs of chosen tokens or actions were "
            "recognised in a loss"
        )
    return lines + not_understood(run)
