"""The verbs of the doctor."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from assay import config as configuration
from assay.cli.app import app, fail


class Format(StrEnum):
    FULL = "full"
    CONCISE = "concise"
    JSON = "json"
    SARIF = "sarif"
    GITHUB = "github"
    MD = "md"


class FailOn(StrEnum):
    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"
    NEVER = "never"


@app.command(
    epilog="Examples: assay doctor runs/sort  |  assay doctor grpo.py --why  |  assay doctor trainer_state.json  |  "
    "assay doctor runs/sort --select ADV,RAT --explain-all-passes  |  assay doctor runs/sort --recompute  |  "
    "assay doctor batch.safetensors --format sarif --out doctor.sarif"
)
def doctor(
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH", help="Run directories, scripts, notebooks, logs, batches.")
    ],
    how: Annotated[Format, typer.Option("--format", help="How it is printed.")] = Format.FULL,
    chosen: Annotated[
        list[str] | None,
        typer.Option("--select", metavar="CODES", help="Looks for these alone: codes, names or families, by commas."),
    ] = None,
    ignored: Annotated[
        list[str] | None, typer.Option("--ignore", metavar="CODES", help="Does not look for these.")
    ] = None,
    fail_on: Annotated[
        FailOn, typer.Option(help="Ends with 1 on findings of this level or above; errors are proven.")
    ] = FailOn.ERROR,
    all_passes: Annotated[
        bool, typer.Option("--explain-all-passes", help="Lists the healthy checks, and what each looked at.")
    ] = False,
    why: Annotated[
        bool, typer.Option("--why", help="Shows how each value in a script was recognised, line by line.")
    ] = False,
    recompute: Annotated[
        bool, typer.Option("--recompute", help="Asks the models in a run's checkpoints again; takes a while.")
    ] = False,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Writes there, not to stdout.")] = None,
) -> None:
    """Says what is wrong with a run, a script or a log, with the evidence and the fix, and what was found healthy."""
    from assay.doctor import command
    from assay.doctor.report.select import UnknownCode
    from assay.record import RunError
    from assay.record.batch import BatchError
    from assay.source.text import SourceError

    codes = {"chosen": chosen or [], "ignored": ignored or []}
    try:
        if recompute:
            from assay.train.recheck import recheck
        again = recheck if recompute else None
        code = command.run(
            paths, how=how, fail_on=fail_on, all_passes=all_passes, why=why, out=out, recompute=again, **codes
        )
    except (UnknownCode, configuration.ConfigError, RunError, BatchError, SourceError, command.OutError) as error:
        fail(str(error), 2)
    raise typer.Exit(code)


@app.command(
    epilog="Examples: assay explain  |  assay explain RAT01  |  assay explain ratio-not-one --json  |  "
    'assay explain "loss is zero"'
)
def explain(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[CODE OR WORDS]...", help="A code, a name or a symptom in plain words; without, all."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Prints it as JSON.")] = False,
) -> None:
    """Explains an illness (what is checked, why it hurts, how to fix it), or finds those that show as you describe."""
    from assay.doctor import command
    from assay.doctor.explain import Entry
    from assay.doctor.report.select import UnknownCode
    from assay.rewards.check import CHECKS

    of_rewards = [
        Entry(
            one.code,
            one.name,
            one.severity,
            one.summary,
            one.explanation,
            looks_at=("reward",),
            symptoms=one.symptoms,
        )
        for one in CHECKS
    ]
    try:
        raise typer.Exit(command.explain(" ".join(words or []), of_rewards, json=as_json))
    except UnknownCode as error:
        fail(str(error), 2)


@app.command(
    context_settings={"allow_interspersed_args": False},
    epilog="Examples: assay watch grpo.py  |  assay watch --steps 4 grpo.py --lr 1e-5  |  "
    "assay watch --format json --out watched.json grpo.py",
)
def watch(
    script: Annotated[Path, typer.Argument(metavar="SCRIPT", help="The Python file that trains.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[ARGUMENTS]...", help="The script's own arguments.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(metavar="N", help="Stops the script after N optimizer steps; else it runs to its end.")
    ] = None,
    how: Annotated[Format, typer.Option("--format", help="How it is printed.")] = Format.FULL,
    chosen: Annotated[
        list[str] | None, typer.Option("--select", metavar="CODES", help="Looks for these alone, by commas.")
    ] = None,
    ignored: Annotated[
        list[str] | None, typer.Option("--ignore", metavar="CODES", help="Does not look for these.")
    ] = None,
    fail_on: Annotated[
        FailOn | None, typer.Option(help="Ends with 1 on findings of this level, if the script itself ends with 0.")
    ] = None,
    all_passes: Annotated[
        bool, typer.Option("--explain-all-passes", help="Lists the healthy checks, and what each looked at.")
    ] = False,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Writes the report there, not to stderr.")] = None,
) -> None:
    """Runs a training script unchanged, watches its first updates, and proves what is wrong with the line to change."""
    from assay.doctor.report.select import UnknownCode
    from assay.watch import command

    try:
        code = command.run(
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
    except (UnknownCode, command.WatchError) as error:
        fail(str(error), 2)
    raise typer.Exit(code)
