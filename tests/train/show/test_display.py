"""The stage log as it is read: the screen of a terminal, the lines of a log, the pace and the summary, its words."""

from __future__ import annotations

import io
import mmap
import re
from pathlib import Path
from typing import Any

import pytest
from fixtures.terminal_rows import shown_rows
from rich.console import Console

from assay.machine.terminal import human_bytes, human_seconds, printable
from assay.train.show.clock import memory_bytes
from assay.train.show.display import Display, describe_loss, describe_scores
from assay.train.show.plot import plot
from assay.train.show.summary import summary_facts

HOSTILE = "a\x1b[2Jb\x9b31mc\x07\x00d\u202ee\ud800f\u200bg\r\nh\ti"
METRICS = {
    "reward_mean": 0.412,
    "reward_std": 0.31,
    "loss": 0.012,
    "policy_loss": 0.011,
    "kl_loss": 0.001,
    "ratio_mean": 1.002,
    "ratio_min": 0.813,
    "ratio_max": 1.324,
    "clipped_share": 0.0125,
    "old_kl": 0.0041,
    "ref_kl": 0.0222,
    "entropy": 1.203,
    "length_mean": 8.14,
    "truncated_share": 0.031,
    "zero_variance_share": 0.125,
    "updates_skipped": 0,
}
TIMINGS = {"seconds": 0.5, "tokens_per_second": 12345.6}


class Clock:
    """Time as the test sets it."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def log_console() -> Console:
    return Console(file=io.StringIO(), force_terminal=False, width=80, _environ={})


def terminal(width: int = 80, height: int = 30, **environment: str) -> Console:
    return Console(
        file=io.StringIO(),
        force_terminal=True,
        width=width,
        height=height,
        _environ={"TERM": "xterm-256color", **environment},
    )


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def screen(console: Console) -> list[str]:
    return shown_rows(written(console))


def frame(display: Display, width: int = 80, height: int = 30, ascii_only: bool = False) -> list[str]:
    """The live area as it would be drawn now."""
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii") if ascii_only else io.StringIO()
    console = Console(file=file, width=width, height=height, _environ={})
    with console.capture() as capture:
        console.print(display)
    return capture.get().rstrip("\n").split("\n")


def run_step(display: Display, step: int, **changes: Any) -> None:
    display.begin(step)
    display.stage("start", 0.002, 300_000_000)
    display.stage("generated", 1.25, 312_000_000, "384 rollouts")
    display.stage("scored", 0.02, 312_000_000, describe_scores(0.412, 0.31))
    display.stage("loss", 0.33, 340_000_000, describe_loss(0.011, 0.001, 0.012))
    display.stage("stepped", 0.11, 340_000_000)
    display.finish_step({**METRICS, "step": step, **changes}, TIMINGS)


REQUIRED = (
    "reward 0.412",
    "ratio 1.002 (0.813..1.324)",
    "clipped 1.2%",
    "KL 0.004 ref 0.022",
    "entropy 1.203",
    "length 8.1",
    "truncated 3.1%",
    "zero-variance 12.5%",
    "12,346 tok/s",
)


@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_live_area_shows_every_quantity_and_never_wraps(width: int) -> None:
    display = Display(80, console=log_console())
    run_step(display, 1)
    lines = frame(display, width)
    for quantity in REQUIRED:
        assert any(quantity in line for line in lines), quantity
    assert len(lines) == 14
    assert max(map(len, lines)) == min(width, 78)
    stages = [" ".join(line.split()) for line in lines[1:6]]
    assert stages == [
        "\u2713 1 start 2 ms 300 MB",
        "\u2713 2 generated 384 rollouts 1.25 s 312 MB",
        "\u2713 3 scored 0.412 +- 0.310 20 ms 312 MB",
        "\u2713 4 loss 0.012 policy 0.011 kl 0.001 0.33 s 340 MB",
        "\u2713 5 stepped 0.11 s 340 MB",
    ]


def test_a_terminal_too_narrow_cuts_lines_instead_of_wrapping_them() -> None:
    display = Display(80, console=log_console())
    run_step(display, 1)
    lines = frame(display, 30)
    assert len(lines) == 14
    assert max(map(len, lines)) == 30


def test_a_short_terminal_loses_the_plot_and_keeps_the_numbers() -> None:
    display = Display(80, console=log_console())
    run_step(display, 1)
    assert len(frame(display, height=15)) == 10
    assert "zero-variance 12.5%" in frame(display, height=15)[-1]


def test_a_terminal_without_unicode_gets_ascii() -> None:
    display = Display(80, console=log_console())
    run_step(display, 1)
    display.begin(2)
    display.stage("start", 0.1, 1)
    lines = frame(display, ascii_only=True)
    assert all(line.isascii() for line in lines)
    assert lines[1].startswith("* 1 start")
    assert lines[2].startswith("> 2 generated")


def test_the_stage_under_way_shows_its_progress_and_its_running_time() -> None:
    clock = Clock()
    display = Display(80, console=log_console(), clock=clock)
    run_step(display, 1)
    clock.now = 100.0
    display.begin(2)
    display.stage("start", 0.1, 300_000_000)
    clock.now = 103.5
    display.progress(37, 256, "tokens")
    lines = [" ".join(line.split()) for line in frame(display)]
    assert lines[1] == "\u2713 1 start 0.10 s 300 MB"
    assert lines[2] == "\u25b8 2 generated tokens 37/256 3.50 s"
    assert lines[3] == "3 scored 0.412 +- 0.310 20 ms 312 MB"  # still that of step 1, and not ticked
    assert lines[6].startswith("\u2500 after step 1 ")
    display.stage("generated", 3.6, 312_000_000)
    assert "tokens" not in "".join(frame(display))


def test_progress_outside_of_a_step_stands_in_the_first_line() -> None:
    display = Display(80, console=log_console())
    assert frame(display)[0].startswith("step 0/80 ")
    display.progress(12, 40, "warm start")
    assert frame(display)[0].startswith("warm start 12/40 ")
    assert len(frame(display)) == 1
    display.begin(1)
    assert frame(display)[0].startswith("step 1/80 ")


def test_the_bar_is_as_full_as_the_run_is_done() -> None:
    display = Display(4, steps_before=2, console=log_console())
    run_step(display, 3)
    bar = [character for character in frame(display)[0] if character in "\u2501\u2500"]
    assert bar.count("\u2501") == len(bar) * 3 // 4
    assert bar == sorted(bar, key="\u2501\u2500".index)
    assert frame(display)[-1].strip() == "\u25143"  # the plot of a resumed run starts at its first step here


def test_a_stage_that_ends_once_an_update_is_summed_over_its_step_only() -> None:
    display = Display(80, console=log_console())
    run_step(display, 1)
    display.begin(2)
    display.stage("loss", 1.0, 500_000_000, "first")
    display.stage("stepped", 0.5, 500_000_000)
    display.stage("loss", 2.0, 400_000_000, "second")
    assert " ".join(frame(display)[4].split()) == "\u2713 4 loss second 3.00 s 500 MB"


def test_skipped_updates_are_shown() -> None:
    display = Display(80, console=log_console())
    run_step(display, 1, updates_skipped=2)
    assert "updates skipped: 2" in frame(display)[6]
    assert "skipped=2" in written(display.console).splitlines()[-1]
    run_step(display, 2)
    assert "skipped" not in "".join(frame(display))
    assert "skipped" not in written(display.console).splitlines()[-1]


def test_a_quantity_that_does_not_exist_is_a_dash() -> None:
    display = Display(2, console=log_console())
    display.begin(1)
    display.finish_step(dict.fromkeys(METRICS), {"seconds": None, "tokens_per_second": None})
    lines = frame(display)
    assert written(display.console).splitlines()[-1].startswith("step=1/2 reward=- length=- truncated=- ")
    for quantity in ("reward - ", "ratio - (-..-)", "KL - ", "- tok/s"):
        assert any(quantity in line for line in lines), quantity
    assert len(lines) == 10


def test_the_first_step_of_a_log_has_its_stages_and_every_step_one_line() -> None:
    display = Display(80, console=log_console())
    with display:
        run_step(display, 1)
        run_step(display, 2)
    lines = written(display.console).splitlines()
    assert lines[:6] == [
        "step 1/80",
        "  1 start        2 ms   300 MB",
        "  2 generated  1.25 s   312 MB  384 rollouts",
        "  3 scored      20 ms   312 MB  0.412 +- 0.310",
        "  4 loss       0.33 s   340 MB  0.012 policy 0.011 kl 0.001",
        "  5 stepped    0.11 s   340 MB",
    ]
    assert [line.split()[:2] for line in lines[6:]] == [[f"step={step}/80", "reward=0.412"] for step in (1, 2)]
    assert written(display.console).isascii()
    assert "\x1b" not in written(display.console)


def test_a_run_resumed_inside_a_step_shows_the_stages_it_saw() -> None:
    display = Display(4, steps_before=2, console=log_console())
    display.begin(3)
    display.stage("loss", 0.33, 340_000_000)
    display.stage("stepped", 0.11, 340_000_000)
    display.finish_step(METRICS, TIMINGS)
    run_step(display, 4)
    lines = written(display.console).splitlines()
    assert lines[1:3] == ["  4 loss       0.33 s   340 MB", "  5 stepped    0.11 s   340 MB"]
    assert [line.split()[0] for line in lines[3:]] == ["step=3/4", "step=4/4"]


def test_the_eta_counts_down_inside_a_step_but_not_past_the_steps_after_it() -> None:
    clock = Clock()
    display = Display(3, console=log_console(), clock=clock)
    display.begin(1)
    assert frame(display)[0].endswith("ETA -")
    clock.now = 10.0
    display.finish_step(METRICS, TIMINGS)
    clock.now = 14.0
    assert frame(display)[0].endswith("14.0 s  ETA 16.0 s")
    clock.now = 50.0
    assert frame(display)[0].endswith("50.0 s  ETA 10.0 s")


def test_an_event_is_one_clean_line_in_a_log_and_above_the_live_area() -> None:
    log, live = log_console(), terminal()
    for console in (log, live):
        with Display(5, console=console) as display:
            run_step(display, 1)
            display.say(f"[red]{HOSTILE}[/red]")
    line = "[red]a[2Jb31mcdefg  h i[/red]"
    assert line in written(log).splitlines()
    assert screen(live)[0] == line
    assert screen(live)[1].startswith("step 1/5 ")


def test_hostile_text_is_clean_wherever_it_comes_in() -> None:
    console = log_console()
    display = Display(1, console=console, clock=(clock := Clock()))
    display.begin(1)
    display.stage("start", 0.1, 1, HOSTILE)
    clock.now = 60.0
    display.progress(1, 2, HOSTILE)
    assert "".join(frame(display)).count("a[2Jb31mcdefg  h i") == 2
    display.finish_step(METRICS, TIMINGS)
    display.summary(Path("runs") / HOSTILE, [{**METRICS, "step": 1}], [], 1.0)
    assert written(console).count("a[2Jb31mcdefg  h i") == 6
    assert not set(written(console)) & set("\x1b\x9b\x07\x00\u202e\ud800\u200b\r\t")


def test_the_terminal_shows_one_live_area_however_many_steps() -> None:
    console = terminal()
    with Display(40, console=console) as display:
        for step in range(1, 41):
            run_step(display, step)
            display._live.refresh()  # type: ignore[union-attr]
    lines = screen(console)
    assert len(lines) == 14
    assert lines[0].startswith("step 40/40 ")
    assert lines[6].startswith("\u2500 after step 40 ")


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_error_gives_the_terminal_back_with_the_last_state_on_it(error: type[BaseException]) -> None:
    console = terminal()
    display = Display(5, console=console)

    def fail() -> None:
        with display:
            run_step(display, 1)
            display.begin(2)
            display.stage("start", 0.1, 1)
            raise error

    with pytest.raises(error):
        fail()
    text = written(console)
    assert text.count("\x1b[?25l") == 1
    assert text.count("\x1b[?25h") == 1
    assert text.index("\x1b[?25l") < text.index("\x1b[?25h")
    assert screen(console)[2].startswith("\u25b8 2 generated")
    before = len(text)
    display.say("after")
    assert written(console)[before:] == "after\n"  # nothing is redrawn any more


@pytest.mark.parametrize("environment", [{"TERM": "dumb"}, {"TERM": "unknown"}])
def test_a_dumb_terminal_gets_the_lines_of_a_log(environment: dict[str, str]) -> None:
    console = terminal(**environment)
    with Display(5, console=console) as display:
        run_step(display, 1)
    assert "\x1b" not in written(console)
    assert written(console).splitlines()[5] == "  5 stepped    0.11 s   340 MB"


def test_no_color_is_respected() -> None:
    colour = re.compile(r"\x1b\[[0-9;]*3[0-7]m")
    plain, colourful = terminal(NO_COLOR="1"), terminal()
    for console in (plain, colourful):
        with Display(5, console=console) as display:
            run_step(display, 1)
    assert not colour.search(written(plain))
    assert colour.search(written(colourful))


def test_chatter_goes_to_stderr_and_a_log_stays_a_log_when_colour_is_forced(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with Display(5) as display:
        run_step(display, 1)
        display.say("checkpoint saved")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "checkpoint saved" in captured.err
    assert "  5 stepped    0.11 s   340 MB" in captured.err
    assert "\x1b[?25l" not in captured.err


def test_what_is_printed_to_a_piped_stdout_arrives_there(capsys: pytest.CaptureFixture[str]) -> None:
    console = terminal()
    with Display(5, console=console):
        print("machine output")
    assert capsys.readouterr().out == "machine output\n"
    assert "machine output" not in written(console)


def test_the_summary_takes_the_place_of_the_live_area() -> None:
    console = terminal(width=60)
    with Display(1, console=console) as display:
        run_step(display, 1)
        display.say("checkpoint saved")
        display.summary(Path("runs/sort"), [{**METRICS, "step": 1}], [], 1.0)
    lines = screen(console)
    assert lines[:3] == ["checkpoint saved", "", "finished: 1 of 1 steps, 1.00 s, 12,346 tokens/s"]
    assert not any("generated" in line for line in lines)
    assert lines[-1] == "go on         assay train --resume runs/sort --set run.steps=2"


# ---------------------------------------------------------------- the log of a whole run


def log_step(display: Display, step: int, seconds: float = 0.5, tokens_per_second: float = 12345.6) -> None:
    display.begin(step)
    display.finish_step({"reward_mean": 0.5}, {"seconds": seconds, "tokens_per_second": tokens_per_second})


@pytest.mark.parametrize(("steps", "before"), [(1000, 0), (1000, 37), (59, 0), (60, 0), (117, 0)])
def test_a_log_has_at_most_sixty_step_lines_with_the_first_and_the_last(steps: int, before: int) -> None:
    display = Display(steps, before, console=log_console())
    for step in range(before + 1, steps + 1):
        log_step(display, step)
    shown = [line.split()[0] for line in written(display.console).splitlines() if "eta=" in line]
    assert shown[0] == f"step={before + 1}/{steps}"
    assert shown[-1] == f"step={steps}/{steps}"
    assert 30 <= len(shown) <= 60
    assert len(written(display.console).splitlines()) == len(shown) + 1


def test_a_short_run_has_a_line_for_every_step() -> None:
    display = Display(58, console=log_console())
    for step in range(1, 59):
        log_step(display, step)
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
        log_step(display, step)
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
    assert lines[-4:] == [
        "run           runs/my sort",
        "read          assay show 'runs/my sort'",
        "page          assay report 'runs/my sort'",
        "go on         assay train --resume 'runs/my sort' --set run.steps=40",
    ]


def test_the_summary_of_a_run_that_stopped_early_says_so() -> None:
    console = log_console()
    display = Display(80, steps_before=1, console=console)
    log_step(display, 2)
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
        log_step(display, 1, seconds, speed)
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


# ---------------------------------------------------------------- words: clean text, units, memory


def test_printable_keeps_ordinary_text() -> None:
    assert printable("gr\u00fcn \u4e2d\u6587 [bold] 1 + 1 = 2") == "gr\u00fcn \u4e2d\u6587 [bold] 1 + 1 = 2"
    assert printable("".join(map(chr, [*range(32), *range(127, 160)]))).strip() == ""


def test_bytes_and_seconds_change_their_unit_where_they_round_up() -> None:
    assert [human_bytes(count) for count in (312_499_999, 999_499_999, 999_500_000)] == ["312 MB", "999 MB", "1.0 GB"]
    seconds = (0.0994, 0.0995, 9.99, 9.996, 59.94, 59.96, 3599.4, 3599.6, 90_000)
    assert [human_seconds(value) for value in seconds] == [
        *("99 ms", "0.10 s", "9.99 s", "10.0 s", "59.9 s", "1m00s", "59m59s", "1h00m", "25h00m")
    ]


def test_memory_is_what_the_process_holds_and_its_peak_where_the_kernel_does_not_tell() -> None:
    before = memory_bytes()
    with mmap.mmap(-1, 64_000_000) as held:  # pages of its own: a heap may have room left from before
        held.write(b"x" * 64_000_000)
        assert 50_000_000 < memory_bytes() - before < 200_000_000
    peak = memory_bytes(Path("/nowhere/statm"))
    assert 0.9 * memory_bytes() < peak < 100 * memory_bytes()
