"""Work done in child processes, because it ends with their death or with a limit that cannot be lifted again."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path

_AUDITED = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate"}


def run(command: list[str]) -> str:
    """Standard output. The child imports what this process can import."""
    environment = dict(os.environ, OMP_NUM_THREADS="1", PYTHONPATH=os.pathsep.join(sys.path))
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_child(script: str, *arguments: object) -> str:
    return run([sys.executable, "-c", script, *map(str, arguments)])


def kill_at_every_boundary(base: Path, root: Path, work: Callable[[Path], None]) -> None:
    """Does the work on copies of `base`, root/000, root/001, ..., each time killed one system call later than before.
    The last copy holds the work done to its end. To be called in a child process: it forks."""
    for boundary in count():
        target = root / f"{boundary:03d}"
        shutil.copytree(base, target)
        child = os.fork()
        if child == 0:
            _kill_at(boundary)
            work(target)
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        if status == 0:
            return
        assert os.WIFSIGNALED(status), status
        assert os.WTERMSIG(status) == signal.SIGKILL, status


def _kill_at(boundary: int) -> None:
    """From now on, this process dies right before its system call number `boundary`; a write counts as two halves."""
    reached = count()
    real_fsync, real_write = os.fsync, os.write

    def reach() -> None:
        if next(reached) == boundary:
            os.kill(os.getpid(), signal.SIGKILL)

    def fsync(descriptor: int) -> None:
        reach()
        real_fsync(descriptor)

    def write(descriptor: int, data: memoryview) -> int:
        reach()
        done = real_write(descriptor, data[: len(data) // 2])
        reach()
        return done + real_write(descriptor, data[done:])

    os.fsync, os.write = fsync, write
    sys.addaudithook(lambda event, arguments: reach() if event in _AUDITED else None)
