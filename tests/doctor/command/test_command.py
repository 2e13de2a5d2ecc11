"""`assay doctor` as it is typed: what goes where, and how it ends."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from assay.cli import FailOn, Format, app
from assay.doctor.catalogue import by_code
from assay.doctor.command import exit_code
from assay.doctor.diagnosis import Diagnosis, Word
from assay.doctor.examples import healthy_batch
from assay.doctor.report import FORMATS, LEVELS, Crash, Report
from assay.record.batch_file import write_batch
from assay.verdict import Confidence, Severity, State, Verdict, finding, healthy

RATIO = by_code("RAT01")
PROVEN, LIKELY, POSSIBLE = (finding("off", confidence=confidence) for confidence in Confidence)
WASTE = finding("slow", severity=Severity.WASTEFUL)
CRASH = Verdict(State.CRASHED, "KeyError: 'x'")


def doctor(*words, **environment):
    return CliRunner().invoke(app, ["doctor", *map(str, words)], env={"COLUMNS": "100", **environment})


@pytest.fixture
def sick(tmp_path):
    (batch,) = RATIO.sick().batches
    write_batch(tmp_path / "sick.safetensors", batch)
    return tmp_path / "sick.safetensors"


@pytest.fixture
def well(tmp_path):
    write_batch(tmp_path / "well.safetensors", healthy_batch())
    return tmp_path / "well.safetensors"


def reports(*verdicts):
    return [Report("x", Diagnosis(tuple(Word(RATIO, verdict) for verdict in verdicts)))]


@pytest.mark.parametrize(
    ("verdict", "codes"),
    [  # with --fail-on error, warning, note, never
        (PROVEN, (1, 1, 1, 0)),
        (LIKELY, (0, 1, 1, 0)),
        (WASTE, (0, 1, 1, 0)),
        (POSSIBLE, (0, 0, 1, 0)),
        (healthy("fine"), (0, 0, 0, 0)),
        (CRASH, (3, 3, 3, 3)),
    ],
    ids=["proven", "likely", "waste", "possible", "healthy", "crashed"],
)
def test_the_exit_code_is_of_the_level(verdict, codes):
    assert tuple(exit_code(reports(verdict), level) for level in (*LEVELS, "never")) == codes


def test_a_finding_that_fails_counts_more_than_a_crash_and_a_crash_more_than_an_unread_input():
    unread, crash = Report("y", Diagnosis(()), unread="y is gone"), Report("z", Diagnosis(()), crash=Crash("E", "e"))
    assert exit_code(reports(PROVEN, CRASH), "error") == 1
    assert exit_code([unread, crash, *reports(PROVEN)], "error") == 1
    assert exit_code(reports(POSSIBLE, CRASH), "error") == 3
    assert exit_code([*reports(CRASH), *reports(healthy("fine"))], "error") == 3
    assert exit_code([unread, crash], "never") == 3
    assert exit_code([unread, *reports(POSSIBLE)], "error") == 2


def test_a_sick_batch_is_named_and_fails(sick):
    done = doctor(sick)
    assert done.exit_code == 1
    assert done.stdout.splitlines()[0] == f"{sick}: 1 batch of step 5"
    assert done.stdout.splitlines()[2] == "harmful  RAT01 ratio_not_one [proven]"
    assert "\x1b" not in done.stdout
    assert done.stderr == ""
    assert doctor(sick, "--fail-on", "never").exit_code == 0


def test_a_healthy_batch_passes_and_says_what_was_looked_at(well):
    done = doctor(well)
    assert done.exit_code == 0, done.stdout
    assert " 0 findings, " in done.stdout.splitlines()[-1]
    assert "healthy  RAT01 ratio_not_one: the first update has ratio 1" not in done.stdout
    assert "healthy  RAT01 ratio_not_one: the first update has ratio 1" in doctor(well, "--explain-all-passes").stdout


def test_select_and_ignore_choose_the_checks(sick):
    assert doctor(sick, "--select", "RAT01").stdout.splitlines()[-1].startswith("1 check: 1 finding")
    assert doctor(sick, "--ignore", "ratio-not-one", "--select", "RAT").exit_code == 0


def test_several_paths_have_a_report_each(sick, well):
    done = doctor(well, sick, "--format", "json")
    assert done.exit_code == 1
    assert [one["source"] for one in json.loads(done.stdout)["reports"]] == [str(well), str(sick)]
    *_, last = doctor(well, sick, "--format", "concise").stdout.splitlines()
    assert last == "2 inputs: 2 read, 1 finding in 1 of them (1 harmful), 1 clean"


@pytest.mark.parametrize("how", FORMATS)
def test_out_takes_what_stdout_would_have(sick, tmp_path, how):
    shown = doctor(sick, "--format", how)
    kept = doctor(sick, "--format", how, "--out", tmp_path / "report")
    assert (kept.exit_code, kept.stdout) == (1, "")
    assert kept.stderr.startswith(f"{tmp_path / 'report'}: ")
    assert (tmp_path / "report").read_text() == shown.stdout


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["nowhere"], "nowhere does not exist; give a run directory"),
        (["WELL", "--select", "RAT1"], "'RAT1' is not the code, name or family of an illness; did you mean RAT01?"),
        (["WELL", "--ignore", "ratio_not_on"], "did you mean ratio_not_one?"),
        (["WELL", "--select", "RAT", "--ignore", "RAT"], "nothing is left to look for"),
        (["WELL", "--select", "REW05"], "REW05 needs a reward to call; try it with: assay reward-check"),
        (["WELL", "--out", "no/such/directory/file"], "no/such/directory/file could not be written: No such file"),
    ],
)
def test_bad_usage_is_one_sentence_and_leaves_stdout_alone(well, words, told, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = doctor(*(well if word == "WELL" else word for word in words))
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("assay: ")
    assert told in done.stderr


@pytest.mark.parametrize("words", [[], ["x", "--format", "xml"], ["x", "--fail-on", "fatal"]])
def test_typer_refuses_other_words(words):
    assert doctor(*words).exit_code == 2


def test_the_options_are_those_of_the_writers():
    assert tuple(Format) == FORMATS
    assert tuple(FailOn) == (*LEVELS, "never")


def test_the_doctor_runs_without_torch(sick):
    code = (
        "import sys; from assay.cli import app\n"
        "try: app(['doctor', sys.argv[1], '--format', 'concise'])\n"
        "except SystemExit as end: print(end.code, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(sick)], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "1 False"
    assert "harmful RAT01 ratio_not_one" in done.stdout
