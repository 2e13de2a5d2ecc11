"""Prompts that leave no room for an answer, and rewards that never differ."""

import json

import pytest
from fixtures.commands import rows, settings


@pytest.fixture
def arguments(run_path):
    """A run on 40 rows of which every fourth is too long for the embedded model's context of 64."""
    file = run_path.parent / "rows.jsonl"
    texts = [f"{number:02d}" * (40 if number % 4 == 0 else 2) + ">" for number in range(40)]
    file.write_text("".join(json.dumps({"question": text, "answer": text[:2]}) + "\n" for text in texts))
    changes = {"task__name": file, "run__steps": 6, "checkpoint__every": 1000}
    given = settings(**changes)
    for option in ("min_digits", "max_digits"):
        first = next(index for index, part in enumerate(given) if part.startswith(f"task.options.{option}="))
        del given[first - 1 : first + 1]
    return [*given, "--set", "task.options={chat = false, heldout = 0.3}", "--out", run_path]


def test_a_row_that_is_too_long_is_refused_before_anything_is_written(assay_command, arguments, run_path):
    ended = assay_command.run("train", *arguments)
    assert ended.code == 2
    (sentence,) = ended.sentences
    assert "the model's context is 64" in sentence
    assert "task.long_prompts = 'skip'" in sentence
    assert not run_path.exists()


def test_rows_that_are_too_long_are_skipped_if_that_is_asked_for(assay_command, arguments, run_path):
    skipping = [*arguments, "--set", "task.long_prompts=skip"]
    ended = assay_command.run("train", *skipping)
    assert ended.code == 0, ended.stderr
    assert len(rows(run_path / "metrics.jsonl")) == 6
    (evaluation, *_) = rows(run_path / "evaluations.jsonl")
    assert 0 < evaluation["prompts"] <= 4


def test_a_run_that_learns_nothing_says_so_while_it_runs(assay_command, run_path):
    reward = run_path.parent / "reward.py"
    reward.write_text("def score(completion): return 0.5\n")
    flat = settings(reward__functions=f"{reward}:score", run__steps=7, evaluate__prompts=0)
    ended = assay_command.run("train", *flat, "--out", run_path)
    assert ended.code == 0, ended.stderr
    assert ended.stderr.count("5 steps without a single update") == 1
    learning = assay_command.run("train", *settings(run__steps=7, evaluate__prompts=0), "--out", run_path.parent / "l")
    assert "without a single update" not in learning.stderr
