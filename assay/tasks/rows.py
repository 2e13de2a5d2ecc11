"""Rows of a file or directory: JSON lines, a JSON array, Parquet, CSV, or a dataset saved by Hugging Face datasets.

path -> FileRow(where it stands, its fields), one after the other
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from assay.config import ConfigError

ENDINGS = (".jsonl", ".json", ".parquet", ".csv")
_SAVED_STATE = "state.json"  # of a dataset that save_to_disk wrote; it names the Arrow files
_SAVED_SPLITS = "dataset_dict.json"  # of several such datasets in subdirectories


@dataclass(frozen=True, slots=True)
class FileRow:
    where: str  # "questions.jsonl: line 17"
    number: int  # counted from 1, in the unit of `where`
    fields: Mapping[str, Any]


def read_rows(path: Path) -> Iterator[FileRow]:
    """The rows in their order; whatever cannot be read is a ConfigError that says where it stands."""
    readers = {".jsonl": json_lines, ".json": _json_array, ".parquet": _parquet, ".csv": _csv, ".arrow": _arrow}
    for file in files_of(path):
        with _file_faults(file):
            yield from readers[file.suffix](file)


def json_lines(path: Path, decoder: json.JSONDecoder | None = None) -> Iterator[FileRow]:
    """The rows of a file of JSON lines, read strictly unless another decoder is given."""
    with _file_faults(path), path.open("rb") as stream:  # bytes: a text stream also breaks lines where JSON does not
        fix = "every line must be one JSON object"
        for number, line in enumerate(stream, start=1):
            where = f"{path}: line {number}"
            text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
            if text:
                yield FileRow(where, number, _object(where, _parse(where, text, fix, decoder)))


def fingerprint_of(path: Path) -> str:
    """SHA-256 of all bytes that are read, in hexadecimal."""
    digest = hashlib.sha256()
    for file in files_of(path):
        with _file_faults(file), file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()


@contextmanager
def _file_faults(file: Path) -> Iterator[None]:
    try:
        yield
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: not UTF-8 text ({error.reason} at byte {error.start}); save it as UTF-8") from error
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror or error}; give a file that can be read") from error


def files_of(path: Path) -> list[Path]:
    if not os.path.isdir(path):
        if not os.path.exists(path):
            raise ConfigError(f"{path}: there is no such file; task.name is the path of a file with rows")
        if path.suffix not in ENDINGS:
            raise ConfigError(f"{path}: files of rows end in {', '.join(ENDINGS)}")
        return [path]
    if (path / _SAVED_SPLITS).exists():
        splits = sorted(part.name for part in path.iterdir() if (part / _SAVED_STATE).exists())
        raise ConfigError(
            f"{path} holds several splits ({', '.join(splits)}); name one of them, for instance "
            f"task.name = '{path / splits[0] if splits else path}', and another as task.options.heldout_file"
        )
    if (path / _SAVED_STATE).exists():
        return _saved_files(path)
    visible = (file for file in path.iterdir() if not file.name.startswith("."))  # ._rows.jsonl is a desktop's
    found = sorted(file for file in visible if file.suffix in ENDINGS and file.is_file())
    if not found:
        raise ConfigError(f"{path}: no dataset of save_to_disk and no file that ends in {', '.join(ENDINGS)} is in it")
    return found


def _saved_files(path: Path) -> list[Path]:
    try:
        names = [part["filename"] for part in json.loads((path / _SAVED_STATE).read_text("utf-8"))["_data_files"]]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path / _SAVED_STATE}: not what save_to_disk writes; save the dataset again") from error
    strangers = [name for name in names if not (isinstance(name, str) and Path(name).name == name)]
    if strangers or not all((path / name).suffix == ".arrow" for name in names):
        raise ConfigError(f"{path / _SAVED_STATE}: names files that are not Arrow files beside it")
    return [path / name for name in names]


def _json_array(path: Path) -> Iterator[FileRow]:
    fix = "it must be one array of objects; one object per line is a .jsonl file"
    rows = _parse(str(path), path.read_bytes().decode("utf-8-sig"), fix)
    if not isinstance(rows, list):
        raise ConfigError(f"{path}: holds {_kind(rows)}; {fix}")
    for number, value in enumerate(rows, start=1):
        where = f"{path}: item {number}"
        yield FileRow(where, number, _object(where, value))


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


class _Doubled(ValueError):
    """A key that stands twice in one object; Python would keep the last value and say nothing."""


def _only_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        names = [name for name, _ in pairs]
        raise _Doubled(next(name for place, name in enumerate(names) if name in names[:place]))
    return value


STRICT_JSON = json.JSONDecoder(parse_constant=_refuse, object_pairs_hook=_only_once)  # the constants: NaN and Infinity


def _parse(where: str, text: str, fix: str, decoder: json.JSONDecoder | None = None) -> Any:
    try:
        return (decoder or STRICT_JSON).decode(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{where}: not valid JSON ({error.msg} at character {error.pos + 1}); {fix}") from error
    except _Doubled as error:
        raise ConfigError(f"{where}: an object holds the key {str(error)[:80]!r} twice; keep one of them") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: not valid JSON ({error}); {fix}") from error


def _object(where: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: is {_kind(value)}, not an object with named fields")
    return value


def _kind(value: Any) -> str:
    kinds = {dict: "an object", list: "an array", str: "a text", bool: "true or false", type(None): "null"}
    return kinds.get(type(value), "a number")


def _csv(path: Path) -> Iterator[FileRow]:
    with path.open(encoding="utf-8-sig", newline="") as stream:
        reader = csv.reader(stream, strict=True)
        try:
            header = next(reader, [])
            doubled = [name for place, name in enumerate(header) if name in header[:place]]
            if doubled:
                raise ConfigError(f"{path}: line 1: two columns are named {doubled[0]!r}")
            number = reader.line_num + 1
            for values in reader:
                where = f"{path}: line {number}"
                if values and len(values) != len(header):
                    raise ConfigError(f"{where}: has {len(values)} cells, but line 1 names {len(header)} columns")
                if values:
                    yield FileRow(where, number, dict(zip(header, values, strict=True)))
                number = reader.line_num + 1  # a quoted cell may span lines: where the next row begins
        except csv.Error as error:
            raise ConfigError(f"{path}: line {reader.line_num}: not valid CSV ({error})") from error


def _parquet(path: Path) -> Iterator[FileRow]:
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            yield from _batches(path, file.iter_batches(batch_size=4096))
    except pyarrow.ArrowInvalid as error:
        raise ConfigError(f"{path}: not a Parquet file that can be read ({error})") from error


def _arrow(path: Path) -> Iterator[FileRow]:
    import pyarrow

    try:
        with pyarrow.memory_map(str(path)) as stream, pyarrow.ipc.open_stream(stream) as batches:
            yield from _batches(path, batches)
    except pyarrow.ArrowInvalid as error:
        raise ConfigError(f"{path}: not an Arrow stream that can be read ({error}); save the dataset again") from error


def _batches(path: Path, batches: Any) -> Iterator[FileRow]:
    number = 0
    for batch in batches:
        for fields in batch.to_pylist():
            number += 1
            yield FileRow(f"{path}: row {number}", number, fields)
