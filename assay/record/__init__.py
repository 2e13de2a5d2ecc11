"""The run directory: StepRecord -> files, and the files -> rows again. Written by train, read by doctor and report.

    config.toml  environment.json  run.json     what was run, where, in which version of this schema
    metrics.jsonl  timings.jsonl  evaluations.jsonl  events.jsonl     one line per step, evaluation, event
    findings.jsonl                              one line for what the doctor found while the run was made
    checksums.jsonl                             what each of these files held when it was written (checksums.py)
    rollouts/step-000001.parquet                one row per rollout
    checkpoints/  dumps/  examined/             owned by train

Everything that differs between two equal runs stands in timings.jsonl, events.jsonl, findings.jsonl, checksums.jsonl,
environment.json, run.json, and in which updates were examined; the bytes of all other files are equal.
docs/run-directory.md explains each file. Nothing here imports torch.
"""

from assay.record.directory import (
    EVALUATIONS_FILE,
    EVENTS_FILE,
    FINDINGS_FILE,
    METRICS_FILE,
    TIMINGS_FILE,
    UPDATE_FILE,
    RunDirectory,
    RunError,
    check_new_run,
    read_evaluations,
    read_events,
    read_findings,
    read_metrics,
    read_rollouts,
    read_timings,
    recorded_steps,
    refuse_unwritable_name,
    writing,
)
from assay.record.environment import (
    describe_environment,
)
from assay.record.metrics import (
    COMPONENT_METRICS,
    METRICS,
    TIMINGS,
    metrics_row,
    timings_row,
)
from assay.record.rollouts import (
    COLUMNS,
    SCHEMA_VERSION,
)

__all__ = [
    "COLUMNS",
    "COMPONENT_METRICS",
    "EVALUATIONS_FILE",
    "EVENTS_FILE",
    "FINDINGS_FILE",
    "METRICS",
    "METRICS_FILE",
    "SCHEMA_VERSION",
    "TIMINGS",
    "TIMINGS_FILE",
    "UPDATE_FILE",
    "RunDirectory",
    "RunError",
    "check_new_run",
    "describe_environment",
    "metrics_row",
    "read_evaluations",
    "read_events",
    "read_findings",
    "read_metrics",
    "read_rollouts",
    "read_timings",
    "recorded_steps",
    "refuse_unwritable_name",
    "timings_row",
    "writing",
]
