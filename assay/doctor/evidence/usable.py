"""What of a batch's settings and numbers can be used: a value of the wrong kind is left out, and a note says so.

A batch may come from anybody's script. A check then reports that the setting is missing, instead of failing on it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from assay.doctor.evidence import Batch, Evidence
from assay.machine.terminal import quote
from assay.record.batch import FLAGS, WORDS

COUNTS = frozenset(
    "group_size prompts max_tokens updates_per_rollout minibatches microbatches sequences lora_rank parameters steps "
    "reference_every dataset_size".split()
)
ANY_SIGN = frozenset(("max_reward", "min_reward", "top_k", "pad_id", "kl_coef", "entropy_coef", "top_p"))
MAYBE_INFINITE = ("correction_high", "dual_clip", "delta")  # a bound that nothing reaches
WHOLE = frozenset(  # numbers
    (
        "step update policy_version tensors tensors_changed tensors_without_gradient dropout_modules prompts_left_open "
        "tensors_judged tensors_against tensors_astray tensors_exchanged steps_without_gradient"
    ).split()
)
LARGEST_COUNT = 2**53  # above it a float skips whole numbers


def usable(evidence: Evidence) -> Evidence:
    """The same evidence without what no check could use; its notes name what was left out."""
    notes = list(evidence.notes)
    batches = tuple(_usable_batch(batch, notes) for batch in evidence.batches)
    curves = evidence.curves
    if curves is not None:
        curves = replace(curves, settings=_usable_settings(curves.settings, "the run", notes))
    return replace(evidence, batches=batches, curves=curves, notes=tuple(dict.fromkeys(notes)))


def _usable_batch(batch: Batch, notes: list[str]) -> Batch:
    source = batch.source or "the batch"
    settings = _usable_settings(batch.settings, source, notes)
    numbers = {}
    for name, value in batch.numbers.items():
        if name in WHOLE and not (math.isfinite(value) and abs(value) <= LARGEST_COUNT):
            notes.append(f"{source}: {name} = {value} is not a count; it is not used")
        else:
            numbers[name] = value
    return replace(batch, settings=settings, numbers=numbers)


def _usable_settings(settings: Mapping[str, Any], source: str, notes: list[str]) -> dict[str, Any]:
    kept = {}
    for name, raw in settings.items():
        value = raw.item() if hasattr(raw, "item") and np.size(raw) == 1 else raw
        is_usable, kind = _check(name, value)
        if is_usable:
            kept[name] = value
        else:
            notes.append(f"{source}: the setting {name} = {quote(str(raw))} is not used: it must be {kind}")
    return kept


def _check(name: str, value: Any) -> tuple[bool, str]:
    """(whether the value is of the kind of this setting, that kind in words)"""
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)
    if name in WORDS:
        return isinstance(value, str), "a word"
    if name in FLAGS:
        return isinstance(value, bool) or (is_number and value in (0, 1)), "true or false"
    if name in COUNTS:
        return is_number and 0 <= value <= LARGEST_COUNT and float(value).is_integer(), "a count"
    if name == "eos_ids":
        return _are_ids(value), "an id, or a list of ids"
    return is_number and _is_amount(name, value), "a number, and not a negative one"


def _are_ids(value: Any) -> bool:
    ids = np.asarray(value) if isinstance(value, int | list | tuple | np.ndarray) and np.ndim(value) < 2 else None
    return ids is not None and not isinstance(value, bool) and ids.size > 0 and ids.dtype.kind in "iu"


def _is_amount(name: str, value: float) -> bool:
    if abs(value) > LARGEST_COUNT:
        return value > 0 and name in MAYBE_INFINITE
    return value > 0 if name == "temperature" else value >= 0 or name in ANY_SIGN
