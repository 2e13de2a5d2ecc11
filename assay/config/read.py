"""Values of settings: read from a text or a table, checked against the type, the choices and the minimum of each."""

from __future__ import annotations

import dataclasses
import math
import tomllib
from collections.abc import Callable, Iterator, Mapping
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from assay.config.automatic import AUTO
from assay.config.refusals import nearest

Options = TypeVar("Options")


class ConfigError(ValueError):
    """A config that cannot be run. Each sentence names a setting and the fix."""

    def __init__(self, *sentences: str) -> None:
        super().__init__("\n".join(sentences))
        self.sentences = sentences


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


def value_problems(name: str, value: Any, key: dataclasses.Field[Any]) -> Iterator[str]:
    """What is wrong with a value of the right type."""
    choices, low = key.metadata["choices"], key.metadata["low"]
    if choices and value not in choices:
        yield f"{name} = {value!r} is not one of {', '.join(choices)}{nearest(str(value), list(choices))}"
    for part in value if isinstance(value, tuple) else (value,):
        if isinstance(part, str) and not _is_unicode(part):
            yield f"{name} = {part!r} holds bytes that are not text; give it in UTF-8"
        if isinstance(part, float) and not math.isfinite(part):
            yield f"{name} = {part} is not a finite number"
    if isinstance(value, int | float) and value < low:
        reason = "; a group of one has nobody to be compared with" if name == "rollout.group_size" else ""
        yield f"{name} = {value} is below its minimum {low:g}{reason}"


def _is_unicode(text: str) -> bool:
    return not any(0xD800 <= ord(character) <= 0xDFFF for character in text)
