"""The curves of both contenders as an SVG: every seed thin, the mean thick. The same curves give the same bytes."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from assay.config import ConfigError
from assay.machine import durable
from assay.report.chart import Chart, Panel, Series, side_by_side
from benchmarks.curves import Curve

CONTENDERS = ("assay", "TRL 1.16")
MEASURES = {"pass_at_1": "held-out pass@1, sampled", "pass_greedy": "held-out pass, greedy"}


def draw(path: Path, title: str, ours: Sequence[Curve], peer: Sequence[Curve]) -> None:
    charts = [
        Chart(measure, words, [_panel(measure, ours, peer)], across="training steps")
        for measure, words in MEASURES.items()
    ]
    try:
        durable.replace_file(path, side_by_side(title, charts).encode())
    except OSError as error:
        raise ConfigError(f"{path} could not be written: {durable.reason(error)}") from error


def _panel(measure: str, ours: Sequence[Curve], peer: Sequence[Curve]) -> Panel:
    series = []
    for colour, (name, curves) in enumerate(zip(CONTENDERS, (ours, peer), strict=True)):
        means = [statistics.fmean(scores) for scores in zip(*(curve.scores(measure) for curve in curves), strict=True)]
        series.append(Series(f"{name}, mean", curves[0].steps(), means, colour=colour))
        series += [Series("", curve.steps(), curve.scores(measure), look="thin", colour=colour) for curve in curves]
    return Panel(series)
