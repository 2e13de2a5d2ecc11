"""The temperature at which a model gives some log-probs is found again, and only that."""

import pytest
import torch
from torch import nn

from assay.policy.plain import plain_logprobs, temperature_behind

ROWS = [([1, 2], [3, 4, 5, 0]), ([6, 7, 1], [2, 2, 8, 9, 0])]


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(10, 16), nn.Linear(16, 10))


def scored(model, temperature):
    return [(prompt, row, plain_logprobs(model, prompt, row, temperature=temperature).scaled_T) for prompt, row in ROWS]


@pytest.mark.parametrize("temperature", [0.6, 0.93, 1.2, 2.5])
def test_the_temperature_behind_log_probs_is_found(model, temperature):
    assert temperature_behind(model, scored(model, temperature), 1.0) == pytest.approx(temperature, rel=1e-2)


def test_the_stated_temperature_is_no_finding(model):
    assert temperature_behind(model, scored(model, 0.8), 0.8) is None


def test_log_probs_of_no_temperature_have_none(model):
    shifted = [(prompt, row, scores_T.roll(1)) for prompt, row, scores_T in scored(model, 1.2)]
    divided = [(prompt, row, scores_T / 0.7) for prompt, row, scores_T in scored(model, 1.0)]
    assert temperature_behind(model, shifted, 1.0) is None
    assert temperature_behind(model, divided, 1.0) is None
