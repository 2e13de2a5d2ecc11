"""`assay report`, `assay compare`, `assay doctor --format html` as they are typed."""

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from report.pages import parsed, sentence_in, small_run
from typer.testing import CliRunner

from assay.cli import app
from assay.cli.diagnosis import DoctorFormat, Format

ROOT = Path(__file__).parents[2]


def type_in(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def run(tmp_path):
    return small_run(tmp_path / "run")


def test_the_page_is_written_into_the_run_and_its_path_is_printed(run):
    done = type_in("report", run)
    assert done.exit_code == 0, done.output
    assert done.stdout == f"{run}/report.html\n"
    assert "MB in" in done.stderr
    assert parsed((run / "report.html").read_text()).ids()


def test_a_second_page_replaces_the_first_and_the_doctor_does_not_mind_it(run):
    type_in("report", run)
    first = (run / "report.html").read_text()
    type_in("report", run)
    assert (run / "report.html").read_text() == first


def test_the_page_of_a_log_stands_in_the_current_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [{"step": step, "loss": 0.1, "reward": 0.5} for step in range(1, 6)]
    Path("trainer_state.json").write_text(json.dumps({"log_history": rows}))
    assert type_in("report", "trainer_state.json").stdout == "trainer_state-report.html\n"


def test_every_chart_that_shows_anything_becomes_a_file(run, tmp_path):
    done = type_in("report", run, "--svg", tmp_path / "figures")
    files = [Path(line) for line in done.stdout.splitlines()]
    assert tmp_path / "figures" / "reward.svg" in files
    assert tmp_path / "figures" / "heldout.svg" not in files, "nothing was evaluated"
    for file in files:
        ElementTree.parse(file)


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["report", "nowhere"], 2, "nowhere does not exist"),
        (["report", "RUN", "--live", "--out", "x.html"], 2, "--live serves the page"),
        (["report", "RUN", "--out", "missing/page.html"], 2, "missing/page.html could not be written"),
        (["report", "RUN", "--tokenizer", "RUN"], 2, "is not a tokenizer.json"),
        (["report", "RUN", "--against", "nowhere"], 2, "nowhere does not exist"),
        (["compare", "RUN"], 2, "compare needs two runs"),
        (["compare", "RUN", "nowhere"], 2, "nowhere does not exist"),
    ],
)
def test_bad_input_is_one_sentence(run, monkeypatch, tmp_path, words, code, sentence):
    monkeypatch.chdir(tmp_path)
    done = type_in(*(run if word == "RUN" else word for word in words))
    assert done.exit_code == code
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_compare_prints_the_table_and_writes_the_page(run, tmp_path):
    other = small_run(tmp_path / "other", run__seed=9)
    done = type_in("compare", run, other, "--out", tmp_path / "both.html")
    assert done.exit_code == 0, done.output
    assert "run.seed: 1 | 9" in done.stdout
    assert "equal in all 3 steps" in done.stdout
    assert parsed((tmp_path / "both.html").read_text()).data["charts"]


def test_the_doctor_writes_a_page_of_a_script_with_its_code_and_its_edit(tmp_path):
    out = tmp_path / "doctor.html"
    done = type_in("doctor", ROOT / "examples/broken_grpo.py", "--format", "html", "--out", out)
    assert done.exit_code == 0
    page = out.read_text()
    for words in ("KL sign", "per_token_loss = -(surrogate + KL_BETA * kl)", "@@ -130,3 +130,3 @@", "About KL01"):
        assert sentence_in(page, words)


def test_the_doctor_writes_one_page_of_several_inputs(run, tmp_path):
    (tmp_path / "empty.py").write_text("x = 1\n")
    out = tmp_path / "doctor.html"
    type_in("doctor", run, tmp_path / "empty.py", ROOT / "examples/broken_grpo.py", "--format", "html", "--out", out)
    page = out.read_text()
    assert sentence_in(page, "Temperature mismatch")
    assert sentence_in(page, "Other inputs")


def test_the_doctor_of_a_run_writes_the_page_of_the_run_with_the_chosen_checks(run, tmp_path):
    out = tmp_path / "doctor.html"
    type_in("doctor", run, "--select", "MET", "--format", "html", "--out", out)
    page = out.read_text()
    assert sentence_in(page, "Curves")
    assert "About LAW" not in page


def test_the_formats_of_the_doctor_are_those_of_watch_and_a_page():
    assert list(map(str, DoctorFormat)) == [*map(str, Format), "html"]
