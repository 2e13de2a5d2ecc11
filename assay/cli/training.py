"""The verbs that train, evaluate and measure."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from assay import config as configuration
from assay.cli.app import app, fail, say

if TYPE_CHECKING:
    from assay.train.watch import Watcher


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
    doctor: Annotated[
        str, typer.Option(metavar="off|warn|strict", help="Watches the run; strict stops it on a proven fatal fault.")
    ] = "warn",
) -> None:
    """Trains a policy with GRPO, offline, and leaves a run directory."""
    from assay.record import RunError
    from assay.train.failure import RunFailed

    try:
        if doctor not in ("off", "warn", "strict"):
            raise configuration.ConfigError(f"--doctor {doctor} is not one of off, warn, strict")
        if resume is not None:
            if print_config:
                raise configuration.ConfigError("--print-config prints a config to start from; leave --resume away")
            code = _resume(resume, config, out, overrides or [], doctor)
        else:
            settings = configuration.load(config, overrides or [])
            if print_config:
                typer.echo(configuration.to_toml(settings, meanings=True))
                return
            code = _start(settings, out, doctor)
    except (configuration.ConfigError, RunError) as error:
        fail(error, 2)
    except RunFailed as error:
        fail(error, 1)
    raise typer.Exit(code)


@app.command(
    "eval",
    epilog="Examples: assay eval runs/sort  |  assay eval runs/sort --samples 16 --json  |  "
    "assay eval runs/sort --set rollout.temperature=0.7  |  assay eval path/to/model --config my.toml",
)
def evaluate(
    target: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory, or with --config a model directory.")],
    prompts: Annotated[int | None, typer.Option(min=1, help="Held-out problems; by default as in the run.")] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="Sampled answers a problem, the k of pass@k.")] = None,
    checkpoint: Annotated[
        str | None, typer.Option(metavar="NAME", help="A checkpoint of the run, or final; by default the newest.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A TOML file: what to ask a model that is not a run.")
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Overrides task, reward, judge, rollout, evaluate."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Prints the row as JSON.")] = False,
) -> None:
    """Evaluates a run's policy on held-out problems: mean reward, pass@1 and pass@k. Writes nothing to the run."""
    import json
    import sys

    from assay.record import RunError
    from assay.train.evaluate_saved import ProgressLine, evaluate_saved, evaluation_table
    from assay.train.failure import RunFailed

    asked = {"evaluate.prompts": prompts, "evaluate.samples": samples}
    try:
        evaluated = evaluate_saved(
            target,
            config_file=config,
            overrides=[*(overrides or []), *(f"{name}={n}" for name, n in asked.items() if n is not None)],
            checkpoint=checkpoint,
            progress=ProgressLine(sys.stderr),
            report=say,
        )
    except (configuration.ConfigError, RunError) as error:
        fail(error, 2)
    except RunFailed as error:
        fail(error, 1)
    typer.echo(json.dumps(evaluated.row) if as_json else evaluation_table(evaluated))


@app.command(epilog="Examples: assay export runs/sort --out sorter  |  assay export runs/chat --out chat --merge")
def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="A directory that does not exist yet.")],
    merge: Annotated[bool, typer.Option("--merge", help="LoRA: full weights with the adapter added in.")] = False,
    checkpoint: Annotated[
        str | None, typer.Option(metavar="NAME", help="A checkpoint of the run; by default the newest.")
    ] = None,
) -> None:
    """Writes a run's policy as a Hugging Face directory; a LoRA run without --merge as a PEFT adapter."""
    import sys

    from assay.record import RunError
    from assay.train.evaluate_saved import ProgressLine
    from assay.train.export import export_run

    try:
        ticker = ProgressLine(sys.stderr).ticker("warm start")
        export_run(run, out, merge=merge, name=checkpoint, on_warm_step=ticker, report=say)
    except (configuration.ConfigError, RunError) as error:
        fail(error, 2)
    typer.echo(str(out))


@app.command(
    "reward-check",
    epilog="Examples: assay reward-check reward.py:score  |  assay reward-check math --task problems.jsonl  |  "
    "assay reward-check --config my.toml --completions answers.jsonl",
)
def reward_check(
    functions: Annotated[
        list[str] | None,
        typer.Argument(metavar="[REWARD]...", help="file.py:function or a built-in reward; by default the config's."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A TOML file: its reward, judge, task and size of a step.")
    ] = None,
    task: Annotated[str | None, typer.Option(metavar="NAME", help="Where the problems come from.")] = None,
    options: Annotated[
        list[str] | None, typer.Option("--option", metavar="KEY=VALUE", help="A setting of the task; repeatable.")
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Overrides one setting; repeatable.")
    ] = None,
    samples: Annotated[int, typer.Option(min=2, max=64, help="Problems drawn from the task.")] = 8,
    completions: Annotated[
        Path | None, typer.Option(metavar="FILE.jsonl", help="Your model's answers: id or prompt, completion.")
    ] = None,
    timeout: Annotated[float, typer.Option(min=0.01, help="Seconds one call may take, at most.")] = 2.0,
    as_json: Annotated[bool, typer.Option("--json", help="Prints all verdicts as JSON.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Shows the healthy checks too.")] = False,
) -> None:
    """Tests a reward before any training: failures, order, noise, memory, spread, speed. Ends with 1 on findings."""
    from assay.rewards.check import command

    asked = command.settings(functions or [], task, options or [])
    try:
        settings = configuration.load(config, [*(overrides or []), *asked])
        code = command.run(settings, samples, timeout, completions, as_json=as_json, verbose=verbose)
    except configuration.ConfigError as error:
        fail(error, 2)
    raise typer.Exit(code)


@app.command(
    epilog="Examples: assay tasks  |  assay tasks addition --set task.options.style=chat  |  "
    "assay tasks reasoning_gym/chain_sum  |  assay tasks questions.jsonl"
)
def tasks(
    name: Annotated[str | None, typer.Argument(help="A task, as task.name; without one, all are listed.")] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Overrides one setting; repeatable.")
    ] = None,
) -> None:
    """Lists the tasks, or shows the options and the first problems of one."""
    from assay.tasks import listing
    from assay.train.display import printable

    try:
        if name is None:
            lines = listing.all_tasks()
        else:
            settings = configuration.load(None, overrides or [])
            lines = listing.one_task(replace(settings, task=replace(settings.task, name=name)))
        for line in lines:
            typer.echo(printable(line))  # a file may hold anything
    except configuration.ConfigError as error:
        fail(error, 2)


def _start(settings: configuration.Config, out: Path | None, doctor: str) -> int:
    from assay.train import run

    path = out or _free_directory(settings.run.name)
    return run.start(settings, path, _watcher(doctor, path))


def _resume(run_path: Path, config: Path | None, out: Path | None, overrides: list[str], doctor: str) -> int:
    if config is not None or out is not None:
        raise configuration.ConfigError("--resume takes config and directory from the run; leave CONFIG and --out away")
    others = [override for override in overrides if not override.replace(" ", "").startswith("run.steps=")]
    if others:
        raise configuration.ConfigError(f"--set {others[0]} would change a run half-way; only run.steps may change")
    from assay.train import run

    steps = configuration.load(None, overrides).run.steps if overrides else None
    return run.resume(run_path, steps, _watcher(doctor, run_path))


def _watcher(doctor: str, path: Path) -> Watcher | None:
    from assay.doctor.live import LiveDoctor
    from assay.train.watch import DoctorStop

    return None if doctor == "off" else LiveDoctor(doctor, say, path, stop=DoctorStop)


def _free_directory(name: str) -> Path:
    """runs/<name>, or the first of runs/<name>-2, -3, ... that does not exist yet."""
    number = 1
    while (path := Path("runs") / (name if number == 1 else f"{name}-{number}")).exists():
        number += 1
    return path
