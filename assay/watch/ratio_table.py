"""The table that a good engineer would print: the ratio of new to old in each update of each rollout batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from assay.programs.run.watched import WatchedRun
from assay.record.batch import Batch

ONE = 1e-3  # of |ratio - 1|: float32 leaves less
ONE_16 = 5e-2
MOST_LINES = 24  # lines


@dataclass(frozen=True)
class Ratios:
    """Over the loss tokens of one update. `clipped` is None where the script clips nothing."""

    step: int
    update: int
    mean: float
    low: float
    high: float
    clipped: float | None
    k1: float
    k3: float
    dtype: str = "float32"

    @property
    def is_one(self) -> bool:
        return max(abs(self.low - 1), abs(self.high - 1)) <= (ONE if self.dtype == "float32" else ONE_16)

    @property
    def is_exactly_one(self) -> bool:
        return self.low == self.high == 1.0


def ratios_of(batches: Sequence[Batch]) -> list[Ratios]:
    found = []
    for batch in batches:
        new_BT, old_BT, mask_BT = (batch.get(name) for name in ("new_logprobs", "old_logprobs", "mask"))
        if new_BT is None or old_BT is None or mask_BT is None or "update" not in batch.numbers:
            continue
        judged_BT = mask_BT & np.isfinite(new_BT) & np.isfinite(old_BT)
        if not judged_BT.any():
            continue
        log_N = (new_BT - old_BT)[judged_BT]
        with np.errstate(over="ignore"):
            ratio_N = np.exp(log_N)
        low, high = batch.settings.get("clip_low"), batch.settings.get("clip_high")
        clipped = None
        if low is not None or high is not None:
            outside_N = (ratio_N < 1 - low if low is not None else False) | (
                ratio_N > 1 + high if high is not None else False
            )
            clipped = float(np.mean(outside_N))
        found.append(
            Ratios(
                batch.step or 0, int(batch.number("update")), float(ratio_N.mean()), float(ratio_N.min()),
                float(ratio_N.max()), clipped, float(-log_N.mean()), float((ratio_N - 1 - log_N).mean()),
                str(batch.settings.get("dtype", "float32")),
            )
        )  # fmt: skip
    return found


def ratio_lines(run: WatchedRun) -> list[str]:
    ratios = ratios_of(run.batches)
    if not ratios:
        return ["ratio new / old: no old log-probs were recognised in the loss" if run.batches else ""]
    lines = [
        "ratio new / old, by rollout batch and update of it",
        "  batch update    mean     min     max  clipped  KL k1      KL k3",
    ]
    for row in ratios[:MOST_LINES]:
        clipped = "      -" if row.clipped is None else f"{row.clipped:7.1%}"
        lines.append(
            f"  {row.step:5d} {row.update + 1:6d} {row.mean:7.4f} {row.low:7.4f} {row.high:7.4f}  {clipped} "
            f"{row.k1:9.2e} {row.k3:9.2e}"
        )
    if len(ratios) > MOST_LINES:
        lines.append(f"  and {len(ratios) - MOST_LINES} more")
    return [*lines, f"  {sentence(ratios)}"]


def sentence(ratios: Sequence[Ratios]) -> str:
    """What the table says."""
    first, later = [row for row in ratios if row.update == 0], [row for row in ratios if row.update > 0]
    off = [row for row in first if not row.is_one]
    if off:
        worst = max(off, key=lambda row: max(abs(row.low - 1), abs(row.high - 1)))
        return (
            f"not 1.0 on the first update of rollout batch {worst.step}, although no weight has changed yet: old and "
            "new are not the same computation"
        )
    if later and all(row.is_exactly_one for row in later):
        return (
            "exactly 1.0 on later updates too, although the weights were updated: old is computed again in each update"
        )
    if first and later:
        return "1.0 on the first update of each rollout batch, drifting later: by design"
    if first:
        return "1.0 on the only update of each rollout batch: by design; the clip can then do nothing"
    return "no first update of a rollout batch was seen"
