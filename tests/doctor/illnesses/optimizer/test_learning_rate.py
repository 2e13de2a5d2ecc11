"""HYP01 on the learning rate: by the size of the model, by what of it is trained, and not at all without the size."""

import json
from dataclasses import replace

import pytest
from fixtures.fake_records import fake_record
from typer.testing import CliRunner

from assay.cli import app
from assay.config import Config, OptimizerConfig, to_toml
from assay.doctor.examples import healthy_curves
from assay.doctor.illnesses.optimizer import hyperparameter
from assay.record import RunDirectory
from assay.verdict import Missing, Severity, State

TOY, SMALL, LARGE = 84_000, 10_000_000, 135_000_000


@pytest.mark.parametrize(
    ("rate", "parameters", "lora_rank", "severity"),
    [  # the last rate that is left alone, and the first that is not
        (5e-5, LARGE, 0, None),
        (6e-5, LARGE, 0, Severity.HARMFUL),
        (2e-4, 70_000_000_000, 0, Severity.HARMFUL),
        (7e-4, LARGE, 0, Severity.FATAL),
        (1e-3, SMALL, 0, None),
        (2e-3, SMALL, 0, Severity.HARMFUL),
        (0.02, SMALL, 0, Severity.FATAL),
        (0.01, TOY, 0, None),
        (0.011, TOY, 0, Severity.HARMFUL),
        (5e-4, LARGE, 16, None),
        (6e-4, LARGE, 16, Severity.HARMFUL),
        (3e-3, LARGE, 16, Severity.FATAL),
        (0.1, TOY, 8, None),
        (0.2, TOY, 8, Severity.HARMFUL),
    ],
)
def test_a_learning_rate_is_judged_by_the_size_of_the_model_and_by_what_of_it_is_trained(
    rate, parameters, lora_rank, severity
):
    settings = {"learning_rate": rate, "parameters": parameters, "lora_rank": lora_rank}
    verdict = hyperparameter.check_curves(healthy_curves(settings=settings))
    assert verdict.state is (State.HEALTHY if severity is None else State.FINDING)
    assert verdict.severity is severity
    assert severity is None or verdict.message.startswith(f"learning_rate = {rate:g}: ")


def test_a_rate_above_the_usual_is_not_called_usual():
    usual = hyperparameter.check_curves(healthy_curves(settings={"learning_rate": 1e-5}))
    above = hyperparameter.check_curves(healthy_curves(settings={"learning_rate": 2e-5}))
    assert usual.message.endswith("within their usual ranges")
    assert "1e-06 to 1e-05 is usual for a model of 500 million parameters" in above.message


@pytest.mark.parametrize("lost", [{"parameters": None}, {"parameters": 0}, {"parameters": None, "lora_rank": None}])
def test_without_the_size_of_the_model_its_learning_rate_is_not_judged(lost):
    def verdict_at(rate, **more):
        curves = healthy_curves(settings={"learning_rate": rate, **more})
        kept = {name: value for name, value in {**curves.settings, **lost}.items() if value is not None}
        return hyperparameter.check_curves(replace(curves, settings=kept))

    for rate in (1e-6, 7e-4):
        with pytest.raises(Missing, match="by which its learning rate"):
            verdict_at(rate)
    assert verdict_at(2.0).severity is Severity.FATAL  # no model bears it
    assert verdict_at(7e-4, temperature=1.6).state is State.FINDING  # what is known is judged


def test_where_it_is_not_known_whether_adapters_are_trained_only_what_both_cannot_bear_is_named():
    curves = healthy_curves()
    known = {name: value for name, value in curves.settings.items() if name != "lora_rank"}
    assert hyperparameter.check_curves(replace(curves, settings={**known, "learning_rate": 7e-4})).severity
    with pytest.raises(Missing):
        hyperparameter.check_curves(replace(curves, settings={**known, "learning_rate": 1e-4}))


@pytest.mark.parametrize(("size", "key"), [(135_000_000, "findings"), (84_000, "passed"), (None, "not_enough_data")])
def test_the_size_is_read_from_the_first_event_of_a_run(size, key, tmp_path):
    config = replace(Config(), optimizer=OptimizerConfig(learning_rate=7e-4))
    run = RunDirectory.create(tmp_path / "run", to_toml(config, meanings=False), {"python": "3.11"})
    run.append_step(fake_record(1))
    run.append_event("start", steps=3, **({} if size is None else {"parameters": size}))
    done = CliRunner().invoke(app, ["doctor", str(tmp_path / "run"), "--select", "HYP01", "--format", "json"])
    assert [one["code"] for one in json.loads(done.stdout)[key]] == ["HYP01"]
