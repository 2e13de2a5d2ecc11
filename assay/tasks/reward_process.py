"""A reward function from a user's file, run in a process of its own with a time limit for each call.

    score(prompt: str, completion: str, answer: str) -> float | dict[str, float]

The process speaks JSON lines; the function's own prints go to stderr. A call that raises, returns something that is
not a finite number, or takes too long gives a failed Score with the reason, never 0.0. A hung or dead process is
killed with its children and started anew. Rewards should be pure: random numbers that one draws are its own, outside of
run.seed. This is a time limit, not a sandbox: the file is the user's own code.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import json
import math
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from assay.config import ConfigError
from assay.grpo import REWARD_LIMIT
from assay.types import Prompt, Rollout, Score

START_SECONDS = 120.0  # a reward file may import a large library
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of Linux


class RewardProcess:
    """
    >>> RewardProcess("missing.py:score", timeout=1.0)
    Traceback (most recent call last):
    assay.config.ConfigError: task.reward = 'missing.py:score': there is no file missing.py
    """

    def __init__(self, spec: str, timeout: float) -> None:
        self.spec = spec
        self.timeout = timeout
        path, colon, function = spec.rpartition(":")
        if not colon or not function.isidentifier():
            raise ConfigError(f"task.reward = {spec!r} is not of the form file.py:function")
        if not Path(path).is_file():
            raise ConfigError(f"task.reward = {spec!r}: there is no file {path}")
        self._process: subprocess.Popen[bytes] | None = None
        self._number = 0  # of the request under way; the reply must carry it
        self._received = b""
        self._hung_up = False  # the process closed its end: it is dead or dying
        reason = self._start()
        if reason:
            raise ConfigError(f"task.reward = {spec!r}: {reason}")

    def score(self, prompt: Prompt, rollout: Rollout) -> Score:
        if self._process is None:
            reason = self._start()
            if reason:
                return Score.failed(reason)
        process = self._running()
        self._number += 1
        request = json.dumps([self._number, prompt.text, rollout.text, prompt.answer]) + "\n"
        try:
            assert process.stdin is not None
            process.stdin.write(request.encode())
            process.stdin.flush()
        except BrokenPipeError:
            return Score.failed(self._died())
        reply = self._receive(self.timeout)
        if reply is None:
            if self._hung_up:
                return Score.failed(self._died())
            self.close()
            return Score.failed(f"took longer than {self.timeout:g} s")
        if reply.get("number") != self._number:
            self.close()
            return Score.failed("its answers got out of step: did it fork, or write to a file it did not open?")
        if "error" in reply:
            return Score.failed(reply["error"])
        return Score.of(reply["components"])

    def close(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            for stream in (self._process.stdin, self._process.stdout):
                if stream is not None:
                    with contextlib.suppress(BrokenPipeError):
                        stream.close()
        self._process, self._received = None, b""

    def _start(self) -> str:
        """ "" once the function is loaded, else why it is not."""
        self._hung_up = False
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from assay.tasks.reward_process import serve; serve()", self.spec],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # its own process group, so that killing it kills its children
        )
        reply = self._receive(START_SECONDS)
        if reply is not None and "error" not in reply:
            return ""
        if reply is not None:
            reason = str(reply["error"])
        elif self._hung_up:
            reason = f"could not be loaded: {self._died()}"
        else:
            reason = f"did not load within {START_SECONDS:g} s"
        self.close()
        return reason

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    def _died(self) -> str:
        try:
            code = self._running().wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            return "its process closed the connection"
        finally:
            self.close()
        return f"its process died ({signal.Signals(-code).name})" if code < 0 else f"its process exited with {code}"

    def _receive(self, seconds: float) -> dict[str, Any] | None:
        """One line of JSON; None if none comes in time or the process is gone."""
        stream = self._running().stdout
        assert stream is not None
        deadline = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(stream, selectors.EVENT_READ)
            while b"\n" not in self._received:
                if not selector.select(max(deadline - time.monotonic(), 0.0)):
                    return None
                chunk = os.read(stream.fileno(), 65536)
                if not chunk:
                    self._hung_up = True
                    return None
                self._received += chunk
        line, _, self._received = self._received.partition(b"\n")
        try:
            reply = json.loads(line)
        except ValueError:
            reply = None
        return reply if isinstance(reply, dict) else {}


def checked(value: object) -> dict[str, Any]:
    """What a reward function returned, as {"components": ...} or {"error": the reason}.

    >>> checked(0.5), checked(None), checked("1")
    ({'components': {'reward': 0.5}}, {'error': 'returned None'}, {'error': "returned the text '1', not a number"})
    """
    components: Mapping[Any, Any] = value if isinstance(value, Mapping) else {"reward": value}
    if not components:
        return {"error": "returned an empty dict"}
    numbers = {}
    for name, number in components.items():
        where = f" as {name!r}" if isinstance(value, Mapping) else ""
        if number is None:
            return {"error": f"returned None{where}"}
        if isinstance(number, str):
            return {"error": f"returned the text {number[:40]!r}{where}, not a number"}
        try:
            numbers[str(name)] = float(number)  # also numpy and torch scalars
        except (TypeError, ValueError):
            return {"error": f"returned a {type(number).__name__}{where}, not a number"}
        if not math.isfinite(numbers[str(name)]):
            return {"error": f"returned {numbers[str(name)]}{where}"}
    for number in (*numbers.values(), sum(numbers.values())):
        if not abs(number) <= REWARD_LIMIT:
            return {"error": f"returned {number:g}, and a reward beyond {REWARD_LIMIT:g} cannot be normalised"}
    return {"components": numbers}


def load_function(spec: str) -> Callable[[str, str, str], object]:
    path, _, name = spec.rpartition(":")
    module_spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    if module_spec is None or module_spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(module_spec)
    sys.path.insert(0, str(Path(path).resolve().parent))
    module_spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        raise ImportError(f"{path} has no function {name!r}")
    return function  # type: ignore[no-any-return]


def serve() -> None:
    """The child: answers requests until its input ends."""
    spec = sys.argv[1]
    if sys.platform == "linux":  # a trainer that is killed cannot end a function that hangs; the kernel can
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    requests = os.fdopen(os.dup(0))
    channel = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # a function that reads its input must not eat the requests
    os.dup2(2, 1)  # what the function prints must not be taken for an answer
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the trainer, which saves and then ends this process

    process = os.getpid()

    def send(reply: dict[str, Any]) -> None:
        if os.getpid() == process:  # a child that the function forked has nothing to say here
            channel.write(json.dumps(reply) + "\n")

    try:
        function = load_function(spec)
    except BaseException as error:  # a user's file may raise anything, SystemExit included; it is reported, then over
        send({"error": f"could not be loaded: {type(error).__name__}: {error}"})
        return
    send({"components": {}})
    for line in requests:
        number, *arguments = json.loads(line)
        try:
            reply = checked(function(*arguments))
        except (Exception, SystemExit) as error:  # the boundary to user code: the reason travels as a failed Score
            reply = {"error": f"raised {type(error).__name__}: {error}"[:500]}
        if os.getpid() != process:
            os._exit(0)
        send({**reply, "number": number})
