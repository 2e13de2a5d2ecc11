"""SIGTERM and SIGINT: the first asks the run to save and leave at its next safe place, the second leaves now."""

from __future__ import annotations

import os
import signal
from types import FrameType, TracebackType
from typing import Any, Self


class Interrupted(Exception):
    """A signal asked the run to stop. Its exit code is 128 + the signal: 143 for SIGTERM, 130 for SIGINT."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal.Signals(signal_number).name)
        self.exit_code = 128 + signal_number


class Interrupt:
    """While entered, owns both signals; `check` raises Interrupted once one has come. Handlers are put back."""

    def __init__(self) -> None:
        self.received = 0
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
        if self.received:
            os._exit(128 + number)
        self.received = number
