"""A batch <-> one safetensors file: arrays as tensors, numbers, settings and texts as JSON in the file's metadata.

Any program that can write safetensors can write one; docs/batch-file.md describes it. Read and written without torch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from assay.machine import durable
from assay.record.batch import Array, Batch, BatchError

SCHEMA_VERSION = 1
METADATA_KEY = "assay.batch"
_DTYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U64": "<u8",
    "U32": "<u4", "U16": "<u2", "U8": "u1", "BOOL": "?",
}  # fmt: skip


def write_batch(path: Path, batch: Batch) -> None:
    """Writes aside and renames: the file is whole or absent. A disk that refuses is an OSError."""
    durable.replace_file(path, to_bytes(batch))


def to_bytes(batch: Batch) -> bytes:
    from safetensors.numpy import save

    header = {
        "schema_version": SCHEMA_VERSION,
        "numbers": {name: _to_json(value) for name, value in batch.numbers.items()},
        "settings": {name: _to_json(value) for name, value in batch.settings.items()},
        "texts": {name: list(rows) for name, rows in batch.texts.items()},
    }
    tensors = {name: np.ascontiguousarray(_compact(array)) for name, array in batch.arrays.items()}
    data: bytes = save(tensors, metadata={METADATA_KEY: json.dumps(header, allow_nan=False)})
    return data


def read_batch(path: Path) -> Batch:
    """A file without Assay's metadata is read as well: then its tensors, by name, are all there is."""
    from safetensors import SafetensorError, deserialize

    try:
        data = durable.read_file(path)
        tensors = deserialize(data)  # type: ignore[no-untyped-call]
        size = int.from_bytes(data[:8], "little")
        metadata = json.loads(data[8 : 8 + size]).get("__metadata__", {})
    except OSError as error:
        raise BatchError(f"{path} could not be read: {durable.reason_unread(error)}") from error
    except (SafetensorError, ValueError, RecursionError) as error:
        raise BatchError(f"{path} is damaged or no safetensors file: {str(error).splitlines()[0]}") from error
    header = _header(path, metadata.get(METADATA_KEY))
    values: dict[str, Any] = {name: _from_bytes(path, name, tensor) for name, tensor in sorted(tensors)}
    for part in ("numbers", "settings"):
        values |= {name: _from_json(value) for name, value in header.get(part, {}).items()}
    try:
        return Batch.of(values, texts=header.get("texts", {}), source=path.name)
    except BatchError as error:
        raise BatchError(f"{path}: {error}") from error


def _header(path: Path, text: str | None) -> Mapping[str, Any]:
    if text is None:
        return {}
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BatchError(f"{path}: its metadata {METADATA_KEY!r} is not JSON ({error})") from error
    parts = header if isinstance(header, dict) else {}
    if not isinstance(header, dict) or not all(
        isinstance(parts.get(part, {}), dict) for part in ("numbers", "settings", "texts")
    ):
        raise BatchError(f"{path}: its metadata {METADATA_KEY!r} must be an object of numbers, settings and texts")
    version = parts.get("schema_version", SCHEMA_VERSION)
    if version != SCHEMA_VERSION:
        raise BatchError(f"{path} has schema version {version}, this Assay reads {SCHEMA_VERSION}; use the newer Assay")
    if not all(
        isinstance(rows, list) and all(isinstance(row, str) for row in rows) for rows in parts.get("texts", {}).values()
    ):
        raise BatchError(f"{path}: each of its texts must be a list of strings, one per row")
    return parts


def _from_bytes(path: Path, name: str, tensor: Mapping[str, Any]) -> Array:
    dtype, data, shape = tensor["dtype"], tensor["data"], tensor["shape"]
    if dtype == "BF16":  # the upper half of a float32
        words = np.frombuffer(data, dtype="<u2").astype(np.uint32) << 16
        return words.view(np.float32).reshape(shape)
    if dtype not in _DTYPES:
        raise BatchError(f"{path}: {name} is stored as {dtype}, which is not read; store it as F32 or I64")
    return np.frombuffer(data, dtype=_DTYPES[dtype]).reshape(shape)


def _compact(array: Array) -> Array:
    """The same numbers in 32 bits where that loses nothing."""
    smaller = {"f": np.float32, "i": np.int32}.get(array.dtype.kind)
    if smaller is None:
        return array
    with np.errstate(over="ignore", invalid="ignore"):
        narrow = array.astype(smaller)
    return narrow if np.array_equal(narrow.astype(array.dtype), array, equal_nan=array.dtype.kind == "f") else array


def _to_json(value: Any) -> Any:
    """JSON has no NaN: a number that is not finite travels as its name."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, (tuple, set, frozenset)):
        return list(value)
    return value.item() if isinstance(value, np.generic) else value


def _from_json(value: Any) -> Any:
    return float(value) if isinstance(value, str) and value in ("nan", "inf", "-inf") else value
