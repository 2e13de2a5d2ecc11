"""One worker process that runs reward functions, with a deadline for each request, as seen from the trainer.

They speak JSON lines over pipes (worker.py is the other end). A worker that hangs is killed with all that it has
started. This is a time limit, not a sandbox: a reward file is the user's own code. Rewards should be pure: random
numbers that one draws are its own, outside of run.seed.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from assay.machine.interpreter import python_command, python_environment
from assay.rewards.call import REPLY_LENGTH, ToScore
from assay.rewards.limits import is_out_of_memory, memory_limit, why_not_started
from assay.rewards.modules import files_of
from assay.rewards.printed import Printed

START_SECONDS = 120.0  # a reward file may import a large library
_STOP_SECONDS = 5.0  # the supervisor may take so long to kill what the worker has started
_END_SECONDS = 5.0  # between the last word of a process and its end
_MOST_READ = 1 << 20  # bytes of what is printed that are read at a time: a reward that prints for ever has a deadline


class Worker:
    """A process that is stopped, starting, idle or busy. Nothing here waits: `advance` says what has come so far.

    `setup` is the first line that the process reads: {"functions": [{"spec", "fixed_arguments"}], "timeout",
    "separator"}.
    `on_print` is called with each piece that the process prints.
    """

    def __init__(self, setup: Mapping[str, Any], on_print: Callable[[bytes], None] = lambda data: None) -> None:
        self.functions: list[dict[str, Any]] = []  # what the loaded functions are like, in the order of the setup
        self.is_starting = False
        self.deadline = 0.0
        self.printed = Printed()  # since the start, or since it was asked last
        self._setup = setup
        self._on_print = on_print
        self._seconds = 0.0
        self._process: subprocess.Popen[bytes] | None = None
        self._not_started = ""  # why there is no process, although it was started
        self._is_printing = False  # False too once it has closed its standard output and error
        self._number = 0  # of the request under way; the reply must carry it
        self._outgoing = memoryview(b"")  # cut without a copy: a request may be many megabytes
        self._received = bytearray()
        self._longest_reply = REPLY_LENGTH

    @property
    def is_running(self) -> bool:
        """False too for a process that something ended while it was idle."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        self.stop()
        self.is_starting = True
        self.printed = Printed()
        specs = [wanted["spec"] for wanted in self._setup["functions"]]
        try:
            self._process = subprocess.Popen(
                python_command("assay.rewards.worker", *files_of(specs)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                env=python_environment(),
                start_new_session=True,  # a Ctrl-C is for the trainer
            )
        except (OSError, MemoryError) as error:
            self._not_started = why_not_started(error)
            self.deadline = time.monotonic()
            return
        for stream in self._streams():
            os.set_blocking(stream.fileno(), False)
        self._is_printing = True
        self._longest_reply = REPLY_LENGTH
        self._send(self._setup, START_SECONDS)

    def ask(self, function: int, samples: Sequence[ToScore], seconds: float) -> None:
        self._number += 1
        self.printed = Printed()
        self._longest_reply = REPLY_LENGTH * (2 * len(samples) + 1)
        self._send({"number": self._number, "function": function, "samples": samples}, seconds)

    def watch(self, poll: select.poll) -> None:
        if self._not_started:
            return
        stdin, stdout, stderr = self._streams()
        poll.register(stdout, select.POLLIN)
        if self._is_printing:
            poll.register(stderr, select.POLLIN)
        if self._outgoing:
            poll.register(stdin, select.POLLOUT)

    def advance(self) -> dict[str, Any] | None:
        """The answer to what was asked last, or {"error": why there will be none}; None while it may still come."""
        if self._not_started:
            reason = self._not_started
            self.stop()
            return {"error": f"could not be loaded: {reason}"}
        stdin, stdout, _ = self._streams()
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
                    self._read_printed()  # it prints before it answers
                    return self._answer()
                if len(self._received) > self._longest_reply:
                    return self._out_of_step()
            self._read_printed()
            return {"error": self._cause_of_death()}
        except BlockingIOError:
            self._read_printed()
        if time.monotonic() < self.deadline:
            return None
        words = "did not load within" if self.is_starting else "took longer than"
        self.stop()
        return {"error": f"{words} {self._seconds:g} s"}

    def stop(self) -> None:
        """Kills the process and all that it has started, if it runs."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            for stream in self._streams():
                stream.close()
        self._process, self._outgoing, self._received = None, memoryview(b""), bytearray()
        self.is_starting = self._is_printing = False
        self._not_started = ""

    def _streams(self) -> tuple[Any, Any, Any]:
        assert self._process is not None, "a stopped worker was asked something"
        return self._process.stdin, self._process.stdout, self._process.stderr

    def _send(self, message: Mapping[str, Any], seconds: float) -> None:
        self._outgoing = memoryview(json.dumps(message).encode() + b"\n")
        self._seconds = seconds
        self.deadline = time.monotonic() + seconds

    def _read_printed(self) -> None:
        stderr = self._streams()[2]
        left = _MOST_READ
        try:
            while left > 0 and self._is_printing:
                data = os.read(stderr.fileno(), 65536)
                left -= len(data)
                self.printed.add(data)
                self._on_print(data)
                self._is_printing = bool(data)
        except BlockingIOError:
            pass

    def _answer(self) -> dict[str, Any]:
        line, _, self._received = self._received.partition(b"\n")
        try:
            reply = json.loads(line)
        except (ValueError, RecursionError):
            reply = None
        if isinstance(reply, dict) and self.is_starting and "error" in reply:
            self.stop()
        elif isinstance(reply, dict) and self.is_starting and "functions" in reply:
            self.functions = reply["functions"]
            self.is_starting = False
        elif not isinstance(reply, dict) or self.is_starting or reply.get("number") != self._number:
            return self._out_of_step()
        return reply

    def _out_of_step(self) -> dict[str, Any]:
        self.stop()
        return {"error": "its answers got out of step: did it fork, or write to a file it did not open?"}

    def _cause_of_death(self) -> str:
        assert self._process is not None
        was_starting = self.is_starting
        words = "could not be loaded: its process" if was_starting else "its process"
        try:
            code = self._process.wait(timeout=_END_SECONDS)
        except subprocess.TimeoutExpired:
            return f"{words} closed the connection"
        finally:
            self.stop()
        how = f"died ({signal.Signals(-code).name})" if code < 0 else f"exited with {code}"
        # a process that dies at its start without a word had perhaps no memory for one
        is_memory = is_out_of_memory(self.printed.text) or (was_starting and not self.printed.text.strip())
        return f"{words} {how}{memory_limit() if is_memory else ''}"
