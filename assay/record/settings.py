"""Config -> the settings of a batch or of curves, by the names that assay/record/batch.py gives them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from assay.config import Config, ConfigError, from_mapping, to_mapping


def settings_of(config: Config) -> dict[str, Any]:
    rollout, advantage, loss, optimizer = config.rollout, config.advantage, config.loss, config.optimizer
    same_names = {
        loss: (
            "objective clip_low clip_high dual_clip delta cispo_max sapo_positive sapo_negative kl_coef kl_placement "
            "kl_estimator kl_gradient reference_every entropy_coef correction correction_mode correction_low "
            "correction_high"
        ),
        advantage: "baseline std scale combine",
        rollout: "group_size prompts temperature top_k top_p min_p max_tokens zero_variance",
        optimizer: "minibatches microbatches learning_rate weight_decay clip_norm",
        config.model: "dtype lora_rank",
    }
    settings = {name: getattr(section, name) for section, names in same_names.items() for name in names.split()}
    return settings | {
        "advantage_epsilon": advantage.epsilon,
        "support_kept": rollout.top_k > 0,
        "mask_truncated": rollout.truncated == "mask",
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
    """Which settings made a step of the run: `assay train --resume --change` changes them half-way.

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
