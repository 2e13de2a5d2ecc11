"""One worker process that runs reward functions, with a deadline for each request.

It speaks JSON lines over pipes; what a function prints goes to stderr. The process is the leader of its own group and
is killed with its children when it hangs. This is a time limit, not a sandbox: a reward file is the user's own code.
Rewards should be pure: random numbers that one draws are its own, outside of run.seed.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from assay.rewards.call import RewardFunction, Sample, load_function, read_signature, reason_of

START_SECONDS = 120.0  # a reward file may import a large library
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of Linux


class Worker:
    """A process that is stopped, starting, idle or busy. Nothing here waits: `advance` says what has come so far.

    `setup` is the first line that the process reads: {"functions": [{"spec", "given"}], "timeout", "separator"}.
    """

    def __init__(self, setup: Mapping[str, Any]) -> None:
        self.functions: list[dict[str, Any]] = []  # what the loaded functions are like, in the order of the setup
        self.is_starting = False
        self.deadline = 0.0
        self._setup = setup
        self._seconds = 0.0
        self._process: subprocess.Popen[bytes] | None = None
        self._number = 0  # of the request under way; the reply must carry it
        self._outgoing = memoryview(b"")  # cut without a copy: a request may be many megabytes
        self._received = bytearray()

    @property
    def is_running(self) -> bool:
        """False too for a process that something ended while it was idle."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        self.stop()
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from assay.rewards.process import serve; serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,  # its own process group, so that killing it kills its children
        )
        for stream in self._streams():
            os.set_blocking(stream.fileno(), False)
        self.is_starting = True
        self._send(self._setup, START_SECONDS)

    def ask(self, function: int, samples: Sequence[Sample], seconds: float) -> None:
        self._number += 1
        self._send({"number": self._number, "function": function, "samples": samples}, seconds)

    def watch(self, selector: selectors.BaseSelector) -> None:
        stdin, stdout = self._streams()
        selector.register(stdout, selectors.EVENT_READ)
        if self._outgoing:
            selector.register(stdin, selectors.EVENT_WRITE)

    def advance(self) -> dict[str, Any] | None:
        """The answer to what was asked last, or {"error": why there will be none}; None while it may still come."""
        stdin, stdout = self._streams()
        try:
            while self._outgoing:
                self._outgoing = self._outgoing[os.write(stdin.fileno(), self._outgoing) :]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            self._outgoing = memoryview(b"")  # dead or dying; what it said before is still to be read
        try:
            while chunk := os.read(stdout.fileno(), 65536):
                self._received += chunk
                if b"\n" in chunk:
                    return self._answer()
            return {"error": self._died()}
        except BlockingIOError:
            pass
        if time.monotonic() < self.deadline:
            return None
        words = "did not load within" if self.is_starting else "took longer than"
        self.stop()
        return {"error": f"{words} {self._seconds:g} s"}

    def stop(self) -> None:
        """Kills the process and its children, if it runs."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            for stream in self._streams():
                stream.close()
        self._process, self._outgoing, self._received = None, memoryview(b""), bytearray()
        self.is_starting = False

    def _streams(self) -> tuple[Any, Any]:
        assert self._process is not None, "a stopped worker was asked something"
        return self._process.stdin, self._process.stdout

    def _send(self, message: Mapping[str, Any], seconds: float) -> None:
        self._outgoing = memoryview(json.dumps(message).encode() + b"\n")
        self._seconds = seconds
        self.deadline = time.monotonic() + seconds

    def _answer(self) -> dict[str, Any]:
        line, _, self._received = self._received.partition(b"\n")
        try:
            reply = json.loads(line)
        except ValueError:
            reply = None
        if isinstance(reply, dict) and self.is_starting and "error" in reply:
            self.stop()
        elif isinstance(reply, dict) and self.is_starting and "functions" in reply:
            self.functions = reply["functions"]
            self.is_starting = False
        elif not isinstance(reply, dict) or self.is_starting or reply.get("number") != self._number:
            self.stop()
            return {"error": "its answers got out of step: did it fork, or write to a file it did not open?"}
        return reply

    def _died(self) -> str:
        assert self._process is not None
        words = "could not be loaded: its process" if self.is_starting else "its process"
        try:
            code = self._process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            return f"{words} closed the connection"
        finally:
            self.stop()
        return f"{words} died ({signal.Signals(-code).name})" if code < 0 else f"{words} exited with {code}"


def serve() -> None:
    """The child: answers requests until its input ends."""
    if sys.platform == "linux":  # a trainer that is killed cannot end a function that hangs; the kernel can
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    requests = os.fdopen(os.dup(0), encoding="utf-8")
    channel = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)  # a function that reads its input must not eat the requests
    os.dup2(2, 1)  # what the function prints must not be taken for an answer
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the trainer, which saves and then ends this process

    def cut_off() -> None:  # a child that a function forks has nothing to say here, and must not keep the pipes open
        os.dup2(nothing, channel.fileno(), inheritable=False)
        os.dup2(nothing, requests.fileno(), inheritable=False)

    os.register_at_fork(after_in_child=cut_off)
    setup = json.loads(requests.readline())
    functions: list[RewardFunction] = []
    try:
        for wanted in setup["functions"]:
            functions.append(read_signature(load_function(wanted["spec"]), wanted["given"]))
    except BaseException as error:  # a user's file may raise anything, SystemExit included; it is reported, then over
        reason = reason_of(error).removeprefix("raised ")
        print(json.dumps({"error": f"could not be loaded: {reason}", "function": len(functions)}), file=channel)
        return
    shown = [{"batched": one.is_batched or one.is_async, "unknown": one.unknown} for one in functions]
    print(json.dumps({"functions": shown}), file=channel)
    for line in requests:
        request = json.loads(line)
        results = functions[request["function"]].results(
            request["samples"], timeout=setup["timeout"], separator=setup["separator"]
        )
        print(json.dumps({"number": request["number"], "results": results}), file=channel)
