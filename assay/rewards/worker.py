"""The processes that run reward functions, as seen from inside.

    trainer --> supervisor --> worker --> whatever a reward function starts

The worker answers requests until its input ends: JSON lines on what were its standard input and output. Whatever it or
its children print goes to standard error, which the trainer reads. The supervisor waits for the worker's end, or for
the trainer's, and then kills whatever the worker has started: on Linux also what has a session of its own and what has
lost its parent, elsewhere the worker's process group. It ends as the worker did.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any, NoReturn, TextIO

from assay.rewards.call import LoadedReward, read_signature
from assay.rewards.failures import describe, place_of, reason_of
from assay.rewards.limits import why_not_started
from assay.rewards.modules import RewardFinder, load_functions

_LINUX = sys.platform == "linux"
_SET_PDEATHSIG, _SET_CHILD_SUBREAPER = 1, 36  # of prctl
_LONGEST_CLEANUP = 3.0  # seconds; what cannot be killed by then hangs in the kernel or is another user's, and stays
_WAITED_FOR = {signal.SIGTERM, signal.SIGCHLD}


def main() -> None:
    """Forks: this process becomes the supervisor, its child the worker."""
    _on_death_of_parent(signal.SIGTERM)
    if _LINUX:
        ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)  # a signal that is ignored cannot be waited for
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED_FOR)
    try:
        worker = os.fork()
    except OSError as error:
        print(json.dumps({"error": why_not_started(error)}))
        return
    if worker == 0:
        os.setsid()
        _on_death_of_parent(signal.SIGKILL)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        serve()
    else:
        _supervise(worker)


def _on_death_of_parent(number: int) -> None:
    """A trainer that is killed cannot end a function that hangs; the kernel can."""
    if _LINUX:
        ctypes.CDLL(None).prctl(_SET_PDEATHSIG, number, 0, 0, 0)


# ---------------------------------------------------------------- the supervisor


def _supervise(worker: int) -> NoReturn:
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):  # the pipes are the worker's: the trainer must see when it closes them
        os.dup2(nothing, standard)
    status = None
    while status is None:
        if signal.sigwait(_WAITED_FOR) == signal.SIGTERM:
            break
        status = _reap().get(worker)
    _kill_all(worker)
    if status is None:
        os._exit(0)
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError):  # SIGKILL has no handler to put back
            signal.signal(-code, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {-code})
        os.kill(os.getpid(), -code)
    os._exit(code)


def _kill_all(worker: int) -> None:
    """Kills all that descends from this process. What loses its parent becomes a child of this process (Linux)."""
    if not Path("/proc/self/stat").exists():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(worker, signal.SIGKILL)
        return
    end = time.monotonic() + _LONGEST_CLEANUP
    while (alive := _descendants(os.getpid())) and time.monotonic() < end:
        for process in alive:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        _reap()
        time.sleep(0.001)


def _reap() -> dict[int, int]:
    """The children that have ended -> their wait statuses."""
    ended: dict[int, int] = {}
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            ended[found[0]] = found[1]
    return ended


def _descendants(ancestor: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # it has ended
                parent = int((entry / "stat").read_bytes().rpartition(b")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found = children.get(ancestor, [])
    for process in found:  # grows while it is walked
        found += children.get(process, [])
    return found


# ---------------------------------------------------------------- the worker


def serve() -> None:
    """Answers requests until the input ends."""
    requests = os.fdopen(os.dup(0), encoding="utf-8")
    channel = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)  # a function that reads its input must not eat the requests
    os.dup2(2, 1)  # what the function prints must not be taken for an answer
    for stream in (sys.stdout, sys.stderr):  # a completion may hold what no encoding knows
        stream.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the trainer, which saves and then ends this process

    def cut_off() -> None:  # a child that a function forks has nothing to say here, and must not keep the pipes open
        os.dup2(nothing, channel.fileno(), inheritable=False)
        os.dup2(nothing, requests.fileno(), inheritable=False)

    os.register_at_fork(after_in_child=cut_off)
    setup = json.loads(requests.readline())
    functions: list[LoadedReward] = []
    try:
        found = load_functions([wanted["spec"] for wanted in setup["functions"]])
        for function, wanted in zip(found, setup["functions"], strict=True):
            functions.append(read_signature(function, wanted["fixed_arguments"]))
    except BaseException as error:  # a user's file may raise anything, SystemExit included; it is reported, then over
        reason = f"could not be loaded: {reason_of(error).removeprefix('raised ')}"
        _reply(channel, {**describe(error), "error": reason, "function": len(functions)})
        return
    shown = [
        {
            "by_group": reward.is_batched or reward.is_async,
            "batched": reward.is_batched,
            "unknown": reward.unknown,
            "place": place_of(reward.function),
        }
        for reward in functions
    ]
    _reply(channel, {"functions": shown})
    for line in requests:
        request = json.loads(line)
        results = functions[request["function"]].results(
            request["samples"], timeout=setup["timeout"], separator=setup["separator"]
        )
        _reply(channel, {"number": request["number"], "results": results})


def _reply(channel: TextIO, answer: dict[str, Any]) -> None:
    """What was printed is written out first, so that the trainer has it when it gets the answer."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):  # a function may have closed it, or put anything in its place
            stream.flush()
    print(json.dumps(answer), file=channel)


if __name__ == "__main__":
    main()
elif __name__ == "__mp_main__":  # a process that a reward function started with multiprocessing
    sys.meta_path.append(RewardFinder(sys.argv[1:]))
