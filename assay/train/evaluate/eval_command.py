"""`assay eval`: a run's checkpoint, or a model that was never trained, on held-out problems. Writes nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.cells import cell_len

from assay import config as configuration
from assay.config import Config, ConfigError
from assay.engine.engine import BrokenPolicy, NoRoom
from assay.engine.open import open_engine
from assay.machine.terminal import ProgressLine, fit, number
from assay.policy.codec import PromptRefused
from assay.policy.load import load_policy
from assay.record import RunDirectory, read_evaluations
from assay.record.trust import POLICY, REWARDS, load_config, refuse_untrusted
from assay.rewards import open_rewards
from assay.tasks import open_task
from assay.train.evaluate.evaluate import EvaluationRow, evaluate
from assay.train.evaluate.saved_policy import SavedPolicy, open_saved
from assay.train.failure import RunFailed
from assay.train.run.cpu import set_up, settled
from assay.train.step.failed_rewards import FailedRewards

CHANGEABLE = ("task", "reward", "judge", "rollout", "evaluate")  # sections; the others determine the policy
_SHOWN = {
    "prompts": "prompts",
    "samples": "samples per prompt",
    "reward_greedy": "reward, greedy",
    "reward_greedy_std_error": "  standard error",
    "reward_sampled": "reward, sampled",
    "reward_sampled_std_error": "  standard error",
    "pass_greedy": "pass, greedy",
    "pass_at_1": "pass@1",
    "pass_at_1_std_error": "  standard error",
    "pass_at_k": "pass@k",
    "truncated_share": "truncated share",
    "length_mean": "mean length",
    "unscored_greedy": "unscored, greedy",
    "unscored_sampled": "unscored, sampled",
}


@dataclass(frozen=True, slots=True)
class Evaluated:
    row: EvaluationRow
    name: str  # of the checkpoint, or of the model directory
    before: Mapping[str, Any] | None  # the run's own evaluation before training, if it answered the same problems


def evaluate_saved(
    target: Path,
    *,
    config_file: Path | None,
    overrides: Sequence[str],
    checkpoint: str | None,
    progress: ProgressLine,
    report: Callable[[str], None],
    trust: bool = False,
) -> Evaluated:
    """Evaluates what `target` holds: a run directory, or with a `config_file` a Hugging Face model directory."""
    for override in overrides:
        section = override.partition(".")[0].strip()
        if section not in CHANGEABLE:
            raise ConfigError(
                f"--set {override} would change what is evaluated; an evaluation may change {', '.join(CHANGEABLE)}"
            )
    is_run = config_file is None
    if is_run:
        if not (target / "run.json").exists() and (target / "config.json").exists():
            raise ConfigError(f"{target} is a model directory, not a run; say with --config FILE.toml what to ask it")
        RunDirectory.open(target)
        config = load_config(target, overrides)
        if not trust:
            own_words = {override.partition("=")[0].strip() for override in overrides}
            refuse_untrusted(target, config, (POLICY, REWARDS), own_words)
    else:
        if (target / "run.json").exists() or checkpoint is not None:
            raise ConfigError("--config goes with a model directory; a run has a config and checkpoints of its own")
        # rollout.max_tokens and other defaults must be those of a language model, whatever the file says of its own
        config = configuration.load(config_file, [*overrides, "model.path=another"])
        config = replace(config, model=replace(config.model, path=str(target), lora_rank=0))
    if config.evaluate.prompts == 0:
        raise ConfigError("evaluate.prompts = 0 asks nothing; say how many with --prompts")
    try:
        saved = _load(target, config, checkpoint if is_run else None, is_run, progress, report)
        tokens, answers = progress.ticker("held-out tokens"), progress.ticker("held-out answers scored")
        task = open_task(config)
        with closing(open_rewards(config, task, saved.policy.codec.decode, report=report)) as reward:
            failures = FailedRewards(config, report)
            engine = open_engine(saved.policy)
            row = evaluate(engine, saved.policy, task, reward, config, saved.step, tokens, answers, failures).row
    except PromptRefused as error:
        raise ConfigError(str(error)) from error
    except (BrokenPolicy, NoRoom) as error:
        raise RunFailed(str(error)) from error
    return Evaluated(row, saved.name, _before(target, row, overrides) if is_run else None)


def evaluation_table(evaluated: Evaluated) -> str:
    """The row as text, beside the evaluation before training if there is one to compare with."""
    columns: list[tuple[str, Mapping[str, Any]]] = [(evaluated.name, evaluated.row)]
    if evaluated.before is not None:
        columns.insert(0, ("before training", evaluated.before))
    width = max(len(title) for title, _ in columns) + 2
    labels = {**_SHOWN, "pass_at_k": f"pass@{evaluated.row['k']}", **_component_labels(evaluated.row)}
    longest = max(18, *(cell_len(label) + 1 for label in labels.values()))
    lines = [" " * longest + "".join(title.rjust(width) for title, _ in columns)]
    for key, label in labels.items():
        padded = label + " " * (longest - cell_len(label))
        lines.append(padded + "".join(_cell(row.get(key)).rjust(width) for _, row in columns))
    return "\n".join(lines)


def _component_labels(row: EvaluationRow) -> dict[str, str]:
    """The rows of the reward components, last; none if the only one is the reward itself."""
    names = [match[1] for key in row if (match := re.fullmatch(r"reward_(.+)_greedy", key, re.DOTALL))]
    if len(names) == 1 and row[f"reward_{names[0]}_sampled"] == row["reward_sampled"]:
        return {}
    return {f"reward_{name}_{kind}": f"{fit(name, 24)}, {kind}" for name in names for kind in ("greedy", "sampled")}


def _load(
    target: Path,
    config: Config,
    name: str | None,
    is_run: bool,
    progress: ProgressLine,
    report: Callable[[str], None],
) -> SavedPolicy:
    on_warm_step = progress.ticker("warm start")
    if is_run:
        return open_saved(target, config, name, on_warm_step, report)
    config = settled(config)
    set_up(config)
    return SavedPolicy(load_policy(config, on_warm_step, report), 0, target.name)


def _before(run: Path, row: EvaluationRow, overrides: Sequence[str]) -> Mapping[str, Any] | None:
    """The run's row of step 0, if it is of the same problems, sampled and scored in the same way."""
    if any(not override.strip().startswith(("evaluate.prompts=", "evaluate.samples=")) for override in overrides):
        return None
    first = next((early for early in read_evaluations(run).rows if early["step"] == 0), None)
    same = first is not None and all(first.get(key) == row[key] for key in ("prompts", "samples"))
    return first if same else None


def _cell(value: float | int | None) -> str:
    return str(value) if isinstance(value, int) else number(value)
