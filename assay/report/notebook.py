"""`assay.Run("runs/sort")`: a run in a notebook. It shows itself; `metrics` and `rollouts` are tables."""

from __future__ import annotations

import html
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.machine.user_error import UserError
from assay.report import chart as drawing
from assay.report.curves import charts_of, domain, marks_of
from assay.report.opened import Opened, open_path
from assay.report.page import page_of
from assay.report.sampled_steps import best_reward, sampled_steps

if TYPE_CHECKING:
    import pandas  # type: ignore[import-untyped]
    import pyarrow

HEIGHT = 900  # of the page in a notebook, in pixels


class NotebookError(UserError, ImportError):
    """A package that a table needs is missing. The message says how to get it."""


class Run:
    """A run directory, a log of another trainer, or a batch file.

    Shown by Jupyter it is the page that `assay report` writes, in a frame of its own that may run the page's script and
    nothing else.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._opened  # noqa: B018  what cannot be read is reported here, not when it is shown

    @cached_property
    def _opened(self) -> Opened:
        return open_path(self.path)

    @property
    def findings(self) -> pandas.DataFrame:
        """One row per finding, root causes first."""
        report = self._opened.report
        rows = [word.record(None, report.diagnosis.causes.get(word.code)) for word in report.diagnosis.findings]
        columns = ["code", "name", "severity", "confidence", "message", "evidence", "fix", "source", "follows_from"]
        return _pandas().DataFrame(rows, columns=columns)

    @property
    def metrics(self) -> pandas.DataFrame:
        """One row per step; docs/run-directory.md has the columns."""
        return _pandas().DataFrame(list(self._opened.rows))

    @property
    def timings(self) -> pandas.DataFrame:
        """Seconds and memory by step and stage."""
        return _pandas().DataFrame(list(self._opened.curves.timings))

    @property
    def evaluations(self) -> pandas.DataFrame:
        """One row per held-out evaluation."""
        return _pandas().DataFrame(list(self._opened.curves.evaluations))

    @property
    def rollouts(self) -> pyarrow.Table:
        """All recorded rollouts, one row each; `.to_pandas()` makes a DataFrame of them."""
        import pyarrow as arrow
        import pyarrow.parquet as parquet

        from assay.record.directory import rollout_files
        from assay.record.rollouts import schema

        tables = [parquet.read_table(file) for _, file in rollout_files(self.path)]
        return arrow.concat_tables(tables) if tables else schema().empty_table()

    def svg(self, key: str) -> str:
        """One chart as an SVG file, such as "reward" or "entropy"; `charts` has their names."""
        charts = {chart.key: chart for chart in self._charts}
        if key not in charts:
            raise NotebookError(f"{key!r} is not a chart of this run; its charts are {', '.join(charts)}")
        return drawing.standalone(charts[key], domain(self._charts), marks_of(self._opened))

    @property
    def charts(self) -> list[str]:
        return [chart.key for chart in self._charts]

    @cached_property
    def _charts(self) -> list[Any]:
        run = self._opened
        return charts_of(run, sampled_steps(run.path, run.evidence, best_reward(run.evidence, run.rows)))

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}): {self._opened.report.counts}"

    def _repr_html_(self) -> str:
        """The page in a sandbox: it shares neither origin nor script with the notebook around it."""
        page = html.escape(page_of(self._opened))
        return (
            f'<iframe sandbox="allow-scripts allow-downloads" srcdoc="{page}" title="report of Assay" '
            f'style="width:100%;height:{HEIGHT}px;border:0"></iframe>'
        )


def _pandas() -> Any:
    try:
        import pandas
    except ImportError as error:
        raise NotebookError("tables of a run need pandas: pip install pandas") from error
    return pandas
