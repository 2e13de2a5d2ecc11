"""Real runs of the real trainer: planted faults are named, healthy runs are not accused, and plants are taken back."""

import pytest

import assay.train.step.verbs
from assay.doctor.catalogue import by_code
from assay.doctor.evidence.run_directory import read_run
from assay.policy.causal import CausalPolicy
from assay.train.run.checkpoint import CheckpointError
from proof.healthy import HEALTHY_RUNS
from proof.outcome import of_healthy, of_planted
from proof.plants.plant import Plant
from proof.plants.runs import plants
from proof.trial import apply_plant, diagnose_trial, failure_of, run_trial, steps_recorded


@pytest.mark.parametrize("code", ["SAMP01", "ADV03", "MASK01"])
def test_a_planted_illness_is_named_first(code, run_path):
    illness, plant = by_code(code), plants()[code]
    run_trial(plant, seed=1, directory=run_path)
    outcome = of_planted(illness, 1, diagnose_trial(run_path, plant), steps=steps_recorded(run_path), seconds=0.0)
    assert outcome.steps == plant.steps
    assert outcome.first, outcome
    assert outcome.confidence == "proven"


@pytest.mark.parametrize("name", ["default", "objective_gspo"])
def test_a_healthy_run_is_not_accused(name, run_path):
    (healthy,) = [one for one in HEALTHY_RUNS if one.name == name]
    plant = Plant(settings=healthy.settings, steps=8)
    run_trial(plant, seed=2, directory=run_path)
    outcome = of_healthy(name, "", 2, diagnose_trial(run_path, plant), steps=steps_recorded(run_path), seconds=0.0)
    assert outcome.steps == 8
    assert outcome.looked > 10
    assert outcome.false_claims == ()
    assert failure_of(run_path) == ""
    assert len(list((run_path / "examined").iterdir())) > 0


def test_groups_of_the_quick_runs_have_different_rewards(run_path):
    run_trial(Plant(steps=1), seed=1, directory=run_path)
    rewards_PG = read_run(run_path).batches[-1].arrays["rewards"].reshape(8, 8)
    assert (rewards_PG.std(axis=1) > 0).sum() >= 5


def test_what_was_wrapped_is_put_back():
    function, method = assay.train.step.verbs.choose, CausalPolicy.logprobs
    names = {
        "assay.train.step.verbs.choose": lambda original, *arguments: (original, *arguments),
        "assay.policy.causal.CausalPolicy.logprobs": lambda original, policy, inputs: (original, inputs),
    }
    with apply_plant(names):
        assert assay.train.step.verbs.choose(1, 2) == (function, 1, 2)
        assert CausalPolicy.logprobs(None, "inputs") == (method, "inputs")
    assert assay.train.step.verbs.choose is function
    assert CausalPolicy.logprobs is method


def test_what_was_wrapped_is_put_back_after_an_error():
    function = assay.train.step.verbs.choose
    with pytest.raises(KeyError), apply_plant({"assay.train.step.verbs.choose": lambda original: None}):
        raise KeyError
    assert assay.train.step.verbs.choose is function


def test_a_name_that_does_not_exist_is_refused_and_what_came_before_it_is_put_back():
    function = assay.train.step.verbs.choose
    names = {
        "assay.train.step.verbs.choose": lambda original: None,
        "assay.train.step.verbs.no_such": lambda original: None,
    }
    with pytest.raises(AttributeError, match="no_such"), apply_plant(names):
        pass
    assert assay.train.step.verbs.choose is function


def test_an_inherited_method_is_not_left_behind_in_the_class():
    inherited = CheckpointError.__str__
    with apply_plant({"assay.train.run.checkpoint.CheckpointError.__str__": lambda original, error: "planted"}):
        assert str(CheckpointError()) == "planted"
    assert "__str__" not in vars(CheckpointError)
    assert CheckpointError.__str__ is inherited


def test_the_trainer_really_runs_with_the_plant_and_edits_come_after_it(run_path):
    calls = []

    def counted(original, *given, **named):
        calls.append(1)
        return original(*given, **named)

    def edited(batch):
        return batch.of({"step": 99})

    plant = Plant(replaces={"assay.train.step.verbs.credit": counted}, edits=edited, steps=2)
    run_trial(plant, seed=1, directory=run_path)
    assert len(calls) == 2
    diagnosis = diagnose_trial(run_path, plant, [by_code("RAT01")])
    assert diagnosis.words[0].source == ""  # the edited batches hold nothing: only the curves could speak


def test_a_run_that_fails_is_a_result(run_path):
    plant = Plant(settings=("rollout.zero_variance=refill", "reward.functions=proof/rewards.py:impossible"))
    run_trial(plant, seed=1, directory=run_path)
    assert "failed: dynamic sampling" in failure_of(run_path)
    assert steps_recorded(run_path) == 0
