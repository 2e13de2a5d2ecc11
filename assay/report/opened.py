"""A path --> all that the page shows of it: evidence, the doctor's word on it, settings, environment."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.config import Config, ConfigError, to_mapping
from assay.doctor.diagnosis import diagnose
from assay.doctor.evidence import Batch, Curves, Evidence
from assay.doctor.evidence.open import ATTACHED, open_evidence
from assay.doctor.prove_edits import with_edits
from assay.doctor.report import Report
from assay.machine.durable import read_file
from assay.record import RunError, read_findings
from assay.record.trust import load_config

MARK = "run.json"


@dataclass(frozen=True)
class Opened:
    """`config` and `environment` are None of what is not a run of this trainer."""

    path: Path
    evidence: Evidence
    report: Report
    config: Config | None
    environment: Mapping[str, Any] | None
    reported: Sequence[Mapping[str, Any]] = ()  # findings.jsonl: what the doctor found while the run was made

    @property
    def name(self) -> str:
        """As its user calls it: the config's name, or the name of the file or directory."""
        place = self.path.resolve()
        own = place.parent.name if place.name == ATTACHED else place.name
        if self.config is None or self.config.run.name == own:
            return own
        return f"{own} ({self.config.run.name})" if own else self.config.run.name

    @property
    def curves(self) -> Curves:
        found = self.evidence.curves  # one without steps is false, and still has events
        return Curves(()) if found is None else found

    @property
    def rows(self) -> Sequence[Mapping[str, Any]]:
        return self.curves.rows

    @property
    def settings(self) -> dict[str, dict[str, Any]]:
        """By section; of another trainer those that its log or its batches state."""
        if self.config is not None:
            return to_mapping(self.config)
        stated = dict(self.curves.settings)
        for batch in self.evidence.batches:
            stated |= {name: value for name, value in batch.settings.items() if name not in stated}
        return {"stated": stated} if stated else {}

    @property
    def steps_done(self) -> int:
        return max((int(row["step"]) for row in self.rows if row.get("step") is not None), default=0)

    @property
    def steps_planned(self) -> int | None:
        return self.config.run.steps if self.config is not None else self.curves.settings.get("steps")

    @property
    def is_over(self) -> bool:
        """Whether the record says how the run ended; a record without events is of another trainer, and over."""
        kinds = [event.get("kind") for event in self.curves.events]
        ends = [kind for kind in kinds if kind in ("start", "resume", "finished", "failed", "stopped")]
        return not ends or ends[-1] in ("finished", "failed", "stopped")


def is_examined(batch: Batch) -> bool:
    """Whether it is one update as the trainer saw it, and not the recorded rollouts of a step."""
    return not batch.source.endswith("of the recorded rollouts")


def open_path(path: Path) -> Opened:
    """Raises the errors of the doctor where there is nothing that can be read."""
    evidence = open_evidence(path)
    diagnosis = with_edits(diagnose(evidence), evidence.programs)
    return _opened(path, evidence, Report.of(str(path), evidence, diagnosis))


def with_report(path: Path, report: Report) -> Opened:
    """What the doctor has looked at already."""
    return _opened(path, open_evidence(path), report)


def open_record(path: Path) -> Opened:
    """The same without the doctor's checks, which take most of the time."""
    evidence = open_evidence(path)
    return _opened(path, evidence, Report.of(str(path), evidence, diagnose(evidence, ())))


def _opened(path: Path, evidence: Evidence, report: Report) -> Opened:
    return Opened(path, evidence, report, _config(path), _environment(path), _reported(path))


def _reported(path: Path) -> Sequence[Mapping[str, Any]]:
    """None of a damaged file: the doctor's notes name it."""
    try:
        return read_findings(path).rows if (path / MARK).is_file() else ()
    except RunError:
        return ()


def _config(path: Path) -> Config | None:
    """None where there is none, or one that cannot be used: then the doctor's notes say why."""
    try:
        return load_config(path) if (path / "config.toml").is_file() and (path / MARK).is_file() else None
    except (ConfigError, OSError):
        return None


def _environment(path: Path) -> Mapping[str, Any] | None:
    try:
        found = json.loads(read_file(path / "environment.json"))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
