"""Event files of TensorBoard, read without it: TFRecord frames around protocol buffers, of which a few fields matter.

Frame: length (8 bytes), its checksum (4), data, its checksum (4). Event: 2 step, 3 version, 5 summary. Summary: 1
value. Value: 1 tag, 2 number, 8 tensor. Tensor: 1 type (1 float, 2 double), 4 bytes, 5 floats, 6 doubles, 8
texts.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from assay.doctor.evidence.logs.document import settings_of_arguments
from assay.doctor.evidence.logs.progress import FileProgress
from assay.doctor.evidence.logs.series import Gatherer

_HEAD, _TAIL = 12, 4
_LARGEST_EVENT = 1 << 28  # bytes of one event: a picture may be large, a length beyond is damage
_VERSION = b"brain.Event:"
_ARGUMENTS = "args/text_summary"  # where the Hugging Face trainers put their arguments
_VARINT, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5  # wire types

Field = tuple[int, int, int | bytes]


def is_tfevents(head: bytes) -> bool:
    """Whether these first bytes are the frame that every event file begins with."""
    return len(head) >= _HEAD and _masked_crc(head[:8]) == head[8:12] and _VERSION in head[: _HEAD + 64]


def gather_tfevents(path: Path, gatherer: Gatherer) -> None:
    """Adds every scalar. A cut-off end, as of a run that goes on, is left out and noted."""
    size = path.stat().st_size
    progress = FileProgress(path, size)
    gatherer.state_steps()
    done = 0
    with path.open("rb") as file:
        while head := file.read(_HEAD):
            length = int.from_bytes(head[:8], "little")
            is_whole = len(head) == _HEAD and _masked_crc(head[:8]) == head[8:] and length < _LARGEST_EVENT
            data = file.read(length) if is_whole else b""
            if not is_whole or len(data) < length or len(file.read(_TAIL)) < _TAIL:
                gatherer.notes.append(
                    f"{path.name} is cut off or damaged after {done} of {size} bytes; the rest is left out"
                )
                break
            done += _HEAD + length + _TAIL
            progress.at(done)
            try:
                _add_event(data, gatherer)
            except (IndexError, ValueError, struct.error):
                gatherer.notes.append(f"{path.name} holds a damaged event before byte {done}; it is left out")
    progress.clear()


def _add_event(data: bytes, gatherer: Gatherer) -> None:
    fields = list(_fields(data))
    step = next((value for number, kind, value in fields if (number, kind) == (2, _VARINT)), 0)
    assert isinstance(step, int)
    step -= (step >> 63) << 64  # a signed number
    for number, kind, summary in fields:
        if (number, kind) != (5, _BYTES) or not isinstance(summary, bytes):
            continue
        for inner, inner_kind, value in _fields(summary):
            if (inner, inner_kind) == (1, _BYTES) and isinstance(value, bytes):
                _add_value(float(step), value, gatherer)


def _add_value(step: float, data: bytes, gatherer: Gatherer) -> None:
    tag, found = "", None
    for number, kind, value in _fields(data):
        if not isinstance(value, bytes):
            continue
        if (number, kind) == (1, _BYTES):
            tag = value.decode("utf-8", "replace")
        elif (number, kind) == (2, _FOUR):
            (found,) = struct.unpack("<f", value)
        elif (number, kind) == (8, _BYTES):
            found = _scalar(value)
            if tag == _ARGUMENTS:
                gatherer.settings |= settings_of_arguments(_text(value))
    if tag and found is not None:
        gatherer.rows += 1
        gatherer.add(step, tag, found)


def _scalar(tensor: bytes) -> float | None:
    """The number of a tensor that holds one; None for pictures, histograms and texts."""
    fields = list(_fields(tensor))
    dtype = next((value for number, _, value in fields if number == 1), 0)
    layout = {1: "<f", 2: "<d"}.get(dtype) if isinstance(dtype, int) else None
    if layout is None:
        return None
    raw = [value for number, _, value in fields if number in (4, 5, 6) and isinstance(value, bytes)]
    return float(struct.unpack(layout, raw[0])[0]) if len(raw) == 1 and len(raw[0]) == struct.calcsize(layout) else None


def _text(tensor: bytes) -> bytes:
    return next((value for number, _, value in _fields(tensor) if number == 8 and isinstance(value, bytes)), b"")


def _fields(data: bytes) -> Iterator[Field]:
    """(number, wire type, value) of each field of a message; IndexError or ValueError if it is none."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, at = _varint(data, at)
            yield number, kind, value
            continue
        if kind == _BYTES:
            length, at = _varint(data, at)
        elif kind in (_EIGHT, _FOUR):
            length = 8 if kind == _EIGHT else 4
        else:
            raise ValueError(f"wire type {kind}")
        if at + length > len(data):
            raise ValueError("a field longer than its message")
        yield number, kind, data[at : at + length]
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("a number of more than ten bytes")


def _crc_table() -> list[int]:
    table = []
    for number in range(256):
        for _ in range(8):
            number = number >> 1 ^ (0x82F63B78 if number & 1 else 0)
        table.append(number)
    return table


_TABLE = _crc_table()


def _masked_crc(data: bytes) -> bytes:
    """CRC-32C as TFRecord stores it. Only of lengths: of all data it would be slow without a library."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return (((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")
