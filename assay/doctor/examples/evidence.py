"""Healthy evidence, made up and whole: the illnesses' `sick` and `well` examples are small edits of it.

Every number agrees with every other: advantages with rewards, log-probs with each other, the loss with both.
Shape legend: B completions (4 groups of 4), T completion tokens, P prompt tokens, S = P + T.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from assay.doctor.evidence import Batch, Curves, Evidence
from assay.doctor.recompute.advantages import advantages
from assay.doctor.recompute.consistent import consistent
from assay.record.batch import Array

GROUPS, SIZE, P, T = 4, 4, 6, 12
B = GROUPS * SIZE
EOS, PAD = 1, 0
EPSILON = 1e-4  # of the advantages
KL_COEF = 0.05
# log-probs of the policy of this update, computed again
SCORED = (
    "scored_again", "scored_padded", "scored_permuted", "scored_alone", "plain_logprobs", "plain_raw_logprobs",
)  # fmt: skip
GRADIENTS = ("gradients", "gradients_split", "gradients_perturbed")
LOSSES = ("loss", "loss_again", "loss_padded", "loss_permuted", "loss_split", "loss_perturbed")
ROUNDING = 2e-6  # what float32 leaves between two ways to compute the same log-prob


def healthy_batch(*, update: int = 0, seed: int = 0, **changes: Any) -> Batch:
    """A whole, sound batch. `changes` replace fields, numbers or settings by name; None takes one away."""
    random = np.random.default_rng(seed)
    values = {**_settings(), **_sampled_fields(random)}
    values |= _logprobs(values, random, update)
    values |= {"step": 5, "update": update, "policy_version": 7 + update, **_MEASURED}
    values |= {"advantages": advantages(Batch.of(values)), "reward_mean": float(values["rewards"].mean())}
    rows = range(B)
    texts = {
        "prompt": [f"question {row // SIZE}" for row in rows],
        "completion": [f"answer {row}" for row in rows],
        "prompt_id": [f"q{row // SIZE}" for row in rows],
    }
    whole = consistent(Batch.of(values, texts=changes.pop("texts", texts), source="example"))
    return edit_batch(whole, **changes) if changes else whole


def edit_batch(batch: Batch, **changes: Any) -> Batch:
    """The batch with some fields, numbers or settings replaced by name; None takes one away."""
    values = {**batch.arrays, **batch.numbers, **batch.settings, **changes}
    return replace(Batch.of(values, texts=batch.texts), source=batch.source)


def without_groups(batch: Batch) -> dict[str, Any]:
    """The changes that turn a batch into one of PPO: no groups, no setting of them, nothing that the loss computed."""
    stated = [name for name in ("baseline", "std", "scale", "combine") if name in batch.settings]
    return of_the_loss(batch) | dict.fromkeys(("group_ids", *stated))


def of_the_loss(batch: Batch) -> dict[str, Any]:
    """Names of all that the loss computed from a batch, each with None: `edit_batch` with them takes all of it away."""
    computed = ("loss", "policy_loss", "token_loss", "kl", "gradients", "clipped")
    return dict.fromkeys(name for name in (*batch.arrays, *batch.numbers) if name.startswith(computed))


def noisy(batch: Batch, name: str, rows: slice) -> Array:
    """Log-probs of a batch that something else than rounding has moved in these rows."""
    noise_BT = np.random.default_rng(5).normal(0.0, 0.3, size=(B, T)) * batch.arrays["mask"]
    moved_BT: Array = batch.arrays[name].copy()
    moved_BT[rows] += noise_BT[rows]
    return moved_BT


def positions_of(attention_BS: Array) -> Array:
    """Positions that count the attended tokens from 0."""
    positions_BS: Array = np.maximum(attention_BS.cumsum(axis=1) - 1, 0)
    return positions_BS


def scored_behind(batch: Batch, prompts_BP: Array, prompt_mask_BP: Array) -> dict[str, Array]:
    """What the model is given if the completions of a batch stand behind these prompts."""
    attention_BS = np.concatenate([prompt_mask_BP, batch.arrays["attention_mask"][:, P:]], axis=1)
    ids_BS = np.concatenate([prompts_BP, batch.arrays["tokens"]], axis=1)
    return {"input_ids": ids_BS, "attention_mask": attention_BS, "position_ids": positions_of(attention_BS)}


def chosen_rows(batch: Batch, rows: list[int]) -> Batch:
    """A batch of these rows in this order, its advantages computed again; what the loss made of them is left out."""
    arrays = {name: array[rows] for name, array in batch.arrays.items()}
    chosen = edit_batch(batch, **{**arrays, **of_the_loss(batch), "group_ids": batch.arrays["group_ids"]})
    return edit_batch(chosen, advantages=advantages(chosen), reward_mean=float(arrays["rewards"].mean()))


def surer(batch: Batch, share: float) -> Batch:
    """The same rows of a policy that is nearly certain of them: their log-probs are this share of what they were."""
    names = [name for name in batch.arrays if name.endswith("_logprobs") or name.startswith("scored")]
    return edit_batch(batch, **{name: share * batch.arrays[name] for name in names}, ratio=None, kl=None)


def healthy_curves(*, steps: int = 60, settings: Mapping[str, Any] | None = None, **columns: Any) -> Curves:
    """A run that learns. `columns` replace metrics by name: one number, or one per step; None takes the metric away."""
    random = np.random.default_rng(1)
    step = np.arange(1, steps + 1)
    progress = (step - 1) / max(steps - 1, 1)

    def noisy(level: Any, spread: float) -> Array:
        return np.asarray(level + spread * random.standard_normal(steps), dtype=np.float64)

    metrics: dict[str, Any] = {
        "step": step,
        "policy_version": 2 * step,
        "groups": 16,
        "groups_without_signal": 3,
        "zero_variance_share": 3 / 16,
        "refill_rounds": 0,
        "rollouts_scored": 128,
        "rollouts_unscored": 0,
        "reward_mean": noisy(0.3 + 0.5 * progress, 0.02),
        "reward_std": noisy(0.45, 0.01),
        "reward_min": 0.0,
        "reward_max": 1.0,
        "length_mean": noisy(40.0, 1.0),
        "length_max": 64,
        "truncated_share": np.clip(noisy(0.05, 0.01), 0.0, 1.0),
        "tokens_generated": 5120,
        "tokens_in_loss": 5120,
        "tokens_trained": 10240,
        "updates_applied": 2,
        "updates_without_signal": 0,
        "updates_skipped": 0,
        "loss": noisy(-0.01, 0.005),
        "policy_loss": noisy(-0.01, 0.005),
        "kl_loss": 0.0,
        "entropy_loss": 0.0,
        "learning_rate": 1e-5,
        "gradient_norm": np.abs(noisy(0.5, 0.05)),
        "gradient_norm_max": np.abs(noisy(0.6, 0.05)),
        "update_norm": 0.01,
        "tensors_changed_share": 1.0,
        "ratio_mean": noisy(1.0, 0.001),
        "ratio_std": np.abs(noisy(0.05, 0.005)),
        "ratio_min": noisy(0.7, 0.02),
        "ratio_max": noisy(1.4, 0.03),
        "first_ratio_max_deviation": 0.0,
        "clipped_share": np.abs(noisy(0.02, 0.003)),
        "old_kl": np.abs(noisy(0.001, 0.0001)),
        "ref_kl": None,
        "entropy": noisy(1.0 - 0.3 * progress, 0.01),
        "mismatch_mean": 1e-6,
        "mismatch_max": 2e-5,
        "correction_mean": 1.0,
        "correction_ess": 1.0,
    }
    metrics |= columns
    rows = [
        {name: None if column is None else _at(column, index) for name, column in metrics.items()}
        for index in range(steps)
    ]
    seconds = {"start": 0.01, "generated": 1.0, "scored": 0.2, "loss": 0.9, "stepped": 0.1}
    timings = [
        {
            "step": int(number),
            "seconds": sum(seconds.values()),
            "tokens_per_second": 5120 / sum(seconds.values()),
            **{f"seconds_{stage}": value for stage, value in seconds.items()},
        }
        for number in step
    ]
    evaluations = [
        {
            "step": int(at * steps),
            "pass_at_1": 0.3 + 0.5 * at,
            "reward_sampled": 0.3 + 0.5 * at,
            "pass_greedy": 0.8 * at,
        }
        for at in (0.0, 0.5, 1.0)
    ]
    size = {"parameters": 500_000_000}
    return Curves(rows, timings, evaluations, (), {**_settings(), **size, **(settings or {})})


def of_batch(batch: Batch) -> Evidence:
    return Evidence(batches=(batch,))


def of_curves(curves: Curves) -> Evidence:
    return Evidence(curves=curves)


def _at(column: Any, index: int) -> Any:
    return column if np.ndim(column) == 0 else np.asarray(column)[index].item()


_MEASURED = {
    "gradient_norm": 0.5,
    "update_norm": 0.01,
    "tensors": 20,
    "tensors_changed": 20,
    "tensors_without_gradient": 0,
    "numbers_changed_share": 0.98,
    "dropout_modules": 0,
}


def _settings() -> dict[str, Any]:
    return {
        "objective": "dapo",
        "clip_low": 0.2,
        "clip_high": 0.2,
        "dual_clip": 0.0,
        "delta": 0.0,
        "kl_coef": KL_COEF,
        "kl_placement": "loss",
        "kl_estimator": "k3",
        "kl_gradient": "naive",
        "reference_every": 0,
        "entropy_coef": 0.0,
        "correction": "off",
        "baseline": "mean",
        "std": "sample",
        "scale": "group",
        "combine": "sum",
        "advantage_epsilon": EPSILON,
        "group_size": SIZE,
        "prompts": GROUPS,
        "temperature": 1.0,
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.0,
        "support_kept": False,
        "max_tokens": T,
        "mask_truncated": False,
        "zero_variance": "keep",
        "eos_ids": (EOS,),
        "pad_id": PAD,
        "updates_per_rollout": 2,
        "minibatches": 1,
        "microbatches": 1,
        "learning_rate": 1e-5,
        "weight_decay": 0.0,
        "clip_norm": 1.0,
        "dtype": "float32",
        "lora_rank": 0,
        "process_rewards": False,
        "max_reward": 1.0,
        "min_reward": 0.0,
        "steps": 100,
    }


def _sampled_fields(random: np.random.Generator) -> dict[str, Any]:
    lengths_B = random.integers(4, T, size=B)
    lengths_B[[3, 9]] = T  # the token limit cut these off
    finished_B = lengths_B < T
    inside_BT = np.arange(T) < lengths_B[:, None]
    tokens_BT = np.where(inside_BT, random.integers(3, 50, size=(B, T)), PAD)
    tokens_BT[finished_B, lengths_B[finished_B] - 1] = EOS
    prompt_lengths_B = np.repeat(random.integers(3, P + 1, size=GROUPS), SIZE)
    prompt_mask_BP = np.arange(P) >= P - prompt_lengths_B[:, None]  # padded on the left
    prompts_BP = np.where(prompt_mask_BP, np.repeat(random.integers(3, 50, size=(GROUPS, P)), SIZE, axis=0), PAD)
    attention_BS = np.concatenate([prompt_mask_BP, inside_BT], axis=1)
    rewards_B = np.tile([1.0, 0.0, 0.0, 1.0], GROUPS)
    rewards_B[SIZE : 2 * SIZE] = 0.0  # one group without signal
    rewards_B[-1] = 0.0
    return {
        "tokens": tokens_BT,
        "mask": inside_BT,
        "sampled_tokens": tokens_BT,
        "prompt_tokens": prompts_BP,
        "prompt_mask": prompt_mask_BP,
        "lengths": lengths_B,
        "finished": finished_B,
        "sampler_versions": np.full(B, 7),
        "input_ids": np.concatenate([prompts_BP, tokens_BT], axis=1),
        "attention_mask": attention_BS,
        "position_ids": positions_of(attention_BS),
        "rewards": rewards_B,
        "group_ids": np.repeat(np.arange(GROUPS), SIZE),
    }


def _logprobs(values: Mapping[str, Any], random: np.random.Generator, update: int) -> dict[str, Any]:
    mask_BT = values["mask"]

    def near(logprobs_BT: Array, spread: float) -> Array:
        return np.where(mask_BT, np.minimum(logprobs_BT + spread * random.standard_normal((B, T)), -1e-4), 0.0)

    old_BT = near(-random.exponential(1.2, size=(B, T)) - 0.01, 0.0)
    new_BT = near(old_BT, 0.08) if update else old_BT
    scored = {name: near(new_BT, ROUNDING) for name in SCORED}
    ref_BT = near(old_BT, 0.05)
    return {
        "old_logprobs": old_BT,
        "new_logprobs": new_BT,
        "ref_logprobs": ref_BT,
        "plain_ref_logprobs": near(ref_BT, ROUNDING),
        "entropy": np.where(mask_BT, random.uniform(0.3, 1.5, size=(B, T)), 0.0),
        "sampler_logprobs": near(old_BT, ROUNDING),
        **scored,
    }
