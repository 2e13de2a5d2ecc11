"""What `assay tasks` shows: the tasks there are, or one task's options and first problems. Lines, not yet printable."""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Iterator
from typing import Any

from assay.config import Config
from assay.tasks import BUILT_IN, REASONING_GYM, has_reasoning_gym, is_path, open_task
from assay.types import Problem

SAMPLES = 3
LONGEST_TEXT = 1500  # characters shown of a prompt or an answer


def all_tasks() -> Iterator[str]:
    """One line a task; of a refused family, the reason."""
    yield "Built-in tasks:"
    for name, (options, _) in BUILT_IN.items():
        yield f"  {name:<28} {inspect.getdoc(options)}"
    yield ""
    if not has_reasoning_gym():
        yield "reasoning_gym/FAMILY needs the package reasoning-gym: pip install 'assay[reasoning-gym]'"
    else:
        from assay.tasks.reasoning_gym import families, summary
        from assay.tasks.reasoning_gym_refused import REFUSED

        yield "reasoning_gym/FAMILY, with FAMILY one of:"
        for family in families():
            yield f"  {family:<28} {f'REFUSED: {REFUSED[family]}' if family in REFUSED else summary(family)}"
    yield ""
    yield "A file of your own: path.jsonl, path.json, path.parquet, path.csv, or a directory of them."
    yield "`assay tasks NAME` shows the options and first problems of one."


def one_task(config: Config) -> Iterator[str]:
    """Its options with their meanings and values, and its first problems. Raises what opening it raises."""
    name, task = config.task.name, open_task(config)
    yield f"{name}: options, to be set under [task.options] or as --set task.options.KEY=VALUE"
    yield from (f"  {line}" for line in _options(name, config.task.options))
    if is_path(name):
        training, heldout = getattr(task, "sizes", (0, 0))
        yield ""
        yield f"{training:,} rows to train on, {heldout:,} held out; sha256 {task.fingerprint}"
    for index in range(SAMPLES):
        yield ""
        yield from _problem(task.training_problem(index))


def _options(name: str, options: dict[str, Any]) -> Iterator[str]:
    if name in BUILT_IN:
        kind: Any = BUILT_IN[name][0]
    elif name.startswith(REASONING_GYM):
        from assay.tasks.reasoning_gym import DEFAULTS, ReasoningGymOptions

        kind = ReasoningGymOptions
        options = {**DEFAULTS.get(name.removeprefix(REASONING_GYM), {}), **options}
    else:
        from assay.tasks.files import FileOptions

        kind = FileOptions
    for field in dataclasses.fields(kind):
        choices = " | ".join(field.metadata["choices"])
        meaning = field.metadata["meaning"] + (f" ({choices})" if choices else "")
        yield f"{_setting(field.name, options.get(field.name, field.default)):<28} # {meaning}"
    if name.startswith(REASONING_GYM):
        from assay.tasks.reasoning_gym import difficulty

        for option, (type_, default) in difficulty(name.removeprefix(REASONING_GYM)).items():
            text = getattr(type_, "__name__", str(type_)) if isinstance(type_, type) else str(type_)
            setting = _setting(option, options.get(option, default))
            yield f"{setting:<28} # of the library: {text.replace('typing.', '')}"


def _setting(name: str, value: Any) -> str:
    return f"{name} = {json.dumps(value, default=str, ensure_ascii=False)}"


def _problem(problem: Problem) -> Iterator[str]:
    yield f"{problem.id}"
    for message in problem.messages:
        yield from _indent(message["role"], message["content"])
    if not problem.messages:
        yield from _indent("text", problem.text)
    yield from _indent("answer", problem.answer)


def _indent(label: str, text: str) -> Iterator[str]:
    shown = text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}..."
    for number, line in enumerate(shown.split("\n")):
        yield f"  {f'{label}:' if number == 0 else '':<10}{line}"
