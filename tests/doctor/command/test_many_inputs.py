"""`assay doctor` on many files: findings first, a line for each clean one, one line for what lacks data, a sum last."""

import json
import shutil
from pathlib import Path

import jsonschema
import pytest
from typer.testing import CliRunner

from assay.cli import app
from assay.doctor.catalogue import by_code
from assay.doctor.diagnosis import Diagnosis, Word
from assay.doctor.report import FORMATS, Report, write
from assay.doctor.report.text import MOST_CLEAN, MOST_NOTES
from assay.verdict import State, Verdict, healthy

SCRIPTS = by_code("RAT04").scripts
SCHEMA = Path(__file__).parents[3] / "assay/doctor/report/schema-1.json"


def doctor(*words):
    return CliRunner().invoke(app, ["doctor", *map(str, words)], env={"COLUMNS": "100"})


def folder_of(path, *, sick=0, well=0, idle=0, broken=0):
    texts = {"sick": SCRIPTS.sick, "well": SCRIPTS.well, "idle": "x = 1\n", "broken": "def f(:\n"}
    for (name, text), count in zip(texts.items(), (sick, well, idle, broken), strict=True):
        for number in range(count):
            (path / f"{number:02}_{name}.py").write_text(text)
    return path


def test_findings_stand_first_and_the_sum_last(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # lines are broken by their length, whatever the path of the test is
    lines = doctor(folder_of(Path(), sick=2, well=3, idle=2, broken=1)).stdout.splitlines()
    heads = [number for number, line in enumerate(lines) if line.startswith("fatal    RAT04 inverted")]
    clean = [number for number, line in enumerate(lines) if line.startswith("clean    ")]
    assert lines[0] == "00_sick.py: the source, 36 lines"
    assert (len(heads), len(clean)) == (2, 3)
    assert max(heads) < min(clean)
    idle = next(line for line in lines if line.startswith("nothing to judge  "))
    assert "00_idle.py" in idle + lines[lines.index(idle) + 1]
    assert sum(line.startswith("not enough data") for line in lines) == 1
    summary = (
        "8 inputs: 7 read, 2 findings in 2 of them (2 fatal), 3 clean, 2 with nothing to judge, 1 could not be read"
    )
    assert " ".join(" ".join(lines).split()).endswith(summary)


def test_many_clean_files_are_counted_and_listed_where_that_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = doctor(folder_of(Path(), sick=1, well=MOST_CLEAN + 1, idle=9)).stdout.splitlines()
    assert f"clean    {MOST_CLEAN + 1} inputs; --explain-all-passes lists them" in lines
    assert len(lines) < 25
    every = doctor(".", "--explain-all-passes").stdout
    assert all(f"{number:02}_well.py: the source" in every for number in range(MOST_CLEAN + 1))
    assert every.splitlines()[-1].startswith("31 inputs: 31 read, 1 finding in 1 of them (1 fatal), 21 clean, 9 with")


def test_json_holds_the_same_sum(tmp_path):
    folder_of(tmp_path, sick=2, well=3, idle=2, broken=1)
    whole = json.loads(doctor(tmp_path, "--format", "json").stdout)
    jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text())).validate(whole)
    assert whole["summary"] == {
        "inputs": 8,
        "read": 7,
        "with_findings": 2,
        "findings": {"fatal": 2, "harmful": 0, "wasteful": 0},
        "clean": 3,
        "nothing_to_judge": 2,
        "incomplete": 0,
        "unread": 1,
        "crashed_checks": 0,
        "crashed_inputs": 0,
    }
    alone = json.loads(doctor(tmp_path / "00_sick.py", "--format", "json").stdout)
    jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text())).validate(alone)
    assert (alone["summary"]["inputs"], alone["summary"]["findings"]["fatal"]) == (1, 1)


@pytest.mark.parametrize("how", ["full", "concise", "github", "md"])
def test_every_format_for_readers_is_short_and_ends_with_the_sum(how, tmp_path):
    folder_of(tmp_path, sick=1, well=30, idle=14)
    text = doctor(tmp_path, "--format", how).stdout
    assert len(text.splitlines()) < 30
    assert "45 inputs: 45 read, 1 finding in 1 of them (1 fatal), 30 clean, 14 with nothing to judge" in text
    assert text.index("RAT04") < text.index("45 inputs") or how == "md"


@pytest.mark.parametrize("how", FORMATS)
def test_the_exit_code_does_not_depend_on_the_format(how, tmp_path):
    folder_of(tmp_path, sick=1, well=1)
    assert doctor(tmp_path, "--format", how).exit_code == 0
    assert doctor(tmp_path, "--format", how, "--fail-on", "warning").exit_code == 1


def test_the_finding_of_one_file_is_on_the_first_screen(tmp_path):
    ignores = "".join(f"x{number} = {number}  # assay: ignore[RAT4{number}]\n" for number in range(20))
    path = tmp_path / "script.py"
    path.write_text(ignores + SCRIPTS.sick)
    lines = doctor(path).stdout.splitlines()
    assert any(line.startswith("fatal    RAT04") for line in lines[:24])
    assert f"note     {20 - MOST_NOTES + 1} more with --explain-all-passes" in lines
    assert doctor(path, "--explain-all-passes").stdout.count("ignore[RAT4") == 20


def test_a_note_of_a_clean_file_is_not_lost(tmp_path):
    folder_of(tmp_path, well=2)
    (tmp_path / "noted.py").write_text(SCRIPTS.well + "x = 1  # assay: ignore[RAT4]\n")
    for how in ("full", "concise", "github", "md"):
        assert "RAT4" in doctor(tmp_path, "--format", how).stdout


def test_a_check_that_crashed_is_named_and_its_input_is_not_called_clean():
    illness = by_code("RAT04")
    crashed = Report("a.py", Diagnosis((Word(illness, Verdict(State.CRASHED, "KeyError: 'x'")),), {}, ("odd",)), "it")
    clean = Report("b.py", Diagnosis((Word(illness, healthy("fine")),)), "it")
    for how in ("full", "concise", "md", "github"):
        text = write([crashed, clean], how)
        assert "2 inputs: 2 read, 0 findings, 1 clean, 1 incomplete, 1 check crashed" in text
        assert "KeyError" in text
        assert "odd" in text


def test_a_folder_that_is_copied_gives_the_same_report(tmp_path):
    (tmp_path / "a").mkdir()
    folder_of(tmp_path / "a", sick=1, well=2, broken=1)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    first, second = (doctor(tmp_path / name).stdout.replace(f"/{name}/", "/") for name in "ab")
    assert first == second
