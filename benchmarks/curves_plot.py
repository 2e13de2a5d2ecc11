"""The curves of both contenders as an SVG: every seed thin, the mean thick. The same curves give the same bytes."""

from __future__ import annotations

import importlib.util
import statistics
from collections.abc import Sequence
from pathlib import Path

from assay.config import ConfigError
from benchmarks.curves import Curve

COLOURS = {"assay": "#0b6e4f", "TRL 1.16": "#c1440e"}  # told apart by colour-blind readers too, with the dashes
DASHES = {"assay": "-", "TRL 1.16": "--"}


def require_matplotlib() -> None:
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("--plot needs matplotlib: pip install 'assay[plot]'")


def draw(path: Path, title: str, ours: Sequence[Curve], peer: Sequence[Curve]) -> None:
    import matplotlib
    from matplotlib.figure import Figure

    fixed = {"svg.hashsalt": "assay", "svg.fonttype": "none"}  # text stays text
    with matplotlib.rc_context(fixed):
        figure = Figure(figsize=(9, 4), layout="constrained", facecolor="white")
        panels = figure.subplots(1, 2, sharey=True)
        for panel, measure, name in zip(
            panels, ("pass_at_1", "pass_greedy"), ("pass@1, sampled", "pass, greedy"), strict=True
        ):
            for contender, curves in zip(COLOURS, (ours, peer), strict=True):
                look = {"color": COLOURS[contender], "linestyle": DASHES[contender]}
                for curve in curves:
                    panel.plot(curve.steps(), curve.scores(measure), linewidth=0.7, alpha=0.4, **look)
                means = [
                    statistics.fmean(scores)
                    for scores in zip(*(curve.scores(measure) for curve in curves), strict=True)
                ]
                panel.plot(curves[0].steps(), means, linewidth=2.2, label=f"{contender}, mean", **look)
            panel.set_xlabel("training steps")
            panel.set_ylabel(f"held-out {name}")
            panel.grid(alpha=0.25)
            panel.spines[["top", "right"]].set_visible(False)
        panels[0].legend(loc="lower right", frameon=False)
        figure.suptitle(title, fontsize=11)
        try:
            figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
        except OSError as error:
            raise ConfigError(f"{path} could not be written: {error.strerror}") from error
