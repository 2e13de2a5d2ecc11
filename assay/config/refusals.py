"""Names of settings: what other trainers call them, and the nearest name to a wrong one."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

_CLIP = "loss.clip_low and loss.clip_high"

# what TRL, verl, OpenRLHF and Hugging Face call it -> what it is called here
ALIASES = {
    # run
    "max_steps": "run.steps",
    "num_steps": "run.steps",
    "num_train_epochs": "run.steps (steps are counted, not passes over the data)",
    "num_episodes": "run.steps (steps are counted, not passes over the data)",
    "total_epochs": "run.steps (steps are counted, not passes over the data)",
    "total_training_steps": "run.steps",
    "run_name": "run.name",
    "experiment_name": "run.name",
    "data_seed": "run.seed",
    "output_dir": "--out, an option of the command line",
    "default_local_dir": "--out, an option of the command line",
    "save_path": "--out, an option of the command line",
    "resume_from_checkpoint": "--resume, an option of the command line",
    # model
    "model": "model.path",
    "model_name": "model.path",
    "model_name_or_path": "model.path",
    "pretrain": "model.path",
    "torch_dtype": "model.dtype",
    "bf16": 'model.dtype = "bfloat16"',
    "lora_r": "model.lora_rank",
    "r": "model.lora_rank",
    "target_modules": "model.lora_targets",
    "lora_target_modules": "model.lora_targets",
    "enable_gradient_checkpointing": "model.gradient_checkpointing",
    # task and reward
    "dataset": "task.name",
    "dataset_name": "task.name",
    "train_dataset": "task.name",
    "train_files": "task.name",
    "prompt_data": "task.name",
    "eval_dataset": "task.options.heldout_file",
    "val_files": "task.options.heldout_file",
    "max_prompt_length": "task.long_prompts (prompts are never cut; too long ones stop the run or are skipped)",
    "prompt_max_len": "task.long_prompts (prompts are never cut; too long ones stop the run or are skipped)",
    "reward_funcs": "reward.functions",
    "reward_fn": "reward.functions",
    "custom_reward_function": "reward.functions",
    "reward_weights": "reward.weights",
    "reward_model": "judge.path",
    "reward_pretrain": "judge.path",
    # rollout
    "batch_size": "rollout.prompts (prompts per step; each gets rollout.group_size answers)",
    "train_batch_size": "rollout.prompts (prompts per step; each gets rollout.group_size answers)",
    "rollout_batch_size": "rollout.prompts (prompts per step; each gets rollout.group_size answers)",
    "generation_batch_size": "rollout.prompts x rollout.group_size",
    "n": "rollout.group_size",
    "num_generations": "rollout.group_size",
    "n_samples_per_prompt": "rollout.group_size",
    "max_new_tokens": "rollout.max_tokens",
    "max_completion_length": "rollout.max_tokens",
    "max_response_length": "rollout.max_tokens",
    "response_length": "rollout.max_tokens",
    "generate_max_len": "rollout.max_tokens",
    "stop_strings": "rollout.stop",
    "mask_truncated_completions": 'rollout.truncated = "mask"',
    "overlong_buffer": 'rollout.truncated = "penalise" and rollout.penalty_tokens',
    "dynamic_sampling": 'rollout.zero_variance = "refill"',
    "dynamic_filtering": 'rollout.zero_variance = "refill"',
    "filter_groups": 'rollout.zero_variance = "refill"',
    # advantage and loss
    "scale_rewards": "advantage.std and advantage.scale",
    "norm_adv_by_std_in_grpo": "advantage.std",
    "loss_type": "loss.objective",
    "adv_estimator": "loss.objective and advantage.baseline",
    "importance_sampling_level": 'loss.objective = "gspo" for the level of sequences',
    "loss_agg_mode": "loss.objective",
    "epsilon": f"{_CLIP} (advantage.epsilon is what is added to the std)",
    "epsilon_low": "loss.clip_low",
    "epsilon_high": "loss.clip_high",
    "cliprange": _CLIP,
    "clip_range": _CLIP,
    "clip_ratio": _CLIP,
    "clip_ratio_low": "loss.clip_low",
    "clip_ratio_high": "loss.clip_high",
    "clip_ratio_c": "loss.dual_clip",
    "eps_clip": _CLIP,
    "eps_clip_low": "loss.clip_low",
    "eps_clip_high": "loss.clip_high",
    "beta": "loss.kl_coef",
    "kl_beta": "loss.kl_coef",
    "init_kl_coef": "loss.kl_coef",
    "kl_loss_coef": "loss.kl_coef",
    "kl_coeff": "loss.kl_coef",
    "kl_loss_type": "loss.kl_estimator",
    "kl_penalty": "loss.kl_estimator",
    "use_kl_in_reward": 'loss.kl_placement = "reward"',
    "use_kl_loss": 'loss.kl_placement = "loss"',
    "entropy_coeff": "loss.entropy_coef",
    "ref_model_sync_steps": "loss.reference_every",
    "vllm_importance_sampling_correction": "loss.correction",
    "vllm_importance_sampling_cap": "loss.correction_high",
    # optimizer
    "lr": "optimizer.learning_rate",
    "actor_learning_rate": "optimizer.learning_rate",
    "lr_scheduler_type": "optimizer.schedule",
    "lr_scheduler": "optimizer.schedule",
    "warmup_steps": "optimizer.warmup",
    "lr_warmup_steps": "optimizer.warmup",
    "warmup_ratio": "optimizer.warmup (a number of updates, not a share)",
    "lr_warmup_ratio": "optimizer.warmup (a number of updates, not a share)",
    "lr_warmup_steps_ratio": "optimizer.warmup (a number of updates, not a share)",
    "adam_beta1": "optimizer.beta1",
    "adam_beta2": "optimizer.beta2",
    "betas": "optimizer.beta1 and optimizer.beta2",
    "max_grad_norm": "optimizer.clip_norm",
    "max_norm": "optimizer.clip_norm",
    "grad_clip": "optimizer.clip_norm",
    "gradient_clipping": "optimizer.clip_norm",
    "num_iterations": "optimizer.epochs",
    "mu": "optimizer.epochs",
    "ppo_epochs": "optimizer.epochs",
    "max_epochs": "optimizer.epochs",
    "steps_per_generation": "optimizer.minibatches x optimizer.microbatches",
    "ppo_mini_batch_size": "optimizer.minibatches (how many, not how large)",
    "mini_batch_size": "optimizer.minibatches (how many, not how large)",
    "gradient_accumulation_steps": "optimizer.microbatches",
    "per_device_train_batch_size": "optimizer.microbatches (how many passes an update takes; rollout.prompts x "
    "rollout.group_size answers make a step)",
    "micro_train_batch_size": "optimizer.microbatches (how many passes an update takes, not how large)",
    "ppo_micro_batch_size_per_gpu": "optimizer.microbatches (how many passes an update takes, not how large)",
    "ppo_max_token_len_per_gpu": "optimizer.pass_tokens",
    # checkpoint, evaluate, log
    "save_steps": "checkpoint.every",
    "save_freq": "checkpoint.every",
    "save_total_limit": "checkpoint.keep",
    "eval_steps": "evaluate.every",
    "test_freq": "evaluate.every",
    "num_generations_eval": "evaluate.samples",
    "log_completions": "record.rollouts",
    "report_to": "log.tensorboard, log.wandb and log.trackio",
    "logger": "log.tensorboard, log.wandb and log.trackio",
    "use_wandb": "log.wandb",
    "use_tensorboard": "log.tensorboard",
    "wandb_project": "log.wandb",
    "project_name": "log.wandb",
}

# what other trainers have a setting for, and why there is none here
ABSENT = {
    "logging_steps": "every step is recorded",
    "log_every": "every step is recorded",
    "fp16": "only float32 and bfloat16 are computed, see model.dtype",
    "lora_dropout": "dropout would make new log-probs differ from old ones with equal weights",
    "dropout": "dropout would make new log-probs differ from old ones with equal weights",
    "disable_dropout": "dropout is always off",
    "repetition_penalty": "training would score another distribution than the one that was sampled from",
    "use_vllm": "rollouts are made by the built-in engine",
}


def nearest(name: str, names: Sequence[str]) -> str:
    """The end of an error message: the name that was probably meant, if one is close."""
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""


def answer_foreign(key: str) -> str:
    """The end of an error message about a key that other trainers know: its name here, or why it has none."""
    if key in ALIASES:
        return f"; Assay calls it {ALIASES[key]}"
    return f"; there is no such setting: {ABSENT[key]}" if key in ABSENT else ""


def answer_unknown(section: str, key: str, sections: Mapping[str, Sequence[str]]) -> str:
    """The end of an error message about an unknown setting: its name here, the nearest one of its section, or the same
    key in another section. `sections` are the keys of each section."""
    if answer := answer_foreign(key) or nearest(key, sections.get(section, ())).replace("'", f"'{section}.", 1):
        return answer
    same = [f"{other}.{key}" for other, keys in sections.items() if key in keys]
    return f"; did you mean {same[0]!r}?" if same else "; assay train --print-config lists all settings"


def answer_without_section(key: str, sections: Mapping[str, Sequence[str]]) -> str:
    """... about a key that stands alone. Its own name in a section comes first: `steps` is run.steps."""
    same = [f"{section}.{key}" for section, keys in sections.items() if key in keys and key not in ALIASES]
    everywhere = [f"{section}.{name}" for section, keys in sections.items() for name in keys]
    if len(same) == 1:
        return f"; Assay calls it {same[0]}"
    if same:
        return f"; it may be {' or '.join(same)}"
    return answer_foreign(key) or nearest(key, everywhere) or "; assay train --print-config lists all settings"


def unknown_section(section: str, table: Mapping[str, object], sections: Mapping[str, Sequence[str]]) -> list[str]:
    """What is said about an unknown section: the name that was meant, or where each of its settings belongs."""
    keys = [name.rpartition(".")[2] for name in _leaves(table)]
    meant = nearest(section, list(sections))
    known = [key for key in keys if key in ALIASES or key in ABSENT or any(key in names for names in sections.values())]
    if not known or (meant and all(key in sections[meant.split("'")[1]] for key in keys)):
        return [f"unknown section [{section}]{meant or '; assay train --print-config lists all sections'}"]
    return [
        f"unknown setting {section}.{name}{answer_unknown('', name.rpartition('.')[2], sections)}"
        for name in _leaves(table)
    ]


def _leaves(table: Mapping[str, object], prefix: str = "") -> list[str]:
    """The dotted names of all values in nested tables."""
    names = []
    for key, value in table.items():
        names += _leaves(value, f"{prefix}{key}.") if isinstance(value, Mapping) and value else [f"{prefix}{key}"]
    return names
