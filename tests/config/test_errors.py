"""What is wrong with a config is said all at once, in the names that are right here; a text is read as its setting's
type asks."""

import re

import pytest

from assay.config import Config, ConfigError, from_mapping, load, read_options
from assay.config.refusals import ABSENT, ALIASES, misleading
from assay.tasks.addition import AdditionOptions


def sentences(*overrides, path=None):
    with pytest.raises(ConfigError) as caught:
        load(path, overrides)
    return list(caught.value.sentences)


# ---------------------------------------------------------------- all at once


def test_everything_that_is_wrong_is_said_at_once(tmp_path):
    path = tmp_path / "my.toml"
    path.write_text(
        "steps = 3\n[run]\nstepz = 5\nsteps = 'many'\n[lost]\nkl_coef = 1\n[rollout]\ngroup_size = 1\n"
        "[loss]\nclip_low = 1.5\n"
    )
    assert sentences("optimizer.lr=1", "run.seed", path=path) == [
        f"{path}: 'steps' stands outside a section; Assay calls it run.steps",
        "--set 'run.seed' is not of the form section.key=value, for instance run.steps=20",
        f"{path}: unknown setting run.stepz; did you mean 'run.steps'?",
        f"{path}: run.steps = 'many' must be a whole number, not str",
        f"{path}: unknown section [lost]; did you mean 'loss'?",
        f"{path}: rollout.group_size = 1 is below its minimum 2; a group of one has nobody to be compared with",
        "unknown setting optimizer.lr; Assay calls it optimizer.learning_rate",  # given on the command line
        f"{path}: loss.clip_low = 1 or more allows a ratio of 0 or less; it must be below 1",
    ]


def test_all_contradictions_are_said():
    said = sentences("optimizer.minibatches=7", "loss.clip_low=1.0", "rollout.top_p=0.5")
    assert [sentence.split()[0] for sentence in said] == ["rollout.top_p", "rollout.prompts", "loss.clip_low"]


def test_a_setting_that_is_wrong_in_itself_is_not_also_called_a_contradiction():
    assert sentences("rollout.prompts=x", "optimizer.minibatches=7") == [
        "rollout.prompts = 'x' must be a whole number, not str"
    ]
    assert sentences("optimizer.minibatches=0") == ["optimizer.minibatches = 0 is below its minimum 1"]


def test_all_options_of_a_task_that_are_wrong_are_said():
    with pytest.raises(ConfigError) as caught:
        read_options(AdditionOptions, {"digit": 3, "style": "loud"}, "task.options")
    first, second = caught.value.sentences
    assert "unknown option task.options.digit; did you mean 'digits'?" in first
    assert "task.options.style = 'loud' is not one of" in second


def test_one_error_is_one_sentence():
    assert sentences("run.steps=0") == ["run.steps = 0 is below its minimum 1"]


# ---------------------------------------------------------------- names of other trainers


@pytest.mark.parametrize(
    ("override", "name"),
    [
        ("optimizer.lr=1e-5", "optimizer.learning_rate"),
        ("lr=1e-5", "optimizer.learning_rate"),
        ("actor_rollout_ref.actor.optim.lr=1e-6", "optimizer.learning_rate"),
        ("loss.beta=0.04", "loss.kl_coef"),
        ("beta=0.04", "loss.kl_coef"),
        ("rollout.n=8", "rollout.group_size"),
        ("rollout.num_generations=8", "rollout.group_size"),
        ("max_new_tokens=64", "rollout.max_tokens"),
        ("training.max_completion_length=64", "rollout.max_tokens"),
        ("loss.epsilon=0.2", "loss.clip_low and loss.clip_high"),
        ("epsilon=0.2", "loss.clip_low and loss.clip_high"),
        ("loss.epsilon_high=0.28", "loss.clip_high"),
        ("per_device_train_batch_size=4", "optimizer.microbatches"),
        ("run.num_train_epochs=1", "run.steps"),
        ("optimizer.num_iterations=2", "optimizer.epochs"),
        ("gradient_accumulation_steps=4", "optimizer.microbatches"),
        ("optimizer.max_grad_norm=1", "optimizer.clip_norm"),
        ("save_steps=10", "checkpoint.every"),
        ("model.lora_r=8", "model.lora_rank"),
        ("temperature=0.7", "rollout.temperature"),
        ("seed=3", "run.seed"),
        ("steps=3", "run.steps"),
        ("batch_size=8", "rollout.prompts"),
        ("model=gpt2", "model.path"),
    ],
)
def test_the_name_that_another_trainer_uses_is_answered_with_ours(override, name):
    (sentence,) = sentences(override)
    assert f"; Assay calls it {name}" in sentence
    assert override.partition("=")[0] in sentence


def test_what_there_is_no_setting_for_is_answered_with_the_reason():
    assert sentences("run.logging_steps=1") == [
        "unknown setting run.logging_steps; there is no such setting: every step is recorded"
    ]


def test_a_key_of_several_sections_is_answered_with_all_of_them():
    assert sentences("every=5")[0].endswith("; it may be checkpoint.every or evaluate.every")


def test_every_name_that_is_answered_is_a_setting():
    config = Config()
    for foreign, answer in {**ALIASES, **ABSENT}.items():
        for section, key in re.findall(r"\b([a-z]+)\.([a-z_0-9]+)\b", answer):
            assert hasattr(config, section), foreign
            assert hasattr(getattr(config, section), key), foreign
    assert ALIASES.keys().isdisjoint(ABSENT)


# ---------------------------------------------------------------- texts and their types


@pytest.mark.parametrize("text", ["nan", "inf", "1e5", "true", "2024-01-01", "[x]", "12", "{a = 1}", "07:30:00"])
def test_a_text_setting_takes_any_text(text):
    config = load(None, [f"model.path={text}", f"run.name={text}", f"judge.model={text}", f"rollout.stop={text}x"])
    assert (config.model.path, config.run.name, config.judge.model) == (text, text, text)
    assert config.rollout.stop == (f"{text}x",)


def test_quotes_around_a_text_are_optional():
    assert load(None, ['run.name="nan"']).run.name == load(None, ["run.name=nan"]).run.name == "nan"


def test_a_list_of_texts_is_a_list_of_toml_or_one_text():
    assert load(None, ['reward.functions=["exact", "math"]']).reward.functions == ("exact", "math")
    assert load(None, ["rollout.stop=[/INST]"]).rollout.stop == ("[/INST]",)
    assert load(None, ["reward.functions=nan"]).reward.functions == ("nan",)
    assert load(None, ['rollout.stop=["a,b"]']).rollout.stop == ("a,b",)


def test_a_number_is_read_as_a_number():
    config = load(None, ["optimizer.learning_rate=1e-5", "reward.functions=exact", "reward.weights=2"])
    assert (config.optimizer.learning_rate, config.reward.weights) == (1e-5, (2.0,))
    assert sentences("run.steps=nan") == ["run.steps = nan must be a whole number, not float"]
    assert sentences("checkpoint.final=yes") == ["checkpoint.final = 'yes' must be true or false, not str"]


def test_a_value_is_not_a_table():
    assert sentences("run.steps=3", "run.steps.x=4") == [
        "--set 'run.steps.x=4': run.steps is a value, not a table of values"
    ]


def test_a_number_in_a_file_is_not_a_text():
    with pytest.raises(ConfigError, match=r"model\.path = nan must be a text, not float; put it in quotes"):
        from_mapping({"model": {"path": float("nan")}})


@pytest.mark.parametrize(
    ("stated", "fix"),
    [
        (["loss.kl_placement=reward", "loss.kl_estimator=k3"], "set loss.kl_estimator = 'k1'"),
        (["loss.kl_placement=reward", "loss.kl_estimator=k2"], "set loss.kl_estimator = 'k1'"),
        (["loss.kl_estimator=k2", "loss.kl_gradient=unbiased"], "set loss.kl_gradient = 'naive'"),
    ],
)
def test_a_kl_without_the_gradient_of_the_kl_is_refused_for_new_runs_but_can_be_read(stated, fix):
    config = load(None, ["loss.kl_coef=0.1", *stated])
    (sentence,) = misleading(config)
    assert fix in sentence
    assert misleading(load(None, stated)) == []  # no KL, nothing to be wrong


@pytest.mark.parametrize(
    "stated",
    [
        [],
        ["loss.kl_placement=reward"],
        ["loss.kl_estimator=k1"],
        ["loss.kl_estimator=k2"],
        ["loss.kl_gradient=naive"],  # as TRL does
    ],
)
def test_every_other_kl_may_be_run(stated):
    assert misleading(load(None, ["loss.kl_coef=0.1", *stated])) == []
