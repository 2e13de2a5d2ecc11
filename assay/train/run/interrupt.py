"""SIGTERM and SIGINT: the first asks the run to save and leave at its next safe place, a later one leaves now.

One wish may arrive several times: `timeout` signals its child and then the whole group, a terminal every process of
the foreground, a wrapper passes on what its child got as well. Repeats right behind the first are the same wish.
"""

from __future__ import annotations

import os
import signal
import time
from types import FrameType, TracebackType
from typing import Any, Self

ONE_WISH = 1.0  # seconds, from the first signal on


class Interrupted(Exception):
    """A signal asked the run to stop. Its exit code is 128 + the signal: 143 for SIGTERM, 130 for SIGINT."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal.Signals(signal_number).name)
        self.exit_code = 128 + signal_number


class Interrupt:
    """While entered, owns both signals; `check` raises Interrupted once one has come. Handlers are put back."""

    def __init__(self) -> None:
        self.received = 0
        self._heard = 0.0  # when
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def check(self) -> None:
        if self.received:
            raise Interrupted(self.received)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if not self.received:
            self.received, self._heard = number, now
        elif now - self._heard >= ONE_WISH:
            os._exit(128 + number)
