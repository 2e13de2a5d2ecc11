"""The verb that measures: how fast, how much memory, how much is learned."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay import config as configuration
from assay.cli.app import AMOUNT, MEASURE, OUTPUT, refuse, verb

if TYPE_CHECKING:
    from benchmarks.model.options import Options

THE_MODEL = "A real model"
LEARNING = "What is learned"


@verb("bench", MEASURE)
def bench(
    steps: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Steps of each run: 20 timed ones; 2 timed ones with --model; 120 with --learning.",
            rich_help_panel=AMOUNT,
        ),
    ] = None,
    repeats: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Speed: runs of each contender, by default 3, or 2 with --model.",
            rich_help_panel=AMOUNT,
        ),
    ] = None,
    json_path: Annotated[
        Path | None,
        typer.Option(
            "--json",
            metavar="FILE",
            help="Keeps what is measured; learning and --model go on from what it holds.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.svg", help="Draws the curves of --learning, or of --measure scaling.", rich_help_panel=OUTPUT
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="smollm2, a Hugging Face directory, a .gguf file, or a shape with random weights: 135m, 0.5b, 1.5b, "
            "or tiny, for a look at the bench itself.",
            rich_help_panel=THE_MODEL,
        ),
    ] = None,
    measure: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="Of rollout, update, step, scaling; by default the first three.",
            rich_help_panel=THE_MODEL,
        ),
    ] = None,
    contenders: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="Of assay, trl, trl-autocast, generate; by default all that can run.",
            rich_help_panel=THE_MODEL,
        ),
    ] = None,
    prompts: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="By default 8.", rich_help_panel=THE_MODEL)
    ] = None,
    group_size: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Completions a prompt, by default 8.", rich_help_panel=THE_MODEL),
    ] = None,
    prompt_tokens: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Tokens of each prompt, by default 64.", rich_help_panel=THE_MODEL),
    ] = None,
    new_tokens: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Tokens of each completion, by default 64.", rich_help_panel=THE_MODEL),
    ] = None,
    device: Annotated[
        str | None, typer.Option(metavar="auto|cpu|cuda", help="Where to run.", rich_help_panel=THE_MODEL)
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            metavar="auto|float32|bfloat16", help="Of the weights; auto as in training.", rich_help_panel=THE_MODEL
        ),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="CPU threads of each contender, by default 1.", rich_help_panel=THE_MODEL
        ),
    ] = None,
    warmup: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Iterations before the timed ones, by default 1 on a CPU and 2 on a GPU.",
            rich_help_panel=THE_MODEL,
        ),
    ] = None,
    peer_batch: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="TRL's rows a device; by default the fastest is looked for.",
            rich_help_panel=THE_MODEL,
        ),
    ] = None,
    peer_cache: Annotated[
        str | None,
        typer.Option(
            metavar="both|dynamic|static",
            help="The peers' cache; both = the faster one is looked for.",
            rich_help_panel=THE_MODEL,
        ),
    ] = None,
    scale_peers: Annotated[
        bool,
        typer.Option("--scale-peers", help="Scaling of all contenders, not ours alone.", rich_help_panel=THE_MODEL),
    ] = False,
    learning: Annotated[
        bool,
        typer.Option(
            "--learning",
            help="Compares what is learned, not how fast: held-out curves of both.",
            rich_help_panel=LEARNING,
        ),
    ] = False,
    seeds: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Learning: runs of each contender, by default 5.", rich_help_panel=LEARNING
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.toml",
            help="Learning, doctor: what to train; by default the embedded model.",
            rich_help_panel=LEARNING,
        ),
    ] = None,
    doctor: Annotated[bool, typer.Option("--doctor", help="Times what the doctor costs a run.")] = False,
) -> None:
    """Measures speed, memory and learning beside TRL 1.16.

    Times the embedded default, or with --model a real one, beside plain generate and TRL where it is installed. What
    is learned is compared with --learning.
    """
    sizes = {"prompts": prompts, "group_size": group_size, "prompt_tokens": prompt_tokens, "new_tokens": new_tokens}
    rest = {
        "measure": measure,
        "contenders": contenders,
        "device": device,
        "dtype": dtype,
        "threads": threads,
        "warmup": warmup,
        "peer_batch": peer_batch,
        "peer_cache": peer_cache,
        "scale_peers": scale_peers or None,
    }
    try:
        if model is None and (given := [name for name, value in {**sizes, **rest}.items() if value is not None]):
            option = given[0].replace("_", "-")
            raise configuration.ConfigError(f"--{option} is about a real model; name one with --model, such as 135m")
        if model is not None:
            if learning or doctor or (seeds, config) != (None, None):
                raise configuration.ConfigError(
                    "--learning, --doctor, --seeds and --config do not go with --model; leave them out"
                )
            from benchmarks.model import contest

            code = contest(_options(model, sizes, rest, steps, repeats, json_path, plot))
        elif doctor:
            if learning or (seeds, plot) != (None, None):
                raise configuration.ConfigError(
                    "--learning, --seeds and --plot do not go with --doctor; leave them out"
                )
            from benchmarks.doctor import doctor_overhead

            code = doctor_overhead(config, steps, repeats or 3, json_path)
        elif learning:
            if repeats is not None:
                raise configuration.ConfigError("--repeats is for speed; --learning repeats with --seeds")
            from benchmarks.learning import learning as compare

            code = compare(configuration.load(config), seeds or 5, steps or 120, json_path, plot)
        else:
            if (seeds, config, plot) != (None, None, None):
                raise configuration.ConfigError("--seeds, --config and --plot belong to --learning; add it")
            from benchmarks.default import bench as time_the_default

            code = time_the_default(steps or 20, repeats or 3, json_path)
    except configuration.ConfigError as error:
        refuse(error)
    raise typer.Exit(code)


def _options(
    model: str,
    sizes: dict[str, int | None],
    rest: dict[str, Any],
    steps: int | None,
    repeats: int | None,
    json_path: Path | None,
    plot: Path | None,
) -> Options:
    from benchmarks.model.options import CACHES, CONTENDERS, Options, one_of, words
    from benchmarks.model.workload import MEASUREMENTS, Workload

    defaults = {"prompts": 8, "group_size": 8, "prompt_tokens": 64, "new_tokens": 64}
    cache = one_of("--peer-cache", rest["peer_cache"] or "both", ("both", *CACHES))
    return Options(
        model=model,
        workload=Workload(**{name: sizes[name] or default for name, default in defaults.items()}),
        measurements=words("--measure", rest["measure"] or "rollout,update,step", MEASUREMENTS),
        contenders=words("--contenders", rest["contenders"], CONTENDERS) if rest["contenders"] is not None else (),
        device=one_of("--device", rest["device"] or "auto", ("auto", "cpu", "cuda")),
        dtype=one_of("--dtype", rest["dtype"] or "auto", ("auto", "float32", "bfloat16")),
        threads=rest["threads"] or 1,
        timed=steps or 2,
        repeats=repeats or 2,
        warmup=rest["warmup"] or 0,
        peer_batch=rest["peer_batch"] or 0,
        peer_caches=CACHES if cache == "both" else (cache,),
        scale_peers=rest["scale_peers"] or False,
        json_path=json_path,
        plot_path=plot,
    )
