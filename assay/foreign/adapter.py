"""The tensors of a LoRA adapter, out of a directory that PEFT or this program wrote."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from assay.config import ConfigError
from assay.foreign.directory import PICKLES
from assay.foreign.faults import reason

ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"  # PEFT's names


def read_adapter(directory: Path) -> dict[str, Tensor]:
    file = directory / ADAPTER_WEIGHTS
    what = f"the adapter in {directory} cannot be loaded"
    pickles = [file.with_suffix(suffix).name for suffix in PICKLES if file.with_suffix(suffix).exists()]
    if not file.is_file():
        if pickles:
            raise ConfigError(f"{what}: {pickles[0]} is a pickle, which could run code; convert it to safetensors")
        raise ConfigError(f"{what}: {ADAPTER_WEIGHTS} is {'not a regular file' if file.exists() else 'missing'}")
    try:
        tensors: dict[str, Tensor] = load_file(file)
    except (OSError, SafetensorError, ValueError, MemoryError) as error:
        raise ConfigError(f"{what}: {ADAPTER_WEIGHTS} is damaged ({reason(error)}); copy it again") from error
    return tensors
