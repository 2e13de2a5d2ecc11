"""The command `assay rehearse`: copies the project, runs the script there behind walls, and prints one report."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from assay.doctor.catalogue import catalogue
from assay.doctor.command import in_colour, print_report, width_of_terminal
from assay.doctor.diagnosis import diagnose
from assay.doctor.evidence import Evidence
from assay.doctor.report import Report, escape
from assay.doctor.report.select import select
from assay.machine import durable
from assay.machine.interpreter import python_command, python_environment
from assay.machine.terminal import ProgressLine
from assay.programs.read.script import read_program
from assay.rehearsal.checkpoint import Maker
from assay.rehearsal.copy import copy_project, project_of
from assay.rehearsal.entry import Entry, find_entry
from assay.rehearsal.report import in_form, notes_on, packed
from assay.watch.command import WatchError, look_at

SECONDS = 90.0
GRACE = 45.0  # seconds that the report may take when time is up
MEMORY = 12 * 2**30
_FOLDER = "assay-rehearsal-"
_ABANDONED = 86_400.0  # seconds after which nobody can be at work in such a folder
_TIME_IS_UP = signal.SIGUSR2
_MARK = "ASSAY_REHEARSAL"
# programs of the user that would act for the script, outside of its walls
_WAYS_OUT = ("SSH_AUTH_SOCK", "DBUS_SESSION_BUS_ADDRESS", "DOCKER_HOST", "DISPLAY", "WAYLAND_DISPLAY", "GPG_AGENT_INFO")
_NOTICE = "assay rehearse executes the script, in a copy of its project, without network, with stand-ins"


def run(
    script: Path,
    arguments: Sequence[str] = (),
    *,
    steps: int | None = None,
    seconds: float = SECONDS,
    how: str = "full",
    out: Path | None = None,
    fail_on: str | None = None,
    chosen: Sequence[str] = (),
    ignored: Sequence[str] = (),
    all_passes: bool = False,
) -> int:
    """1 if there is a finding at `fail_on` or above it; else 0. The report goes to stdout, or to `out`."""
    look_at(script, steps, how)
    if seconds <= 0:
        raise WatchError(f"--seconds is {seconds:g}; give a time above 0")
    select(catalogue(), chosen, ignored)  # raises UnknownCode before the script runs
    print(_NOTICE, file=sys.stderr)
    project = project_of(script)
    entry = find_entry(script.resolve(), project)
    _remove_abandoned()
    with tempfile.TemporaryDirectory(prefix=_FOLDER, ignore_cleanup_errors=True) as folder:
        temporary = Path(folder).resolve()
        copy = temporary / "work" / (project.name or "project")
        copy_project(project, copy, script, entry.file)
        if entry.call:
            with (copy / entry.file.relative_to(project)).open("a", encoding="utf-8") as end:
                end.write(entry.call)
        settings: dict[str, Any] = {
            "result": str(temporary / "report.json"),
            "progress": str(temporary / "progress.json"),
            "temporary": str(temporary),
            "copy": str(copy),
            "home": str(temporary / "home"),
            "shown": os.path.relpath(project) if not script.is_absolute() else str(project),
            "judged": str(script),
            "folder": os.getcwd(),
            "entry": str(entry.file.relative_to(project)),
            "path": [str(copy / place) for place in entry.path],
            "package": entry.package,
            "hints": entry.hints,
            "hindrance": entry.hindrance,
            "steps": steps,
            "memory": min(MEMORY, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * 3 // 4),
            "how": how,
            "fail_on": fail_on,
            "chosen": list(chosen),
            "ignored": list(ignored),
            "all_passes": all_passes,
            "colour": out is None and in_colour(sys.stdout),
            "width": width_of_terminal(),
        }
        report = _rehearse(entry, project, [*arguments], settings, seconds)
    _print(report, out)
    return int(report["code"])


def _rehearse(
    entry: Entry, project: Path, arguments: Sequence[str], settings: dict[str, Any], seconds: float
) -> dict[str, Any]:
    temporary, copy = Path(settings["temporary"]), Path(settings["copy"])
    for name in ("home", "tmp"):
        (temporary / name).mkdir()
    here = copy / entry.folder
    here.mkdir(parents=True, exist_ok=True)
    given = list(arguments) or list(entry.arguments)
    command = python_command(
        "assay.rehearsal.child", json.dumps(settings), str(copy / entry.file.relative_to(project)), *given
    )
    mark = uuid.uuid4().hex
    inherited = {name: text for name, text in python_environment().items() if name not in _WAYS_OUT}
    environment = {**inherited, **_environment(temporary), _MARK: mark}
    log = temporary / "log.txt"
    with log.open("wb") as output, Maker(temporary / "home") as maker, _ending_in_order():
        process = subprocess.Popen(
            command, cwd=here, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip
        try:
            was_killed = _wait(process, seconds, maker, Path(settings["progress"]))
        finally:
            _end_all(process, mark)
    result = Path(settings["result"])
    if result.exists():
        report: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
        return report
    return _without_run(settings, was_killed, log)


def _remove_abandoned() -> None:
    """Folders of rehearsals that were killed on another day."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_FOLDER}*"):
        with contextlib.suppress(OSError):  # of another user, or gone meanwhile
            if folder.stat().st_uid == os.getuid() and time.time() - folder.stat().st_mtime > _ABANDONED:
                shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _ending_in_order() -> Iterator[None]:
    """A signal that ends this process raises here, so that what it has started is ended, too."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _environment(temporary: Path) -> dict[str, str]:
    """A home of its own, nothing online, one thread per library, no device."""
    home = temporary / "home"
    folders = {"HOME": home, "XDG_CACHE_HOME": home / ".cache", "XDG_CONFIG_HOME": home / ".config"}
    folders |= {"XDG_DATA_HOME": home / ".local", "HF_HOME": home / ".cache/huggingface", "TMPDIR": temporary / "tmp"}
    folders |= {
        "TORCH_HOME": home / ".cache/torch",
        "TRITON_CACHE_DIR": home / ".triton",
        "MPLCONFIGDIR": home / ".mpl",
    }
    switches = {
        "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "WANDB_MODE": "disabled",
        "TOKENIZERS_PARALLELISM": "false", "MPLBACKEND": "Agg", "CUDA_VISIBLE_DEVICES": "", "TQDM_DISABLE": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1",
    }  # fmt: skip
    return {**{name: str(folder) for name, folder in folders.items()}, **switches}


def _wait(process: subprocess.Popen[bytes], seconds: float, maker: Maker, progress: Path) -> bool:
    """Whether it had to be killed: it did not answer the signal that time is up. Time in which checkpoints are made,
    once per machine, does not count. Shows how far the script has come."""
    began = time.monotonic()
    line = ProgressLine()
    try:
        while (passed := time.monotonic() - began) < seconds + maker.seconds:
            line.show(f"rehearsing, {passed:.0f} s: {_how_far(maker, progress)}")
            try:
                process.wait(min(1.0, seconds))
                return False
            except subprocess.TimeoutExpired:
                continue
    finally:
        line.clear()
    process.send_signal(_TIME_IS_UP)
    try:
        process.wait(GRACE)
        return False
    except subprocess.TimeoutExpired:
        return True


def _how_far(maker: Maker, progress: Path) -> str:
    if maker.is_busy:
        return "a small model is trained in place of the real one, once"
    try:
        reached = list(json.loads(progress.read_text(encoding="utf-8"))["seconds"])
    except (OSError, ValueError, KeyError):  # not there yet, or half written
        reached = []
    return reached[-1] if reached else "starting"


def _end_all(process: subprocess.Popen[bytes], mark: str) -> None:
    """Ends the process, its group, and whatever it has started in other groups: these carry its mark."""
    for _ in range(10):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        others = _marked(mark)
        for number in others:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(number, signal.SIGKILL)
        if process.poll() is not None and not others:
            return
        time.sleep(0.05)
    process.wait()


def _marked(mark: str) -> list[int]:
    found = []
    wanted = f"{_MARK}={mark}".encode()
    for place in Path("/proc").glob("[0-9]*/environ"):
        try:
            if wanted in place.read_bytes():
                found.append(int(place.parent.name))
        except OSError:  # it has ended, or is somebody else's
            continue
    return found


def _without_run(settings: Mapping[str, Any], was_killed: bool, log: Path) -> dict[str, Any]:
    """The process left no report: what was read, and how far it got."""
    progress = Path(settings["progress"])
    known = json.loads(progress.read_text(encoding="utf-8")) if progress.exists() else {}
    last = [line for line in _end_of(log).splitlines() if line.strip()][-1:]
    why = f"it did not end when {_TIME_IS_UP.name} said that time is up" if was_killed else "its process ended"
    obstacle = {"what": f"{why} before a report: {escape(last[0])[:200] if last else 'without a word'}"}
    rehearsal = {
        "entry": settings["entry"], "ended": "killed", "walls": [], "seconds": {}, "steps": 0,
        "steps_before_sampling": 0, "arguments": [], "replaced": [], **known,
    }  # fmt: skip
    rehearsal |= {"ended": "killed", "obstacles": [*known.get("obstacles", ()), {**obstacle, "file": "", "line": 0}]}
    program = read_program(Path(settings["judged"]))
    evidence = Evidence(programs=(program,), notes=tuple(notes_on(rehearsal)))
    diagnosis = diagnose(evidence, select(catalogue(), settings["chosen"], settings["ignored"]))
    result = Report.of(settings["judged"], evidence, diagnosis)
    result = replace(result, rehearsal=rehearsal)
    return packed(result, in_form(result, settings), settings)


def _end_of(log: Path) -> str:
    """A script may print gigabytes."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 100_000))
        return file.read().decode(errors="replace")


def _print(report: Mapping[str, Any], out: Path | None) -> None:
    if out is None:
        print_report(report["text"], sys.stdout)
        return
    try:
        durable.replace_file(out, f"{report['text']}\n".encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise WatchError(f"{out} could not be written: {durable.reason(error)}") from error
    print(f"{escape(str(out))}: {report['counts']}", file=sys.stderr)
