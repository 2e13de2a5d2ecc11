import dataclasses
import inspect
import tomllib
from pathlib import Path

import pytest

from assay import config as configuration
from assay.config import Config, ConfigError, load, to_mapping, to_toml


def refused(*overrides):
    with pytest.raises(ConfigError) as caught:
        load(None, overrides)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_overrides_are_typed_and_come_in_order():
    config = load(
        None, ["run.steps=5", "run.steps=7", "optimizer.learning_rate=1", "run.name=my run", 'loss.objective="gspo"']
    )
    assert (config.run.steps, config.optimizer.learning_rate, config.run.name) == (7, 1.0, "my run")
    assert type(config.optimizer.learning_rate) is float
    assert config.loss.objective == "gspo"


def test_a_file_gives_the_settings_and_overrides_win(tmp_path):
    path = tmp_path / "my.toml"
    path.write_text("[run]\nsteps = 9\nseed = 4\n[loss]\nkl_coef = 0.1\n")
    config = load(path, ["run.seed=5"])
    assert (config.run.steps, config.run.seed, config.loss.kl_coef) == (9, 5, 0.1)


@pytest.mark.parametrize("meanings", [True, False])
def test_what_is_printed_can_be_read_back_to_the_last_digit(tmp_path, meanings):
    config = load(None, ["optimizer.learning_rate=0.1234567890123", 'run.name=a "quoted" \\ name'])
    path = tmp_path / "printed.toml"
    path.write_text(to_toml(config, meanings=meanings))
    assert load(path) == config


def test_every_setting_is_printed_with_its_meaning():
    printed = to_toml(Config(), meanings=True)
    values = tomllib.loads(printed)
    for section in dataclasses.fields(Config):
        for key in dataclasses.fields(getattr(Config(), section.name)):
            assert key.name in values[section.name]
            assert key.metadata["meaning"] in printed
    assert values == to_mapping(Config())


def test_typos_are_answered_with_the_nearest_name():
    assert "unknown setting run.stepz; did you mean 'run.steps'?" in refused("run.stepz=3")
    assert "unknown section [lost]; did you mean 'loss'?" in refused("lost.kl_coef=3")
    assert "did you mean 'loss.clip_low'?" in refused("run.clip_low=0.1")
    assert "did you mean 'refill'?" in refused("rollout.zero_variance=refil")
    assert "did you mean 'gspo'?" in refused("loss.objective=gpso")
    assert "lacks the section of its setting; Assay calls it run.steps" in refused("steps=3")
    assert "not of the form section.key=value" in refused("steps")


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("run.steps=many", "run.steps = 'many' must be a whole number"),
        ("run.steps=1.5", "must be a whole number"),
        ("run.steps=true", "must be a whole number"),
        ("run.steps=0", "below its minimum 1"),
        ("optimizer.learning_rate=nan", "not a finite number"),
        ("rollout.group_size=1", "nobody to be compared with"),
        ("rollout.temperature=0", "below its minimum"),
        ("optimizer.minibatches=7", "cannot be cut evenly into optimizer.minibatches = 7"),
        ("optimizer.microbatches=5000", "are fewer than"),
        ("task.options=3", "task.options = 3 must be a table"),
        ("reward.weights=[1.0, 2.0]", "reward.weights holds 2 numbers for 0 reward.functions"),
        ("rollout.top_p=0.9", "rollout.top_p and rollout.min_p need rollout.top_k"),
        ("rollout.min_p=0.1", "rollout.top_p and rollout.min_p need rollout.top_k"),
        ("rollout.stop=['']", "rollout.stop holds an empty text"),
        ("loss.reference_every=5", "loss.kl_coef = 0 has none"),
        ("loss.dual_clip=1.1", "loss.dual_clip = 1.1 must exceed 1 + loss.clip_high"),
        ("loss.delta=1.0", "loss.delta = 1.0 must exceed 1 + loss.clip_high"),
        ("loss.clip_low=1.0", "must be below 1"),
        ("loss.correction_low=2.0", "is not below loss.correction_high"),
        ("optimizer.beta2=1.0", "must be below 1"),
        ("reward.min_scored=2.0", "shares between 0 and 1"),
    ],
)
def test_values_that_cannot_work_are_refused_with_the_reason(override, words):
    assert words in refused(override)


def test_settings_that_contradict_each_other_are_refused():
    assert "pure noise" in refused("loss.kl_coef=0.1", "loss.kl_estimator=k1", "loss.kl_gradient=naive")
    load(None, ["loss.kl_coef=0.1", "loss.kl_estimator=k1", "loss.kl_gradient=naive", "loss.kl_placement=reward"])
    assert "normalises over the batch" in refused("advantage.combine=gdpo", "advantage.scale=batch")
    assert "penalty_tokens below" in refused("rollout.truncated=penalise", "rollout.penalty_tokens=50")


def test_files_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere\.toml: No such file"):
        load(tmp_path / "nowhere.toml")
    path = tmp_path / "bad.toml"
    for text, words in (
        ("steps = ", "not valid TOML"),
        ("steps = 3\n", r"'steps' stands outside a section; Assay calls it run\.steps"),
        ("[run]\nstep = 3\n", r"bad\.toml: unknown setting run\.step; did you mean 'run\.steps'"),
        ("[rollout]\ngroup_size = 1\n", r"bad\.toml: rollout\.group_size = 1 is below"),
    ):
        path.write_text(text)
        with pytest.raises(ConfigError, match=words):
            load(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not valid TOML"):
        load(path)


def test_the_shipped_configs_are_valid():
    paths = sorted((Path(__file__).parents[2] / "configs").glob("*.toml"))
    assert paths
    for path in paths:
        load(path)


def test_an_objective_of_ones_own_is_accepted_once_registered():
    from assay.grpo import OBJECTIVES, objective

    assert "my_objective" in refused("loss.objective=my_objective")
    objective("my_objective", level="token", aggregation="token_mean")(lambda *_: None)
    try:
        assert configuration.load(None, ["loss.objective=my_objective"]).loss.objective == "my_objective"
    finally:
        del OBJECTIVES["my_objective"]


@pytest.mark.parametrize("name", ["\U0001f98a", "caf\u00e9 \u4e2d", "tab\tand\x7f"])
def test_any_text_survives_the_way_through_a_file(tmp_path, name):
    config = load(None, [f"judge.model={name}"])
    path = tmp_path / "printed.toml"
    path.write_text(to_toml(config, meanings=False), encoding="utf-8")
    assert load(path) == config


@pytest.mark.parametrize("name", ["", "a/b", "..", "/tmp/x", "a\x00b"])
def test_a_run_is_named_by_a_plain_name(name):
    with pytest.raises(ConfigError, match="must be a plain name"):
        configuration.from_mapping({"run": {"name": name}})


def test_bytes_that_are_no_text_are_refused():
    with pytest.raises(ConfigError, match="not text"):
        configuration.from_mapping({"reward": {"functions": ["\udcff.py:score"]}})


def test_the_trainer_class_has_the_defaults_of_the_schema_but_for_those_it_chooses_itself():
    from assay import GRPOTrainer

    chosen = {"group_size", "max_tokens", "objective", "epochs", "seed", "prompts_per_step", "reward_timeout"}
    chosen |= {"gradient_accumulation_steps"}  # of batches that a caller sampled
    sections = to_mapping(Config()).values()
    of_sections = {name: value for section in sections for name, value in section.items() if name != "scale"}
    of_sections["scale"] = Config().advantage.scale  # judge.scale is something else
    of_sections["clip_range"] = of_sections["clip_low"]
    given = {
        name: parameter.default
        for name, parameter in inspect.signature(GRPOTrainer).parameters.items()
        if parameter.default not in (inspect.Parameter.empty, None)
    }
    assert {name for name, value in given.items() if of_sections.get(name) != value} == chosen
    assert of_sections["clip_low"] == of_sections["clip_high"]
