"""TOML file + `--set section.key=value` -> Config, and back.

Unknown keys, wrong types, values out of range and contradictions are refused, all at once.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from assay.config.automatic import (
    AUTO,
    automatic_warmup,
    unstated_settings,
    with_matching_defaults,
    with_model_defaults,
)
from assay.config.paths import change_paths, expand_home, start_at
from assay.config.refusals import (
    ConfigError,
    answer_unknown,
    answer_without_section,
    nearest,
    unknown_section,
    value_problems,
)
from assay.config.sections import Config

Options = TypeVar("Options")


def load(path: Path | None, overrides: Sequence[str] = ()) -> Config:
    """The config of a TOML file (or the defaults) with `section.key=value` overrides applied in order.

    >>> load(None, ["run.steps=5", "loss.objective=grpo"]).run.steps
    5
    """
    settings, changed, problems = _read_settings(path, overrides)
    return _build(settings, lambda name: f"{path}: " if path is not None and name not in changed else "", problems)


def template(path: Path | None, overrides: Sequence[str] = ()) -> str:
    """All settings as TOML with their meanings; what `load` would choose stays "auto"."""
    config = with_absolute_paths(load(path, overrides))
    return to_toml(config, meanings=True, automatic=unstated_settings(_read_settings(path, overrides)[0]))


def _read_settings(
    path: Path | None, overrides: Sequence[str]
) -> tuple[dict[str, dict[str, Any]], set[str], list[str]]:
    """(the settings as they are written, which of them the command line changed, what is wrong so far)."""
    settings: dict[str, dict[str, Any]] = {}
    problems: list[str] = []
    if path is not None:
        for section, table in _read_file(path).items():
            if isinstance(table, dict):
                settings[section] = table
            else:
                answer = answer_without_section(section, _keys())
                problems.append(f"{path}: '{section}' stands outside a section{answer}")
        problems += start_at(path, settings)
    changed = set()
    for override in overrides:
        try:
            changed.add(_override(settings, override))
        except ConfigError as error:
            problems += error.sentences
    expand_home(settings)
    return settings, changed, problems


def from_mapping(settings: Mapping[str, Mapping[str, Any]]) -> Config:
    """A Config from nested mappings; unknown names and wrong types are refused.

    What is "auto" or missing is chosen by the model, the length of the run and other settings (automatic.py).
    """
    return _build(settings, lambda name: "", [])


def _build(settings: Mapping[str, Mapping[str, Any]], source: Callable[[str], str], problems: list[str]) -> Config:
    """`source(setting)` begins a sentence about it. Raises all that is wrong: `problems`, and what is found here."""
    types, built, wrong = get_type_hints(Config), {}, set()
    for section, table in with_matching_defaults(with_model_defaults(settings)).items():
        if section not in types:
            problems += [f"{source(section)}{problem}" for problem in unknown_section(section, table, _keys())]
            continue
        values, found = read_table(types[section], table, section, _unknown_setting)
        for name, sentences in found.items():
            problems += [f"{source(name)}{sentence}" for sentence in sentences]
        wrong |= set(found)
        built[section] = types[section](**values)
    try:
        config = Config(**built)
    except ConfigError as error:
        # what contradicts a setting that is wrong in itself contradicts its default only
        problems += [f"{source('')}{sentence}" for sentence in error.sentences if wrong.isdisjoint(_names(sentence))]
    if problems:
        raise ConfigError(*problems)
    if "optimizer.warmup" not in unstated_settings(settings):
        return config
    warmup = automatic_warmup(config.run.steps * config.updates_a_step)
    return dataclasses.replace(config, optimizer=dataclasses.replace(config.optimizer, warmup=warmup))


def _unknown_setting(section: str, key: str) -> str:
    return f"unknown setting {section}.{key}{answer_unknown(section, key, _keys())}"


def _keys() -> dict[str, list[str]]:
    """The keys of each section."""
    return {section: list(get_type_hints(kind)) for section, kind in get_type_hints(Config).items()}


def _names(sentence: str) -> set[str]:
    """The settings that a sentence names."""
    return set(re.findall(r"\b[a-z]+\.[a-z_0-9]+\b", sentence))


def with_absolute_paths(config: Config) -> Config:
    """The same files, whichever directory the config is read from: for one that is printed or recorded."""
    settings = to_mapping(config)
    change_paths(settings, lambda name, value: os.path.realpath(value) if os.path.exists(value) else value)
    return from_mapping(settings)


def to_mapping(config: Config) -> dict[str, dict[str, Any]]:
    """Plain tables, lists and numbers, as TOML and JSON know them."""
    mapping: dict[str, dict[str, Any]] = json.loads(json.dumps(dataclasses.asdict(config)))
    return mapping


def to_toml(config: Config, *, meanings: bool, automatic: Collection[str] = ()) -> str:
    """The whole config as TOML, with the meaning of each setting as a comment if asked for.

    The settings named in `automatic` are written as "auto"."""
    lines = []
    for section in dataclasses.fields(config):
        part = getattr(config, section.name)
        lines.append(f"[{section.name}]" + (f"  # {type(part).__doc__}" if meanings else ""))
        for key in dataclasses.fields(part):
            value = AUTO if f"{section.name}.{key.name}" in automatic else getattr(part, key.name)
            line = f"{key.name} = {_toml(value)}"
            if meanings:
                choices = key.metadata["choices"]
                meaning = key.metadata["meaning"] + (f" ({' | '.join(choices)})" if choices else "")
                line = f"{line:<28} # {meaning}"
            lines.append(line)
        lines.append("")
    return "\n".join(lines)


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_toml(name)} = {_toml(part)}' for name, part in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    # JSON's strings and booleans are TOML's; repr keeps every digit of a float
    return repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _read_file(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; give the path of a TOML file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from error


def _override(settings: dict[str, dict[str, Any]], override: str) -> str:
    """Puts `section.key=value` into the settings. Returns the setting's name."""
    name, separator, text = (part.strip() for part in override.partition("="))
    if not separator or not all(name.split(".")):
        raise ConfigError(f"--set {override!r} is not of the form section.key=value, for instance run.steps=20")
    if "." not in name:
        answer = answer_without_section(name, _keys())
        raise ConfigError(f"--set {override!r} lacks the section of its setting{answer}")
    section, *tables, key = name.split(".")
    table = settings.setdefault(section, {})
    for inner in tables:  # task.options.max_digits=5
        if not isinstance(table.get(inner, {}), Mapping):
            raise ConfigError(f"--set {override!r}: {section}.{inner} is a value, not a table of values")
        table[inner] = dict(table.get(inner, {}))
        table = table[inner]
    kind = get_type_hints(Config).get(section)
    table[key] = read_text(text, None if tables or kind is None else get_type_hints(kind).get(key))
    return f"{section}.{(*tables, key)[0]}"


def read_options(kind: type[Options], given: Mapping[str, Any], name: str) -> Options:
    """A dataclass of settings from a table; unknown names, wrong types and values out of range are refused."""
    types = get_type_hints(kind)

    def unknown(table: str, key: str) -> str:
        known = f" (it has {', '.join(types)})" if types else " (it has none)"
        return f"unknown option {table}.{key}{nearest(key, list(types)) or known}"

    values, problems = read_table(kind, given, name, unknown)
    if problems:
        raise ConfigError(*(sentence for sentences in problems.values() for sentence in sentences))
    return kind(**values)


def read_table(
    kind: Any, table: Mapping[str, Any], name: str, unknown: Callable[[str, str], str]
) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """The values that are right, by key, and what is wrong with the others, by setting. `unknown` makes the sentence
    about a key that there is not."""
    types, fields = get_type_hints(kind), {field.name: field for field in dataclasses.fields(kind)}
    values: dict[str, Any] = {}
    problems: dict[str, list[str]] = {}
    for key, value in table.items():
        setting = f"{name}.{key}"
        if key not in types:
            problems[setting] = [unknown(name, key)]
            continue
        try:
            values[key] = typed(setting, value, types[key])
        except ConfigError as error:
            problems[setting] = list(error.sentences)
            continue
        if wrong := list(value_problems(setting, values[key], fields[key])):
            problems[setting] = wrong
            del values[key]
    return values, problems


def typed(name: str, value: Any, wanted: Any) -> Any:
    if get_origin(wanted) in (Union, UnionType):  # a number or "auto"
        if value == AUTO:
            return value
        wanted = get_args(wanted)[0]
    if get_origin(wanted) is tuple:
        parts = value if isinstance(value, list | tuple) else [value]  # one value stands for a list of one
        return tuple(typed(name, part, get_args(wanted)[0]) for part in parts)
    if get_origin(wanted) is dict:
        if not isinstance(value, Mapping):
            raise ConfigError(f"{name} = {value!r} must be a table, for instance {{max_digits = 5}}")
        return dict(value)
    if wanted is float and type(value) is int:
        try:
            return float(value)
        except OverflowError:
            raise ConfigError(f"{name} has {len(str(abs(value)))} digits, more than a number can have") from None
    if type(value) is not wanted:
        words = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
        quoted = "; put it in quotes" if wanted is str else ""
        raise ConfigError(f"{name} = {value!r} must be {words[wanted]}, not {type(value).__name__}{quoted}")
    return value


def read_text(text: str, wanted: Any) -> Any:
    """The value that a text on the command line stands for. The type of the setting decides, as TOML would write it;
    quotes around a text are optional. `wanted` is None where no type is known.

    >>> read_text("nan", str), read_text("nan", float), read_text('"a b"', str), read_text("[/INST]", tuple[str, ...])
    ('nan', nan, 'a b', '[/INST]')
    """
    try:
        document = tomllib.loads(f"value = {text}")
        value = document["value"] if len(document) == 1 else text
    except (tomllib.TOMLDecodeError, RecursionError):
        value = text
    if get_origin(wanted) is tuple:
        return value if isinstance(value, list) else read_text(text, get_args(wanted)[0])
    return value if wanted is not str or isinstance(value, str) else text
