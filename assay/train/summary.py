"""What a finished run says of itself in a few lines: rows of metrics.jsonl and evaluations.jsonl -> label -> text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from assay.train.plot import number

Row = Mapping[str, Any]

FEW = 5  # steps averaged at either end of a run
MOST = 0.9  # a share of the last steps above which nearly nothing was learned from
MANY = 0.25  # a share of truncated completions above which the limit, not the policy, writes the answers


def share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}%"


def summary_facts(rows: Sequence[Row], evaluations: Sequence[Row]) -> dict[str, str]:
    few = max(1, min(FEW, len(rows) // 2))
    head, tail = rows[:few], rows[-few:]
    rewards = " -> ".join(number(_mean(part, "reward_mean")) for part in (head, tail))
    steps = "steps" if few > 1 else "step"
    facts = {"reward": f"{rewards}   (first and last {few} {steps})"}
    if evaluations:
        ends = [evaluations[0], *evaluations[1:][-1:]]
        facts["held-out"] = _from_to(ends, {"greedy": "reward_greedy", "sampled": "reward_sampled"})
        # on a scale where every answer passes, or none, the share that does says nothing
        if {row.get("pass_at_k") for row in ends} - {None, 0.0, 1.0}:
            passes = {"greedy": "pass_greedy", "pass@1": "pass_at_1", f"pass@{ends[-1]['k']}": "pass_at_k"}
            facts["passed"] = _from_to(ends, passes)
    facts["zero-variance"] = f"{share(_mean(tail, 'zero_variance_share'))} of the groups   (last {few} {steps})"
    deviation, mismatch = _largest(rows, "first_ratio_max_deviation"), _largest(rows, "mismatch_max")
    if deviation is not None and mismatch is not None:
        exact = "exactly 1" if deviation == 0 else f"1 within {number(deviation)}"
        facts["checked"] = f"first ratio of every step {exact}; sampler = trainer within {number(mismatch)}"
    for label, note in _notes(rows, tail).items():
        facts[label] = note
    return facts


def _from_to(ends: Sequence[Row], keys: Mapping[str, str]) -> str:
    return ", ".join(f"{label} {' -> '.join(number(row.get(key)) for row in ends)}" for label, key in keys.items())


def _notes(rows: Sequence[Row], tail: Sequence[Row]) -> dict[str, str]:
    """What a user should not have to find out alone: facts of the record, without a guess at the cause."""
    notes = {}
    unscored, skipped = _sum(rows, "rollouts_unscored"), _sum(rows, "updates_skipped")
    if unscored:
        total = unscored + _sum(rows, "rollouts_scored")
        notes["unscored"] = f"{unscored} of {total} rollouts: the reward failed; see `error` in rollouts/"
    if skipped:
        notes["skipped"] = f"{skipped} of the updates: not finite, never applied"
    if rows and all(row.get("updates_applied") == 0 for row in rows):
        notes["no update"] = "the weights never moved: no group had two different rewards to compare"
    elif (_mean(tail, "zero_variance_share") or 0.0) > MOST:
        notes["no signal"] = f"nearly every group has equal rewards (mean {number(_mean(tail, 'reward_mean'))})"
    if (_mean(tail, "truncated_share") or 0.0) > MANY:
        notes["truncated"] = f"{share(_mean(tail, 'truncated_share'))} of the completions hit rollout.max_tokens"
    return notes


def _mean(rows: Sequence[Row], key: str) -> float | None:
    values = [row[key] for row in rows if row.get(key) is not None]
    return sum(values) / len(values) if values else None


def _largest(rows: Sequence[Row], key: str) -> float | None:
    return max((row[key] for row in rows if row.get(key) is not None), default=None)


def _sum(rows: Sequence[Row], key: str) -> int:
    return sum(row.get(key) or 0 for row in rows)
