"""Curves as SVG: numbers of the record become places in a drawing."""

import re
import xml.etree.ElementTree as ElementTree

import pytest

from assay.report.chart import BOTTOM, LEFT, RIGHT, TOP, Chart, Mark, Panel, Series, draw, label, nice_ticks, standalone


def chart(*series, **settings):
    return Chart("reward", "Reward", [Panel(series, **settings)])


def line_of(svg):
    (path,) = re.findall(r'<path class="line s0" d="([^"]*)"', svg)
    return path


def test_a_line_goes_from_corner_to_corner():
    svg = draw(chart(Series("a", [0, 10], [0.0, 1.0]), floor=0.0, ceiling=1.0))
    assert line_of(svg) == f"M{LEFT} {BOTTOM}L{RIGHT} {TOP}"


def test_a_missing_number_is_a_gap_and_never_a_zero():
    svg = draw(chart(Series("a", [0, 1, 2, 3, 4], [1.0, 1.0, None, 0.0, float("nan")]), floor=0.0, ceiling=1.0))
    path = line_of(svg)
    assert path.count("M") == 2
    assert path.endswith("h2"), "a single point between gaps is a short dash"


def test_areas_stand_on_each_other():
    svg = draw(chart(Series("a", [0, 1], [0.25, 0.25], look="area"), Series("b", [0, 1], [0.75, 0.75], look="area")))
    lower, upper = re.findall(r'<path class="area s[01]" d="([^"]*)"', svg)
    places = [sorted({float(y) for y in re.findall(r" ([0-9.]+)", path)}) for path in (lower, upper)]
    assert places[0][0] == places[1][1], "the second begins where the first ends"


def test_a_logarithmic_axis_leaves_out_what_it_cannot_show():
    svg = draw(chart(Series("a", [0, 1, 2, 3], [1e-3, 1.0, 0.0, 1e3]), is_log=True))
    assert line_of(svg).count("M") == 2
    assert ">1<" in svg


def test_an_infinite_number_does_not_stretch_the_axis():
    svg = draw(chart(Series("a", [0, 1, 2], [0.0, float("inf"), 1.0])))
    assert "inf" not in svg
    assert "nan" not in svg


@pytest.mark.parametrize("values", [[], [None], [float("nan"), None]])
def test_a_chart_without_a_number_says_so(values):
    empty = chart(Series("a", list(range(len(values))), values))
    assert empty.is_empty
    assert "not recorded" in draw(empty)


@pytest.mark.parametrize("values", [[0.0], [5.0, 5.0], [1e300, -1e300], [1e-310, 2e-310], [-3.0, -2.0]])
def test_every_drawing_is_sound_whatever_the_numbers(values):
    svg = draw(chart(Series("a", list(range(len(values))), values)))
    ElementTree.fromstring(svg)
    assert not re.search(r"nan|inf(?!o)", svg)


def test_marks_outside_of_the_axis_are_left_out_and_the_others_say_what_they_are():
    marks = [Mark("checkpoint", 5.0, "checkpoint"), Mark("finding", 99.0, "LOSS01")]
    svg = draw(chart(Series("a", [0, 10], [0.0, 1.0])), marks=marks)
    assert "step 5: checkpoint" in svg
    assert "LOSS01" not in svg


def test_names_from_a_record_are_escaped():
    svg = standalone(Chart("a", "<b>", [Panel([Series('"><script>', [0, 1], [0.0, 1.0])])]))
    ElementTree.fromstring(svg)
    assert "<script" not in svg
    assert "<b>" not in svg


def test_a_file_of_its_own_has_title_legend_and_colours_and_equal_numbers_give_equal_bytes():
    one = standalone(chart(Series("mean", [0, 1], [0.0, 1.0])))
    root = ElementTree.fromstring(one)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert {"Reward", "mean"} <= {text.text for text in root.iter("{http://www.w3.org/2000/svg}text")}
    assert "<style>" in one
    assert one == standalone(chart(Series("mean", [0, 1], [0.0, 1.0])))


@pytest.mark.parametrize(
    ("low", "high", "count", "ticks"),
    [(0, 1, 4, [0, 0.5, 1.0]), (0, 20, 4, [0, 5, 10, 15, 20]), (-1, 1, 2, [-1, 0, 1]), (3, 3, 4, [3])],
)
def test_ticks_are_round_numbers_inside_the_ends(low, high, count, ticks):
    assert nice_ticks(low, high, count) == pytest.approx(ticks)


def test_labels_are_short():
    assert [label(value) for value in (0, 0.5, 1234, 12345, 2.5e6, 1e-9, -0.25)] == [
        "0", "0.5", "1234", "12.35k", "2.5M", "1e-9", "-0.25",
    ]  # fmt: skip
