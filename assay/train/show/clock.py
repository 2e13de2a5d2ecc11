"""Seconds and memory of the stages of a step: shown as each ends, and kept for the record."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from assay.train.show.display import Display, describe_loss
from assay.types import Learned


def memory_bytes(statm: Path = Path("/proc/self/statm")) -> int:
    """Bytes that this process holds now; where the kernel does not report them, its peak."""
    if statm.exists():
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    import resource  # not on every platform

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


class StageClock:
    """One step at a time; a stage may end several times in a step, its seconds add up. The display numbers its steps
    from `steps_before` on."""

    def __init__(self, device: torch.device, display: Display | None, steps_before: int = 0) -> None:
        self.device = device
        self.display = display
        self.steps_before = steps_before
        self.seconds: dict[str, float] = {}
        self.cpu_seconds = 0.0  # that this process computed in the step so far, rewards left out
        self._cpu_began = time.process_time()
        self.memory: dict[str, int] = {}

    def begin(self, step: int) -> None:
        self.seconds, self.memory = {}, {}
        self.cpu_seconds, self._cpu_began = 0.0, time.process_time()
        if self.display is not None:
            self.display.begin(step - self.steps_before)

    def ticker(self, what: str, check: Callable[[], None]) -> Callable[[int, int], None]:
        return (lambda done, total: check()) if self.display is None else self.display.ticker(what, check)

    @contextmanager
    def timed(self, stage: str) -> Iterator[Callable[[str], None]]:
        """Times the block. It yields a function whose text is shown beside the seconds."""
        details: list[str] = []
        began = time.perf_counter()
        yield details.append
        self.note(stage, time.perf_counter() - began, "".join(details))

    def note(self, stage: str, seconds: float, detail: str) -> None:
        on_gpu = self.device.type == "cuda"
        self.memory[stage] = torch.cuda.memory_allocated(self.device) if on_gpu else memory_bytes()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds
        now = time.process_time()
        if stage != "scored":
            self.cpu_seconds += now - self._cpu_began
        self._cpu_began = now
        if self.display is not None:
            self.display.stage(stage, seconds, self.memory[stage], detail)

    def note_update(self, learned: Learned) -> None:
        update = learned.update
        self.note("loss", learned.loss_seconds, describe_loss(update.policy_loss, update.kl_loss, update.loss))
        self.note("stepped", learned.step_seconds, update.skipped)
