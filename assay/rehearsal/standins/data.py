"""Data sets by name and files of rows that are missing: rows with the columns that the script asks for.

What is there stays real: a file that exists is read. `rows_of` and `write_rows` serve other stand-ins, too.
"""

from __future__ import annotations

import csv
import functools
import json
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from assay.rehearsal.rows import HELD_OUT_ROWS, ROWS, columns_asked, make_rows, question_of
from assay.rehearsal.stage import Stage
from assay.rehearsal.standins.missing import provide
from assay.rehearsal.standins.models import constants_of, sources_of

_BUILDERS = ("json", "csv", "parquet", "text", "arrow", "pandas", "jsonl")
_SLICE = re.compile(r"\[\s*(-?\d*)\s*(%?)\s*:\s*(-?\d*)\s*(%?)\s*\]")
_HELD_OUT = re.compile(r"test|val|eval|dev", re.IGNORECASE)
_READERS = ("read_parquet", "read_json", "read_csv", "read_excel", "read_table")
_known: dict[int, tuple[dict[str, bool], tuple[str, ...]]] = {}  # by stage: names looked up, constants


def install(stage: Stage) -> None:
    stage.when_imported("datasets", functools.partial(_install, stage))
    stage.when_imported("pandas", functools.partial(_install_pandas, stage))
    provide("datasets", functools.partial(_make_module, stage))


def rows_of(stage: Stage, name: str, count: int = ROWS, first: int = 0) -> list[dict[str, Any]]:
    """Rows for a name or a path; the report says so."""
    if id(stage) not in _known:
        sources = list(sources_of(stage))
        _known[id(stage)] = columns_asked(sources), tuple(constants_of(iter(sources)))
    asked, texts = _known[id(stage)]
    stage.replaced("data", name, f"{count} rows of small sums")
    return make_rows(name, asked, texts, count, first)


def write_rows(stage: Stage, path: Path, name: str) -> bool:
    """A missing file of rows, by its ending; False if it is of another kind."""
    kind = path.suffix.lower().lstrip(".")
    if kind not in ("json", "jsonl", "csv", "tsv", "txt", "parquet"):
        return False
    rows = rows_of(stage, name, HELD_OUT_ROWS if _HELD_OUT.search(path.stem) else ROWS)
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "parquet":
        import pandas  # type: ignore[import-untyped]

        pandas.DataFrame(rows).to_parquet(path)
    elif kind in ("csv", "tsv"):
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]), delimiter="\t" if kind == "tsv" else ",")
            writer.writeheader()
            writer.writerows(rows)
    else:
        lines = [question_of(row) if kind == "txt" else json.dumps(row) for row in rows]
        path.write_text(json.dumps(rows) if kind == "json" else "\n".join(lines) + "\n", encoding="utf-8")
    return True


def _install(stage: Stage, module: ModuleType) -> None:
    original = module.load_dataset

    @functools.wraps(original)
    def load_dataset(path: Any = None, name: Any = None, *args: Any, **settings: Any) -> Any:
        files = settings.get("data_files", args[1] if len(args) > 1 else None)
        if _is_there(path, files):
            settings.pop("num_proc", None)
            return original(path, name, *args, **settings)
        called = " ".join(str(part) for part in (path, name, files) if part is not None and part not in _BUILDERS)
        make = functools.partial(_split, stage, called, module.Dataset.from_list)
        return _loaded(make, module.DatasetDict, settings.get("split"), bool(settings.get("streaming")))

    def load_from_disk(path: Any, *args: Any, **settings: Any) -> Any:
        if os.path.isdir(path):
            return from_disk(path, *args, **settings)
        return _split(stage, str(path), module.Dataset.from_list, "train")

    from_disk = module.load_from_disk
    module.load_dataset, module.load_from_disk = load_dataset, load_from_disk  # type: ignore[attr-defined]
    module.Dataset.load_from_disk = staticmethod(load_from_disk)
    _make_tolerant(module.Dataset)


def _is_there(path: Any, files: Any) -> bool:
    if files is not None:
        listed = list(files.values()) if isinstance(files, dict) else files
        flat = [file for part in ([listed] if isinstance(listed, str) else listed) for file in _each(part)]
        return bool(flat) and all(os.path.exists(str(file)) for file in flat)
    return path is not None and os.path.exists(str(path))


def _each(part: Any) -> Sequence[Any]:
    return part if isinstance(part, (list, tuple)) else [part]


def _split(stage: Stage, name: str, build: Callable[[list[dict[str, Any]]], Any], split: Any) -> Any:
    is_held_out = _HELD_OUT.match(str(split)) is not None
    rows = rows_of(stage, name, HELD_OUT_ROWS if is_held_out else ROWS, 10_000 if is_held_out else 0)
    return build(_part(rows, str(split)))


def _part(rows: list[dict[str, Any]], split: str) -> list[dict[str, Any]]:
    """Of "train[:10%]", "test[100:200]" the rows that are there, and at least one."""
    found = _SLICE.search(split)
    if found is None:
        return rows
    begin, begins_with, end, ends_with = found.groups()
    first = _position(begin, begins_with, len(rows), 0)
    last = _position(end, ends_with, len(rows), len(rows))
    return rows[first:last] or rows[:HELD_OUT_ROWS]


def _position(number: str, percent: str, rows: int, otherwise: int) -> int:
    if not number:
        return otherwise
    return int(number) * rows // 100 if percent else int(number)


def _loaded(make: Callable[[str], Any], group: type, split: Any, streaming: bool) -> Any:
    if isinstance(split, (list, tuple)):
        return [_loaded(make, group, part, streaming) for part in split]
    if split is None:

        def built(part: str) -> Any:
            return _streamed(make(part)) if streaming else make(part)

        return _open_group(group, built)({part: built(part) for part in ("train", "test", "validation")})
    return _streamed(make(str(split))) if streaming else make(str(split))


def _open_group(group: type, make: Callable[[str], Any]) -> type:
    """Splits by name: one that the real data set has, and that is not among the usual ones, is made when asked for."""

    def missing(self: Any, split: Any) -> Any:
        self[split] = make(str(split))
        return self[split]

    def delete(self: Any, split: Any) -> None:
        dict.pop(self, split, None)

    def pop(self: Any, split: Any, *default: Any) -> Any:
        return dict.pop(self, split, *default) if default or split in self else make(str(split))

    return type(group.__name__, (group,), {"__missing__": missing, "__delitem__": delete, "pop": pop})


def _streamed(dataset: Any) -> Any:
    return dataset.to_iterable_dataset() if hasattr(dataset, "to_iterable_dataset") else dataset


def _make_tolerant(dataset: Any) -> None:
    """A stand-in has fewer rows and other columns than the real one: asking for more of them is not the script's fault.
    One process does all the work."""
    select, remove, use_map, use_filter = dataset.select, dataset.remove_columns, dataset.map, dataset.filter

    @functools.wraps(select)
    def tolerant_select(self: Any, indices: Any, *args: Any, **settings: Any) -> Any:
        rows = len(self)
        return select(self, [row for row in indices if row < rows], *args, **settings)

    @functools.wraps(remove)
    def tolerant_remove(self: Any, names: Any, *args: Any, **settings: Any) -> Any:
        return remove(self, _there(self, names), *args, **settings)

    @functools.wraps(use_map)
    def tolerant_map(self: Any, *args: Any, **settings: Any) -> Any:
        settings.pop("num_proc", None)
        if settings.get("remove_columns") is not None:
            settings["remove_columns"] = _there(self, settings["remove_columns"])
        return use_map(self, *args, **settings)

    @functools.wraps(use_filter)
    def tolerant_filter(self: Any, *args: Any, **settings: Any) -> Any:
        settings.pop("num_proc", None)
        return use_filter(self, *args, **settings)

    dataset.select, dataset.remove_columns = tolerant_select, tolerant_remove
    dataset.map, dataset.filter = tolerant_map, tolerant_filter


def _there(dataset: Any, names: Any) -> list[str]:
    return [name for name in ([names] if isinstance(names, str) else names) if name in dataset.column_names]


def _install_pandas(stage: Stage, module: ModuleType) -> None:
    for name in _READERS:
        original = getattr(module, name, None)
        if original is not None:
            setattr(module, name, _reader(stage, module, original))


def _reader(stage: Stage, module: ModuleType, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def read(path: Any, *args: Any, **settings: Any) -> Any:
        if isinstance(path, (str, os.PathLike)) and not os.path.exists(path) and stage.is_asked_by_script():
            return module.DataFrame(rows_of(stage, os.fspath(path)))
        return original(path, *args, **settings)

    return read


class Rows:
    """The part of datasets.Dataset that scripts use, where the package is not installed."""

    def __init__(self, rows: Sequence[dict[str, Any]], tensors: Any = (), only: bool = False) -> None:
        """`tensors` are columns that are handed out as tensors, as set_format("torch") asks; `only` these."""
        self._rows = [dict(row) for row in rows]
        self._tensors, self._only = tuple(tensors), only

    @classmethod
    def from_list(cls, rows: Sequence[dict[str, Any]]) -> Rows:
        return cls(rows)

    @classmethod
    def from_dict(cls, columns: dict[str, Sequence[Any]]) -> Rows:
        return cls([dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)])

    @property
    def column_names(self) -> list[str]:
        return list(self._rows[0]) if self._rows else []

    @property
    def num_rows(self) -> int:
        return len(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return self._shown(key, [row[key] for row in self._rows])
        names = self._tensors if self._only else self.column_names
        if isinstance(key, int):
            return {name: self._shown(name, self._rows[key][name]) for name in names}
        chosen = self._rows[key] if isinstance(key, slice) else [self._rows[row] for row in key]
        return {name: self._shown(name, [row[name] for row in chosen]) for name in names}

    def _shown(self, name: str, value: Any) -> Any:
        return _as_tensor(value) if name in self._tensors else value

    def _like(self, rows: Sequence[dict[str, Any]]) -> Rows:
        """Other rows in the same format."""
        return Rows(rows, self._tensors, self._only)

    def __iter__(self) -> Any:
        return (self[number] for number in range(len(self)))

    def map(self, function: Callable[..., Any], batched: bool = False, **settings: Any) -> Rows:
        removed = settings.get("remove_columns") or ()
        removed = [removed] if isinstance(removed, str) else removed
        given = settings.get("fn_kwargs") or {}
        if batched:
            made = function(self[:], **given)
            count = len(next(iter(made.values()), ()))
            kept = {} if count != len(self) else {name: self[name] for name in self.column_names if name not in removed}
            return Rows.from_dict({**kept, **made})
        with_number = settings.get("with_indices", False)
        rows = []
        for number, row in enumerate(self._rows):
            made = function(dict(row), number, **given) if with_number else function(dict(row), **given)
            rows.append({**{name: row[name] for name in row if name not in removed}, **(made or {})})
        return Rows(rows)

    def filter(self, function: Callable[..., bool], **settings: Any) -> Rows:
        return self._like([row for row in self._rows if function(dict(row))])

    def select(self, indices: Any) -> Rows:
        return self._like([self._rows[row] for row in indices if row < len(self)])

    def take(self, count: int) -> Rows:
        return self._like(self._rows[:count])

    def skip(self, count: int) -> Rows:
        return self._like(self._rows[count:])

    def shuffle(self, seed: int | None = None, **settings: Any) -> Rows:
        import random

        rows = list(self._rows)
        random.Random(seed).shuffle(rows)
        return self._like(rows)

    def shard(self, num_shards: int, index: int, **settings: Any) -> Rows:
        return self._like(self._rows[index::num_shards])

    def train_test_split(self, test_size: float | int = 0.25, seed: int | None = None, **settings: Any) -> Groups:
        rows = self.shuffle(seed)._rows
        held = int(test_size if test_size >= 1 else test_size * len(rows)) or 1
        return Groups({"train": self._like(rows[held:]), "test": self._like(rows[:held])})

    def remove_columns(self, names: Any) -> Rows:
        gone = [names] if isinstance(names, str) else names
        return Rows([{name: value for name, value in row.items() if name not in gone} for row in self._rows])

    def select_columns(self, names: Any) -> Rows:
        kept = [names] if isinstance(names, str) else names
        return Rows([{name: row[name] for name in kept} for row in self._rows])

    def rename_column(self, old: str, new: str) -> Rows:
        return Rows([{new if name == old else name: value for name, value in row.items()} for row in self._rows])

    def add_column(self, name: str, column: Sequence[Any]) -> Rows:
        return Rows([{**row, name: value} for row, value in zip(self._rows, column, strict=True)])

    def rename_columns(self, names: dict[str, str]) -> Rows:
        return Rows([{names.get(name, name): value for name, value in row.items()} for row in self._rows])

    def with_format(self, type: Any = None, columns: Any = None, output_all_columns: bool = False, **how: Any) -> Rows:
        made = Rows(self._rows)
        made.set_format(type, columns, output_all_columns)
        return made

    def set_format(self, type: Any = None, columns: Any = None, output_all_columns: bool = False, **how: Any) -> None:
        is_tensor = type in ("torch", "pt", "pytorch")
        self._tensors = tuple(columns or self.column_names) if is_tensor else ()
        self._only = is_tensor and columns is not None and not output_all_columns

    def repeat(self, num_times: int | None) -> Rows:
        return self._like(self._rows * (1 if num_times is None else num_times))

    def batch(self, batch_size: int, drop_last_batch: bool = False, **settings: Any) -> Rows:
        return Rows(list(self.iter(batch_size, drop_last_batch)))

    def iter(self, batch_size: int, drop_last_batch: bool = False) -> Any:
        last = len(self) - len(self) % batch_size if drop_last_batch else len(self)
        return (self[first : first + batch_size] for first in range(0, last, batch_size))

    def sort(self, column: str, reverse: bool = False, **settings: Any) -> Rows:
        return self._like(sorted(self._rows, key=lambda row: row[column], reverse=reverse))

    def unique(self, column: str) -> list[Any]:
        return list(dict.fromkeys(self[column]))

    def add_item(self, row: dict[str, Any]) -> Rows:
        return self._like([*self._rows, row])

    @property
    def features(self) -> dict[str, Any]:
        return dict.fromkeys(self.column_names)

    @property
    def shape(self) -> tuple[int, int]:
        return len(self), len(self.column_names)

    def flatten_indices(self, **settings: Any) -> Rows:
        return self

    def to_dict(self) -> dict[str, list[Any]]:
        return {name: [row[name] for row in self._rows] for name in self.column_names}

    def to_pandas(self) -> Any:
        import pandas

        return pandas.DataFrame(self._rows)

    @classmethod
    def from_pandas(cls, frame: Any, **settings: Any) -> Rows:
        return cls(frame.to_dict("records"))

    @classmethod
    def from_generator(cls, generator: Callable[..., Any], gen_kwargs: Any = None, **settings: Any) -> Rows:
        return cls(list(generator(**(gen_kwargs or {}))))

    def to_iterable_dataset(self, **settings: Any) -> Rows:
        return self

    def to_list(self) -> list[dict[str, Any]]:
        return [dict(row) for row in self._rows]


def _as_tensor(value: Any) -> Any:
    """As datasets formats it: numbers become a tensor, texts stay, rows of different lengths are a list of tensors."""
    import torch

    if isinstance(value, str) or (isinstance(value, list) and any(isinstance(part, (str, dict)) for part in value)):
        return value
    try:
        return torch.tensor(value)
    except (TypeError, ValueError):
        return [_as_tensor(part) for part in value] if isinstance(value, list) else value


class Groups(dict[str, Any]):
    """datasets.DatasetDict: what is asked of it is asked of each split."""

    def __getattr__(self, name: str) -> Any:
        if name in ("column_names", "num_rows", "shape", "features"):
            return {split: getattr(rows, name) for split, rows in self.items()}
        if name.startswith("_") or not callable(getattr(Rows, name, None)):
            raise AttributeError(name)
        return functools.partial(self._each, name)

    def _each(self, name: str, *args: Any, **settings: Any) -> Groups:
        return Groups({split: getattr(rows, name)(*args, **settings) for split, rows in self.items()})


def _joined(parts: Sequence[Rows], **settings: Any) -> Rows:
    return Rows([row for part in parts for row in part.to_list()])


def _interleaved(parts: Sequence[Rows], **settings: Any) -> Rows:
    return Rows([row for rows in zip(*(part.to_list() for part in parts), strict=False) for row in rows])


def _make_module(stage: Stage, module: ModuleType) -> None:
    def load_dataset(path: Any = None, name: Any = None, *args: Any, **settings: Any) -> Any:
        called = " ".join(str(part) for part in (path, name, settings.get("data_files")) if part is not None)
        make = functools.partial(_split, stage, called, Rows.from_list)
        return _loaded(make, Groups, settings.get("split"), False)

    module.load_dataset = load_dataset  # type: ignore[attr-defined]
    module.load_from_disk = lambda path: _split(stage, str(path), Rows.from_list, "train")  # type: ignore[attr-defined]
    module.Dataset = module.IterableDataset = Rows  # type: ignore[attr-defined]
    module.DatasetDict = module.IterableDatasetDict = Groups  # type: ignore[attr-defined]
    module.concatenate_datasets, module.interleave_datasets = _joined, _interleaved  # type: ignore[attr-defined]
