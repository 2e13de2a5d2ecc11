"""What a peer leaves to its user is tried before the runs, and it runs with what was fastest.

For transformers' generate: the dynamic or the static cache. For TRL: the per-device batch, from the whole batch down by
halves until it gets slower, without gradient checkpointing if any size fits; and the cache. Readings are handed on one
by one: a choice that breaks the process does not take the others with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from benchmarks.model import by_generate, by_trl
from benchmarks.model.device import forget_peak
from benchmarks.model.reading import Machine, PeerChoice, Reading
from benchmarks.model.workload import ROLLOUT, STEP, UPDATE, Job, Workload

MOST_HALVINGS = 4


def tune(
    contender: str,
    workload: Workload,
    measurements: Sequence[str],
    warmup: int,
    batch: int,
    caches: Sequence[str],
    machine: Machine,
    threads: int,
    keep: Callable[[Reading], None],
) -> None:
    """Every choice once, each after a warm-up; `batch` = 0 looks for the best one."""
    if contender == "generate":
        for cache in caches:
            job = Job(ROLLOUT, workload, warmup, timed=1)
            for reading in by_generate.measure([job], machine, threads, PeerChoice(cache), lambda: None):
                keep(reading)
        return
    torch.set_num_threads(threads)
    choice = PeerChoice(batch=batch)
    if not batch:
        job = Job(UPDATE, workload, warmup, timed=1)
        tried = _batches(job, machine, keep)
        assert tried, "TRL's update does not fit into memory, whatever the batch"
        choice = min(tried, key=lambda reading: reading.cost(machine)).choice or choice
    if STEP in measurements and len(caches) > 1:
        for cache in caches:
            job = Job(STEP, workload, warmup, timed=1)
            for reading in by_trl.measure_one(job, machine, replace(choice, cache=cache), lambda: None):
                keep(reading)


def _batches(job: Job, machine: Machine, keep: Callable[[Reading], None]) -> list[Reading]:
    for checkpointing in (False, True):
        tried: list[Reading] = []
        for batch in halves(job.workload.rows):
            choice = PeerChoice(batch=batch, checkpointing=checkpointing)
            reading = _unless_out_of_memory(job, machine, choice)
            forget_peak(torch.device(machine.device))
            if reading is None:
                continue
            keep(reading)
            tried.append(reading)
            if len(tried) > 1 and tried[-1].cost(machine) > tried[-2].cost(machine):
                break
        if tried:
            return tried
    return []


def halves(rows: int) -> list[int]:
    """
    >>> halves(24)
    [24, 12, 6, 3]
    """
    sizes = [rows]
    while sizes[-1] % 2 == 0 and len(sizes) <= MOST_HALVINGS:
        sizes.append(sizes[-1] // 2)
    return sizes


def _unless_out_of_memory(job: Job, machine: Machine, choice: PeerChoice) -> Reading | None:
    try:
        (reading,) = by_trl.measure_one(job, machine, choice, lambda: None)
    except torch.OutOfMemoryError:
        return None
    return reading
