"""The script's process: it runs as `python script.py arguments` would run it, and `ending` is called before it ends."""

from __future__ import annotations

import importlib
import importlib.machinery
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any

_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # the package
_STANDINS = os.path.join(
    _HERE, "rehearsal", "standins"
)  # what they raise is not the script's, and their frames show it


class _Script(importlib.machinery.SourceFileLoader):
    """Reads and runs the file; leaves no bytecode behind, as for any script."""

    def get_code(self, fullname: str) -> CodeType:
        code: CodeType = self.source_to_code(self.get_data(self.path), self.path)
        return code


def run_script(
    script: Path,
    arguments: Sequence[str],
    ending: Callable[[BaseException | None], None],
    package: str | None = None,
) -> int:
    """Runs it; `ending` is called once when it is over, with what it raised. Returns the exit code. A script of a
    package runs as `python -m` would run it.

    SystemExit and KeyboardInterrupt end the process as they would: by the code, by the signal.
    """
    file = os.path.abspath(script)
    module = ModuleType("__main__")
    loader = _Script("__main__", file)
    module.__dict__.update(
        __file__=file, __loader__=loader, __builtins__=__builtins__, __spec__=None, __package__=package
    )
    sys.modules["__main__"] = module
    sys.argv[:] = [str(script), *arguments]
    if package is None:
        sys.path.insert(0, os.path.dirname(os.path.realpath(script)))
    end = _Once(ending)
    _before_exit(end)
    try:
        if package:
            importlib.import_module(package)
        loader.exec_module(module)
    except SystemExit as stop:
        _flush()
        end(stop)
        raise
    except BaseException as error:
        remove_our_frames(error)
        _flush()
        sys.excepthook(type(error), error, error.__traceback__)
        end(error)
        if isinstance(error, KeyboardInterrupt):
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            _flush()
            os.kill(os.getpid(), signal.SIGINT)
        return 1
    _flush()
    end(None)
    return 0


class _Once:
    def __init__(self, ending: Callable[[BaseException | None], None]) -> None:
        self._ending: Callable[[BaseException | None], None] | None = ending
        self._process = os.getpid()

    def __call__(self, error: BaseException | None) -> None:
        ending, self._ending = self._ending, None
        if ending is not None and os.getpid() == self._process:  # a forked worker is not watched
            ending(error)


def _before_exit(end: _Once) -> None:
    """os._exit ends a process without calling anything: here `end` is called first."""
    leave = os._exit

    def _exit(status: int) -> Any:
        end(None)
        leave(status)

    os._exit = _exit


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            try:
                stream.flush()
            except OSError:  # its reader has gone; Python says so at the very end
                return


def remove_our_frames(error: BaseException) -> None:
    """Takes our own frames out of the traceback, and out of those of its causes."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        raised = waiting.pop()
        if raised is not None and id(raised) not in seen:
            seen.add(id(raised))
            raised.__traceback__ = _without_ours(raised.__traceback__)
            waiting += [raised.__cause__, raised.__context__]


def _without_ours(traceback: TracebackType | None) -> TracebackType | None:
    if traceback is None:
        return None
    rest = _without_ours(traceback.tb_next)
    file = traceback.tb_frame.f_code.co_filename
    is_ours = file.startswith(_HERE + os.sep) and not file.startswith(_STANDINS)
    if is_ours or (file.startswith("<frozen importlib") and rest is not None):
        return rest
    traceback.tb_next = rest
    return traceback
