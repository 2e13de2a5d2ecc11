"""The reward plot, column by column."""

from __future__ import annotations

import pytest

from assay.machine.terminal import number
from assay.train.show.plot import plot


def test_a_rising_series_rises_from_left_to_right() -> None:
    # 4 values over 2 rows = 16 eighths: 1 + round(15 * v / 3) -> 1, 6, 11, 16
    assert plot([0.0, 1.0, 2.0, 3.0], width=40, height=2) == [
        "3.000 \u2524  \u2583\u2588",
        "0.000 \u2524\u2581\u2586\u2588\u2588",
        "      \u25140\u2500\u25003",
    ]


def test_values_that_do_not_exist_leave_a_gap() -> None:
    gap = plot([1.0, None, float("nan"), float("inf"), 2.0], width=40, height=2)
    assert gap[:2] == ["2.000 \u2524    \u2588", "1.000 \u2524\u2581   \u2588"]
    assert plot([None, float("nan")], width=40, height=2) == plot([], width=40, height=2) == []


def test_one_value_and_equal_values_are_a_flat_line_at_the_bottom_with_one_label() -> None:
    assert plot([0.5], width=40, height=2, first=7) == ["      \u2502", "0.500 \u2524\u2581", "      \u25147"]
    assert plot([0.5] * 3, width=40, height=2) == [
        "      \u2502",
        "0.500 \u2524\u2581\u2581\u2581",
        "      \u25140\u25002",
    ]


def test_more_values_than_columns_are_averaged() -> None:
    # width 10 = 5 of a label, 2 of the axis, 3 columns of two values each: means 1, 2, 3
    lines = plot([0.0, 2.0, 1.0, 3.0, 2.0, 4.0], width=10, height=2, first=1)
    assert lines == ["3.000 \u2524 \u2581\u2588", "1.000 \u2524\u2581\u2588\u2588", "      \u25141\u25006"]


def test_a_mean_ignores_what_is_missing_in_its_stretch() -> None:
    lines = plot([1.0, None, 2.0, 2.0, float("nan"), 3.0], width=10, height=2)
    assert lines[:2] == ["3.000 \u2524 \u2581\u2588", "1.000 \u2524\u2581\u2588\u2588"]


@pytest.mark.parametrize(
    ("width", "end"), [(12, "\u2514\u2500\u2500\u2500\u2500"), (60, "\u2500100000"), (78, "\u2500100000")]
)
def test_a_huge_series_fits_the_width(width: int, end: str) -> None:
    lines = plot([step / 1000 for step in range(100_000)], width, 6, first=1)
    assert len(lines) == 7
    assert max(map(len, lines)) == width
    assert lines[-1].endswith(end)


def test_the_axis_of_two_values_tells_both_steps_apart() -> None:
    assert plot([1.0, 2.0], width=40, height=2, first=10)[-1] == "      \u251410\u250011"


def test_extreme_values_do_not_overflow() -> None:
    lines = plot([-1.7e308, 0.0, 1.7e308], width=40, height=2)
    assert lines[:2] == [" 1.7e308 \u2524 \u2581\u2588", "-1.7e308 \u2524\u2581\u2588\u2588"]
    assert plot([5e-324, 0.0], width=40, height=2)  # their half is 0


def test_a_plot_of_one_row_is_refused() -> None:
    with pytest.raises(ValueError, match="2 or more"):
        plot([1.0], width=40, height=1)


def test_numbers_are_short_and_keep_their_scale() -> None:
    written_as = {0.0: "0.000", 0.5: "0.500", -0.0004: "-4.0e-4", 999.9: "999.900", 12345.0: "1.2e4", 1e-12: "1.0e-12"}
    assert {value: number(value) for value in written_as} == written_as
    assert number(None) == "-"
    assert number(float("nan")) == "nan"
