"""The verbs that train, evaluate and measure."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from assay import config as configuration
from assay.cli.app import AMOUNT, AS_JSON, CHECKS, OUTPUT, PREPARE, SET, SETTINGS, TRAIN, TRUST, say, verb

if TYPE_CHECKING:
    from assay.train.watch import Watcher


@verb("train", TRAIN)
def train(
    config: Annotated[
        Path | None, typer.Argument(metavar="CONFIG", help="A TOML file; without one, the embedded default.")
    ] = None,
    overrides: Annotated[list[str] | None, SET] = None,
    print_config: Annotated[
        bool,
        typer.Option(
            "--print-config", help="Prints all settings with their meaning and exits.", rich_help_panel=SETTINGS
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The run directory; by default a new runs/NAME.", rich_help_panel=OUTPUT),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="Resumes a run; --set run.steps=N makes it longer.", rich_help_panel=OUTPUT),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--change",
            metavar="SECTION.KEY=VALUE",
            help="With --resume: changes a setting and records the change.",
            rich_help_panel=SETTINGS,
        ),
    ] = None,
    doctor: Annotated[
        str,
        typer.Option(
            metavar="off|warn|strict",
            help="Checks the run while it trains; strict stops it on a proven fatal finding.",
            rich_help_panel=CHECKS,
        ),
    ] = "warn",
    trust: Annotated[bool, TRUST] = False,
) -> None:
    """Trains a policy with GRPO and writes a run directory."""
    if doctor not in ("off", "warn", "strict"):
        raise configuration.ConfigError(f"--doctor {doctor} is not one of off, warn, strict")
    if resume is not None:
        if print_config:
            raise configuration.ConfigError("--print-config prints a config for a new run; leave out --resume")
        code = _resume(resume, config, out, overrides or [], changes or [], doctor, trust=trust)
    else:
        if trust:
            raise configuration.ConfigError("--trust is only for --resume; a config that you name is trusted")
        if changes:
            raise configuration.ConfigError("--change is only for --resume; use --set for a new run")
        if print_config:
            typer.echo(configuration.template(config, overrides or []))
            return
        code = _start(configuration.load(config, overrides or []), out, doctor)
    raise typer.Exit(code)


@verb("eval", TRAIN)
def evaluate(
    target: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory, or with --config a model directory.")],
    prompts: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Held-out problems; by default as in the run.", rich_help_panel=AMOUNT),
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Sampled answers per problem, the k of pass@k.", rich_help_panel=AMOUNT),
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="A checkpoint of the run, final or best; by default the newest.",
            rich_help_panel=SETTINGS,
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A TOML file with task and reward, for a model that is not a run.",
            rich_help_panel=SETTINGS,
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="SECTION.KEY=VALUE",
            help="Overrides task, reward, judge, rollout, evaluate.",
            rich_help_panel=SETTINGS,
        ),
    ] = None,
    as_json: Annotated[bool, AS_JSON] = False,
    trust: Annotated[bool, TRUST] = False,
) -> None:
    """Evaluates a run's policy on held-out problems.

    Reports mean reward, pass@1 and pass@k. Writes nothing to the run.
    """
    import json

    from assay.record import RunDirectory

    counts = {"evaluate.prompts": prompts, "evaluate.samples": samples}
    if config is not None and not (target / "run.json").exists():
        configuration.load(config, overrides or [])
    elif not (target / "config.json").exists():
        RunDirectory.open(target)
    say("importing torch and transformers ...")
    from assay.machine.terminal import ProgressLine
    from assay.train.evaluate.eval_command import evaluate_saved, evaluation_table

    evaluated = evaluate_saved(
        target,
        config_file=config,
        overrides=[*(overrides or []), *(f"{name}={n}" for name, n in counts.items() if n is not None)],
        checkpoint=checkpoint,
        progress=ProgressLine(),
        report=say,
        trust=trust,
    )
    typer.echo(json.dumps(evaluated.row) if as_json else evaluation_table(evaluated))


@verb("show", TRAIN)
def show(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")],
    step: Annotated[int | None, typer.Option(min=1, help="The training step; by default the newest.")] = None,
    prompt: Annotated[str | None, typer.Option(metavar="ID", help="Shows only this prompt, in full.")] = None,
    best: Annotated[bool, typer.Option("--best", help="Prompts with the highest mean reward first.")] = False,
    worst: Annotated[bool, typer.Option("--worst", help="Prompts with the lowest mean reward first.")] = False,
    spread: Annotated[
        bool, typer.Option("--spread", help="Prompts whose rewards differ most first; the default.")
    ] = False,
    count: Annotated[int, typer.Option("--n", metavar="N", min=1, help="How many prompts.")] = 3,
) -> None:
    """Prints completions of a run with their rewards."""
    from assay.train.show.show_command import show_lines

    orders = [name for name, flag in {"best": best, "worst": worst, "spread": spread}.items() if flag]
    if len(orders) > 1:
        raise configuration.ConfigError(f"--{orders[0]} and --{orders[1]} cannot be combined; choose one")
    order = orders[0] if orders else "spread"
    for line in show_lines(run, step=step, prompt=prompt, order=order, count=count):
        typer.echo(line)


@verb("export", TRAIN)
def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="A directory that does not exist yet.")],
    merge: Annotated[bool, typer.Option("--merge", help="LoRA: merges the adapter into full weights.")] = False,
    checkpoint: Annotated[
        str | None, typer.Option(metavar="NAME", help="A checkpoint, final or best; by default the newest checkpoint.")
    ] = None,
    trust: Annotated[bool, TRUST] = False,
) -> None:
    """Writes a run's policy as a Hugging Face directory.

    A LoRA run without --merge becomes a PEFT adapter.
    """
    from assay.record import RunDirectory
    from assay.train.run.refusals import refuse_existing

    refuse_existing(out)
    RunDirectory.open(run)
    say("importing torch and transformers ...")
    from assay.machine.terminal import ProgressLine
    from assay.train.evaluate.export import export_run

    ticker = ProgressLine().ticker("warm start")
    export_run(run, out, merge=merge, name=checkpoint, on_warm_step=ticker, report=say, trust=trust)
    typer.echo(str(out))


@verb("reward-check", PREPARE)
def reward_check(
    functions: Annotated[
        list[str] | None,
        typer.Argument(metavar="REWARD", help="file.py:function or a built-in reward; by default the config's."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="A TOML file: its reward, judge, task and size of a step.", rich_help_panel=SETTINGS
        ),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Where the problems come from.", rich_help_panel=SETTINGS),
    ] = None,
    options: Annotated[
        list[str] | None,
        typer.Option(
            "--option", metavar="KEY=VALUE", help="A setting of the task; repeatable.", rich_help_panel=SETTINGS
        ),
    ] = None,
    overrides: Annotated[list[str] | None, SET] = None,
    samples: Annotated[
        int,
        typer.Option(min=2, max=64, metavar="N", help="Problems drawn from the task.", rich_help_panel=AMOUNT),
    ] = 8,
    completions: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.jsonl", help="Your model's answers: id or prompt, completion.", rich_help_panel=SETTINGS
        ),
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(min=0.01, metavar="SECONDS", help="How long one call may take.", rich_help_panel=AMOUNT),
    ] = 2.0,
    as_json: Annotated[bool, AS_JSON] = False,
    verbose: Annotated[
        bool,
        typer.Option("--verbose", help="Shows healthy checks, and what checks lacked.", rich_help_panel=OUTPUT),
    ] = False,
) -> None:
    """Tests a reward before any training.

    Checks failures, order, noise, memory, spread and speed. Ends with 1 on findings.
    """
    from assay.reward_check import command

    named = command.settings(functions or [], task, options or [])
    settings = configuration.load(config, [*(overrides or []), *named])
    code = command.run(settings, samples, timeout, completions, as_json=as_json, verbose=verbose)
    raise typer.Exit(code)


@verb("tasks", PREPARE)
def tasks(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="A task, as task.name; without one, all are listed.")
    ] = None,
    overrides: Annotated[list[str] | None, SET] = None,
) -> None:
    """Lists the tasks, or shows one with its first problems."""
    from assay.machine.terminal import printable
    from assay.tasks import listing

    if name is None:
        lines = listing.all_tasks()
    else:
        settings = configuration.load(None, overrides or [])
        lines = listing.one_task(replace(settings, task=replace(settings.task, name=name)))
    for line in lines:
        typer.echo(printable(line))  # a file may hold anything


def _start(settings: configuration.Config, out: Path | None, doctor: str) -> int:
    from assay.train.run.refusals import refuse_new_run

    path = out or _free_directory(settings.run.name)
    wanted = Path("runs") / settings.run.name
    if out is None and path != wanted:
        say(f"{wanted} exists, writing to {path}")
    refuse_new_run(settings, path)
    say("importing torch and transformers ...")
    from assay.train.run import run

    return run.start(settings, path, _watcher(doctor, path))


def _resume(
    run_path: Path,
    config: Path | None,
    out: Path | None,
    overrides: list[str],
    changes: list[str],
    doctor: str,
    *,
    trust: bool,
) -> int:
    if config is not None or out is not None:
        raise configuration.ConfigError("--resume uses the run's own config and directory; leave out CONFIG and --out")
    others = [override for override in overrides if not override.replace(" ", "").startswith("run.steps=")]
    if others:
        raise configuration.ConfigError(
            f"--set {others[0]} would change the run; use --change {others[0]}, which records the change"
        )
    if overrides:
        configuration.load(None, overrides)  # a wrong value is refused whatever the run is
    from assay.record import RunDirectory

    RunDirectory.open(run_path)
    say("importing torch and transformers ...")
    from assay.train.run import run

    return run.resume(run_path, [*overrides, *changes], _watcher(doctor, run_path), trust=trust)


def _watcher(doctor: str, path: Path) -> Watcher | None:
    from assay.doctor.live import LiveDoctor
    from assay.train.watch import DoctorStop

    def report(text: str) -> None:
        for line in text.splitlines():
            say(line)

    return None if doctor == "off" else LiveDoctor(doctor, report, path, stop=DoctorStop)


def _free_directory(name: str) -> Path:
    """runs/<name>, or the first of runs/<name>-2, -3, ... that does not exist yet."""
    number = 1
    while (path := Path("runs") / (name if number == 1 else f"{name}-{number}")).exists():
        number += 1
    return path
