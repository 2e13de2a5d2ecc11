"""The chunked head against a plain log-softmax with autograd, against finite differences, and by hand."""

import math

import pytest
import torch
from torch import nn

from assay.grpo import restricted, token_entropy, token_logprobs
from assay.llama import head as head_module
from assay.llama.family import LowRank, Projection
from assay.llama.head import TokenNumbers, token_numbers

TOKENS, WIDTH, VOCABULARY = 37, 6, 11


@pytest.fixture(params=["one chunk", "many chunks"])
def _chunked(request, monkeypatch):
    if request.param == "many chunks":  # 16 tokens at a time: the last chunk is a short one
        monkeypatch.setattr(head_module, "CHUNK_BYTES", {"cpu": 1})


def random(*shape, dtype=torch.float64, seed=0):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def given(dtype=torch.float64, bias=True):
    states_ND = random(TOKENS, WIDTH, dtype=dtype).requires_grad_()
    weight_VD = random(VOCABULARY, WIDTH, dtype=dtype, seed=1).requires_grad_()
    bias_V = random(VOCABULARY, dtype=dtype, seed=2).requires_grad_() if bias else None
    targets_N = torch.arange(TOKENS) * 7 % VOCABULARY
    # the target, its neighbour, and the target a second time
    support_NK = torch.stack([targets_N, (targets_N + 1) % VOCABULARY, (targets_N + 5) % VOCABULARY, targets_N], dim=1)
    return states_ND, weight_VD, bias_V, targets_N, support_NK


def plain(states_ND, weight_VD, bias_V, targets_N, support_NK, temperature):
    logits_1NV = nn.functional.linear(states_ND, weight_VD, bias_V).unsqueeze(0)
    if support_NK is not None:
        logits_1NV = restricted(logits_1NV, support_NK.unsqueeze(0))
    log_shares_NV = (logits_1NV[0] / temperature).log_softmax(1)
    shares_NV = log_shares_NV.exp()
    entropy_N = -(shares_NV * log_shares_NV.clamp(min=-1e30)).sum(1)
    return log_shares_NV.gather(1, targets_N.unsqueeze(1)).squeeze(1), entropy_N


@pytest.mark.usefixtures("_chunked")
@pytest.mark.parametrize("with_support", [False, True])
@pytest.mark.parametrize("entropy", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("keep", [False, True], ids=["made again", "kept"])
def test_numbers_and_gradients_are_those_of_a_plain_log_softmax(with_support, entropy, temperature, keep):
    states_ND, weight_VD, bias_V, targets_N, support_NK = given()
    arguments = states_ND, weight_VD, bias_V, targets_N, support_NK if with_support else None, temperature
    weights_2N = random(2, TOKENS, seed=3) * torch.tensor([[1.0], [float(entropy)]])
    ours, theirs = TokenNumbers.apply(*arguments, keep), plain(*arguments)
    inputs = (states_ND, weight_VD, bias_V)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-13)
    loss = (ours[0] * weights_2N[0]).sum()
    if entropy:
        loss = loss + (ours[1] * weights_2N[1]).sum()
    expected = sum((number * weight).sum() for number, weight in zip(theirs, weights_2N, strict=True))
    for mine, other in zip(torch.autograd.grad(loss, inputs), torch.autograd.grad(expected, inputs), strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize("with_support", [False, True])
def test_gradients_are_finite_differences(with_support):
    states_ND, weight_VD, bias_V, targets_N, support_NK = given()
    support_NK = support_NK if with_support else None

    def numbers(states_ND, weight_VD, bias_V):
        return TokenNumbers.apply(states_ND, weight_VD, bias_V, targets_N, support_NK, 0.8, True)

    assert torch.autograd.gradcheck(numbers, (states_ND, weight_VD, bias_V))


def test_chunks_that_are_kept_give_the_gradients_of_chunks_that_are_made_again_to_the_last_bit(monkeypatch):
    monkeypatch.setattr(head_module, "CHUNK_BYTES", {"cpu": 1})  # three chunks
    monkeypatch.setattr(head_module, "KEPT_CHUNKS", 2)
    products = []
    monkeypatch.setattr(head_module, "linear", lambda *given: products.append(1) or nn.functional.linear(*given))

    def gradients(keep, times):
        states_ND, weight_VD, bias_V, targets_N, _ = given(torch.float32)
        logprobs_N, entropy_N = TokenNumbers.apply(states_ND, weight_VD, bias_V, targets_N, None, 0.7, keep)
        loss = (logprobs_N * random(TOKENS, dtype=torch.float32, seed=4)).sum() + entropy_N.sum()
        products.clear()
        for _ in range(times):
            found = torch.autograd.grad(loss, (states_ND, weight_VD, bias_V), retain_graph=True)
        return found, len(products)

    made_again, once = gradients(False, 1), gradients(True, 1)
    twice = gradients(True, 2)  # what was kept is used up by the first
    assert [count for _, count in (made_again, once, twice)] == [3, 1, 4]
    for others in (once[0], twice[0]):
        assert all(map(torch.equal, made_again[0], others))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_float32_numbers_are_those_of_the_portable_path(dtype):
    states_ND, weight_VD, _, targets_N, support_NK = given(dtype, bias=False)
    head = Projection(weight_VD, None, None)
    logits_1NV = restricted((states_ND @ weight_VD.T).float().unsqueeze(0), support_NK.unsqueeze(0))
    logprobs_N, entropy_N = token_numbers(
        states_ND, head, targets_N, support_NK, temperature=0.5, entropy_gradient=False
    )
    assert logprobs_N.dtype == entropy_N.dtype == torch.float32
    assert not entropy_N.requires_grad
    expected_1N = token_logprobs(logits_1NV, targets_N.unsqueeze(0), 0.5)
    torch.testing.assert_close(logprobs_N, expected_1N[0], rtol=0, atol=2e-6)
    torch.testing.assert_close(entropy_N, token_entropy(logits_1NV, 0.5)[0], rtol=0, atol=2e-6)


def test_two_equal_logits_by_hand():
    """Logits (0, 0, ln 2): shares 1/4, 1/4, 1/2. d logprob of the first = (3/4, -1/4, -1/2); the entropy is 1.5 ln 2,
    and its slope -p (log p + H): 1/4 (ln 4 - 1.5 ln 2) = ln 2 / 8, twice, and 1/2 (ln 2 - 1.5 ln 2) = -ln 2 / 4."""
    weight_VD = torch.tensor([[0.0], [0.0], [math.log(2)]], dtype=torch.float64, requires_grad=True)
    states_ND = torch.ones(1, 1, dtype=torch.float64)
    logprobs_N, entropy_N = TokenNumbers.apply(states_ND, weight_VD, None, torch.tensor([0]), None, 1.0, True)
    torch.testing.assert_close(logprobs_N.item(), math.log(0.25))
    torch.testing.assert_close(entropy_N.item(), 1.5 * math.log(2))
    (of_logprob,) = torch.autograd.grad(logprobs_N.sum(), weight_VD, retain_graph=True)
    torch.testing.assert_close(of_logprob.flatten().tolist(), [0.75, -0.25, -0.5])
    (of_entropy,) = torch.autograd.grad(entropy_N.sum(), weight_VD)
    torch.testing.assert_close(of_entropy.flatten().tolist(), [math.log(2) / 8, math.log(2) / 8, -math.log(2) / 4])


def test_a_target_outside_of_the_support_is_impossible_and_without_gradient():
    states_ND, weight_VD, _, targets_N, _ = given(torch.float32, bias=False)
    only_N = (targets_N + 3) % VOCABULARY
    outside_NK = only_N.unsqueeze(1).expand(-1, 2).contiguous()
    logprobs_N, entropy_N = token_numbers(
        states_ND, Projection(weight_VD, None, None), targets_N, outside_NK, temperature=1.0, entropy_gradient=True
    )
    assert (logprobs_N == -float("inf")).all()
    assert entropy_N.abs().max() == 0
    # what is left of the log-prob is minus the logit of the one token that could have been sampled
    (of_states,) = torch.autograd.grad((logprobs_N + entropy_N).sum(), states_ND)
    torch.testing.assert_close(of_states, -weight_VD[only_N])


@pytest.mark.usefixtures("_chunked")
def test_the_gradient_of_weights_in_bfloat16_is_added_up_in_float32():
    """Two logits that are always equal: each of 16,384 tokens adds a half to the gradient of its target, 16 tokens add
    8. A sum kept in bfloat16 would stand still at 2,048, where 8 is half a unit in the last place."""
    states_ND = torch.ones(16384, 1, dtype=torch.bfloat16)
    weight_VD = torch.zeros(2, 1, dtype=torch.bfloat16, requires_grad=True)
    logprobs_N, _ = token_numbers(
        states_ND, Projection(weight_VD, None, None), torch.zeros(16384, dtype=torch.long), None,
        temperature=1.0, entropy_gradient=False,
    )  # fmt: skip
    logprobs_N.sum().backward()
    assert weight_VD.grad.dtype == torch.bfloat16
    assert weight_VD.grad.flatten().tolist() == [8192.0, -8192.0]


def test_a_frozen_head_gets_no_gradient_and_hands_one_on():
    states_ND, weight_VD, _, targets_N, _ = given(bias=False)
    frozen = Projection(weight_VD.detach(), None, None)
    logprobs_N, _ = token_numbers(states_ND, frozen, targets_N, None, temperature=1.0, entropy_gradient=False)
    (of_states,) = torch.autograd.grad(logprobs_N.sum(), states_ND)
    expected_N, _ = plain(states_ND, weight_VD, None, targets_N, None, 1.0)
    torch.testing.assert_close(of_states, torch.autograd.grad(expected_N.sum(), states_ND)[0], rtol=0, atol=1e-12)


def test_an_adapter_of_the_head_counts():
    states_ND, weight_VD, bias_V, targets_N, _ = given()
    down_KI, up_OK = nn.Parameter(random(2, WIDTH, seed=4)), nn.Parameter(random(VOCABULARY, 2, seed=5))
    head = Projection(weight_VD.detach(), bias_V, LowRank(down_KI, up_OK, 1.5))
    logprobs_N, _ = token_numbers(states_ND, head, targets_N, None, temperature=0.9, entropy_gradient=False)
    expected_N, _ = plain(states_ND, weight_VD.detach() + 1.5 * up_OK @ down_KI, bias_V, targets_N, None, 0.9)
    torch.testing.assert_close(logprobs_N, expected_N.float())
    inputs = (states_ND, down_KI, up_OK)
    ours = torch.autograd.grad(logprobs_N.sum(), inputs)
    for mine, other in zip(ours, torch.autograd.grad(expected_N.sum(), inputs), strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-12)


def test_no_tokens_are_no_trouble():
    states_ND, weight_VD, _, targets_N, support_NK = given(bias=False)
    logprobs_N, entropy_N = token_numbers(
        states_ND[:0], Projection(weight_VD, None, None), targets_N[:0], support_NK[:0],
        temperature=1.0, entropy_gradient=True,
    )  # fmt: skip
    assert logprobs_N.shape == entropy_N.shape == (0,)
    (gradient,) = torch.autograd.grad((logprobs_N + entropy_N).sum(), weight_VD)
    assert gradient.abs().max() == 0


@pytest.mark.usefixtures("_chunked")
def test_only_a_chunk_of_logits_exists_at_a_time():
    states_ND, weight_VD, _, targets_N, _ = given(torch.float32, bias=False)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        token_numbers(
            states_ND, Projection(weight_VD, None, None), targets_N, None, temperature=1.0, entropy_gradient=True
        )
    assert all(tensor.shape != (TOKENS, VOCABULARY) for tensor in kept)
    assert max(tensor.numel() for tensor in kept) <= TOKENS * WIDTH


def test_gradients_have_the_same_bits_however_often_they_are_made():
    states_ND, weight_VD, _, targets_N, _ = given(torch.float32, bias=False)
    made = []
    for _ in range(2):
        logprobs_N, _ = token_numbers(
            states_ND, Projection(weight_VD, None, None), targets_N, None, temperature=0.7, entropy_gradient=False
        )
        made.append((logprobs_N, *torch.autograd.grad(logprobs_N.sum(), (states_ND, weight_VD))))
    assert all(torch.equal(first, second) for first, second in zip(*made, strict=True))
