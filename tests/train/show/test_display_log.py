"""The stage log of a whole run as a log file keeps it: how many lines, the pace, the summary."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from assay.train.show.display import Display
from assay.train.show.plot import plot
from assay.train.show.summary import summary_facts


class Clock:
    """Time as the test sets it."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def log_console() -> Console:
    return Console(file=io.StringIO(), force_terminal=False, width=80, _environ={})


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def run_step(display: Display, step: int, seconds: float = 0.5, tokens_per_second: float = 12345.6) -> None:
    display.begin(step)
    display.finish_step({"reward_mean": 0.5}, {"seconds": seconds, "tokens_per_second": tokens_per_second})


@pytest.mark.parametrize(("steps", "before"), [(1000, 0), (1000, 37), (59, 0), (60, 0), (117, 0)])
def test_a_log_has_at_most_sixty_step_lines_with_the_first_and_the_last(steps: int, before: int) -> None:
    display = Display(steps, before, console=log_console())
    for step in range(before + 1, steps + 1):
        run_step(display, step)
    shown = [line.split()[0] for line in written(display.console).splitlines() if "eta=" in line]
    assert shown[0] == f"step={before + 1}/{steps}"
    assert shown[-1] == f"step={steps}/{steps}"
    assert 30 <= len(shown) <= 60
    assert len(written(display.console).splitlines()) == len(shown) + 1


def test_a_short_run_has_a_line_for_every_step() -> None:
    display = Display(58, console=log_console())
    for step in range(1, 59):
        run_step(display, step)
    assert written(display.console).count("eta=") == 58


def test_the_eta_is_the_pace_of_the_steps_times_those_left() -> None:
    clock = Clock()
    display = Display(5, console=log_console(), clock=clock)
    etas = []
    clock.now = 1000.0  # a long warm start is no part of the pace
    for step in range(1, 6):
        display.begin(step)
        clock.now += 10.0
        display.finish_step({}, {})
        etas.append(re.findall(r"eta=(\S+)", written(display.console))[-1])
    assert etas == ["40.0s", "30.0s", "20.0s", "10.0s", "-"]


def test_a_long_operation_gives_a_log_ever_rarer_signs_of_life() -> None:
    clock = Clock()
    display = Display(5, console=log_console(), clock=clock)
    for second in range(1000):
        clock.now = float(second)
        display.progress(second, 1000, "warm start")
    # silent for 10 s, then for 20, 40, 80, ... more
    assert written(display.console).splitlines() == [
        f"  ... warm start {second}/1000" for second in (10, 30, 70, 150, 310, 630)
    ]


def test_a_megabyte_of_text_is_cut() -> None:
    console = log_console()
    Display(1, console=console).say("x" * 1_000_000)
    assert written(console) == "x" * 397 + "...\n"


def test_stages_out_of_place_are_refused() -> None:
    display = Display(5, console=log_console())
    with pytest.raises(ValueError, match="before any step began"):
        display.stage("start", 0.1, 1)
    with pytest.raises(ValueError, match="before any began"):
        display.finish_step({}, {})
    display.begin(1)
    with pytest.raises(ValueError, match="rewarded"):
        display.stage("rewarded", 0.1, 1)


def rows(count: int) -> list[dict[str, Any]]:
    """Rewards 1, 2, ... and zero-variance shares 0.01, 0.02, ..."""
    return [
        {"step": step, "reward_mean": float(step), "zero_variance_share": step / 100} for step in range(1, count + 1)
    ]


def test_the_summary_covers_the_whole_run() -> None:
    console = log_console()
    display = Display(20, console=console)
    for step in range(1, 21):
        run_step(display, step)
    before = len(written(console))
    evaluations = [
        {"step": 0, "prompts": 32, "reward_greedy": 0.04, "reward_sampled": 0.03},
        {"step": 10, "reward_greedy": 0.5, "reward_sampled": 0.4},
        {
            "step": 20,
            "prompts": 32,
            "reward_greedy": 0.79,
            "reward_sampled": 0.7,
            "reward_greedy_std_error": 0.07,
            "reward_sampled_std_error": 0.05,
        },
    ]
    table = rows(20)
    table[3]["updates_skipped"] = 2
    table[9]["updates_skipped"] = 1
    display.summary(Path("runs/my sort"), table, evaluations, 72.0)
    lines = written(console)[before:].splitlines()
    assert lines[1:6] == [
        "finished: 20 of 20 steps, 1m12s, 12,346 tokens/s",
        "reward        3.000 -> 18.000   (first and last 5 steps)",
        "held-out      greedy 0.040 -> 0.790 +- 0.070, sampled 0.030 -> 0.700 +- 0.050 (n = 32, +- std error)",
        "zero-variance 18.0% of the groups   (last 5 steps)",
        "skipped       3 of the updates: not finite, never applied",
    ]
    assert lines[6:13] == plot([row["reward_mean"] for row in table], 78, 6, first=1)
    assert lines[-3:] == [
        "run           runs/my sort",
        "read          assay show 'runs/my sort'",
        "go on         assay train --resume 'runs/my sort' --set run.steps=40",
    ]


def test_the_summary_of_a_run_that_stopped_early_says_so() -> None:
    console = log_console()
    display = Display(80, steps_before=1, console=console)
    run_step(display, 2)
    evaluation = {"prompts": 1, "reward_greedy": 0.04, "reward_sampled": None}
    display.summary(Path("runs/sort"), rows(2), [evaluation], 1.0)
    text = written(console)
    assert "stopped: 2 of 80 steps, 1 of them before, 1.00 s" in text
    assert "reward        1.000 -> 2.000   (first and last 1 step)" in text
    assert "held-out      greedy 0.040, sampled - (n = 1)\n" in text
    assert "skipped" not in text


def test_the_summary_of_a_run_without_a_step_still_ends() -> None:
    console = log_console()
    Display(80, console=console).summary(Path("runs/sort"), [], [], 0.5)
    assert "stopped: 0 of 80 steps, 0.50 s\n" in written(console)
    assert "reward        - -> -" in written(console)
    assert "held-out" not in written(console)


def test_tokens_a_second_of_the_run_are_all_tokens_over_all_seconds() -> None:
    console = log_console()
    display = Display(2, console=console)
    for seconds, speed in ((1.0, 100.0), (3.0, 500.0)):  # 100 + 1500 tokens in 4 seconds
        run_step(display, 1, seconds, speed)
    display.summary(Path("runs/sort"), rows(2), [], 9.0)
    assert "9.00 s, 400 tokens/s" in written(console)


def test_the_summary_says_what_was_checked_and_what_nobody_should_have_to_find_out_alone() -> None:
    exact = {"first_ratio_max_deviation": 0.0, "mismatch_max": 2e-6, "updates_applied": 0, "truncated_share": 0.5}
    table = [
        {"step": step, **exact, "zero_variance_share": 1.0, "rollouts_unscored": 3, "rollouts_scored": 5}
        for step in (1, 2)
    ]
    facts = summary_facts(table, [])
    assert facts["checked"] == "first ratio of every step exactly 1; sampler = trainer within 2.0e-6"
    assert facts["unscored"].startswith("6 of 16 rollouts")
    assert facts["no update"].startswith("the weights never moved")
    assert facts["truncated"] == "50.0% of the completions hit rollout.max_tokens"
    off = {**exact, "first_ratio_max_deviation": 0.25, "updates_applied": 1, "truncated_share": 0.0}
    facts = summary_facts([{"step": 1, **off, "zero_variance_share": 0.95, "reward_mean": 1.0}], [])
    assert facts["checked"].startswith("first ratio of every step 1 within 0.250;")
    assert facts["no signal"] == "nearly every group has equal rewards (mean 1.000)"
    assert not facts.keys() & {"no update", "unscored", "truncated", "skipped"}
