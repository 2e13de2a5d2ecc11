"""Measuring beside a training run: it is timed, and whatever breaks in it never breaks the run.

Beside a trainer only FAULTS are held back; beside a script (programs/run/observe/guard.py) every Exception.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from assay.machine.faults import FAULTS
from assay.record import RunError

Answer = TypeVar("Answer")


class Guard:
    """`seconds` were spent in attempts so far; `on_fault` is called with each error."""

    def __init__(self, on_fault: Callable[[Exception], None]) -> None:
        self.seconds = 0.0
        self._on_fault = on_fault

    def attempt(self, question: Callable[[], Answer], otherwise: Answer) -> Answer:
        began = time.perf_counter()
        try:
            return question()
        except (*FAULTS, RunError) as error:
            self._on_fault(error)
            return otherwise
        finally:
            self.seconds += time.perf_counter() - began


def short_reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
