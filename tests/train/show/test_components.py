"""The components of a reward: in the live area, the lines of a log, the summary and `assay eval`."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from assay.train.evaluate.eval_command import Evaluated, evaluation_table
from assay.train.evaluate.evaluate import evaluation_row
from assay.train.show.display import Display
from assay.train.show.step_line import LONGEST, step_line
from assay.train.show.summary import summary_facts
from assay.types import Rollout, Score, StopReason

ANSWER = Rollout("p", (1, 1), (-0.5, -0.5), StopReason.EOS, -1, "")
TWO = {
    "reward_mean": 1.25,
    "reward_std": 0.5,
    "reward_exact_mean": 0.75,
    "reward_exact_std": 0.4,
    "reward_brief_mean": 0.5,
}
METRICS = {
    "length_mean": 123.4,
    "truncated_share": 0.125,
    "zero_variance_share": 1.0,
    "old_kl": 1.2e-4,
    "ref_kl": 0.0123,
    "entropy": 1.234,
    "clipped_share": 0.012,
}


def frame(display: Display, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=30, _environ={})
    with console.capture() as capture:
        console.print(display)
    return capture.get().rstrip("\n").split("\n")


def after_a_step(**metrics: float) -> Display:
    display = Display(9, console=Console(file=io.StringIO(), force_terminal=False, width=80, _environ={}))
    display.begin(1)
    display.finish_step(metrics, {})
    return display


@pytest.mark.parametrize("width", [30, 80])
def test_the_live_area_has_a_row_of_components(width: int) -> None:
    (row,) = [line for line in frame(after_a_step(**TWO), width) if line.startswith("components")]
    assert row.startswith("components  exact 0.750")
    assert len(row) <= width


def test_a_reward_of_one_component_has_no_row_of_its_own() -> None:
    display = after_a_step(reward_mean=0.5, reward_exact_mean=0.5)
    assert not [line for line in frame(display, 80) if "components" in line or "exact" in line]


def test_a_step_line_names_the_components_behind_the_reward() -> None:
    assert step_line(3, 9, {**TWO, **METRICS}, 3.0).startswith("step=3/9 reward=1.250 exact=0.750 brief=0.500 length=")


@pytest.mark.parametrize("components", [0, 1, 2, 3, 5, 40])
def test_a_step_line_is_short_whatever_the_reward_has(components: int) -> None:
    many = {f"reward_component number {index}_mean": -1.234e-5 for index in range(components)}
    line = step_line(99999, 99999, {"reward_mean": -1.234e-5, **many, **METRICS, "rollouts_unscored": 12}, 359999.0)
    assert len(line) <= LONGEST
    assert all("=" in item for item in line.split())
    assert {"step", "reward", "unscored", "eta", "length"} <= {item.partition("=")[0] for item in line.split()}


def test_every_line_of_a_run_has_the_same_numbers() -> None:
    small = dict.fromkeys(METRICS, 0.0)
    keys = [
        [item.partition("=")[0] for item in step_line(step, 100, {**TWO, **values}, eta).split()]
        for step, values, eta in ((1, METRICS, 3599.0), (100, small, None))
    ]
    assert keys[0] == keys[1]


def test_the_summary_shows_each_component_from_the_first_steps_to_the_last_and_on_held_out_problems() -> None:
    rows = [{**TWO, "step": step, "reward_exact_mean": step / 4} for step in (1, 2)]
    evaluations = [
        {"step": step, "prompts": 4, "reward_exact_greedy": step / 2, "reward_exact_sampled": 0.0, "pass_at_k": None}
        for step in (0, 2)
    ]
    facts = summary_facts(rows, evaluations)
    assert facts["  exact"] == "0.250 -> 0.500; held-out greedy 0.000 -> 1.000, sampled 0.000 -> 0.000"
    assert facts["  brief"] == "0.500 -> 0.500; held-out greedy - -> -, sampled - -> -"
    assert not [
        label
        for label in summary_facts([{"step": 1, "reward_mean": 1.0, "reward_a_mean": 1.0}], [])
        if "a" in label.split()
    ]


def test_an_evaluation_has_the_mean_of_each_component() -> None:
    scores = [[Score.of({"exact": value, "brief": 0.5}) for value in (1.0, 0.0, 1.0)], [Score.failed("no")] * 3]
    row = evaluation_row(0, [[ANSWER] * 3] * 2, scores, 1.0)
    assert {key: value for key, value in row.items() if "exact" in key or "brief" in key} == {
        "reward_brief_greedy": 0.5,
        "reward_brief_sampled": 0.5,
        "reward_exact_greedy": 1.0,
        "reward_exact_sampled": 0.5,
    }
    assert [line.split() for line in evaluation_table(Evaluated(row, "final", None)).splitlines()[-4:]] == [
        ["brief,", "greedy", "0.500"],
        ["brief,", "sampled", "0.500"],
        ["exact,", "greedy", "1.000"],
        ["exact,", "sampled", "0.500"],
    ]


def test_eval_shows_a_reward_of_one_component_once() -> None:
    row = evaluation_row(0, [[ANSWER] * 2], [[Score.of({"exact": 1.0}), Score.of({"exact": 0.5})]], 1.0)
    assert "exact" not in evaluation_table(Evaluated(row, "final", None))
