"""Libraries that turn files and command lines into settings, where they are absent: omegaconf, hydra, fire, tyro,
draccus, simple_parsing, jsonargparse, chz, dotenv."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import functools
import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from assay.rehearsal.stage import Stage
from assay.rehearsal.standins.missing import provide

_REFERENCE = re.compile(r"\$\{([^${}]+)\}")
_WORDS = {"true": True, "false": False, "none": None, "null": None, "yes": True, "no": False}


def install(stage: Stage) -> None:
    provide("omegaconf", _omegaconf)
    provide("hydra", functools.partial(_hydra, stage))
    provide("fire", _fire)
    provide("tyro", _tyro)
    provide("draccus", _draccus)
    provide("simple_parsing", _simple_parsing)
    provide("jsonargparse", _jsonargparse)
    provide("chz", _chz)
    provide("dotenv", _dotenv)


class Settings(dict[str, Any]):
    """omegaconf.DictConfig: a dict whose keys are attributes; ${a.b} stands for another of its values."""

    def __init__(self, given: Mapping[str, Any] | None = None, root: Settings | None = None) -> None:
        super().__init__()
        object.__setattr__(self, "_root", root if root is not None else self)
        for key, value in (given or {}).items():
            self[key] = value

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, _held(value, self._root))

    def __getitem__(self, key: str) -> Any:
        return self._resolved(super().__getitem__(key))

    def _resolved(self, value: Any) -> Any:
        if not isinstance(value, str) or "${" not in value:
            return value
        whole = _REFERENCE.fullmatch(value)
        if whole:
            return select(self._root, whole.group(1))
        return _REFERENCE.sub(lambda found: str(select(self._root, found.group(1))), value)

    def get(self, key: str, default: Any = None) -> Any:
        return self[key] if key in self else default  # noqa: SIM401  # resolved

    def items(self) -> Any:
        return [(key, self[key]) for key in self]

    def values(self) -> Any:
        return [self[key] for key in self]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name not in self:
            raise AttributeError(name)
        return self[name]

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value


def _held(value: Any, root: Settings) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return Settings(value, root)
    return [_held(part, root) for part in value] if isinstance(value, (list, tuple)) else value


def select(given: Any, path: str, default: Any = None) -> Any:
    for key in path.split("."):
        if isinstance(given, Mapping) and key in given:
            given = given[key]
        elif isinstance(given, list) and key.isdigit() and int(key) < len(given):
            given = given[int(key)]
        else:
            return default
    return given


def update(given: Settings, path: str, value: Any, **how: Any) -> None:
    *parents, last = path.split(".")
    for key in parents:
        if not isinstance(given.get(key), Settings):
            given[key] = {}
        given = given[key]
    given[last] = value


def merge(*parts: Any) -> Settings:
    merged = Settings()

    def add(into: Settings, part: Mapping[str, Any]) -> None:
        for key in part:
            value = dict.__getitem__(part, key) if isinstance(part, dict) else part[key]
            if isinstance(value, Mapping) and isinstance(dict.get(into, key), Settings):
                add(dict.__getitem__(into, key), value)
            else:
                into[key] = value

    for part in parts:
        add(merged, create(part))
    return merged


def create(given: Any = None, **how: Any) -> Any:
    if isinstance(given, type) and dataclasses.is_dataclass(given):
        given = given()
    if isinstance(given, str):
        given = _yaml(given)
    if isinstance(given, (list, tuple)):
        return _overrides(given) if all(isinstance(part, str) and "=" in part for part in given) else list(given)
    return given if isinstance(given, Settings) else _held(given or {}, Settings())


def plain(given: Any, **how: Any) -> Any:
    if isinstance(given, Mapping):
        return {key: plain(given[key]) for key in given}
    return [plain(part) for part in given] if isinstance(given, (list, tuple)) else given


def _yaml(text: str) -> Any:
    import yaml  # type: ignore[import-untyped]

    return yaml.safe_load(text)


def _overrides(words: Iterable[str]) -> Settings:
    made = Settings()
    for word in words:
        key, equals, value = word.lstrip("+~-").partition("=")
        if equals:
            update(made, key, _yaml(value))
    return made


def _omegaconf(module: Any) -> None:
    class OmegaConf:
        pass

    ways: dict[str, Callable[..., Any]] = {
        "create": create, "structured": create, "merge": merge, "to_container": plain, "to_object": plain,
        "select": select, "update": update, "load": lambda file: create(_yaml(Path(file).read_text(encoding="utf-8"))),
        "from_cli": lambda words=None: _overrides(sys.argv[1:] if words is None else words),
        "from_dotlist": _overrides, "resolve": lambda given: None, "set_struct": lambda *args: None,
        "set_readonly": lambda *args: None, "register_new_resolver": lambda *args, **kwargs: None,
        "is_config": lambda given: isinstance(given, Settings), "is_dict": lambda given: isinstance(given, Mapping),
        "is_list": lambda given: isinstance(given, list), "is_missing": lambda given, key: given.get(key) == "???",
        "to_yaml": lambda given, **how: _dumped(given), "save": _save,
    }  # fmt: skip
    for name, way in ways.items():
        setattr(OmegaConf, name, staticmethod(way))
    module.OmegaConf, module.DictConfig, module.ListConfig, module.MISSING = OmegaConf, Settings, list, "???"
    module.open_dict = module.read_write = module.flag_override = lambda *args: nullcontext()


def _dumped(given: Any) -> str:
    import yaml

    return str(yaml.safe_dump(plain(given)))


def _save(given: Any, f: Any, **how: Any) -> None:
    f.write(_dumped(given)) if hasattr(f, "write") else Path(f).write_text(_dumped(given), encoding="utf-8")


def composed(folder: Path, name: str, words: Sequence[str] = ()) -> Settings:
    """A configuration of hydra: its list of defaults, itself, and what the command line says."""
    groups = dict(word.split("=", 1) for word in words if "=" in word and "/" not in word and "." not in word)
    made = _composed(folder, name, groups)
    used = [word for word in words if not (folder / word.partition("=")[0].lstrip("+")).is_dir()]
    return merge(made, _overrides(used))


def _composed(folder: Path, name: str, groups: Mapping[str, str]) -> Settings:
    file = folder / f"{name.removesuffix('.yaml')}.yaml"
    own = _yaml(file.read_text(encoding="utf-8")) or {}
    made, is_added = Settings(), False
    for default in own.pop("defaults", None) or []:
        if default == "_self_":
            made, is_added = merge(made, own), True
        elif isinstance(default, str):
            if (folder / f"{default}.yaml").is_file():
                made = merge(made, _composed(folder, default, groups))
        else:
            for group, option in default.items():
                group = group.removeprefix("override ").removeprefix("optional ")
                chosen = groups.get(group, option)
                where, _, target = group.partition("@")
                if chosen and (folder / where / f"{chosen}.yaml").is_file():
                    part = Settings()
                    update(part, (target or where).replace("/", "."), _composed(folder / where, str(chosen), groups))
                    made = merge(made, part)
    return made if is_added else merge(made, own)


def _hydra(stage: Stage, module: Any) -> None:
    def main(config_path: str | None = None, config_name: str | None = None, **how: Any) -> Callable[..., Any]:
        def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(function)
            def call(given: Any = None) -> Any:
                if given is not None:
                    return function(given)
                folder = Path(inspect.getfile(function)).resolve().parent / (config_path or ".")
                return function(composed(folder, config_name, sys.argv[1:]) if config_name else Settings())

            return call

        return decorate

    def instantiate(given: Any, *args: Any, **kwargs: Any) -> Any:
        import importlib

        values = {key: value for key, value in given.items() if not key.startswith("_")}
        where, _, name = given["_target_"].rpartition(".")
        return getattr(importlib.import_module(where), name)(*args, **{**values, **kwargs})

    module.main = main
    module.utils = types.ModuleType("hydra.utils")
    module.utils.instantiate = module.utils.call = instantiate
    module.utils.get_original_cwd = lambda: str(Path.cwd())
    module.utils.to_absolute_path = lambda path: str(Path(path).absolute())


def words_to_settings(words: Sequence[str]) -> dict[str, Any]:
    """--a.b 3 --c=4 --flag --no-other name=value"""
    made: dict[str, Any] = {}
    waiting = list(words)
    while waiting:
        word = waiting.pop(0)
        if not word.startswith("-"):
            key, equals, value = word.partition("=")
            if equals:
                made[key] = _value(value)
            continue
        key, equals, value = word.lstrip("-").partition("=")
        if equals:
            made[key.replace("-", "_")] = _value(value)
        elif waiting and not re.match(r"--?[A-Za-z]", waiting[0]):
            made[key.replace("-", "_")] = _value(waiting.pop(0))
        else:
            made[key.replace("-", "_").removeprefix("no_")] = not key.startswith("no-")
    return made


def _value(text: str) -> Any:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def built(target: Any, given: Mapping[str, Any]) -> Any:
    """A dataclass made, or a function called, with its defaults and what the command line gives."""
    hints = typing.get_type_hints(target) if dataclasses.is_dataclass(target) else {}
    values: dict[str, Any] = {}
    for name, parameter in inspect.signature(target).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        kind = hints.get(name, parameter.annotation)
        below = {key[len(name) + 1 :]: value for key, value in given.items() if key.startswith(f"{name}.")}
        if name in given:
            values[name] = given[name]
        elif dataclasses.is_dataclass(kind) and (below or parameter.default is parameter.empty):
            values[name] = built(kind, below)
    return target(**values)


def from_command_line(target: Any = None, *args: Any, **kwargs: Any) -> Any:
    words = kwargs.get("args")
    default = kwargs.get("default")
    given = words_to_settings(sys.argv[1:] if words is None else words)
    if default is not None and dataclasses.is_dataclass(default) and not isinstance(default, type):
        return dataclasses.replace(default, **{key: value for key, value in given.items() if hasattr(default, key)})
    return built(target, given)


def _fire(module: Any) -> None:
    def fire(component: Any = None, command: Any = None, name: Any = None, **how: Any) -> Any:
        words = sys.argv[1:] if command is None else command.split() if isinstance(command, str) else list(command)
        component = component if component is not None else vars(sys.modules["__main__"])
        while isinstance(component, (dict, type)) and words and not words[0].startswith("-"):
            word = words.pop(0).replace("-", "_")
            component = component[word] if isinstance(component, dict) else getattr(component(), word)
        positional = [_value(word) for word in words[: _leading(words)]]
        given = words_to_settings(words[len(positional) :])
        names = list(inspect.signature(component).parameters)
        return built(component, {**dict(zip(names, positional, strict=False)), **given})

    module.Fire = fire


def _leading(words: Sequence[str]) -> int:
    return next((number for number, word in enumerate(words) if word.startswith("-")), len(words))


def _tyro(module: Any) -> None:
    module.cli = from_command_line
    module.conf = types.SimpleNamespace(
        Positional=_Same(), Fixed=_Same(), FlagConversionOff=_Same(), arg=lambda **how: None
    )
    module.extras = types.SimpleNamespace(overridable_config_cli=lambda configs: next(iter(configs.values()))[1])


class _Same:
    def __getitem__(self, kind: Any) -> Any:
        return kind


def _draccus(module: Any) -> None:
    def wrap(*args: Any, **kwargs: Any) -> Callable[..., Any]:
        def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(function)
            def call(*args: Any, **kwargs: Any) -> Any:
                if args or kwargs:
                    return function(*args, **kwargs)
                kind = next(iter(typing.get_type_hints(function).values()))
                return function(from_command_line(kind))

            return call

        return decorate

    module.wrap, module.parse = wrap, from_command_line


def _simple_parsing(module: Any) -> None:
    class ArgumentParser(argparse.ArgumentParser):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            for name in ("add_option_string_dash_variants", "argument_generation_mode", "conflict_resolution"):
                kwargs.pop(name, None)
            super().__init__(*args, **kwargs)
            self._classes: dict[str, Any] = {}

        def add_arguments(self, kind: Any, dest: str, **how: Any) -> None:
            self._classes[dest] = kind

        def parse_known_args(self, args: Any = None, namespace: Any = None, **how: Any) -> Any:
            words = sys.argv[1:] if args is None else list(args)
            made, rest = super().parse_known_args(words, namespace)
            for dest, kind in self._classes.items():
                setattr(made, dest, built(kind, words_to_settings(rest)))
            return made, [] if self._classes else rest

    def parse(kind: Any, *args: Any, **kwargs: Any) -> Any:
        return from_command_line(kind, **kwargs)

    def field(default: Any = dataclasses.MISSING, **how: Any) -> Any:
        if "default_factory" in how:
            return dataclasses.field(default_factory=how["default_factory"])
        return dataclasses.field(default=default)

    def mutable_field(kind: Any, *args: Any, **kwargs: Any) -> Any:
        return dataclasses.field(default_factory=functools.partial(kind, *args, **kwargs))

    def list_field(*values: Any, **how: Any) -> Any:
        return dataclasses.field(default_factory=lambda: list(values))

    module.ArgumentParser, module.parse, module.field, module.choice = ArgumentParser, parse, field, field
    module.mutable_field, module.list_field = mutable_field, list_field
    module.subgroups = lambda options, default=None, **how: dataclasses.field(default=default)
    module.Serializable = type("Serializable", (), {})
    module.helpers = types.SimpleNamespace(Serializable=module.Serializable, mutable_field=mutable_field, field=field)


def _jsonargparse(module: Any) -> None:
    module.CLI = module.auto_cli = from_command_line
    module.ArgumentParser = argparse.ArgumentParser


def _chz(module: Any) -> None:
    def chz(kind: Any = None, **how: Any) -> Any:
        return dataclasses.dataclass(kw_only=True)(kind) if kind is not None else chz

    module.chz = chz
    module.field = lambda **how: dataclasses.field(**{key: how[key] for key in how if key.startswith("default")})
    module.entrypoint = from_command_line
    module.nested_entrypoint = from_command_line
    module.__class__ = _Callable


class _Callable(types.ModuleType):
    """@chz.chz"""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return vars(self)["chz"](*args, **kwargs)


def _dotenv(module: Any) -> None:
    module.load_dotenv = lambda *args, **kwargs: False
    module.find_dotenv = lambda *args, **kwargs: ""
    module.dotenv_values = lambda *args, **kwargs: {}
