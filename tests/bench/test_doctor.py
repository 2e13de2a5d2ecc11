"""What the doctor costs: the figures by hand, and one small measurement end to end."""

import json
import sys

import pytest

from assay.config import ConfigError
from benchmarks.doctor import Timed, doctor_overhead, overhead


def test_the_clock_compares_medians_and_the_account_stays_within_one_run():
    runs = [
        Timed("off", 100.0, 0.0),
        Timed("warn", 103.0, 1.0),  # 1 of 102
        Timed("warn", 300.0, 4.0),  # a busy machine: 4 of 296
        Timed("off", 101.0, 0.0),
        Timed("off", 250.0, 0.0),
        Timed("warn", 102.0, 2.0),  # 2 of 100
    ]
    by_clock, by_account = overhead(runs)
    assert by_clock == pytest.approx(103 / 101 - 1)
    assert by_account == pytest.approx(4 / 296)


def test_runs_with_and_without_the_doctor_are_measured_and_written(tmp_path, monkeypatch, capfd, warm_python):
    monkeypatch.setattr(sys, "executable", str(warm_python))
    config = tmp_path / "small.toml"
    config.write_text(
        "[model]\nwarm_steps = 2\n[rollout]\nprompts = 2\ngroup_size = 4\nmax_tokens = 4\n[checkpoint]\nfinal = false\n"
    )
    code = doctor_overhead(config, steps=2, repeats=1, json_path=tmp_path / "overhead.json")
    measured = json.loads((tmp_path / "overhead.json").read_text())
    assert [run["mode"] for run in measured["runs"]] == ["off", "warn"]
    assert measured["runs"][0]["doctor_seconds"] == 0.0 < measured["runs"][1]["doctor_seconds"]
    assert code == int(measured["overhead_by_account"] > 0.02)
    assert "overhead: " in capfd.readouterr().out


def test_a_place_that_does_not_exist_is_refused_before_anything_is_measured(tmp_path):
    with pytest.raises(ConfigError, match="its directory does not exist"):
        doctor_overhead(None, steps=1, repeats=1, json_path=tmp_path / "no" / "overhead.json")
