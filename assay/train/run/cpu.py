"""What a run fixes before it starts: CPU threads and deterministic kernels; and whether other programs use the CPU."""

from __future__ import annotations

import os
from dataclasses import replace

import torch
from transformers.utils import logging as transformers_logging

from assay.config import Config
from assay.policy.load import resolve_auto

STARVED = 3.0  # wall seconds for each second of CPU, above which something else is using the cores
NOTICEABLE = 5.0  # seconds of a step; shorter waits are not reported


def settled(config: Config) -> Config:
    """The config with all that depends on the machine filled in, so that a resumed run uses the same values."""
    config = resolve_auto(config)
    threads = config.run.threads
    if not threads:
        threads = 1 if config.model.path == "embedded" else free_threads()
    return replace(config, run=replace(config.run, threads=threads))


def free_threads() -> int:
    """Cores that this process may use and no other program uses: two threads on one free core are slower than one."""
    return max(1, allowed_cores() - round(os.getloadavg()[0]))


def allowed_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def set_up(config: Config) -> None:
    """Same bits on the same machine: fixed threads, deterministic kernels. Also silences the bars of transformers."""
    transformers_logging.disable_progress_bar()
    if config.run.device == "cpu" and config.model.dtype == "bfloat16":
        # oneDNN uses AMX for bfloat16 where the CPU announces it. Some virtual machines announce it but cannot run it:
        # the process dies with SIGILL. oneDNN reads this variable at the first matrix product
        os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
    # also read there: oneDNN caches kernels per shape, and packed sequences have many shapes
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64")
    torch.set_num_threads(config.run.threads)
    # CUBLAS_WORKSPACE_CONFIG is not needed: torch gives every stream a workspace of its own. If it is set,
    # every product reads it again and takes 50 to 150 us to launch instead of 14 (torch 2.11)
    torch.use_deterministic_algorithms(True)
    # no memory is read before it is written, so it need not be filled
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def starvation(wall_seconds: float, cpu_seconds: float, threads: int) -> str:
    """A sentence if the work waited for the CPU most of the time; "" if not.

    >>> starvation(60.0, 55.0, 1)
    ''
    """
    if wall_seconds < NOTICEABLE or wall_seconds < STARVED * cpu_seconds:
        return ""
    advice = "; one thread (run.threads = 1) suffers least" if threads > 1 else ""
    return (
        f"the CPU is busy with something else: {wall_seconds:.0f} s passed while this run computed for "
        f"{cpu_seconds:.0f} s{advice}"
    )
