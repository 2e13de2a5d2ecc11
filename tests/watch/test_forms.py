"""Faults in forms that proof/scripts does not have, in scripts with tokens and in scripts with a few actions."""

import json

import pytest
from fixtures.cases import thorough
from watch.forms import FAULTS, SCRIPTS, SOUND


def report_on(serve, tmp_path, script, edits):
    text = (SCRIPTS / script).read_text()
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    path = tmp_path / "script.py"
    path.write_text(text)
    done = serve(path, how="json")
    assert done["code"] == 0, done["words"]
    return json.loads(done["text"])


def some(table):
    names = sorted(table)
    return [*names[::2], *thorough(*names[1::2])]


@pytest.mark.parametrize("name", some(FAULTS))
def test_a_fault_is_named(serve, tmp_path, name):
    script, codes, edits = FAULTS[name]
    report = report_on(serve, tmp_path, script, edits)
    found = [finding["code"] for finding in report["findings"] if finding["confidence"] in ("proven", "likely")]
    assert codes & set(found), found
    assert report["crashed"] == []


@pytest.mark.parametrize("name", some(SOUND))
def test_a_sound_form_is_read_and_left_alone(serve, tmp_path, name):
    script, edits = SOUND[name]
    report = report_on(serve, tmp_path, script, edits)
    assert [finding for finding in report["findings"] if finding["confidence"] != "possible"] == []
    assert report["crashed"] == []
    assert [note for note in report["notes"] if "fault of assay" in note] == []
    if name != "rewards of 0 and 1 without a baseline":  # they may be a mask
        assert {"RAT04", "LOSS01", "OPT02", "NUM01"} <= {one["code"] for one in report["passed"]}


def test_the_batches_of_a_small_policy_hold_what_the_laws_need(serve, tmp_path):
    report = report_on(serve, tmp_path, "episodes.py", [])
    looked = {one["code"] for one in report["passed"]}
    assert {f"LAW{number:02}" for number in (1, 3, 4, 5, 6, 7, 11)} <= looked  # starts are repeated within groups
    assert {"RAT01", "RAT02", "CLIP01", "ADV01"} <= looked


@pytest.mark.parametrize(
    ("name", "lacking"),
    [
        ("a replay buffer", "rows of earlier rollout batches are trained again"),
        ("plain numpy", "which draw each trained action comes from is not known"),
    ],
)
def test_what_is_not_known_of_the_rows_is_said(serve, tmp_path, name, lacking):
    assert any(lacking in note for note in report_on(serve, tmp_path, *SOUND[name])["notes"])


@pytest.mark.parametrize("name", ["neg_cost", "cost_saved", "inverse_costs"])
def test_a_reward_whose_name_speaks_of_a_cost_is_not_called_one(serve, tmp_path, name):
    edits = [
        ("table = rewards", f"{name} = rewards"),
        (
            "((table - table.mean(1, keepdim=True)) / (table.std(",
            f"(({name} - {name}.mean(1, keepdim=True)) / ({name}.std(",
        ),
        ("torch.min(ratio * advantages, clipped * advantages).mean()", "(advantages * new).mean()"),
    ]
    report = report_on(serve, tmp_path, "bandit_groups.py", edits)
    assert "LOSS01" not in [finding["code"] for finding in report["findings"]]
