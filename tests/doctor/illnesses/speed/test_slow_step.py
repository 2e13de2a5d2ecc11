"""slow_step: which waste is a finding, which pattern is told, and the facts that are always shown."""

from dataclasses import replace

import pytest

from assay.doctor.examples import healthy_curves
from assay.doctor.illnesses.speed import slow_step
from assay.verdict import Missing, State


def timed(*, scored=0.2, slow=(), steps=20, **columns):
    curves = healthy_curves(steps=steps, **columns)
    rows = []
    for index, row in enumerate(curves.timings):
        factor = 6.0 if index in slow else 1.0
        rows.append({**row, "seconds_scored": scored, "seconds": (2.01 + scored) * factor})
    return replace(curves, timings=rows)


@pytest.mark.parametrize(
    ("curves", "state"),
    [
        (timed(scored=2.1), State.FINDING),
        (timed(scored=1.9), State.HEALTHY),
        (timed(length_mean=19.0), State.FINDING),  # of 64
        (timed(length_mean=20.0), State.HEALTHY),
        (timed(slow=range(1, 10, 2)), State.FINDING),
        (timed(slow=range(1, 8, 2)), State.HEALTHY),
        (timed(steps=4, scored=9.0), State.NOT_ENOUGH_DATA),
    ],
)
def test_a_step_is_wasteful_by_scoring_padding_or_spikes(curves, state):
    try:
        assert slow_step.check_curves(curves).state is state
    except Missing:
        assert state is State.NOT_ENOUGH_DATA


def test_padding_is_none_of_an_assay_runs_problems():
    """Its passes are cut by tokens, whatever the longest answer is."""
    curves = timed(length_mean=10.0)
    assert slow_step.check_curves(curves).state is State.FINDING
    own = replace(curves, settings={**curves.settings, "trainer": "assay"})
    assert slow_step.check_curves(own).state is State.HEALTHY


@pytest.mark.parametrize(
    ("slow", "words"),
    [((0,), "compilation"), ((4, 9, 14), "every 5 steps"), ((2, 3, 8, 9, 11), "irregularly"), ((), "alike")],
)
def test_the_pattern_of_slow_steps_is_told(slow, words):
    facts = {fact.what: fact.value for fact in slow_step.check_curves(timed(slow=slow)).facts}
    assert words in facts["pattern"]


def test_the_facts_name_the_stage_that_dominates_and_what_it_is_worth():
    facts = {fact.what: fact.value for fact in slow_step.check_curves(timed()).facts}
    assert facts["seconds in generated"] == "1 (45%)"
    assert facts["speed-up of the step if generated took half the time"] == pytest.approx(1 / (1 - 0.5 / 2.21))
    assert facts["milliseconds a generated token in generated"] == pytest.approx(1000 / 5120)
    assert facts["forward passes over the answers of a step"].startswith("4 ")
    assert facts["answers per step"] == "16 (4 prompts x 4)"


def test_seconds_of_a_tiny_model_are_nobodys_problem():
    curves = timed(scored=5.0)
    rows = [{name: value if name == "step" else value / 100 for name, value in row.items()} for row in curves.timings]
    assert slow_step.check_curves(replace(curves, timings=rows)).state is State.HEALTHY
