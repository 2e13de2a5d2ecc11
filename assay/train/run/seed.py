"""model.path = runs/x: a new run begins with the policy of another one.

    the other run's weights ----------------------------> trained further, or frozen under a new adapter
    the other run's adapter, the same LoRA settings -----> trained further: the same bits
    the other run's adapter, other settings or none -----> merged into its model (rounded), then as above

Of the other run its weights, tokenizer and model config are read; its rewards and its task are not.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from assay.config import Config, ConfigError
from assay.config.sections import ModelConfig
from assay.foreign.adapter import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from assay.policy.load import load_policy, model_directory, with_adapter, with_merged_adapter
from assay.policy.policy import Policy
from assay.policy.where import PUBLISHED, Source, source_of
from assay.record import RunDirectory, RunError
from assay.record.trust import load_config
from assay.record.weights import step_of
from assay.train.evaluate.saved_policy import (
    check_frozen,
    published_directory,
    put_adapter,
    put_weights,
    read_checkpoint,
)
from assay.train.run.seed_files import Seed, file_facts, seed_adapter, with_seed

Tick = Callable[[int, int], None]
Say = Callable[[str], None]


def inherit(config: Config) -> Config:
    """The config of a new run with what it leaves open taken from the run that it begins with: the same numbers need
    the same dtype and threads."""
    source = source_of(config.model.path)
    if source is None:
        return config
    other = _config_of(source)
    dtype = other.model.dtype if config.model.dtype == "auto" else config.model.dtype
    threads = config.run.threads or other.run.threads
    return replace(config, model=replace(config.model, dtype=dtype), run=replace(config.run, threads=threads))


def open_source(config: Config, source: Source, tick: Tick, say: Say) -> tuple[Policy, Config, Seed]:
    """(the policy, the config with the very model in model.path, what is to be written into the new run)."""
    other = _config_of(source)
    try:
        opened = _open_published if source.name in PUBLISHED else _open_checkpoint
        policy, seed = opened(config, other, source, tick, say)
    except (ConfigError, RunError) as error:
        raise type(error)(f"model.path = {str(source.run)!r}: {error}") from error
    how = "its weights"
    if policy.adapter is not None and _same_adapter(config.model, other.model):
        how = "its adapter, which is trained further"
        seed = replace(seed, has_adapter=True)
    elif policy.adapter is not None:
        how = f"its adapter of rank {other.model.lora_rank}, merged into its model: equal but for rounding"
        policy = with_merged_adapter(policy, say)
        seed = replace(seed, has_weights=False)
    path, step = seed.facts["source"], seed.facts["step"]
    say(f"the policy begins as that of {path}, after step {step}: {how}")
    if config.model.lora_rank and policy.adapter is None:
        policy = with_adapter(policy, config, say)
    seed = replace(seed, facts={**seed.facts, "taken": how})
    return policy, replace(config, model=replace(config.model, path=path)), seed


def open_seeded(config: Config, run: Path, tick: Tick, say: Say) -> Policy:
    """The policy with which a run began, out of its own directory."""
    policy = load_policy(with_seed(config, run), tick, say)
    adapter = seed_adapter(run)
    if adapter is not None:
        put_weights(policy, adapter, str(run / "seed"))
    return policy


def _config_of(source: Source) -> Config:
    RunDirectory.open(source.run)
    return load_config(source.run)


def _open_published(config: Config, other: Config, source: Source, tick: Tick, say: Say) -> tuple[Policy, Seed]:
    directory = published_directory(source.run, str(source.name))
    facts = {"source": str(directory), "step": step_of(source.run, str(source.name))}
    if not (directory / ADAPTER_CONFIG).is_file():
        whole = replace(config.model, path=str(directory), lora_rank=0)
        policy = load_policy(replace(config, model=whole), tick, say)
        weights = {file.name: file_facts(file) for file in sorted(directory.glob("*.safetensors"))}
        return policy, Seed(directory, has_weights=True, has_adapter=False, facts={**facts, "weights": weights})
    model = _model_of(config, other, source)
    policy = load_policy(replace(config, model=model), tick, say)
    put_adapter(policy, directory)
    facts["weights"] = {ADAPTER_WEIGHTS: file_facts(directory / ADAPTER_WEIGHTS)}
    return policy, Seed(model_directory(model, tick, say), has_weights=True, has_adapter=False, facts=facts)


def _open_checkpoint(config: Config, other: Config, source: Source, tick: Tick, say: Say) -> tuple[Policy, Seed]:
    saved = read_checkpoint(source.run, source.name, say)
    model = _model_of(config, other, source)
    policy = load_policy(replace(config, model=model), tick, say)
    check_frozen(policy, saved, model.path)
    put_weights(policy, saved.tensors["weights"], str(saved.path))
    files: dict[str, Any] = json.loads((saved.path / "manifest.json").read_bytes())["files"]
    facts = {
        "source": str(saved.path),
        "step": saved.state["place"]["step"],
        "weights": {"weights.safetensors": files["weights.safetensors"]},
    }
    is_adapter = policy.adapter is not None
    return policy, Seed(model_directory(model, tick, say), has_weights=is_adapter, has_adapter=False, facts=facts)


def _model_of(config: Config, other: Config, source: Source) -> ModelConfig:
    """The other run's model with its adapter, loaded as the new run loads models."""
    model = with_seed(other, source.run).model
    if model.lora_rank and config.model.dtype != model.dtype:
        raise ConfigError(
            f"model.dtype = {config.model.dtype!r}, but the adapter was trained on a {model.dtype} model; leave "
            "model.dtype = 'auto'"
        )
    return replace(
        model,
        dtype=config.model.dtype,
        trust_remote_code=config.model.trust_remote_code,
        gradient_checkpointing=config.model.gradient_checkpointing,
    )


def _same_adapter(ours: ModelConfig, theirs: ModelConfig) -> bool:
    return all(getattr(ours, name) == getattr(theirs, name) for name in ("lora_rank", "lora_alpha", "lora_targets"))
