"""SARIF 2.1.0, checked by hand against the standard: which keys an object may have, and which it must."""

import json

import pytest

from assay.doctor.catalogue import KINDS, catalogue, illnesses_looking_at
from assay.doctor.diagnosis import Diagnosis, Word, diagnose
from assay.doctor.evidence import Evidence
from assay.doctor.report import Report, write
from assay.verdict import Fact, State, Verdict, finding

RULE = {"id", "name", "shortDescription", "fullDescription", "help", "helpUri", "defaultConfiguration", "properties"}
RESULT = {"ruleId", "ruleIndex", "level", "message", "locations", "partialFingerprints", "properties"}
LEVELS = {"none", "note", "warning", "error"}
KNOWN = {one.code: one for one in catalogue()}
SICK = KNOWN["RAT01"]


def sarif(*words, path="runs/x", notes=(), causes=None):
    diagnosis = Diagnosis(tuple(words), causes or {}, notes)
    whole = json.loads(write([Report(path, diagnosis)], "sarif"))
    (run,) = whole["runs"]
    return whole, run


def found(message="off by 0.31", path="runs/x", source=""):
    _, run = sarif(Word(SICK, finding(message, Fact("largest", 0.3)), source, 1), path=path)
    (result,) = run["results"]
    return result


def test_the_log_has_the_shape_of_the_standard():
    evidence = SICK.sick()
    whole = json.loads(write([Report.of("x", evidence, diagnose(evidence))], "sarif"))
    assert set(whole) == {"$schema", "version", "runs"}
    assert whole["version"] == "2.1.0"
    (run,) = whole["runs"]
    assert set(run) == {"tool", "columnKind", "invocations", "results"}
    assert set(run["tool"]["driver"]) == {"name", "version", "rules"}
    rules = run["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == [one.code for one in illnesses_looking_at(*KINDS)]
    for rule in rules:
        assert set(rule) <= RULE
        assert rule["help"]["markdown"].startswith("## What it checks")
        assert rule["properties"]["precision"] in {"very-high", "high", "medium", "low"}
        assert rule["properties"]["problem.severity"] in {"error", "warning", "recommendation"}
        assert rule["defaultConfiguration"]["level"] in LEVELS
    for result in run["results"]:
        assert set(result) <= RESULT
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in LEVELS
        assert all(isinstance(value, str) for value in result["partialFingerprints"].values())


def test_a_finding_has_its_numbers_and_its_fix():
    result = found()
    assert result["message"]["text"] == f"off by 0.31. largest = 0.3. Fix: {SICK.fix}"
    assert (result["ruleId"], result["level"]) == ("RAT01", "error")


def test_braces_are_no_placeholders():
    assert found("sees {0} of {x}")["message"]["text"].startswith("sees {{0}} of {{x}}.")


@pytest.mark.parametrize(
    ("path", "uri"),
    [("runs/a b", "runs/a%20b"), ("./runs/x", "runs/x"), ("/nowhere/x", "file:///nowhere/x"), ("HERE", "run")],
)
def test_locations_are_relative_to_the_working_directory(path, uri, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = found(path=str(tmp_path / "run") if path == "HERE" else path)
    assert result["locations"] == [{"physicalLocation": {"artifactLocation": {"uri": uri}}}]


def test_the_file_of_the_evidence_is_named_where_there_is_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run/examined").mkdir(parents=True)
    for name in ("examined/step-000001-update-1.safetensors", "metrics.jsonl"):
        (tmp_path / "run" / name).touch()
    results = [
        found(path="run", source=source)
        for source in ("step-000001-update-1.safetensors", "", "step 5 of the recorded rollouts")
    ]
    places = [result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for result in results]
    assert places == ["run/examined/step-000001-update-1.safetensors", "run/metrics.jsonl", "run"]
    # a later batch of the same run is the same finding
    assert len({result["partialFingerprints"]["primaryLocationLineHash"] for result in results}) == 1


def test_the_fingerprint_is_of_illness_and_path_and_not_of_numbers():
    told = (("off by 0.31",), ("off by 0.4",), ("off by 0.4", "runs/x", "step 9"), ("off by 0.31", "runs/y"))
    prints = [found(*words)["partialFingerprints"]["primaryLocationLineHash"] for words in told]
    assert prints[0] == prints[1] == prints[2] != prints[3]
    assert prints[0] == "22a3cf3df4648874:1"  # the same on every machine and in every version


def test_a_crashed_check_is_a_notification_and_no_success():
    _, run = sarif(Word(SICK, Verdict(State.CRASHED, "KeyError: 'x'")), notes=("a line is torn",))
    (invocation,) = run["invocations"]
    assert invocation["executionSuccessful"] is False
    crash, note = invocation["toolExecutionNotifications"]
    assert crash["descriptor"] == {"id": "RAT01"}
    assert crash["message"]["text"] == "the check RAT01 crashed on runs/x: KeyError: 'x'"
    assert (crash["level"], note["level"], note["message"]["text"]) == ("error", "note", "a line is torn")
    _, run = sarif(Word(SICK, finding("off"), batches=1))
    assert run["invocations"][0] == {"executionSuccessful": True, "toolExecutionNotifications": []}


def test_several_paths_are_one_run():
    reports = [Report(path, Diagnosis((Word(SICK, finding("off")),))) for path in ("runs/x", "runs/y")]
    (run,) = json.loads(write(reports, "sarif"))["runs"]
    assert len(run["results"]) == 2
    assert len(run["tool"]["driver"]["rules"]) == 1


def test_nothing_found_is_an_empty_list_of_results():
    _, run = sarif()
    assert run["results"] == []
    assert json.loads(write([Report.of("x", Evidence(), diagnose(Evidence()))], "sarif"))["runs"][0]["results"] == []
