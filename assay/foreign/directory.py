"""A model directory before anything is loaded from it: plain files, weights as safetensors and nothing else.

A directory of somebody else's is input. What it names must lie inside it, must be a file that can be read to its end,
and must not be a pickle, which could run code.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from assay.config import ConfigError
from assay.foreign.faults import is_memory, reason

CONFIG, GENERATION, TOKENIZER = "config.json", "generation_config.json", "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
TEMPLATES = "additional_chat_templates"
TOKENIZER_FILES = (TOKENIZER, "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tiktoken.model")
READ = (".json", ".jinja", ".safetensors", ".model", ".txt", ".py")  # what the libraries open in such a directory
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
OBJECTS = (CONFIG, GENERATION, TOKENIZER, TOKENIZER_CONFIG, "special_tokens_map.json", "added_tokens.json", INDEX)
LARGEST_TEXT = 2**28  # bytes; the largest tokenizer.json in use has 35 MB
LARGEST_ID = 2**24  # tables of tokens are as long as the largest number; the largest vocabulary has 262,144 tokens


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A directory that was looked at. `what` names it in a sentence: "the model in ..."."""

    directory: Path
    what: str
    config: dict[str, Any]  # config.json
    shapes: dict[str, tuple[int, ...]]  # of all tensors, by the names in the files


def check_directory(directory: Path, what: str) -> ModelFiles:
    """Refuses a directory that is not a model with safetensors weights, in a sentence that begins with `what`."""
    try:
        names = sorted(entry.name for entry in directory.iterdir())
        _check_kinds(directory, names, what)
        if (directory / TEMPLATES).is_dir():
            _check_kinds(directory / TEMPLATES, (entry.name for entry in (directory / TEMPLATES).iterdir()), what)
    except OSError as error:
        raise ConfigError(f"{what} cannot be loaded: {error.filename}: {error.strerror}") from error
    found = {name: read_object(directory / name, what) for name in OBJECTS if name in names}
    if "adapter_config.json" in names:
        raise ConfigError(
            f"{what} holds a LoRA adapter (adapter_config.json) beside the model, which would be applied unseen; merge "
            "the two, or move adapter_config.json away"
        )
    if not any(name in names for name in TOKENIZER_FILES):
        raise ConfigError(f"{what} has no tokenizer: {TOKENIZER} is missing")
    _check_token_ids(found.get(TOKENIZER, {}), what)
    weights = _weight_files(directory, found, names, what)
    shapes: dict[str, tuple[int, ...]] = {}
    for file in weights:
        shapes |= read_shapes(file, what)
    return ModelFiles(directory, what, found[CONFIG], shapes)


def read_object(file: Path, what: str) -> dict[str, Any]:
    """The JSON object in a file."""
    try:
        if file.stat().st_size > LARGEST_TEXT:
            raise ValueError(f"it has more than {LARGEST_TEXT // 2**20} MB")
        value = json.loads(file.read_bytes())
    except OSError as error:
        raise ConfigError(f"{what} cannot be loaded: {file.name}: {error.strerror}") from error
    except RecursionError as error:
        raise ConfigError(f"{what} cannot be loaded: {file.name} is nested too deeply") from error
    except ValueError as error:
        raise ConfigError(
            f"{what} cannot be loaded: {file.name} is not JSON: {' '.join(str(error).split())}"
        ) from error
    if not isinstance(value, dict):
        raise ConfigError(f"{what} cannot be loaded: {file.name} holds {type(value).__name__} instead of an object")
    return value


def read_shapes(file: Path, what: str) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor, from the header of a safetensors file."""
    try:
        with safe_open(file, framework="numpy") as stored:
            return {name: tuple(stored.get_slice(name).get_shape()) for name in stored.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, ValueError, OverflowError, MemoryError) as error:
        damage = f"{file.name} is damaged or not safetensors ({reason(error)}); copy it again"
        raise ConfigError(f"{what} cannot be loaded: {reason(error) if is_memory(error) else damage}") from error


def _check_kinds(directory: Path, names: Iterable[str], what: str) -> None:
    """Opening a pipe or a device may never end."""
    for name in names:
        entry = directory / name
        if entry.suffix in READ and not entry.is_file():
            kind = "a directory" if entry.is_dir() else "not a regular file" if entry.exists() else "a broken link"
            raise ConfigError(f"{what} cannot be loaded: {name} is {kind}; put the file itself there")


def _check_token_ids(tokenizer: dict[str, Any], what: str) -> None:
    model, added = tokenizer.get("model"), tokenizer.get("added_tokens")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    numbers = list(vocabulary.items()) if isinstance(vocabulary, dict) else []
    entries = [token for token in added if isinstance(token, dict)] if isinstance(added, list) else []
    for token, number in [*numbers, *((entry.get("content"), entry.get("id")) for entry in entries)]:
        if isinstance(number, int) and not 0 <= number < LARGEST_ID:
            raise ConfigError(
                f"{what} cannot be loaded: {TOKENIZER} gives token {str(token)[:40]!r} the number {number}; "
                f"numbers from 0 to {LARGEST_ID - 1} can be used"
            )


def _weight_files(directory: Path, found: dict[str, dict[str, Any]], names: list[str], what: str) -> list[Path]:
    """The files that transformers will read, in the order of its preference."""
    chosen = found[CONFIG].get("transformers_weights")  # a setting of transformers: the name of the file
    if chosen is not None:
        problem = f"config.json names transformers_weights = {str(chosen)[:60]!r}"
        if not isinstance(chosen, str) or Path(chosen).name != chosen or not chosen.endswith(".safetensors"):
            raise ConfigError(f"{what} cannot be loaded: {problem}, which is not a .safetensors file of the directory")
        if chosen not in names:
            raise ConfigError(f"{what} cannot be loaded: {problem}, which is missing")
        return [directory / chosen]
    if WEIGHTS in names:
        return [directory / WEIGHTS]
    if INDEX in names:
        return _indexed_files(directory, found[INDEX], what)
    pickles = [name for name in names if name.endswith(PICKLES)]
    if pickles:
        raise ConfigError(
            f"{what} cannot be loaded: its weights are a pickle ({pickles[0]}), which could run code; convert them to "
            "safetensors where you trust them: load the model with transformers and call "
            "save_pretrained(...), which writes model.safetensors"
        )
    raise ConfigError(f"{what} cannot be loaded: it holds no weights; {WEIGHTS} is missing")


def _indexed_files(directory: Path, index: dict[str, Any], what: str) -> list[Path]:
    places = index.get("weight_map")
    if not isinstance(places, dict) or not places:
        raise ConfigError(f"{what} cannot be loaded: {INDEX} has no weight_map that says which file holds which tensor")
    if not isinstance(index.get("metadata"), dict):
        raise ConfigError(f'{what} cannot be loaded: {INDEX} has no metadata; add "metadata": {{}} to it')
    for tensor, name in places.items():
        where = f"{what} cannot be loaded: {INDEX} puts {tensor[:80]!r} into {str(name)[:80]!r}"
        if not isinstance(name, str) or not name or Path(name).name != name or "\0" in name:
            raise ConfigError(f"{where}, which is not a file name inside the directory")
        if name.endswith(PICKLES):
            raise ConfigError(f"{where}, a pickle, which could run code; convert it to safetensors where you trust it")
        if not name.endswith(".safetensors"):
            raise ConfigError(f"{where}, which is not a .safetensors file")
        try:
            is_file = (directory / name).is_file()
        except OSError:  # a name longer than the file system takes
            is_file = False
        if not is_file:
            raise ConfigError(f"{where}, which is missing")
    return [directory / name for name in sorted(set(places.values()))]
