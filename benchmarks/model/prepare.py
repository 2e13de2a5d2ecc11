"""Before the runs: which device, which dtype, where the model is, and what the device can do at best."""

from __future__ import annotations

from pathlib import Path

import torch

from assay.config import ConfigError
from assay.config.sections import ModelConfig
from assay.policy.load import model_directory
from benchmarks.model.device import measured_limits, memory_of, name_of
from benchmarks.model.options import NO_GPU, check_room
from benchmarks.model.reading import Machine
from benchmarks.model.shapes import SHAPES
from benchmarks.model.weights import sizes_of, write_random
from benchmarks.model.workload import Workload
from benchmarks.process import cpu_model


def prepare(model: str, device: str, dtype: str, threads: int, place: Path, longest: Workload) -> Machine:
    torch.set_num_threads(threads)
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError(NO_GPU)
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if dtype == "auto":
        dtype = "bfloat16" if device == "cuda" else "float32"
    where, number = torch.device(device), getattr(torch, dtype)
    if model in SHAPES:
        directory = place / "model"
        write_random(model, directory, where, number)
    else:
        directory = model_directory(ModelConfig(path=model), lambda done, total: None, lambda sentence: None)
    sizes = sizes_of(directory, number)
    check_room(sizes.context, longest)
    return Machine(
        device=device,
        device_name=name_of(where, cpu_model()),
        dtype=dtype,
        directory=str(directory),
        sizes=sizes,
        limits=measured_limits(where, number, threads),
        memory_bytes=memory_of(where),
        threads=threads,
    )
