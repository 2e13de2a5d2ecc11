"""Whole JSON documents: the Hugging Face trainer's state, a list of rows, or columns by name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from assay.doctor.evidence.logs.names import ARGUMENTS
from assay.doctor.evidence.logs.series import Gatherer, LogError, as_number, is_finite

LARGEST_DOCUMENT = 1 << 30  # bytes: a document is read whole


def read_document(path: Path) -> Any:
    if path.stat().st_size > LARGEST_DOCUMENT:
        raise LogError(f"{path} is one JSON document of more than 1 GB; give one object per line (JSONL) instead")
    try:
        return json.loads(path.read_bytes().decode("utf-8-sig", "replace"))
    except RecursionError as error:
        raise LogError(f"{path} is nested too deeply for a log of metrics; {_GIVE}") from error
    except ValueError as error:
        raise LogError(f"{path} is not a whole JSON document ({error}): it was cut off or damaged; {_GIVE}") from error


_GIVE = "give an older checkpoint, or the log as one object per line"


def gather_document(path: Path, document: Any, gatherer: Gatherer) -> None:
    """Raises LogError where it holds no curve."""
    if isinstance(document, Mapping) and isinstance(document.get("log_history"), list):
        gather_trainer_state(document, gatherer)
    elif isinstance(document, list):
        for row in document:
            if isinstance(row, Mapping):
                gatherer.add_row(row)
    elif isinstance(document, Mapping) and any(isinstance(value, Mapping | list) for value in document.values()):
        _gather_columns(document, gatherer)
    else:
        raise LogError(
            f"{path} holds one value per metric, a summary and no curve; export the history, one row per step"
        )
    if not gatherer.rows:
        raise LogError(f"{path} holds no row of metrics: the run logged nothing before this was written")


def gather_trainer_state(state: Mapping[str, Any], gatherer: Gatherer) -> None:
    """`log_history` of trainer_state.json. Rows of evaluations have names of their own and disturb nothing."""
    for row in state["log_history"]:
        if isinstance(row, Mapping):
            gatherer.add_row(row)
    steps = as_number(state.get("max_steps"))
    if steps is not None and 0 < steps < 2**53:
        gatherer.settings["steps"] = int(steps)


def settings_of_arguments(text: bytes) -> dict[str, float]:
    """The settings that a trainer's arguments state, as JSON; {} if they are something else."""
    try:
        arguments = json.loads(text.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return {}
    if not isinstance(arguments, Mapping):
        return {}
    numbers = {ours: as_number(arguments.get(theirs)) for theirs, ours in ARGUMENTS.items()}
    found = {name: value for name, value in numbers.items() if value is not None and is_finite(value)}
    if arguments.get("sync_ref_model") is True:
        found["reference_every"] = as_number(arguments.get("ref_model_sync_steps")) or 1.0
    passes, batches, parts = (
        arguments.get(name) for name in ("num_iterations", "steps_per_generation", "gradient_accumulation_steps")
    )
    if passes == 1 and parts is not None and batches == parts:  # TRL: each batch of rollouts is one optimizer update
        found["updates_per_rollout"] = 1.0
    return found


def _gather_columns(document: Mapping[str, Any], gatherer: Gatherer) -> None:
    """{"loss": {"1": 0.5, ...}} with the step as key, or {"step": [1, ...], "loss": [0.5, ...]}."""
    lists = {name: values for name, values in document.items() if isinstance(values, list)}
    for at in range(max(map(len, lists.values()), default=0)):
        gatherer.add_row({name: values[at] for name, values in lists.items() if at < len(values)})
    for name, values in document.items():
        if not isinstance(values, Mapping):
            continue
        for key, value in values.items():
            step, number = as_number(key), as_number(value)
            if step is not None and number is not None:
                gatherer.state_steps()
                gatherer.rows += 1
                gatherer.add(step, name, number)
