"""The command `assay watch`: starts the script in its own process, which shows what was found, and waits."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from assay.doctor.catalogue import catalogue
from assay.doctor.command import in_colour, print_report, width_of_terminal
from assay.doctor.report import FORMATS, escape
from assay.doctor.report.select import select
from assay.machine import durable
from assay.machine.interpreter import python_command
from assay.machine.user_error import UserError

_NOT_PYTHON = frozenset((".json", ".jsonl", ".yaml", ".yml", ".sh", ".md", ".txt", ".log", ".csv", ".safetensors"))
_BY_SIGNAL = 128  # a shell's exit code of a process that a signal ended


class WatchError(UserError, ValueError):
    """The script cannot be watched. The message is one sentence with the fix."""


def run(
    script: Path,
    arguments: Sequence[str] = (),
    *,
    steps: int | None = None,
    how: str = "full",
    out: Path | None = None,
    fail_on: str | None = None,
    chosen: Sequence[str] = (),
    ignored: Sequence[str] = (),
    all_passes: bool = False,
) -> int:
    """The script's exit code if it is not 0; else 1 if there is a finding at `fail_on` or above it; else 0.

    The report goes to stderr, or to `out`: stdout is the script's.
    """
    look_at(script, steps, how)
    if how not in ("full", "concise") and out is None:
        raise WatchError(f"--format {how} needs --out FILE: stdout belongs to the script")
    select(catalogue(), chosen, ignored)  # raises UnknownCode before the script runs
    with tempfile.TemporaryDirectory(prefix="assay-watch-") as folder:
        result = Path(folder) / "report.json"
        settings = {
            "result": str(result),
            "out": None if out is None else str(out.absolute()),
            "shown_out": None if out is None else escape(str(out)),
            "steps": steps,
            "how": how,
            "fail_on": fail_on,
            "chosen": list(chosen),
            "ignored": list(ignored),
            "all_passes": all_passes,
            "colour": out is None and in_colour(sys.stderr),
            "width": width_of_terminal(),
        }
        code = _wait(python_command("assay.watch.child", json.dumps(settings), str(script), *arguments))
        report: dict[str, Any] | None = json.loads(result.read_text(encoding="utf-8")) if result.exists() else None
    if report is None:
        print(f"assay watch: {escape(str(script))} ended before a report could be written", file=sys.stderr)
        return code
    if not report["is_shown"]:
        _print(report, out)
    return code or int(report["code"])


def look_at(script: Path, steps: int | None, how: str) -> None:
    """Raises WatchError where it cannot be run."""
    if not script.is_file():
        what = "is a directory" if script.is_dir() else "does not exist"
        raise WatchError(f"{script} {what}; give the Python file that trains")
    if script.suffix.lower() == ".ipynb":
        raise WatchError(f"{script} is a notebook, which assay doctor reads; export it as a script to watch it run")
    if script.suffix.lower() == ".toml":
        raise WatchError(f"{script} is a configuration; run `assay train {script}`, which has the doctor in it")
    if script.suffix.lower() in _NOT_PYTHON:
        raise WatchError(f"{script} is not a Python file; give the Python file that trains")
    if steps is not None and steps < 1:
        raise WatchError(f"--steps is {steps}; give 1 or more optimizer steps, or leave it out")
    if how not in FORMATS:
        raise WatchError(f"--format is {how!r}; it must be one of {', '.join(FORMATS)}")


def _wait(command: Sequence[str]) -> int:
    process = subprocess.Popen(command)

    def pass_on(number: int, frame: FrameType | None) -> None:
        if process.poll() is None:
            process.send_signal(number)

    # a terminal sends Ctrl-C to both of us
    handlers: dict[int, Any] = {
        signal.SIGINT: signal.SIG_IGN if sys.stdin is not None and sys.stdin.isatty() else pass_on
    }
    handlers |= dict.fromkeys((signal.SIGTERM, signal.SIGHUP), pass_on)
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code if code >= 0 else _BY_SIGNAL - code


def _print(report: dict[str, Any], out: Path | None) -> None:
    if out is None:
        print_report(report["text"], sys.stderr)
        return
    try:
        durable.replace_file(out, f"{report['text']}\n".encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise WatchError(f"{out} could not be written: {durable.reason(error)}") from error
    print(f"{out}: {report['counts']}", file=sys.stderr)
