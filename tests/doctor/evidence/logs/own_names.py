"""Logs as each trainer writes them, in its own names, units and signs: a run that learns, and edits of it.

`BASE` is one run by plain keys; a column is a key of it, or a function of it where the trainer logs something else
beside what we know: signed k1 estimates, sums over a sequence, percent, times.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

STEPS = 80
Column = str | Callable[[Mapping[str, Any]], Any]


def base(**changes: Any) -> dict[str, Any]:
    random = np.random.default_rng(7)
    at = np.linspace(0.0, 1.0, STEPS)

    def noisy(level: Any, spread: float) -> Any:
        return level + spread * random.standard_normal(STEPS)

    run = {
        "step": np.arange(1, STEPS + 1),
        "reward": noisy(0.3 + 0.35 * at, 0.03),
        "reward_std": noisy(0.45, 0.02),
        "zero_share": np.clip(noisy(0.3, 0.08), 0.0, 1.0),
        "entropy": noisy(0.35 - 0.1 * at, 0.02),
        "length": noisy(900.0 + 300.0 * at, 40.0),
        "length_max": np.full(STEPS, 4096.0),
        "truncated": np.clip(noisy(0.04, 0.01), 0.0, 1.0),
        "gradient": np.abs(noisy(0.4, 0.2)) + 0.05,
        "clipped": np.abs(noisy(0.001, 0.0005)),
        "kl": np.linspace(0.0, 0.06, STEPS),
        "signed": noisy(0.0, 3e-4),
        "loss": noisy(0.0, 0.01),
        "rate": np.full(STEPS, 1e-6),
        "ratio": noisy(1.0, 1e-4),
        "mismatch": np.abs(noisy(0.02, 0.002)),
        "weight": np.clip(noisy(0.99, 0.004), 0.0, 1.0),
        "seconds": noisy(60.0, 3.0),
    }
    return run | {name: np.broadcast_to(value, STEPS) for name, value in changes.items()}


def _max(run: Mapping[str, Any]) -> Any:
    return np.maximum(run["reward"], np.where(run["reward_std"] > 0, 1.0, run["reward"]))


def _min(run: Mapping[str, Any]) -> Any:
    return np.minimum(run["reward"], np.where(run["reward_std"] > 0, 0.0, run["reward"]))


def _zero(run: Mapping[str, Any]) -> Any:
    return np.zeros(STEPS)


TRL: dict[str, Column] = {
    "loss": "loss", "grad_norm": "gradient", "learning_rate": "rate", "reward": "reward", "reward_std": "reward_std",
    "frac_reward_zero_std": "zero_share", "completions/mean_length": "length", "completions/max_length": "length_max",
    "completions/min_length": lambda run: run["length"] / 9, "completions/clipped_ratio": "truncated", "kl": "kl",
    "entropy": "entropy", "clip_ratio/region_mean": "clipped", "clip_ratio/high_max": lambda run: 20 * run["clipped"],
    "num_tokens": lambda run: np.cumsum(run["length"]), "step_time": "seconds", "epoch": lambda run: run["step"] / 100,
    "rewards/accuracy/mean": "reward", "rewards/accuracy/std": "reward_std",
    "sampling/sampling_logp_difference/mean": "mismatch",
    "sampling/sampling_logp_difference/max": lambda run: 50 * run["mismatch"],
    "sampling/importance_sampling_ratio/mean": "weight",
}  # fmt: skip
LOGS: dict[str, dict[str, Column]] = {
    "TRL": TRL,
    "TRL (PPO)": {
        "objective/kl": lambda run: 30 + 40 * run["kl"], "objective/entropy": lambda run: 900 * run["entropy"],
        "objective/non_score_reward": lambda run: -run["kl"], "objective/rlhf_reward": "reward",
        "objective/scores": lambda run: run["reward"] + run["kl"],
        "policy/approxkl_avg": lambda run: run["signed"] ** 2,
        "policy/clipfrac_avg": "clipped", "loss/policy_avg": "loss", "loss/value_avg": lambda run: 0.1 + run["clipped"],
        "val/clipfrac_avg": _zero, "policy/entropy_avg": "entropy", "val/ratio": "ratio", "lr": "rate",
        "val/num_eos_tokens": lambda run: run["step"], "episode": lambda run: 64 * run["step"],
    },
    "verl": {
        "actor/entropy": "entropy", "actor/kl_loss": "kl", "actor/kl_coef": lambda run: np.full(STEPS, 0.001),
        "actor/pg_loss": "loss", "actor/pg_clipfrac": "clipped", "actor/ppo_kl": "signed",
        "actor/pg_clipfrac_lower": _zero, "actor/grad_norm": "gradient", "actor/lr": "rate",
        "critic/score/mean": "reward", "critic/score/max": _max, "critic/score/min": _min,
        "critic/rewards/mean": "reward", "critic/rewards/max": _max, "critic/rewards/min": _min,
        "critic/advantages/mean": "signed", "critic/advantages/max": lambda run: np.full(STEPS, 2.47),
        "critic/returns/mean": "signed", "response_length/mean": "length", "response_length/max": "length_max",
        "response_length/clip_ratio": "truncated", "prompt_length/mean": lambda run: np.full(STEPS, 120.0),
        "prompt_length/clip_ratio": _zero, "timing_s/step": "seconds",
        "perf/throughput": lambda run: 1e3 * run["ratio"],
        "training/rollout_probs_diff_mean": lambda run: run["mismatch"] / 5, "training/epoch": _zero,
        "val-core/openai/gsm8k/acc/mean@1": lambda run: 0.9 * run["reward"],
    },
    "OpenRLHF": {
        "policy_loss": "loss", "actor_lr": "rate", "reward": "reward", "return": "reward", "kl": "signed",
        "response_length": "length", "total_length": lambda run: run["length"] + 120, "entropy_loss": "entropy",
        "ppo_clip_ratio": "clipped", "ppo_kl": "signed", "vllm_kl": lambda run: run["mismatch"] / 10,
        "truncated": "truncated", "actor_grad_norm": "gradient", "group_reward_std": "reward_std",
    },
    "prime-rl": {
        "loss/mean": "loss", "entropy/all/mean": "entropy", "optim/grad_norm": "gradient", "optim/lr": "rate",
        "mismatch_kl/all/mean": lambda run: run["mismatch"] / 20,
        "mismatch_kl/all/max": lambda run: 40 * run["mismatch"],
        "reward/all/mean": "reward", "reward/all/max": lambda run: run["reward"] + 0.3, "decode_len/mean": "length",
        "decode_len/max": lambda run: run["length"] * 2, "is_truncated/all/mean": "truncated",
        "batch/solve_none": lambda run: run["zero_share"] / 2, "batch/solve_all": lambda run: run["zero_share"] / 2,
        "batch/effective_batch_size": lambda run: 1 - run["zero_share"], "time/step": "seconds",
        "progress/epoch": _zero,
    },
    "open-instruct": {
        "scores": lambda run: 10 * run["reward"], "val/sequence_lengths": "length",
        "val/sequence_lengths_max": "length_max", "val/stop_rate": lambda run: 1 - run["truncated"],
        "objective/kl_avg": "signed", "objective/kl3_avg": "kl", "loss/policy_avg": "loss", "loss/total_avg": "loss",
        "policy/clipfrac_avg": "clipped", "policy/entropy_avg": "entropy", "policy/approxkl_avg": _zero,
        "val/ratio": "ratio", "val/ratio_var": _zero, "lr": "rate", "optim/grad_norm": "gradient",
        "packed_ratio": _zero,
        "real_batch_size_ratio": lambda run: 1 - run["zero_share"],
        "val/advantages_max": lambda run: np.full(STEPS, 8.75),
        "debug/vllm_vs_local_logprob_diff_mean": "mismatch",
        "debug/vllm_vs_local_logprob_diff_max": lambda run: 60 * run["mismatch"],
    },
    "NeMo-RL": {
        "train/loss": "loss", "train/reward": "reward", "train/mean_total_reward": "reward",
        "train/max_total_reward": _max, "train/min_total_reward": _min, "train/grad_norm": "gradient",
        "train/lr": "rate",
        "train/mean_gen_tokens_per_sample": "length", "train/max_gen_tokens_per_sample": "length_max",
        "train/truncation_rate": "truncated", "train/kl_penalty": "kl", "train/approx_entropy": "entropy",
        "train/probs_ratio": "ratio", "train/probs_ratio_min": lambda run: run["ratio"] - 0.3,
        "train/probs_ratio_max": lambda run: run["ratio"] + 0.5, "train/probs_ratio_clamped": "ratio",
        "train/token_mult_prob_error": lambda run: 1 + run["mismatch"],
        "train/gen_kl_error": lambda run: run["mismatch"] / 100,
        "train/sampling_importance_ratio": "weight", "timing/train/total_step_time": "seconds",
        "validation/accuracy": lambda run: 0.9 * run["reward"],
    },
    "SkyRL": {
        "policy/final_loss": "loss", "policy/policy_loss": "loss", "policy/policy_entropy": "entropy",
        "policy/policy_kl": "kl", "policy/ppo_clip_ratio": "clipped", "policy/raw_grad_norm": "gradient",
        "policy/policy_lr": "rate", "policy/rollout_train_logprobs_abs_diff_mean": "mismatch",
        "policy/rollout_train_logprobs_abs_diff_max": lambda run: 60 * run["mismatch"], "timing/step": "seconds",
        "reward/avg_raw_reward": "reward", "reward/avg_pass_at_8": lambda run: run["reward"] + 0.2,
        "generate/avg_num_tokens": "length", "generate/max_num_tokens": "length_max",
        "loss/avg_final_rewards": lambda run: run["reward"] - 0.01, "loss/avg_raw_advantages": "signed",
    },
    "slime": {
        "train/loss": "loss", "train/pg_loss": "loss", "train/entropy_loss": "entropy", "train/pg_clipfrac": "clipped",
        "train/ppo_kl": "signed", "train/kl_loss": "kl", "train/grad_norm": "gradient", "train/lr-pg_0": "rate",
        "train/train_rollout_logprob_abs_diff": "mismatch", "rollout/raw_reward": "reward", "rollout/rewards": "signed",
        "rollout/response_len/mean": "length", "rollout/response_len/max": "length_max",
        "rollout/truncated_ratio": "truncated", "rollout/zero_std/count_0.0": lambda run: 9 * run["zero_share"],
        "rollout/advantages": "signed", "perf/step_time": "seconds",
    },
    "AReaL": {
        "ppo_actor/task_reward/avg": "signed", "ppo_actor/task_reward/max": lambda run: np.full(STEPS, 2.47),
        "rollout/reward": "reward", "ppo_actor/update/entropy/avg": "entropy",
        "ppo_actor/update/actor_loss/avg": "loss",
        "ppo_actor/update/grad_norm": "gradient", "ppo_actor/update/lr": "rate",
        "ppo_actor/update/clip_ratio/avg": "clipped", "ppo_actor/update/importance_weight/avg": "ratio",
        "ppo_actor/update/importance_weight/max": lambda run: run["ratio"] + 0.4,
        "ppo_actor/update/importance_weight/min": lambda run: run["ratio"] - 0.4,
        "ppo_actor/update/approx_kl/avg": "signed", "ppo_actor/no_eos_ratios/avg": lambda run: np.full(STEPS, 1 / 16),
        "ppo_actor/seq_len/avg": lambda run: run["length"] + 120, "timeperf/train_step": "seconds",
    },
    "torchtune": {
        "rewards": "reward", "successes": lambda run: run["reward"] / 2, "num_stop_tokens": lambda run: run["step"],
        "loss": "loss", "policy_loss": "loss", "kl_loss": "kl", "clipfrac": "clipped", "ratios": "ratio",
        "approx_policy_kl": "signed", "response_lengths": "length", "grad_norm": "gradient", "lr": "rate",
    },
    "no trainer known here": {
        "loss": "loss", "mean_reward": "reward", "std_reward": "reward_std", "kl": "signed", "entropy": "entropy",
        "clip_frac": "clipped", "grad_norm": "gradient", "lr": "rate", "mean_length": "length", "note": _zero,
        "truncated_fraction": "truncated", "mismatch_mean": "mismatch", "ref_kl": "kl",
    },
}  # fmt: skip


def rows_of(trainer: str, **changes: Any) -> list[dict[str, float]]:
    """One row a step."""
    run = base(**changes)
    columns = {name: run[how] if isinstance(how, str) else how(run) for name, how in LOGS[trainer].items()}
    return [
        {"step": at + 1, **{name: float(np.asarray(values)[at]) for name, values in columns.items()}}
        for at in range(STEPS)
    ]
