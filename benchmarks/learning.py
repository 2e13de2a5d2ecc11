"""Does our trainer learn what TRL learns? Several seeds, held-out curves, a plain verdict.

Both contenders start from the same weights and see the same prompts in the same order; what differs is the code that
samples and trains, and its random numbers. Both are evaluated by our code.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from assay import config as configuration
from assay.config import Config, ConfigError
from assay.record import describe_environment
from benchmarks.command import Parser, check_directories, exit_with, from_json, now, read_json, write_json
from benchmarks.curves import CONTENDERS, MEASURES, Comparison, Curve, compare, mean_and_error, unequal
from benchmarks.process import OnStep, chatter, cpu_model, missing_peer, run_in_turn, run_worker
from benchmarks.trl_settings import refuse_unlike

POINTS = 8  # of a curve, beside the one before training
SECTIONS_THAT_MATTER = ("model", "task", "reward", "judge", "rollout", "advantage", "loss", "optimizer", "evaluate")

PARSER = Parser(
    "learning",
    "Compares what is learned with what TRL 1.16 learns: held-out curves of both, seed by seed.",
    ("--json parity.json --plot parity.svg", "--config my.toml --seeds 3 --steps 40 --json mine.json"),
)
PARSER.number("--steps", 120, "steps of each run")
PARSER.number("--seeds", 5, "runs of each contender")
PARSER.file("--config", "FILE.toml", "what to train; by default the embedded model")
PARSER.file("--json", "FILE", "keeps every curve; the same command goes on from what it holds")
PARSER.file("--plot", "FILE.svg", "draws the curves")

Curves = dict[int, dict[str, Curve]]  # by seed and contender


def learning(config: Config, seeds: int, steps: int, json_path: Path | None, plot_path: Path | None) -> int:
    """Trains `seeds` runs of each contender, those that the JSON file does not hold yet. Returns the exit code."""
    errors, console = chatter(), Console()
    if missing := missing_peer():
        raise ConfigError(f"benchmarks.learning needs the peer: {missing}")
    check_directories(json_path, plot_path)
    refuse_unlike(config)  # also before torch is imported, which takes long
    config = prepared(config, steps)
    curves = read_curves(json_path, config)
    wanted = [config.run.seed + number for number in range(seeds)]
    # every second seed starts with the other contender
    order = [
        (seed, name)
        for number, seed in enumerate(wanted)
        for name in (CONTENDERS if number % 2 == 0 else CONTENDERS[::-1])
        if name not in curves.get(seed, {})
    ]
    titles = [f"{name} with seed {seed}" for seed, name in order]

    def run(number: int, directory: Path, on_step: OnStep) -> Curve | None:
        seed, name = order[number]
        curve = _run(name, replace(config, run=replace(config.run, seed=seed)), directory, on_step)
        if curve is not None:
            curves.setdefault(seed, {})[name] = curve
            if json_path is not None:
                write_curves(json_path, config, curves)
        return curve

    if run_in_turn(errors, titles, steps, run) is None:
        return 1
    ours, peer = ([curves[seed][name] for seed in wanted] for name in CONTENDERS)
    comparisons = compare(ours, peer)
    alike = unequal(ours, peer, wanted)
    _print(console, config, wanted, comparisons)
    for sentence in alike:
        console.print(Text(f"not comparable: {sentence}", "bold yellow"), soft_wrap=True)
    if plot_path is not None:
        from benchmarks.curves_plot import draw

        draw(plot_path, title(config, wanted), ours, peer)
    return 1 if alike else 0


def prepared(config: Config, steps: int) -> Config:
    """What both contenders are given: everything that the machine decides is decided, once for all seeds."""
    from assay.policy.load import resolve_auto
    from assay.train.run.cpu import allowed_cores

    threads = config.run.threads or (1 if config.model.path == "embedded" else allowed_cores())
    config = resolve_auto(config)
    refuse_unlike(config)
    return replace(
        config,
        run=replace(config.run, steps=steps, threads=threads),
        evaluate=replace(config.evaluate, every=-(-steps // POINTS)),
        # nobody goes on with these runs
        checkpoint=replace(config.checkpoint, every=steps * config.updates_a_step + 1, final=False),
    )


def title(config: Config, seeds: Sequence[int]) -> str:
    return (
        f"{config.task.name}, {config.model.path}: {len(seeds)} seed{'s' * (len(seeds) != 1)} x {config.run.steps} "
        f"steps of {config.rollout.prompts} x {config.rollout.group_size} rollouts"
    )


def read_curves(path: Path | None, config: Config) -> Curves:
    """What an earlier call of the same comparison has finished; another comparison is refused, not overwritten."""
    if path is None or not path.exists():
        return {}
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        earlier = document["compared"]
        curves = {
            int(seed): {name: from_json(Curve, curve) for name, curve in runs.items()}
            for seed, runs in document["seeds"].items()
        }
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"{path} is not a file of benchmarks.learning ({error!r}); choose another path") from error
    now = json.loads(json.dumps(_compared(config)))
    changed = sorted(name for name in now if earlier.get(name) != now[name])
    if changed:
        raise ConfigError(
            f"{path} holds another comparison ({', '.join(changed)} differ); choose another path, or remove it"
        )
    return curves


def write_curves(path: Path, config: Config, curves: Curves) -> None:
    """After every run: work of an hour must not be lost to a power cut."""
    both = [seed for seed in sorted(curves) if set(curves[seed]) == set(CONTENDERS)]
    comparisons = compare(*([curves[seed][name] for seed in both] for name in CONTENDERS)) if both else {}
    document = {
        "date": now(),
        "cpu": cpu_model(),
        "compared": _compared(config),
        "seeds": {
            str(seed): {name: asdict(curve) for name, curve in sorted(curves[seed].items())} for seed in sorted(curves)
        },
        "seeds_compared": both,
        "comparisons": {name: _in_numbers(comparison) for name, comparison in comparisons.items()},
    }
    write_json(path, document)


def _compared(config: Config) -> dict[str, Any]:
    """What must be equal for two curves to belong to one comparison."""
    environment = describe_environment(config.run.threads)
    mapping = configuration.to_mapping(config)
    return {
        "steps": config.run.steps,
        "device": config.run.device,
        "threads": config.run.threads,
        "packages": environment["packages"],
        "python": environment["python"],
        **{name: mapping[name] for name in SECTIONS_THAT_MATTER},
    }


def _in_numbers(comparison: Comparison) -> dict[str, Any]:
    mean, error = mean_and_error(comparison.differences)
    return {**asdict(comparison), "difference": mean, "standard_error": error, "verdict": comparison.verdict}


def _run(name: str, config: Config, directory: Path, on_step: OnStep) -> Curve | None:
    """One contender in a process of its own; None if it ended without a result."""
    (directory / "config.toml").write_text(configuration.to_toml(config, meanings=False), encoding="utf-8")
    arguments = ["benchmarks.learning_worker", name, str(directory)]
    ended_well = run_worker(arguments, directory, config.run.threads, on_step)
    refused, result = directory / "refused.txt", directory / "curve.json"
    if refused.exists():
        raise ConfigError(refused.read_text(encoding="utf-8"))
    return read_json(Curve, result) if ended_well and result.exists() else None


def _print(console: Console, config: Config, seeds: Sequence[int], comparisons: Mapping[str, Comparison]) -> None:
    packages = describe_environment(config.run.threads)["packages"]
    for name, comparison in comparisons.items():
        table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
        table.add_column(MEASURES[name][0])
        for column in ("assay", f"TRL {packages['trl']}", "assay - TRL"):
            table.add_column(column, justify="right")
        columns = (comparison.ours, comparison.peer, comparison.differences)
        for seed, ours, peer, difference in zip(seeds, *columns, strict=True):
            table.add_row(f"  seed {seed}", f"{ours:.3f}", f"{peer:.3f}", f"{difference:+.3f}")
        table.add_row("  mean", *(_with_error(column, "+" * (column is columns[2])) for column in columns))
        console.print(table)
        console.print(Text(f"  {comparison.verdict}\n", "bold"))
    console.print(
        Text(
            f"{title(config, seeds)}\ntorch {packages['torch']}, transformers {packages['transformers']}, "
            f"{cpu_model()}, threads: {config.run.threads}\n+- is the standard error over seeds; a difference below "
            "two of them is noise"
        ),
        soft_wrap=True,
    )


def _with_error(values: Sequence[float], sign: str) -> str:
    mean, error = mean_and_error(values)
    return f"{mean:{sign}.3f}" + ("" if error is None else f" +- {error:.3f}")


if __name__ == "__main__":
    asked = PARSER.parse_args()
    exit_with(lambda: learning(configuration.load(asked.config), asked.seeds, asked.steps, asked.json, asked.plot))
