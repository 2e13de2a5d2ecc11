"""Tables of completions: which are shown, after which steps, and that no text in them can do harm."""

from __future__ import annotations

import io
import re

import pytest
from rich.cells import cell_len
from rich.console import Console

from assay.machine.terminal import escape, fit
from assay.train.show.completions import (
    CompletionTable,
    cells_of,
    component_names,
    lines_of,
    markdown_of,
    table_of,
    table_steps,
)
from assay.train.show.display import Display
from assay.types import Group, Prompt, Rollout, Sample, Score, StepRecord, StopReason

HOSTILE = "a\x1b[2Jb\x9b31mc\x07\x00d\u202ee\ud800f\u200bg\r\nh\ti"


def group(name: str, text: str, *answers: tuple[str, Score]) -> Group:
    prompt = Prompt(name, text, (1,), "")
    rollouts = tuple(
        Rollout(name, (index, 9), (0.0, 0.0), StopReason.EOS, 0, own) for index, (own, _) in enumerate(answers)
    )
    return Group(prompt, rollouts, tuple(score for _, score in answers))


def record(*groups: Group) -> StepRecord:
    samples = tuple(
        Sample(group.prompt, rollout, -1.5 if reward is None else reward, in_loss=True)
        for group in groups
        for rollout, reward in zip(group.rollouts, group.rewards, strict=True)
    )
    logprobs = tuple((0.0, 0.0) for _ in samples)
    return StepRecord(3, 1, groups, samples, (), logprobs, logprobs, None, 0, 0)


def worth(reward: float, **components: float) -> Score:
    return Score(reward, components or {"exact": reward}, "")


DULL = group("dull", "2+2=", ("4", worth(1.0)), ("four", worth(1.0)))
MIXED = group("mixed", "1+1=", ("2", worth(1.0)), ("3", worth(0.25)), ("ten", worth(0.0)))
LIVELY = group("lively", "3+3=", ("9", worth(-2.0)), ("6", worth(2.0)))


def test_the_prompts_whose_rewards_differ_most_are_shown_with_their_best_and_worst_answer() -> None:
    lines = lines_of(table_of(record(DULL, MIXED, LIVELY)), 80, ascii_only=True)
    assert [line.split() for line in lines] == [
        ["prompt", "completion", "reward", "advantage"],
        ["3+3=", "6", "2.000", "2.000"],
        ["9", "-2.000", "-2.000"],
        ["1+1=", "2", "1.000", "1.000"],
        ["ten", "0.000", "0.000"],
    ]
    assert table_of(record(DULL, MIXED, LIVELY)).title == "step 3: best and worst answer to 2 of 3 prompts"


def test_each_component_has_a_column_and_a_failure_is_no_number() -> None:
    both = group("p", "?", ("x", worth(1.5, exact=1.0, brief=0.5)), ("y", Score.failed("raised")))
    lines = lines_of(table_of(record(both)), 80, ascii_only=True)
    assert lines[0].split() == ["prompt", "completion", "brief", "exact", "reward", "advantage"]
    assert lines[1].split() == ["?", "x", "0.500", "1.000", "1.500", "1.500"]
    assert lines[2].split() == ["y", "-", "-", "failed", "-1.500"]


@pytest.mark.parametrize("width", [40, 80, 160])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_no_line_is_wider_than_the_terminal_and_none_can_move_its_cursor(width: int, ascii_only: bool) -> None:
    texts = (HOSTILE, "x" * 10_000, "\u4e2d\u6587" * 500, "e" + "\u0301" * 5000, "")
    components = {f"component {index}": 0.5 for index in range(9)}
    answers = [(text, worth(float(index), **components)) for index, text in enumerate(texts)]
    for text in texts:
        for line in lines_of(table_of(record(group("p", text, *answers))), width, ascii_only=ascii_only):
            assert cell_len(line) <= width
            assert line.isprintable()
            assert line.isascii() or not ascii_only


def test_an_escaped_text_shows_what_is_in_it() -> None:
    assert escape(HOSTILE, arrows=True) == "a\\x1b[2Jb\\x9b31mc\\x07\\x00d\\u202ee\\ud800f\\u200bg\u21b5h\\ti"
    assert escape("a\nb", arrows=True, ascii_only=True) == "a\\nb"


def test_a_long_text_keeps_its_beginning_and_more_of_its_end() -> None:
    shown = fit("begin " + "x" * 1000 + " answer: 42", 30)
    assert cell_len(shown) == 30
    assert shown.startswith("begin")
    assert shown.endswith("answer: 42")


def test_a_run_shows_its_first_and_last_step_and_some_between() -> None:
    assert sorted(table_steps(4, 100)) == [1, 34, 67, 100]
    assert sorted(table_steps(1000, 3)) == [1, 2, 3]
    assert table_steps(0, 100) == frozenset()


def test_the_table_stays_above_the_live_area_and_fits_a_log() -> None:
    table = table_of(record(MIXED, LIVELY))
    log = Console(file=io.StringIO(), force_terminal=False, width=200, _environ={})
    Display(9, console=log).completions(table)
    assert isinstance(log.file, io.StringIO)
    assert log.file.getvalue().splitlines()[0] == table.title
    assert len(log.file.getvalue().splitlines()) == 6


def test_no_text_becomes_markup_in_markdown() -> None:
    nasty = "| <script> `x` *y* [z](w) | \n# title"
    table = table_of(record(group(nasty, nasty, (nasty, worth(1.0)), ("b", worth(0.0)))))
    lines = markdown_of(table).splitlines()
    assert len(lines) == 4
    assert all(len(re.findall(r"(?<!\\)\|", line)) == 5 for line in lines)
    assert not set("<>`*[]") & set("".join(lines))


def test_cells_are_the_whole_texts_up_to_a_limit_in_valid_unicode() -> None:
    columns, rows = cells_of(table_of(record(group("p", "q", ("x" * 9999, worth(1.0)), ("\ud800", worth(0.0))))))
    assert columns == ["prompt", "completion", "reward", "advantage"]
    assert rows[0][1] == "x" * 1000 + " ... " + "x" * 1000
    assert rows[1] == ["q", "\\ud800", 0.0, 0.0]


def test_one_component_with_a_weight_is_shown_beside_the_reward() -> None:
    row = {"rewards": {"exact": 1.0}, "reward": 0.5}
    assert component_names([row]) == ("exact",)
    assert component_names([{"rewards": {"exact": 0.5}, "reward": 0.5}]) == ()
    assert CompletionTable(1, 1, ([row],), ("exact",)).components == ("exact",)
