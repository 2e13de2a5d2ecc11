"""The temperature at which a model gives some log-probs is found again, and only that."""

import time

import pytest
import torch
from torch import nn

from assay.policy.plain import Scored, plain_logprobs, temperature_behind

ROWS = [([1, 2], [3, 4, 5, 0]), ([6, 7, 1], [2, 2, 8, 9, 0])]


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(10, 16), nn.Linear(16, 10))


def scored(model, temperature, changed=lambda scores_T: scores_T, stated=1.0):
    rows = []
    for prompt, row in ROWS:
        given, plain = (plain_logprobs(model, prompt, row, temperature=heat).scaled_T for heat in (temperature, stated))
        rows.append(Scored(prompt, row, changed(given), plain))
    return rows


@pytest.mark.parametrize("temperature", [0.6, 0.93, 1.2, 2.5])
def test_the_temperature_behind_log_probs_is_found(model, temperature):
    assert temperature_behind(model, scored(model, temperature), 1.0) == pytest.approx(temperature, rel=1e-2)


def test_the_stated_temperature_is_no_finding(model):
    assert temperature_behind(model, scored(model, 0.8, stated=0.8), 0.8) is None


def test_log_probs_of_no_temperature_have_none(model):
    assert temperature_behind(model, scored(model, 1.2, lambda scores_T: scores_T.roll(1)), 1.0) is None
    assert temperature_behind(model, scored(model, 1.0, lambda scores_T: scores_T / 0.7), 1.0) is None


def test_one_token_beside_many_certain_ones_has_no_temperature(model):
    with torch.no_grad():
        model[1].bias[3] += 100.0
    rows = [([1, 2], [3] * 20 + [4])]
    plain_T = plain_logprobs(model, *rows[0], temperature=1.0).scaled_T
    scores_T = plain_logprobs(model, *rows[0], temperature=1.5).scaled_T
    assert temperature_behind(model, [Scored(*rows[0], scores_T, plain_T)], 1.0) is None


def test_a_large_vocabulary_is_not_scored_again_and_again():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(20_000, 8), nn.Linear(8, 20_000))
    passes = []
    model.register_forward_hook(lambda module, given, logits: passes.append(logits.shape[1]))
    tokens = torch.randint(0, 20_000, (64,)).tolist()
    plain_T = plain_logprobs(model, [1, 2], tokens, temperature=1.0).scaled_T
    rows = [Scored([1, 2], tokens, plain_T + 0.01 * torch.randn(64), plain_T)] * 12
    del passes[:]
    began = time.perf_counter()
    assert temperature_behind(model, rows, 1.0) is None
    assert passes == [2 + 8] * 8
    assert time.perf_counter() - began < 5.0


def test_noise_of_16_bits_is_not_looked_into(model):
    model.bfloat16()
    passes = []
    model.register_forward_hook(lambda module, given, logits: passes.append(1))
    rows = [Scored([1, 2], [3] * 9, torch.full((9,), -1.05), torch.full((9,), -1.0))]
    assert temperature_behind(model, rows, 1.0) is None
    assert not passes
