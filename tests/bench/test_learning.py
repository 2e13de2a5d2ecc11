"""`python -m benchmarks.learning`: one real, very short comparison, and what is concluded from made-up curves."""

import importlib.util
import json
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from types import SimpleNamespace

import pytest
from fixtures.tiny import EOS_ID, prompt, tiny_policy

from assay import config as configuration
from assay.config import Config, ConfigError
from assay.policy.embedded import embedded_directory
from assay.rewards import open_rewards
from assay.tasks import open_task
from assay.train.step.learner import learning_rate
from assay.types import Prompt, Score
from benchmarks import curves as arithmetic
from benchmarks.curves import EQUAL, OURS, PEER, UNKNOWN, Comparison, Curve, compare, mean_of_curve, unequal
from benchmarks.curves_plot import draw
from benchmarks.learning import learning, prepared, read_curves, write_curves
from benchmarks.learning_peer import TaskReward, our_optimizer, peer_curve, refuse_other_tokens
from benchmarks.trl_settings import refuse_unlike, settings

needs_trl = pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="needs TRL")

TINY = """
[model]
warm_steps = 2
[rollout]
prompts = 2
group_size = 2
[evaluate]
prompts = 8
samples = 2
"""


def curve(*scores, every=10, greedy=None, prompts_sha256="aa"):
    rows = [
        {"step": every * index, "pass_at_1": score, "pass_greedy": score if greedy is None else greedy}
        for index, score in enumerate(scores)
    ]
    return Curve(tuple(rows), prompts_sha256)


@pytest.mark.parametrize(
    ("ours", "peer", "verdict"),
    [
        ((0.9, 0.8, 0.7), (0.8, 0.8, 0.8), EQUAL),  # 0.1, 0, -0.1: mean 0
        ((0.5, 0.75), (0.5, 0.5), EQUAL),  # 0, 0.25: mean 0.125, error 0.125
        ((0.75, 1.0), (0.5, 0.5), OURS),  # 0.25, 0.5: mean 0.375, error 0.125
        ((0.5, 0.5), (0.75, 1.0), PEER),
        ((0.5, 0.625), (0.375, 0.25), OURS),  # 0.125, 0.375: mean 0.25 is two errors of 0.125, no longer below
        ((0.5, 0.5), (0.5, 0.5), EQUAL),  # no noise and no difference
        ((0.6, 0.6), (0.5, 0.5), OURS),  # no noise and a difference
        ((0.9,), (0.1,), UNKNOWN),
    ],
)
def test_the_verdict_follows_from_the_paired_differences(ours, peer, verdict):
    assert Comparison(ours, peer).verdict == verdict


def test_the_noise_is_that_of_the_pairs_and_not_of_the_seeds():
    hard_and_easy = (0.125, 0.5, 0.875)
    slightly_worse = tuple(score - 0.0625 for score in hard_and_easy)
    assert Comparison(hard_and_easy, slightly_worse).verdict == OURS


def test_a_contender_that_does_not_learn_is_reported_as_worse():
    learns = [curve(0.30, 0.60, 0.85 + noise) for noise in (0.0, 0.02, -0.01)]
    rate_zero = [curve(0.30, 0.30, 0.30 + noise) for noise in (0.01, 0.0, -0.01)]
    assert {one.verdict for one in compare(learns, rate_zero).values()} == {OURS}
    assert {one.verdict for one in compare(rate_zero, learns).values()} == {PEER}


def test_a_contender_that_learns_later_is_told_by_the_mean_of_the_run_alone():
    sooner = [curve(0.25, 0.75, 0.75, 0.75) for _ in range(3)]
    later = [curve(0.25, 0.25, 0.25, 0.75) for _ in range(3)]
    verdicts = {name: one.verdict for name, one in compare(later, sooner).items()}
    assert verdicts == {"sampled": EQUAL, "greedy": EQUAL, "sampled_mean": PEER}


def test_the_three_measures_of_a_run_by_hand():
    run = Curve(
        (
            {"step": 0, "pass_at_1": 0.2, "pass_greedy": 0.5},
            {"step": 30, "pass_at_1": 0.4, "pass_greedy": 0.6},
            {"step": 40, "pass_at_1": 1.0, "pass_greedy": 0.9},
        ),
        "aa",
    )
    assert mean_of_curve(run) == pytest.approx((30 * 0.3 + 10 * 0.7) / 40)
    assert {name: value(run) for name, (_, value) in arithmetic.MEASURES.items()} == {
        "sampled": 1.0,
        "greedy": 0.9,
        "sampled_mean": mean_of_curve(run),
    }


@pytest.mark.parametrize(
    ("other", "word"),
    [
        (curve(0.3, 0.6, prompts_sha256="bb"), "different prompts"),
        (curve(0.31, 0.6), "weights differ"),
        (curve(0.3, 0.6, every=5), "different steps"),
    ],
)
def test_runs_that_did_not_begin_alike_are_told(other, word):
    assert unequal([curve(0.3, 0.6)], [curve(0.3, 0.7)], [4]) == []
    (sentence,) = unequal([curve(0.3, 0.6)], [other], [4])
    assert word in sentence
    assert "seed 4" in sentence


def test_the_plot_is_xml_that_names_both_and_is_the_same_bytes_again(tmp_path):
    ours, peer = [curve(0.3, 0.6), curve(0.3, 0.7)], [curve(0.3, 0.5), curve(0.3, 0.9)]
    for name, curves in (("one", peer), ("two", peer), ("other", ours)):
        draw(tmp_path / name, "sort_digits, embedded: 2 seeds", ours, curves)
    text = (tmp_path / "one").read_text()
    words = {"".join(element.itertext()).strip() for element in ElementTree.fromstring(text).iter()}
    assert {"assay, mean", "TRL 1.16, mean", "training steps", "held-out pass@1, sampled"} <= words
    assert "sort_digits, embedded: 2 seeds" in words
    assert (tmp_path / "two").read_text() == text
    assert (tmp_path / "other").read_text() != text


@pytest.mark.parametrize(
    "override",
    [
        'rollout.stop=["\\n"]',
        "rollout.top_k=5",
        "rollout.zero_variance=skip",
        "rollout.truncated=mask",
        "loss.objective=gspo",
        "loss.dual_clip=3.0",
        "loss.kl_coef=0.1",
        "loss.entropy_coef=0.1",
        "loss.correction=token",
        "advantage.baseline=leave_one_out",
        "advantage.std=population",
        "advantage.combine=gdpo",
        "advantage.epsilon=0.0",
        "optimizer.microbatches=5",
        "model.lora_rank=4",
        "model.dtype=bfloat16",
        "evaluate.prompts=0",
    ],
)
def test_what_trl_does_otherwise_is_refused_by_name(override):
    refuse_unlike(Config())
    section, _, key = override.partition("=")[0].partition(".")
    with pytest.raises(ConfigError, match=rf"{section}\..*{key}"):
        refuse_unlike(configuration.load(None, [override]))


def test_both_are_evaluated_eight_times_and_no_checkpoint_is_due():
    config = prepared(Config(), 100)
    assert (config.run.steps, config.run.threads, config.evaluate.every) == (100, 1, 13)
    assert config.checkpoint.every > 100 * config.updates_a_step


def test_minibatches_and_microbatches_are_cut_the_same_way_in_trl(tmp_path):
    config = configuration.load(None, ["optimizer.minibatches=2", "optimizer.microbatches=3", "advantage.std=none"])
    given = settings(config, 7, tmp_path)
    assert given["per_device_train_batch_size"] == 48 * 8 // 6
    assert (given["gradient_accumulation_steps"], given["steps_per_generation"]) == (3, 6)
    assert given["max_steps"] == 7 * 2 * 2  # epochs x minibatches updates a step
    assert given["scale_rewards"] == "none"


def test_trl_gets_our_learning_rate_at_every_update():
    config = configuration.load(None, ["run.steps=6", "optimizer.warmup=4", "optimizer.schedule=cosine"])
    optimizer, schedule = our_optimizer(tiny_policy().model, config)
    rates = []
    for _ in range(12):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates == [learning_rate(config.optimizer, number, 12) for number in range(12)]
    assert rates[0] == 7e-4 / 4


@needs_trl
def test_trl_makes_our_updates_at_our_rates(monkeypatch, tmp_path):
    import torch

    (tmp_path / "tiny.toml").write_text(TINY)
    cut = ["optimizer.minibatches=2", "optimizer.microbatches=2", "optimizer.warmup=4", "optimizer.schedule=linear"]
    config = prepared(configuration.load(tmp_path / "tiny.toml", cut), 3)
    embedded_directory(config.model.warm_steps, lambda done, total: None)  # its own updates are not counted below
    rates, step = [], torch.optim.AdamW.step
    monkeypatch.setattr(
        torch.optim.AdamW, "step", lambda own, *rest: (rates.append(own.param_groups[0]["lr"]), step(own, *rest))[1]
    )
    peer_curve(config, tmp_path, lambda: None)
    assert rates == [learning_rate(config.optimizer, number, 12) for number in range(12)]


def task_reward(reward=None):
    config = configuration.load(None, ["rollout.prompts=1", "rollout.group_size=4"])
    policy, task = tiny_policy(), open_task(config)
    posed = [Prompt("sort-0", "312>", (5, 3, 4, 12), "123"), Prompt("sort-1", "21>", (4, 3, 12), "12")]
    return TaskReward(reward or open_rewards(config, task, policy.codec.decode), policy, posed, config)


def test_trl_is_given_our_reward_of_the_completion_ids():
    ids = [(3, 4, 5, EOS_ID), (3, 4, 5), (3, 5, 4, EOS_ID), (EOS_ID,)]
    asked = task_reward()
    assert asked(completion_ids=ids, number=[0] * 4, prompts=[], completions=[]) == [1.0, 0.0, 0.0, 0.0]
    assert asked(completion_ids=[(3, 4, EOS_ID)] * 4, number=[1] * 4) == [1.0] * 4
    assert [one.id for one in asked.trained] == ["sort-0", "sort-1"]
    assert asked.rollout(asked.prompts[0], ids[1]).truncated


def test_prompts_in_another_order_are_refused():
    with pytest.raises(ConfigError, match="order"):
        task_reward()(completion_ids=[(EOS_ID,)] * 4, number=[1] * 4)


@pytest.mark.parametrize("score", [Score.failed("raised ValueError"), Score(1.0, {}, "", ((1, 1.0),))])
def test_a_reward_that_is_not_one_number_is_refused(score):
    reward = SimpleNamespace(score=lambda asked, on_score: [score] * len(asked))
    with pytest.raises(ConfigError, match="not one number"):
        task_reward(reward)(completion_ids=[(EOS_ID,)] * 4, number=[0] * 4)


def test_other_tokens_or_other_ends_in_trl_are_refused():
    policy, posed = tiny_policy(), [prompt(0, (2, 3)), prompt(1, (4,))]

    def trl(tokens, ends):
        return SimpleNamespace(_tokenize_prompts=lambda posed: (tokens, None, {}), eos_token_ids=ends)

    refuse_other_tokens(trl([[2, 3], [4]], [EOS_ID]), ["a", "b"], posed, policy)
    with pytest.raises(ConfigError, match="other tokens of prompt 'p1'"):
        refuse_other_tokens(trl([[2, 3], [0, 4]], [EOS_ID]), ["a", "b"], posed, policy)
    with pytest.raises(ConfigError, match="ends answers"):
        refuse_other_tokens(trl([[2, 3], [4]], [EOS_ID, 2]), ["a", "b"], posed, policy)


def test_finished_runs_come_back_from_the_file_and_other_settings_do_not_take_them(tmp_path):
    path, config = tmp_path / "parity.json", prepared(Config(), 10)
    assert read_curves(path, config) == {}
    curves = {2: {"assay": curve(0.3, 0.9), "trl": curve(0.3, 0.8)}, 3: {"trl": curve(0.3, 0.7)}}
    write_curves(path, config, curves)
    assert read_curves(path, config) == curves
    document = json.loads(path.read_text())
    assert document["seeds_compared"] == [2]
    assert document["comparisons"]["sampled"]["verdict"] == UNKNOWN
    assert document["comparisons"]["sampled"]["difference"] == pytest.approx(0.1)
    other = replace(config, optimizer=replace(config.optimizer, learning_rate=0.0))
    with pytest.raises(ConfigError, match=r"another comparison \(optimizer differ\)"):
        read_curves(path, other)
    path.write_text('{"seeds": 1}')
    with pytest.raises(ConfigError, match=r"is not a file of benchmarks\.learning"):
        read_curves(path, config)


@pytest.fixture
def worker(monkeypatch, tmp_path):
    """Makes every contender this shell script; $5 is its directory."""

    def make(script):
        file = tmp_path / "python"
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(file))

    return make


@needs_trl
def test_a_comparison_that_is_finished_runs_nothing_again(worker, tmp_path, capsys):
    worker("exit 3")
    path = tmp_path / "parity.json"
    rising = {"assay": curve(0.3, 0.9), "trl": curve(0.3, 0.5)}
    write_curves(path, prepared(Config(), 10), {1: rising, 2: rising})
    assert learning(Config(), 2, 10, path, None) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert "+0.400 +- 0.000" in printed.out
    assert printed.out.count(OURS) == 3
    assert learning(Config(), 3, 10, path, None) == 1  # the third seed is not there
    assert "run 1 of 2: assay with seed 3" in capsys.readouterr().err


@needs_trl
def test_a_run_that_fails_ends_the_comparison_with_its_last_words(worker, capsys):
    worker("echo no memory left >&2; exit 3")
    assert learning(Config(), 1, 1, None, None) == 1
    assert "no memory left" in capsys.readouterr().err


@needs_trl
def test_what_a_worker_refuses_is_refused(worker):
    worker('printf "other tokens" > "$5/refused.txt"; exit 2')
    with pytest.raises(ConfigError, match="other tokens"):
        learning(Config(), 1, 1, None, None)


@needs_trl
def test_curves_that_did_not_begin_alike_fail_the_comparison(worker, tmp_path, capsys):
    worker("exit 3")
    path = tmp_path / "parity.json"
    write_curves(path, prepared(Config(), 10), {1: {"assay": curve(0.3, 0.9), "trl": curve(0.2, 0.9)}})
    assert learning(Config(), 1, 10, path, None) == 1
    assert "not comparable: seed 1" in capsys.readouterr().out


@needs_trl
@pytest.mark.thorough
def test_two_seeds_of_two_steps_from_config_to_plot(warm_peer, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(sys, "executable", str(warm_peer))
    (tmp_path / "tiny.toml").write_text(TINY)
    config = configuration.load(tmp_path / "tiny.toml")
    assert learning(config, 2, 2, tmp_path / "parity.json", tmp_path / "parity.svg") == 0
    printed = capsys.readouterr()
    assert "run 4 of 4: assay with seed 2, 2 steps" in printed.err
    assert "pass@1 sampled, at the end" in printed.out
    document = json.loads((tmp_path / "parity.json").read_text())
    for seed in ("1", "2"):
        ours, peer = (document["seeds"][seed][name] for name in ("assay", "trl"))
        assert ours["prompts_sha256"] == peer["prompts_sha256"]
        assert ours["rows"][0] == peer["rows"][0]
        assert [row["step"] for row in ours["rows"]] == [row["step"] for row in peer["rows"]] == [0, 1, 2]
        assert ours["rows"][0]["prompts"] == 8
    assert document["seeds"]["1"]["assay"]["prompts_sha256"] != document["seeds"]["2"]["assay"]["prompts_sha256"]
    ElementTree.parse(tmp_path / "parity.svg")
