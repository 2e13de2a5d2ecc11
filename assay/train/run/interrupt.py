"""SIGTERM and SIGINT: the first asks the run to save and stop at its next safe point, a later one ends it at once.

One request may arrive several times: `timeout` signals its child and then the whole group, a terminal signals every
process of the foreground, a wrapper forwards what its child received as well. Repeats within a second are ignored.
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
    """A context that handles both signals; `check` raises Interrupted once one has come."""

    def __init__(self) -> None:
        self.received = 0
        self._received_at = 0.0
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
            self.received, self._received_at = number, now
        elif now - self._received_at >= ONE_WISH:
            os._exit(128 + number)
