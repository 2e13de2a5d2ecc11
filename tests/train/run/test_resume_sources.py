"""A run that is taken up again after the user's own files have changed."""

import json

import pytest
from fixtures.commands import settings
from fixtures.tiny import tiny_policy

from assay.config import from_mapping
from assay.policy.embedded import tokenizer
from assay.record import RunError
from assay.train.run.changes import changed_sources

SCORE = "def score(completion, answer):\n    return float(completion == answer) + {bonus}\n"


@pytest.fixture
def begun(assay_command, run_path):
    """A run of two steps on rows and a reward of its own; returns a function that goes on with it."""
    place = run_path.parent
    rows = [{"question": f"{number}>", "answer": str(number)} for number in range(30)]
    (place / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (place / "reward.py").write_text(SCORE.format(bonus=0.0))
    chosen = {
        "task__name": place / "rows.jsonl",
        "task__options": "{chat = false, heldout = 0.5}",
        "reward__functions": f"{place / 'reward.py'}:score",
        "run__steps": 2,
    }
    arguments = settings(**chosen)
    for option in ("min_digits", "max_digits"):  # those of the task that is not asked here
        first = next(index for index, part in enumerate(arguments) if part.startswith(f"task.options.{option}="))
        del arguments[first - 1 : first + 1]
    ended = assay_command.run("train", *arguments, "--out", run_path)
    assert ended.code == 0, ended.stderr
    return lambda: assay_command.run("train", "--resume", run_path, "--set", "run.steps=3")


def events(run):
    return [json.loads(line)["kind"] for line in (run / "events.jsonl").read_text().splitlines()]


def test_unchanged_files_are_not_spoken_of(begun, run_path):
    ended = begun()
    assert ended.code == 0, ended.stderr
    assert "has changed" not in ended.stderr
    assert "reward changed" not in events(run_path)


def test_a_changed_reward_is_used_and_said_aloud(begun, run_path):
    (run_path.parent / "reward.py").write_text(SCORE.format(bonus=5.0))
    ended = begun()
    assert ended.code == 0, ended.stderr
    assert ended.stderr.count("reward.py:score has changed since the last checkpoint") == 1
    assert "reward changed" in events(run_path)
    rewards = [json.loads(line)["reward_mean"] for line in (run_path / "metrics.jsonl").read_text().splitlines()]
    assert rewards[2] >= 5.0 > max(rewards[:2])


def test_changed_rows_are_used_and_said_aloud(begun, run_path):
    with (run_path.parent / "rows.jsonl").open("a") as file:
        file.write(json.dumps({"question": "31>", "answer": "31"}) + "\n")
    ended = begun()
    assert ended.code == 0, ended.stderr
    assert ended.stderr.count("rows.jsonl has changed since the last checkpoint") == 1
    assert events(run_path).count("data changed") == 1


def test_problems_of_another_version_of_a_library_are_refused():
    config = from_mapping({"task": {"name": "reasoning_gym/chain_sum"}})
    before, now = {"problems": "reasoning-gym 1.0"}, {"problems": "reasoning-gym 2.0"}
    with pytest.raises(RunError, match=r"other problems than when the run began \(reasoning-gym 1\.0, now"):
        changed_sources(before, now, config)
    assert changed_sources(before, before, config) == []


def test_a_run_that_goes_on_has_no_final_weights_until_it_ends(begun, run_path):
    first = (run_path / "final" / "model.safetensors").read_bytes()
    ended = begun()
    assert ended.code == 0, ended.stderr
    assert (run_path / "final" / "model.safetensors").read_bytes() != first


def test_adapters_are_never_put_on_a_model_they_were_not_trained_on(assay_command, run_path):
    model = run_path.parent / "model"
    tiny_policy().model.save_pretrained(model)
    tokenizer().save_pretrained(model)
    arguments = settings(model__path=model, model__lora_rank=2, rollout__max_tokens=4)
    ended = assay_command.run("train", *arguments, "--out", run_path)
    assert ended.code == 0, ended.stderr
    tiny_policy(seed=3).model.save_pretrained(model)
    out = run_path.parent / "out"
    for command in (
        ["train", "--resume", run_path, "--set", "run.steps=4"],
        ["export", run_path, "--out", out, "--merge"],
        ["eval", run_path],
    ):
        ended = assay_command.run(*command)
        assert ended.code in (1, 2)
        assert "its frozen weights have changed" in ended.sentences[-1]
    assert not out.exists()
