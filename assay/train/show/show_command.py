"""`assay show`: prints recorded completions, each prompt with its answers, rewards and advantages."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from assay.machine.terminal import escape, fit, number
from assay.record import RunDirectory, RunError, read_rollouts, recorded_steps
from assay.train.show.completions import Group, Row, advantage, by_prompt, component_names, mean_reward, spread

ORDERS: dict[str, tuple[str, Callable[[Group], float]]] = {
    "spread": ("rewards that differ most first", lambda group: -spread(group)),
    "best": ("highest mean reward first", lambda group: -mean_reward(group)),
    "worst": ("lowest mean reward first", mean_reward),
}
MOST_LINES = 6  # of one text; a prompt that is chosen by its id is shown in full
LEAST_WIDTH, MOST_WIDTH = 40, 120


def show_lines(run: Path, *, step: int | None, prompt: str | None, order: str, count: int) -> Iterator[str]:
    """The lines of `assay show`; no text in them can control a terminal."""
    steps = recorded_steps(RunDirectory.open(run).path)
    if not steps:
        raise RunError(f"{run} holds no rollouts: no step was finished, or record.rollouts = 'none'")
    step = steps[-1] if step is None else step
    if step not in steps:
        raise RunError(f"{run} holds no rollouts of step {step}; it has steps {steps[0]} to {steps[-1]}")
    groups = by_prompt(list(read_rollouts(run, step)))
    words, key = ORDERS[order]
    if prompt is None:
        chosen = sorted(groups, key=key)[:count]
        yield f"step {step} of {run}: {len(chosen)} of {len(groups)} prompts, {words}"
    else:
        chosen = [group for group in groups if group[0]["prompt_id"] == prompt]
        if not chosen:
            example = groups[0][0]["prompt_id"] if groups else "none"
            raise RunError(f"step {step} of {run} has no prompt {prompt!r}; its prompts are named like {example!r}")
    width = min(max(shutil.get_terminal_size().columns, LEAST_WIDTH), MOST_WIDTH)
    most = MOST_LINES if prompt is None else None
    for group in chosen:
        yield from _group_lines(group, width, most)


def _group_lines(group: Group, width: int, most: int | None) -> Iterator[str]:
    first = group[0]
    yield ""
    yield f"prompt {escape(first['prompt_id'], arrows=True)}: mean reward {number(_mean(group))}, {len(group)} answers"
    yield from _text_lines(first["prompt_text"], "| ", width, most)
    names = component_names(group)
    for row in sorted(group, key=lambda row: -mean_reward([row])):
        yield f"  {_numbers(row, names)}"
        yield from _text_lines(row["text"], "    ", width, most)


def _mean(group: Group) -> float | None:
    return mean_reward(group) if any(row["reward"] is not None for row in group) else None


def _numbers(row: Row, names: Sequence[str]) -> str:
    """What an answer was worth, in a line."""
    if row["error"]:
        worth = f"reward failed: {fit(row['error'], 200)}"
    else:
        parts = [f"{escape(name, arrows=True)} {number(row['rewards'].get(name))}" for name in names]
        worth = f"reward {number(row['reward'])}" + (f" ({', '.join(parts)})" if parts else "")
    stop = "" if row["stop"] == "eos" else f", ended by {row['stop']}"
    return f"{worth}, advantage {number(advantage(row))}, {len(row['tokens'])} tokens{stop}"


def _text_lines(text: str, margin: str, width: int, most: int | None) -> Iterator[str]:
    """A text in its own lines, wrapped; the middle of a long one is left out."""
    room = width - len(margin)
    shown = (
        text if most is None or len(text) <= 4 * most * room else f"{text[: 2 * most * room]}{text[-2 * most * room :]}"
    )
    lines = [
        line
        for paragraph in shown.replace("\r\n", "\n").split("\n")
        for line in textwrap.wrap(escape(paragraph, arrows=True), room, drop_whitespace=False, replace_whitespace=False)
        or [""]
    ]
    if most is not None and len(lines) > most:
        left_out = f"... ({len(text):,} characters in all)"
        lines = [*lines[: most // 2], left_out, *lines[-(most // 2) :]]
    for line in lines:
        yield f"{margin}{line}".rstrip()
