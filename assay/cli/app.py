"""The program `assay` itself, and how a verb says a sentence or fails with one.

Exit codes: 0 done, 1 the run failed or there are findings, 2 bad usage or input, 3 a check of ours crashed,
130/143 stopped by SIGINT/SIGTERM after saving.
"""

from __future__ import annotations

from typing import Annotated, NoReturn

import typer

from assay import __version__

app = typer.Typer(
    name="assay",
    help="Trains language models with GRPO and proves, while it trains, that the training is right.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"assay {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True)] = False,
) -> None:
    """Options that stand before the verb."""


def say(sentence: str) -> None:
    from assay.train.display import printable

    typer.echo(printable(sentence), err=True)


def fail(reason: str | Exception, code: int) -> NoReturn:
    """Ends the program with a sentence, and below it the notes of an exception: lines that say more."""
    from assay.train.display import printable

    typer.echo(f"assay: {printable(str(reason))}", err=True)  # it may quote a user's code or a model's output
    for line in getattr(reason, "__notes__", ()):
        typer.echo(f"  {printable(line)}", err=True)
    raise typer.Exit(code)
