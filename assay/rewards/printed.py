"""What a worker process prints: its beginning and its end are kept, the rest is counted. Constant memory, no file."""

from __future__ import annotations

from collections.abc import Callable

from assay.machine.secrets import without_secrets

SHOWN = 4096  # characters shown of the beginning, and as many of the end
_KEPT = 2 * SHOWN  # bytes kept of each: a secret that the cut would halve is taken out whole before the cut
ECHOED = 50  # lines that are reported as they are printed, in the life of a pool
_LONGEST_LINE = 2000  # bytes


class Printed:
    """What was printed during one request."""

    def __init__(self) -> None:
        self.total = 0
        self._head = bytearray()
        self._tail = bytearray()

    def add(self, data: bytes) -> None:
        self.total += len(data)
        room = _KEPT - len(self._head)
        self._head += data[:room]
        self._tail += data[room:] if room > 0 else data
        if len(self._tail) > 2 * _KEPT:
            del self._tail[:-_KEPT]

    @property
    def text(self) -> str:
        """For a reader, without secrets; the texts of models may be in it, so that it is hostile."""
        if len(self._head) + len(self._tail) == self.total:
            whole = _decode(self._head + self._tail)
            if len(whole) <= 2 * SHOWN:
                return whole
            return f"{whole[:SHOWN]}{_gap(len(whole) - 2 * SHOWN, 'characters')}{whole[-SHOWN:]}"
        head, tail = _decode(self._head), _decode(self._tail[-_KEPT:])
        margin = _KEPT - SHOWN  # at the cut a secret may be halved
        head, tail = head[: max(len(head) - margin, 0)][:SHOWN], tail[margin:][-SHOWN:]
        return f"{head}{_gap(self.total - 2 * SHOWN, 'bytes')}{tail}"


class Echo:
    """Reports the first lines that workers print, as they come, so that a print in a reward function is seen."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self._left = ECHOED
        self._unfinished: dict[object, bytes] = {}  # a line whose end has not come yet, by worker

    def add(self, worker: object, data: bytes) -> None:
        if self._left <= 0:
            return
        *lines, rest = (self._unfinished.get(worker, b"") + data).split(b"\n")
        if len(rest) > 2 * _LONGEST_LINE:
            rest = _decode(rest).encode()  # before it is cut: half of a secret would not be recognised
        while len(rest) > 2 * _LONGEST_LINE:
            lines.append(rest[:_LONGEST_LINE])
            rest = rest[_LONGEST_LINE:]
        self._unfinished[worker] = rest
        for line in lines:
            if self._left <= 0:
                return
            self._left -= 1
            self._report(f"the reward prints: {_decode(line)[:_LONGEST_LINE]}")
            if self._left == 0:
                self._report(f"the reward has printed {ECHOED} lines; what else it prints is not shown unless it fails")


def _decode(data: bytes | bytearray) -> str:
    return without_secrets(data.decode("utf-8", "backslashreplace"))


def _gap(count: int, what: str) -> str:
    return f"\n[... {count:,} {what} left out ...]\n"
