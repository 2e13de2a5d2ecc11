"""StepRecord -> the numbers of one step: one row of metrics.jsonl, one row of timings.jsonl.

Sums and counts travel in the record; each number here is one division of two totals over the whole step. A number
that does not exist (no scored rollout, no sound update) or is not finite is None, never 0.

A sound update is one whose numbers are all finite: it was applied, or not taken because every advantage was 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from assay.types import NO_SIGNAL, StepRecord, Update

Row = dict[str, float | int | None]

METRICS: dict[str, str] = {
    "step": "Number of the training step; the first is 1.",
    "policy_version": "Version of the policy after the step: optimizer updates applied since the start of the run.",
    "groups": "Groups in the record of this step; one group is one prompt with its rollouts.",
    "groups_without_signal": "Groups generated in this step whose scored rewards are all equal, later replaced or not.",
    "zero_variance_share": "groups_without_signal as a share of all groups generated in this step.",
    "refill_rounds": "Rounds of generation that replaced groups without signal.",
    "rollouts_scored": "Rollouts that got a reward.",
    "rollouts_unscored": "Rollouts whose reward failed; they are in no reward statistic.",
    "reward_mean": "Mean reward of all scored rollouts, trained on or not, penalties (KL, length) included.",
    "reward_std": "Standard deviation (n - 1) of the rewards of all scored rollouts of the step, not within groups.",
    "reward_min": "Smallest reward of a scored rollout.",
    "reward_max": "Largest reward of a scored rollout.",
    "length_mean": "Mean number of tokens of a completion, its EOS included.",
    "length_max": "Number of tokens of the longest completion.",
    "truncated_share": "Share of the rollouts that the token limit cut off.",
    "tokens_generated": "Completion tokens of all rollouts in the record of this step.",
    "tokens_in_loss": "Completion tokens that the loss mask lets through, each counted once.",
    "tokens_trained": "Loss tokens summed over the applied updates: a token counts once for each epoch.",
    "updates_applied": "Optimizer updates that moved the weights.",
    "updates_without_signal": "Sound optimizer updates that were not taken because every advantage was 0.",
    "updates_skipped": "Optimizer updates refused because something was not finite; their numbers enter no mean.",
    "loss": "Loss, as the mean over the sound updates.",
    "policy_loss": "Policy part of the loss, as the mean over the sound updates.",
    "kl_loss": "KL part of the loss, coefficient included, as the mean over the sound updates.",
    "entropy_loss": "Entropy part of the loss, coefficient and sign included, as the mean over the sound updates.",
    "learning_rate": "Learning rate of the last applied update.",
    "gradient_norm": "Norm of the gradient before clipping, as the mean over the sound updates.",
    "gradient_norm_max": "Largest norm of the gradient before clipping among the sound updates.",
    "update_norm": "Euclidean length of the change of all weights in one update, as the mean over the applied updates.",
    "tensors_changed_share": "Share of the trainable tensors in which an applied update changed at least one number.",
    "ratio_mean": "Mean of new / old over the loss tokens of the sound updates.",
    "ratio_std": "Standard deviation (n) of new / old over the loss tokens of the sound updates.",
    "ratio_min": "Smallest new / old of a loss token.",
    "ratio_max": "Largest new / old of a loss token.",
    "first_ratio_max_deviation": "Largest distance of new / old from 1 in the step's first update, where it must be 0.",
    "clipped_share": "Share of the loss tokens of the sound updates that were clipped.",
    "old_kl": "KL of old against new (k3), as the mean over the loss tokens of the sound updates.",
    "ref_kl": "KL of new against the reference (k3), mean over loss tokens; null without a reference in the loss.",
    "entropy": "Entropy of the policy in nats, as the mean over the loss tokens of the sound updates.",
    "surprise_mean": "Mean log-prob + entropy over the tokens of the first update; about 0 for draws of the policy.",
    "surprise_error": "Standard error of surprise_mean.",
    "mismatch_mean": "Mean distance between the log-probs of old and of the sampler over the loss tokens.",
    "mismatch_max": "Largest distance between the log-probs of old and of the sampler on a loss token.",
    "correction_mean": "Mean importance weight old / sampler over the loss tokens, after truncation or masking.",
    "correction_ess": "Effective sample size of these weights as a share of the tokens; 1 means that all are equal.",
}

COMPONENT_METRICS: dict[str, str] = {
    "reward_<name>_mean": "Mean of one reward component, before weighting, over the rollouts that have it.",
    "reward_<name>_std": "Standard deviation (n - 1) of one reward component over the rollouts that have it.",
}

TIMINGS: dict[str, str] = {
    "step": "Number of the training step, as in metrics.jsonl.",
    "seconds": "Wall-clock seconds of the step: the sum of its stages.",
    "tokens_per_second": "Completion tokens of the step divided by its seconds.",
    "seconds_<stage>": "Wall-clock seconds of one stage.",
    "memory_bytes_<stage>": "Memory in use at the end of one stage, in bytes.",
}

# Beyond these a number is not rounding.
LARGEST_FLOAT32 = 1e-3  # of any |difference| of two log-probs: sound float32 arithmetic leaves 3e-5
MEAN_LOW_PRECISION = 0.1  # of the mean |difference|: bfloat16 leaves 0.03, and up to 1 at single tokens
FIRST_RATIO_LIMIT = 1e-3  # of |ratio - 1| before any update: the same arithmetic twice gives 0 in any precision


def mismatch_limit(dtype: str | None) -> tuple[str, float]:
    """The metric that shows whether sampler and trainer differ by more than rounding, and its limit."""
    return ("mismatch_max", LARGEST_FLOAT32) if dtype == "float32" else ("mismatch_mean", MEAN_LOW_PRECISION)


def metrics_row(record: StepRecord) -> Row:
    rollouts = [rollout for group in record.groups for rollout in group.rollouts]
    rewards = [reward for group in record.groups for reward in group.rewards if reward is not None]
    lengths = [len(rollout.tokens) for rollout in rollouts]
    row: Row = {
        "step": record.step,
        "policy_version": record.policy_version,
        "groups": len(record.groups),
        "groups_without_signal": record.groups_without_signal,
        "zero_variance_share": _share(record.groups_without_signal, len(record.groups)),
        "refill_rounds": record.refill_rounds,
        "rollouts_scored": len(rewards),
        "rollouts_unscored": len(rollouts) - len(rewards),
        "reward_mean": _mean(rewards),
        "reward_std": _sample_std(rewards),
        "reward_min": _extreme(min, rewards),
        "reward_max": _extreme(max, rewards),
        "length_mean": _mean(lengths),
        "length_max": max(lengths, default=None),
        "truncated_share": _share(sum(rollout.truncated for rollout in rollouts), len(rollouts)),
        "tokens_generated": sum(lengths),
        "tokens_in_loss": sum(len(sample.rollout.tokens) for sample in record.samples if sample.in_loss),
    }
    row |= _update_metrics(record)
    row |= _component_metrics(record)
    return row


def component_means(row: Mapping[str, Any]) -> dict[str, float | None]:
    """The mean of each reward component by its name; none if the only one is the reward itself.

    >>> component_means({"reward_mean": 1.5, "reward_exact_mean": 1.0, "reward_brief_mean": 0.5, "reward_std": 0.1})
    {'exact': 1.0, 'brief': 0.5}
    """
    means = {
        key.removeprefix("reward_").removesuffix("_mean"): value
        for key, value in row.items()
        if key.startswith("reward_") and key.endswith("_mean") and key != "reward_mean"
    }
    return {} if list(means.values()) == [row.get("reward_mean")] else means


def timings_row(record: StepRecord) -> Row:
    seconds = sum(record.seconds.values())
    tokens = sum(len(rollout.tokens) for group in record.groups for rollout in group.rollouts)
    row: Row = {"step": record.step, "seconds": _finite(seconds), "tokens_per_second": _share(tokens, seconds)}
    row |= {f"seconds_{stage}": _finite(value) for stage, value in record.seconds.items()}
    row |= {f"memory_bytes_{stage}": value for stage, value in record.memory_bytes.items()}
    return row


def _surprise(first: Update | None) -> Row:
    """Of the first update of a step: there new is the policy that sampled."""
    if first is None or not first.tokens:
        return {"surprise_mean": None, "surprise_error": None}
    mean = first.surprise_sum / first.tokens
    variance = max(first.surprise_square_sum / first.tokens - mean * mean, 0.0)
    return {"surprise_mean": _finite(mean), "surprise_error": _finite(math.sqrt(variance / first.tokens))}


def _update_metrics(record: StepRecord) -> Row:
    applied = [update for update in record.updates if update.applied]
    sound = [update for update in record.updates if update.applied or update.skipped == NO_SIGNAL]
    with_tokens = [update for update in sound if update.tokens]  # an update without any has no ratio

    def total(name: str, updates: Sequence[Update] = sound) -> float:
        values: list[float] = [getattr(update, name) for update in updates]
        return sum(values)

    def extreme(choose: Callable[[Iterable[float]], float], name: str) -> float | None:
        return _extreme(choose, [getattr(update, name) for update in with_tokens])

    tokens = total("tokens")
    correction = total("correction_sum")
    ratio_mean, ratio_square = _share(total("ratio_sum"), tokens), _share(total("ratio_square_sum"), tokens)
    ratio_std = None
    if ratio_mean is not None and ratio_square is not None:
        ratio_std = math.sqrt(max(ratio_square - ratio_mean * ratio_mean, 0.0))  # rounding may take it below 0
    return {
        "tokens_trained": total("tokens", applied),
        "updates_applied": len(applied),
        "updates_without_signal": len(sound) - len(applied),
        "updates_skipped": len(record.updates) - len(sound),
        "loss": _share(total("loss"), len(sound)),
        "policy_loss": _share(total("policy_loss"), len(sound)),
        "kl_loss": _share(total("kl_loss"), len(sound)),
        "entropy_loss": _share(total("entropy_loss"), len(sound)),
        "learning_rate": _finite(applied[-1].learning_rate) if applied else None,
        "gradient_norm": _share(total("gradient_norm"), len(sound)),
        "gradient_norm_max": extreme(max, "gradient_norm"),
        "update_norm": _share(total("update_norm", applied), len(applied)),
        "tensors_changed_share": _share(total("tensors_changed", applied), total("tensors", applied)),
        "ratio_mean": ratio_mean,
        "ratio_std": ratio_std,
        "ratio_min": extreme(min, "ratio_min"),
        "ratio_max": extreme(max, "ratio_max"),
        "first_ratio_max_deviation": _ratio_deviation(record.updates[0]) if record.updates else None,
        "clipped_share": _share(total("clipped_tokens"), tokens),
        "old_kl": _share(total("old_kl_sum"), tokens),
        "ref_kl": None if record.ref_logprobs is None else _share(total("ref_kl_sum"), tokens),
        "entropy": _share(total("entropy_sum"), tokens),
        **_surprise(record.updates[0] if record.updates else None),
        "mismatch_mean": _share(total("mismatch_sum"), tokens),
        "mismatch_max": extreme(max, "mismatch_max"),
        "correction_mean": _share(correction, tokens),
        "correction_ess": _share(correction * correction, tokens * total("correction_square_sum")),
    }


def _component_metrics(record: StepRecord) -> Row:
    values: dict[str, list[float]] = {}
    for group in record.groups:
        for score in group.scores:
            for name, value in score.components.items():
                values.setdefault(name, []).append(value)
    row: Row = {}
    for name in sorted(values):
        row[f"reward_{name}_mean"] = _mean(values[name])
        row[f"reward_{name}_std"] = _sample_std(values[name])
    return row


def _ratio_deviation(update: Update) -> float | None:
    return _extreme(max, [abs(update.ratio_min - 1), abs(update.ratio_max - 1)])


def _mean(values: Sequence[float]) -> float | None:
    return _share(sum(values), len(values))


def _sample_std(values: Sequence[float]) -> float | None:
    if len(values) < 2:
        return None
    mean = sum(values) / len(values)
    squares = sum((value - mean) * (value - mean) for value in values)  # ** would raise on overflow
    return _finite(math.sqrt(squares / (len(values) - 1)))


def _extreme(choose: Callable[[Iterable[float]], float], values: Sequence[float]) -> float | None:
    # one NaN hides the others or hides behind them, depending on the order: it makes the extreme unknown
    return choose(values) if values and all(map(math.isfinite, values)) else None


def _share(part: float, whole: float) -> float | None:
    return _finite(part / whole) if whole else None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
