"""Limits of the system that stand in the way of worker processes, or of this one: open files, processes, memory."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path

from assay.config import ConfigError

FILES_OF_A_WORKER = 3  # pipes: requests, answers, what is printed
FILES_TO_START = 8  # open for a moment while a process is started; later the run's own files need as many

_OUT_OF_MEMORY = (
    "MemoryError",
    "Cannot allocate memory",
    "can't allocate memory",  # torch
    "could not create a primitive",  # oneDNN, and says no more
    "failed to map segment",
    "bad_alloc",
    "out of memory",
    "error return without exception set",  # Python that has no memory for the exception
)


def refuse_too_few_files(workers: int) -> None:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    needed = _open_files() + FILES_OF_A_WORKER * workers + FILES_TO_START
    if limit != resource.RLIM_INFINITY and needed > limit:
        raise ConfigError(
            f"reward.workers = {workers} needs {needed} open files, but the limit is {limit} (ulimit -n); raise the "
            "limit or lower reward.workers"
        )


def why_not_started(error: OSError | MemoryError) -> str:
    """Why a worker process could not be started, with the limit that is in the way."""
    fix = "raise the limit or lower reward.workers"
    if isinstance(error, MemoryError) or error.errno == errno.ENOMEM:
        return f"its process could not be started: there is no memory for it{memory_limit()}; lower reward.workers"
    if error.errno in (errno.EMFILE, errno.ENFILE):
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return f"its process could not be started: too many open files, the limit is {files} (ulimit -n); {fix}"
    if error.errno == errno.EAGAIN:
        processes = resource.getrlimit(resource.RLIMIT_NPROC)[0]
        number = "" if processes == resource.RLIM_INFINITY else f", the limit is {processes} (ulimit -u)"
        return f"its process could not be started: too many processes{number}; {fix}"
    return f"its process could not be started: {error.strerror or error}"


def memory_limit() -> str:
    """The limit on the memory of a worker, as the end of a sentence; "" if there is none."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return ""
    return f" (ulimit -v gives each of the reward.workers {limit / 1e6:,.0f} MB of memory; raise it)"


def out_of_memory(error: Exception) -> str:
    """What to say if a limit on the memory of this process was in the way; "" if there is none, or it was not."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY or not (isinstance(error, MemoryError) or is_out_of_memory(str(error))):
        return ""
    last_line = (str(error).strip() or type(error).__name__).splitlines()[-1]
    return f"there is not enough memory: ulimit -v allows {limit / 1e6:,.0f} MB; raise it ({last_line})"


def is_out_of_memory(printed: str) -> bool:
    """Whether a process that died said so."""
    return any(words in printed for words in _OUT_OF_MEMORY)


def _open_files() -> int:
    return len(os.listdir("/dev/fd")) - 1 if Path("/dev/fd").is_dir() else 3
