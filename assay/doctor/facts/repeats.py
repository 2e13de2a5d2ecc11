"""Rows that were sampled twice: which completions are equal, and how probable that is under the policy itself.

Shape legend: B completions, T completion tokens.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TypeVar

import numpy as np

from assay.doctor.evidence import Batch
from assay.doctor.facts.logprobs import completion_places, row_spans
from assay.record.batch import Array
from assay.verdict import Confidence, Missing

Completion = tuple[int, ...]
Key = TypeVar("Key", bound=Hashable)
Kept = TypeVar("Kept")
_WORDS = ("old_logprobs", "sampler_logprobs")
_CERTAIN = -1e-6  # a log-prob above this is a probability of 1


def completions(batch: Batch) -> list[Completion]:
    """Token ids of each row, without padding; () where nothing says how long the row is."""
    (tokens_BT,) = batch.need("sampled_tokens" if batch.get("sampled_tokens") is not None else "tokens")
    spans = zip(tokens_BT, *row_spans(batch), strict=True)
    return [tuple(row[start:end].tolist()) for row, start, end in spans]


def log_chances(batch: Batch) -> Array:
    """Log-probability of each whole completion; NaN where a token has none. Raises Missing without log-probs.

    Taken from the plain log-probs, if there are any. Else the higher of the trainer's and the sampler's: an error in
    one of them must not make a common answer look rare. A sampler that was certain of every token does not count: a
    greedy engine may report a probability of 1 for whatever it took.
    """
    batch.need("tokens")
    inside_BT = completion_places(batch)
    mask_BT = batch.get("mask")
    if mask_BT is not None:  # what is not trained was perhaps not sampled; of rows that are left out all was
        inside_BT = inside_BT & (mask_BT | ~mask_BT.any(axis=1, keepdims=True))
    plain_BT = batch.get("plain_logprobs")
    words = [plain_BT] if plain_BT is not None else [word for name in _WORDS if (word := batch.get(name)) is not None]
    known = [word_BT for word_BT in words if np.isfinite(word_BT[inside_BT]).any()]
    doubtful = [word_BT for word_BT in known if not (word_BT[inside_BT] > _CERTAIN).all()]
    if not known:
        raise Missing(f"plain_logprobs, {' or '.join(_WORDS)}")
    sums_WB = np.array([np.where(inside_BT, word_BT, 0.0).sum(axis=1) for word_BT in doubtful or known])
    chances_B: Array = np.minimum(np.fmax.reduce(sums_WB, axis=0), 0.0)
    return chances_B


def values_by_key(keys: Iterable[Key], values: Iterable[Kept]) -> dict[Key, list[Kept]]:
    """The values that stand beside equal keys, together.

    >>> values_by_key("abca", range(4))
    {'a': [0, 3], 'b': [1], 'c': [2]}
    """
    found: dict[Key, list[Kept]] = {}
    for key, value in zip(keys, values, strict=True):
        found.setdefault(key, []).append(value)
    return found


def certainty(batch: Batch) -> Confidence:
    """How sure the log-probs are those of the distribution that was sampled from."""
    settings = batch.settings
    is_cut = settings.get("top_k", 0) > 0 or settings.get("top_p", 1.0) < 1 or settings.get("min_p", 0.0) > 0
    if is_cut and not settings.get("support_kept"):
        return Confidence.POSSIBLE
    if batch.get("plain_logprobs") is not None or settings.get("temperature", 0.0) >= 1:
        return Confidence.PROVEN
    return Confidence.POSSIBLE if "temperature" in settings else Confidence.LIKELY


def groups_of(batch: Batch) -> list[list[int]]:
    """Rows of each group in order; groups of one row are left out, and so are rows without a completion."""
    groups: dict[int | str, list[int]] = {}
    if batch.get("group_ids") is not None:
        names: list[int | str] = batch.need("group_ids")[0].tolist()
    elif "prompt_id" in batch.texts:
        names = list(batch.texts["prompt_id"])
    else:
        raise Missing("group_ids")
    for row, (name, completion) in enumerate(zip(names, completions(batch), strict=True)):
        if completion:
            groups.setdefault(name, []).append(row)
    return [rows for rows in groups.values() if len(rows) > 1]
