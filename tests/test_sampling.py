"""Drawing a token: the inverse of the cumulated probabilities, by hand, against float64, and at its edges."""

import math

import pytest
import torch

from assay.config.sections import RolloutConfig
from assay.sampling import BLOCK, NUMBERS_AT_A_TIME, draw

ALL = RolloutConfig()
NEARLY_1 = 1 - 2**-24  # the largest random number
PROBABILITIES = [0.1, 0.3, 0.05, 0.4, 0.15]


def drawn(logits, uniforms, temperature=1.0, settings=ALL):
    return draw(torch.as_tensor(logits), torch.as_tensor(uniforms), temperature, settings)


def test_the_first_token_whose_cumulated_probability_is_above_the_number():
    # cumulated: 0.1 0.4 0.45 0.85 1
    uniforms = [0.0, 0.09, 0.11, 0.39, 0.41, 0.44, 0.46, 0.84, 0.86, NEARLY_1]
    given = drawn(torch.tensor([PROBABILITIES]).log().expand(10, 5), uniforms)
    assert given.tokens_N.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    wanted = torch.tensor(PROBABILITIES).log()[given.tokens_N]
    torch.testing.assert_close(given.logprobs_N, wanted, rtol=0, atol=1e-6)
    assert given.support_NK is None


def test_the_temperature_squares_the_probabilities_at_one_half():
    # 0.01 0.09 0.0025 0.16 0.0225 of 0.285, cumulated 0.0351 0.3509 0.3596 0.9211 1
    given = drawn(torch.tensor([PROBABILITIES]).log().expand(3, 5), [0.036, 0.34, 0.93], 0.5)
    assert given.tokens_N.tolist() == [1, 1, 4]
    assert given.logprobs_N.exp().tolist() == pytest.approx([0.09 / 0.285, 0.09 / 0.285, 0.0225 / 0.285], abs=1e-6)


@pytest.mark.parametrize("vocabulary", [1, BLOCK - 1, BLOCK, BLOCK + 1, 5 * BLOCK + 77])
def test_tokens_and_logprobs_are_those_of_float64_over_many_blocks(vocabulary):
    source = torch.Generator().manual_seed(vocabulary)
    logits = torch.randn(400, vocabulary, generator=source) * 4
    uniforms = torch.rand(400, generator=source)
    given = drawn(logits, uniforms, 0.8)
    exact = (logits.double() / 0.8).log_softmax(dim=1)
    cumulated = exact.exp().cumsum(dim=1)
    wanted = (cumulated <= uniforms.double().unsqueeze(1)).sum(dim=1)
    # a number that lies within rounding of a border may fall on either side of it
    near = (cumulated - uniforms.double().unsqueeze(1)).abs().amin(dim=1) < 1e-6
    assert torch.equal(given.tokens_N[~near], wanted[~near])
    assert near.sum() < 8 or vocabulary == 1
    wanted_N = exact.gather(1, given.tokens_N.unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(given.logprobs_N.double(), wanted_N, rtol=0, atol=2e-6)


@pytest.mark.parametrize("uniform", [0.0, 2**-24, 0.5, NEARLY_1])
@pytest.mark.parametrize("settings", [ALL, RolloutConfig(top_k=7), RolloutConfig(top_k=900, top_p=0.9999)])
def test_a_token_of_probability_0_is_never_drawn(uniform, settings):
    source = torch.Generator().manual_seed(3)
    for possible in ([300], [0], [699], [255, 256], [3, 400, 698]):
        logits = torch.full((64, 700), -float("inf"))
        logits[:, possible] = torch.randn(64, len(possible), generator=source) * 10
        given = drawn(logits, [uniform] * 64, 1.0, settings)
        assert set(given.tokens_N.tolist()) <= set(possible)
        assert given.logprobs_N.isfinite().all()
    # a probability that float32 cannot tell from 0 beside the likeliest
    logits = torch.full((1, 700), -200.0)
    logits[0, 300] = 0.0
    assert drawn(logits, [uniform], 1.0, settings).tokens_N.tolist() == [300]


@pytest.mark.parametrize("settings", [ALL, RolloutConfig(top_k=3)])
def test_the_smallest_number_draws_the_first_token_with_a_probability(settings):
    nothing = -float("inf")
    rows = [
        [nothing, nothing, 0.5, 3.0, nothing],
        [nothing, -80.0, 0.0, 0.0, 0.0],  # 1.8e-35 / 3: as good as never, and yet the first
        [2.0, 2.0, 2.0, 2.0, 2.0],
    ]
    given = drawn(rows, [0.0] * 3, 1.0, settings)
    if settings is ALL:
        assert given.tokens_N.tolist() == [2, 1, 0]
    else:  # a support begins with its likeliest token, whichever that is of equal ones
        assert given.tokens_N.tolist() == given.support_NK[:, 0].tolist()
        assert given.tokens_N[0] == 3
    assert float(given.logprobs_N[2]) == pytest.approx(-math.log(5 if settings is ALL else 3), abs=1e-6)
    # the same behind blocks without any
    logits = torch.full((1, 3 * BLOCK), nothing)
    logits[0, [2 * BLOCK + 3, 2 * BLOCK + 9]] = 0.0
    logits[0, 2 * BLOCK + 3] = 0.1
    assert drawn(logits, [0.0], 1.0, settings).tokens_N.tolist() == [2 * BLOCK + 3]


@pytest.mark.parametrize("settings", [ALL, RolloutConfig(top_k=7, top_p=0.9)])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_logits_are_left_as_they_were(settings, temperature):
    logits = torch.randn(9, 2 * BLOCK + 5)
    before = logits.clone()
    drawn(logits, torch.rand(9), temperature, settings)
    assert torch.equal(logits, before)


def test_a_restricted_support_is_drawn_from_its_likeliest_token_on():
    # 0.4 0.3 0.15 of 0.85, tokens 3 1 4: cumulated 0.4706 0.8235 1
    given = drawn(
        torch.tensor([PROBABILITIES]).log().expand(5, 5),
        [0.0, 0.47, 0.472, 0.83, NEARLY_1],
        1.0,
        RolloutConfig(top_k=3),
    )
    assert given.tokens_N.tolist() == [3, 3, 1, 4, 4]
    wanted = [0.4 / 0.85, 0.4 / 0.85, 0.3 / 0.85, 0.15 / 0.85, 0.15 / 0.85]
    assert given.logprobs_N.exp().tolist() == pytest.approx(wanted, abs=1e-6)
    assert given.support_NK.tolist() == [[3, 1, 4]] * 5


def test_a_restricted_support_is_drawn_at_the_temperature():
    # 0.16 and 0.09 of 0.25, tokens 3 and 1: cumulated 0.64 1; at temperature 1 it would be 0.571
    given = drawn(torch.tensor([PROBABILITIES]).log().expand(3, 5), [0.6, 0.63, 0.65], 0.5, RolloutConfig(top_k=2))
    assert given.tokens_N.tolist() == [3, 3, 1]
    assert given.logprobs_N.exp().tolist() == pytest.approx([0.64, 0.64, 0.36], abs=1e-6)


def test_tokens_that_were_cut_off_leave_no_gap():
    # top_p keeps tokens 3 and 1, of the others only the place is left: 4/7 and 3/7
    settings = RolloutConfig(top_k=5, top_p=0.69)
    given = drawn(torch.tensor([PROBABILITIES]).log().expand(3, 5), [0.57, 0.58, NEARLY_1], 1.0, settings)
    assert given.tokens_N.tolist() == [3, 1, 1]
    assert given.logprobs_N.exp().tolist() == pytest.approx([4 / 7, 3 / 7, 3 / 7], abs=1e-6)


def test_without_random_numbers_the_likeliest_token_is_taken():
    given = draw(torch.tensor([PROBABILITIES, PROBABILITIES[::-1]]).log(), None, 0.5, RolloutConfig(top_k=2))
    assert given.tokens_N.tolist() == [3, 1]
    assert given.logprobs_N.exp().tolist() == pytest.approx([0.16 / 0.285] * 2, abs=1e-6)
    assert given.support_NK is None


@pytest.mark.parametrize("settings", [ALL, RolloutConfig(top_k=3)])
@pytest.mark.parametrize("greedy", [False, True])
@pytest.mark.parametrize("broken", [[float("nan"), 0.0, 1.0, 2.0], [float("inf"), 0.0, 1.0, 2.0], [-float("inf")] * 4])
def test_a_row_without_finite_probabilities_is_told_by_its_logprob(broken, greedy, settings):
    logits = torch.tensor([[0.0, 1.0, 2.0, 3.0], broken])
    given = draw(logits, None if greedy else torch.tensor([0.5, 0.5]), 1.0, settings)
    assert given.logprobs_N.isnan().tolist() == [False, True]
    assert ((given.tokens_N >= 0) & (given.tokens_N < 4)).all()


def test_draws_follow_the_distribution():
    uniforms = torch.rand(50_000, generator=torch.Generator().manual_seed(0))
    tokens = drawn(torch.tensor([PROBABILITIES]).log().expand(len(uniforms), 5), uniforms).tokens_N
    shares = torch.bincount(tokens, minlength=5) / len(uniforms)
    assert (shares - torch.tensor(PROBABILITIES)).abs().max() < 0.01


def test_logprobs_over_a_large_flat_vocabulary_are_exact():
    # a sum of 50,000 small numbers in float32 would be off by 1e-5
    logits = torch.randn(20, 50_000, generator=torch.Generator().manual_seed(0))
    given = drawn(logits, torch.linspace(0, NEARLY_1, 20))
    exact_N = logits.double().log_softmax(dim=1).gather(1, given.tokens_N.unsqueeze(1)).squeeze(1)
    assert (given.logprobs_N - exact_N).abs().max() < 2e-6


def test_rows_that_are_taken_in_several_parts_are_drawn_as_in_one(monkeypatch):
    logits, uniforms = torch.randn(50, 300), torch.rand(50)
    whole = drawn(logits, uniforms)
    monkeypatch.setitem(NUMBERS_AT_A_TIME, "cpu", 2000)
    parts = drawn(logits, uniforms)
    assert torch.equal(whole.tokens_N, parts.tokens_N)
    assert torch.equal(whole.logprobs_N, parts.logprobs_N)
