"""Why settings are refused, in one sentence each: unknown names (answered with the name that was meant, or with what
other trainers' name is called here), values out of range, settings that contradict each other."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.machine.user_error import UserError

if TYPE_CHECKING:
    from assay.config.sections import Config

MOST_THREADS = 1024  # with very many, torch ends the process without a word
_CLIP = "loss.clip_low and loss.clip_high"

# what it is called here -> what TRL, verl, OpenRLHF and Hugging Face call it
_CALLED = {
    "run.steps": "max_steps num_steps total_training_steps",
    "run.steps (steps are counted, not passes over the data)": "num_train_epochs num_episodes total_epochs",
    "run.name": "run_name experiment_name",
    "run.seed": "data_seed",
    "--out, an option of the command line": "output_dir default_local_dir save_path",
    "--resume, an option of the command line": "resume_from_checkpoint",
    "model.path": "model model_name model_name_or_path pretrain",
    "model.dtype": "torch_dtype",
    'model.dtype = "bfloat16"': "bf16",
    "model.lora_rank": "lora_r r",
    "model.lora_targets": "target_modules lora_target_modules",
    "model.gradient_checkpointing": "enable_gradient_checkpointing",
    "task.name": "dataset dataset_name train_dataset train_files prompt_data",
    "task.options.heldout_file": "eval_dataset val_files",
    "task.long_prompts (prompts are never cut; too long ones stop the run or are skipped)": (
        "max_prompt_length prompt_max_len"
    ),
    "reward.functions": "reward_funcs reward_fn custom_reward_function",
    "reward.weights": "reward_weights",
    "judge.path": "reward_model reward_pretrain",
    "rollout.prompts (prompts per step; each gets rollout.group_size answers)": (
        "batch_size train_batch_size rollout_batch_size"
    ),
    "rollout.prompts x rollout.group_size": "generation_batch_size",
    "rollout.group_size": "n num_generations n_samples_per_prompt",
    "rollout.max_tokens": "max_new_tokens max_completion_length max_response_length response_length generate_max_len",
    "rollout.stop": "stop_strings",
    'rollout.truncated = "mask"': "mask_truncated_completions",
    'rollout.truncated = "penalise" and rollout.penalty_tokens': "overlong_buffer",
    'rollout.zero_variance = "refill"': "dynamic_sampling dynamic_filtering filter_groups",
    "advantage.std and advantage.scale": "scale_rewards",
    "advantage.std": "norm_adv_by_std_in_grpo",
    "loss.objective": "loss_type loss_agg_mode",
    "loss.objective and advantage.baseline": "adv_estimator",
    'loss.objective = "gspo" for the level of sequences': "importance_sampling_level",
    f"{_CLIP} (advantage.epsilon is what is added to the std)": "epsilon",
    "loss.clip_low": "epsilon_low clip_ratio_low eps_clip_low",
    "loss.clip_high": "epsilon_high clip_ratio_high eps_clip_high",
    _CLIP: "cliprange clip_range clip_ratio eps_clip",
    "loss.dual_clip": "clip_ratio_c",
    "loss.kl_coef": "beta kl_beta init_kl_coef kl_loss_coef kl_coeff",
    "loss.kl_estimator": "kl_loss_type kl_penalty",
    'loss.kl_placement = "reward"': "use_kl_in_reward",
    'loss.kl_placement = "loss"': "use_kl_loss",
    "loss.entropy_coef": "entropy_coeff",
    "loss.reference_every": "ref_model_sync_steps",
    "loss.correction": "vllm_importance_sampling_correction",
    "loss.correction_high": "vllm_importance_sampling_cap",
    "optimizer.learning_rate": "lr actor_learning_rate",
    "optimizer.schedule": "lr_scheduler_type lr_scheduler",
    "optimizer.warmup": "warmup_steps lr_warmup_steps",
    "optimizer.warmup (a number of updates, not a share)": "warmup_ratio lr_warmup_ratio lr_warmup_steps_ratio",
    "optimizer.beta1": "adam_beta1",
    "optimizer.beta2": "adam_beta2",
    "optimizer.beta1 and optimizer.beta2": "betas",
    "optimizer.clip_norm": "max_grad_norm max_norm grad_clip gradient_clipping",
    "optimizer.epochs": "num_iterations mu ppo_epochs max_epochs",
    "optimizer.minibatches x optimizer.microbatches": "steps_per_generation",
    "optimizer.minibatches (how many, not how large)": "ppo_mini_batch_size mini_batch_size",
    "optimizer.microbatches": "gradient_accumulation_steps",
    (
        "optimizer.microbatches (how many passes an update takes; rollout.prompts x rollout.group_size "
        "answers make a step)"
    ): "per_device_train_batch_size",
    "optimizer.microbatches (how many passes an update takes, not how large)": (
        "micro_train_batch_size ppo_micro_batch_size_per_gpu"
    ),
    "optimizer.pass_tokens": "ppo_max_token_len_per_gpu",
    "checkpoint.every": "save_steps save_freq",
    "checkpoint.keep": "save_total_limit",
    "evaluate.every": "eval_steps test_freq",
    "evaluate.samples": "num_generations_eval",
    "record.rollouts": "log_completions",
    "log.tensorboard, log.wandb and log.trackio": "report_to logger",
    "log.wandb": "use_wandb wandb_project project_name",
    "log.tensorboard": "use_tensorboard",
}
ALIASES = {theirs: ours for ours, names in _CALLED.items() for theirs in names.split()}

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


class ConfigError(UserError, ValueError):
    """A config that cannot be run. Each sentence names a setting and the fix."""

    def __init__(self, *sentences: str) -> None:
        super().__init__("\n".join(sentences))
        self.sentences = sentences


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
    """Sentences about an unknown section: the name that was meant, or where each of its settings belongs."""
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


def value_problems(name: str, value: Any, key: dataclasses.Field[Any]) -> Iterator[str]:
    """What is wrong with a value of the right type."""
    choices, low = key.metadata["choices"], key.metadata["low"]
    if choices and value not in choices:
        yield f"{name} = {value!r} is not one of {', '.join(choices)}{nearest(str(value), list(choices))}"
    for part in value if isinstance(value, tuple) else (value,):
        if isinstance(part, str) and not _is_unicode(part):
            yield f"{name} = {part!r} holds bytes that are not text; give it in UTF-8"
        if isinstance(part, float) and not math.isfinite(part):
            yield f"{name} = {part} is not a finite number"
    if isinstance(value, int | float) and value < low:
        reason = "; a group of one has nobody to be compared with" if name == "rollout.group_size" else ""
        yield f"{name} = {value} is below its minimum {low:g}{reason}"


def _is_unicode(text: str) -> bool:
    return not any(0xD800 <= ord(character) <= 0xDFFF for character in text)


def contradictions(config: Config) -> list[str]:
    """Settings that are each fine and together are not. A sentence names every setting that it depends on."""
    rollout, loss, reward, optimizer = config.rollout, config.loss, config.reward, config.optimizer
    rows = rollout.prompts * rollout.group_size
    updates = optimizer.minibatches * max(optimizer.microbatches, 1)
    found = {
        f"reward.weights holds {len(reward.weights)} numbers for {len(reward.functions)} reward.functions; give one "
        "weight a function, or none": bool(reward.weights) and len(reward.weights) != len(reward.functions),
        "reward.functions = 'judge' needs judge.path (a sequence classifier) or judge.url (a server), not both": (
            "judge" in reward.functions and bool(config.judge.path) == bool(config.judge.url)
        ),
        "rollout.top_p and rollout.min_p need rollout.top_k, for instance 50: the tokens that could have been sampled "
        "are kept, so that training scores the distribution that was sampled from, and without a bound they can be the "
        "whole vocabulary": (rollout.top_p < 1 or rollout.min_p > 0) and rollout.top_k == 0,
        "rollout.top_p and rollout.min_p are shares between 0 and 1": max(rollout.top_p, rollout.min_p) > 1,
        "rollout.stop holds an empty text, which ends every answer before it begins": "" in rollout.stop,
        "loss.reference_every renews a reference, but loss.kl_coef = 0 has none": loss.reference_every > 0
        and loss.kl_coef == 0,
        "loss.reference_every cannot renew the reference of adapters (model.lora_rank): it is the model without them; "
        "set it to 0": loss.reference_every > 0 and config.model.lora_rank > 0,
        f"rollout.prompts x rollout.group_size = {rows} rows cannot be cut evenly into "
        f"optimizer.minibatches = {optimizer.minibatches}; choose a divisor of {rows}": rows % optimizer.minibatches
        != 0,
        f"rollout.prompts x rollout.group_size = {rows} rows are fewer than optimizer.minibatches x "
        f"optimizer.microbatches = {updates}": rows < updates,
        f"optimizer.pass_tokens = {optimizer.pass_tokens} would be ignored: optimizer.microbatches = "
        f"{optimizer.microbatches} says into how many passes an update is cut; set one of the two to 0": bool(
            optimizer.pass_tokens and optimizer.microbatches
        ),
        f"loss.dual_clip = {loss.dual_clip} must exceed 1 + loss.clip_high, or be 0 for off": 0
        < loss.dual_clip
        <= 1 + loss.clip_high,
        f"loss.delta = {loss.delta} must exceed 1 + loss.clip_high, or be 0 for off": 0
        < loss.delta
        <= 1 + loss.clip_high,
        "loss.clip_low = 1 or more allows a ratio of 0 or less; it must be below 1": loss.clip_low >= 1,
        "loss.kl_estimator = 'k1' in the loss has a gradient that is pure noise on its own samples; "
        "use k2 or k3, loss.kl_gradient = 'unbiased', or loss.kl_placement = 'reward'": loss.kl_coef > 0
        and loss.kl_placement == "loss"
        and loss.kl_estimator == "k1"
        and loss.kl_gradient == "naive",
        f"loss.correction_low = {loss.correction_low} is not below loss.correction_high": loss.correction_low
        >= loss.correction_high,
        "advantage.combine = 'gdpo' normalises over the batch itself; "
        "leave advantage.scale = 'group' and advantage.baseline = 'mean'": config.advantage.combine == "gdpo"
        and (config.advantage.scale, config.advantage.baseline) != ("group", "mean"),
        "rollout.truncated = 'penalise' needs rollout.penalty_tokens below "
        f"rollout.max_tokens = {rollout.max_tokens}": rollout.truncated == "penalise"
        and rollout.penalty_tokens >= rollout.max_tokens,
        "optimizer.beta1 and optimizer.beta2 must be below 1": max(optimizer.beta1, optimizer.beta2) >= 1,
        f"run.name = {config.run.name!r} must be a plain name: it becomes a directory below runs/": not config.run.name
        or config.run.name != Path(config.run.name).name
        or config.run.name in (".", "..")
        or not config.run.name.isprintable(),
        f"run.threads = {config.run.threads} is more than {MOST_THREADS}; give at most the number of cores": (
            config.run.threads > MOST_THREADS
        ),
        f"evaluate.patience = {config.evaluate.patience} counts evaluations between steps, and there are none; set "
        "evaluate.every, for instance to 10": config.evaluate.patience > 0 and not config.evaluate.every,
        f"evaluate.patience = {config.evaluate.patience} counts evaluations, but evaluate.prompts = 0 makes none": bool(
            config.evaluate.patience and not config.evaluate.prompts
        ),
        "reward.min_scored and reward.max_failed are shares between 0 and 1": max(reward.min_scored, reward.max_failed)
        > 1,
    }
    return [sentence for sentence, holds in found.items() if holds]


def misleading(config: Config) -> list[str]:
    """Settings that a new run is refused for, because together they do not do what they say.

    These are not contradictions: runs that were made with them can still be read and resumed."""
    loss = config.loss
    if not loss.kl_coef:
        return []
    if loss.kl_placement == "reward" and loss.kl_estimator != "k1":
        return [
            f"loss.kl_estimator = {loss.kl_estimator!r} with loss.kl_placement = 'reward' lacks the gradient of the KL"
            ": taken off the reward, only k1 has it; set loss.kl_estimator = 'k1', or loss.kl_placement = 'loss'"
        ]
    if loss.kl_placement == "loss" and (loss.kl_estimator, loss.kl_gradient) == ("k2", "unbiased"):
        return [
            "loss.kl_gradient = 'unbiased' with loss.kl_estimator = 'k2' has the gradient of the mean of (new - ref)^2 "
            "/ 2, which is not the KL; set loss.kl_gradient = 'naive', or loss.kl_estimator = 'k3'"
        ]
    return []
