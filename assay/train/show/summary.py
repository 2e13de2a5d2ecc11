"""The summary of a finished run: rows of metrics.jsonl and evaluations.jsonl -> label -> text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from assay.machine.terminal import number, share
from assay.record.metrics import component_means
from assay.train.run.best import SCORE, best_row

Row = Mapping[str, Any]

FEW = 5  # steps averaged at either end of a run
MOST = 0.9  # share of groups without signal in the last steps above which the summary mentions it
MOST_COMPONENTS = 8  # of the reward that are listed
MANY = 0.25  # share of truncated completions above which the summary mentions them


def summary_facts(rows: Sequence[Row], evaluations: Sequence[Row], *, names_best: bool = False) -> dict[str, str]:
    """`names_best`: the best evaluation too, whose weights are kept."""
    few = max(1, min(FEW, len(rows) // 2))
    head, tail = rows[:few], rows[-few:]
    rewards = " -> ".join(number(_mean(part, "reward_mean")) for part in (head, tail))
    steps = "steps" if few > 1 else "step"
    facts = {"reward": f"{rewards}   (first and last {few} {steps})"}
    components = list(dict.fromkeys(name for row in rows for name in component_means(row)))[:MOST_COMPONENTS]
    ends = [*evaluations[:1], *evaluations[1:][-1:]]
    for name in components:
        facts[f"  {name}"] = " -> ".join(number(_mean(part, f"reward_{name}_mean")) for part in (head, tail))
        if ends:
            both = {"greedy": f"reward_{name}_greedy", "sampled": f"reward_{name}_sampled"}
            facts[f"  {name}"] += f"; held-out {_from_to(ends, both)}"
    if ends:
        facts["held-out"] = f"{_scores(ends)} ({_prompts(ends[-1])})"
        # on a scale where every answer passes, or none, the share that does says nothing
        if {row.get("pass_at_k") for row in ends} - {None, 0.0, 1.0}:
            passes = {"greedy": "pass_greedy", "pass@1": "pass_at_1", f"pass@{ends[-1]['k']}": "pass_at_k"}
            facts["passed"] = _from_to(ends, passes)
    best = best_row(evaluations) if names_best else None
    if best is not None:
        when = f"after step {best['step']}, in best/" if best["step"] else "before training; no later score was better"
        facts["best"] = f"held-out sampled {number(best[SCORE])} {when}"
    facts["zero-variance"] = f"{share(_mean(tail, 'zero_variance_share'))} of the groups   (last {few} {steps})"
    deviation, mismatch = _largest(rows, "first_ratio_max_deviation"), _largest(rows, "mismatch_max")
    if deviation is not None and mismatch is not None:
        exact = "exactly 1" if deviation == 0 else f"1 within {number(deviation)}"
        facts["checked"] = f"first ratio of every step {exact}; sampler = trainer within {number(mismatch)}"
    for label, note in _notes(rows, tail).items():
        facts[label] = note
    return facts


def heldout_fact(row: Row) -> dict[str, str]:
    """One held-out evaluation in a line."""
    when = f"after step {row['step']}" if row["step"] else "before training"
    return {"held-out": f"{_scores([row])} {when} ({_prompts(row)})"}


def _scores(rows: Sequence[Row]) -> str:
    return _from_to(rows, {"greedy": "reward_greedy", "sampled": "reward_sampled"})


def _prompts(row: Row) -> str:
    has_error = row.get("reward_greedy_std_error") is not None or row.get("reward_sampled_std_error") is not None
    return f"n = {row['prompts']}" + (", +- std error" if has_error else "")


def _from_to(rows: Sequence[Row], keys: Mapping[str, str]) -> str:
    """The numbers from the first row to the last; the last with its standard error where there is one."""
    shown = []
    for label, key in keys.items():
        error = rows[-1].get(f"{key}_std_error")
        numbers = " -> ".join(number(row.get(key)) for row in rows)
        shown.append(f"{label} {numbers}" + ("" if error is None else f" +- {number(error)}"))
    return ", ".join(shown)


def _notes(rows: Sequence[Row], tail: Sequence[Row]) -> dict[str, str]:
    """Problems that the record shows, without a guess at their cause."""
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
