"""How far a long file is read, on stderr, once it takes more than a second."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

from assay.verdict import shown

PATIENCE = 1.0  # seconds
LINES = 2000  # between two looks at the clock


class ReadingProgress:
    """On a terminal one line that is renewed; elsewhere one line, once."""

    def __init__(self, path: Path, size: int) -> None:
        self._name, self._size = shown(path.name), max(size, 1)
        self._shown = time.monotonic()
        self._said = False

    def at(self, done: int) -> None:
        now = time.monotonic()
        if now - self._shown < PATIENCE:
            return
        self._shown = now
        text = f"reading {self._name}: {min(done / self._size, 1.0):.0%} of {self._size / 1e6:.0f} MB"
        if sys.stderr.isatty():
            sys.stderr.write(f"\r\x1b[K{text}")
        elif not self._said:
            sys.stderr.write(f"{text}\n")
        self._said = True
        sys.stderr.flush()

    def end(self) -> None:
        if self._said and sys.stderr.isatty():
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def lines_of(path: Path) -> Iterator[tuple[int, bytes]]:
    """(offset, line without its end) of a file that is streamed; a byte order mark is left out."""
    progress = ReadingProgress(path, path.stat().st_size)
    done = 0
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file):
                yield done, (line.removeprefix(b"\xef\xbb\xbf") if not number else line).rstrip(b"\r\n")
                done += len(line)
                if number % LINES == 0 or len(line) > 1e5:
                    progress.at(done)
    finally:
        progress.end()
