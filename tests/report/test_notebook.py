"""`assay.Run` in a notebook."""

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from report.pages import small_run

import assay
from assay.record import RunError
from assay.report.notebook import NotebookError

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return assay.Run(small_run(tmp_path_factory.mktemp("notebook") / "run"))


def test_metrics_are_a_table_with_a_row_per_step(run):
    assert run.metrics["step"].tolist() == [1, 2, 3]
    assert run.metrics["reward_mean"].tolist() == pytest.approx([4 / 3] * 3)
    assert run.timings["seconds_generated"].tolist() == [1.5] * 3
    assert len(run.evaluations) == 0


def test_rollouts_are_a_table_with_a_row_per_completion(run):
    assert run.rollouts.num_rows == 12
    assert run.rollouts.to_pandas()["reward"].dropna().tolist()[:3] == [1.0, 0.0, 3.0]


def test_findings_are_a_table_even_if_there_are_none(run):
    assert {"code", "severity", "confidence", "message", "fix"} <= set(run.findings.columns)


def test_it_shows_itself_as_a_page_and_as_a_line(run):
    assert run._repr_html_().startswith("<iframe sandbox=")
    assert "checks" in repr(run)


def test_a_chart_is_an_svg_and_an_unknown_one_names_the_others(run):
    ElementTree.fromstring(run.svg("reward"))
    with pytest.raises(NotebookError, match="reward, heldout"):
        run.svg("rewards")


def test_what_is_not_a_run_is_reported_at_once(tmp_path):
    with pytest.raises(RunError, match="is empty"):
        assay.Run(tmp_path)


def test_the_page_of_the_docs_is_right(tmp_path, monkeypatch):
    (tmp_path / "runs").mkdir()
    small_run(tmp_path / "runs" / "sort")
    monkeypatch.chdir(tmp_path)
    (source,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs/report.md").read_text(), re.DOTALL | re.MULTILINE)
    names = {}
    exec(source, names)
    assert names["run"].charts[0] == "reward"
