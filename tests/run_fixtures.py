"""Real `assay` commands, many a minute: one process imports everything once and forks a child for each command.

A child can be told to die, or to get a signal, at an exact place: `Trap("os:rename", 3, "KILL")` strikes right before
the third rename. It can also count how often each of several places is passed, which is how places are chosen.

    Commands (client)  -- a JSON line -->  serve (one process)  -- fork -->  assay.cli.app(arguments)
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from assay.record.verify import verify

TINY = {
    "run.steps": 3,
    "evaluate.prompts": 4,
    "model.warm_steps": 40,
    "task.options.min_digits": 2,
    "task.options.max_digits": 3,
    "rollout.prompts": 4,
    "rollout.group_size": 4,
    "rollout.max_tokens": 6,
    "optimizer.learning_rate": 1e-3,
    "optimizer.warmup": 0,
    "optimizer.minibatches": 2,
    "optimizer.microbatches": 2,
    "checkpoint.every": 2,
}


@dataclass(frozen=True)
class Trap:
    """Strikes at the `number`-th passing of `place`, a "module:attribute" that is called: right before the call, right
    after it, or, for os:write, when half of the bytes are written."""

    place: str
    number: int
    signal: str
    when: str = "before"
    pause: float = 0.0  # seconds that pass before it strikes


@dataclass(frozen=True)
class Ended:
    """What a command left behind. A code below 0 is the signal that killed it."""

    code: int
    stdout: str
    stderr: str
    passed: Mapping[str, int]  # how often each counted place was passed

    @property
    def sentences(self) -> list[str]:
        """What the command said to its user about an end that was not wanted."""
        return [line for line in self.stderr.splitlines() if line.startswith("assay: ")]


def without_progress(text: str) -> list[str]:
    """The lines of a command's output but for those that say what it is doing ("importing torch ...")."""
    return [line for line in text.splitlines() if not line.endswith(" ...")]


class Commands:
    """Runs `assay` commands in forks of one process that has imported all it needs."""

    def __init__(self, cache: Path, python: Path) -> None:
        environment = {name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "COLUMNS")}
        environment |= {
            "OMP_NUM_THREADS": "1",
            "XDG_CACHE_HOME": str(cache),
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path]),
        }
        self.environment = environment
        self._server = subprocess.Popen(
            [python, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def run(
        self,
        *arguments: str | Path,
        traps: Sequence[Trap] = (),
        count: Sequence[str] = (),
        directory: Path | None = None,
        largest_file: int | None = None,
        environment: Mapping[str, str] | None = None,
        draws: bool = False,
    ) -> Ended:
        """draws: rollouts and updates also use up numbers of the global generators, as a model of one's own may."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        request = {
            "arguments": [str(argument) for argument in arguments],
            "traps": [asdict(trap) for trap in traps],
            "count": list(count),
            "directory": None if directory is None else str(directory),
            "largest_file": largest_file,
            "environment": dict(environment or {}),
            "draws": draws,
        }
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        reply = self._server.stdout.readline()
        assert reply, "the server died"
        return Ended(**json.loads(reply))

    def close(self) -> None:
        self._server.stdin.close()  # type: ignore[union-attr]
        self._server.wait(timeout=60)
        self._server.stdout.close()  # type: ignore[union-attr]


def settings(**changes: Any) -> list[str]:
    """`--set` options of a tiny run; section__key=value changes one of them."""
    chosen = TINY | {name.replace("__", "."): value for name, value in changes.items()}
    return [part for name, value in chosen.items() for part in ("--set", f"{name}={value}")]


def contents(run: Path) -> dict[str, bytes]:
    """All that equal runs share, by name: the newest checkpoint and every record but times and events."""
    newest = max((run / "checkpoints").iterdir())
    files = [*newest.iterdir(), *(run / "rollouts").iterdir(), *(run / "dumps").iterdir()]
    files += [*(run / "evaluations").glob("*"), *(run / "final").glob("*"), *(run / "best").glob("*")]
    files += [run / name for name in ("metrics.jsonl", "evaluations.jsonl", "config.toml")]
    return {str(file.relative_to(run)): file.read_bytes() for file in files}


def rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def assert_same_bits(run: Path, straight: Path) -> None:
    """`run` ended as `straight` did, to the last bit, and nothing unfinished lies about in it."""
    got, wanted = contents(run), contents(straight)
    assert sorted(got) == sorted(wanted)
    assert [name for name in wanted if got[name] != wanted[name]] == []
    steps = [row["step"] for row in rows(straight / "metrics.jsonl")]
    assert [row["step"] for row in rows(run / "timings.jsonl")] == steps
    leftovers = [path.name for path in run.rglob("*") if path.name.startswith(".") or path.name.endswith(".replaced")]
    assert leftovers == []
    # what the doctor finds is told by time: a resumed run is examined at other updates
    names = [{path.name for path in one.iterdir()} - {"findings.jsonl"} for one in (run, straight)]
    assert names[0] == names[1]
    assert list(map(str, verify(run).problems)) == []


# ---------------------------------------------------------------- the server


def serve() -> None:
    import pyarrow.parquet  # noqa: F401
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM  # noqa: F401

    import assay.cli
    import assay.doctor.live
    import assay.train.run.run
    from assay.doctor.catalogue import catalogue

    catalogue()  # a hundred files, which every run reads
    with contextlib.suppress(ImportError):
        import pandas  # noqa: F401, pyarrow imports it where it is installed
    torch.set_num_threads(1)
    # what is built at the first call and then kept: transformers' tables, typer's parameters
    with contextlib.suppress(ImportError, AttributeError):
        importlib.import_module("transformers.conversion_mapping").get_checkpoint_conversion_mapping("llama")
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        assay.cli.app(["train", "--print-config"])
    for line in sys.stdin:
        print(json.dumps(_fork(json.loads(line))), flush=True)


def _fork(request: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as scratch:
        names = {name: Path(scratch, name) for name in ("stdout", "stderr", "passed")}
        child = os.fork()
        if child == 0:
            _become(request, names)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        passed = json.loads(names["passed"].read_text()) if names["passed"].exists() else {}
        texts = {name: names[name].read_text(errors="replace") for name in ("stdout", "stderr")}
        return {"code": code, "passed": passed, **texts}


def _become(request: dict[str, Any], names: dict[str, Path]) -> None:
    """Turns this fork into the command. Never returns."""
    os.setpgid(0, 0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(names[name], os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
    os.environ.update(request["environment"])
    if request["directory"]:
        os.chdir(request["directory"])
    passed: Counter[str] = Counter()
    for place in {*request["count"], *(trap["place"] for trap in request["traps"])}:
        _watch(place, passed, [trap for trap in request["traps"] if trap["place"] == place])
    if request["draws"]:
        for place in (
            "assay.engine.shared_weights:SharedWeightsEngine.generate",
            "assay.train.step.learner:Learner.update",
        ):
            _replace(place, _drawing)
    if request["largest_file"] is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (request["largest_file"], resource.RLIM_INFINITY))
    code = _call(request["arguments"])
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    names["passed"].write_text(json.dumps(passed))
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _call(arguments: list[str]) -> int:
    import traceback

    from assay.cli import app

    try:
        app(arguments, prog_name="assay")
    except SystemExit as end:
        return int(end.code or 0)
    except BaseException:  # as the interpreter itself would: the test must see the traceback
        traceback.print_exc()
        return 1
    return 0


def _replace(place: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    module, _, path = place.partition(":")
    *owners, name = path.split(".")
    owner = functools.reduce(getattr, owners, importlib.import_module(module))
    setattr(owner, name, wrap(getattr(owner, name)))


def _watch(place: str, passed: Counter[str], traps: list[dict[str, Any]]) -> None:
    """Replaces the function at `place` by one that counts, strikes where a trap says so, and calls it."""

    def strike(when: str) -> None:
        for trap in traps:
            if (trap["number"], trap["when"]) == (passed[place], when):
                time.sleep(trap["pause"])
                os.kill(os.getpid(), signal.Signals[f"SIG{trap['signal']}"])

    def wrap(real: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(real)
        def watched(*arguments: Any, **named: Any) -> Any:
            passed[place] += 1
            strike("before")
            if any((trap["number"], trap["when"]) == (passed[place], "half-way") for trap in traps):
                descriptor, data = arguments
                real(descriptor, data[: len(data) // 2])
                strike("half-way")
            result = real(*arguments, **named)
            strike("after")
            return result

        return watched

    _replace(place, wrap)


def _drawing(real: Callable[..., Any]) -> Callable[..., Any]:
    import numpy
    import torch

    @functools.wraps(real)
    def drawing(*arguments: Any, **named: Any) -> Any:
        random.gauss(0.0, 1.0), numpy.random.standard_normal(), torch.rand(1)
        return real(*arguments, **named)

    return drawing


@contextlib.contextmanager
def serving(cache: Path, python: Path) -> Iterator[Commands]:
    commands = Commands(cache, python)
    try:
        yield commands
    finally:
        commands.close()


if __name__ == "__main__":
    serve()
