"""Rows that a reward cannot score, in real runs: dropped, reported, repaired, and the run goes on."""

import json
from pathlib import Path

import pytest
from fixtures.commands import rows, settings

from assay.tasks.files import FileOptions, FileTask

PROMPTS, GROUP = 4, 8
REWARD = """import json
def parse(text):
    return json.loads(text)
def score(completion, answer):
    print("asked about", answer)
    if answer.startswith("{"):
        return parse(answer)
    return float(completion == answer)
"""


@pytest.fixture
def place(run_path):
    """A directory with a reward, and a run's settings for rows.jsonl in it."""
    (run_path.parent / "reward.py").write_text(REWARD)
    return run_path.parent


def arguments(place, **changes):
    chosen = settings(
        task__name=place / "rows.jsonl",
        task__options="{chat = false, heldout = 0.2}",
        reward__functions=f"{place / 'reward.py'}:score",
        rollout__prompts=PROMPTS,
        rollout__group_size=GROUP,
        **{"run__steps": 5, "evaluate__prompts": 0, **changes},
    )
    for option in ("min_digits", "max_digits"):  # those of the task that is not asked here
        first = next(index for index, part in enumerate(chosen) if part.startswith(f"task.options.{option}="))
        del chosen[first - 1 : first + 1]
    return chosen


def write_rows(place: Path, bad=(), answer="{", count=40):
    lines = [{"question": f"{number}>", "answer": answer if number in bad else str(number)} for number in range(count)]
    (place / "rows.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def drawn(place, index):
    """The number of the row that is the training problem of this number."""
    write_rows(place)
    task = FileTask(place / "rows.jsonl", FileOptions(chat=False, heldout=0.2), seed=1)
    return int(task.training_problem(index).answer)


def test_a_row_that_cannot_be_scored_loses_its_group_and_no_more(assay_command, place, run_path):
    bad = drawn(place, 2 * PROMPTS)  # the first row of the third step: nothing of that step is scored before it
    write_rows(place, [bad])
    ended = assay_command.run("train", *arguments(place), "--out", run_path)
    assert ended.code == 0, ended.stderr
    assert "dropped 1 of 4 groups" in ended.stderr
    metrics = rows(run_path / "metrics.jsonl")
    assert [row["rollouts_unscored"] for row in metrics] == [0, 0, GROUP, 0, 0]
    assert all(row["updates_skipped"] == 0 for row in metrics)
    (event,) = [event for event in rows(run_path / "events.jsonl") if event["kind"] == "reward failed"]
    assert event["place"] == f"{place / 'reward.py'}:3"
    assert event["exception"].startswith("JSONDecodeError: Expecting property name")
    assert event["traceback"][0] == f"{place / 'reward.py'}:7 in score: return parse(answer)"
    assert event["printed"] == "asked about {\n"
    assert event["prompt"] == f"{bad}>"
    assert event["prompt_id"].endswith(f"row-{bad + 1}")
    assert f"  {place / 'reward.py'}:3: JSONDecodeError" in ended.stderr


def test_a_run_that_bad_rows_end_goes_on_with_the_repaired_rows(assay_command, place, run_path):
    bad = [drawn(place, 2 * PROMPTS + offset) for offset in range(2)]
    write_rows(place, bad)
    ended = assay_command.run("train", *arguments(place), "--out", run_path)
    assert ended.code == 1
    (sentence,) = ended.sentences
    assert "reward.max_failed = 0.25 allows 8 of these 32" in sentence
    assert f"at {place / 'reward.py'}:3" in sentence
    block = ended.stderr[ended.stderr.index(sentence) + len(sentence) :].splitlines()[1:]
    assert block[0].startswith(f"  {place / 'reward.py'}:3: JSONDecodeError")
    assert f"    {place / 'reward.py'}:7 in score: return parse(answer)" in block
    assert any(line.startswith("  prompt rows-train-") for line in block)
    assert any(line.startswith("  completion: ") for line in block)
    assert "    asked about {" in block
    failed = rows(run_path / "events.jsonl")[-1]
    assert failed["kind"] == "failed"
    assert failed["failure"]["place"] == f"{place / 'reward.py'}:3"
    assert set(failed["failure"]) >= {"exception", "traceback", "printed", "prompt", "prompt_id", "completion"}

    again = assay_command.run("train", "--resume", run_path)  # nothing was repaired: the same rows are drawn again
    assert again.code == 1
    assert len(rows(run_path / "metrics.jsonl")) == 2

    write_rows(place, bad, answer="7")
    resumed = assay_command.run("train", "--resume", run_path)
    assert resumed.code == 0, resumed.stderr
    assert resumed.stderr.count("rows.jsonl has changed since the last checkpoint") == 1
    assert [event["kind"] for event in rows(run_path / "events.jsonl")].count("data changed") == 1
    metrics = rows(run_path / "metrics.jsonl")
    assert [row["step"] for row in metrics] == [1, 2, 3, 4, 5]
    assert [row["rollouts_unscored"] for row in metrics] == [0] * 5


def test_a_row_may_be_taken_out_and_a_reward_repaired_instead(assay_command, place, run_path):
    bad = [drawn(place, 2 * PROMPTS + offset) for offset in range(2)]
    write_rows(place, bad)
    assert assay_command.run("train", *arguments(place, run__steps=3), "--out", run_path).code == 1
    lines = (place / "rows.jsonl").read_text().splitlines(keepends=True)
    (place / "rows.jsonl").write_text("".join(line for line in lines if '"{"' not in line))
    ended = assay_command.run("train", "--resume", run_path)
    assert ended.code == 0, ended.stderr

    second = run_path.parent / "second"
    write_rows(place, bad)
    assert assay_command.run("train", *arguments(place, run__steps=3), "--out", second).code == 1
    (place / "reward.py").write_text(REWARD.replace("return parse(answer)", "return 0.0"))
    ended = assay_command.run("train", "--resume", second)
    assert ended.code == 0, ended.stderr
    assert "reward changed" in [event["kind"] for event in rows(second / "events.jsonl")]


def test_a_held_out_row_that_cannot_be_scored_does_not_end_a_run(assay_command, place, run_path):
    write_rows(place)
    task = FileTask(place / "rows.jsonl", FileOptions(chat=False, heldout=0.2), seed=1)
    write_rows(place, [int(task.heldout_problem(0).answer)])
    changes = {"evaluate__prompts": 2, "evaluate__samples": 2, "run__steps": 1}
    ended = assay_command.run("train", *arguments(place, **changes), "--out", run_path)
    assert ended.code == 0, ended.stderr
    assert [row["unscored_sampled"] for row in rows(run_path / "evaluations.jsonl")] == [2, 2]


def test_a_reward_that_never_works_ends_the_run_early_and_leaves_a_checkpoint(assay_command, place, run_path):
    write_rows(place, range(40))
    ended = assay_command.run("train", *arguments(place), "--out", run_path)
    assert ended.code == 1
    assert "the reward could not be computed for 9 of 9 completions" in ended.sentences[0]
    write_rows(place)
    resumed = assay_command.run("train", "--resume", run_path)
    assert resumed.code == 0, resumed.stderr
    assert len(rows(run_path / "metrics.jsonl")) == 5


def test_eval_and_reward_check_show_the_same_facts(assay_command, place, run_path):
    write_rows(place)
    assert assay_command.run("train", *arguments(place, run__steps=1), "--out", run_path).code == 0
    (place / "reward.py").write_text("def score(completion, answer):\n    raise KeyError(answer + completion)\n")
    ended = assay_command.run("eval", run_path, "--prompts", "4")
    assert ended.code == 1
    assert f"  {place / 'reward.py'}:2: KeyError: " in ended.stderr
    assert "  completion: '" in ended.stderr
    words = ["reward-check", f"{place / 'reward.py'}:score", "--task", place / "rows.jsonl"]
    checked = assay_command.run(*words)
    assert checked.code == 1
    assert f"         > {place / 'reward.py'}:2: KeyError: " in checked.stdout
    assert f"{place / 'reward.py'}:2 in score: raise KeyError(answer + completion)" in checked.stdout
    assert "prompt rows-train-0-row-" in checked.stdout
    document = json.loads(assay_command.run(*words, "--json").stdout)
    assert len(document["failures"]) == 1
    assert document["failures"][0]["place"] == f"{place / 'reward.py'}:2"
    assert document["failures"][0]["traceback"]
