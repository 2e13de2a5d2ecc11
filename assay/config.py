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
from typing import Any, get_type_hints

from assay.grpo import OBJECTIVES


class ConfigError(ValueError):
    """A config that cannot be run. The message names the setting and the fix."""


def setting(default: Any, meaning: str, *, choices: Sequence[str] = (), low: float = -math.inf) -> Any:
    """A config field: its default, what it means, the values it accepts (`low` is the smallest)."""
    return field(default=default, metadata={"meaning": meaning, "choices": tuple(choices), "low": low})


@dataclass(frozen=True, slots=True)
class RunConfig:
    """How long, from which seed, on what."""

    name: str = setting("sort", "names the run directory runs/<name> when --out is not given")
    steps: int = setting(120, "training steps; one step = one batch of rollouts", low=1)
    seed: int = setting(1, "same seed, same machine, same versions: same bits", low=0)
    device: str = setting("cpu", "where the policy lives", choices=("cpu", "cuda"))
    threads: int = setting(1, "CPU threads of torch; part of the bits: another count rounds differently", low=1)
    max_skipped: int = setting(3, "stop after this many updates in a row with a NaN or Inf", low=1)
    evaluate: int = setting(256, "held-out prompts answered before and after training; 0 = no evaluation", low=0)


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The policy."""

    path: str = setting("embedded", "'embedded' (an 84K-parameter model made on the spot) or a Hugging Face directory")
    dtype: str = setting("float32", "compute dtype; master weights are float32", choices=("float32", "bfloat16"))
    warm_steps: int = setting(120, "supervised steps that make the embedded model", low=0)


@dataclass(frozen=True, slots=True)
class TaskConfig:
    """Where prompts and rewards come from."""

    name: str = setting("sort_digits", "the task", choices=("sort_digits",))
    min_digits: int = setting(4, "sort_digits: shortest prompt", low=2)
    max_digits: int = setting(6, "sort_digits: longest prompt", low=2)
    reward: str = setting("", "'file.py:function' replaces the task's reward; it gets (prompt, completion, answer)")
    reward_timeout: float = setting(10.0, "seconds one call of that function may take", low=0.001)
    min_scored: float = setting(0.75, "a group with a smaller share of scored rollouts is dropped", low=0.0)
    max_failed: float = setting(0.25, "stop when a larger share of a step's rollouts could not be scored", low=0.0)


@dataclass(frozen=True, slots=True)
class RolloutConfig:
    """Sampling."""

    prompts: int = setting(48, "prompts a step", low=1)
    group_size: int = setting(8, "rollouts a prompt", low=2)
    max_tokens: int = setting(10, "completion limit, EOS included", low=1)
    temperature: float = setting(1.0, "logits are divided by it, when sampling and when training alike", low=1e-3)
    zero_variance: str = setting(
        "keep",
        "groups whose rewards are all equal: keep them, skip them, or refill with other prompts (dynamic sampling)",
        choices=("keep", "skip", "refill"),
    )
    refill_rounds: int = setting(8, "refill: stop the run after this many rounds of generation in one step", low=1)
    truncated: str = setting(
        "keep",
        "completions cut off by max_tokens: keep, mask (out of the loss), or penalise (softly, by length)",
        choices=("keep", "mask", "penalise"),
    )
    penalty_tokens: int = setting(2, "penalise: the last so many tokens before the limit cost up to 1 reward", low=1)


@dataclass(frozen=True, slots=True)
class AdvantageConfig:
    """Rewards -> advantages."""

    baseline: str = setting(
        "mean", "subtract the group's mean, or the mean of the others", choices=("mean", "leave_one_out")
    )
    std: str = setting(
        "sample",
        "divide by: sample std (n-1), population std (n), none (Dr. GRPO)",
        choices=("sample", "population", "none"),
    )
    scale: str = setting("group", "whose std", choices=("group", "batch"))
    combine: str = setting(
        "sum", "several rewards: normalise their sum, or normalise each (GDPO)", choices=("sum", "gdpo")
    )
    epsilon: float = setting(1e-4, "added to the std", low=0.0)


@dataclass(frozen=True, slots=True)
class LossConfig:
    """The objective. 0 switches an optional bound off."""

    objective: str = setting("dapo", "grpo bnpo dr_grpo dapo gspo cispo sapo; docs/objectives.md tells them apart")
    clip_low: float = setting(0.2, "ratio is clipped below 1 - clip_low", low=0.0)
    clip_high: float = setting(0.2, "ratio is clipped above 1 + clip_high", low=0.0)
    dual_clip: float = setting(0.0, "bound c > 1 on -ratio * A for negative A; 0 = off", low=0.0)
    delta: float = setting(0.0, "cap of the unclipped ratio (two-sided clipping); 0 = off", low=0.0)
    cispo_max: float = setting(5.0, "cispo: absolute cap of the detached ratio", low=1.0)
    sapo_positive: float = setting(1.0, "sapo: gate temperature where A > 0", low=1e-6)
    sapo_negative: float = setting(1.05, "sapo: gate temperature where A <= 0", low=1e-6)
    entropy_coef: float = setting(0.0, "weight of the entropy bonus", low=0.0)
    kl_coef: float = setting(0.0, "weight of the KL to the frozen reference", low=0.0)
    kl_placement: str = setting("loss", "KL as a loss term or taken off the reward", choices=("loss", "reward"))
    kl_estimator: str = setting("k3", "of the KL", choices=("k1", "k2", "k3"))
    kl_gradient: str = setting(
        "unbiased", "loss: times the ratio (unbiased) or not (naive)", choices=("unbiased", "naive")
    )
    correction: str = setting(
        "off",
        "importance weight old/sampler against engine mismatch",
        choices=("off", "token", "sequence", "geometric"),
    )
    correction_mode: str = setting(
        "truncate", "weights out of bounds are clamped (TIS) or zeroed (MIS, IcePop)", choices=("truncate", "mask")
    )
    correction_low: float = setting(0.0, "lower bound of the weight; 0 = none", low=0.0)
    correction_high: float = setting(2.0, "upper bound of the weight", low=1.0)


@dataclass(frozen=True, slots=True)
class OptimizerConfig:
    """AdamW and how a rollout batch is cut into updates."""

    learning_rate: float = setting(7e-4, "peak", low=0.0)
    schedule: str = setting("constant", "after the warm-up", choices=("constant", "linear", "cosine"))
    warmup: int = setting(10, "updates until the peak", low=0)
    beta1: float = setting(0.9, "AdamW", low=0.0)
    beta2: float = setting(0.99, "AdamW", low=0.0)
    weight_decay: float = setting(0.0, "AdamW", low=0.0)
    clip_norm: float = setting(1.0, "gradient norm is clipped to this; 0 = off", low=0.0)
    epochs: int = setting(2, "passes over a rollout batch (the field's mu)", low=1)
    minibatches: int = setting(1, "optimizer updates a pass", low=1)
    microbatches: int = setting(1, "passes an update is cut into; the gradient stays the same, but for rounding", low=1)


@dataclass(frozen=True, slots=True)
class CheckpointConfig:
    """What survives a crash."""

    every: int = setting(20, "optimizer updates between checkpoints; may fall inside a step", low=1)
    keep: int = setting(2, "newest checkpoints kept", low=1)


@dataclass(frozen=True, slots=True)
class RecordConfig:
    """What is written of each rollout."""

    rollouts: str = setting("all", "all rows, the extremes of each group, or none", choices=("all", "extremes", "none"))
    extremes: int = setting(2, "extremes: so many best and so many worst a group", low=1)


@dataclass(frozen=True, slots=True)
class Config:
    run: RunConfig = field(default_factory=RunConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    task: TaskConfig = field(default_factory=TaskConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    advantage: AdvantageConfig = field(default_factory=AdvantageConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    record: RecordConfig = field(default_factory=RecordConfig)

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
        raise ConfigError(f"{name} = {value!r} is not one of {', '.join(choices)}{_nearest(str(value), choices)}")
    if isinstance(value, str) and not _is_unicode(value):
        raise ConfigError(f"{name} = {value!r} holds bytes that are no text; give it in UTF-8")
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{name} = {value} is not a finite number")
    if isinstance(value, int | float) and value < low:
        reason = "; a group of one has nobody to be compared with" if name == "rollout.group_size" else ""
        raise ConfigError(f"{name} = {value} is below its minimum {low:g}{reason}")


def _is_unicode(text: str) -> bool:
    return not any(0xD800 <= ord(character) <= 0xDFFF for character in text)


def _check_contradictions(config: Config) -> None:
    """Settings that are each fine and together are not."""
    rollout, loss, task, optimizer = config.rollout, config.loss, config.task, config.optimizer
    if loss.objective not in OBJECTIVES:
        names = sorted(OBJECTIVES)
        raise ConfigError(
            f"loss.objective = {loss.objective!r} is not one of {', '.join(names)}{_nearest(loss.objective, names)}"
        )
    rows = rollout.prompts * rollout.group_size
    updates = optimizer.minibatches * optimizer.microbatches
    contradictions = {
        f"task.min_digits = {task.min_digits} exceeds task.max_digits = {task.max_digits}": task.min_digits
        > task.max_digits,
        f"rollout.prompts x rollout.group_size = {rows} rows cannot be cut evenly into "
        f"optimizer.minibatches = {optimizer.minibatches}; choose a divisor of {rows}": rows % optimizer.minibatches
        != 0,
        f"{rows} rows are fewer than optimizer.minibatches x optimizer.microbatches = {updates}": rows < updates,
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
        "task.min_scored and task.max_failed are shares between 0 and 1": max(task.min_scored, task.max_failed) > 1,
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
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
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
        settings.setdefault(section, {})[key] = _read_value(text.strip())
    return from_mapping(settings, source="" if path is None else f"{path}: ")


def from_mapping(settings: Mapping[str, Mapping[str, Any]], source: str = "") -> Config:
    """A Config from nested mappings; unknown names and wrong types are refused."""
    sections = get_type_hints(Config)
    built = {}
    for section, table in settings.items():
        if section not in sections:
            raise ConfigError(f"{source}unknown section [{section}]{_nearest(section, list(sections))}")
        types = get_type_hints(sections[section])
        values = {}
        for key, value in table.items():
            if key not in types:
                raise ConfigError(f"{source}unknown setting {section}.{key}{_nearest_setting(section, key)}")
            values[key] = _typed(f"{source}{section}.{key}", value, types[key])
        built[section] = sections[section](**values)
    try:
        return Config(**built)
    except ConfigError as error:
        raise ConfigError(f"{source}{error}") from None


def to_mapping(config: Config) -> dict[str, dict[str, Any]]:
    return dataclasses.asdict(config)


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
    # JSON's strings and booleans are TOML's; repr keeps every digit of a float
    return repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _read_value(text: str) -> Any:
    """A TOML value; anything that is not one is taken as a bare string, so that quotes are optional."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _typed(name: str, value: Any, wanted: type) -> Any:
    if wanted is float and type(value) is int:
        return float(value)
    if type(value) is not wanted:
        words = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
        raise ConfigError(f"{name} = {value!r} must be {words[wanted]}, not {type(value).__name__}")
    return value


def _nearest(name: str, names: Sequence[str]) -> str:
    """The end of an error message: the name that was probably meant, if one is close."""
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""


def _nearest_setting(section: str, key: str) -> str:
    """The nearest name in the same section, else the same name in another section."""
    sections = get_type_hints(Config)
    own = _nearest(key, list(get_type_hints(sections[section])))
    if own:
        return own.replace("'", f"'{section}.", 1)
    everywhere = [f"{other}.{name}" for other in sections for name in get_type_hints(sections[other])]
    exact = [name for name in everywhere if name.endswith(f".{key}")]
    return f"; did you mean {exact[0]!r}?" if exact else "; assay train --print-config lists all settings"
