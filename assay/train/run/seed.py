"""model.path = runs/x: a new run begins with the policy of another one and keeps it in <run>/seed.

    the other run's weights ----------------------------> trained further, or frozen under a new adapter
    the other run's adapter, the same LoRA settings -----> trained further: the same bits
    the other run's adapter, other settings or none -----> merged into its model (rounded), then as above

Of the other run its weights, tokenizer and model config are read; its rewards and its task are not. Afterwards the new
run needs nothing of the other one:

    seed/
      config.json, tokenizer.json, ...   as the other run had them
      model.safetensors                  its weights; under adapters those of the frozen model
      adapter.safetensors                its adapter, if this run goes on with it
      seed.json                          where all of it came from, and the size and SHA-256 of every file
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from assay.config import Config, ConfigError
from assay.config.sections import ModelConfig
from assay.foreign.adapter import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from assay.foreign.directory import CONFIG, INDEX, READ, TEMPLATES
from assay.foreign.faults import reason
from assay.machine import durable
from assay.policy.load import load_policy, model_directory, with_adapter, with_merged_adapter
from assay.policy.made import CHECKSUMS
from assay.policy.policy import Policy
from assay.policy.where import PUBLISHED, Source, source_of
from assay.record import RunDirectory, RunError
from assay.record.manifest import facts_of
from assay.record.trust import load_config
from assay.record.weights import step_of
from assay.train.run.saved_weights import (
    check_frozen,
    published_directory,
    put_adapter,
    put_weights,
    read_checkpoint,
)

SEED, RECORD, ADAPTER = "seed", "seed.json", "adapter.safetensors"

Tick = Callable[[int, int], None]
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Seed:
    """What a run begins with; not written into its directory yet."""

    directory: Path  # config and tokenizer are copied from here
    has_weights: bool  # ... and the weights, which are those of this directory too
    has_adapter: bool  # the run goes on with the adapter of the other one
    facts: Mapping[str, Any]  # where it came from, for the record


def inherit(config: Config) -> Config:
    """The config of a new run; dtype and threads that it leaves open are those of the run that it begins with, since
    other ones would give other numbers."""
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
        how = f"its adapter of rank {other.model.lora_rank}, merged into its model: equal except for rounding"
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
        weights = {file.name: facts_of(file) for file in sorted(directory.glob("*.safetensors"))}
        return policy, Seed(directory, has_weights=True, has_adapter=False, facts={**facts, "weights": weights})
    model = _model_of(config, other, source)
    policy = load_policy(replace(config, model=model), tick, say)
    put_adapter(policy, directory)
    facts["weights"] = {ADAPTER_WEIGHTS: facts_of(directory / ADAPTER_WEIGHTS)}
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


# ---------------------------------------------------------------- <run>/seed


def with_seed(config: Config, run: Path) -> Config:
    """The config of a run; if its first policy came from another run, with <run>/seed as the model."""
    directory = run / SEED
    if not (directory / RECORD).is_file():
        path = config.model.path  # earlier versions read runs/x/final as any other directory
        if source_of(path) is not None and not (Path(path) / CONFIG).is_file():
            raise RunError(f"{directory} is missing: the model that the run began with; restore it from a copy")
        return config
    _verify(directory)
    return replace(config, model=replace(config.model, path=str(directory)))


def base_of(run: Path, config: Config) -> str:
    """The model that an adapter of this run belongs to."""
    return str((run / SEED).resolve()) if (run / SEED).is_dir() else config.model.path


def seed_adapter(run: Path) -> dict[str, Tensor] | None:
    """The adapter that the run began with; None if it began with none."""
    file = run / SEED / ADAPTER
    try:
        return load_file(file) if file.is_file() else None
    except (OSError, SafetensorError) as error:
        raise RunError(f"{file} cannot be read: {reason(error)}; restore it from a copy of the run") from error


def write_seed(run: Path, policy: Policy, seed: Seed) -> None:
    """Writes <run>/seed: whole, or not at all."""
    aside = durable.new_aside(run / SEED)
    try:
        aside.mkdir()
        _copy_settings(seed.directory, aside)
        if seed.has_weights:
            for file in [*seed.directory.glob("*.safetensors"), *seed.directory.glob(INDEX)]:
                _link(file.resolve(), aside / file.name)
        else:
            _save_weights(policy, aside)
        if seed.has_adapter:
            trained = {name: weight for name, weight in policy.model.named_parameters() if weight.requires_grad}
            save_file({name: weight.detach().cpu().contiguous() for name, weight in trained.items()}, aside / ADAPTER)
            (aside / ADAPTER).chmod(durable.usual_mode())
        files = {str(file.relative_to(aside)): facts_of(file) for file in sorted(aside.rglob("*")) if file.is_file()}
        record = {**seed.facts, "files": files}
        durable.write_file(aside / RECORD, json.dumps(record, indent=1).encode("ascii") + b"\n")
        for name in files:
            durable.sync_file(aside / name)
        durable.sync_directory(aside)
        os.rename(aside, run / SEED)
        durable.sync_directory(run)
    except (OSError, ValueError, SafetensorError) as error:
        why = durable.reason(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        raise RunError(f"{run / SEED} could not be written: {why}") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)  # renamed by now, unless something failed


def _copy_settings(directory: Path, target: Path) -> None:
    of_weights = (INDEX, CHECKSUMS, RECORD)  # the last two of a cache, and of the other run's own seed
    for file in directory.iterdir():
        if file.is_file() and file.suffix in READ and file.suffix != ".safetensors" and file.name not in of_weights:
            shutil.copyfile(file, target / file.name)
    if (directory / TEMPLATES).is_dir():
        shutil.copytree(directory / TEMPLATES, target / TEMPLATES)


def _link(source: Path, target: Path) -> None:
    """A hard link where the file system has them, else a copy."""
    if target.name != ADAPTER:  # the other run's own seed may hold an older adapter
        try:
            os.link(source, target)
        except OSError:
            shutil.copyfile(source, target)


def _save_weights(policy: Policy, target: Path) -> None:
    model: Any = policy.model
    place = target / "weights"
    model.save_pretrained(place, **({} if policy.adapter is None else {"state_dict": _without_adapter(model)}))
    for file in [*place.glob("*.safetensors"), *place.glob(INDEX)]:
        file.rename(target / file.name).chmod(durable.usual_mode())
    shutil.rmtree(place)


def _without_adapter(model: nn.Module) -> dict[str, Tensor]:
    """The weights under the names that they had before adapters were added."""
    return {
        name.replace(".base_layer.", "."): weight for name, weight in model.state_dict().items() if ".lora_" not in name
    }


def _verify(directory: Path) -> None:
    restore = "it is the model that the run began with; restore it from a copy of the run"
    try:
        files = json.loads((directory / RECORD).read_bytes())["files"]
        for name, facts in files.items():
            if not (directory / name).is_file():
                raise RunError(f"{directory / name} is missing: {restore}")
            if facts_of(directory / name) != facts:
                raise RunError(f"{directory / name} has changed: {restore}")
    except OSError as error:
        raise RunError(f"{error.filename} cannot be read: {error.strerror}; {restore}") from error
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise RunError(f"{directory / RECORD} is damaged: {restore}") from error
