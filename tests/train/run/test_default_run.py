"""The embedded default as a newcomer runs it, with half of the steps: it must learn, and what it says must be true."""

import json
import subprocess
import sys

import pytest


@pytest.fixture(scope="module")
def default_run(tmp_path_factory):
    path = tmp_path_factory.mktemp("default") / "run"
    command = [sys.executable, "-m", "assay", "train", "--set", "run.steps=60", "--out", str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return path, done.stderr


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_reward_climbs_from_about_a_third_to_above_085(default_run):
    path, _ = default_run
    rewards = [row["reward_mean"] for row in rows(path / "metrics.jsonl")]
    assert 0.2 < rewards[0] < 0.4
    assert sum(rewards[-10:]) / 10 > 0.85


def test_the_score_on_problems_never_trained_on_climbs_too(default_run):
    path, _ = default_run
    before, after = rows(path / "evaluations.jsonl")
    assert before["reward_sampled"] < 0.45
    assert after["reward_sampled"] > 0.8
    assert after["reward_greedy"] > before["reward_greedy"]


def test_every_step_is_exact(default_run):
    path, _ = default_run
    for row in rows(path / "metrics.jsonl"):
        assert row["first_ratio_max_deviation"] == 0.0
        assert row["mismatch_max"] <= 5e-5
        assert row["updates_skipped"] == 0


def test_the_log_is_no_wall_and_ends_with_the_way_to_the_run(default_run):
    path, log = default_run
    assert len(log.splitlines()) < 110
    for stage in ("1 start", "2 generated", "3 scored", "4 loss", "5 stepped"):
        assert stage in log
    assert str(path) in log.splitlines()[-3] + log.splitlines()[-2] + log.splitlines()[-1]
