"""The versions and the machine under a run."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from typing import Any

_PACKAGES = (
    "accelerate", "assay", "math-verify", "numpy", "peft", "pyarrow", "reasoning-gym", "safetensors", "tokenizers",
    "torch", "transformers", "trl", "vllm",
)  # fmt: skip


def describe_environment(threads: int) -> dict[str, Any]:
    """No variable, user, host or command line: a record is made to be shared."""
    return {
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "system": platform.system(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "threads": threads,
        "packages": {name: _installed_version(name) for name in _PACKAGES},
    }


def _installed_version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
