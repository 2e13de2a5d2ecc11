"""Our settings in the words of TRL 1.16, and which of them it has no words for. Nothing here imports torch or TRL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from assay.adapters.trl_settings import ADVANTAGE_EPSILON
from assay.config import Config, ConfigError
from assay.grpo import OBJECTIVES

# objectives that TRL computes under the name we have for them
SAME_NAME = [name for name, objective in OBJECTIVES.items() if objective.clips and objective.level == "token"]
SCHEDULES = {"constant": "constant_with_warmup", "linear": "linear", "cosine": "cosine"}  # its "constant" has none

# the prompts in their order, and nothing that a user could do without while the clock runs
NOTHING_BESIDE: dict[str, Any] = {
    "shuffle_dataset": False,
    "dataloader_num_workers": 0,
    "report_to": [],
    "logging_strategy": "no",
    "save_strategy": "no",
    "disable_tqdm": True,
}


def settings(config: Config, steps: int, directory: Path) -> dict[str, Any]:
    """Of GRPOConfig. TRL counts an update as a step; ours is a whole rollout batch."""
    rollout, loss, optimizer = config.rollout, config.loss, config.optimizer
    passes = max(optimizer.microbatches, 1)
    pieces = optimizer.minibatches * passes
    return {
        "output_dir": str(directory / "trl"),
        "use_cpu": config.run.device == "cpu",
        "bf16": False,
        "seed": config.run.seed,
        "max_steps": steps * config.updates_a_step,
        "per_device_train_batch_size": rollout.prompts * rollout.group_size // pieces,
        "gradient_accumulation_steps": passes,
        "steps_per_generation": pieces,
        "gradient_checkpointing": config.model.gradient_checkpointing,
        "disable_dropout": True,
        "num_generations": rollout.group_size,
        "max_completion_length": rollout.max_tokens,
        "temperature": rollout.temperature,
        "top_k": 0,
        "top_p": 1.0,
        "num_iterations": optimizer.epochs,
        "loss_type": loss.objective,
        "epsilon": loss.clip_low,
        "epsilon_high": loss.clip_high,
        "delta": loss.delta or None,
        "beta": loss.kl_coef,
        "scale_rewards": "none" if config.advantage.std == "none" else config.advantage.scale,
        "learning_rate": optimizer.learning_rate,
        "lr_scheduler_type": SCHEDULES[optimizer.schedule],
        "warmup_steps": optimizer.warmup,
        "adam_beta1": optimizer.beta1,
        "adam_beta2": optimizer.beta2,
        "weight_decay": optimizer.weight_decay,
        "max_grad_norm": optimizer.clip_norm,
        **NOTHING_BESIDE,
    }


def refuse_unlike(config: Config) -> None:
    """Raises for a setting under which the two would not learn from the same things in the same way."""
    rollout, loss, advantage, optimizer = config.rollout, config.loss, config.advantage, config.optimizer
    rows, pieces = rollout.prompts * rollout.group_size, optimizer.minibatches * max(optimizer.microbatches, 1)
    reasons = {
        "rollout.stop is set, and TRL cannot stop on texts in the same way; leave it empty": bool(rollout.stop),
        "rollout.top_k is set, and TRL then trains another distribution than it samples; set it to 0": rollout.top_k
        > 0,
        f"rollout.zero_variance = {rollout.zero_variance!r} is not in TRL; set it to 'keep'": rollout.zero_variance
        != "keep",
        f"rollout.truncated = {rollout.truncated!r} is not the same in TRL; set it to 'keep'": rollout.truncated
        != "keep",
        f"loss.objective = {loss.objective!r} is not compared; choose one of {', '.join(SAME_NAME)}": loss.objective
        not in SAME_NAME,
        "loss.dual_clip is not in TRL; set it to 0": loss.dual_clip > 0,
        "loss.kl_coef is not compared; set it to 0": loss.kl_coef > 0,
        "loss.entropy_coef is not compared; set it to 0": loss.entropy_coef > 0,
        "loss.correction is in TRL for vLLM only; set it to 'off'": loss.correction != "off",
        "advantage.baseline, std, combine and epsilon must be as TRL has them: 'mean', 'sample' or 'none', 'sum' and "
        f"{ADVANTAGE_EPSILON}": advantage.baseline != "mean"
        or advantage.std == "population"
        or advantage.combine != "sum"
        or advantage.epsilon != ADVANTAGE_EPSILON,
        "loss.objective = 'bnpo' depends in TRL on optimizer.microbatches; set it to 1": loss.objective == "bnpo"
        and optimizer.microbatches > 1,
        f"{rows} rows cannot be cut evenly into optimizer.minibatches x optimizer.microbatches = {pieces}, as TRL "
        "does; choose a divisor": rows % pieces != 0,
        "model.lora_rank is not compared: adapters begin with different random numbers; set it to 0": (
            config.model.lora_rank > 0
        ),
        "model.dtype = 'bfloat16' is another arithmetic in TRL; set it to 'float32'": config.model.dtype == "bfloat16",
        "optimizer.learning_rate = 'auto' is decided when the model is loaded; give a number": (
            optimizer.learning_rate == "auto"
        ),
        "evaluate.prompts = 0 leaves nothing to compare; give a number of held-out prompts": config.evaluate.prompts
        == 0,
    }
    for sentence, holds in reasons.items():
        if holds:
            raise ConfigError(f"bench --learning: {sentence}")
