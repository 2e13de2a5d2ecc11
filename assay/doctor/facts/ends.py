"""Whether answers that reach the token limit end there as often as their log-probs say.

At the last place an answer ends with probability p, or is cut off. Only the log-prob of what was drawn is known. If the
tokens are draws, the sum of (1 - p) / p over the answers that end there is on average the number of those that are cut
off: each answer that ends stands for (1 - p) / p others that do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from assay.record.batch import Batch

FEWEST = 20  # rows that reach the limit
RAREST = 1 / 3  # an end that was less probable stands for two others: more would make the sum noisy


class Ends(NamedTuple):
    rows: int
    cut_off: int
    expected: float  # to be cut off
    variance: float  # of the difference of both
    largest: float

    @property
    def evidence(self) -> float:
        """In nats, by the bound of Bernstein; 0 where more are cut off than expected."""
        fewer = self.expected - self.cut_off
        if fewer <= 0 or self.rows < FEWEST:
            return 0.0
        return fewer**2 / (2 * (self.variance + self.largest * fewer / 3))


def ends_at_the_limit(batch: Batch) -> Ends | None:
    """None where it is not known which rows reach the limit, or with which log-probs they ended."""
    limit, lengths_B, finished_B = batch.settings.get("max_tokens"), batch.get("lengths"), batch.get("finished")
    names = [name for name in ("plain_logprobs", "old_logprobs", "sampler_logprobs") if batch.get(name) is not None]
    if limit is None or lengths_B is None or finished_B is None or not names or "eos_ids" not in batch.settings:
        return None
    logprobs_BT, tokens_BT = batch.need(names[0], "tokens")
    at = int(limit) - 1
    if at >= tokens_BT.shape[1]:
        return None
    reach_B = lengths_B == int(limit)
    ends_B = reach_B & np.isin(tokens_BT[:, at], batch.settings["eos_ids"]) & finished_B
    p_N = np.maximum(np.exp(np.minimum(logprobs_BT[ends_B, at], 0.0)), RAREST)
    odds_N = (1 - p_N) / p_N
    return Ends(
        int(reach_B.sum()),
        int((reach_B & ~finished_B).sum()),
        float(odds_N.sum()),
        float((odds_N / p_N).sum()),  # each end stands for 1 / p rows with a variance of (1 - p) / p
        max(1.0, float(odds_N.max(initial=0.0))),
    )


def is_of_all_rows(batch: Batch) -> bool:
    """Whether the record says that no row was left out by what was sampled."""
    return batch.settings.get("zero_variance", "keep") == "keep" and not batch.settings.get("mask_truncated")


def pool_ends(parts: Sequence[Ends]) -> Ends:
    rows, cut_off, expected, variance, largest = zip(*parts, strict=True)
    return Ends(sum(rows), sum(cut_off), sum(expected), sum(variance), max(largest))
