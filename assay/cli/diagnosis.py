"""The verbs of the doctor."""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from assay.cli.app import (
    ALL_PASSES,
    AS_JSON,
    CHECKS,
    DIAGNOSE,
    EDITS,
    FORMAT,
    IGNORE,
    OUTPUT,
    SELECT,
    TRUST,
    fail,
    verb,
)


class Format(StrEnum):
    FULL = "full"
    CONCISE = "concise"
    JSON = "json"
    SARIF = "sarif"
    GITHUB = "github"
    MD = "md"


class DoctorFormat(StrEnum):
    """Those of Format, and a page."""

    FULL = "full"
    CONCISE = "concise"
    JSON = "json"
    SARIF = "sarif"
    GITHUB = "github"
    MD = "md"
    HTML = "html"


class FailOn(StrEnum):
    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"
    NEVER = "never"


@verb("doctor", DIAGNOSE)
def doctor(
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH", help="Run directories, scripts, notebooks, logs, batches.")
    ],
    how: Annotated[DoctorFormat, FORMAT] = DoctorFormat.FULL,
    chosen: Annotated[list[str] | None, SELECT] = None,
    ignored: Annotated[list[str] | None, IGNORE] = None,
    fail_on: Annotated[
        FailOn,
        typer.Option(help="Exit code 1 on findings of this level or above; errors are proven.", rich_help_panel=OUTPUT),
    ] = FailOn.ERROR,
    all_passes: Annotated[bool, ALL_PASSES] = False,
    why: Annotated[
        bool,
        typer.Option(
            "--why", help="Shows how each value in a script was recognised, line by line.", rich_help_panel=CHECKS
        ),
    ] = False,
    recompute: Annotated[
        bool,
        typer.Option(
            "--recompute", help="Runs the models of a run's checkpoints again; takes a while.", rich_help_panel=CHECKS
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Writes the report to this file instead of stdout.", rich_help_panel=OUTPUT),
    ] = None,
    fix: Annotated[
        bool,
        typer.Option(
            "--fix", help="Makes the safe edits in the given scripts and prints their diff.", rich_help_panel=EDITS
        ),
    ] = False,
    diff: Annotated[
        bool,
        typer.Option(
            "--diff",
            help="Prints that diff and writes nothing; exit code 1 if there is one, else 0.",
            rich_help_panel=EDITS,
        ),
    ] = False,
    trust: Annotated[bool, TRUST] = False,
) -> None:
    """Says what is wrong with a run, a script or a log.

    Each finding comes with its evidence and its fix. The report also counts what was checked and is healthy.
    """
    from assay.doctor import command

    codes = {"chosen": chosen or [], "ignored": ignored or []}
    if fix or diff:
        if out is not None or recompute or how is not DoctorFormat.FULL:
            fail("--fix and --diff print a diff of scripts; leave out --format, --out and --recompute", 2)
        raise typer.Exit(command.run_fix(paths, writes=fix and not diff, fail_on=fail_on, **codes))
    again = None
    if recompute:
        from assay.train.recompute import recompute_run

        again = partial(recompute_run, trust=trust)
    page = None
    if how is DoctorFormat.HTML:
        from assay.report.doctor_page import page_of_reports

        page = page_of_reports
    code = command.run(
        paths,
        how=how,
        fail_on=fail_on,
        all_passes=all_passes,
        why=why,
        out=out,
        recompute=again,
        page=page,
        chosen=chosen or [],
        ignored=ignored or [],
    )
    raise typer.Exit(code)


@verb("explain", DIAGNOSE)
def explain(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CODE OR WORDS]...", help="A code, a name or a symptom in plain words; by default all."
        ),
    ] = None,
    as_json: Annotated[bool, AS_JSON] = False,
) -> None:
    """Explains an illness, or finds those that fit a symptom.

    Says what is checked, why it hurts, how to fix it, and when the finding is wrong.
    """
    from assay.doctor import command

    raise typer.Exit(command.explain(" ".join(words or []), json=as_json))


@verb("watch", DIAGNOSE, context_settings={"allow_interspersed_args": False})
def watch(
    script: Annotated[Path, typer.Argument(metavar="SCRIPT", help="The Python file that trains.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="ARGUMENTS", help="The script's own arguments.")
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Stops the script after N optimizer steps; by default it runs to its end.",
            rich_help_panel=CHECKS,
        ),
    ] = None,
    how: Annotated[Format, FORMAT] = Format.FULL,
    chosen: Annotated[list[str] | None, SELECT] = None,
    ignored: Annotated[list[str] | None, IGNORE] = None,
    fail_on: Annotated[
        FailOn | None,
        typer.Option(
            help="Exit code 1 on findings of this level, if the script itself ends with 0.", rich_help_panel=OUTPUT
        ),
    ] = None,
    all_passes: Annotated[bool, ALL_PASSES] = False,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Writes the report to this file instead of stderr.", rich_help_panel=OUTPUT),
    ] = None,
    rehearsed: Annotated[
        bool,
        typer.Option("--rehearse", help="Runs a copy with stand-ins, as assay rehearse does.", rich_help_panel=CHECKS),
    ] = False,
) -> None:
    """Runs a training script and proves what is wrong with it.

    The script runs unchanged. The doctor checks its first updates; a finding names the line to change.
    """
    from assay.rehearsal import command as rehearsal
    from assay.watch import command

    run = rehearsal.run if rehearsed else command.run
    code = run(
        script,
        arguments or [],
        steps=steps,
        how=how,
        out=out,
        fail_on=None if fail_on is None else fail_on.value,
        chosen=chosen or [],
        ignored=ignored or [],
        all_passes=all_passes,
    )
    raise typer.Exit(code)


@verb("rehearse", DIAGNOSE, context_settings={"allow_interspersed_args": False})
def rehearse(
    script: Annotated[Path, typer.Argument(metavar="SCRIPT", help="The Python file that trains.")],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="ARGUMENTS", help="The script's own arguments; by default those that it asks for."),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Stops after N optimizer steps; by default after 4 and three rollout batches.",
            rich_help_panel=CHECKS,
        ),
    ] = None,
    seconds: Annotated[
        float, typer.Option(metavar="S", help="Stops after this many seconds.", rich_help_panel=CHECKS)
    ] = 90.0,
    how: Annotated[Format, FORMAT] = Format.FULL,
    chosen: Annotated[list[str] | None, SELECT] = None,
    ignored: Annotated[list[str] | None, IGNORE] = None,
    fail_on: Annotated[
        FailOn | None, typer.Option(help="Exit code 1 on findings of this level.", rich_help_panel=OUTPUT)
    ] = None,
    all_passes: Annotated[bool, ALL_PASSES] = False,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Writes the report to this file instead of stdout.", rich_help_panel=OUTPUT),
    ] = None,
) -> None:
    """Runs a few steps of a script without model, data or GPU.

    It is executed: in a copy of its project, without network, with stand-ins for what it needs. One report holds what
    was read in the text and what these steps prove.
    """
    from assay.rehearsal import command

    code = command.run(
        script,
        arguments or [],
        steps=steps,
        seconds=seconds,
        how=how,
        out=out,
        fail_on=None if fail_on is None else fail_on.value,
        chosen=chosen or [],
        ignored=ignored or [],
        all_passes=all_passes,
    )
    raise typer.Exit(code)


@verb("verify", DIAGNOSE)
def verify(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")],
    as_json: Annotated[bool, AS_JSON] = False,
) -> None:
    """Checks that a run is as it was written.

    Reads every byte that has a checksum and names what is damaged. Exit code 1 on problems.
    """
    from assay.machine.terminal import ProgressLine, printable
    from assay.record import verify as verification

    progress = ProgressLine()
    try:
        found = verification.verify(run, on_file=lambda name: progress.show(f"reading {name}", at_once=True))
    finally:
        progress.clear()
    if as_json:
        typer.echo(verification.as_json(run, found))
    else:
        for line in verification.as_text(run, found):
            typer.echo(printable(line))
    raise typer.Exit(1 if found.problems else 0)
