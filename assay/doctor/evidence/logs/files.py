"""One file --> Evidence: what it is, is seen in its first bytes; its name counts for nothing."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from assay.doctor.evidence import Evidence
from assay.doctor.evidence.logs.document import gather_document, read_document
from assay.doctor.evidence.logs.mapped import curves_of
from assay.doctor.evidence.logs.progress import lines_of
from assay.doctor.evidence.logs.rollouts import Row, batch_of, is_rollout, spread_out, step_of
from assay.doctor.evidence.logs.rows import (
    gather_csv,
    gather_json_lines,
    gather_printed,
    json_object,
    json_rows,
    looks_like_csv,
    printed_row,
)
from assay.doctor.evidence.logs.series import Gatherer, LogError
from assay.doctor.evidence.logs.tfevents import gather_tfevents, is_tfevents
from assay.doctor.evidence.run_directory import STEPS, spread

HEAD = 1 << 16  # bytes that show what a file is
KINDS = "a log of another trainer (trainer_state.json, JSONL, CSV, TensorBoard events) or its rollouts (JSONL, Parquet)"
_EXPORT = "wandb.Api().run('entity/project/id').history(samples=100000).to_csv('run.csv')"
_REFUSED = (  # first bytes, what it is, the fix
    (
        (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"),
        "is a pickle, which runs code when it is opened; dump rollouts as JSONL or a batch as .safetensors",
    ),
    (
        b"PK\x03\x04",
        "is a zip archive or a torch file, whose pickle runs code when it is opened; dump rollouts as JSONL",
    ),
    (b"\x1f\x8b", "is compressed; unpack it with gunzip first"),
    (b":W&B", f"is W&B's own binary, which its package does not read back; 'wandb sync' it and export: {_EXPORT}"),
    (b"SQLite format 3", "is a database; export the run's metrics as CSV or JSONL"),
    (b"ARROW1", "is an Arrow file; write the rollouts as Parquet or JSONL"),
)


def read_file(path: Path) -> Evidence:
    """Raises LogError where it cannot be read, is empty, or holds nothing known; OSError is the caller's."""
    with path.open("rb") as file:
        head = file.read(HEAD)
    if not head.strip():
        raise LogError(f"{path} is empty: nothing was logged yet, or it was not copied whole")
    for beginning, sentence in _REFUSED:
        if head.startswith(beginning):
            raise LogError(f"{path} {sentence}")
    if head.startswith(b"PAR1"):
        return _read_parquet(path)
    gatherer = Gatherer()
    if is_tfevents(head):
        gather_tfevents(path, gatherer)
        return evidence_of(gatherer, path)
    if b"\x00" in head:
        raise LogError(f"{path} is binary and of no kind known here; give {KINDS}")
    return _read_text(path, head)


def evidence_of(gatherer: Gatherer, path: Path) -> Evidence:
    curves, notes = curves_of(gatherer.log(), str(path))
    return Evidence(curves=curves, notes=tuple(notes))


def _read_text(path: Path, head: bytes) -> Evidence:
    gatherer = Gatherer()
    lines = head.removeprefix(b"\xef\xbb\xbf").splitlines()
    first = next((line for line in lines if line.strip()), b"")
    if first and first is lines[-1] and len(head) == HEAD:  # a row may be long: a whole step of rollouts
        first = next(line for _, line in lines_of(path) if line.strip())
    row = json_object(first)
    if row is None:  # a damaged first line, or a warning before the log began
        objects = [found for line in lines if (found := json_object(line)) is not None]
        row = objects[0] if 2 * len(objects) > len(lines) else None
    if row is not None and not _is_document(row, path):
        if is_rollout(row):
            return _read_rollouts(path)
        gather_json_lines(path, gatherer)
        return evidence_of(gatherer, path)
    texts = [line.decode("utf-8", "replace") for line in lines]
    is_printed = row is None and any(map(printed_row, texts))  # what a launcher prints begins with a bracket too
    if first.lstrip().startswith((b"{", b"[")) and not is_printed:
        document = row if row is not None else read_document(path)
        rows = document if isinstance(document, list) else []
        if rows and isinstance(rows[0], dict) and is_rollout(rows[0]):
            return _evidence_of_rollouts(path, [item for item in rows if isinstance(item, dict)], [])
        gather_document(path, document, gatherer)
        return evidence_of(gatherer, path)
    if looks_like_csv(texts):
        gather_csv(path, gatherer)
    elif is_printed or path.stat().st_size > HEAD:
        gather_printed(path, gatherer)
    if not gatherer.rows:
        raise LogError(f"{path} is text, and neither JSON lines nor a table nor what a trainer prints; give {KINDS}")
    return evidence_of(gatherer, path)


def _is_document(row: dict[str, Any], path: Path) -> bool:
    """Whether the file's one line is all there is of it, and not the first row of a log that has just begun."""
    return not is_rollout(row) and any(isinstance(value, list) for value in row.values()) and _has_one_line(path)


def _has_one_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.readline()
        return not file.read(HEAD).strip()


def _read_rollouts(path: Path) -> Evidence:
    """Of a long file only the rows of the steps that are looked at are kept: their places are found first."""
    notes: list[str] = []
    places: dict[int | None, list[int]] = {}
    for offset, row in json_rows(path, notes):
        if is_rollout(row):
            places.setdefault(step_of(row), []).append(offset)
    steps = _looked_at(places)
    rows: list[Row] = []
    with path.open("rb") as file:
        for step in steps:
            for offset in places[step]:
                file.seek(offset)
                row = json.loads(file.readline().decode("utf-8-sig", "replace"))
                rows += spread_out(row)
    return _evidence_of_rollouts(path, rows, notes)


def _looked_at(steps: Iterable[int | None]) -> list[int | None]:
    stated = sorted(step for step in steps if step is not None)
    return [*spread(stated, STEPS)] if stated else [None]


def _read_parquet(path: Path) -> Evidence:
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    try:
        table = parquet.read_table(path)
        rows = table.to_pylist()
    except (arrow.ArrowException, OSError, ValueError) as error:
        raise LogError(f"{path} is a damaged Parquet file: {str(error).splitlines()[0]}; write it again") from error
    if rows and is_rollout(rows[0]):
        return _evidence_of_rollouts(path, rows, [])
    gatherer = Gatherer()
    for row in rows:
        gatherer.add_row(row)
    return evidence_of(gatherer, path)


def _evidence_of_rollouts(path: Path, rows: list[Row], notes: list[str]) -> Evidence:
    by_step: dict[int | None, list[Row]] = {}
    for row in rows:
        by_step.setdefault(step_of(row), []).append(row)
    chosen = _looked_at(by_step)
    batches = [batch_of(by_step[step], step, path, notes) for step in chosen]
    if len(by_step) > len(chosen):
        notes.append(f"{path.name} holds {len(by_step)} steps, of which {len(chosen)} are looked at")
    return Evidence(tuple(batches), notes=tuple(notes))
