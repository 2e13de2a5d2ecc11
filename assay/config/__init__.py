"""One frozen config of small parts. TOML file + `--set section.key=value` -> Config.

Every setting carries its meaning beside its default; `assay train --print-config` prints both. Unknown keys, wrong
types and contradictions are refused, all at once, with the nearest valid name or the reason.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

from assay.config.automatic import AUTO, automatic_warmup, unstated_settings, with_model_defaults
from assay.config.paths import change_paths, expand_home, start_at
from assay.config.read import ConfigError, read_options, read_table, read_text, typed, value_problems
from assay.config.refusals import answer_unknown, answer_without_section, nearest, unknown_section
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

__all__ = [
    "Config",
    "ConfigError",
    "from_mapping",
    "load",
    "nearest",
    "read_options",
    "to_mapping",
    "to_toml",
    "typed",
    "with_absolute_paths",
]


MOST_THREADS = 1024  # with very many, torch ends the process without a word


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
        problems = [
            problem
            for section in dataclasses.fields(self)
            for key in dataclasses.fields(getattr(self, section.name))
            for problem in value_problems(
                f"{section.name}.{key.name}", getattr(getattr(self, section.name), key.name), key
            )
        ]
        if problems := problems or contradictions(self):
            raise ConfigError(*problems)

    @property
    def updates_a_step(self) -> int:
        return self.optimizer.epochs * self.optimizer.minibatches

    @property
    def needs_reference(self) -> bool:
        return self.loss.kl_coef > 0


def contradictions(config: Config) -> list[str]:
    """Settings that are each fine and together are not. A sentence names every setting that it depends on."""
    rollout, loss, reward, optimizer = config.rollout, config.loss, config.reward, config.optimizer
    rows = rollout.prompts * rollout.group_size
    updates = optimizer.minibatches * max(optimizer.microbatches, 1)
    found = {
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
        f"rollout.prompts x rollout.group_size = {rows} rows are fewer than optimizer.minibatches x "
        f"optimizer.microbatches = {updates}": rows < updates,
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
        f"run.threads = {config.run.threads} is more than {MOST_THREADS}; give at most the number of cores": (
            config.run.threads > MOST_THREADS
        ),
        f"evaluate.patience = {config.evaluate.patience} counts evaluations between steps, and there are none; set "
        "evaluate.every, for instance to 10": config.evaluate.patience > 0 and not config.evaluate.every,
        f"evaluate.patience = {config.evaluate.patience} counts evaluations, but evaluate.prompts = 0 makes none": bool(
            config.evaluate.patience and not config.evaluate.prompts
        ),
        "reward.min_scored and reward.max_failed are shares between 0 and 1": max(reward.min_scored, reward.max_failed)
        > 1,
    }
    return [sentence for sentence, holds in found.items() if holds]


def load(path: Path | None, overrides: Sequence[str] = ()) -> Config:
    """The config of a TOML file (or the defaults) with `section.key=value` overrides applied in order.

    >>> load(None, ["run.steps=5", "loss.objective=grpo"]).run.steps
    5
    """
    settings, changed, problems = _read_settings(path, overrides)
    return _build(settings, lambda name: f"{path}: " if path is not None and name not in changed else "", problems)


def template(path: Path | None, overrides: Sequence[str] = ()) -> str:
    """All settings as TOML with their meanings; what `load` would choose by the model stays "auto"."""
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

    What is "auto" or missing is chosen by the model and the length of the run (automatic.py).
    """
    return _build(settings, lambda name: "", [])


def _build(settings: Mapping[str, Mapping[str, Any]], source: Callable[[str], str], problems: list[str]) -> Config:
    """`source(setting)` begins a sentence about it. Raises all that is wrong: `problems`, and what is found here."""
    types, built, wrong = get_type_hints(Config), {}, set()
    for section, table in with_model_defaults(settings).items():
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
