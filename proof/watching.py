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
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from assay.machine.interpreter import python_command, python_environment
from proof.child import Ended, run_forks

# what the scripts import; a library that is not there is left to the script that wants it
LIBRARIES = (
    "numpy", "torch", "torch.distributed", "torch.nn.parallel", "torch.utils.data", "torch.distributions",
    "transformers", "transformers.generation.utils", "transformers.models.gpt2.modeling_gpt2",
    "transformers.models.llama.modeling_llama", "transformers.tokenization_utils_tokenizers", "accelerate",
    "tokenizers", "assay.programs.run.observe.observer", "assay.watch.report",
)  # fmt: skip


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


def main() -> int:
    jobs, seconds = int(sys.argv[1]), float(sys.argv[2])
    for name in LIBRARIES:
        with suppress(ImportError):
            importlib.import_module(name)
    import torch

    from assay.doctor.catalogue import catalogue

    torch.set_num_threads(1)
    catalogue()
    scripts = [line.rstrip("\n") for line in sys.stdin]
    works = [partial(_watch, Path(script)) for script in scripts]
    with tempfile.TemporaryDirectory(prefix="assay-proof-") as root:
        for ended in run_forks(works, Path(root), side_by_side=jobs, longest=seconds):
            print(json.dumps({"path": scripts[ended.number], **_result(ended, seconds)}), flush=True)
    return 0


def _result(ended: Ended, longest: float) -> dict[str, Any]:
    report = ended.folder / "report.json"
    found = json.loads(report.read_text()) if report.exists() else {"run": [], "all": [], "crashed": []}
    error = "" if report.exists() else ended.words[-600:] or f"no report, exit code {ended.code}"
    if ended.is_late:
        error = f"took more than {longest:g} seconds"
    return {"code": ended.code, "seconds": ended.seconds, "error": error, **found}


def _watch(script: Path, folder: Path) -> int:
    """In the fork: the script, as `assay watch` runs it."""
    from assay.watch.child import ScriptWatch
    from assay.watch.process import run_script

    os.chdir(script.parent)

    class Proof(ScriptWatch):
        def write(self) -> None:
            self._written = True
            report = _report(self.run, script)
            (folder / "part").write_text(json.dumps(report))
            os.replace(folder / "part", folder / "report.json")

    return run_script(script, [], Proof(script, {"steps": None}).ended)


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
