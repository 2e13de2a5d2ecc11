"""<run>/seed: the model that a run began with, if it came from another run. The run needs nothing of the other one.

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
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from assay.config import Config
from assay.foreign.directory import CONFIG, INDEX, READ, TEMPLATES
from assay.foreign.faults import reason
from assay.machine import durable
from assay.policy.made import CHECKSUMS
from assay.policy.policy import Policy
from assay.policy.where import source_of
from assay.record import RunError, checksums

SEED, RECORD, ADAPTER = "seed", "seed.json", "adapter.safetensors"


@dataclass(frozen=True, slots=True)
class Seed:
    """What a run begins with, before it is written into its directory."""

    directory: Path  # config and tokenizer are copied from here
    has_weights: bool  # ... and the weights, which are those of this directory too
    has_adapter: bool  # the run goes on with the adapter of the other one
    facts: Mapping[str, Any]  # where it came from, for the record


def with_seed(config: Config, run: Path) -> Config:
    """The config of a run with the place of the model that it began with, if that came from another run."""
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
        files = {str(file.relative_to(aside)): file_facts(file) for file in sorted(aside.rglob("*")) if file.is_file()}
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
    """A second name for the same bytes where the file system can do that, else a copy of them."""
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
    """The weights under the names that they had before adapters were put around them."""
    return {
        name.replace(".base_layer.", "."): weight for name, weight in model.state_dict().items() if ".lora_" not in name
    }


def file_facts(file: Path) -> dict[str, Any]:
    return asdict(checksums.facts_of_file(file))


def _verify(directory: Path) -> None:
    restore = "it is the model that the run began with; restore it from a copy of the run"
    try:
        files = json.loads((directory / RECORD).read_bytes())["files"]
        for name, facts in files.items():
            if not (directory / name).is_file():
                raise RunError(f"{directory / name} is missing: {restore}")
            if file_facts(directory / name) != facts:
                raise RunError(f"{directory / name} has changed: {restore}")
    except OSError as error:
        raise RunError(f"{error.filename} cannot be read: {error.strerror}; {restore}") from error
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise RunError(f"{directory / RECORD} is damaged: {restore}") from error
