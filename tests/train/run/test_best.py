"""The best weights by held-out score, and runs that stop when it no longer gets better."""

import json
import shutil

import pytest
import torch
from fixtures.cases import thorough
from fixtures.commands import Trap, assert_same_bits, rows, settings
from safetensors.torch import load_file

from assay.train.run.best import best_row, evaluations_since_best

OFTEN = {"run__steps": 6, "evaluate__every": 1, "evaluate__prompts": 16, "checkpoint__keep": 20}
BREAKING = {**OFTEN, "run__steps": 9, "optimizer__learning_rate": 0.1, "evaluate__patience": 2}  # destroys the model


def scores(*values):
    return [{"step": 5 * place, "reward_sampled": value} for place, value in enumerate(values)]


def test_the_best_is_the_first_of_the_highest_scores():
    assert best_row([]) is None
    assert best_row(scores(None, None)) is None
    assert best_row(scores(0.1, 0.5, 0.3, 0.5))["step"] == 5
    assert best_row(scores(None, -2.0, -1.0))["step"] == 10


def test_evaluations_since_the_best_are_counted_by_hand():
    counts = {(0.1,): 0, (0.1, 0.2): 0, (0.2, 0.1, 0.2): 2, (0.2, None): 1}
    assert {values: evaluations_since_best(scores(*values)) for values in counts} == counts


@pytest.fixture(scope="module")
def run(assay_command, run_root):
    path = run_root / "with-best"
    ended = assay_command.run("train", *settings(**OFTEN), "--out", path)
    assert ended.code == 0, ended.stderr
    return path, ended


def test_best_holds_the_weights_with_the_best_score(assay_command, run):
    path, ended = run
    best = max(rows(path / "evaluations.jsonl"), key=lambda row: row["reward_sampled"])
    assert best["step"] > 0, "the run has to get better for this test"
    kept = load_file(path / "best/model.safetensors")
    saved = load_file(path / f"checkpoints/update-{best['step'] * 4:08d}/weights.safetensors")
    assert kept
    assert all(torch.equal(kept[name], saved[name]) for name in kept)
    again = assay_command.run("eval", path, "--checkpoint", "best", "--json")
    row = json.loads(again.stdout)
    assert (row["step"], row["reward_sampled"]) == (best["step"], best["reward_sampled"])
    assert f"after step {best['step']}" in (path / "best/README.md").read_text()
    assert [event["step"] for event in rows(path / "events.jsonl") if event["kind"] == "best"][-1] == best["step"]
    assert f"after step {best['step']}" in next(line for line in ended.stderr.splitlines() if line.startswith("best "))
    assert assay_command.run("verify", path).code == 0


def test_best_can_be_exported_and_can_begin_a_new_run(assay_command, run, run_path):
    path, _ = run
    assert assay_command.run("export", path, "--checkpoint", "best", "--out", run_path).code == 0
    assert (run_path / "model.safetensors").read_bytes() == (path / "best/model.safetensors").read_bytes()
    other = run_path.with_name("other")
    changes = {"run__steps": 1, "checkpoint__keep": 9, "model__path": path / "best"}
    ended = assay_command.run("train", *settings(**changes), "--out", other)
    assert ended.code == 0, ended.stderr
    began = load_file(other / "checkpoints/update-00000000/weights.safetensors")
    assert all(torch.equal(began[name], value) for name, value in load_file(path / "best/model.safetensors").items())


def test_without_evaluations_between_or_switched_off_there_is_no_best(assay_command, run_path):
    for number, changes in enumerate(({"evaluate__every": 0}, {"checkpoint__best": "false"})):
        path = run_path.with_name(f"run-{number}")
        ended = assay_command.run("train", *settings(**{**OFTEN, "run__steps": 2, **changes}), "--out", path)
        assert ended.code == 0, ended.stderr
        assert not (path / "best").exists()
    ended = assay_command.run("eval", path, "--checkpoint", "best")
    assert ended.code == 2
    assert "best does not exist" in ended.sentences[0]


@pytest.mark.parametrize(
    ("place", "number", "when"),
    [
        ("assay.record.checksums:note_directory", 2, "after"),
        ("assay.record.checksums:note_removal", 1, "after"),
        ("assay.train.step.learner:Learner.update", 14, "after"),
        *thorough(
            ("assay.train.evaluate.export:export_weights", 1, "before"),
            ("assay.train.evaluate.export:export_weights", 2, "after"),
        ),
    ],
)
def test_a_run_killed_around_its_best_weights_resumes_to_the_same_bits(
    assay_command, run, run_path, place, number, when
):
    straight, _ = run
    trap = Trap(place, number, "KILL", when)
    ended = assay_command.run("train", *settings(**OFTEN), "--out", run_path, traps=[trap])
    assert ended.code == -9, ended.stderr
    assert assay_command.run("verify", run_path).code == 0  # no false alarm
    ended = assay_command.run("train", "--resume", run_path)
    assert ended.code == 0, ended.stderr
    assert_same_bits(run_path, straight)


def test_best_of_a_step_that_is_made_again_is_removed(assay_command, run, run_path):
    path, _ = run
    shutil.copytree(path, run_path)
    best = next(event["step"] for event in reversed(rows(run_path / "events.jsonl")) if event["kind"] == "best")
    for checkpoint in (run_path / "checkpoints").iterdir():
        if int(checkpoint.name.removeprefix("update-")) >= best * 4:
            shutil.rmtree(checkpoint)
    ended = assay_command.run("train", "--resume", run_path, "--change", "optimizer.learning_rate=0")
    assert ended.code == 0, ended.stderr
    assert f"best holds the weights after step {best}, which the run makes again" in ended.stderr
    rewound = max(rows(run_path / "evaluations.jsonl"), key=lambda row: row["reward_sampled"])
    if (run_path / "best").exists():
        assert f"after step {rewound['step']}" in (run_path / "best/README.md").read_text()


def test_what_a_user_put_into_best_is_kept(assay_command, run_path):
    changes = {**OFTEN, "run__steps": 2}
    trap = Trap("assay.train.step.learner:Learner.update", 1, "KILL", "before")
    assert assay_command.run("train", *settings(**changes), "--out", run_path, traps=[trap]).code == -9
    (run_path / "best").mkdir()
    (run_path / "best/notes.txt").write_text("mine")
    ended = assay_command.run("train", "--resume", run_path)
    assert ended.code == 0, ended.stderr
    if (run_path / "best/model.safetensors").exists():
        assert (run_path / "best-kept/notes.txt").read_text() == "mine"
    else:
        assert (run_path / "best/notes.txt").read_text() == "mine"


def test_a_run_that_gets_no_better_stops_early_and_is_finished(assay_command, run_path):
    ended = assay_command.run("train", *settings(**BREAKING), "--out", run_path)
    assert ended.code == 0, ended.stderr
    evaluated = [row["reward_sampled"] for row in rows(run_path / "evaluations.jsonl")]
    best = evaluated.index(max(evaluated))
    stop = best + 2
    assert len(evaluated) - 1 == stop < 9
    assert [row["step"] for row in rows(run_path / "metrics.jsonl")] == list(range(1, stop + 1))
    kinds = [event["kind"] for event in rows(run_path / "events.jsonl")]
    assert kinds[-2:] == ["stopped early", "finished"]
    assert f"stopped early after step {stop}: 2 evaluations in a row" in ended.stderr
    assert f"assay train --resume {run_path} --change evaluate.patience=0" in ended.stderr.splitlines()[-2]
    assert f"| steps | {stop}, each of" in (run_path / "final/README.md").read_text()
    row = json.loads(assay_command.run("eval", run_path, "--checkpoint", "final", "--json").stdout)
    assert row["step"] == stop
    # resumed as it is it stops at once, with the same bits; with more patience it goes on
    again = run_path.with_name("again")
    shutil.copytree(run_path, again)
    assert assay_command.run("train", "--resume", again).code == 0
    assert_same_bits(again, run_path)
    ended = assay_command.run("train", "--resume", again, "--change", "evaluate.patience=0")
    assert ended.code == 0, ended.stderr
    assert len(rows(again / "metrics.jsonl")) == 9


@pytest.mark.parametrize("number", [1, 2])
def test_a_run_killed_around_its_early_end_ends_alike(assay_command, run_path, number):
    straight = run_path.with_name("straight")
    place = ("assay.train.run.saver:Saver.save", "assay.train.evaluate.export:export_weights")[number - 1]
    ended = assay_command.run("train", *settings(**BREAKING), "--out", straight, count=[place])
    assert ended.code == 0, ended.stderr
    trap = Trap(place, ended.passed[place], "KILL", "before")
    assert assay_command.run("train", *settings(**BREAKING), "--out", run_path, traps=[trap]).code == -9
    assert assay_command.run("train", "--resume", run_path).code == 0
    assert_same_bits(run_path, straight)


def test_patience_needs_evaluations(assay_command, run_path):
    ended = assay_command.run("train", "--set", "evaluate.patience=3", "--out", run_path)
    assert ended.code == 2
    assert (
        "evaluate.patience = 3 counts evaluations between steps, and there are none; set evaluate.every"
        in ended.sentences[0]
    )
