"""The device under a contender: a clock that waits for it, its memory, its bandwidth, its rate of matrix products."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch

from benchmarks.measured import peak_memory_bytes
from benchmarks.model.floors import Limits
from benchmarks.model.reading import Iteration, Memory

ROUNDS = {"cuda": 40, "cpu": 8}  # of each measurement; the first half brings the clocks up
COPIED_BYTES = {"cuda": 2**32, "cpu": 2**28}  # far beyond any cache
MATRIX = {"cuda": 8192, "cpu": 1536}  # rows and columns


class Clock:
    """Wall and CPU seconds; on a GPU they are read when everything that was asked for is done."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def wall(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def timed(self, work: Callable[[], None]) -> Iteration:
        wall, cpu = self.wall(), time.process_time()
        work()
        return Iteration(self.wall() - wall, time.process_time() - cpu)


def forget_peak(device: torch.device) -> None:
    """What was held before this call and then freed is not part of the next peak."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    with suppress(OSError):  # not every kernel lets it be done; the mark then holds what came before as well
        Path("/proc/self/clear_refs").write_text("5")  # the kernel's word for: the high-water mark begins again


def peak(device: torch.device) -> Memory:
    if device.type != "cuda":
        return Memory(peak_memory_bytes())
    return Memory(peak_memory_bytes(), torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device))


def measured_limits(device: torch.device, dtype: torch.dtype, threads: int) -> Limits:
    clock, by_process = Clock(device), device.type == "cpu" and threads == 1
    numbers = COPIED_BYTES[device.type] // dtype.itemsize
    source, target = (torch.zeros(numbers, dtype=dtype, device=device) for _ in range(2))
    copying = _median_seconds(clock, by_process, lambda: target.copy_(source))
    size = MATRIX[device.type]
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    product = torch.empty(size, size, dtype=dtype, device=device)
    multiplying = _median_seconds(clock, by_process, lambda: torch.matmul(left, right, out=product))
    return Limits(2 * COPIED_BYTES[device.type] / copying, 2 * size**3 / multiplying)


def name_of(device: torch.device, cpu_name: str) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name


def memory_of(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else -1


def _median_seconds(clock: Clock, by_process: bool, work: Callable[[], object]) -> float:
    rounds = ROUNDS[clock.device.type]
    times = [clock.timed(lambda: _drop(work())) for _ in range(rounds)]
    warm = times[rounds // 2 :]
    return statistics.median(iteration.cpu_seconds if by_process else iteration.seconds for iteration in warm)


def _drop(result: object) -> None:
    """The work was the point."""
