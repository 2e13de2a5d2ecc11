"""Batches of one run --> its curves: one row per step, of what the batches hold. A few steps show a reward that never
varies, a loss that is NaN from some step on, a rate of 0."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from assay.doctor.evidence.curves import Curves
from assay.record.batch import Array, Batch

FEWEST = 3  # steps: fewer do not make a curve
_SETTINGS = ("max_reward", "min_reward", "mask_truncated", "max_tokens", "dtype")  # by which curves are judged
_NUMBERS = ("loss", "policy_loss", "gradient_norm")


def curves_of_batches(batches: Sequence[Batch]) -> Curves | None:
    """None where they are of too few steps. Of several updates of one step the first counts."""
    rows: dict[int, dict[str, Any]] = {}
    for batch in batches:
        if batch.step is not None and batch.step not in rows:
            rows[batch.step] = row_of_batch(batch)
    if len(rows) < FEWEST or list(rows) != sorted(rows):
        return None
    return Curves([*rows.values()], settings=curve_settings(batches))


def curve_settings(batches: Sequence[Batch]) -> dict[str, Any]:
    return {name: batch.settings[name] for batch in batches for name in _SETTINGS if name in batch.settings}


def row_of_batch(batch: Batch) -> dict[str, Any]:
    """By the names of assay/record/metrics.py."""
    row: dict[str, Any] = {"step": batch.step}
    row |= {name: float(batch.numbers[name]) for name in _NUMBERS if name in batch.numbers}
    if "learning_rate" in batch.settings and not batch.numbers.get("tensors_changed"):
        row["learning_rate"] = float(batch.settings["learning_rate"])  # else others may have rates of their own
    rewards_B, finished_B = batch.get("rewards"), batch.get("finished")
    if rewards_B is not None and np.isfinite(rewards_B).sum() > 1:
        row |= _rewards(rewards_B[np.isfinite(rewards_B)])
    if finished_B is not None and len(finished_B):
        row["truncated_share"] = 1.0 - float(np.mean(finished_B))
    entropy_BT, mask_BT = batch.get("entropy"), batch.get("mask")
    if entropy_BT is not None and mask_BT is not None and mask_BT.any():
        row["entropy"] = float(entropy_BT[mask_BT].mean())
    return row


def _rewards(rewards_N: Array) -> dict[str, float | int]:
    return {
        "reward_mean": float(rewards_N.mean()),
        "reward_std": float(rewards_N.std(ddof=1)),
        "reward_min": float(rewards_N.min()),
        "reward_max": float(rewards_N.max()),
        "rollouts_scored": len(rewards_N),
    }
