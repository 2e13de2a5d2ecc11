"""Many scripts under `assay watch`, fast: the libraries are loaded once, each script runs in a fork of that process.

    python -m proof.watching JOBS SECONDS

Paths of scripts come in on stdin, one per line; a line of JSON goes out for each when it is done: path, code (the
script's exit code), seconds, error, and the findings as [code, confidence]: `run`, of the run alone, and `all`, of
the run and the text together.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from assay.machine.interpreter import python_command, python_environment

# what the scripts import; a library that is not there is left to the script that wants it
LIBRARIES = (
    "numpy", "torch", "torch.distributed", "torch.nn.parallel", "torch.utils.data", "torch.distributions",
    "transformers", "transformers.generation.utils", "transformers.models.gpt2.modeling_gpt2",
    "transformers.models.llama.modeling_llama", "transformers.tokenization_utils_tokenizers", "accelerate",
    "tokenizers", "assay.programs.run.observe.observer", "assay.watch.report",
)  # fmt: skip
PAUSE = 0.02
_LEAVE = os._exit  # a watched script's process has another one


def watch_all(scripts: Sequence[str], *, jobs: int, seconds: float) -> Iterator[dict[str, Any]]:
    """The result of each script, in the order in which they end."""
    command = python_command("proof.watching", str(jobs), str(seconds))
    quiet = {
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "TOKENIZERS_PARALLELISM": "false",
    }
    pipe, surroundings = subprocess.PIPE, {**python_environment(), **quiet}
    with subprocess.Popen(command, text=True, env=surroundings, stdin=pipe, stdout=pipe) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write("".join(f"{script}\n" for script in scripts))
        server.stdin.close()
        for line in server.stdout:
            yield json.loads(line)


@dataclass
class _Running:
    path: str
    folder: Any
    began: float

    def result(self, code: int) -> dict[str, Any]:
        report = Path(self.folder.name) / "report.json"
        seconds = time.monotonic() - self.began
        result: dict[str, Any] = {
            "path": self.path,
            "code": code,
            "seconds": seconds,
            "error": "",
            "run": [],
            "all": [],
        }
        if report.exists():
            result |= json.loads(report.read_text())
        else:
            words = (Path(self.folder.name) / "words").read_text(errors="backslashreplace")
            result["error"] = words[-600:] or f"no report, exit code {code}"
        self.folder.cleanup()
        return result


def main() -> int:
    jobs, seconds = int(sys.argv[1]), float(sys.argv[2])
    for name in LIBRARIES:
        with suppress(ImportError):
            importlib.import_module(name)
    import torch

    from assay.doctor.catalogue import catalogue

    torch.set_num_threads(1)
    catalogue()
    waiting = [line.rstrip("\n") for line in sys.stdin]
    running: dict[int, _Running] = {}
    while waiting or running:
        while waiting and len(running) < jobs:
            path, folder = waiting.pop(0), tempfile.TemporaryDirectory(prefix="assay-proof-")
            sys.stdout.flush()
            process = os.fork()
            if process == 0:
                _run(Path(path), Path(folder.name))
            running[process] = _Running(path, folder, time.monotonic())
        for process, script in list(running.items()):
            done, status = os.waitpid(process, os.WNOHANG)
            late = not done and time.monotonic() - script.began > seconds
            if late:
                _end(process)
                os.waitpid(process, 0)
            if done or late:
                del running[process]
                result = script.result(os.waitstatus_to_exitcode(status) if done else -signal.SIGKILL)
                if late:
                    result["error"] = f"took more than {seconds:g} seconds"
                print(json.dumps(result), flush=True)
        time.sleep(PAUSE)
    return 0


def _end(process: int) -> None:
    """The script and the workers that it started."""
    with suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


def _run(script: Path, folder: Path) -> NoReturn:
    """In the fork: the script, as `assay watch` runs it."""
    from assay.watch.child import ScriptWatch
    from assay.watch.process import run_script

    os.setsid()
    os.chdir(script.parent)
    nothing, words = os.open(os.devnull, os.O_RDONLY), os.open(folder / "words", os.O_WRONLY | os.O_CREAT, 0o600)
    os.dup2(nothing, 0)
    os.dup2(words, 1)
    os.dup2(words, 2)

    class Proof(ScriptWatch):
        def write(self) -> None:
            self._written = True
            report = _report(self.run, script)
            (folder / "part").write_text(json.dumps(report))
            os.replace(folder / "part", folder / "report.json")

    code = 70
    try:
        code = run_script(script, [], Proof(script, {"steps": None}).ended)
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    finally:  # whatever it is, the fork must not go on as a second server
        if code == 70:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        _LEAVE(code)


def _report(run: Any, script: Path) -> dict[str, Any]:
    from assay.doctor.diagnosis import diagnose
    from assay.watch.report import evidence_of

    report: dict[str, Any] = {}
    for name, read in (("run", False), ("all", True)):
        diagnosis = diagnose(evidence_of(run, read=read))
        report[name] = [[word.code, word.confidence.value] for word in diagnosis.findings]
        report[f"{name}_messages"] = [word.verdict.message for word in diagnosis.findings]
        crashed = [
            f"{word.code}: {word.verdict.message}" for word in diagnosis.words if word.verdict.state == "crashed"
        ]
        report["crashed"] = crashed
    report["notes"] = list(run.notes)
    return report


if __name__ == "__main__":
    raise SystemExit(main())
