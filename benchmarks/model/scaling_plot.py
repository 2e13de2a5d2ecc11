"""How a step grows, as a picture: one panel an axis, seconds against size, both axes logarithmic."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.model.table import along
from benchmarks.model.workload import AXES, Workload

COLOURS = {"assay": "#0b6e4f", "trl": "#c1440e", "trl-autocast": "#8a5a83", "generate": "#3b5b92"}
DASHES = {"assay": "-", "trl": "--", "trl-autocast": ":", "generate": "-."}


def draw(path: Path, document: Mapping[str, Any]) -> None:
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.hashsalt": "assay", "svg.fonttype": "none"}):  # text stays text
        figure = Figure(figsize=(11, 4), layout="constrained", facecolor="white")
        panels = figure.subplots(1, len(AXES), sharey=True)
        for panel, axis in zip(panels, AXES, strict=True):
            rows = along(document["scaling"], document["workload"], axis)
            for name in dict.fromkeys(row["contender"] for row in rows):
                own = sorted((row["workload"][axis], row["seconds"]) for row in rows if row["contender"] == name)
                sizes, seconds = zip(*own, strict=True)
                panel.plot(sizes, seconds, DASHES[name], color=COLOURS[name], marker="o", label=name)
                panel.set_xticks(sizes, labels=[str(size) for size in sizes])
            panel.set_xscale("log", base=2)
            panel.set_yscale("log", base=2)
            panel.minorticks_off()
            panel.set_xlabel(axis.replace("_", " "))
            panel.set_xticks(sizes, labels=[str(size) for size in sizes])
            panel.grid(alpha=0.3)
        panels[0].set_ylabel("seconds per step")
        panels[0].legend(frameon=False)
        figure.suptitle(
            f"{document['model']}, {document['machine']['device_name']}: {Workload(**document['workload'])}"
        )
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else {})
