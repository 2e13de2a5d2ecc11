"""`python -m benchmarks.default`: one real, very short run, and the arithmetic of its table by hand."""

import importlib.metadata
import importlib.util
import json
import sys
from dataclasses import asdict, replace

import pytest

from assay.config import Config, ConfigError
from assay.tasks import open_task
from assay.types import Prompt, Rollout, StopReason
from benchmarks.command import from_json, read_json
from benchmarks.default import WARMUP, measure_default
from benchmarks.measured import STAGES_AND_REST, Measured, Step, differences, step_ratios, summarise
from benchmarks.stopwatch import Stopwatch
from benchmarks.trl_peer import ExactReward
from benchmarks.trl_settings import settings

has_trl = importlib.util.find_spec("trl") is not None
ROWS = Config().rollout.prompts * Config().rollout.group_size
EPOCHS = Config().optimizer.epochs
needs_trl = pytest.mark.skipif(not has_trl, reason="needs TRL")


@pytest.fixture(scope="module")
def document(tmp_path_factory, request):
    path = tmp_path_factory.mktemp("bench") / "bench.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", str(request.getfixturevalue("warm_peer" if has_trl else "warm_python")))
        assert measure_default(2, 1, path) == 0
    return json.loads(path.read_text())


@pytest.fixture
def replaying(document, monkeypatch, tmp_path):
    """Workers that hand in at once what the real ones of this module measured."""
    for run in document["runs"]:
        (tmp_path / f"{run['contender']}.json").write_text(json.dumps(run))
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\ncp "{tmp_path}/$4.json" "$7/measured.json"\n')
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    return tmp_path


def step(seconds=10.0, start=1.0, generated=2.0, scored=0.5, loss=3.0, stepped=1.0, **others):
    stages = {"start": start, "generated": generated, "scored": scored, "loss": loss, "stepped": stepped}
    facts = {"cpu_seconds": 9.0, "rollouts": 4, "updates": 2, "tokens": 20, "tokens_trained": 40, "reward": 0.5}
    return Step(seconds=seconds, stages=stages, **{**facts, **others})


def measured(*steps, **others):
    facts = {"contender": "assay", "warmup": 1, "prompts_sha256": "aa", "heldout_before": 0.25, "heldout_after": 0.5}
    return Measured(steps=steps, **{**facts, "checkpoints": 0, "peak_memory_bytes": 1000, **others})


def test_the_stages_of_a_measured_step_add_up_to_no_more_than_the_step(document):
    for run in document["runs"]:
        assert len(run["steps"]) == WARMUP + 2
        for timed in run["steps"]:
            assert min(timed["stages"].values()) > 0
            assert sum(timed["stages"].values()) < timed["seconds"]
            assert timed["cpu_seconds"] > 0


def test_the_document_says_what_was_run_and_where(document):
    assert document["command"] == "python -m benchmarks.default --steps 2 --repeats 1"
    assert document["order"] == (["assay", "trl"] if has_trl else ["assay"])
    assert document["environment"]["packages"]["torch"] == importlib.metadata.version("torch")
    assert document["cpu"]
    assert document["date"].startswith("20")
    assert document["config"]["rollout"]["group_size"] == Config().rollout.group_size
    assert (document["warmup"], document["steps"], document["repeats"]) == (WARMUP, 2, 1)


def test_every_contender_gets_seconds_speed_memory_and_rewards(document):
    for summary in document["contenders"].values():
        assert set(summary["stage_seconds"]) == set(STAGES_AND_REST)
        assert summary["step_seconds"] > summary["stage_seconds"]["generated"]
        assert summary["rollout_tokens_per_second"] > 0
        assert summary["update_tokens_per_second"] > 0
        assert 100e6 < summary["peak_memory_bytes"] < 4e9
        assert 0 < summary["reward_last"] < 1
        assert 0 < summary["heldout_after"] < 1


@needs_trl
def test_both_contenders_do_the_same_work(document):
    ours, peer = document["runs"]
    assert document["unequal_work"] == []
    assert ours["prompts_sha256"] == peer["prompts_sha256"]
    assert ours["heldout_before"] == peer["heldout_before"]
    for run in (ours, peer):
        assert [(one["rollouts"], one["updates"]) for one in run["steps"]] == [(ROWS, EPOCHS)] * (WARMUP + 2)
        assert all(ROWS <= one["tokens"] <= ROWS * Config().rollout.max_tokens for one in run["steps"])
        assert all(one["tokens_trained"] == EPOCHS * one["tokens"] for one in run["steps"])


def test_without_trl_ours_is_timed_alone_and_the_way_to_the_other_is_told(replaying, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "trl", None)
    assert measure_default(2, 1, None) == 0
    printed = capsys.readouterr()
    assert "pip install 'assay[trl]'" in printed.out
    assert "whole step" in printed.out
    assert "TRL / assay" not in printed.out
    assert printed.err.splitlines() == [f"run 1 of 1: assay, {WARMUP + 2} steps"]


@needs_trl
def test_another_version_of_trl_is_not_timed_with_the_clock_of_this_one(replaying, monkeypatch, capsys):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1.17.0")
    assert measure_default(2, 1, None) == 0
    printed = capsys.readouterr()
    assert "TRL 1.17.0 is installed, but only TRL 1.16 can be timed" in printed.out
    assert "TRL / assay" not in printed.out


@needs_trl
def test_every_second_repeat_starts_with_the_other_contender(replaying, capsys, tmp_path):
    assert measure_default(2, 3, tmp_path / "bench.json") == 0
    document = json.loads((tmp_path / "bench.json").read_text())
    assert document["order"] == ["assay", "trl", "trl", "assay", "assay", "trl"]
    assert len(document["step_ratios"]) == 3
    assert "TRL / assay" in capsys.readouterr().out


@needs_trl
def test_a_contender_that_did_other_work_fails_the_bench(replaying, capsys):
    recorded = replaying / "trl.json"
    run = read_json(Measured, recorded)
    recorded.write_text(json.dumps(asdict(replace(run, prompts_sha256="other"))))
    assert measure_default(2, 1, None) == 1
    assert "the two were given different prompts" in capsys.readouterr().out


def test_a_run_that_fails_ends_the_bench_with_its_last_words(monkeypatch, capsys, tmp_path):
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\necho step\necho no memory left >&2\nexit 3\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    assert measure_default(1, 1, tmp_path / "bench.json") == 1
    assert "no memory left" in capsys.readouterr().err
    assert not (tmp_path / "bench.json").exists()


def test_a_json_path_without_a_directory_is_refused_before_anything_runs(tmp_path):
    with pytest.raises(ConfigError, match="its directory does not exist"):
        measure_default(1, 1, tmp_path / "missing" / "bench.json")


def test_a_json_path_that_cannot_be_written_is_reported_after_the_table(replaying, capsys, tmp_path):
    with pytest.raises(ConfigError, match="could not be written: Is a directory"):
        measure_default(2, 1, tmp_path)
    assert "whole step" in capsys.readouterr().out


def test_a_summary_takes_medians_over_the_timed_steps_of_all_runs():
    first = measured(step(seconds=99.0), step(seconds=10.0), step(seconds=12.0, generated=4.0))
    second = measured(step(seconds=99.0), step(seconds=20.0, tokens=80, generated=1.0), peak_memory_bytes=3000)
    summary = summarise([first, second])
    assert summary.step_seconds == 12.0
    assert summary.step_seconds_mean == 14.0
    assert summary.stage_seconds["generated"] == 2.0
    assert summary.stage_seconds["rest"] == 2.5  # of 10 - 7.5, 12 - 9.5 and 20 - 6.5
    assert summary.rollout_tokens_per_second == 10.0  # of 20 / 2, 20 / 4 and 80 / 1
    assert summary.update_tokens_per_second == 10.0  # 40 tokens trained in 3 + 1 seconds
    assert summary.completion_length == 10.0  # 120 tokens of 12 rollouts
    assert summary.peak_memory_bytes == 3000


def test_rewards_at_the_ends_are_means_of_three_steps_and_count_the_warm_up():
    run = measured(*(step(reward=reward) for reward in (0.0, 0.1, 0.2, 0.6, 0.7, 0.8)))
    assert summarise([run]).reward_first == pytest.approx(0.1)
    assert summarise([run]).reward_last == pytest.approx(0.7)


def test_ratios_compare_the_two_runs_of_one_repeat():
    ours = [measured(step(), step(seconds=2.0, cpu_seconds=2.0)), measured(step(), step(seconds=4.0, cpu_seconds=2.0))]
    peer = [measured(step(), step(seconds=3.0, cpu_seconds=3.0)), measured(step(), step(seconds=4.0, cpu_seconds=5.0))]
    assert step_ratios(ours, peer) == [{"wall": 1.5, "cpu": 1.5}, {"wall": 1.0, "cpu": 2.5}]


def test_equal_work_has_no_differences():
    assert differences([measured(step(), step())], [measured(step(), step(seconds=50.0, tokens=24))]) == []


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"steps": (step(), step(rollouts=5))}, "rollouts"),
        ({"steps": (step(), step(updates=1))}, "updates"),
        ({"steps": (step(), step(tokens=26))}, "tokens"),
        ({"prompts_sha256": "bb"}, "prompts"),
        ({"heldout_before": 0.26}, "same model"),
    ],
)
def test_work_that_is_not_the_same_is_told(changes, word):
    ours = measured(step(), step())
    (sentence,) = differences([ours], [replace(ours, **changes)])
    assert word in sentence


def test_a_result_survives_its_file():
    run = measured(step(), step())
    assert from_json(Measured, json.loads(json.dumps(asdict(run)))) == run


def test_a_stage_inside_another_is_charged_to_itself_alone():
    times = iter([0.0, 1.0, 4.0, 6.0, 7.0, 9.0])
    watch = Stopwatch(lambda: next(times))
    with watch.stage("loss"):
        assert watch.timed("generated", lambda value, factor: value * factor)(3, factor=2) == 6
        with watch.stage("scored"):
            pass
    watch.add("stepped", 5.0)
    # generated 1..4, scored 6..7, loss the rest of 0..9
    assert watch.take() == {"start": 0.0, "generated": 3.0, "scored": 1.0, "loss": 5.0, "stepped": 5.0}
    assert sum(watch.take().values()) == 0.0


def test_the_reward_given_to_trl_is_the_reward_of_the_task():
    eos, task = 1, open_task(Config())
    prompt = Prompt("sort-0", "312>", (5, 3, 4, 12), "123")
    tries = [("123", (3, 4, 5, eos)), ("123", (3, 4, 5)), ("132", (3, 5, 4, eos)), ("", (eos,))]
    rollouts = [
        Rollout("sort-0", ids, (-1.0,) * len(ids), StopReason.EOS if eos in ids else StopReason.LENGTH, 0, text)
        for text, ids in tries
    ]
    rewards = ExactReward(eos)(
        prompts=["312>"] * 4,
        completions=[text for text, _ in tries],
        completion_ids=[ids for _, ids in tries],
        answer=["123"] * 4,
        trainer_state=None,
    )
    assert rewards == [task.score(prompt, rollout).reward for rollout in rollouts] == [1.0, 0.0, 0.0, 0.0]


@needs_trl
def test_trl_generates_and_trains_a_whole_batch_at_a_time(tmp_path):
    from trl import GRPOConfig

    args = GRPOConfig(**settings(Config(), 7, tmp_path))
    assert args.generation_batch_size == args.per_device_train_batch_size == ROWS
    assert args.steps_per_generation == args.gradient_accumulation_steps == 1
    assert args.max_steps == 7 * EPOCHS  # TRL counts updates
    assert (args.bf16, args.fp16, args.gradient_checkpointing) == (False, False, False)
    assert (args.top_k, args.top_p, args.min_p, args.repetition_penalty) == (0, 1.0, None, 1.0)
    assert (args.lr_scheduler_type, args.warmup_steps) == ("constant_with_warmup", Config().optimizer.warmup)
