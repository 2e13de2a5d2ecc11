"""The other parts of the page that need no script: curves, time, signal, the parts of the ratio, lengths, setup."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from assay.config import ConfigError, from_mapping, load, to_mapping
from assay.doctor.evidence import Batch, Curves
from assay.machine.terminal import human_seconds, plural, share
from assay.report.chart import LOOKS, Chart, Mark, Panel, Series, draw, finite, label
from assay.report.curves import stages_of, time_chart
from assay.report.markup import Markup, element, join
from assay.report.opened import Opened, is_examined
from assay.report.sampled_steps import SampledStep
from assay.report.series import rounded_all

MOST_POINTS = 600  # of a scatter
BINS = 16
MOST_EVENTS = 60
ROUNDING = 1e-3  # a bar of less than this distance of two log-probs would make rounding look large
_MARKS = {
    "checkpoint": "checkpoint",
    "resume": "resumed",
    "changed": "setting changed",
    "skipped": "update skipped",
    "finding": "finding",
}


def section(key: str, title: str, *children: object, hint: str = "") -> Markup:
    return element(
        "section",
        element("h2", title, id=f"{key}-title"),
        element("p", hint, class_="quiet") if hint else None,
        *children,
        id=key,
        class_="block",
        aria_labelledby=f"{key}-title",
    )


def table(rows: Iterable[Sequence[object]], head: Sequence[object] = (), class_: str = "") -> Markup:
    """The first cell of a row names it. It scrolls where it is too wide."""
    top = element("thead", element("tr", [element("th", words, scope="col") for words in head])) if head else None
    body = [
        element("tr", element("th", first, scope="row"), [element("td", cell) for cell in cells])
        for first, *cells in rows
    ]
    return element("div", element("table", top, element("tbody", body), class_=class_ or None), class_="scroll")


def empty(sentence: str) -> Markup:
    return element("p", sentence, class_="nothing")


def chart_card(chart: Chart, domain: tuple[float, float] | None = None, marks: Sequence[Mark] = ()) -> Markup:
    """A figure with its legend; the script puts the numbers under the cursor into the legend."""
    keys = [
        element(
            "li",
            element("svg", _swatch(series.look, colour % LOOKS), viewBox="0 0 18 10"),
            element("span", series.name),
            element("output", label(last) if (last := _last(series)) is not None else "", data_series=place),
        )
        for place, (colour, series) in enumerate(chart.series)
        if series.values
    ]
    return element(
        "figure",
        element("figcaption", element("h3", chart.title, title=chart.meaning), element("ul", keys, class_="keys")),
        draw(chart, domain, marks),
        [element("p", note, class_="quiet small") for note in chart.notes],
        class_="chart nothing-here" if chart.is_empty else "chart",
        data_chart=chart.key,
        id=f"chart-{chart.key}",
        tabindex=None if chart.is_empty else 0,
    )


def _swatch(look: str, colour: int) -> Markup:
    if look == "area":
        return element("rect", class_=f"area s{colour}", x=3, y=0, width=12, height=10)
    if look == "scatter":
        return element("circle", class_=f"dot s{colour}", cx=9, cy=5, r=3.5)
    return element("line", class_=f"line s{colour}", x1=0, x2=18, y1=5, y2=5)


def _last(series: Series) -> float | None:
    return next(iter(finite(reversed(series.values))), None)


def curves_section(charts: Sequence[Chart], domain: tuple[float, float], marks: Sequence[Mark], points: int) -> Markup:
    if all(chart.is_empty for chart in charts):
        return section("curves", "Curves", empty("No step is recorded yet, so there are no curves."))
    shown = {mark.kind for mark in marks}
    legend = [_mark_key(kind, words) for kind, words in _MARKS.items() if kind in shown]
    hint = f"Each point is the mean of up to {points} steps; its band shows their lowest and highest." * (points > 1)
    return section(
        "curves",
        "Curves",
        element("p", element("output", "Move over a curve to read all of them.", id="cursor-step"), class_="readout"),
        element("ul", legend, class_="keys marks") if legend else None,
        element("div", [chart_card(chart, domain, marks) for chart in charts], class_="grid"),
        hint=hint,
    )


def _mark_key(kind: str, words: str) -> Markup:
    line = element("line", class_=f"mark {kind}", x1=5, x2=5, y1=0, y2=10)
    return element("li", element("svg", line, viewBox="0 0 10 10"), words)


def time_section(curves: Curves) -> Markup:
    if not curves.timings:
        return section("time", "Where the seconds went", empty("The record holds no timings."))
    totals = {stage: _sum(curves.timings, column) for stage, column in stages_of(curves).items()}
    whole = sum(totals.values()) or 1.0
    rows = [
        (stage, human_seconds(seconds), share(seconds / whole), bar(seconds / whole, place))
        for place, (stage, seconds) in enumerate(totals.items())
    ]
    tokens = _sum(curves.rows, "tokens_generated")
    speed = f", {tokens / whole:,.0f} tokens per second" if tokens else ""
    return section(
        "time",
        "Where the seconds went",
        element(
            "div",
            chart_card(time_chart(curves)),
            table(rows, class_="bars"),
            class_="grid two",
        ),
        hint=f"{human_seconds(whole)} in {plural(len(curves.timings), 'step')}{speed}.",
    )


def bar(part: float, colour: int = 0) -> Markup:
    width = max(0.0, min(part, 1.0)) * 200
    return element(
        "svg",
        element("rect", class_=f"area s{colour % LOOKS}", x=0, y=1, width=f"{width:.1f}", height=10),
        viewBox="0 0 200 12",
        class_="bar-line",
        aria_hidden="true",
        preserveAspectRatio="none",
    )


def signal_section(curves: Curves) -> Markup:
    levels = signal_levels(curves)
    if not levels:
        return section("signal", "The signal", empty("The record does not say how many tokens were generated."))
    first = levels[0][1]
    rows = [
        (
            name,
            f"{tokens:,.0f}",
            share(tokens / first if first else None),
            bar(tokens / first if first else 0.0),
            element("span", why, class_="quiet"),
        )
        for name, tokens, why in levels
    ]
    return section(
        "signal",
        "The signal",
        table(rows, class_="bars"),
        hint="How many of the generated tokens moved the weights. Shares of rollouts and groups are taken as shares of "
        "their tokens.",
    )


def signal_levels(curves: Curves) -> list[tuple[str, float, str]]:
    """(what is left, tokens, what was lost on the way), from sums over all steps."""
    rows = [row for row in curves.rows if row.get("tokens_generated")]
    if not rows:
        return []
    left = dict.fromkeys(("generated", "scored", "with an advantage", "inside the clip", "moved the weights"), 0.0)
    for row in rows:
        generated = float(row["tokens_generated"])
        scored = generated * _part(row, "rollouts_scored", "rollouts_unscored")
        in_loss = min(float(row.get("tokens_in_loss") or 0.0), scored)
        keeps_flat = float(row.get("tokens_in_loss") or 0.0) >= 0.999 * generated  # groups left out are out of the loss
        flat = float(row.get("zero_variance_share") or 0.0) if keeps_flat else 0.0
        signal = in_loss * (1.0 - flat)
        inside = signal * (1.0 - float(row.get("clipped_share") or 0.0))
        updates = [float(row.get(f"updates_{how}") or 0) for how in ("applied", "skipped")]
        moved = inside * (updates[0] / sum(updates) if sum(updates) else 0.0)
        for name, tokens in zip(left, (generated, scored, signal, inside, moved), strict=True):
            left[name] += tokens
    words = (
        "completion tokens of all rollouts",
        "less those whose reward failed",
        "less what is masked, or in a group whose rewards are all equal",
        "less what the clip gave no gradient",
        "less updates that were refused or not taken",
    )
    return [(name, tokens, why) for (name, tokens), why in zip(left.items(), words, strict=True)]


def _part(row: Mapping[str, Any], name: str, other: str) -> float:
    some, rest = float(row.get(name) or 0), float(row.get(other) or 0)
    return some / (some + rest) if some + rest else 1.0


def _sum(rows: Iterable[Mapping[str, Any]], name: str) -> float:
    return sum(float(value) for row in rows if isinstance(value := row.get(name), (int, float)))


_PARTS = (  # of log new / sampler, by what was computed twice
    ("old_logprobs", "sampler_logprobs", "trainer against sampler", "the same weights, two programs"),
    ("new_logprobs", "old_logprobs", "updates since sampling", "0 in the first update of a rollout batch"),
    ("scored_again", "new_logprobs", "the same scoring again", "dropout and other chance"),
    ("scored_padded", "scored_again", "with padding added", "padding must not matter"),
    ("scored_permuted", "scored_again", "rows in another order", "the order must not matter"),
    ("scored_alone", "scored_again", "each row alone", "batch-mates must not matter"),
    ("plain_logprobs", "new_logprobs", "plain scoring", "one row at a time, eval mode, float32"),
)


def ratio_section(batches: Sequence[Batch]) -> Markup:
    """What examinations measured of the reasons why two log-probs of one token differ."""
    examined = [batch for batch in batches if is_examined(batch)]
    rows = []
    for name, other, words, why in _PARTS:
        gaps = [gap for batch in examined if (gap := _gap(batch, name, other)) is not None and len(gap)]
        if gaps:
            gap_N = np.concatenate(gaps)
            rows.append((words, why, float(np.abs(gap_N).mean()), float(np.abs(gap_N).max()), len(gap_N)))
    if not rows:
        return section("ratio", "Why log-probs differ", empty("No update was examined, so nothing was computed twice."))
    widest = max(ROUNDING, *(largest for *_, largest, _ in rows))
    lines = [
        (
            words,
            label(mean),
            label(largest),
            bar(largest / widest),
            element("span", f"{why}; {count:,} tokens", class_="quiet"),
        )
        for words, why, mean, largest, count in rows
    ]
    examined_words = plural(len(examined), "examined update")
    return section(
        "ratio",
        "Why log-probs differ",
        table(lines, ("compared", "mean", "largest", "", ""), class_="bars"),
        hint=f"|difference of two log-probs of the same token| over {examined_words}. The ratio is the exponential of "
        "such a difference.",
    )


def _gap(batch: Batch, name: str, other: str) -> Any:
    first_BT, second_BT, mask_BT = batch.get(name), batch.get(other), batch.get("mask")
    if first_BT is None or second_BT is None:
        return None
    gap_BT = first_BT - second_BT
    gap_N = gap_BT[mask_BT] if mask_BT is not None else gap_BT.ravel()
    return gap_N[np.isfinite(gap_N)]


def lengths_section(sampled: Sequence[SampledStep]) -> Markup:
    pairs = [(step.lengths, step.rewards) for step in sampled if len(step.lengths)]
    if not pairs:
        return section("lengths", "Reward and length", empty("No completion with its reward is recorded."))
    lengths_N, rewards_N = (np.concatenate(column).astype(float) for column in zip(*pairs, strict=True))
    known_N = np.isfinite(lengths_N) & np.isfinite(rewards_N)
    lengths_N, rewards_N = lengths_N[known_N], rewards_N[known_N]
    if not len(lengths_N):
        return section("lengths", "Reward and length", empty("No completion with its reward is recorded."))
    scatter = _scatter(lengths_N, rewards_N)
    charts = [
        Chart("scatter", "Reward against length", [Panel([scatter])], across="tokens"),
        Chart("outcomes", "Lengths by outcome", [Panel(_histograms(lengths_N, rewards_N), floor=0.0)], across="tokens"),
    ]
    strength = _correlation(lengths_N, rewards_N)
    words = f" Their correlation is {strength:.2f}." if strength is not None else ""
    hint = f"{len(lengths_N):,} completions of {plural(len(pairs), 'recorded step')}.{words}"
    cards = element("div", [chart_card(chart) for chart in charts], class_="grid two")
    return section("lengths", "Reward and length", cards, hint=hint)


def _scatter(lengths_N: Any, rewards_N: Any) -> Series:
    """A dot for each pair of a length and a reward, as large as there are completions of it; the commonest pairs."""
    pairs, counts_N = np.unique(np.stack([lengths_N, rewards_N], axis=1), axis=0, return_counts=True)
    kept = np.argsort(-counts_N, kind="stable")[:MOST_POINTS]
    sizes = np.sqrt(counts_N[kept] / counts_N.max())
    return Series(
        "completions, by size", pairs[kept, 0].tolist(), pairs[kept, 1].tolist(), look="scatter", sizes=sizes.tolist()
    )


def _histograms(lengths_N: Any, rewards_N: Any) -> list[Series]:
    """How long completions are that earn more, or no more, than the mean of all."""
    edges = np.histogram_bin_edges(lengths_N, bins=min(BINS, max(1, int(np.ptp(lengths_N)))))
    middles = ((edges[:-1] + edges[1:]) / 2).tolist()
    better_N = rewards_N > rewards_N.mean()
    names = {"reward above the mean": better_N, "not above it": ~better_N}
    return [
        Series(name, middles, rounded_all((np.histogram(lengths_N[chosen], edges)[0] / max(chosen.sum(), 1)).tolist()))
        for name, chosen in names.items()
    ]


def _correlation(first_N: Any, second_N: Any) -> float | None:
    if len(first_N) < 3 or np.ptp(first_N) == 0 or np.ptp(second_N) == 0:
        return None
    return float(np.corrcoef(first_N, second_N)[0, 1])


def setup_section(run: Opened, other: Opened | None) -> Markup:
    return section(
        "setup",
        "Setup",
        _difference(run, other) if other is not None else None,
        _command(run),
        _events(run.curves),
        _settings(run),
        _environment(run),
    )


def _command(run: Opened) -> Markup | None:
    if run.config is None:
        return None
    name = shlex.quote(str(run.path / "config.toml"))
    return join(
        element("h3", "To make it again"),
        element("pre", f"assay train {name} --out again\nassay compare {shlex.quote(str(run.path))} again"),
        element("p", "The same versions on the same machine give the same bits.", class_="quiet"),
    )


Sections = Mapping[str, Mapping[str, Any]]


def differences(settings: Sections, others: Sections) -> list[tuple[str, Any, Any]]:
    """(section.key, here, there) of every setting that differs; None where it is not stated."""
    found = []
    for name in dict.fromkeys([*settings, *others]):
        here, there = settings.get(name, {}), others.get(name, {})
        for key in dict.fromkeys([*here, *there]):
            if here.get(key) != there.get(key):
                found.append((f"{name}.{key}", here.get(key), there.get(key)))
    return found


def _difference(run: Opened, other: Opened) -> Markup:
    found = differences(run.settings, other.settings)
    title = element("h3", f"Differences to {other.path}")
    if not found:
        return join(title, empty("No setting differs."))
    rows = [(name, shown(here), shown(there)) for name, here, there in found]
    return join(title, table(rows, ("setting", "this run", "the other")))


def shown(value: Any) -> str:
    text = "-" if value is None else str(value)
    return text if len(text) <= 300 else f"{text[:300]} ..."


def _settings(run: Opened) -> Markup | None:
    if not run.settings:
        return None
    usual = defaults() if run.config is not None else {}
    rows = []
    for name, values in run.settings.items():
        for key, value in values.items():
            differs = run.config is not None and usual.get(name, {}).get(key) != value
            cells = (element("th", f"{name}.{key}", scope="row"), element("td", shown(value)))
            rows.append(element("tr", *cells, class_="differs" if differs else None))
    note = "Settings that differ from the default are bold." if run.config is not None else ""
    whole = element("div", element("table", element("tbody", rows), class_="settings"), class_="scroll")
    quiet = element("p", note, class_="quiet") if note else None
    return element("details", element("summary", "All settings"), quiet, whole)


def defaults() -> dict[str, dict[str, Any]]:
    try:
        return to_mapping(load(None))
    except ConfigError:
        return to_mapping(from_mapping({}))


def _environment(run: Opened) -> Markup | None:
    if not run.environment:
        return None
    flat = {name: value for name, value in run.environment.items() if name != "packages"}
    packages = run.environment.get("packages")
    flat |= packages if isinstance(packages, dict) else {}
    rows = [(name, shown(value)) for name, value in flat.items() if value is not None]
    return element("details", element("summary", "Environment"), table(rows, class_="settings"))


def _events(curves: Curves) -> Markup | None:
    events = [event for event in curves.events if event.get("kind") != "checkpoint"]
    if not events:
        return None
    kept = events if len(events) <= MOST_EVENTS else [*events[: MOST_EVENTS // 2], *events[-MOST_EVENTS // 2 :]]
    rows = [(str(event.get("kind")), _when(event), _event_facts(event)) for event in kept]
    left_out = len(events) - len(kept)
    note = element("p", f"{left_out} events in the middle are left out.", class_="quiet") if left_out else None
    return element("details", element("summary", plural(len(events), "event")), note, table(rows, class_="settings"))


def _when(event: Mapping[str, Any]) -> str:
    return str(event.get("time", ""))[:19].replace("T", " ")


def _event_facts(event: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {shown(value)}" for name, value in event.items() if name not in ("time", "kind"))
