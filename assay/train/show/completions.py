"""A few completions of one step for a person to read: StepRecord -> CompletionTable -> lines, Markdown or cells.

The rows are those of rollouts/*.parquet, so show_command.py reads a recorded run in the same way.
"""

from __future__ import annotations

import html
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.cells import cell_len

from assay.machine.durable import encodable
from assay.machine.terminal import fit, number
from assay.record.rollouts import rollout_rows
from assay.types import StepRecord

Row = Mapping[str, Any]  # of rollouts/*.parquet
Group = Sequence[Row]  # the rows of one prompt

PROMPTS = 2  # of a table; the best and the worst answer to each
GAP = "  "
NARROWEST_NUMBER, WIDEST_NAME = 7, 12  # cells of a column of numbers
NARROWEST_TEXT = 36  # cells that prompt and completion share; reward components that leave less are not shown
LONGEST_CELL = 2000  # characters of a prompt or completion that are copied to TensorBoard, W&B or trackio


@dataclass(frozen=True, slots=True)
class CompletionTable:
    step: int
    prompts: int  # of the step
    groups: tuple[Group, ...]  # the rows shown, by prompt
    components: tuple[str, ...]  # of the reward; empty if there is only one, which is the reward

    @property
    def title(self) -> str:
        return f"step {self.step}: best and worst answer to {len(self.groups)} of {self.prompts} prompts"


def table_of(record: StepRecord) -> CompletionTable:
    """The best and worst answers to the prompts of a step whose rewards differ most."""
    rows = [{**row, "rewards": dict(row["rewards"])} for row in rollout_rows(record, keep="all", extremes=0)]
    groups = by_prompt(rows)
    chosen = sorted(groups, key=spread, reverse=True)[:PROMPTS]
    ends = tuple(best_and_worst(group) for group in chosen)
    return CompletionTable(record.step, len(groups), ends, component_names([row for group in ends for row in group]))


def table_steps(tables: int, steps: int) -> frozenset[int]:
    """The steps after which a run of `steps` shows its tables: the first, the last, and evenly between.

    >>> sorted(table_steps(3, 120)), sorted(table_steps(1, 120)), sorted(table_steps(10**30, 2))
    ([1, 60, 120], [1], [1, 2])
    >>> table_steps(0, 5)
    frozenset()
    """
    if tables == 0:
        return frozenset()
    tables = min(tables, steps)
    return frozenset(1 + index * (steps - 1) // max(tables - 1, 1) for index in range(tables))


def by_prompt(rows: Sequence[Row]) -> list[list[Row]]:
    """The groups of one step, in their order."""
    groups: dict[int, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["group"], []).append(row)
    return list(groups.values())


def spread(group: Group) -> float:
    """The difference between the highest and the lowest reward of a group."""
    rewards = [row["reward"] for row in group if row["reward"] is not None]
    return max(rewards) - min(rewards) if rewards else 0.0


def mean_reward(group: Group) -> float:
    """Groups without any reward are below all others."""
    rewards = [row["reward"] for row in group if row["reward"] is not None]
    return statistics.fmean(rewards) if rewards else float("-inf")


def best_and_worst(group: Group) -> Group:
    ranked = sorted(group, key=lambda row: mean_reward([row]), reverse=True)
    return ranked[:1] + ranked[1:][-1:]


def component_names(rows: Sequence[Row]) -> tuple[str, ...]:
    """The reward components of the rows; none if the only one is the reward itself."""
    names = tuple(dict.fromkeys(name for row in rows for name in row["rewards"]))
    is_reward = len(names) == 1 and all(row["rewards"].get(names[0]) == row["reward"] for row in rows)
    return () if is_reward else names


def advantage(row: Row) -> float | None:
    """Of the whole completion; the mean over its tokens where they have advantages of their own."""
    if row["token_advantages"]:
        return statistics.fmean(row["token_advantages"])
    value: float | None = row["advantage"]
    return value


def lines_of(table: CompletionTable, width: int, *, ascii_only: bool) -> list[str]:
    """The table in lines of at most `width` cells, its header first. Texts lose their middle; components that leave no
    room for them are left out."""
    shown = list(table.components)
    while shown and _text_cells(shown, width) < NARROWEST_TEXT:
        shown.pop()
    rows = [(row, index == 0) for group in table.groups for index, row in enumerate(group)]
    room = max(_text_cells(shown, width) - len(GAP), 2)
    prompts = _column("prompt", [row["prompt_text"] if first else "" for row, first in rows], room * 2 // 5, ascii_only)
    texts = _column("completion", [row["text"] for row, _ in rows], room - cell_len(prompts[0]), ascii_only)
    titles = [fit(name, WIDEST_NAME, ascii_only=ascii_only) for name in shown]
    numbers = [[*titles, "reward", "advantage"], *(_numbers(row, shown) for row, _ in rows)]
    cells = _number_cells(shown)
    return [
        GAP.join([prompt, text, *(_right(value, wide) for value, wide in zip(values, cells, strict=True))]).rstrip()
        for prompt, text, values in zip(prompts, texts, numbers, strict=True)
    ]


def _number_cells(components: Sequence[str]) -> list[int]:
    titles = [fit(name, WIDEST_NAME) for name in components]
    return [max(NARROWEST_NUMBER, cell_len(title)) for title in (*titles, "reward", "advantage")]


def _text_cells(components: Sequence[str], width: int) -> int:
    """Cells that the columns of numbers leave for the two columns of text."""
    return width - sum(len(GAP) + cells for cells in _number_cells(components))


def _numbers(row: Row, components: Sequence[str]) -> list[str]:
    reward = "failed" if row["error"] else number(row["reward"])
    return [*(number(row["rewards"].get(name)) for name in components), reward, number(advantage(row))]


def _column(title: str, texts: Sequence[str], cells: int, ascii_only: bool) -> list[str]:
    """The title and the texts, cut and padded to one width: that of the widest, or `cells`."""
    fitted = [fit(text, cells, ascii_only=ascii_only) for text in (title, *texts)]
    widest = max(map(cell_len, fitted))
    return [text + " " * (widest - cell_len(text)) for text in fitted]


def _right(text: str, cells: int) -> str:
    return " " * (cells - cell_len(text)) + text


def cells_of(table: CompletionTable) -> tuple[list[str], list[list[str | float | None]]]:
    """Column names and rows for tools that draw tables themselves."""
    columns = ["prompt", "completion", *table.components, "reward", "advantage"]
    rows = [
        [
            _cell(row["prompt_text"]),
            _cell(row["text"]),
            *(row["rewards"].get(name) for name in table.components),
            row["reward"],
            advantage(row),
        ]
        for group in table.groups
        for row in group
    ]
    return columns, rows


def markdown_of(table: CompletionTable) -> str:
    """The table as Markdown in which no text can become markup."""
    columns, rows = cells_of(table)
    lines = [list(map(_markdown, columns)), ["---"] * len(columns), *(list(map(_markdown, row)) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(text: str) -> str:
    text = encodable(text)
    half = LONGEST_CELL // 2
    return text if len(text) <= LONGEST_CELL else f"{text[:half]} ... {text[-half:]}"


def _markdown(value: str | float | None) -> str:
    if not isinstance(value, str):
        return number(value)
    plain = html.escape(fit(value, LONGEST_CELL))
    return "".join(f"&#{ord(character)};" if character in "|`*_[]\\#~!" else character for character in plain)
