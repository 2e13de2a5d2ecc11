"""Seconds by stage of a trainer that does not measure them itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from assay.train.show.display import STAGES


class Stopwatch:
    """Seconds by stage; a stage inside another is charged to itself alone.

    >>> clock = iter([0.0, 1.0, 4.0, 9.0])
    >>> watch = Stopwatch(lambda: next(clock))
    >>> with watch.stage("loss"), watch.stage("generated"):
    ...     pass
    >>> seconds = watch.take()
    >>> seconds["loss"], seconds["generated"]
    (6.0, 3.0)
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._seconds = dict.fromkeys(STAGES, 0.0)
        self._inner = 0.0  # seconds of stages inside the one under way

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        before, self._inner = self._inner, 0.0
        began = self._clock()
        yield
        elapsed = self._clock() - began
        self._seconds[name] += elapsed - self._inner
        self._inner = before + elapsed

    def timed(self, name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        """The same callable, its seconds charged to a stage."""

        def under_the_clock(*args: Any, **settings: Any) -> Any:
            with self.stage(name):
                return work(*args, **settings)

        return under_the_clock

    def add(self, name: str, seconds: float) -> None:
        """Seconds of something that is not one call, outside of all stages."""
        self._seconds[name] += seconds

    def take(self) -> dict[str, float]:
        """The seconds since the last call."""
        taken, self._seconds = self._seconds, dict.fromkeys(STAGES, 0.0)
        return taken
