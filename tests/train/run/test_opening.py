"""What a run says before its first step."""

import json
from dataclasses import replace

import pytest
from fixtures.tiny import tiny_policy

from assay.config import load
from assay.policy.load import with_adapter
from assay.tasks import open_task
from assay.train.run.opening import few_heldout, opening_facts, with_rate

REAL = ["model.path=owner/name", "task.name=json", "model.dtype=float32", "run.threads=2"]


def facts(tmp_path, *overrides, adapter=False, heldout=32):
    config = load(None, overrides)
    policy = with_adapter(tiny_policy(), config) if adapter else tiny_policy()
    return opening_facts(with_rate(config, policy), tmp_path / "run", policy, open_task(config), heldout)


def rows(path, count):
    path.write_text("".join(json.dumps({"prompt": f"{n} + {n}", "answer": str(2 * n)}) + "\n" for n in range(count)))
    return path


def test_the_opening_names_run_model_task_reward_device_rate_and_step(tmp_path):
    assert facts(tmp_path, *REAL, "run.steps=40") == {
        "run": str(tmp_path / "run"),
        "model": "owner/name: 5,616 parameters, float32, all trained",
        "task": "json: made on the spot, 32 problems held out",
        "reward": "the task's own",
        "device": "cpu, 2 threads",
        "rate": "5e-06 (default for full weights below 1 billion parameters), constant after a warm-up of 4 of 40 "
        "updates",
        "step": "8 prompts x 8 answers of up to 256 tokens, 1 update; 40 steps in all",
    }


def test_a_rate_that_the_user_chose_is_not_called_a_default(tmp_path):
    assert facts(tmp_path, *REAL, "optimizer.learning_rate=2e-5", "optimizer.warmup=0")["rate"] == (
        "2e-05, constant, no warm-up"
    )


def test_a_warmup_longer_than_the_run_is_said(tmp_path):
    said = facts(tmp_path, "run.steps=4", "optimizer.warmup=10", "run.threads=1")["rate"]
    assert said.endswith("constant after a warm-up of 10 of 8 updates: the rate is never reached")


def test_adapters_are_counted_apart_from_the_model(tmp_path):
    said = facts(tmp_path, *REAL, "model.lora_rank=2", adapter=True)
    assert said["model"].startswith("owner/name: 5,616 parameters, float32, ")
    assert said["model"].endswith(" in LoRA adapters of rank 2")
    assert said["rate"].startswith("0.0001 (default for LoRA)")


def test_reward_functions_are_named_with_their_weights(tmp_path):
    weighted = ['reward.functions=["mine.py:style", "exact"]', "reward.weights=[0.5, 1.0]"]
    assert facts(tmp_path, *REAL, *weighted)["reward"] == "0.5 x style, exact"


def test_the_rows_of_a_file_are_counted(tmp_path):
    file = rows(tmp_path / "rows.jsonl", 200)
    sizes = open_task(load(None, [f"task.name={file}"])).sizes
    said = facts(tmp_path, *REAL, f"task.name={file}", heldout=3)["task"]
    assert said == f"{file}: {sizes[0]} rows to train on, {sizes[1]} held out (3 evaluated)"


def test_a_few_held_out_rows_are_not_passed_over_in_silence(tmp_path):
    config = load(None, [*REAL, f"task.name={rows(tmp_path / 'rows.jsonl', 40)}"])
    task = open_task(config)
    count = task.sizes[1]
    assert 0 < count < 20
    sentence = few_heldout(config, task, count)
    assert sentence.startswith(f"only {count} prompt")
    assert "task.options.heldout = 0.1, about that share of 40 rows" in sentence
    assert f"moves the held-out score by {1 / count:.2f}; raise task.options.heldout" in sentence
    assert few_heldout(config, task, 25) == ""
    asked_for = replace(config, evaluate=replace(config.evaluate, prompts=count))
    assert few_heldout(asked_for, task, count) == ""


@pytest.mark.parametrize("heldout", [0, 32])
def test_a_run_that_evaluates_enough_or_nothing_is_not_warned(heldout):
    config = load(None, [*REAL, f"evaluate.prompts={heldout}"])
    assert few_heldout(config, open_task(config), heldout) == ""
