"""What "auto" stands for: defaults that depend on the model, on the length of the run and on other settings.

The embedded model has 84 thousand parameters, answers in ten tokens and learns at a rate of 7e-4. At that rate a single
update destroys a real language model, and ten tokens cut off nearly all of its answers. So these settings have two
defaults in sections.py: one for the embedded model, one for every other. The learning rate and its warm-up depend on
more, and are chosen here.

The estimator of the KL, its gradient and the std of the advantages depend on the settings beside them: with
loss.kl_placement = "reward" only k1 has the gradient of the KL, k2 has it only without the ratio, and the mean of the
others divided by the group's std is GRPO times n / (n - 1).
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

from assay.config.sections import Config
from assay.machine import durable

AUTO = "auto"
EMBEDDED = "embedded"

# 64 answers of up to 256 tokens and one update: a step of about a minute for 135 million parameters on two CPU cores
LANGUAGE_MODEL: dict[str, dict[str, Any]] = {
    section: defaults
    for section, kind in get_type_hints(Config).items()
    if (defaults := {key.name: key.metadata["other"] for key in fields(kind) if key.metadata["other"] is not None})
}
LORA_RATE = 1e-4  # adapters start at 0 and are few: they take about ten times the rate of full weights and more
# DeepSeekMath, DAPO and TRL's default train with 1e-6; SmolLM2-135M still learns steadily at 1e-5
SMALL_MODEL_RATE, LARGE_MODEL_RATE = 5e-6, 1e-6
LARGE_MODEL = 1_000_000_000  # parameters
MOST_SOURCES = 20  # a run can begin with a run that began with a run ...
LONGEST_WARMUP = 10  # updates; a shorter run warms up for a tenth of its updates

AUTOMATIC = frozenset(
    {"optimizer.learning_rate", "optimizer.warmup", "loss.kl_estimator", "loss.kl_gradient", "advantage.std"}
    | {f"{section}.{key}" for section, defaults in LANGUAGE_MODEL.items() for key in defaults}
)


def unstated_settings(settings: Mapping[str, Mapping[str, Any]]) -> frozenset[str]:
    """The automatic settings that are missing or "auto"."""
    return frozenset(
        name
        for name in AUTOMATIC
        for section, _, key in [name.partition(".")]
        if settings.get(section, {}).get(key, AUTO) == AUTO
    )


def with_model_defaults(settings: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The settings with every "auto" replaced that the [model] section decides.

    Missing keys keep the defaults of sections.py. The rate of full weights stays "auto": it depends on their number.
    """
    filled = {section: dict(table) for section, table in settings.items()}
    model = filled.get("model", {})
    for name in unstated_settings(settings):
        section, _, key = name.partition(".")
        filled.setdefault(section, {}).pop(key, None)
    if is_embedded(model.get("path", EMBEDDED)):
        return filled
    for section, defaults in LANGUAGE_MODEL.items():
        filled[section] = {**defaults, **filled[section]}
    filled["optimizer"].setdefault("learning_rate", LORA_RATE if model.get("lora_rank") else AUTO)
    return filled


def with_matching_defaults(settings: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The settings, without any "auto", with the defaults that belong to the KL's placement and to the baseline.

    >>> with_matching_defaults({"loss": {"kl_placement": "reward"}})
    {'loss': {'kl_placement': 'reward', 'kl_estimator': 'k1'}}
    """
    filled = {section: dict(table) for section, table in settings.items()}
    loss, advantage = filled.get("loss", {}), filled.get("advantage", {})
    if loss.get("kl_placement") == "reward":
        loss.setdefault("kl_estimator", "k1")
    if loss.get("kl_estimator") == "k2":
        loss.setdefault("kl_gradient", "naive")
    if advantage.get("baseline") == "leave_one_out" and advantage.get("scale") != "batch":
        advantage.setdefault("std", "none")  # scale = "batch" asks for the std of the batch
    return filled


def is_embedded(path: object) -> bool:
    """Whether model.path names the embedded model, or a run that began with it."""
    for _ in range(MOST_SOURCES):
        if path == EMBEDDED or not isinstance(path, str):
            return path == EMBEDDED
        places = [Path(path), *Path(path).parents[:2]]  # a run, its final/, or one of its checkpoints/
        run = next((place for place in places if (place / "run.json").is_file()), None)
        if run is None:
            return False
        try:
            path = tomllib.loads(durable.read_file(run / "config.toml").decode())["model"]["path"]
        except (OSError, ValueError, LookupError, TypeError, RecursionError):
            return False  # such a run is refused with a reason when it is opened
    return False


def automatic_warmup(updates: int) -> int:
    """Updates of warm-up in a run of `updates`: a tenth, so that every run reaches its rate.

    >>> automatic_warmup(240), automatic_warmup(60), automatic_warmup(4)
    (10, 6, 0)
    """
    return min(LONGEST_WARMUP, updates // 10)


def automatic_rate(parameters: int) -> float:
    """The learning rate for all weights of a language model of this size.

    >>> automatic_rate(135_000_000), automatic_rate(7_000_000_000)
    (5e-06, 1e-06)
    """
    return SMALL_MODEL_RATE if parameters < LARGE_MODEL else LARGE_MODEL_RATE
