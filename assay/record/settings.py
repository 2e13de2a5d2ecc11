"""Config -> the settings of a batch or of curves, by the names that assay/record/batch.py gives them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from assay.config import Config, ConfigError, from_mapping, to_mapping
from assay.record.batch import SETTINGS


def settings_of(config: Config) -> dict[str, Any]:
    sections = (config.loss, config.advantage, config.rollout, config.optimizer, config.model)
    settings = {
        setting.name: getattr(section, setting.name)
        for section in sections
        for setting in fields(section)
        if setting.name in SETTINGS
    }
    return settings | {
        "advantage_epsilon": config.advantage.epsilon,
        "support_kept": config.rollout.top_k > 0,
        "mask_truncated": config.rollout.truncated == "mask",
        "updates_per_rollout": config.updates_a_step,
        "max_reward": config.evaluate.pass_reward,
        "steps": config.run.steps,
        "trainer": "assay",
    }


def recorded_changes(events: Sequence[Mapping[str, Any]], last: int | None = None) -> list[Mapping[str, Any]]:
    """The "changed" events that still hold: a run that was resumed from before a change made the change again.

    `last` is the last step that a run about to be resumed has done."""
    changes: list[Mapping[str, Any]] = []
    for event in [*events, *([] if last is None else [{"kind": "resume", "step": last}])]:
        kind, step = event.get("kind"), event.get("step")
        if kind == "start":
            changes = []
        elif kind == "changed" and isinstance(step, int):
            changes.append(event)
        elif kind == "resume" and isinstance(step, int):
            changes = [change for change in changes if change["step"] <= step]
    return changes


def settings_by_step(config: Config, events: Sequence[Mapping[str, Any]]) -> Callable[[int], dict[str, Any]]:
    """The settings by step: `assay train --resume --change` changes them in the middle of a run.

    `config` holds the newest values; a "changed" event says after which step a value took the place of another.
    """
    changes = recorded_changes(events)

    def at(step: int) -> dict[str, Any]:
        settings = to_mapping(config)
        for change in reversed(changes):
            if step <= change["step"]:
                section, _, key = change["setting"].partition(".")
                settings[section][key] = change["before"]
        return settings_of(from_mapping(settings))

    try:
        at(0)
    except (ConfigError, LookupError, TypeError, AttributeError):
        return lambda step: settings_of(config)  # somebody changed events.jsonl
    return at
