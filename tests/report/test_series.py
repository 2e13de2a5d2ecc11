"""Long curves are cut into stretches without losing an extreme."""

import numpy as np

from assay.report.curves import thinned
from assay.report.series import MOST_POINTS, Stretches


def test_a_short_run_keeps_every_step():
    steps_N = np.arange(1.0, 6.0)
    pieces = Stretches.of(steps_N)
    assert pieces.steps == [1, 2, 3, 4, 5]
    assert pieces.longest == 1
    assert pieces.means(np.array([1.0, np.nan, 3.0, np.inf, 5.0])) == [1.0, None, 3.0, None, 5.0]


def test_a_long_run_is_thinned_and_a_single_spike_stays():
    steps_N, values_N = np.arange(1.0, 5001.0), np.zeros(5000)
    values_N[3210] = 7.0
    pieces = Stretches.of(steps_N)
    assert len(pieces.steps) == MOST_POINTS
    assert pieces.steps[-1] == 5000
    assert max(pieces.highs(values_N)) == 7.0
    assert 0 < max(pieces.means(values_N)) < 7.0
    assert min(pieces.lows(values_N)) == 0.0


def test_the_stretches_hold_every_step_once():
    pieces = Stretches.of(np.arange(1.0, 1001.0), most=7)
    assert pieces.bounds[0] == 0
    assert pieces.bounds[-1] == 1000
    assert sum(np.diff(pieces.bounds)) == 1000


def test_no_steps_are_no_stretches():
    pieces = Stretches.of(np.array([]))
    assert pieces.steps == []
    assert pieces.means(np.array([])) == []


def test_a_metric_of_every_other_step_is_a_line_and_a_missing_number_is_a_gap():
    pieces = Stretches.of(np.arange(1.0, 7.0))
    sparse = thinned(np.array([1.0, np.nan, 2.0, np.nan, 3.0, np.nan]), pieces, "sparse")
    assert (sparse.steps, sparse.values) == ([1, 3, 5], [1.0, 2.0, 3.0])
    gap = thinned(np.array([1.0, 2.0, np.nan, 4.0, 5.0, 6.0]), pieces, "gap")
    assert gap.values == [1.0, 2.0, None, 4.0, 5.0, 6.0]
