"""The law of credit: every formula of grpo.py obeys it, and forms that nobody listed break it."""

import numpy as np
import pytest
import torch

from assay.doctor.examples import edit_batch, healthy_batch
from assay.doctor.laws.credit import check_batch
from assay.grpo import BASELINES, SCALES, STDS, group_advantages
from assay.verdict import State

REWARDS_PG = np.array([[0.0, 0.2, 1.0, 0.4], [0.3, 0.3, 0.9, 0.1], [0.0, 0.0, 0.0, 1.0], [0.5, 0.6, 0.7, 0.2]])


def batch_with(advantages, rewards_PG=REWARDS_PG, **settings):
    return edit_batch(healthy_batch(), rewards=rewards_PG.ravel(), advantages=advantages, **settings)


@pytest.mark.parametrize("baseline", BASELINES)
@pytest.mark.parametrize("std", STDS)
@pytest.mark.parametrize("scale", SCALES)
def test_every_formula_of_the_trainer_obeys_the_law(baseline, std, scale):
    how = {"baseline": baseline, "std": std, "scale": scale}
    advantages_PG = group_advantages(torch.tensor(REWARDS_PG), epsilon=1e-4, **how)
    assert check_batch(batch_with(advantages_PG.numpy().ravel(), **how)).state is State.HEALTHY


def z(values, axis, ddof=1):
    return (values - values.mean(axis, keepdims=True)) / (values.std(axis, ddof=ddof, keepdims=True) + 1e-4)


FORMS = {
    "population std over dim 0": lambda r_PG: z(r_PG, 0, ddof=0),
    "mean over dim 1, std over dim 0": lambda r_PG: (
        (r_PG - r_PG.mean(1, keepdims=True)) / (r_PG.std(0, ddof=1, keepdims=True) + 1e-4)
    ),
    "mean over dim 0, no std": lambda r_PG: r_PG - r_PG.mean(0),
    "rewards of the step before": lambda r_PG: z(np.roll(r_PG, 1, axis=0), 1),
    "transposed before flattening": lambda r_PG: z(r_PG, 1).T,
    "the sign of one row is lost": lambda r_PG: z(r_PG, 1) * np.where(np.arange(16).reshape(4, 4) == 2, -1.0, 1.0),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_that_nobody_listed_break_it(form):
    assert check_batch(batch_with(FORMS[form](REWARDS_PG).ravel())).state is State.FINDING


def test_the_axis_is_named():
    advantages_PG = FORMS["mean over dim 1, std over dim 0"](REWARDS_PG)
    message = check_batch(batch_with(advantages_PG.ravel())).message
    assert "the std over the same place in every group (dim 0) of view(4, 4)" in message


def test_an_advantage_that_decays_along_the_row_is_found():
    batch = healthy_batch()
    decay_T = 0.9 ** np.arange(batch.arrays["mask"].shape[1])
    verdict = check_batch(edit_batch(batch, advantages=batch.token_advantages * decay_T))
    assert verdict.state is State.FINDING
    assert "differ between the tokens of one row" in verdict.message


def test_a_formula_that_is_not_known_is_not_called_healthy():
    advantages_PG = np.sqrt(REWARDS_PG) - np.sqrt(REWARDS_PG).mean(1, keepdims=True)  # in order, and not listed
    assert check_batch(batch_with(advantages_PG.ravel())).state is State.NOT_APPLICABLE
