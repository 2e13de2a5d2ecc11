"""The README.md beside exported weights: what they were trained from, on what, how well they do, how to load them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from assay.config import Config
from assay.machine.terminal import number, printable
from assay.record import RunError, read_evaluations, read_events
from assay.record.settings import recorded_changes, settings_by_step
from assay.rewards import function_name

SCORES = {
    "reward_greedy": "reward, greedy answer",
    "reward_sampled": "reward, sampled answers",
    "pass_at_1": "pass@1",
    "pass_at_k": "pass@k",
}
VERSIONS = ("assay", "torch", "transformers", "peft")
LOAD_WHOLE = """from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("path/to/this/directory")
tokenizer = AutoTokenizer.from_pretrained("path/to/this/directory")"""
LOAD_ADAPTER = """from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

base = AutoModelForCausalLM.from_pretrained({base})
model = PeftModel.from_pretrained(base, "path/to/this/directory")
tokenizer = AutoTokenizer.from_pretrained("path/to/this/directory")"""


def model_card(run: Path, config: Config, *, step: int, merge: bool) -> str:
    """The card of a run's weights after `step`. Equal runs have equal cards."""
    adapter = config.model.lora_rank > 0 and not merge
    parts = [
        _front_matter(config, adapter),
        f"# {printable(config.run.name)}\n\nTrained with GRPO by Assay.",
        _table({"": ""} | _facts(config, read_events(run).rows, step, merge)),
        f"## Held-out score\n\n{_scores(run, config, step)}",
        f"## Load it\n\n{_loading(run, config, adapter)}",
        f"## Versions\n\n{_versions(run)}",
    ]
    return "\n\n".join(parts) + "\n"


def _front_matter(config: Config, adapter: bool) -> str:
    lines = [f"library_name: {'peft' if adapter else 'transformers'}", "pipeline_tag: text-generation"]
    if _is_on_the_hub(config.model.path):
        lines.append(f"base_model: {config.model.path}")
    return "\n".join(["---", *lines, "tags: [grpo, assay]", "---"])


def _is_on_the_hub(name: str) -> bool:
    return re.fullmatch(r"[\w.-]+/[\w.-]+", name) is not None and not Path(name).exists()


def _facts(config: Config, events: Sequence[Mapping[str, Any]], step: int, merge: bool) -> dict[str, str]:
    model, reward, rollout = config.model, config.reward, config.rollout
    weights = reward.weights or (1.0,) * len(reward.functions)
    functions = [
        f"{weight:g} x {_code(function_name(name))}" for name, weight in zip(reward.functions, weights, strict=True)
    ]
    lora = f"LoRA adapters of rank {model.lora_rank}{', added into the weights' * merge}"
    made_by = settings_by_step(config, events)(step)
    changes = [event for event in recorded_changes(events) if event["step"] < step]
    changed = ", ".join(
        f"{_code(str(change.get('setting')))} from {_code(str(change.get('before')))} to "
        f"{_code(str(change.get('after')))} after step {change['step']}"
        for change in changes
    )
    return {
        "base model": _code(model.path),
        "trained": lora if model.lora_rank else "all weights",
        "task": _code(config.task.name),
        "reward": ", ".join(functions) or "the task's own",
        "objective": f"{made_by['objective']}, KL coefficient {made_by['kl_coef']:g}, learning rate "
        f"{made_by['learning_rate']:g}",
        **({"changed on the way": changed} if changed else {}),
        "steps": f"{step}, each of {rollout.prompts} prompts x {rollout.group_size} answers of up to "
        f"{rollout.max_tokens} tokens",
        "sampling": f"temperature {rollout.temperature:g}",
        "seed": str(config.run.seed),
    }


def _scores(run: Path, config: Config, step: int) -> str:
    rows = [row for row in read_evaluations(run).rows if row["step"] <= step]
    if not rows:
        return "It was not evaluated."
    ends = [rows[0], *rows[1:][-1:]]
    titles = ["before training" if row["step"] == 0 else f"after step {row['step']}" for row in ends]
    lines = [["", *titles], *([label, *(_score(row, key) for row in ends)] for key, label in SCORES.items())]
    n, k = ends[-1].get("prompts"), ends[-1].get("k")
    return (
        f"{_rows(lines)}\n\nOver {n} held-out prompts, k = {k} sampled answers to each; +- is the standard error. "
        f"An answer passes with a reward of at least {config.evaluate.pass_reward:g}."
    )


def _score(row: Mapping[str, Any], key: str) -> str:
    error = row.get(f"{key}_std_error")
    return number(row.get(key)) + ("" if error is None else f" +- {number(error)}")


def _loading(run: Path, config: Config, adapter: bool) -> str:
    if not adapter:
        return f"```python\n{LOAD_WHOLE}\n```"
    base, note = config.model.path, ""
    if (run / "seed").is_dir():
        base = "path/to/the/run/seed"
    elif not (_is_on_the_hub(base) or Path(base).is_dir()):
        base = "path/to/the/base/model"
        note = (
            f"\n\nThe base model {_code(config.model.path)} is not a directory that transformers can load. "
            "`assay export RUN --merge` writes full weights, which need no base model."
        )
    return f"```python\n{LOAD_ADAPTER.format(base=json.dumps(base))}\n```{note}"


def _versions(run: Path) -> str:
    file = run / "environment.json"
    try:
        facts = json.loads(file.read_text(encoding="utf-8"))
        found = {"python": facts.get("python"), **{name: facts.get("packages", {}).get(name) for name in VERSIONS}}
    except (OSError, ValueError, AttributeError) as error:
        raise RunError(f"{file} cannot be read: {error}; restore it from a copy of the run") from error
    return ", ".join(f"{name} {version}" for name, version in found.items() if version) or "unknown"


def _table(facts: Mapping[str, str]) -> str:
    return _rows([[label, fact] for label, fact in facts.items()])


def _rows(rows: Sequence[Sequence[str]]) -> str:
    header, *body = rows
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *body))


def _code(text: str) -> str:
    """A name as code in Markdown: no character of it can end the code or the cell."""
    return "`" + printable(text).replace("`", "'").replace("|", "\\|") + "`"
