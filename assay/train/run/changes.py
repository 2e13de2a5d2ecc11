"""What may change between a checkpoint and its resumption, and what did: settings (`--change`) and the user's files.

A run may change how its next updates are made and what is written of them. It may not change the model, the task, how
answers are sampled and compared, what a reward is, and into how many updates a step is cut; a run that begins with
this one's policy (model.path = RUN) may choose all of that.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from assay import config as configuration
from assay.config import Config, ConfigError, to_mapping
from assay.config.automatic import AUTO
from assay.config.read import read_text
from assay.config.refusals import misleading
from assay.record import RunError, checksums
from assay.record.settings import recorded_changes
from assay.tasks import Task, is_path
from assay.train.run import checkpoint

STEPS = "run.steps"
PROBLEMS = "problems"  # the task's entry among the sources
MAKES_STEPS = ("model", "reward", "rollout", "loss", "optimizer")  # sections that matter only while steps are made
PACKING = ("microbatches", "pass_tokens", "share_prompts")  # of [optimizer]: into what passes an update is cut


@dataclass(frozen=True, slots=True)
class Change:
    setting: str  # section.key
    before: Any
    after: Any

    def __str__(self) -> str:
        return f"{self.setting} = {self.before!r} becomes {self.after!r}"


def with_changes(file: Path, recorded: Config, overrides: Sequence[str]) -> Config:
    """The config of a run with `section.key=value` changes; refuses those that a run that has begun cannot take."""
    for text in overrides:
        if read_text(text.partition("=")[2].strip(), str) == AUTO:
            raise ConfigError(f"--change {text}: a run has its own number by now; give the new one")
    try:
        config = configuration.load(file, overrides)
    except ConfigError as error:
        raise ConfigError(*(text.replace("--set ", "--change ") for text in error.sentences)) from error
    fixed = [change for change in _differences(to_mapping(recorded), to_mapping(config)) if not _may_change(change)]
    if fixed:
        raise ConfigError(*(_why_fixed(change.setting, file.parent) for change in fixed))
    if (problems := misleading(config)) and not misleading(recorded):
        raise ConfigError(*problems)
    return config


def refuse_edited(saved: checkpoint.Checkpoint, recorded: Config, run: Path) -> None:
    """Refuses a config.toml that differs from a checkpoint's by more than what `--change` wrote into it."""
    file = run / "config.toml"
    is_ours = checksums.is_as_written(run, file.name)
    for change in _lasting(_differences(_saved_settings(saved), to_mapping(recorded))):
        if not (is_ours and _may_change(change)):
            fix = f"give it as --change {change.setting}=..." if _may_change(change) else "start a new run"
            raise ConfigError(
                f"{file}: {change.setting} = {change.after!r}, but {saved.path.name} was saved with {change.before!r}; "
                f"put the old value back, or {fix}"
            )


def unrecorded_changes(
    saved: checkpoint.Checkpoint, config: Config, events: Sequence[Mapping[str, Any]]
) -> list[Change]:
    """Settings that differ from what the record says is in force: those of the checkpoint, and the recorded changes
    since. A run may have been killed between a change and its event."""
    values = _saved_settings(saved)
    for event in recorded_changes(events, last=saved.state["place"]["step"]):
        section, _, key = str(event.get("setting")).partition(".")
        if key in values.get(section, {}):
            values[section][key] = event.get("after")
    return _lasting(_differences(values, to_mapping(config)))


def check_step_under_way(saved: checkpoint.Checkpoint, config: Config, run: Path) -> None:
    """Refuses a KL in the loss that begins inside a step: the step has no log-probs of a reference."""
    loss = _saved_settings(saved)["loss"]
    had_reference = loss["kl_coef"] > 0 and loss["kl_placement"] == "loss"
    needs_reference = config.loss.kl_coef > 0 and config.loss.kl_placement == "loss"
    if needs_reference and not had_reference and saved.state["work"] is not None:
        step = saved.state["place"]["step"] + 1
        key = "kl_placement" if loss["kl_coef"] > 0 else "kl_coef"
        raise ConfigError(
            f"loss.{key} = {getattr(config.loss, key)!r} cannot begin now: {saved.path.name} stands inside step "
            f"{step}, which has no log-probs of a reference; finish that step first: assay train --resume "
            f"{_quoted(run)} --set run.steps={step} --change loss.{key}={loss[key]}"
        )


def refuse_without_a_step(changed: Sequence[Change], config: Config, saved: checkpoint.Checkpoint, run: Path) -> None:
    """Refuses to change how steps are made if no step is left."""
    done = saved.state["place"]["step"]
    idle = [change.setting for change in changed if change.setting.partition(".")[0] in MAKES_STEPS]
    if idle and done >= config.run.steps:
        raise ConfigError(
            f"--change {idle[0]}: the run has done all of its {done} steps, so nothing would be made with the new "
            f"value; add the number of steps: assay train --resume {_quoted(run)} --set run.steps=N --change "
            f"{idle[0]}=..."
        )


def check_new_steps(recorded: Config, config: Config, saved: checkpoint.Checkpoint | None) -> None:
    """Refuses an end that the run has passed, or that does not fit its learning-rate schedule."""
    if saved is None:
        return
    steps, schedule = config.run.steps, config.optimizer.schedule
    if steps != recorded.run.steps and "constant" not in (schedule, recorded.optimizer.schedule):
        raise ConfigError(
            f"run.steps = {steps} would move the end of the {schedule} learning-rate schedule, by which the steps so "
            f"far were trained, from step {recorded.run.steps}; only a constant one can be extended: add --change "
            "optimizer.schedule=constant"
        )
    done, under_way = saved.state["place"]["step"], saved.state["work"] is not None
    if steps < done + under_way:
        begun = f" and begun step {done + 1}" if under_way else ""
        raise ConfigError(f"run.steps = {steps}, but the run has done {done} steps{begun} already; give a larger one")


def with_packing_of(config: Config, saved: checkpoint.Checkpoint) -> Config:
    """The config with the passes into which the unfinished step was cut."""
    before = saved.state["config"].get("optimizer", {})
    packing = {key: before[key] for key in PACKING if key in before}
    return replace(config, optimizer=replace(config.optimizer, **packing))


def sources_of(config: Config, task: Task) -> dict[str, str]:
    """The user's own files that a run depends on: name -> checksum; "" for problems that come from this package."""
    files = {spec: Path(spec.rpartition(":")[0]) for spec in config.reward.functions}
    rewards = {spec: hashlib.sha256(file.read_bytes()).hexdigest() for spec, file in files.items() if file.is_file()}
    return {PROBLEMS: task.fingerprint, **rewards}


def changed_sources(before: Mapping[str, str], now: Mapping[str, str], config: Config) -> list[tuple[str, str]]:
    """The kind of event and a sentence for each of the user's files that has changed: it may have been repaired. Rows
    keep their side of the split by their own text, so that no row that was held out is trained on. Problems that come
    from a library of another version are refused: nobody repaired them."""
    found = []
    if before[PROBLEMS] != now[PROBLEMS]:
        if not is_path(config.task.name):
            raise RunError(
                f"task.name = {config.task.name!r} gives other problems than when the run began ({before[PROBLEMS]}, "
                f"now {now[PROBLEMS]}); install the version it began with, or start a new run"
            )
        sentence = (
            f"{config.task.name} has changed since the last checkpoint; the steps from here on draw from the new rows, "
            "and held-out scores may be those of other rows than before"
        )
        found.append(("data changed", sentence))
    for name, checksum in now.items():
        if name != PROBLEMS and before.get(name) != checksum:
            sentence = (
                f"{name} has changed since the last checkpoint; the rewards from here on are those of the new file"
            )
            found.append(("reward changed", sentence))
    return found


def _saved_settings(saved: checkpoint.Checkpoint) -> dict[str, dict[str, Any]]:
    """Settings that did not exist when the checkpoint was saved have their defaults."""
    defaults = to_mapping(Config())
    return {section: {**defaults[section], **saved.state["config"].get(section, {})} for section in defaults}


def _lasting(changes: Sequence[Change]) -> list[Change]:
    """All but run.steps, which checkpoints do not hold."""
    return [change for change in changes if change.setting != STEPS]


def _differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Change]:
    return [
        Change(f"{section}.{key}", before[section].get(key), value)
        for section, settings in after.items()
        for key, value in settings.items()
        if before[section].get(key) != value
    ]


def _may_change(change: Change) -> bool:
    section, _, key = change.setting.partition(".")
    return key in changeable_keys(section)


def changeable_keys(section: str) -> list[str]:
    """The settings of a section that may change in the middle of a run."""
    return [key.name for key in fields(getattr(Config(), section)) if key.metadata["changes"]]


def _quoted(run: Path) -> str:
    return shlex.quote(str(run))


def _why_fixed(setting: str, run: Path) -> str:
    section = setting.partition(".")[0]
    allowed = ", ".join(changeable_keys(section))
    mine = f" (of [{section}] these may: {allowed})" if allowed else ""
    return (
        f"--change {setting}: this setting cannot change in the middle of a run{mine}; start a new run that begins "
        f"with this policy: assay train --set model.path={_quoted(run)} --set {setting}=..."
    )
