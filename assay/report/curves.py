"""The twelve curves of a run, and what is marked on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from assay.doctor.evidence import Curves
from assay.record.metrics import METRICS, component_means
from assay.report.chart import Chart, Mark, Panel, Series, domain_of, finite
from assay.report.opened import Opened
from assay.report.sampled_steps import SampledStep
from assay.report.series import Numbers, Stretches, rounded, rounded_all

MOST_COMPONENTS = 4
MOST_MARKS = 40  # of one kind
WIDE = 50.0  # largest over smallest: beyond it an axis is logarithmic
LOGARITHMIC = ("kl", "mismatch", "gradient")
_EVENTS = {
    "checkpoint": ("checkpoint", "checkpoint"),
    "resume": ("resume", "resumed"),
    "changed": ("changed", "a setting was changed"),
    "best": ("checkpoint", "best weights so far"),
}


def charts_of(run: Opened, sampled: Sequence[SampledStep]) -> list[Chart]:
    curves = run.curves
    pieces = Stretches.of(curves.steps)
    lines = _Lines(curves, pieces)
    return [
        _reward(lines),
        _heldout(curves),
        _groups(lines, sampled),
        lines.chart("entropy", "Entropy", ["entropy"], floor=0.0),
        lines.chart("kl", "KL", ["ref_kl", "old_kl"], {"ref_kl": "to the reference", "old_kl": "old to new"}),
        lines.chart(
            "mismatch",
            "Sampler against trainer",
            ["mismatch_mean", "mismatch_max"],
            {"mismatch_mean": "mean |old - sampler|", "mismatch_max": "largest"},
        ),
        _clip(lines, sampled),
        _gradient(lines),
        _lengths(lines),
        lines.chart("loss", "Loss", ["loss", "kl_loss"]),
        lines.chart("rate", "Learning rate", ["learning_rate"], floor=0.0),
        _speed(curves),
    ]


def domain(charts: Sequence[Chart]) -> tuple[float, float]:
    return domain_of(series for chart in charts for _, series in chart.series)


class _Lines:
    """Metrics as series: the mean of each stretch, with a band from its lowest to its highest."""

    def __init__(self, curves: Curves, pieces: Stretches) -> None:
        self.curves, self.pieces = curves, pieces

    def line(self, metric: str, name: str = "") -> Series:
        return thinned(self.curves.column(metric), self.pieces, name or metric.replace("_", " "))

    def chart(
        self,
        key: str,
        title: str,
        metrics: Sequence[str],
        names: Mapping[str, str] | None = None,
        floor: float | None = None,
    ) -> Chart:
        recorded = [metric for metric in metrics if self.curves.has(metric)]
        shown = [metric for metric in recorded if metric == recorded[0] or self.curves.column(metric).any()]
        known = shown or list(metrics[:1])
        series = [self.line(metric, (names or {}).get(metric, "")) for metric in known]
        meaning = " ".join(METRICS[metric] for metric in known if metric in METRICS)
        return Chart(key, title, [Panel(series, floor=floor, is_log=key in LOGARITHMIC and _is_wide(series))], meaning)


def thinned(values_N: Numbers, pieces: Stretches, name: str, colour: int | None = None) -> Series:
    """A metric that is recorded at every other step, or less often, is a line through what there is; a number that is
    missing among others is a gap."""
    known_N = np.isfinite(values_N)
    if known_N.any() and not (known_N[1:] & known_N[:-1]).any():
        steps_N = np.array(pieces.rows, dtype=np.float64)[known_N]
        pieces, values_N = Stretches.of(steps_N), values_N[known_N]
    means = pieces.means(values_N)
    if pieces.longest == 1:
        return Series(name, pieces.steps, means, colour=colour)
    return Series(name, pieces.steps, means, pieces.lows(values_N), pieces.highs(values_N), colour=colour)


def _is_wide(series: Sequence[Series]) -> bool:
    numbers = [value for one_series in series for value in finite(one_series.values)]
    return bool(numbers) and min(numbers) > 0 and max(numbers) > WIDE * min(numbers)


def _reward(lines: _Lines) -> Chart:
    mean_N, spread_N = lines.curves.column("reward_mean"), lines.curves.column("reward_std")
    pieces, mean = lines.pieces, lines.line("reward_mean", "mean, with its standard deviation")
    low, high = (thinned(mean_N + sign * spread_N, pieces, "") for sign in (-1, 1))
    if low.steps == mean.steps and finite(low.values):
        mean = Series(mean.name, mean.steps, mean.values, low.values, high.values)
    names = list(dict.fromkeys(name for row in lines.curves.rows for name in component_means(row)))
    parts = [lines.line(f"reward_{name}_mean", name) for name in names[:MOST_COMPONENTS]]
    left_out = len(names) - len(parts)
    notes = [f"{left_out} more components are in metrics.jsonl"] if left_out else []
    meaning = f"{METRICS['reward_mean']} Components are before weighting."
    return Chart("reward", "Reward", [Panel([mean, *parts])], meaning, notes=notes)


def _heldout(curves: Curves) -> Chart:
    steps = [row["step"] for row in curves.evaluations]
    series: list[Series] = []
    for key, name in (("reward_greedy", "greedy"), ("reward_sampled", "sampled"), ("pass_at_1", "pass@1")):
        values = rounded_all([_number(row.get(key)) for row in curves.evaluations])
        is_new = not any(values == other.values for other in series)
        if finite(values) and is_new:
            errors = [_number(row.get(f"{key}_std_error")) for row in curves.evaluations]
            low = [_plus(value, error, -1) for value, error in zip(values, errors, strict=True)]
            high = [_plus(value, error, 1) for value, error in zip(values, errors, strict=True)]
            series.append(Series(name, steps, values, low, high, "dots"))
    if not series and curves.has("pass_at_1"):  # a log of another trainer
        steps_N, values_N = curves.steps, curves.column("pass_at_1")
        known = np.isfinite(values_N)
        series = [Series("pass@1", steps_N[known].tolist(), rounded_all(values_N[known].tolist()), look="dots")]
    meaning = "Score on problems that are not trained on; bars are one standard error."
    return Chart("heldout", "Held-out score", [Panel(series or [Series("score", [], [])])], meaning)


def _plus(value: float | None, error: float | None, sign: int) -> float | None:
    return None if value is None or error is None else rounded(value + sign * error)


def _groups(lines: _Lines, sampled: Sequence[SampledStep]) -> Chart:
    meaning = "Shares of the groups of a step. Only groups with different rewards have advantages to learn from."
    if len(sampled) > 1:
        steps = [step.step for step in sampled]
        shares = {
            "mixed": [1 - (step.all_best + step.all_equal) / max(step.groups, 1) for step in sampled],
            "all right": [step.all_best / max(step.groups, 1) for step in sampled],
            "all equal, not right": [step.all_equal / max(step.groups, 1) for step in sampled],
        }
        series = [
            Series(name, steps, rounded_all(values), look="area", colour=colour)
            for (name, values), colour in zip(shares.items(), (0, 3, 5), strict=True)
        ]
        return Chart(
            "groups", "Groups", [Panel(series, 0.0, 1.0)], f"{meaning} {len(sampled)} recorded steps were read."
        )
    series = [lines.line("zero_variance_share", "all equal")]
    return Chart("groups", "Groups", [Panel(series, 0.0, 1.0)], meaning)


def _clip(lines: _Lines, sampled: Sequence[SampledStep]) -> Chart:
    series = [lines.line("clipped_share", "all")]
    split = [step for step in sampled if step.clip_low is not None]
    if split:
        steps = [step.step for step in split]
        series.append(Series("low side", steps, rounded_all([step.clip_low for step in split])))
        series.append(Series("high side", steps, rounded_all([step.clip_high for step in split])))
    meaning = f"{METRICS['clipped_share']} The sides are those of the last update of some recorded steps."
    return Chart("clip", "Clipped tokens", [Panel(series, floor=0.0)], meaning if split else METRICS["clipped_share"])


def _gradient(lines: _Lines) -> Chart:
    names = {"gradient_norm": "mean", "gradient_norm_max": "largest"}
    chart = lines.chart("gradient", "Gradient norm", list(names), names)
    if not lines.curves.has("tensors_changed_share"):
        return chart
    changed = lines.line("tensors_changed_share", "tensors changed")
    meaning = f"{chart.meaning} Below: {METRICS['tensors_changed_share']}"
    return replace(chart, panels=[*chart.panels, Panel([changed], 0.0, 1.0)], meaning=meaning)


def _lengths(lines: _Lines) -> Chart:
    lengths = [lines.line("length_mean", "mean tokens"), lines.line("length_max", "longest")]
    cut = lines.line("truncated_share", "share cut off")
    meaning = f"{METRICS['length_mean']} Below: {METRICS['truncated_share'][0].lower()}{METRICS['truncated_share'][1:]}"
    return Chart("length", "Length and truncation", [Panel(lengths, floor=0.0), Panel([cut], 0.0, 1.0)], meaning)


def _speed(curves: Curves) -> Chart:
    steps_N = np.array([row.get("step", np.nan) for row in curves.timings], dtype=np.float64)
    pieces = Stretches.of(steps_N)
    values_N = np.array([_nan(row.get("tokens_per_second")) for row in curves.timings])
    series = [thinned(values_N, pieces, "tokens per second")]
    return Chart(
        "speed", "Tokens per second", [Panel(series, floor=0.0)], "Completion tokens over all seconds of a step."
    )


def time_chart(curves: Curves) -> Chart:
    """Seconds by stage, stacked."""
    pieces = Stretches.of(np.array([row.get("step", np.nan) for row in curves.timings], dtype=np.float64))
    series = [
        Series(
            stage,
            pieces.steps,
            pieces.means(np.array([_nan(row.get(column)) for row in curves.timings])),
            look="area",
        )
        for stage, column in stages_of(curves).items()
    ]
    return Chart(
        "time", "Seconds per step", [Panel(series or [Series("seconds", [], [])], floor=0.0)], "Stages, stacked."
    )


def stages_of(curves: Curves) -> dict[str, str]:
    """The stages in the order in which they happen, with their columns; the whole step where no stages are recorded."""
    names = dict.fromkeys(name for row in curves.timings for name in row if name.startswith("seconds_"))
    return {name.removeprefix("seconds_"): name for name in names} or {"step": "seconds"}


def marks_of(run: Opened) -> list[Mark]:
    """Checkpoints, resumes and changes of settings, updates that were skipped, and steps that findings name."""
    marks = [
        Mark(_EVENTS[kind][0], float(event["step"]), _EVENTS[kind][1])
        for event in run.curves.events
        if isinstance(kind := event.get("kind"), str) and kind in _EVENTS and isinstance(event.get("step"), int)
    ]
    marks += [
        Mark("skipped", float(row["step"]), f"{row['updates_skipped']} updates were refused: not finite")
        for row in run.rows
        if row.get("updates_skipped")
    ]
    for word in run.report.roots:
        steps = sorted({fact.step for fact in word.verdict.facts if fact.step is not None})
        marks += [Mark("finding", float(step), f"{word.code} {word.illness.name}") for step in steps[:1]]
    kept: list[Mark] = []
    for kind in ("checkpoint", "resume", "changed", "skipped", "finding"):
        same = list(dict.fromkeys(mark for mark in marks if mark.kind == kind))
        kept += same[:: max(1, -(-len(same) // MOST_MARKS))]
    return kept


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _nan(value: Any) -> float:
    number = _number(value)
    return float("nan") if number is None else number
