"""One frozen config of small parts. TOML file + `--set section.key=value` -> Config.

Every setting carries its meaning beside its default; `assay train --print-config` prints both. An unknown key, a
wrong type or a contradiction is refused with the nearest valid name or the reason.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

from assay.config.sections import (
    AdvantageConfig,
    CheckpointConfig,
    EvaluateConfig,
    JudgeConfig,
    LogConfig,
    LossConfig,
    ModelConfig,
    OptimizerConfig,
    RecordConfig,
    RewardConfig,
    RolloutConfig,
    RunConfig,
    TaskConfig,
)
from assay.grpo import OBJECTIVES

Options = TypeVar("Options")


class ConfigError(ValueError):
    """A config that cannot be run. The message names the setting and the fix."""


@dataclass(frozen=True, slots=True)
class Config:
    run: RunConfig = field(default_factory=RunConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    task: TaskConfig = field(default_factory=TaskConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    judge: JudgeConfig = field(default_factory=JudgeConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    advantage: AdvantageConfig = field(default_factory=AdvantageConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    record: RecordConfig = field(default_factory=RecordConfig)
    log: LogConfig = field(default_factory=LogConfig)

    def __post_init__(self) -> None:
        for section in dataclasses.fields(self):
            for key in dataclasses.fields(getattr(self, section.name)):
                _check_value(f"{section.name}.{key.name}", getattr(getattr(self, section.name), key.name), key)
        _check_contradictions(self)

    @property
    def updates_a_step(self) -> int:
        return self.optimizer.epochs * self.optimizer.minibatches

    @property
    def needs_reference(self) -> bool:
        return self.loss.kl_coef > 0


def _check_value(name: str, value: Any, key: dataclasses.Field[Any]) -> None:
    choices, low = key.metadata["choices"], key.metadata["low"]
    if choices and value not in choices:
        raise ConfigError(f"{name} = {value!r} is not one of {', '.join(choices)}{nearest(str(value), choices)}")
    for part in value if isinstance(value, tuple) else (value,):
        if isinstance(part, str) and not _is_unicode(part):
            raise ConfigError(f"{name} = {part!r} holds bytes that are no text; give it in UTF-8")
        if isinstance(part, float) and not math.isfinite(part):
            raise ConfigError(f"{name} = {part} is not a finite number")
    if isinstance(value, int | float) and value < low:
        reason = "; a group of one has nobody to be compared with" if name == "rollout.group_size" else ""
        raise ConfigError(f"{name} = {value} is below its minimum {low:g}{reason}")


def _is_unicode(text: str) -> bool:
    return not any(0xD800 <= ord(character) <= 0xDFFF for character in text)


def _check_contradictions(config: Config) -> None:
    """Settings that are each fine and together are not."""
    rollout, loss, reward, optimizer = config.rollout, config.loss, config.reward, config.optimizer
    if loss.objective not in OBJECTIVES:
        names = sorted(OBJECTIVES)
        raise ConfigError(
            f"loss.objective = {loss.objective!r} is not one of {', '.join(names)}{nearest(loss.objective, names)}"
        )
    rows = rollout.prompts * rollout.group_size
    updates = optimizer.minibatches * max(optimizer.microbatches, 1)
    contradictions = {
        f"reward.weights holds {len(reward.weights)} numbers for {len(reward.functions)} reward.functions; give one "
        "weight a function, or none": bool(reward.weights) and len(reward.weights) != len(reward.functions),
        "reward.functions = 'judge' needs judge.path (a sequence classifier) or judge.url (a server), not both": (
            "judge" in reward.functions and bool(config.judge.path) == bool(config.judge.url)
        ),
        "rollout.top_p and rollout.min_p need rollout.top_k, for instance 50: the tokens that could have been sampled "
        "are kept, so that training scores the distribution that was sampled from, and without a bound they can be the "
        "whole vocabulary": (rollout.top_p < 1 or rollout.min_p > 0) and rollout.top_k == 0,
        "rollout.top_p and rollout.min_p are shares between 0 and 1": max(rollout.top_p, rollout.min_p) > 1,
        "rollout.stop holds an empty text, which ends every answer before it begins": "" in rollout.stop,
        "loss.reference_every renews a reference, but loss.kl_coef = 0 has none": loss.reference_every > 0
        and loss.kl_coef == 0,
        "loss.reference_every cannot renew the reference of adapters (model.lora_rank): it is the model without them; "
        "set it to 0": loss.reference_every > 0 and config.model.lora_rank > 0,
        f"rollout.prompts x rollout.group_size = {rows} rows cannot be cut evenly into "
        f"optimizer.minibatches = {optimizer.minibatches}; choose a divisor of {rows}": rows % optimizer.minibatches
        != 0,
        f"{rows} rows are fewer than optimizer.minibatches x optimizer.microbatches = {updates}": rows < updates,
        f"optimizer.pass_tokens = {optimizer.pass_tokens} would be ignored: optimizer.microbatches = "
        f"{optimizer.microbatches} says into how many passes an update is cut; set one of the two to 0": bool(
            optimizer.pass_tokens and optimizer.microbatches
        ),
        f"loss.dual_clip = {loss.dual_clip} must exceed 1 + loss.clip_high, or be 0 for off": 0
        < loss.dual_clip
        <= 1 + loss.clip_high,
        f"loss.delta = {loss.delta} must exceed 1 + loss.clip_high, or be 0 for off": 0
        < loss.delta
        <= 1 + loss.clip_high,
        "loss.clip_low = 1 or more allows a ratio of 0 or less; it must be below 1": loss.clip_low >= 1,
        "loss.kl_estimator = 'k1' in the loss has a gradient that is pure noise on its own samples; "
        "use k2 or k3, loss.kl_gradient = 'unbiased', or loss.kl_placement = 'reward'": loss.kl_coef > 0
        and loss.kl_placement == "loss"
        and loss.kl_estimator == "k1"
        and loss.kl_gradient == "naive",
        f"loss.correction_low = {loss.correction_low} is not below loss.correction_high": loss.correction_low
        >= loss.correction_high,
        "advantage.combine = 'gdpo' normalises over the batch itself; "
        "leave advantage.scale = 'group' and advantage.baseline = 'mean'": config.advantage.combine == "gdpo"
        and (config.advantage.scale, config.advantage.baseline) != ("group", "mean"),
        "rollout.truncated = 'penalise' needs rollout.penalty_tokens below "
        f"rollout.max_tokens = {rollout.max_tokens}": rollout.truncated == "penalise"
        and rollout.penalty_tokens >= rollout.max_tokens,
        "optimizer.beta1 and optimizer.beta2 must be below 1": max(optimizer.beta1, optimizer.beta2) >= 1,
        f"run.name = {config.run.name!r} must be a plain name: it becomes a directory below runs/": not config.run.name
        or config.run.name != Path(config.run.name).name
        or config.run.name in (".", "..")
        or not config.run.name.isprintable(),
        "reward.min_scored and reward.max_failed are shares between 0 and 1": max(reward.min_scored, reward.max_failed)
        > 1,
    }
    for sentence, holds in contradictions.items():
        if holds:
            raise ConfigError(sentence)


def load(path: Path | None, overrides: Sequence[str] = ()) -> Config:
    """The config of a TOML file (or the defaults) with `section.key=value` overrides applied in order.

    >>> load(None, ["run.steps=5", "loss.objective=grpo"]).run.steps
    5
    """
    settings: dict[str, dict[str, Any]] = {}
    if path is not None:
        try:
            document = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}; give the path of a TOML file") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ConfigError(f"{path}: not valid TOML: {error}") from error
        for section, table in document.items():
            if not isinstance(table, dict):
                raise ConfigError(f"{path}: '{section}' stands outside a section; write it under [run] or another one")
            settings[section] = dict(table)
    for override in overrides:
        name, separator, text = override.partition("=")
        section, dot, key = name.strip().partition(".")
        if not separator or not dot:
            raise ConfigError(f"--set {override!r} is not of the form section.key=value, for instance run.steps=20")
        table, (*parents, last) = settings.setdefault(section, {}), key.split(".")
        for parent in parents:  # task.options.max_digits=5
            table[parent] = dict(table.get(parent, {}))
            table = table[parent]
        table[last] = _read_value(text.strip())
    return from_mapping(settings, source="" if path is None else f"{path}: ")


def from_mapping(settings: Mapping[str, Mapping[str, Any]], source: str = "") -> Config:
    """A Config from nested mappings; unknown names and wrong types are refused."""
    sections = get_type_hints(Config)
    built = {}
    for section, table in settings.items():
        if section not in sections:
            raise ConfigError(f"{source}unknown section [{section}]{nearest(section, list(sections))}")
        types = get_type_hints(sections[section])
        values = {}
        for key, value in table.items():
            if key not in types:
                raise ConfigError(f"{source}unknown setting {section}.{key}{_nearest_setting(section, key)}")
            values[key] = typed(f"{source}{section}.{key}", value, types[key])
        built[section] = sections[section](**values)
    try:
        return Config(**built)
    except ConfigError as error:
        raise ConfigError(f"{source}{error}") from None


def read_options(kind: type[Options], given: Mapping[str, Any], name: str) -> Options:
    """A dataclass of settings from a table; unknown names, wrong types and values out of range are refused."""
    types = get_type_hints(kind)
    unknown = [key for key in given if key not in types]
    if unknown:
        known = f" (it has {', '.join(types)})" if types else " (it has none)"
        raise ConfigError(f"unknown option {name}.{unknown[0]}{nearest(unknown[0], list(types)) or known}")
    options = kind(**{key: typed(f"{name}.{key}", value, types[key]) for key, value in given.items()})
    for key in dataclasses.fields(cast(Any, kind)):
        _check_value(f"{name}.{key.name}", getattr(options, key.name), key)
    return options


def to_mapping(config: Config) -> dict[str, dict[str, Any]]:
    """Plain tables, lists and numbers, as TOML and JSON know them."""
    mapping: dict[str, dict[str, Any]] = json.loads(json.dumps(dataclasses.asdict(config)))
    return mapping


def to_toml(config: Config, *, meanings: bool) -> str:
    """The whole config as TOML, with the meaning of each setting as a comment if asked for."""
    lines = []
    for section in dataclasses.fields(config):
        part = getattr(config, section.name)
        lines.append(f"[{section.name}]" + (f"  # {type(part).__doc__}" if meanings else ""))
        for key in dataclasses.fields(part):
            line = f"{key.name} = {_toml(getattr(part, key.name))}"
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


def _read_value(text: str) -> Any:
    """A TOML value; anything that is not one is taken as a bare string, so that quotes are optional."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        return text


def typed(name: str, value: Any, wanted: Any) -> Any:
    if get_origin(wanted) is tuple:
        parts = value if isinstance(value, list | tuple) else [value]  # one value stands for a list of one
        return tuple(typed(name, part, get_args(wanted)[0]) for part in parts)
    if get_origin(wanted) is dict:
        if not isinstance(value, Mapping):
            raise ConfigError(f"{name} = {value!r} must be a table, for instance {{max_digits = 5}}")
        return dict(value)
    if wanted is float and type(value) is int:
        return float(value)
    if type(value) is not wanted:
        words = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
        raise ConfigError(f"{name} = {value!r} must be {words[wanted]}, not {type(value).__name__}")
    return value


def nearest(name: str, names: Sequence[str]) -> str:
    """The end of an error message: the name that was probably meant, if one is close."""
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""


def _nearest_setting(section: str, key: str) -> str:
    """The nearest name in the same section, else the same name in another section."""
    sections = get_type_hints(Config)
    own = nearest(key, list(get_type_hints(sections[section])))
    if own:
        return own.replace("'", f"'{section}.", 1)
    everywhere = [f"{other}.{name}" for other in sections for name in get_type_hints(sections[other])]
    exact = [name for name in everywhere if name.endswith(f".{key}")]
    return f"; did you mean {exact[0]!r}?" if exact else "; assay train --print-config lists all settings"
