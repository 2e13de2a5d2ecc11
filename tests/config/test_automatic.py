"""Defaults that depend on the model and the length of the run: a real model never inherits those of the toy."""

import tomllib

import pytest
from fixtures.tiny import tiny_policy
from typer.testing import CliRunner

from assay.cli import app
from assay.config import Config, ConfigError, load, template, to_mapping
from assay.config.automatic import AUTOMATIC
from assay.policy.load import with_adapter
from assay.train.run.opening import with_rate
from assay.train.step.learner import learning_rate

REAL = ["model.path=owner/name", "task.name=json"]


def test_the_embedded_model_keeps_its_defaults():
    assert load(None) == Config()
    assert (Config().optimizer.learning_rate, Config().optimizer.warmup) == (7e-4, 10)


def test_another_model_gets_a_limit_it_can_answer_in_and_steps_it_can_pay_for():
    config = load(None, REAL)
    assert (config.rollout.prompts, config.rollout.max_tokens) == (8, 256)
    assert (config.optimizer.epochs, config.evaluate.prompts) == (1, 32)
    assert config.optimizer.learning_rate == "auto"


def test_the_rate_of_full_weights_is_decided_by_their_number():
    policy = tiny_policy()
    assert with_rate(load(None, REAL), policy).optimizer.learning_rate == 5e-6
    policy.model.add_module("large", Large())
    assert with_rate(load(None, REAL), policy).optimizer.learning_rate == 1e-6
    stated = load(None, [*REAL, "optimizer.learning_rate=3e-5"])
    assert with_rate(stated, policy) is stated


class Large:
    """A module of a billion parameters that takes no memory."""

    def __new__(cls):
        import torch

        module = torch.nn.Module()
        module.weight = torch.nn.Parameter(torch.empty(10**9, device="meta"))
        return module


def test_lora_has_a_rate_of_its_own_on_any_model():
    config = load(None, [*REAL, "model.lora_rank=4"])
    assert config.optimizer.learning_rate == 1e-4
    policy = with_adapter(tiny_policy(), config)
    assert with_rate(config, policy) is config
    assert load(None, ["model.lora_rank=4"]).optimizer.learning_rate == 7e-4  # the toy is the toy


def test_what_is_stated_wins_over_the_model():
    stated = {
        "rollout.prompts": 3,
        "rollout.max_tokens": 10,
        "optimizer.learning_rate": 7e-4,
        "optimizer.warmup": 10,
        "optimizer.epochs": 2,
        "evaluate.prompts": 0,
        "loss.kl_estimator": "k2",
        "loss.kl_gradient": "unbiased",
        "advantage.std": "population",
    }
    assert stated.keys() == AUTOMATIC
    mapping = to_mapping(load(None, [*REAL, *(f"{name}={value}" for name, value in stated.items())]))
    for name, value in stated.items():
        section, _, key = name.partition(".")
        assert mapping[section][key] == value


@pytest.mark.parametrize("path", ["embedded", "owner/name"])
def test_auto_is_the_same_as_saying_nothing(path):
    asked = [f"model.path={path}"]
    assert load(None, [*asked, *(f"{name}=auto" for name in AUTOMATIC)]) == load(None, asked)


@pytest.mark.parametrize("steps", [1, 4, 20, 120, 1000])
def test_every_run_reaches_its_rate(steps):
    config = load(None, [f"run.steps={steps}"])
    updates = steps * config.updates_a_step
    rates = [learning_rate(config.optimizer, number, updates) for number in range(updates)]
    assert max(rates) == rates[-1] == 7e-4
    assert rates.count(7e-4) >= 0.8 * updates
    assert config.optimizer.warmup == min(10, updates // 10)


def test_settings_that_are_not_automatic_do_not_take_auto():
    with pytest.raises(ConfigError, match=r"run\.steps = 'auto' must be a whole number"):
        load(None, ["run.steps=auto"])


def test_the_printed_config_can_be_given_another_model(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(template(None))
    values = tomllib.loads(file.read_text())
    printed = {
        f"{section}.{key}" for section, table in values.items() for key, value in table.items() if value == "auto"
    }
    assert printed == {*AUTOMATIC, "run.device", "model.dtype"}
    assert load(file) == Config()
    assert load(file, REAL) == load(None, REAL)
    assert CliRunner().invoke(app, ["train", "--print-config"]).stdout.strip() == file.read_text().strip()


def test_a_contradiction_is_found_with_the_numbers_of_the_model():
    load(None, ["optimizer.minibatches=6"])  # 384 rows
    with pytest.raises(ConfigError, match="64 rows cannot be cut evenly into"):
        load(None, [*REAL, "optimizer.minibatches=6"])


def test_a_rate_that_was_never_decided_cannot_train():
    with pytest.raises(ValueError, match="still 'auto'"):
        learning_rate(load(None, REAL).optimizer, 0, 10)


@pytest.mark.parametrize(
    ("stated", "estimator", "gradient"),
    [
        ([], "k3", "unbiased"),
        (["loss.kl_placement=reward"], "k1", "unbiased"),
        (["loss.kl_placement=reward", "loss.kl_estimator=auto"], "k1", "unbiased"),
        (["loss.kl_estimator=k2"], "k2", "naive"),
        (["loss.kl_estimator=k2", "loss.kl_gradient=auto"], "k2", "naive"),
        (["loss.kl_estimator=k2", "loss.kl_gradient=unbiased"], "k2", "unbiased"),
        (["loss.kl_gradient=naive"], "k3", "naive"),
        (["loss.kl_estimator=k1"], "k1", "unbiased"),
    ],
)
def test_the_kl_gets_the_estimator_and_the_gradient_that_belong_together(stated, estimator, gradient):
    loss = load(None, stated).loss
    assert (loss.kl_estimator, loss.kl_gradient) == (estimator, gradient)


@pytest.mark.parametrize(
    ("stated", "std"),
    [
        ([], "sample"),
        (["advantage.baseline=leave_one_out"], "none"),
        (["advantage.baseline=leave_one_out", "advantage.std=sample"], "sample"),
        (["advantage.baseline=leave_one_out", "advantage.scale=batch"], "sample"),
        (["advantage.scale=batch"], "sample"),
    ],
)
def test_the_mean_of_the_others_is_not_divided_by_a_std_that_nobody_asked_for(stated, std):
    assert load(None, stated).advantage.std == std
