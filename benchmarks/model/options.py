"""The options of `python -m benchmarks.model`, checked; errors name the option and the way out.

Nothing here imports torch, which takes many seconds: what can be known to be wrong without it is refused at once.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import json
import re
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from assay.config import ConfigError
from assay.machine import durable
from benchmarks.model.shapes import SHAPES
from benchmarks.model.workload import ROLLOUT, SCALING, STEP, UPDATE, Workload, points

CONTENDERS = ("assay", "trl", "trl-autocast", "generate")
CACHES = ("dynamic", "static")
NO_GPU = "--device cuda, but torch sees no GPU; choose --device cpu"
# what a contender can be asked for; TRL's rollouts are measured inside its steps
MEASURED_BY = {
    "assay": (ROLLOUT, UPDATE, STEP),
    "trl": (UPDATE, STEP),
    "trl-autocast": (UPDATE, STEP),
    "generate": (ROLLOUT,),
}


@dataclass(frozen=True, slots=True)
class Options:
    model: str
    workload: Workload
    measurements: tuple[str, ...] = (ROLLOUT, UPDATE, STEP)
    contenders: tuple[str, ...] = ()  # none = all that can run
    device: str = "auto"
    dtype: str = "auto"
    threads: int = 1
    timed: int = 2  # iterations of each measurement in each run
    repeats: int = 2
    warmup: int = 0  # iterations before the timed ones; 0 = as many as the device needs
    peer_batch: int = 0  # TRL's per-device batch; 0 = the fastest one
    peer_caches: tuple[str, ...] = CACHES
    scale_peers: bool = False
    json_path: Path | None = None
    plot_path: Path | None = None

    @property
    def longest(self) -> Workload:
        """The most tokens that any measurement puts into one sequence."""
        every = [self.workload]
        if SCALING in self.measurements:
            every += [workload for grown in points(self.workload).values() for workload in grown]
        return max(every, key=lambda workload: workload.prompt_tokens + workload.new_tokens)

    @property
    def command(self) -> str:
        """To be typed again."""
        sizes = self.workload
        words = [
            f"python -m benchmarks.model {self.model} --measure {','.join(self.measurements)}",
            f"--prompts {sizes.prompts} --group-size {sizes.group_size} --prompt-tokens {sizes.prompt_tokens} "
            f"--new-tokens {sizes.new_tokens} --device {self.device} --dtype {self.dtype} --threads {self.threads}",
            f"--steps {self.timed} --repeats {self.repeats}",
        ]
        if self.contenders:
            words.append(f"--contenders {','.join(self.contenders)}")
        if self.peer_batch:
            words.append(f"--peer-batch {self.peer_batch}")
        if self.peer_caches != CACHES:
            words.append(f"--peer-cache {self.peer_caches[0]}")
        if self.warmup:
            words.append(f"--warmup {self.warmup}")
        return " ".join([*words, *(["--scale-peers"] if self.scale_peers else [])])


def check(options: Options) -> None:
    """Refuses what cannot be measured, before anything runs."""
    if options.model not in SHAPES and not _could_be_a_model(options.model):
        raise ConfigError(
            f"{options.model} is neither a directory with a model, nor a .gguf file, nor smollm2, nor one of "
            f"{', '.join(SHAPES)}"
        )
    no_gpu = gpu_is_out_of_reach()
    if options.device == "cuda" and no_gpu:
        raise ConfigError(NO_GPU)
    on_cpu = options.device == "cpu" or (options.device == "auto" and no_gpu)
    if options.dtype == "float32" or (options.dtype == "auto" and on_cpu):
        check_precision(options.contenders, "float32")
    if (context := _context_of(options.model)) is not None:
        check_room(context, options.longest)
    if options.workload.group_size < 2 and set(options.measurements) - {ROLLOUT}:
        raise ConfigError("--group-size 1 leaves nothing to compare an answer with; GRPO needs at least 2")
    rows = options.workload.rows
    if options.peer_batch and rows % options.peer_batch:
        raise ConfigError(
            f"--peer-batch {options.peer_batch} does not divide the {rows} rows of --prompts x --group-size evenly; "
            "choose a divisor"
        )
    if options.plot_path is not None and SCALING not in options.measurements:
        raise ConfigError("--plot draws how a step grows; add scaling to --measure")
    for option, path in (("--json", options.json_path), ("--plot", options.plot_path)):
        if path is not None and not path.absolute().parent.is_dir():
            raise ConfigError(f"{option} {path}: its directory does not exist; make it, or choose another path")
        if path is not None:
            _check_writable(option, path)
    if options.contenders:
        idle = [name for name in options.contenders if not set(MEASURED_BY[name]) & set(options.measurements)]
        if idle and options.measurements != (SCALING,):
            raise ConfigError(
                f"--contenders {idle[0]} has nothing to do: of --measure {','.join(options.measurements)} it can do "
                f"none, only {', '.join(MEASURED_BY[idle[0]])}"
            )


def check_precision(contenders: Sequence[str], dtype: str) -> None:
    if "trl-autocast" in contenders and dtype != "bfloat16":
        raise ConfigError("--contenders trl-autocast is about bfloat16; add --dtype bfloat16, or leave it out")


def check_room(context: int, longest: Workload) -> None:
    tokens = longest.prompt_tokens + longest.new_tokens
    if tokens > context:
        raise ConfigError(
            f"--prompt-tokens and --new-tokens make up to {longest.prompt_tokens} + {longest.new_tokens} = {tokens} "
            f"tokens, but the model's context is {context}; lower one of them, or leave scaling out"
        )


def gpu_is_out_of_reach() -> bool:
    """True if torch was built without any GPU, or NVIDIA's driver is not here; False if only torch knows."""
    build = importlib.metadata.version("torch").partition("+")[2]
    if build == "cpu" or build.startswith("rocm") or sys.platform != "linux":
        return build == "cpu"
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return True
    return False


def words(option: str, text: str, choices: Sequence[str]) -> tuple[str, ...]:
    """A comma-separated list of the option, in the order of the choices.

    >>> words("--measure", "step, rollout", ("rollout", "update", "step"))
    ('rollout', 'step')
    """
    asked = [word.strip() for word in text.split(",") if word.strip()]
    strangers = [word for word in asked if word not in choices]
    if strangers or not asked:
        raise ConfigError(f"{option} {text} is not a comma-separated choice of {', '.join(choices)}")
    return tuple(choice for choice in choices if choice in asked)


def _could_be_a_model(name: str) -> bool:
    path = Path(name)
    if name == "smollm2" or (path.suffix == ".gguf" and path.is_file()) or (path / "config.json").is_file():
        return True
    on_the_hub = re.fullmatch(r"[\w.-]+/[\w.-]+", name) and not name.startswith(".")
    return bool(on_the_hub) and path.suffix != ".gguf" and not path.exists()


def _context_of(model: str) -> int | None:
    """How many tokens the model takes; None if that is not written in one line of a file."""
    file = Path(model) / "config.json"
    described = SHAPES[model] if model in SHAPES else json.loads(file.read_text()) if file.is_file() else {}
    context = described.get("max_position_embeddings")
    return context if isinstance(context, int) else None


def _check_writable(option: str, path: Path) -> None:
    """Where a file can be made beside it, it can be written: it is replaced as a whole."""
    try:
        with tempfile.TemporaryFile(dir=path.absolute().parent):
            pass
    except OSError as error:
        raise ConfigError(f"{option} {path} could not be written: {durable.reason(error)}") from error
