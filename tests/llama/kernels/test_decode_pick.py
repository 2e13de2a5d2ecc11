"""Drawing a token: hand-worked numbers, the edges of the random number, and what is written down."""

import fixtures.interpreted  # noqa: F401, I001  before triton
import math

import pytest
import torch
from llama.kernels.lanes import scene

from assay.llama.kernels import decode_state as fields
from assay.llama.kernels.pick import BLOCK, pick, sums_room, take

NEVER = -math.inf
LAST = 1 - 2**-24  # the largest random number below 1


def picked(logits_LV, uniforms, temperature=1.0, greedy=False, done=0):
    """(tokens, log-probs, stage) of slots that draw with these random numbers."""
    slots = len(uniforms)
    stage = scene([(0, 1, done)] * slots)
    stage.uniforms_RT[:] = torch.nan  # those of other tokens must not be used
    stage.uniforms_RT[:, done] = torch.tensor(uniforms)
    sums = sums_room(slots, logits_LV.shape[1], torch.device("cpu"))
    pick(logits_LV, torch.tensor([temperature]), sums, stage.state_LF, stage.places, greedy)
    return stage.written_C2L[0, 0].tolist(), stage.written_C2L[0, 1].view(torch.float32), stage


@pytest.mark.parametrize(
    ("uniform", "token"), [(0.0, 0), (0.0999, 0), (0.1001, 1), (0.2999, 1), (0.3001, 2), (0.6001, 3), (LAST, 3)]
)
def test_a_random_number_falls_on_the_first_token_whose_sum_is_above_it(uniform, token):
    probabilities = [0.1, 0.2, 0.3, 0.4]
    tokens, logprobs, _ = picked(torch.tensor([probabilities]).log() + 7, [uniform])
    assert tokens == [token]
    assert logprobs.item() == pytest.approx(math.log(probabilities[token]), abs=1e-6)


def test_the_temperature_divides_the_logits():
    tokens, logprobs, _ = picked(torch.tensor([[0.0, math.log(3) / 2]]), [0.24], temperature=0.5)
    assert tokens == [0]
    assert logprobs.item() == pytest.approx(math.log(0.25), abs=1e-6)


@pytest.mark.parametrize("uniform", [0.0, 0.5, LAST])
@pytest.mark.parametrize("possible", [[1], [1, 3], [BLOCK + 2], [5, 2 * BLOCK + 1], [2 * BLOCK - 1, 2 * BLOCK]])
def test_a_token_of_probability_zero_is_never_drawn(uniform, possible):
    logits_1V = torch.full((1, 2 * BLOCK + 9), NEVER)
    logits_1V[0, possible] = torch.randn(len(possible), generator=torch.Generator().manual_seed(1)) * 30
    tokens, logprobs, _ = picked(logits_1V, [uniform])
    assert tokens[0] in possible
    assert torch.isfinite(logprobs).all()


@pytest.mark.parametrize("apart", [1, BLOCK])  # within a block, and over blocks
def test_a_random_number_beyond_all_sums_falls_on_the_last_possible_token(apart):
    """Added one by one to a sum of 1, numbers this small are lost; added among themselves first, they are not."""
    places = torch.arange(20) * apart
    logits_1V = torch.full((1, 21 * apart), NEVER)
    logits_1V[0, places] = math.log(2**-25)
    logits_1V[0, 0] = 0.0
    tokens, logprobs, _ = picked(logits_1V, [LAST])
    assert tokens == [places[-1].item()]
    assert logprobs.item() == pytest.approx(math.log(2**-25), abs=1e-5)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_many_draws_follow_the_cumulated_probabilities(temperature):
    """Vocabulary of several blocks, against float64."""
    vocabulary, slots = 3 * BLOCK - 17, 24
    generator = torch.Generator().manual_seed(2)
    logits_LV = torch.randn(slots, vocabulary, generator=generator) * 2
    uniforms = torch.rand(slots, generator=generator)
    tokens, logprobs, _ = picked(logits_LV, uniforms.tolist(), temperature)
    exact_LV = (logits_LV.double() / temperature).log_softmax(1)
    cumulated_LV = exact_LV.exp().cumsum(1)
    wanted = (cumulated_LV > uniforms.double().unsqueeze(1)).int().argmax(1)
    assert tokens == wanted.tolist()
    assert len({token // BLOCK for token in tokens}) == 3
    torch.testing.assert_close(logprobs.double(), exact_LV.gather(1, wanted.unsqueeze(1)).squeeze(1), rtol=0, atol=2e-6)


def test_greedy_takes_the_likeliest():
    vocabulary = BLOCK + 40
    logits_LV = torch.randn(3, vocabulary, generator=torch.Generator().manual_seed(4))
    logits_LV[1, BLOCK + 3] = 9.0
    logits_LV[2, [7, 8]] = 9.0  # of equals the first
    tokens, logprobs, _ = picked(logits_LV, [math.nan] * 3, greedy=True)
    assert tokens == [logits_LV[0].argmax().item(), BLOCK + 3, 7]
    torch.testing.assert_close(logprobs, logits_LV.log_softmax(1).amax(1), rtol=0, atol=2e-6)


@pytest.mark.parametrize("greedy", [False, True])
@pytest.mark.parametrize("bad", [[math.nan, 0.0], [math.inf, 0.0], [NEVER, NEVER]])
def test_probabilities_that_are_not_finite_are_told(bad, greedy):
    tokens, logprobs, _ = picked(torch.tensor([bad, [0.0, 0.0]]), [0.3, 0.3], greedy=greedy)
    assert logprobs[0].isnan()
    assert logprobs[1].item() == pytest.approx(-math.log(2))
    assert 0 <= tokens[0] < 2


def test_a_slot_moves_on_within_its_room():
    logits_LV = torch.zeros(2, 5)
    for done, after in ((0, 1), (5, 6), (6, 6)):  # there is room for seven tokens
        tokens, _, stage = picked(logits_LV, [0.5, 0.9], done=done)
        state = stage.state_LF
        assert state[:, fields.TOKEN.value].tolist() == tokens == [2, 4]
        assert state[:, fields.DONE.value].tolist() == [after, after]
        assert state[:, fields.COLUMN.value].tolist() == [1, 1]


def test_a_slot_in_which_nobody_sits_stays_where_it_is():
    stage = scene([(0, 1, 0), (0, 1, 0)])
    stage.state_LF[1, fields.ROLLOUT.value] = -1
    sums = sums_room(2, 5, torch.device("cpu"))
    pick(torch.zeros(2, 5), torch.ones(1), sums, stage.state_LF, stage.places, False)
    assert stage.state_LF[:, fields.DONE.value].tolist() == [1, 0]


def test_tokens_drawn_elsewhere_are_written_down():
    stage = scene([(0, 1, 2), (0, 1, 0)])
    stage.state_LF[:, fields.COLUMN.value] = 3
    take(torch.tensor([4, 1]), torch.tensor([-0.5, -2.0]), stage.state_LF, stage.places)
    assert stage.written_C2L[3, 0].tolist() == [4, 1]
    assert stage.written_C2L[3, 1].view(torch.float32).tolist() == [-0.5, -2.0]
    assert stage.state_LF[:, fields.DONE.value].tolist() == [3, 1]
