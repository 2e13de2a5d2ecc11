"""Settings that name files. In a TOML file a relative path starts at the file's own directory, as its author sees it;
on the command line it starts at the shell's directory."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

# settings that may name a file -> their values that never do
PATHS: dict[str, tuple[str, ...]] = {
    "model.path": ("", "embedded", "smollm2"),
    "judge.path": ("",),
    "task.name": ("", "sort_digits", "addition", "json", "two_words"),
    "task.options.heldout_file": ("",),
}
FUNCTIONS = "reward.functions"  # file.py:function
_ALWAYS_PATHS = ("judge.path", "task.options.heldout_file", FUNCTIONS)
_ENDINGS = (".jsonl", ".json", ".parquet", ".csv", ".gguf")
_RUN_MARK = "run.json"


def start_at(file: Path, settings: dict[str, dict[str, Any]]) -> list[str]:
    """Makes the relative paths in `settings`, as read from the TOML file, absolute; returns a sentence for each path
    that exists in the shell's directory only. The config in a run directory is left alone: its paths are absolute."""
    if (file.parent / _RUN_MARK).is_file():
        return []
    problems: list[str] = []

    def locate(name: str, value: str) -> str:
        place = os.path.join(file.parent, os.path.expanduser(value))
        if os.path.exists(place):
            return os.path.realpath(place)
        if os.path.exists(value):
            problems.append(
                f"{file}: {name} = {value!r} is relative to this file's directory, where it does not exist; it exists "
                f"in the current directory: write {os.path.realpath(value)!r}, or give it as --set {name}={value}"
            )
        is_path = name in _ALWAYS_PATHS or value.endswith(_ENDINGS) or value.startswith((".", "~"))
        return os.path.abspath(place) if is_path else value

    change_paths(settings, locate)
    return problems


def expand_home(settings: dict[str, dict[str, Any]]) -> None:
    """~ and ~user become directories in every setting that names a file."""
    change_paths(settings, lambda name, value: os.path.expanduser(value))


def change_paths(settings: dict[str, dict[str, Any]], change: Callable[[str, str], str]) -> None:
    """Replaces each value that may name a file by `change(setting, value)`."""
    for name, names in PATHS.items():
        *tables, key = name.split(".")
        table: Any = settings
        for part in tables:
            table = table.get(part) if isinstance(table, Mapping) else None
        if isinstance(table, dict) and isinstance(table.get(key), str) and table[key] not in names:
            table[key] = change(name, table[key])
    reward = settings.get("reward", {})
    functions = reward.get("functions")
    if isinstance(functions, list):
        reward["functions"] = [_change_function(spec, change) for spec in functions]
    elif isinstance(functions, str):
        reward["functions"] = _change_function(functions, change)


def _change_function(spec: Any, change: Callable[[str, str], str]) -> Any:
    place, colon, function = spec.rpartition(":") if isinstance(spec, str) else ("", "", "")
    is_module = not place.endswith(".py") and all(part.isidentifier() for part in place.split("."))
    return spec if not colon or is_module else f"{change(FUNCTIONS, place)}:{function}"
