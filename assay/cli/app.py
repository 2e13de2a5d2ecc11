"""The program `assay` itself, and how a command prints a sentence or fails with one.

Exit codes: 0 done, 1 the run failed or there are findings, 2 bad usage or input, 3 a check of ours crashed,
130/143 stopped by SIGINT/SIGTERM after saving.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from assay import __version__
from assay.cli.examples import epilog
from assay.machine.user_error import UserError

# groups of commands, and of options, in the help
TRAIN, PREPARE, DIAGNOSE = "Train", "Prepare", "Diagnose"
SETTINGS, AMOUNT, CHECKS, OUTPUT, EDITS = "Settings", "How much", "Checks", "Output", "Edits"


class _WithPlainFlags:
    """Shows flags (--json) without a type in the help: they take no value."""

    def get_params(self, ctx: Any) -> list[Any]:
        parameters: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for parameter in parameters:
            if getattr(parameter, "is_flag", False):
                parameter.metavar = ""
        return parameters


class _Verb(_WithPlainFlags, TyperCommand):
    pass


class _Program(_WithPlainFlags, TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except UserError as error:
            *others, last = getattr(error, "sentences", (str(error),))
            for sentence in others:
                _complain(sentence)
            fail(last, error.exit_code, getattr(error, "__notes__", ()))
        except (MemoryError, ImportError, OSError, RuntimeError) as error:  # torch's own are RuntimeErrors
            from assay.rewards.limits import out_of_memory

            sentence = out_of_memory(error)
            if not sentence:
                raise
            fail(sentence, 1)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[:1] == ["bench"]:
            fail("benchmarks are commands of the repository: python -m benchmarks.default (model, learning, doctor)", 2)
        return super().resolve_command(ctx, args)


app = typer.Typer(
    name="assay",
    cls=_Program,
    help="Trains language models with GRPO and proves, while it trains, that the training is right.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

SET = typer.Option(
    "--set", metavar="SECTION.KEY=VALUE", help="Overrides one setting; repeatable.", rich_help_panel=SETTINGS
)
SELECT = typer.Option(
    "--select",
    metavar="CODES",
    help="Runs only these checks: codes, names, families; comma-separated.",
    rich_help_panel=CHECKS,
)
IGNORE = typer.Option("--ignore", metavar="CODES", help="Skips these checks.", rich_help_panel=CHECKS)
ALL_PASSES = typer.Option(
    "--explain-all-passes",
    help="Also lists the healthy checks and what each of them read.",
    rich_help_panel=OUTPUT,
)
FORMAT = typer.Option("--format", help="Format of the report.", rich_help_panel=OUTPUT)
AS_JSON = typer.Option("--json", help="Prints the result as JSON.", rich_help_panel=OUTPUT)
TRUST = typer.Option("--trust", help="Allows code that the run's config names, even if you did not start the run.")


def verb(name: str, group: str, **settings: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Makes a function the command `assay NAME`, listed under `group`; its help ends with its examples."""
    return app.command(name, cls=_Verb, epilog=epilog(name), rich_help_panel=group, **settings)


def _print_version(show: bool) -> None:
    if show:
        typer.echo(f"assay {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Prints the version and exits.")
    ] = False,
) -> None:
    """Options that stand before the verb."""


def say(sentence: str) -> None:
    from assay.machine.terminal import printable

    typer.echo(printable(sentence), err=True)


def fail(sentence: str, code: int, notes: Iterable[str] = ()) -> NoReturn:
    """Ends the program with a sentence, and notes below it: lines that say more."""
    _complain(sentence, notes)
    raise typer.Exit(code)


def _complain(sentence: str, notes: Iterable[str] = ()) -> None:
    from assay.machine.terminal import printable

    typer.echo(f"assay: {printable(sentence)}", err=True)  # it may quote a user's code or a model's output
    for line in notes:
        typer.echo(f"  {printable(line)}", err=True)
