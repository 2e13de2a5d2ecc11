"""The runs of a benchmark, with a stand-in for the workers: who runs when, with what settings, and what comes of it."""

import json
from dataclasses import replace

import pytest

from benchmarks.model.benchmark import run_benchmark
from benchmarks.model.options import Options
from benchmarks.model.workload import Workload

SMALL = Workload(prompts=4, group_size=4, prompt_tokens=8, new_tokens=8)


@pytest.fixture
def measured(stand_ins, tmp_path):
    """Runs a benchmark of stand-ins; gives its exit code and its document."""

    def run(*measurements, **others):
        path = tmp_path / "bench.json"
        code = run_benchmark(replace(Options("tiny", SMALL, measurements, timed=1, json_path=path), **others))
        return code, json.loads(path.read_text())

    return run


def test_peers_run_with_the_settings_that_were_fastest(measured, capsys):
    code, document = measured("rollout", "update", "step", repeats=2)
    assert code == 0
    assert document["choices"]["trl"]["batch"] == 4
    assert document["choices"]["generate"]["cache"] == "static"
    assert [one["choice"]["batch"] for one in document["turns"][0]["readings"]] == [16, 8, 4]
    assert document["order"] == ["assay", "trl", "generate", "generate", "trl", "assay"]
    assert document["ratios"]["step"]["trl"] == [{"wall": 6.0, "cpu": 6.0}] * 2  # 4 s, half as much more by its cache
    assert document["ratios"]["rollout"]["generate"] == [{"wall": 2.0, "cpu": 2.0}] * 2
    assert list(document["summaries"]["rollout"]) == ["assay", "trl", "generate"]
    assert document["notes"] == ["by assay", "by trl", "by generate"]
    printed = capsys.readouterr()
    assert "trl ran with 4 rows per device" in printed.out
    titles = [line for line in printed.err.splitlines() if not line.startswith("assay: ")]
    assert titles[:4] == [
        "preparing tiny: the model, the floors of the device",
        "looking for the fastest settings of trl",
        "looking for the fastest settings of generate",
        "run 1 of 6: assay, rollout, update, step",
    ]


def test_a_step_alone_is_shown_without_the_rollout_inside_it(measured):
    code, document = measured("step", repeats=1, peer_batch=16, peer_caches=("dynamic",))
    assert code == 0
    assert list(document["summaries"]) == ["step"]
    assert [run["name"] for run in document["turns"]] == ["0-assay", "1-trl"]  # nothing was left to be tried
    assert document["choices"]["trl"] == {"cache": "dynamic", "batch": 16, "autocast": False, "checkpointing": False}


def test_scaling_alone_runs_ours_alone(measured, capsys):
    code, document = measured("scaling")
    assert (code, document["order"]) == (0, [])
    rows = document["scaling"]
    assert {row["contender"] for row in rows} == {"assay"}
    assert sorted(row["workload"]["new_tokens"] for row in rows) == [2, 4, *[8] * 6, 16]
    assert all(row["measurement"] == "step" for row in rows)
    assert "prompt tokens" in capsys.readouterr().out


def test_scaling_of_all(measured):
    code, document = measured("scaling", scale_peers=True, peer_batch=4, peer_caches=("static",))
    assert code == 0
    by_name = {row["contender"]: row["measurement"] for row in document["scaling"]}
    assert by_name == {"assay": "step", "trl": "step", "generate": "rollout"}


def test_unequal_lengths_are_refused(measured, monkeypatch, capsys):
    monkeypatch.setenv("STAND_IN_FAULT", "short")
    code, document = measured("rollout", repeats=1)
    assert code == 1
    assert document["ratios"] == {}
    assert document["unequal_work"] == [
        "not the same work: generate, rollout made completions of 7 to 7 tokens instead of 8"
    ]
    printed = capsys.readouterr().out
    assert "7 to 7 tokens instead of 8" in printed
    assert "/ assay's" not in printed


def test_settings_that_break_a_peer_are_left_out(measured, monkeypatch, capsys):
    monkeypatch.setenv("STAND_IN_FAULT", "tuning")
    code, document = measured("rollout", repeats=1)
    assert code == 0
    assert document["choices"]["generate"]["cache"] == "static"
    assert "one of them broke and is left out" in capsys.readouterr().err


def test_a_warm_up_that_was_asked_for_is_made(measured):
    _, document = measured("rollout", repeats=1, contenders=("assay",), warmup=3)
    ((reading,),) = (run["readings"] for run in document["turns"])
    assert (reading["job"]["warmup"], len(reading["iterations"])) == (3, 4)
