"""A TRL GRPOTrainer's settings and metrics in the words of assay/record/batch.py and metrics.py.

What TRL has and a Batch has no word for is left out, so that nothing is concluded from it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from assay.grpo import OBJECTIVES

BY_GENERATION_TOKENS = ("cispo", "dapo", "vespo")  # loss types that divide by num_items_in_batch
MOST_PROMPTS = 256  # rows of the data set that are compared: a step seldom has more
ADVANTAGE_EPSILON = 1e-4  # of TRL, not to be set
_CORRECTIONS = {
    "token_truncate": ("token", "truncate"),
    "token_mask": ("token", "mask"),
    "sequence_truncate": ("sequence", "truncate"),
    "sequence_mask": ("sequence", "mask"),
}

METRICS = {  # TRL's name --> ours
    "reward": "reward_mean",
    "reward_std": "reward_std",
    "frac_reward_zero_std": "zero_variance_share",
    "completions/mean_length": "length_mean",
    "completions/max_length": "length_max",
    "completions/clipped_ratio": "truncated_share",
    "kl": "ref_kl",
    "entropy": "entropy",
    "clip_ratio/region_mean": "clipped_share",
    "sampling/sampling_logp_difference/mean": "mismatch_mean",
    "sampling/sampling_logp_difference/max": "mismatch_max",
}


def settings_of(trainer: Any) -> dict[str, Any]:
    """Those that hold for the whole run."""
    args = trainer.args
    updates = minibatches_of(trainer)
    settings: dict[str, Any] = {
        **_objective(trainer),
        "clip_low": trainer.epsilon_low,
        "clip_high": trainer.epsilon_high,
        "delta": args.delta or 0.0,
        "dual_clip": 0.0,
        "kl_coef": trainer.beta,
        "kl_placement": "loss",
        "kl_estimator": "k3",
        "kl_gradient": "unbiased" if args.use_bias_correction_kl else "naive",
        "reference_every": args.ref_model_sync_steps if args.sync_ref_model else 0,
        "entropy_coef": 0.0 if trainer.use_adaptive_entropy else trainer.entropy_coef,
        "group_size": trainer.num_generations,
        "prompts": args.generation_batch_size // trainer.num_generations,
        "max_tokens": trainer.max_completion_length,
        "mask_truncated": bool(trainer.mask_truncated_completions),
        "zero_variance": "keep",
        "eos_ids": tuple(trainer.eos_token_ids),
        "pad_id": trainer._tokenizer.pad_token_id,
        "updates_per_rollout": updates * trainer.num_iterations,
        "minibatches": updates,
        "microbatches": args.gradient_accumulation_steps,
        "weight_decay": args.weight_decay,
        "clip_norm": args.max_grad_norm or 0.0,
        "dtype": _dtype(trainer),
        "lora_rank": _rank(trainer.model),
        "trainer": "trl",
        **_sampling(trainer),
        **_advantages(trainer),
        **_correction(trainer),
    }
    if trainer.loss_type == "cispo":
        settings["cispo_max"] = trainer.epsilon_high
    if trainer.loss_type == "sapo":
        settings |= {"sapo_positive": args.sapo_temperature_pos, "sapo_negative": args.sapo_temperature_neg}
    return {name: value for name, value in settings.items() if value is not None}


def dataset_size(trainer: Any) -> dict[str, int]:
    """Different prompts of the data set, as far as its first rows show; {} where it is a stream."""
    rows = getattr(trainer, "train_dataset", None)
    if rows is None or not hasattr(rows, "__len__") or not hasattr(rows, "__getitem__"):
        return {}
    return {"dataset_size": len({repr(rows[number].get("prompt")) for number in range(min(len(rows), MOST_PROMPTS))})}


def whole_run(trainer: Any) -> dict[str, Any]:
    """How many updates it makes, and the rate that its schedule is a part of: the optimizer's, whoever made it.

    Ranges of rates are Adam's: of another optimizer only a rate of 0 is stated."""
    optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
    groups = getattr(optimizer, "param_groups", ())
    rates = [float(group.get("initial_lr", group["lr"])) for group in groups]
    rate = max(rates, default=float(trainer.args.learning_rate))
    name = type(optimizer).__name__ if optimizer is not None else str(trainer.args.optim)
    is_judged = rate == 0 or "adam" in name.lower()
    steps = {"steps": max(int(trainer.state.max_steps), 0)}
    return steps | ({"learning_rate": rate} if is_judged else {})


@dataclass(frozen=True)
class ChatMarks:
    """What the chat template of a tokenizer writes around a user's turn."""

    before: str
    speak: str  # after which the assistant speaks

    @classmethod
    def of(cls, tokenizer: Any) -> ChatMarks | None:
        """None without a template, and where it always ends with the assistant's turn."""
        if not getattr(tokenizer, "chat_template", None):
            return None
        turn = [{"role": "user", "content": "?"}]
        closed, opened = (
            tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=added) for added in (False, True)
        )
        before, speak = closed.partition("?")[0].strip(), opened[len(closed) :].strip()
        return cls(before, speak) if opened.startswith(closed) and before and speak else None

    def left_open(self, tokenizer: Any, prompts: Sequence[Sequence[int]]) -> int:
        texts = [tokenizer.decode(list(prompt)) for prompt in prompts]
        return sum(self.before in text and not text.rstrip().endswith(self.speak) for text in texts)


def minibatches_of(trainer: Any) -> int:
    """Optimizer updates of one pass over the generated rows."""
    steps, accumulated = int(trainer.args.steps_per_generation), int(trainer.args.gradient_accumulation_steps)
    return max(1, math.ceil(steps / accumulated))


def has_known_loss(trainer: Any) -> bool:
    """Whether a Batch has a field for every part of the loss; it has none for masks by entropy or by drift, a router's
    loss, an entropy bonus that a controller sets, an objective of TRL alone."""
    bonus_is_known = not trainer.use_adaptive_entropy and (
        not trainer.entropy_coef or trainer.args.gradient_accumulation_steps == 1
    )
    return bool(
        _objective(trainer)
        and bonus_is_known
        and not trainer.aux_loss_enabled
        and not masks_by_value(trainer)
        and _correction(trainer)
    )


def masks_by_value(trainer: Any) -> bool:
    """Whether TRL takes more tokens out of the loss than its mask says: those of low entropy, or of drifted rows."""
    return bool(trainer.top_entropy_quantile < 1.0 or trainer.off_policy_mask_threshold is not None)


def metrics_row(collected: Mapping[str, Sequence[float | None]]) -> dict[str, float | None]:
    """TRL's lists of one update -> our metrics, each the mean of its list."""
    row: dict[str, float | None] = {}
    for theirs, ours in METRICS.items():
        values = [value for value in collected.get(theirs, ()) if value is not None and value == value]
        if values:
            row[ours] = sum(values) / len(values)
    return row


def _objective(trainer: Any) -> dict[str, str]:
    """TRL's loss types are named like our objectives, except those of sequences; luspo and vespo are not ours."""
    known = OBJECTIVES.get(trainer.loss_type)
    by_token = trainer.importance_sampling_level == "token"
    if known is None or not (by_token or known.clips):
        return {}
    return {"objective": trainer.loss_type if by_token else "gspo", "aggregation": known.aggregation}


def temperature_of(trainer: Any) -> float:
    """At which it samples."""
    return float(_sampler(trainer).temperature)


def _sampler(trainer: Any) -> Any:
    """Who really knows the settings of sampling: generation_kwargs may overrule the arguments."""
    sampler = getattr(trainer, "generation_config", None) if not trainer.use_vllm else None
    return trainer.args if sampler is None else sampler


def _sampling(trainer: Any) -> dict[str, Any]:
    source = _sampler(trainer)
    top_k, top_p, min_p = (getattr(source, name, None) for name in ("top_k", "top_p", "min_p"))
    settings = {
        "temperature": source.temperature,
        "top_k": max(top_k or 0, 0),  # vLLM says -1 for off
        "top_p": 1.0 if top_p is None else top_p,
        "min_p": min_p or 0.0,
    }
    return settings | {"support_kept": False}  # TRL scores over the whole vocabulary


def _advantages(trainer: Any) -> dict[str, Any]:
    scale = str(trainer.scale_rewards)
    gdpo = trainer.multi_objective_aggregation == "normalize_then_sum"
    return {
        "baseline": "mean",
        "std": "none" if scale == "none" and not gdpo else "sample",
        "scale": "batch" if scale == "batch" else "group",
        "combine": "gdpo" if gdpo else "sum",
        "advantage_epsilon": ADVANTAGE_EPSILON,
    }


def _corrects(trainer: Any) -> bool:
    return bool(trainer.use_vllm and trainer.vllm_importance_sampling_correction)


def _correction(trainer: Any) -> dict[str, Any]:
    if not _corrects(trainer):
        return {"correction": "off"}
    known = _CORRECTIONS.get(trainer.vllm_importance_sampling_mode)
    if known is None:
        return {}
    low, high = trainer.vllm_importance_sampling_clip_min, trainer.vllm_importance_sampling_clip_max
    bounds = {"correction_low": low or 0.0, "correction_high": float("inf") if high is None else high}
    return {"correction": known[0], "correction_mode": known[1], **bounds}


def _dtype(trainer: Any) -> str:
    if trainer.args.bf16:
        return "bfloat16"
    return "float16" if trainer.args.fp16 else str(trainer.model.dtype).removeprefix("torch.")


def _rank(model: Any) -> int:
    adapters = getattr(model, "peft_config", None) or {}
    return max((int(getattr(adapter, "r", 0) or 0) for adapter in adapters.values()), default=0)
