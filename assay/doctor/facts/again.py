"""Rows that are trained on several times: what an update did to them, seen in the next one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from assay.record.batch import Array, Batch

_NAMES = ("tokens", "mask", "new_logprobs")


def changes_between(batches: Sequence[Batch]) -> Iterator[tuple[Batch, Array]]:
    """Each update whose next one is on the same rows, and how it changed their log-probs: 0 outside of the mask."""
    for before, after in pairwise(batches):
        is_next = after.numbers.get("update", -1) == before.numbers.get("update", 0) + 1
        has_all = all(batch.get(name) is not None for batch in (before, after) for name in _NAMES)
        if before.step is None or before.step != after.step or not is_next or not has_all:
            continue
        if np.array_equal(before.arrays["tokens"], after.arrays["tokens"]):
            changes_BT = after.arrays["new_logprobs"] - before.arrays["new_logprobs"]
            yield before, np.where(before.arrays["mask"], np.nan_to_num(changes_BT), 0.0)
