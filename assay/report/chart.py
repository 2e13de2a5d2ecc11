"""Curves as SVG: what the page, the notebook, a paper and the benchmarks draw with.

A chart has one panel or more, one above the other, over a common axis of steps. Drawn for a page it takes its colours
from the page; `standalone` gives a file with colours of its own. The same numbers give the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from assay.report.markup import Markup, element, join

WIDTH, HEIGHT = 360, 176
LEFT, RIGHT, TOP, BOTTOM = 46, 352, 8, 152  # of the drawing inside the axes
GAP = 10  # between two panels
HEAD = 36  # of a file, above the drawing: its title and legend
LOOKS = 8  # colours, after which they begin again
# told apart without colour too: by the dashes that the style gives them
COLOURS = ("#0b6e8f", "#c2570c", "#6d5aa8", "#5b6b2f", "#8a4b6b", "#3d3d3d", "#9a7b00", "#4f7fb0")
DASHES = ("none", "6 3", "2 3", "8 3 2 3", "1 2", "10 4", "4 2 1 2", "3 5")
STYLE = (
    "text{font:10px system-ui,sans-serif;fill:#555}.axis,.grid{stroke:#ccc;fill:none}.grid{stroke-dasharray:1 3}"
    ".line{fill:none;stroke-width:1.6}.thin{stroke-width:.7;opacity:.45}.band{stroke:none;opacity:.18}.area{stroke:none;opacity:.75}.cursor{display:none}"
    ".mark{stroke:#999;stroke-dasharray:2 3}.mark.finding,.mark.skipped{stroke:#b3261e}"
    + "".join(
        f".line.s{index},.bar.s{index}{{stroke:{colour};stroke-dasharray:{dash}}}"
        f".area.s{index},.band.s{index},.dot.s{index}{{fill:{colour}}}"
        for index, (colour, dash) in enumerate(zip(COLOURS, DASHES, strict=True))
    )
)

Values = Sequence[float | None]


@dataclass(frozen=True)
class Series:
    name: str
    steps: Sequence[float]
    values: Values
    low: Values | None = None  # a band, or the ends of error bars
    high: Values | None = None
    look: str = "line"  # line, thin, dots (with error bars), area (stacked on those before it), scatter
    colour: int | None = None  # by default its place in the chart
    sizes: Sequence[float] | None = None  # of dots, 1 for the largest


@dataclass(frozen=True)
class Panel:
    series: Sequence[Series]
    floor: float | None = None  # the axis begins here
    ceiling: float | None = None
    is_log: bool = False


@dataclass(frozen=True)
class Mark:
    kind: str  # checkpoint, resume, skipped, finding, changed
    step: float
    words: str


@dataclass(frozen=True)
class Chart:
    key: str
    title: str
    panels: Sequence[Panel]
    meaning: str = ""
    across: str = "step"  # what the horizontal axis counts
    notes: Sequence[str] = field(default=())

    @property
    def series(self) -> list[tuple[int, Series]]:
        """All series with their colours."""
        flat = [series for panel in self.panels for series in panel.series]
        return [(place if series.colour is None else series.colour, series) for place, series in enumerate(flat)]

    @property
    def is_empty(self) -> bool:
        return not any(finite(series.values) for _, series in self.series)


@dataclass(frozen=True)
class _Scale:
    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def at(self, value: float) -> float:
        low, high = self._position(self.low), self._position(self.high)
        share = (self._position(value) - low) / (high - low) if high > low else 0.5
        return self.start + min(max(share, -0.02), 1.02) * (self.end - self.start)

    def _position(self, value: float) -> float:
        return math.log10(max(value, 1e-300)) if self.is_log else value

    def ticks(self, count: int) -> list[float]:
        if not self.is_log:
            return nice_ticks(self.low, self.high, count)
        first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
        powers = [10.0**power for power in range(first, last + 1, max(1, (last - first + 1) // count))]
        return powers if len(powers) > 1 else [self.low, self.high]


def finite(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None and math.isfinite(value)]


def nice_ticks(low: float, high: float, count: int) -> list[float]:
    """Round numbers between two ends, about `count` of them.

    >>> nice_ticks(0.0, 0.97, 3), nice_ticks(3, 20, 4)
    ([0.0, 0.5], [5.0, 10.0, 15.0, 20.0])
    """
    span = high - low
    if not 0 < span < math.inf:
        return [low]
    rough = span / count
    power = 10.0 ** math.floor(math.log10(rough))
    width = power * next(factor for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first = math.ceil(low / width - 1e-9)
    return [width * place for place in range(first, math.floor(high / width + 1e-9) + 1)]


def label(value: float) -> str:
    """A number beside an axis.

    >>> label(0.30000000000000004), label(12_000), label(2.5e-7), label(0)
    ('0.3', '12k', '2.5e-7', '0')
    """
    size = abs(value)
    if size >= 1e9 or 0 < size < 1e-3:
        mantissa, exponent = f"{value:.2e}".split("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    for limit, letter in ((1e6, "M"), (1e4, "k")):
        if size >= limit:
            return f"{value / (1e6 if letter == 'M' else 1e3):.4g}{letter}"
    return f"{value:.4g}"


def domain_of(series: Iterable[Series]) -> tuple[float, float]:
    steps = [step for one_series in series for step in finite(one_series.steps)]
    return (min(steps), max(steps)) if steps else (0.0, 1.0)


def draw(chart: Chart, domain: tuple[float, float] | None = None, marks: Sequence[Mark] = ()) -> Markup:
    """The SVG of a chart; `domain` are the ends of the horizontal axis that several charts share."""
    low, high = domain or domain_of(series for _, series in chart.series)
    across = _Scale(low, high if high > low else low + 1, LEFT, RIGHT)
    panels = _panel_places(len(chart.panels))
    parts: list[Markup] = []
    first = 0
    for panel, (top, bottom) in zip(chart.panels, panels, strict=True):
        parts += _panel(panel, first, across, top, bottom)
        first += len(panel.series)
    parts += [_mark(mark, across) for mark in marks if low <= mark.step <= high]
    parts += _step_axis(across, chart.across)
    parts.append(element("line", class_="cursor", x1=0, x2=0, y1=TOP, y2=BOTTOM))
    words = f"{chart.title}: {', '.join(series.name for _, series in chart.series)}"
    return element(
        "svg", *parts, viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", aria_label=words, data_left=LEFT, data_right=RIGHT
    )


def points(chart: Chart, ends: tuple[float, float]) -> dict[str, Any]:
    """The numbers behind the lines, as the script of a page reads them."""
    series = [
        {"name": series.name, "steps": list(series.steps), "values": list(series.values)} for _, series in chart.series
    ]
    return {"key": chart.key, "title": chart.title, "ends": list(ends), "series": series}


def standalone(chart: Chart, domain: tuple[float, float] | None = None, marks: Sequence[Mark] = ()) -> str:
    """An SVG file, with its title, its legend and colours of its own."""
    body, width = _with_legend(chart, domain, marks)
    return _file(body, width, HEIGHT + HEAD)


def side_by_side(title: str, charts: Sequence[Chart]) -> str:
    """An SVG file of several charts in a row, below a common title."""
    parts = [element("text", title, x=LEFT, y=-HEAD - 8, style="font-size:13px;fill:#222")]
    left = 0
    for chart in charts:
        body, width = _with_legend(chart)
        parts.append(element("g", body, transform=f"translate({left} 0)"))
        left += width
    return _file(join(parts), left, HEIGHT + HEAD + 24)


def _with_legend(
    chart: Chart, domain: tuple[float, float] | None = None, marks: Sequence[Mark] = ()
) -> tuple[Markup, int]:
    """The inside of an SVG, and how wide it is."""
    inner = Markup(draw(chart, domain, marks).partition(">")[2].removesuffix("</svg>"))
    keys, x = [], float(LEFT)
    for colour, series in chart.series:
        if series.name:
            keys.append(_key(series.name, colour, x))
            x += 26 + 5.6 * len(series.name)
    title = element("text", chart.title, x=LEFT, y=-20, style="font-size:12px;fill:#222")
    return join(title, keys, inner), max(WIDTH, math.ceil(x))


def _file(body: Markup, width: int, height: int) -> str:
    size = f'viewBox="0 {HEIGHT - height} {width} {height}" width="{2 * width}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{STYLE}</style>{body}</svg>\n'


def _key(name: str, colour: int, x: float) -> Markup:
    style = f"line s{colour % LOOKS}"
    swatch = element("line", class_=style, x1=x, x2=x + 16, y1=-6, y2=-6)
    return element("g", swatch, element("text", name, x=x + 20, y=-3))


def _panel_places(count: int) -> list[tuple[float, float]]:
    """Tops and bottoms; the first panel is twice as high as the others."""
    shares = [2.0, *[1.0] * (count - 1)]
    room = (BOTTOM - TOP - GAP * (count - 1)) / sum(shares)
    places, top = [], float(TOP)
    for share in shares:
        places.append((top, top + share * room))
        top += share * room + GAP
    return places


def _panel(panel: Panel, first: int, across: _Scale, top: float, bottom: float) -> list[Markup]:
    stacked = _stack(panel.series)
    upright = _upright(panel, stacked, top, bottom)
    if upright is None:
        middle = (top + bottom) / 2
        return [element("text", "not recorded", class_="empty", x=(LEFT + RIGHT) / 2, y=middle, text_anchor="middle")]
    parts = []
    for tick in upright.ticks(4 if bottom - top > 60 else 2):
        y = _place(upright.at(tick))
        parts.append(element("line", class_="grid", x1=LEFT, x2=RIGHT, y1=y, y2=y))
        parts.append(element("text", label(tick), x=LEFT - 5, y=_place(upright.at(tick) + 3.5), text_anchor="end"))
    for place, series in enumerate(stacked):
        colour = (first + place if series.colour is None else series.colour) % LOOKS
        parts += _drawn(series, colour, across, upright)
    return parts


def _upright(panel: Panel, stacked: Sequence[Series], top: float, bottom: float) -> _Scale | None:
    numbers = [
        value
        for series in stacked
        for values in (series.values, series.low or (), series.high or ())
        for value in finite(values)
        if value > 0 or not panel.is_log
    ]
    if not numbers:
        return None
    low, high = min(numbers), max(numbers)
    if panel.is_log:
        return _Scale(low / 1.3, high * 1.3, bottom, top, is_log=True)
    pad = 0.05 * (high - low) or 0.05 * abs(high) or 0.5
    low = low - pad if panel.floor is None else min(panel.floor, low)
    high = high + pad if panel.ceiling is None else max(panel.ceiling, high)
    return _Scale(low, high if high > low else low + 1, bottom, top)


def _stack(series: Sequence[Series]) -> list[Series]:
    """Areas become bands that stand on each other; other series stay."""
    base: list[float] = []
    found = []
    for layer in series:
        if layer.look != "area":
            found.append(layer)
            continue
        base = base or [0.0] * len(layer.values)
        top = [under + (value or 0.0) for under, value in zip(base, layer.values, strict=True)]
        found.append(Series(layer.name, layer.steps, top, base, top, "area", layer.colour))
        base = top
    return found


def _drawn(series: Series, colour: int, across: _Scale, upright: _Scale) -> list[Markup]:
    style = f"s{colour}"
    if series.look in ("dots", "scatter"):
        return _dots(series, style, across, upright)
    parts = []
    if series.low is not None and series.high is not None:
        path = _band_path(series, across, upright)
        parts.append(element("path", class_=f"{'area' if series.look == 'area' else 'band'} {style}", d=path))
    if series.look != "area":
        thin = "thin " if series.look == "thin" else ""
        parts.append(element("path", class_=f"line {thin}{style}", d=_line_path(series, across, upright)))
    return [part for part in parts if 'd=""' not in part]


def _line_path(series: Series, across: _Scale, upright: _Scale) -> str:
    """A value with a gap on both sides is a short dash: a line through one point could not be seen."""
    path, is_drawing = [], False
    for place, (step, value) in enumerate(zip(series.steps, series.values, strict=True)):
        if value is None or not math.isfinite(value) or (upright.is_log and value <= 0):
            is_drawing = False
            continue
        x, y = _place(across.at(step)), _place(upright.at(value))
        path.append(f"{'L' if is_drawing else 'M'}{x} {y}")
        following = series.values[place + 1] if place + 1 < len(series.values) else None
        if not is_drawing and (following is None or not math.isfinite(following)):
            path.append("h2")
        is_drawing = True
    return "".join(path)


def _band_path(series: Series, across: _Scale, upright: _Scale) -> str:
    """One closed shape for each stretch without gaps."""
    low, high = series.low or (), series.high or ()
    shapes: list[str] = []
    stretch: list[tuple[str, str, str]] = []
    for step, under, over in [*zip(series.steps, low, high, strict=True), (math.nan, None, None)]:
        usable = under is not None and over is not None and math.isfinite(under) and math.isfinite(over)
        if usable and under is not None and over is not None and (under > 0 or not upright.is_log):
            stretch.append((_place(across.at(step)), _place(upright.at(over)), _place(upright.at(under))))
            continue
        if len(stretch) > 1:
            there = "L".join(f"{x} {y}" for x, y, _ in stretch)
            back = "L".join(f"{x} {y}" for x, _, y in reversed(stretch))
            shapes.append(f"M{there}L{back}Z")
        stretch = []
    return "".join(shapes)


def _dots(series: Series, style: str, across: _Scale, upright: _Scale) -> list[Markup]:
    sizes = series.sizes or [0.4] * len(series.values)
    parts = []
    if series.look == "dots" and len(finite(series.values)) > 1:
        parts.append(element("path", class_=f"line {style}", d=_line_path(series, across, upright)))
    lows, highs = series.low or [None] * len(series.values), series.high or [None] * len(series.values)
    for step, value, low, high, size in zip(series.steps, series.values, lows, highs, sizes, strict=True):
        if value is None or not math.isfinite(value):
            continue
        x = _place(across.at(step))
        if low is not None and high is not None:
            ends = {"y1": _place(upright.at(low)), "y2": _place(upright.at(high))}
            parts.append(element("line", class_=f"bar {style}", x1=x, x2=x, **ends))
        parts.append(
            element("circle", class_=f"dot {style}", cx=x, cy=_place(upright.at(value)), r=_place(1.2 + 4 * size))
        )
    return parts


def _mark(mark: Mark, across: _Scale) -> Markup:
    x = _place(across.at(mark.step))
    top = BOTTOM - 7 if mark.kind == "checkpoint" else TOP
    line = element("line", class_=f"mark {mark.kind}", x1=x, x2=x, y1=top, y2=BOTTOM)
    return element("g", element("title", f"step {label(mark.step)}: {mark.words}"), line)


def _step_axis(across: _Scale, name: str) -> list[Markup]:
    ticks = [
        tick for tick in nice_ticks(across.low, across.high, 4) if tick == int(tick) or across.high - across.low < 3
    ]
    parts = [element("line", class_="axis", x1=LEFT, x2=RIGHT, y1=BOTTOM, y2=BOTTOM)]
    for tick in ticks:
        x = _place(across.at(tick))
        parts.append(element("line", class_="axis", x1=x, x2=x, y1=BOTTOM, y2=BOTTOM + 3))
        if across.at(tick) < RIGHT - 10 - 5 * len(name):
            parts.append(element("text", label(tick), x=x, y=BOTTOM + 14, text_anchor="middle"))
    return [*parts, element("text", name, x=RIGHT, y=BOTTOM + 14, text_anchor="end", class_="unit")]


def _place(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
