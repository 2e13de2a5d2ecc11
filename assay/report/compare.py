"""Several runs side by side: curves over each other, held-out scores, settings that differ, the first number that does
not agree."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np

from assay.machine.terminal import escape, number
from assay.machine.user_error import UserError
from assay.record import RunError, read_rollouts, recorded_steps
from assay.report import chart as drawing
from assay.report.chart import Chart, Panel, Series, finite
from assay.report.curves import thinned
from assay.report.markup import Markup, element, join
from assay.report.opened import Opened
from assay.report.page import document, navigation
from assay.report.parts import chart_card, differences, empty, section, shown, table
from assay.report.series import Stretches, rounded
from assay.report.verdict import headline

METRICS = {
    "reward_mean": "Reward", "entropy": "Entropy", "ref_kl": "KL to the reference", "old_kl": "KL of old to new",
    "mismatch_mean": "Sampler against trainer", "clipped_share": "Clipped tokens", "gradient_norm": "Gradient norm",
    "length_mean": "Length", "truncated_share": "Cut off", "loss": "Loss", "learning_rate": "Learning rate",
    "zero_variance_share": "Groups without signal",
}  # fmt: skip
SCORES = {"reward_greedy": "greedy", "reward_sampled": "sampled", "pass_at_1": "pass@1"}
_NAMES = {"run.name"}  # settings that do not change a run
_TEXTS = ("text", "tokens", "reward", "advantage", "sampler_logprobs", "old_logprobs", "new_logprobs")


class CompareError(UserError, ValueError):
    """Runs that cannot be compared."""


@dataclass(frozen=True)
class Difference:
    """The first number, in the order in which a step makes them, that two runs do not share."""

    step: int
    what: str
    here: Any
    there: Any

    def sentence(self, first: str, second: str) -> str:
        return f"step {self.step}: {self.what} is {shown(self.here)} in {first} and {shown(self.there)} in {second}"


def check_comparable(runs: Sequence[Opened]) -> None:
    for run in runs:
        if not run.rows and not run.curves.evaluations:
            raise CompareError(f"{run.path} holds no curves; compare run directories or logs of metrics")


def first_difference(first: Opened, second: Opened) -> Difference | None:
    """None where every step that both have is equal."""
    others = {row.get("step"): row for row in second.rows}
    for row in first.rows:
        other = others.get(row.get("step"))
        if other is None:
            continue
        step = int(row["step"])
        names = [name for name in dict.fromkeys([*row, *other]) if not _equal(row.get(name), other.get(name))]
        if names:
            rollout = _rollout_difference(first.path, second.path, step)
            return rollout or Difference(step, names[0], row.get(names[0]), other.get(names[0]))
    return None


def _rollout_difference(first: Path, second: Path, step: int) -> Difference | None:
    """Of the recorded completions of a step: a token that differs comes before the numbers made of it."""
    try:
        if step not in recorded_steps(first) or step not in recorded_steps(second):
            return None
        pairs = list(zip_longest(read_rollouts(first, step), read_rollouts(second, step)))
    except RunError:
        return None
    for name in ("prompt_id", *_TEXTS):
        for place, (row, other) in enumerate(pairs):
            here, there = ({} if row is None else row).get(name), ({} if other is None else other).get(name)
            if not _same(here, there):
                return _named(step, name, place, here, there)
    return None


def _named(step: int, name: str, row: int, here: Any, there: Any) -> Difference:
    if isinstance(here, list) and isinstance(there, list):
        pairs = enumerate(zip(here, there, strict=False))
        at = next((at for at, pair in pairs if not _equal(*pair)), min(len(here), len(there)))
        values = [values[at] if at < len(values) else None for values in (here, there)]
        return Difference(step, f"{name} of completion {row}, token {at}", *values)
    return Difference(step, f"{name} of completion {row}", here, there)


def _same(here: Any, there: Any) -> bool:
    if isinstance(here, list) and isinstance(there, list):
        return len(here) == len(there) and all(map(_equal, here, there))
    return _equal(here, there)


def _equal(here: Any, there: Any) -> bool:
    both_nan = isinstance(here, float) and isinstance(there, float) and math.isnan(here) and math.isnan(there)
    return here == there or both_nan


def names_of(runs: Sequence[Opened]) -> list[str]:
    """Short, and different from each other."""
    short = [run.path.resolve().name for run in runs]
    return short if len(set(short)) == len(short) else [str(run.path) for run in runs]


def settings_table(runs: Sequence[Opened]) -> list[tuple[str, list[Any]]]:
    """Each setting that is not the same in all runs, with its values."""
    first = runs[0].settings
    found: dict[str, None] = {}
    for run in runs[1:]:
        found |= dict.fromkeys(name for name, _, _ in differences(first, run.settings))

    def value(run: Opened, name: str) -> Any:
        section_name, _, key = name.partition(".")
        return run.settings.get(section_name, {}).get(key)

    return [(name, [value(run, name) for run in runs]) for name in found if name not in _NAMES]


def scores_table(runs: Sequence[Opened]) -> list[list[str]]:
    """Name, seed, steps, the last score of each kind with its standard error; then the means over seeds."""
    rows = []
    for name, run in zip(names_of(runs), runs, strict=True):
        last: Mapping[str, Any] = run.curves.evaluations[-1] if run.curves.evaluations else {}
        seed = "-" if run.config is None else str(run.config.run.seed)
        scores = [with_error(last.get(key), last.get(f"{key}_std_error")) for key in SCORES]
        asked = "-" if not last else f"{last.get('prompts')} after step {last.get('step')}"
        rows.append([name, seed, str(run.steps_done), *scores, asked])
    return [*rows, *(_over_seeds(same) for same in _same_but_for_the_seed(runs) if len(same) > 1)]


def _same_but_for_the_seed(runs: Sequence[Opened]) -> list[list[Opened]]:
    groups: dict[str, list[Opened]] = {}
    for run in runs:
        if run.config is not None and run.curves.evaluations:
            alike = replace(run.config, run=replace(run.config.run, name="any", seed=0))
            groups.setdefault(repr(alike), []).append(run)
    return list(groups.values())


def _over_seeds(runs: Sequence[Opened]) -> list[str]:
    """The mean of the last scores, with the standard error that their spread over the seeds gives."""
    scores = []
    for key in SCORES:
        values = finite([run.curves.evaluations[-1].get(key) for run in runs])
        error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
        scores.append(with_error(fmean(values) if values else None, error))
    return [f"mean of {len(runs)} seeds", "", "", *scores, ""]


def with_error(value: Any, error: Any) -> str:
    """
    >>> with_error(0.81445, 0.0143), with_error(0.5, None), with_error(None, None)
    ('0.814 +- 0.014', '0.500', '-')
    """
    return number(value) if error is None else f"{number(value)} +- {number(error)}"


SCORE_HEADS = ("run", "seed", "steps", *SCORES.values(), "held-out problems")


def equality_lines(runs: Sequence[Opened]) -> list[str]:
    """For each run beside the first: the first number that differs, or that none does."""
    names, lines = names_of(runs), []
    for name, run in zip(names[1:], runs[1:], strict=True):
        difference = first_difference(runs[0], run)
        shared = len({row.get("step") for row in runs[0].rows} & {row.get("step") for row in run.rows})
        if difference is None:
            lines.append(f"{names[0]} and {name}: equal in all {shared} steps that both record")
            continue
        lines.append(difference.sentence(names[0], name))
        if runs[0].config is not None and not _meant_to_differ(runs[0], run):
            config = shlex.quote(str(runs[0].path / "config.toml"))
            command = f"assay train {config} --set run.steps={difference.step} --out replay"
            lines.append(f"same settings and seed, so this should be equal; replay it: {command}")
    return lines


def _meant_to_differ(first: Opened, second: Opened) -> bool:
    return bool(settings_table([first, second]))


def text_of(runs: Sequence[Opened]) -> str:
    """The comparison for a terminal."""
    table = [list(SCORE_HEADS), *scores_table(runs)]
    widths = [max(len(row[column]) for row in table) for column in range(len(SCORE_HEADS))]
    lines = [
        "  ".join(escape(cell).ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table
    ]
    changed = settings_table(runs)
    lines += ["", "settings that differ" if changed else "no setting differs"]
    lines += [f"  {escape(name)}: {' | '.join(escape(shown(value)) for value in values)}" for name, values in changed]
    return "\n".join([*lines, "", *(escape(line) for line in equality_lines(runs))])


def compare_page(runs: Sequence[Opened]) -> str:
    charts = overlaid(runs)
    ends = drawing.domain_of(series for chart in charts for _, series in chart.series)
    parts = [
        section("verdict", "The runs", _verdicts(runs), table(_typeset(scores_table(runs)), SCORE_HEADS)),
        section("equal", "First difference", element("ul", [element("li", line) for line in equality_lines(runs)])),
        section("curves", "Curves", element("p", element("output", "", id="cursor-step"), class_="readout"),
                element("div", [chart_card(chart, ends) for chart in charts], class_="grid")),
        section("setup", "Settings that differ", _settings(runs)),
    ]  # fmt: skip
    names = {"verdict": "Runs", "equal": "Difference", "curves": "Curves", "setup": "Settings"}
    title = " and ".join(names_of(runs)) if len(runs) < 4 else f"{len(runs)} runs"
    header = element("header", element("p", "assay compare", class_="brand"), element("h1", title))
    data = {
        "charts": [drawing.points(chart, ends) for chart in charts], "sources": [], "completions": [], "prompts": [],
        "channels": {}, "svg_style": drawing.STYLE, "live": False, "version": "",
    }  # fmt: skip
    return document(
        f"{title}: compared by Assay", join(header, navigation(names), element("main", parts, id="main")), data
    )


def _typeset(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    return [[cell.replace("+-", "\u00b1") for cell in row] for row in rows]


def overlaid(runs: Sequence[Opened]) -> list[Chart]:
    """One chart per metric that a run has; each run keeps its colour."""
    charts = [_heldout(runs)] if any(run.curves.evaluations for run in runs) else []
    for metric, title in METRICS.items():
        series = [
            thinned(run.curves.column(metric), Stretches.of(run.curves.steps), name, colour)
            for colour, (name, run) in enumerate(zip(names_of(runs), runs, strict=True))
            if len(run.curves) and np.isfinite(run.curves.column(metric)).any()
        ]
        if series:
            lines = [replace(line, low=None, high=None) for line in series]
            charts.append(Chart(metric, title, [Panel(lines)]))
    return charts


def _heldout(runs: Sequence[Opened]) -> Chart:
    series = []
    for colour, (name, run) in enumerate(zip(names_of(runs), runs, strict=True)):
        rows = [row for row in run.curves.evaluations if row.get("reward_sampled") is not None]
        values = [float(row["reward_sampled"]) for row in rows]
        errors = [float(row.get("reward_sampled_std_error") or 0.0) for row in rows]
        low = [rounded(value - error) for value, error in zip(values, errors, strict=True)]
        high = [rounded(value + error) for value, error in zip(values, errors, strict=True)]
        series.append(Series(name, [row["step"] for row in rows], values, low, high, "dots", colour))
    return Chart("heldout", "Held-out score, sampled", [Panel(series)], "Bars are one standard error.")


def _verdicts(runs: Sequence[Opened]) -> Markup:
    words = [(name, headline(run.report)[1]) for name, run in zip(names_of(runs), runs, strict=True)]
    return element("ul", [element("li", element("b", name), ": ", sentence) for name, sentence in words])


def _settings(runs: Sequence[Opened]) -> Markup:
    rows = settings_table(runs)
    if not rows:
        return empty("No setting differs.")
    shown_rows = [[name, *map(shown, values)] for name, values in rows]
    return table(shown_rows, ("setting", *names_of(runs)))
