"""No setting is decoration: each one, changed alone, changes what a run of two steps does, or is refused.

A setting that only counts beside others names them (`given`); that run is then what the changed one is compared with.
"""

import json
import re
from dataclasses import fields

import pytest
import torch
from fixtures.commands import TINY
from safetensors.torch import load_file

from assay import config as configuration
from assay.config import AdvantageConfig, Config, ConfigError, LossConfig, OptimizerConfig, RolloutConfig
from assay.tasks.sort_digits import SortDigits
from assay.train.run.run import start
from assay.types import Score

BASE = TINY | {
    "run.steps": 2,
    "evaluate.prompts": 0,
    "optimizer.learning_rate": 1e-2,  # so large that ratios leave every bound
    "optimizer.minibatches": 1,
    "optimizer.microbatches": 1,
    "optimizer.epochs": 3,
    "checkpoint.every": 100,
}
KL = {"loss.kl_coef": 0.1}
GDPO = {"advantage.combine": "gdpo"}
CORRECTED = {"loss.correction": "token", "loss.correction_high": 1.0}  # sampler and trainer differ by rounding
WARMED = {"optimizer.warmup": 1}

CHANGES = [
    ("advantage.baseline", "leave_one_out", {}),
    ("advantage.std", "population", {}),
    ("advantage.std", "none", {}),
    ("advantage.std", "population", GDPO),
    ("advantage.std", "none", GDPO),
    ("advantage.scale", "batch", {}),
    ("advantage.combine", "gdpo", {}),
    ("advantage.epsilon", 0.1, {}),
    ("advantage.epsilon", 0.1, GDPO),
    ("optimizer.learning_rate", 5e-3, {}),
    ("optimizer.schedule", "linear", {}),
    ("optimizer.schedule", "cosine", {}),
    ("optimizer.schedule", "cosine", WARMED | {"optimizer.schedule": "linear"}),
    ("optimizer.warmup", 2, {}),
    ("optimizer.beta1", 0.5, {}),
    ("optimizer.beta2", 0.9, {}),
    ("optimizer.weight_decay", 0.1, {}),
    ("optimizer.clip_norm", 0.0, {}),
    ("optimizer.clip_norm", 0.1, {}),
    ("optimizer.epochs", 2, {}),
    ("optimizer.minibatches", 2, {}),
    ("rollout.prompts", 3, {}),
    ("rollout.group_size", 3, {}),
    ("rollout.max_tokens", 5, {}),
    ("rollout.temperature", 0.7, {}),
    ("rollout.top_k", 3, {}),
    ("rollout.top_p", 0.5, {"rollout.top_k": 8}),
    ("rollout.min_p", 0.5, {"rollout.top_k": 8}),
    ("rollout.stop", ("3",), {}),
    ("rollout.zero_variance", "skip", {}),
    ("rollout.zero_variance", "refill", {}),
    ("rollout.zero_variance", "refill", {"rollout.zero_variance": "skip"}),
    ("rollout.truncated", "mask", {"rollout.max_tokens": 3}),
    ("rollout.truncated", "penalise", {}),
    ("rollout.penalty_tokens", 4, {"rollout.truncated": "penalise"}),
    *[("loss.objective", name, {}) for name in ("grpo", "dr_grpo", "gspo", "cispo", "sapo")],
    ("loss.objective", "bnpo", {"optimizer.minibatches": 2}),  # with one minibatch it is dapo
    ("loss.clip_low", 0.01, {}),
    ("loss.clip_high", 0.01, {}),
    ("loss.dual_clip", 1.3, {}),
    ("loss.delta", 1.3, {}),
    ("loss.cispo_max", 1.0, {"loss.objective": "cispo"}),
    ("loss.sapo_positive", 2.0, {"loss.objective": "sapo"}),
    ("loss.sapo_negative", 2.0, {"loss.objective": "sapo"}),
    ("loss.entropy_coef", 0.1, {}),
    ("loss.kl_coef", 0.1, {}),
    ("loss.reference_every", 1, KL),
    ("loss.kl_placement", "reward", KL),
    ("loss.kl_estimator", "k2", KL),
    ("loss.kl_gradient", "naive", KL),
    ("loss.correction", "token", {"loss.correction_high": 1.0, "loss.correction_mode": "mask"}),
    ("loss.correction", "sequence", CORRECTED),
    ("loss.correction", "geometric", CORRECTED),
    ("loss.correction_mode", "mask", CORRECTED),
    ("loss.correction_low", 1.0, {"loss.correction": "token", "loss.correction_mode": "mask"}),
    ("loss.correction_high", 1.0, {"loss.correction": "token", "loss.correction_mode": "mask"}),
]
TESTED_ELSEWHERE = {
    "optimizer.microbatches",  # must not matter: below
    "optimizer.pass_tokens",  # must not matter: below
    "rollout.max_rows",  # must not matter: a rollout has random numbers of its own, tests/engine/test_scheduler.py
    "optimizer.share_prompts",  # must not matter: below
    "rollout.refill_rounds",  # ends a run: test_verbs.py
}


def config_of(settings):
    written = {name: list(value) if isinstance(value, tuple) else value for name, value in (BASE | settings).items()}
    return configuration.load(None, [f"{name}={value}" for name, value in written.items()])


def reward(self, prompt, rollout):
    """Two components with many values; nothing at all for the prompts that begin with a low digit."""
    if prompt.text < "4":
        return Score.of({"low": 0.0, "in_place": 0.0})
    right = sum(got == wanted for got, wanted in zip(rollout.text, prompt.answer, strict=False))
    return Score.of({"low": -sum(rollout.tokens) / 100, "in_place": right / len(prompt.answer)})


@pytest.fixture(scope="module")
def ran(run_root):
    """ran(settings): (metrics, final weights) of a run, made once."""
    results = {}
    threads = torch.get_num_threads()

    def run(settings, again=""):
        key = again + json.dumps(settings, sort_keys=True)
        if key not in results:
            path = run_root / f"settings-{len(results)}"
            assert start(config_of(settings), path) == 0
            metrics = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
            results[key] = metrics, load_file(max((path / "checkpoints").iterdir()) / "weights.safetensors")
        return results[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SortDigits, "score", reward)
        yield run
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)


def apart(first, second):
    return max(float((weight - second[name]).abs().max()) for name, weight in first.items())


def test_equal_settings_give_equal_runs(ran):
    (metrics, weights), (same_metrics, same_weights) = ran({}), ran({}, again="again")
    assert metrics == same_metrics
    assert apart(weights, same_weights) == 0.0


@pytest.mark.parametrize(("name", "value", "given"), CHANGES, ids=lambda part: str(part).replace(" ", ""))
def test_changing_a_setting_changes_the_weights_a_run_ends_with(ran, name, value, given):
    section, key = name.split(".")
    assert getattr(getattr(config_of(given), section), key) != value
    (metrics, weights), (other_metrics, other_weights) = ran(given), ran(given | {name: value})
    assert metrics != other_metrics
    assert apart(weights, other_weights) > 1e-7


def test_every_setting_of_the_algorithm_is_changed_here_or_tested_elsewhere():
    sections = {
        "advantage": AdvantageConfig,
        "optimizer": OptimizerConfig,
        "rollout": RolloutConfig,
        "loss": LossConfig,
    }
    every = {f"{section}.{field.name}" for section, part in sections.items() for field in fields(part)}
    assert every == {name for name, _, _ in CHANGES} | TESTED_ELSEWHERE


def test_cutting_updates_into_microbatches_changes_them_by_rounding_only(ran):
    by_tokens = {"optimizer.microbatches": 0, "optimizer.pass_tokens": 40}
    for cut in ({"optimizer.microbatches": 2}, by_tokens):
        (metrics, _), (cut_metrics, _) = ran({}), ran(cut)
        for name in ("loss", "gradient_norm"):  # of the first step: later ones may sample other answers
            assert cut_metrics[0][name] == pytest.approx(metrics[0][name], rel=1e-2)


def test_computing_prompts_once_changes_updates_by_rounding_only(ran):
    (metrics, _), (apart_metrics, _) = ran({}), ran({"optimizer.share_prompts": "false"})
    for name in ("loss", "gradient_norm"):
        assert apart_metrics[0][name] == pytest.approx(metrics[0][name], rel=1e-2)
    assert apart_metrics[0]["gradient_norm"] != metrics[0]["gradient_norm"]  # the other way was really taken


def test_without_a_std_in_gdpo_the_advantages_keep_the_scale_of_the_rewards(ran):
    (plain, _), (divided, _) = ran(GDPO | {"advantage.std": "none"}), ran(GDPO)
    assert plain[0]["gradient_norm"] < divided[0]["gradient_norm"] / 2


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("reward.max_failed", 1.01),
        ("reward.min_scored", 1.01),
        ("reward.max_failed", -0.01),
        ("reward.min_scored", -0.01),
        ("optimizer.beta1", 1.0),
        ("optimizer.beta2", 1.0),
        ("optimizer.beta1", -0.1),
        ("optimizer.beta2", -0.1),
        ("optimizer.weight_decay", -0.1),
        ("optimizer.learning_rate", -1e-3),
        ("optimizer.warmup", -1),
        ("optimizer.epochs", 0),
        ("optimizer.minibatches", 0),
        ("optimizer.microbatches", -1),
        ("optimizer.pass_tokens", -1),
        ("optimizer.clip_norm", -1.0),
        ("rollout.temperature", 0.0),
        ("rollout.refill_rounds", 0),
        ("rollout.group_size", 1),
        ("advantage.epsilon", -1e-4),
        ("loss.clip_low", 1.0),
        ("loss.dual_clip", 1.0),
        ("loss.delta", 1.0),
        ("loss.kl_coef", -0.1),
        ("loss.correction_high", 0.9),
    ],
)
def test_a_value_out_of_bounds_is_refused_by_name(name, value):
    with pytest.raises(ConfigError, match=re.escape(name)):
        config_of({name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("reward.max_failed", 1.0),
        ("reward.max_failed", 0.0),
        ("reward.min_scored", 1.0),
        ("optimizer.beta1", 0.0),
        ("optimizer.beta1", 0.999),
        ("optimizer.beta2", 0.9999),
        ("rollout.refill_rounds", 1),
    ],
)
def test_a_value_on_its_bound_is_taken(name, value):
    section, key = name.split(".")
    config = config_of({name: value})
    assert isinstance(config, Config)
    assert getattr(getattr(config, section), key) == value
