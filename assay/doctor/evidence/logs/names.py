"""What each trainer calls the metrics of assay/record/metrics.py: only names whose meaning, unit and sign are the same.

A value is a tuple of names; the first that has data counts. "1 - name" is the complement of a share. Some of what
others log has no name in metrics.py: the smallest and the largest advantage; the mean of old - new, signed
(old_less_new); lengths of prompts, and the share of them at the limit; and the distance of sampler and trainer as
a KL (mismatch_kl), as a difference of probabilities (mismatch_probs), as a mean of exp |difference| (mismatch_factor).
What is left out on purpose, and why, stands in docs/logs.md: mostly KLs by the k1 estimator, sums over a sequence, and
maxima of means.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from assay.record.metrics import METRICS

WRAPPERS = ("", "data/", "metrics/", "train/", "data/train/", "metrics/train/")  # loggers put these before a name


@dataclass(frozen=True)
class Trainer:
    name: str
    signs: tuple[str, ...]  # a log with none of these columns is of somebody else; fnmatch patterns
    names: Mapping[str, tuple[str, ...]]
    component: str = ""  # regular expression: <name> of a reward's part, <what> mean or std
    evaluation: str = ""  # regular expression: a held-out rate of right answers, 0 to 1
    right_answer: float = 1.0  # what a right answer is worth unless it is set otherwise
    kl_may_be_signed: bool = False  # its estimator is a setting, and k1 is negative at times
    implied: Mapping[str, Mapping[str, Any]] = field(
        default_factory=dict
    )  # column -> settings that its presence proves


_CORRECTED = {"correction": "sequence"}  # of TRL's levels the default; the checks only ask whether it is off

TRL = Trainer(
    name="TRL",  # and those that keep its names: ms-swift, unsloth
    signs=(
        "completions/*_length",
        "completion_length",
        "rewards/*",
        "frac_reward_zero_std",
        "completions/clipped_ratio",
    ),
    names={
        "loss": ("loss",),
        "policy_loss": ("policy_loss",),
        "reward_mean": ("reward",),
        "reward_std": ("reward_std",),
        "zero_variance_share": ("frac_reward_zero_std",),
        "length_mean": ("completions/mean_length", "completion_length"),
        "length_max": ("completions/max_length",),
        "truncated_share": ("completions/clipped_ratio",),
        "ref_kl": ("kl",),
        "entropy": ("entropy", "entropy/mean"),
        "clipped_share": ("clip_ratio/region_mean", "clip_ratio"),
        "gradient_norm": ("grad_norm",),
        "learning_rate": ("learning_rate",),
        "mismatch_mean": ("sampling/sampling_logp_difference/mean",),
        "mismatch_max": ("sampling/sampling_logp_difference/max",),
        "correction_mean": ("sampling/importance_sampling_ratio/mean",),
    },
    component=r"rewards/(?P<name>[^/]+?)(?:/(?P<what>mean|std))?",
    implied={"sampling/importance_sampling_ratio/mean": _CORRECTED},
)
TRL_PPO = Trainer(
    name="TRL (PPO)",
    signs=("objective/rlhf_reward", "objective/scores"),
    names={
        "policy_loss": ("loss/policy_avg",),
        "reward_mean": ("objective/rlhf_reward", "objective/scores"),
        "entropy": ("policy/entropy_avg",),
        "clipped_share": ("policy/clipfrac_avg",),
        "ratio_mean": ("val/ratio",),
        "learning_rate": ("lr", "learning_rate"),
    },
)
VERL = Trainer(
    name="verl",
    signs=("actor/*", "critic/*", "response_length/*"),
    names={
        "policy_loss": ("actor/pg_loss",),
        "reward_mean": ("critic/rewards/mean", "critic/score/mean"),
        "reward_min": ("critic/rewards/min", "critic/score/min"),
        "reward_max": ("critic/rewards/max", "critic/score/max"),
        "length_mean": ("response_length/mean",),
        "length_max": ("response_length/max",),
        "truncated_share": ("response_length/clip_ratio",),
        "ref_kl": ("actor/kl_loss",),
        "entropy": ("actor/entropy", "actor/entropy_loss"),
        "clipped_share": ("actor/pg_clipfrac",),
        "old_less_new": ("actor/ppo_kl",),
        "gradient_norm": ("actor/grad_norm",),
        "learning_rate": ("actor/lr",),
        "correction_mean": ("rollout_corr/rollout_is_mean",),
        "mismatch_probs": ("training/rollout_probs_diff_mean",),
        "mismatch_kl": ("rollout_corr/k3_kl",),
        "advantage_min": ("critic/advantages/min",),
        "advantage_max": ("critic/advantages/max",),
        "prompt_length_mean": ("prompt_length/mean",),
        "prompt_length_min": ("prompt_length/min",),
        "prompt_length_max": ("prompt_length/max",),
        "prompt_truncated_share": ("prompt_length/clip_ratio",),
    },
    evaluation=r"val-core/.+/acc/mean@\d+",
    kl_may_be_signed=True,
    implied={"rollout_corr/rollout_is_mean": {"correction": "token"}},
)
OPENRLHF = Trainer(
    name="OpenRLHF",
    signs=("actor_lr", "ppo_clip_ratio", "total_length", "act_loss", "vllm_kl"),
    names={
        "policy_loss": ("policy_loss", "act_loss"),
        "reward_mean": ("reward",),
        "length_mean": ("response_length",),
        "truncated_share": ("truncated",),
        "ref_kl": ("kl",),
        "entropy": ("entropy_loss",),
        "clipped_share": ("ppo_clip_ratio",),
        "old_less_new": ("ppo_kl",),
        "gradient_norm": ("actor_grad_norm",),
        "learning_rate": ("actor_lr",),
        "mismatch_kl": ("vllm_kl",),
    },
    kl_may_be_signed=True,
)
PRIME_RL = Trainer(
    name="prime-rl",
    signs=("mismatch_kl/*", "optim/grad_norm", "batch/solve_none", "batch/effective_batch_size", "decode_len/mean"),
    names={
        "loss": ("loss/mean",),
        "reward_mean": ("reward/all/mean", "reward/mean"),
        "zero_variance_share": ("1 - batch/effective_batch_size",),
        "length_mean": ("decode_len/all/mean", "decode_len/mean"),
        "prompt_length_mean": ("prefill_len/all/mean", "prefill_len/mean"),
        "prompt_length_min": ("prefill_len/all/min", "prefill_len/min"),
        "prompt_length_max": ("prefill_len/all/max", "prefill_len/max"),
        "truncated_share": ("is_truncated/all/mean", "is_truncated/mean"),
        "entropy": ("entropy/all/mean", "entropy/mean"),
        "gradient_norm": ("optim/grad_norm",),
        "learning_rate": ("optim/lr",),
        "mismatch_kl": ("mismatch_kl/all/mean", "mismatch_kl/mean", "mismatch_kl"),
    },
)
OPEN_INSTRUCT = Trainer(
    name="open-instruct",
    signs=("val/stop_rate", "val/sequence_lengths", "objective/kl3_avg"),
    names={
        "loss": ("loss/total_avg",),
        "policy_loss": ("loss/policy_avg",),
        "reward_mean": ("scores",),
        "length_mean": ("val/sequence_lengths",),
        "length_max": ("val/sequence_lengths_max",),
        "truncated_share": ("1 - val/stop_rate",),
        "ref_kl": ("objective/kl3_avg",),
        "entropy": ("policy/entropy_avg",),
        "clipped_share": ("policy/clipfrac_avg",),
        "ratio_mean": ("val/ratio",),
        "gradient_norm": ("optim/grad_norm",),
        "learning_rate": ("lr",),
        "mismatch_mean": ("debug/vllm_vs_local_logprob_diff_mean",),
        "mismatch_max": ("debug/vllm_vs_local_logprob_diff_max",),
    },
    right_answer=10.0,
)
NEMO_RL = Trainer(
    name="NeMo-RL",
    signs=("token_mult_prob_error", "probs_ratio", "mean_gen_tokens_per_sample", "sampling_importance_ratio"),
    names={
        "loss": ("loss",),
        "reward_mean": ("mean_total_reward", "reward"),
        "reward_min": ("min_total_reward",),
        "reward_max": ("max_total_reward",),
        "length_mean": ("mean_gen_tokens_per_sample",),
        "length_max": ("max_gen_tokens_per_sample",),
        "truncated_share": ("truncation_rate",),
        "ref_kl": ("kl_penalty",),
        "entropy": ("approx_entropy",),
        "ratio_mean": ("probs_ratio",),
        "ratio_min": ("probs_ratio_min",),
        "ratio_max": ("probs_ratio_max",),
        "gradient_norm": ("grad_norm",),
        "learning_rate": ("lr",),
        "mismatch_factor": ("token_mult_prob_error",),
        "mismatch_kl": ("gen_kl_error",),
    },
    evaluation=r"validation/accuracy",
    kl_may_be_signed=True,
)
SKYRL = Trainer(
    name="SkyRL",
    signs=("policy/policy_loss", "policy/policy_entropy", "reward/avg_raw_reward", "loss/avg_final_rewards"),
    names={
        "loss": ("policy/final_loss",),
        "policy_loss": ("policy/policy_loss",),
        "reward_mean": ("reward/avg_raw_reward", "loss/avg_final_rewards"),
        "length_mean": ("generate/avg_num_tokens",),
        "length_max": ("generate/max_num_tokens",),
        "ref_kl": ("policy/policy_kl",),
        "entropy": ("policy/policy_entropy",),
        "clipped_share": ("policy/ppo_clip_ratio",),
        "gradient_norm": ("policy/raw_grad_norm", "policy/grad_norm"),
        "learning_rate": ("policy/policy_lr",),
        "mismatch_mean": ("policy/rollout_train_logprobs_abs_diff_mean",),
        "mismatch_max": ("policy/rollout_train_logprobs_abs_diff_max",),
    },
    kl_may_be_signed=True,
)
SLIME = Trainer(
    name="slime",
    signs=(
        "rollout/raw_reward",
        "rollout/response_len/*",
        "rollout/response_lengths",
        "train_rollout_logprob_abs_diff",
    ),
    names={
        "loss": ("loss",),
        "policy_loss": ("pg_loss",),
        "reward_mean": ("rollout/raw_reward",),
        "length_mean": ("rollout/response_len/mean", "rollout/response_lengths"),
        "length_max": ("rollout/response_len/max",),
        "truncated_share": ("rollout/truncated_ratio", "rollout/truncated"),
        "ref_kl": ("kl_loss",),
        "entropy": ("entropy_loss",),
        "clipped_share": ("pg_clipfrac",),
        "old_less_new": ("ppo_kl",),
        "gradient_norm": ("grad_norm",),
        "learning_rate": ("lr-pg_0",),
        "mismatch_mean": ("train_rollout_logprob_abs_diff",),
    },
    kl_may_be_signed=True,
    implied={"tis": {"correction": "token"}},
)
AREAL = Trainer(
    name="AReaL",
    signs=("ppo_actor/*", "grpo_actor/*"),
    names={
        "policy_loss": ("ppo_actor/update/actor_loss/avg", "grpo_actor/update/actor_loss/avg"),
        "reward_mean": ("rollout/reward", "ppo_actor/task_reward/avg", "grpo_actor/task_reward/avg"),
        "entropy": ("ppo_actor/update/entropy/avg", "grpo_actor/update/entropy/avg"),
        "clipped_share": ("ppo_actor/update/clip_ratio/avg", "grpo_actor/update/clip_ratio/avg"),
        "ratio_mean": ("ppo_actor/update/importance_weight/avg", "grpo_actor/update/importance_weight/avg"),
        "ratio_min": ("ppo_actor/update/importance_weight/min", "grpo_actor/update/importance_weight/min"),
        "ratio_max": ("ppo_actor/update/importance_weight/max", "grpo_actor/update/importance_weight/max"),
        "gradient_norm": ("ppo_actor/update/grad_norm", "grpo_actor/update/grad_norm"),
        "learning_rate": ("ppo_actor/update/lr", "grpo_actor/update/lr"),
    },
)
TORCHTUNE = Trainer(
    name="torchtune",
    signs=("num_stop_tokens", "approx_policy_kl"),
    names={
        "loss": ("loss",),
        "policy_loss": ("policy_loss",),
        "reward_mean": ("rewards",),
        "length_mean": ("response_lengths",),
        "ref_kl": ("kl_loss",),
        "clipped_share": ("clipfrac",),
        "old_less_new": ("approx_policy_kl",),
        "ratio_mean": ("ratios",),
        "gradient_norm": ("grad_norm",),
        "learning_rate": ("lr",),
    },
)
ASSAY = Trainer(
    name="Assay",
    signs=("policy_version", "zero_variance_share", "first_ratio_max_deviation", "truncated_share", "gradient_norm"),
    names={name: (name,) for name in METRICS if name != "step"},
    component=r"reward_(?P<name>.+)_(?P<what>mean|std)",
)
PLAIN = Trainer(  # a log of nobody known, with names that leave no doubt
    name="no trainer known here",
    signs=("*",),
    names={
        "loss": ("loss", "total_loss"),
        "policy_loss": ("policy_loss", "pg_loss"),
        "reward_mean": ("reward_mean", "mean_reward", "avg_reward", "reward/mean", "reward"),
        "reward_std": ("reward_std", "std_reward", "reward/std"),
        "entropy": ("entropy", "mean_entropy"),
        "clipped_share": ("clip_fraction", "clip_frac", "clipfrac", "clipped_share", "clip_share"),
        "truncated_share": ("truncated_fraction", "truncation_rate"),
        "mismatch_mean": ("mismatch_mean",),
        "ref_kl": ("ref_kl", "kl_ref", "kl_to_ref", "kl_to_reference"),
        "gradient_norm": ("grad_norm", "gradient_norm"),
        "learning_rate": ("learning_rate", "lr"),
        "ratio_mean": ("ratio_mean", "mean_ratio"),
        "ratio_min": ("ratio_min",),
        "ratio_max": ("ratio_max",),
    },
)

ARGUMENTS = {  # of the Hugging Face trainers, as TensorBoard's events and args.json hold them -> settings
    "learning_rate": "learning_rate",
    "weight_decay": "weight_decay",
    "max_grad_norm": "clip_norm",
    "num_generations": "group_size",
    "max_completion_length": "max_tokens",
    "temperature": "temperature",
    "beta": "kl_coef",
}
TRAINERS = (
    ASSAY, TRL, TRL_PPO, VERL, OPENRLHF, PRIME_RL, OPEN_INSTRUCT, NEMO_RL, SKYRL, SLIME, AREAL, TORCHTUNE,
)  # fmt: skip
OVERLONG = re.compile(r"overlong|length|len_?penalty", re.IGNORECASE)  # parts of a reward that move by themselves
