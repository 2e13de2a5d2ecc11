"""What of a batch's settings and numbers can be used: a value of the wrong kind is left out, and a note says so.

A batch may come from anybody's script. A check then reports that the setting is missing, instead of failing on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from assay.doctor.evidence import Batch, Evidence
from assay.verdict import shown

WORDS = frozenset(
    (
        "objective",
        "aggregation",
        "kl_placement",
        "kl_estimator",
        "kl_gradient",
        "correction",
        "correction_mode",
        "baseline",
        "std",
        "scale",
        "combine",
        "zero_variance",
        "dtype",
        "trainer",
    )
)
FLAGS = frozenset(("support_kept", "mask_truncated", "process_rewards"))
COUNTS = frozenset(
    (
        "group_size",
        "prompts",
        "max_tokens",
        "updates_per_rollout",
        "minibatches",
        "microbatches",
        "sequences",
        "lora_rank",
        "parameters",
        "steps",
        "reference_every",
    )
)
ANY_SIGN = frozenset(("max_reward", "min_reward", "top_k", "pad_id", "kl_coef", "entropy_coef", "top_p"))
WHOLE = frozenset(  # numbers
    (
        "step",
        "update",
        "policy_version",
        "tensors",
        "tensors_changed",
        "tensors_without_gradient",
        "dropout_modules",
    )
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


def _usable_settings(settings: Any, source: str, notes: list[str]) -> dict[str, Any]:
    kept = {}
    for name, raw in settings.items():
        value = raw.item() if hasattr(raw, "item") and np.size(raw) == 1 else raw
        wanted = next((words for is_so, words in _WANTED if is_so(name, value) is False), None)
        if wanted is None:
            kept[name] = value
        else:
            notes.append(f"{source}: the setting {name} = {shown(str(raw))} is not used: it must be {wanted}")
    return kept


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)


def _is_word(name: str, value: Any) -> bool | None:
    return isinstance(value, str) if name in WORDS else None


def _is_flag(name: str, value: Any) -> bool | None:
    return (isinstance(value, bool) or (_is_number(value) and value in (0, 1))) if name in FLAGS else None


def _is_count(name: str, value: Any) -> bool | None:
    if name not in COUNTS:
        return None
    return _is_number(value) and 0 <= value <= LARGEST_COUNT and float(value).is_integer()


def _are_ids(name: str, value: Any) -> bool | None:
    if name != "eos_ids":
        return None
    ids = np.asarray(value) if isinstance(value, int | list | tuple | np.ndarray) and np.ndim(value) < 2 else None
    return ids is not None and not isinstance(value, bool) and ids.size > 0 and ids.dtype.kind in "iu"


def _is_amount(name: str, value: Any) -> bool | None:
    if name in WORDS | FLAGS | COUNTS or name == "eos_ids":
        return None
    if not _is_number(value) or abs(value) > LARGEST_COUNT:
        return bool(_is_number(value) and value > 0 and name in ("correction_high", "dual_clip", "delta"))
    if name == "temperature":
        return bool(value > 0)
    return bool(name in ANY_SIGN or value >= 0)


_WANTED: tuple[tuple[Callable[[str, Any], bool | None], str], ...] = (
    (_is_word, "a word"),
    (_is_flag, "true or false"),
    (_is_count, "a count"),
    (_are_ids, "an id, or a list of ids"),
    (_is_amount, "a number, and not a negative one"),
)
