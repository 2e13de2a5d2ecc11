"""How far a long file is read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from assay.machine.terminal import ProgressLine, quote

LINES = 2000  # between two looks at the clock


class FileProgress(ProgressLine):
    def __init__(self, path: Path, size: int) -> None:
        super().__init__()
        self._name, self._size = quote(path.name), max(size, 1)

    def at(self, done: int) -> None:
        self.show(f"reading {self._name}: {min(done / self._size, 1.0):.0%} of {self._size / 1e6:.0f} MB")


def lines_of(path: Path) -> Iterator[tuple[int, bytes]]:
    """(offset, line without its end) of a file that is streamed; a byte order mark is left out."""
    progress = FileProgress(path, path.stat().st_size)
    done = 0
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file):
                yield done, (line.removeprefix(b"\xef\xbb\xbf") if not number else line).rstrip(b"\r\n")
                done += len(line)
                if number % LINES == 0 or len(line) > 1e5:
                    progress.at(done)
    finally:
        progress.clear()
