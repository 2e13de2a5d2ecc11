"""The command line: parsing only. Each verb calls one function; heavy imports wait until a verb needs them.

Exit codes: 0 done, 1 the run failed, 2 bad usage or input, 130/143 stopped by SIGINT/SIGTERM after saving.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NoReturn

import typer

from assay import __version__
from assay import config as configuration

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


@app.command(
    epilog="Examples: assay train  |  assay train --resume runs/sort  |  assay train --print-config > my.toml  |  "
    "assay train my.toml --set run.steps=200 --set loss.objective=gspo"
)
def train(
    config: Annotated[Path | None, typer.Argument(help="A TOML file; without one, the embedded default.")] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Overrides one setting; repeatable.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The run directory; by default a new runs/<name>.")] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Goes on with a run; --set run.steps=N alone may change.")
    ] = None,
    print_config: Annotated[bool, typer.Option("--print-config", help="Prints all settings and ends.")] = False,
) -> None:
    """Trains a policy with GRPO, offline, and leaves a run directory."""
    from assay.record import RunError
    from assay.train.failure import RunFailed

    try:
        if resume is not None:
            if print_config:
                raise configuration.ConfigError("--print-config prints a config to start from; leave --resume away")
            code = _resume(resume, config, out, overrides or [])
        else:
            settings = configuration.load(config, overrides or [])
            if print_config:
                typer.echo(configuration.to_toml(settings, meanings=True))
                return
            code = _start(settings, out)
    except (configuration.ConfigError, RunError) as error:
        _fail(str(error), 2)
    except RunFailed as error:
        _fail(str(error), 1)
    raise typer.Exit(code)


@app.command(epilog="Examples: assay bench  |  assay bench --steps 40 --repeats 4 --json bench.json")
def bench(
    steps: Annotated[int, typer.Option(min=1, help="Steps timed in each run, after a short warm-up.")] = 20,
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each contender; they take turns.")] = 3,
    json_path: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Keeps every step measured, versions and CPU.")
    ] = None,
) -> None:
    """Prints seconds by stage of the embedded default, and of the same task in TRL 1.16 where it is installed."""
    from assay.bench import bench as measure

    raise typer.Exit(measure(steps, repeats, json_path))


def _start(settings: configuration.Config, out: Path | None) -> int:
    from assay.train import run

    return run.start(settings, out or _free_directory(settings.run.name))


def _resume(run_path: Path, config: Path | None, out: Path | None, overrides: list[str]) -> int:
    if config is not None or out is not None:
        raise configuration.ConfigError("--resume takes config and directory from the run; leave CONFIG and --out away")
    others = [override for override in overrides if not override.replace(" ", "").startswith("run.steps=")]
    if others:
        raise configuration.ConfigError(f"--set {others[0]} would change a run half-way; only run.steps may change")
    from assay.train import run

    return run.resume(run_path, configuration.load(None, overrides).run.steps if overrides else None)


def _free_directory(name: str) -> Path:
    """runs/<name>, or the first of runs/<name>-2, -3, ... that does not exist yet."""
    number = 1
    while (path := Path("runs") / (name if number == 1 else f"{name}-{number}")).exists():
        number += 1
    return path


def _fail(sentence: str, code: int) -> NoReturn:
    from assay.train.display import printable

    typer.echo(f"assay: {printable(sentence)}", err=True)  # it may quote a user's code or a model's output
    raise typer.Exit(code)


if __name__ == "__main__":
    app()
