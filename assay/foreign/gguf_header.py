"""The head of a GGUF file: its numbers and the shapes of its tensors. Every length is compared with the file's.

The package gguf reads past the end of a file without noticing: an array that claims 2**60 numbers is read endlessly.

    "GGUF" | version | number of tensors | number of settings | settings: name, type, value | tensors: name, shape, ...
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MOST_DIMENSIONS = 8
MOST_ENTRIES = 2**24  # of an array; the longest are as long as the vocabulary
DEEPEST = 4  # arrays of arrays
STRING, ARRAY = 8, 9
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}  # by type


class GGUFError(ValueError):
    """What is wrong with the file, without its name."""


@dataclass(frozen=True, slots=True)
class GGUFHeader:
    numbers: dict[str, int]  # llama.block_count = 30, ...
    shapes: dict[str, tuple[int, ...]]


def read_header(file: Path) -> GGUFHeader:
    """Raises GGUFError for what is not a GGUF file, and OSError."""
    size = file.stat().st_size
    if size < 24:
        raise GGUFError(f"it has {size} bytes, which is too short for a GGUF file")
    with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[:4] != MAGIC:
            raise GGUFError("it is not a GGUF file: it does not begin with 'GGUF'")
        reader = _Reader(data, 4)
        version = reader.number("I")
        if version not in VERSIONS:
            raise GGUFError(f"its GGUF version is {version}; {' and '.join(map(str, VERSIONS))} can be read")
        tensors, settings = reader.number("Q"), reader.number("Q")
        numbers: dict[str, int] = {}
        for _ in range(settings):
            name = reader.text()
            value = reader.value(reader.number("I"), name)
            if isinstance(value, int):
                numbers[name] = value
        return GGUFHeader(numbers, dict(reader.tensor() for _ in range(tensors)))


class _Reader:
    def __init__(self, data: mmap.mmap, place: int) -> None:
        self._data = data
        self._place = place

    def number(self, kind: str) -> int:
        (value,) = struct.unpack_from(f"<{kind}", self._data, self._advance(struct.calcsize(f"<{kind}"), "a number"))
        return int(value) if kind not in "fd" else 0  # whole numbers alone are of interest

    def text(self) -> str:
        length = self.number("Q")
        first = self._advance(length, "a text")
        return self._data[first : first + length].decode("utf-8", "replace")

    def value(self, kind: int, name: str, depth: int = 0) -> int | None:
        """The value if it is a whole number; else it is passed over."""
        if kind in SCALARS:
            number = self.number(SCALARS[kind])
            return None if SCALARS[kind] in "fd?" else number
        if kind == STRING:
            self.text()
        elif kind == ARRAY and depth < DEEPEST:
            entry, count = self.number("I"), self.number("Q")
            if count > MOST_ENTRIES:
                raise GGUFError(f"its setting {name[:60]!r} claims {count} entries")
            if entry in SCALARS:
                self._advance(count * struct.calcsize(f"<{SCALARS[entry]}"), f"the entries of {name[:60]!r}")
            else:
                for _ in range(count):
                    self.value(entry, name, depth + 1)
        else:
            raise GGUFError(f"its setting {name[:60]!r} has the unknown type {kind}")
        return None

    def tensor(self) -> tuple[str, tuple[int, ...]]:
        name, dimensions = self.text(), self.number("I")
        if dimensions > MOST_DIMENSIONS:
            raise GGUFError(f"its tensor {name[:60]!r} claims {dimensions} dimensions")
        shape = tuple(self.number("Q") for _ in range(dimensions))
        self.number("I")  # the type of its numbers
        self.number("Q")  # and where they are
        return name, shape

    def _advance(self, length: int, what: str) -> int:
        """The place of the next `length` bytes."""
        first = self._place
        if length > len(self._data) - first:
            raise GGUFError(f"it ends within {what}; copy it again")
        self._place += length
        return first
