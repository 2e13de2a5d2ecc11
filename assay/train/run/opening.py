"""What a run prints before its first step: where it is written, the model, the task, the device, the rate."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from assay.config import Config
from assay.config.automatic import LARGE_MODEL, LORA_RATE, automatic_rate, is_embedded
from assay.config.sections import OptimizerConfig
from assay.machine.terminal import human_count, plural
from assay.policy.policy import Policy
from assay.rewards import function_name
from assay.tasks import Task
from assay.tasks.files import FileTask

FEW_HELDOUT = 20  # prompts; with fewer, one answer moves the held-out score by more than 0.05


def with_rate(config: Config, policy: Policy) -> Config:
    """The config with the learning rate as a number: "auto" depends on how many parameters the model has."""
    if config.optimizer.learning_rate != "auto":
        return config
    rate = automatic_rate(parameters_of(policy))
    return replace(config, optimizer=replace(config.optimizer, learning_rate=rate))


def parameters_of(policy: Policy, *, trained: bool = False) -> int:
    """All parameters of the model without its adapters; or those that are trained."""
    weights = policy.model.named_parameters()
    return sum(weight.numel() for name, weight in weights if (weight.requires_grad if trained else "lora_" not in name))


def opening_facts(config: Config, run: Path, policy: Policy, task: Task, heldout: int) -> dict[str, str]:
    return {
        "run": str(run),
        "model": _model(config, policy),
        "task": f"{config.task.name}: {_problems(task, heldout)}",
        "reward": _reward(config),
        "device": _device(config, policy),
        "rate": f"{config.optimizer.peak:g}{_why(config, policy)}, {_schedule(config)}",
        "step": f"{config.rollout.prompts} prompts x {config.rollout.group_size} answers of up to "
        f"{plural(config.rollout.max_tokens, 'token')}, {plural(config.updates_a_step, 'update')}; "
        f"{plural(config.run.steps, 'step')} in all",
    }


def few_heldout(config: Config, task: Task, heldout: int) -> str:
    """A sentence if the held-out score is imprecise because the task has few rows; "" otherwise."""
    if not 0 < heldout < min(FEW_HELDOUT, config.evaluate.prompts):
        return ""
    why, fix = "", "give more of them"
    if isinstance(task, FileTask) and not task.options.heldout_file:
        why = f" (task.options.heldout = {task.options.heldout:g}, about that share of {sum(task.sizes)} rows)"
        fix = "raise task.options.heldout for a steadier score"
    return (
        f"only {plural(heldout, 'prompt')} held out{why}: one answer more or less moves the held-out score by "
        f"{1 / heldout:.2f}; {fix}"
    )


def _model(config: Config, policy: Policy) -> str:
    said = f"{config.model.path}: {human_count(parameters_of(policy))} parameters, {config.model.dtype}"
    if policy.adapter is None:
        return f"{said}, all trained"
    return (
        f"{said}, {human_count(parameters_of(policy, trained=True))} in LoRA adapters of rank {config.model.lora_rank}"
    )


def _problems(task: Task, heldout: int) -> str:
    if not isinstance(task, FileTask):
        return f"made on the spot, {plural(heldout, 'problem')} held out"
    training, held = task.sizes
    evaluated = "" if heldout == held else f" ({heldout:,} evaluated)"
    return f"{plural(training, 'row')} to train on, {held:,} held out{evaluated}"


def _reward(config: Config) -> str:
    reward = config.reward
    if not reward.functions:
        return "the task's own"
    weights = reward.weights or (1.0,) * len(reward.functions)
    names = [function if ":" not in function else function_name(function) for function in reward.functions]
    return ", ".join(
        name if weight == 1 else f"{weight:g} x {name}" for name, weight in zip(names, weights, strict=True)
    )


def _device(config: Config, policy: Policy) -> str:
    if policy.device.type == "cuda":
        return f"cuda ({torch.cuda.get_device_name(policy.device)})"
    return f"{policy.device.type}, {plural(config.run.threads, 'thread')}"


def _why(config: Config, policy: Policy) -> str:
    """Why the rate is what it is, if it is a default."""
    parameters = parameters_of(policy)
    if is_embedded(config.model.path):
        default, reason = OptimizerConfig().peak, "the embedded model"
    elif policy.adapter is not None:
        default, reason = LORA_RATE, "LoRA"
    else:
        size = "below 1 billion parameters" if parameters < LARGE_MODEL else "from 1 billion parameters on"
        default, reason = automatic_rate(parameters), f"full weights {size}"
    return f" (default for {reason})" if config.optimizer.peak == default else ""


def _schedule(config: Config) -> str:
    optimizer, updates = config.optimizer, config.run.steps * config.updates_a_step
    if not optimizer.warmup:
        return f"{optimizer.schedule}, no warm-up"
    reached = "" if optimizer.warmup <= updates else ": the rate is never reached"
    return f"{optimizer.schedule} after a warm-up of {optimizer.warmup} of {updates} updates{reached}"
