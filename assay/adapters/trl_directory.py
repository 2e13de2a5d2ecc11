"""<output_dir>/assay: the batches, findings and curves of a TRL run, in the layout of a run directory.

run.json  metrics.jsonl  timings.jsonl  evaluations.jsonl  events.jsonl  findings.jsonl
examined/step-000001-update-0.safetensors      what was generated
examined/step-000001-update-1.safetensors      the first update of it
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from assay.machine import durable
from assay.record import (
    EVALUATIONS_FILE,
    EVENTS_FILE,
    FINDINGS_FILE,
    METRICS_FILE,
    SCHEMA_VERSION,
    TIMINGS_FILE,
    RunDirectory,
)
from assay.record.batch import Batch
from assay.record.batch_file import write_batch

_LINES = (METRICS_FILE, TIMINGS_FILE, EVALUATIONS_FILE, EVENTS_FILE, FINDINGS_FILE)


class Directory:
    """Made when training begins; a run that begins anew takes the place of the last one, a resumed run goes on."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def begin(self, *, anew: bool) -> None:
        (self.path / "examined").mkdir(parents=True, exist_ok=True)
        if anew:
            for old in (self.path / "examined").glob("step-*-update-*.safetensors"):
                with suppress(FileNotFoundError):
                    old.unlink()
        for name in _LINES:
            if anew or not (self.path / name).exists():
                durable.replace_file(self.path / name, b"")
        mark = json.dumps({"schema_version": SCHEMA_VERSION, "trainer": "trl"}) + "\n"
        durable.replace_file(self.path / "run.json", mark.encode())
        RunDirectory(self.path).append_event("start" if anew else "resume", trainer="trl")

    def end(self, seconds: float) -> None:
        RunDirectory(self.path).append_event("finished", doctor_seconds=round(seconds, 3))

    def add_batch(self, batch: Batch, step: int, update: int) -> None:
        write_batch(self.path / "examined" / f"step-{step:06d}-update-{update}.safetensors", batch)

    def add_finding(self, row: Mapping[str, Any]) -> None:
        RunDirectory(self.path).append_finding(row)

    def add_rows(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """In one write: a disk that syncs after every step would cost more than the doctor."""
        lines = [json.dumps({key: _finite(value) for key, value in row.items()}) for row in rows]
        if lines:
            durable.append_line(self.path / name, ("\n".join(lines) + "\n").encode())


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
