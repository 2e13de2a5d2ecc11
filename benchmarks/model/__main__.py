"""Rollout, update, whole step and memory of a real model; ours, TRL 1.16 and plain generate."""

from __future__ import annotations

import argparse

from benchmarks.command import Parser, exit_with
from benchmarks.model.benchmark import run_benchmark
from benchmarks.model.options import CACHES, CONTENDERS, Options, words
from benchmarks.model.shapes import SHAPES
from benchmarks.model.workload import MEASUREMENTS, Workload

PARSER = Parser(
    "model",
    "Times rollout, update and whole step of a real model beside TRL 1.16 and transformers' generate.",
    (
        "smollm2 --measure rollout --new-tokens 64",
        "0.5b --device cuda --measure update",
        "path/to/model --measure scaling --plot growth.svg",
        "135m --json bench.json",
    ),
)
PARSER.add_argument(
    "model",
    metavar="MODEL",
    help="smollm2, a Hugging Face directory or name, a .gguf file, or a shape with random weights: "
    + ", ".join(SHAPES),
)
PARSER.add_argument(
    "--measure",
    default="rollout,update,step",
    metavar="LIST",
    help=f"of {', '.join(MEASUREMENTS)}; by default the first three",
)
PARSER.add_argument("--contenders", metavar="LIST", help=f"of {', '.join(CONTENDERS)}; by default all that can run")
PARSER.number("--prompts", 8, "prompts of a batch")
PARSER.number("--group-size", 8, "completions per prompt")
PARSER.number("--prompt-tokens", 64, "tokens of each prompt")
PARSER.number("--new-tokens", 64, "tokens of each completion")
PARSER.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"), help="where to run")
PARSER.add_argument(
    "--dtype", default="auto", choices=("auto", "float32", "bfloat16"), help="of the weights; auto as in training"
)
PARSER.number("--threads", 1, "CPU threads of each contender")
PARSER.number("--steps", 2, "timed iterations of each measurement")
PARSER.number("--repeats", 2, "runs of each contender")
PARSER.number("--warmup", None, "iterations before the timed ones; by default 1 on a CPU and 2 on a GPU")
PARSER.number("--peer-batch", None, "TRL's rows per device; by default the fastest is looked for")
PARSER.add_argument(
    "--peer-cache", default="both", choices=("both", *CACHES), help="the peers' cache; both = the faster one"
)
PARSER.add_argument("--scale-peers", action="store_true", help="scaling of all contenders, not ours alone")
PARSER.file("--json", "FILE", "keeps what is measured after every run; the same command goes on from it")
PARSER.file("--plot", "FILE.svg", "draws the scaling")


def options_of(asked: argparse.Namespace) -> Options:
    return Options(
        model=asked.model,
        workload=Workload(asked.prompts, asked.group_size, asked.prompt_tokens, asked.new_tokens),
        measurements=words("--measure", asked.measure, MEASUREMENTS),
        contenders=() if asked.contenders is None else words("--contenders", asked.contenders, CONTENDERS),
        device=asked.device,
        dtype=asked.dtype,
        threads=asked.threads,
        timed=asked.steps,
        repeats=asked.repeats,
        warmup=asked.warmup or 0,
        peer_batch=asked.peer_batch or 0,
        peer_caches=CACHES if asked.peer_cache == "both" else (asked.peer_cache,),
        scale_peers=asked.scale_peers,
        json_path=asked.json,
        plot_path=asked.plot,
    )


if __name__ == "__main__":
    asked = PARSER.parse_args()
    exit_with(lambda: run_benchmark(options_of(asked)))
