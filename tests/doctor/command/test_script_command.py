"""`assay doctor` on scripts as they lie about: beside logs, given twice, in notebooks; places and edits that hold."""

import json
import os
from pathlib import Path

import jsonschema
import pytest
from typer.testing import CliRunner

from assay.cli import app
from assay.doctor.catalogue import by_code, catalogue
from assay.doctor.diagnosis import diagnose
from assay.doctor.evidence import Evidence
from assay.doctor.prove_edits import with_edits
from assay.programs.edits import applied
from assay.programs.read.script import read_program

ILLNESSES = [one for one in catalogue() if one.source is not None]
SICK = by_code("RAT04").scripts.sick  # the ratio upside down
RATIO = "        ratio = torch.exp(old - new)"
SARIF = json.loads((Path(__file__).parents[1] / "report/sarif-2.1.0.json").read_text())
STATE = json.dumps({"log_history": [{"step": 1, "reward": 0.1}, {"step": 2, "reward": 0.2}]})


def doctor(*words):
    return CliRunner().invoke(app, ["doctor", *map(str, words)], env={"COLUMNS": "100"})


def reports(*words):
    done = doctor(*words, "--format", "json")
    assert done.exit_code in (0, 1), done.stderr
    whole = json.loads(done.stdout)
    return whole.get("reports", [whole])


def sources(*words):
    return [Path(one["source"]).name for one in reports(*words)]


def written(folder, text, name="grpo.py"):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def notebook(*cells):
    return json.dumps({"nbformat": 4, "cells": [{"cell_type": "code", "source": cell} for cell in cells]})


def edit_of(text, code, folder):
    program = read_program(written(folder, text))
    diagnosis = with_edits(diagnose(Evidence(programs=(program,)), ILLNESSES), (program,))
    (word,) = [one for one in diagnosis.findings if one.code == code]
    return word.verdict.edit


# which files are looked at


def test_in_a_directory_with_logs_and_scripts_both_are_looked_at(tmp_path):
    written(tmp_path, STATE, "outputs/trainer_state.json")
    written(tmp_path, SICK)
    whole = reports(tmp_path)
    assert [Path(one["source"]).name for one in whole] == [tmp_path.name, "grpo.py"]
    assert "curves of 2 steps" in whole[0]["looked_at"]
    assert [one["code"] for one in whole[1]["findings"]] == ["RAT04"]


def test_a_log_that_cannot_be_read_keeps_nobody_from_the_scripts_beside_it(tmp_path):
    written(tmp_path, ":W&B", "wandb/run-1/run-1.wandb")
    written(tmp_path, SICK)
    done = doctor(tmp_path, "--format", "json")
    first, second = json.loads(done.stdout)["reports"]
    assert done.exit_code == 2
    assert "wandb sync" in first["unread"]
    assert second["findings"]


def test_questions_and_the_settings_of_a_project_are_neither_a_log_nor_a_run(tmp_path):
    written(tmp_path, '{"prompt": "1+1", "completion": "2"}\n', "data/math500.jsonl")
    written(tmp_path, "[tool]\n", "config.toml")
    written(tmp_path, STATE, ".cache/trainer_state.json")
    written(tmp_path, SICK)
    assert sources(tmp_path) == ["grpo.py"]


def test_a_path_that_is_given_twice_is_looked_at_once(tmp_path):
    path = written(tmp_path, SICK)
    assert sources(path, path) == ["grpo.py"]
    assert sources(tmp_path, path) == ["grpo.py"]


def test_a_finding_of_its_own_is_told_beside_one_in_a_shared_file(tmp_path):
    shared = "import torch\n\n\ndef ratio_of(new, old):\n    return torch.exp(old - new)\n"
    own = SICK.replace("import torch\n", "import torch\nfrom shared import ratio_of\n", 1)
    written(tmp_path, shared, "shared.py")
    first = written(tmp_path, own.replace(RATIO, "        ratio = ratio_of(new, old)"), "first.py")
    both = RATIO + "\n        loss2 = -torch.min(ratio_of(new, old) * advantages, ratio_of(new, old) * advantages)"
    second = written(tmp_path, own.replace(RATIO, both), "second.py")
    alone = [place["file"] for one in reports(second)[0]["findings"] for place in one["places"]]
    assert str(second) in alone
    told = reports(first, second)
    assert [[one["code"] for one in report["findings"]] for report in told] == [["RAT04"], ["RAT04"]]


def test_what_cannot_be_opened_is_one_sentence(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path, told in ((tmp_path / ("a" * 300), "File name too long"), (tmp_path / "pipe", "write it to a file first")):
        done = doctor(path)
        assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
        assert told in done.stderr


def test_a_script_that_is_no_python_keeps_nobody_from_the_others(tmp_path):
    broken, sick = written(tmp_path, "def f(:\n", "broken.py"), written(tmp_path, SICK)
    done = doctor(broken, sick, "--format", "json")
    first, second = json.loads(done.stdout)["reports"]
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert f"{broken}:1 is not valid Python" in done.stderr
    assert "is not valid Python" in first["unread"]
    assert [one["code"] for one in second["findings"]] == ["RAT04"]
    assert (doctor(broken).exit_code, doctor(broken).stdout) == (2, "")


def test_a_script_that_trains_nothing_is_told_so(tmp_path):
    note = "no loss, optimizer or sampling was recognised here"
    empty = doctor(written(tmp_path, "", "empty.py")).stdout
    assert "the source, 0 lines\n" in empty
    assert note in empty
    assert note not in doctor(written(tmp_path, SICK)).stdout
    assert note not in doctor(tmp_path / "empty.py", "--select", "RAT04").stdout
    supervised = "import torch\nmodel = torch.nn.Linear(2, 2)\nmodel(torch.ones(2)).sum().backward()\n"
    assert note not in doctor(written(tmp_path, supervised, "supervised.py")).stdout


def test_of_an_empty_directory_it_is_said_that_scripts_may_be_given(tmp_path):
    (tmp_path / "empty").mkdir()
    assert "or one that holds scripts" in doctor(tmp_path / "empty").stderr


# comments


@pytest.mark.parametrize(
    ("comment", "is_silent"),
    [
        ("# assay: ignore", True),
        ("# assay: ignore[rat04]", True),
        ("#assay:ignore[KL01; RAT04](known)", True),
        ("# noqa: E501  # assay: ignore[RAT04] known", True),
        ("# ASSAY: Ignore[RAT04", True),  # never closed
        ("# assay: ignore[inverted]", True),
        ("# assay: ignore[kl-sign, Inverted]", True),
        ("# assay: ignore[KL01", False),
        ("# assay: ignoreme", False),
        ("# assay: ignores[RAT04]", False),
        ("# assay: ignore[KL01]", False),
    ],
)
def test_a_comment_silences_what_it_names_and_no_more(comment, is_silent, tmp_path):
    (report,) = reports(written(tmp_path, SICK.replace(RATIO, f"{RATIO}  {comment}")))
    assert ("RAT04" in {one["code"] for one in report["findings"]}) is not is_silent


def test_a_comment_at_the_end_of_a_statement_says_nothing_of_the_next(tmp_path):
    above = "        other = 1  # assay: ignore[RAT04]\n"
    (report,) = reports(written(tmp_path, SICK.replace(RATIO, above + RATIO)))
    assert [one["code"] for one in report["findings"]] == ["RAT04"]
    assert "silences nothing" in report["notes"][0]


def test_a_comment_that_names_no_code_is_told(tmp_path):
    path = written(tmp_path, SICK.replace(RATIO, f"{RATIO}  # assay: ignore[RAT4]"))
    (report,) = reports(path)
    assert report["notes"] == [f"{path}:29: ignore[RAT4] is not a code; did you mean RAT04?"]


def test_what_a_comment_silences_is_told_with_its_reason(tmp_path):
    path = written(tmp_path, SICK.replace(RATIO, f"{RATIO}  # assay: ignore[inverted] on purpose"))
    (report,) = reports(path)
    assert report["notes"] == [f"{path}:29: RAT04 is silenced by a comment: on purpose"]


# places and edits


def test_columns_count_characters(tmp_path):
    text = SICK.replace(RATIO, RATIO.replace("ratio =", "\u4e2d = '\u00e4\u00f6\u00fc'; ratio ="))
    edit = edit_of(text, "RAT04", tmp_path)
    assert applied(text, [edit]) == text.replace("old - new", "new - old")


def test_an_edit_keeps_comments_and_long_texts_and_calls_torch_by_its_name(tmp_path):
    spread = by_code("ADV04").scripts.sick
    call = "rewards.std(dim=1, keepdim=True)"
    assert call in spread
    for written_so in (
        "rewards.std(\n            dim=1,  # a group\n            keepdim=True)",
        f"rewards.std(dim=1, {' ' * 20}unbiased={'not ' * 30}True, keepdim=True)",
    ):
        text = spread.replace(call, written_so)
        assert applied(text, [edit_of(text, "ADV04", tmp_path)]) == spread.replace(call, f"{written_so} + 1e-4")
    renamed = by_code("RAT08").scripts.sick.replace("import torch\n", "import torch as th\n").replace("torch.", "th.")
    assert edit_of(renamed, "RAT08", tmp_path).replacement == "th.exp(new - old)"


def test_a_finding_in_a_cell_has_no_line_and_no_edit_of_the_file(tmp_path):
    path = written(tmp_path, notebook("x = 1", SICK), "book.ipynb")
    whole = json.loads(doctor(path, "--format", "sarif").stdout)
    jsonschema.Draft7Validator(SARIF).validate(whole)
    (result,) = whole["runs"][0]["results"]
    (location,) = result["locations"]
    line = SICK.split("\n").index(RATIO) + 1
    assert location["physicalLocation"]["artifactLocation"]["uri"].endswith("/book.ipynb")
    assert "region" not in location["physicalLocation"]
    assert location["logicalLocations"] == [{"fullyQualifiedName": f"cell 2, line {line}"}]
    assert "fixes" not in result
    annotation = doctor(path, "--format", "github").stdout.splitlines()[0]
    assert "line=" not in annotation
    assert f"%0Acell 2, line {line}%0A" in annotation


def test_a_cell_that_is_left_out_is_told(tmp_path):
    (report,) = reports(written(tmp_path, notebook("x = 1", "def f(:"), "book.ipynb"))
    left_out = f"{tmp_path / 'book.ipynb'}: code cell 2 is left out: line 1 is not valid Python (invalid syntax)"
    assert report["notes"] == [left_out, "no loss, optimizer or sampling was recognised here"]


def test_markdown_holds_the_edit(tmp_path):
    page = doctor(written(tmp_path, SICK), "--format", "md").stdout
    old, new = (f"        ratio = torch.exp({text})" for text in ("old - new", "new - old"))
    assert f"\n-{old}\n+{new}\n" in page
    assert page.count("```") == 2
