"""What no metric counts, of some recorded steps: groups all right or all wrong, tokens beyond either side of the clip,
lengths by outcome. From rollouts/*.parquet, or from the batches of another trainer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from assay.doctor.evidence import Batch, Evidence
from assay.doctor.evidence.run_directory import spread
from assay.grpo import OBJECTIVES
from assay.machine.faults import FAULTS
from assay.record.batch import Array
from assay.record.directory import rollout_files

MOST_STEPS = 48
_COLUMNS = ("group", "reward", "advantage", "stop", "mask", "old_logprobs", "new_logprobs")


@dataclass(frozen=True)
class SampledStep:
    step: int
    groups: int
    all_best: int  # groups in which every reward is the best of the run
    all_equal: int  # other groups whose rewards are equal
    clip_low: float | None  # share of the loss tokens beyond either bound, in the last update
    clip_high: float | None
    lengths: Array  # of every completion, with its reward
    rewards: Array


def sampled_steps(path: Path, evidence: Evidence, best: float | None) -> list[SampledStep]:
    settings = evidence.curves.settings if evidence.curves is not None else {}
    files = dict(rollout_files(path)) if path.is_dir() else {}
    if not files:
        batches = {batch.step: batch for batch in evidence.batches if batch.step is not None}
        return [step for batch in batches.values() if (step := _of_batch(batch, best)) is not None]
    found = [_of_file(number, files[number], settings, best) for number in spread(list(files), MOST_STEPS)]
    return [step for step in found if step is not None]


def _of_file(number: int, file: Path, settings: Mapping[str, Any], best: float | None) -> SampledStep | None:
    """None of a file that cannot be read: the doctor's notes name it."""
    import pyarrow.parquet as parquet

    try:
        table = parquet.read_table(file, columns=list(_COLUMNS))
    except FAULTS:
        return None
    rewards_B = np.array(table["reward"].to_numpy(), dtype=np.float64)
    groups_B = table["group"].to_numpy()
    trained = table.filter(table["old_logprobs"].is_valid())
    shares: tuple[float | None, float | None] = (None, None)
    if len(trained) and is_clipped_by_token(settings):
        old_N, new_N, mask_N = (_flat(trained, name) for name in ("old_logprobs", "new_logprobs", "mask"))
        lengths_B = _lengths(trained, "old_logprobs")
        advantages_N = np.repeat(np.array(trained["advantage"].to_numpy(), dtype=np.float64), lengths_B)
        shares = _clip_shares(new_N - old_N, advantages_N, mask_N.astype(bool), settings)
    return _sampled(number, groups_B, rewards_B, _lengths(table, "mask"), shares, best)


def _of_batch(batch: Batch, best: float | None) -> SampledStep | None:
    rewards_B, groups_B, mask_BT = (batch.get(name) for name in ("rewards", "group_ids", "mask"))
    if rewards_B is None or batch.step is None:
        return None
    groups_B = np.zeros(len(rewards_B)) if groups_B is None else groups_B
    lengths_B = batch.get("lengths")
    if lengths_B is None and mask_BT is not None:
        lengths_B = mask_BT.sum(axis=1)
    shares: tuple[float | None, float | None] = (None, None)
    new_BT, old_BT = batch.get("new_logprobs"), batch.get("old_logprobs")
    known = new_BT is not None and old_BT is not None and mask_BT is not None and "advantages" in batch.arrays
    if known and is_clipped_by_token(batch.settings):
        log_ratio_BT = batch.arrays["new_logprobs"] - batch.arrays["old_logprobs"]
        shares = _clip_shares(log_ratio_BT, batch.token_advantages, batch.arrays["mask"], batch.settings)
    lengths_B = np.full(len(rewards_B), np.nan) if lengths_B is None else lengths_B
    return _sampled(batch.step, groups_B, rewards_B, lengths_B, shares, best)


def _sampled(
    step: int,
    groups_B: Array,
    rewards_B: Array,
    lengths_B: Array,
    shares: tuple[float | None, float | None],
    best: float | None,
) -> SampledStep:
    counts = {"best": 0, "equal": 0}
    names = np.unique(groups_B)
    for name in names:
        scored = rewards_B[(groups_B == name) & np.isfinite(rewards_B)]
        if len(scored) and scored.max() == scored.min():
            counts["best" if best is not None and scored[0] >= best else "equal"] += 1
    return SampledStep(step, len(names), counts["best"], counts["equal"], *shares, lengths_B, rewards_B)


def is_clipped_by_token(settings: Mapping[str, Any]) -> bool:
    """Whether the loss clips the ratio of each token at known bounds."""
    objective = OBJECTIVES.get(str(settings.get("objective")))
    knows_bounds = "clip_low" in settings and "clip_high" in settings
    return knows_bounds and objective is not None and objective.clips and objective.level == "token"


def clipped_sides(log_ratio: Array, advantages: Array, settings: Mapping[str, Any]) -> tuple[Array, Array]:
    """Tokens without gradient because their ratio is below, or above, the bound that their advantage pushes it to."""
    with np.errstate(over="ignore", invalid="ignore"):
        ratio = np.exp(log_ratio)
    below = (ratio < 1 - float(settings["clip_low"])) & (advantages < 0)
    return below, (ratio > 1 + float(settings["clip_high"])) & (advantages > 0)


def _clip_shares(log_ratio: Array, advantages: Array, mask: Array, settings: Mapping[str, Any]) -> tuple[float, float]:
    below, above = clipped_sides(log_ratio, advantages, settings)
    count = max(int(mask.sum()), 1)
    return float((below & mask).sum() / count), float((above & mask).sum() / count)


def _flat(table: Any, name: str) -> Array:
    return np.asarray(table[name].combine_chunks().flatten().to_numpy(zero_copy_only=False))


def _lengths(table: Any, name: str) -> Array:
    import pyarrow.compute as compute

    return np.asarray(compute.list_value_length(table[name].combine_chunks()).to_numpy(zero_copy_only=False))


def best_reward(evidence: Evidence, rows: Sequence[Mapping[str, Any]]) -> float | None:
    """The best reward that is known: the one that passes, or the highest of the run where that one is higher."""
    highest = [float(row["reward_max"]) for row in rows if isinstance(row.get("reward_max"), (int, float))]
    passing = evidence.curves.settings.get("max_reward") if evidence.curves is not None else None
    known = [*highest, *([float(passing)] if passing is not None else [])]
    return max(known, default=None)
