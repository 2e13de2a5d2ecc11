"""Numbers and gradients of rows of logits against autograd in float64."""

import pytest
import torch
from llama.kernels.oracles import assert_close, random

from assay.llama.kernels import logprob as logprob_kernels
from assay.llama.kernels.logprob import logits_to_gradient, row_numbers

TARGETS_N = torch.tensor([0, 20, 7])


def rows(impossible):
    logits_NV = random(3, 21) * 4
    if impossible:  # a whole block of the kernel, and a few more
        logits_NV[:, 8:16] = -float("inf")
        logits_NV[0, 2:] = -float("inf")
        logits_NV[1, 0:8] = -float("inf")
    return logits_NV


def exact_numbers(logits_NV, temperature):
    log_shares_NV = (logits_NV / temperature).log_softmax(1)
    entropy_N = -(log_shares_NV.exp() * log_shares_NV.clamp(min=-1e30)).sum(1)
    return log_shares_NV.gather(1, TARGETS_N.unsqueeze(1)).squeeze(1), entropy_N


@pytest.mark.parametrize("impossible", [False, True])
@pytest.mark.parametrize("entropy", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_numbers_and_gradients_are_those_of_a_log_softmax(impossible, entropy, temperature, monkeypatch):
    monkeypatch.setattr(logprob_kernels, "BLOCK", 8)  # 21 logits: the last block is not full
    logits_NV = rows(impossible)
    exact_NV = logits_NV.double().requires_grad_()
    expected = exact_numbers(exact_NV, temperature)
    logprobs_N, logsumexp_N, entropy_N = row_numbers(logits_NV, TARGETS_N, temperature)
    assert_close(logprobs_N, expected[0])
    assert_close(entropy_N, expected[1])
    assert_close(logsumexp_N, (exact_NV / temperature).logsumexp(1))
    weights_2N = random(2, 3, seed=1)
    loss = (expected[0] * weights_2N[0]).sum() + (expected[1] * weights_2N[1] * entropy).sum()
    (wanted_NV,) = torch.autograd.grad(loss, exact_NV)
    of_entropy_N = weights_2N[1] if entropy else None
    logits_to_gradient(logits_NV, TARGETS_N, logsumexp_N, entropy_N, weights_2N[0], of_entropy_N, temperature)
    assert_close(logits_NV, wanted_NV.nan_to_num(0.0))


def test_numbers_need_not_lie_side_by_side():
    targets_N = torch.stack([TARGETS_N, TARGETS_N + 1]).T.contiguous().T[0]
    assert targets_N.stride() == (2,)
    logits_NV = rows(False)
    straight, strided = row_numbers(logits_NV, TARGETS_N, 1.0), row_numbers(logits_NV, targets_N, 1.0)
    assert all(map(torch.equal, straight, strided))
    made_NV, spread_NV = logits_NV.clone(), logits_NV.clone()
    logits_to_gradient(made_NV, TARGETS_N, *straight[1:], torch.ones(3), torch.ones(3), 1.0)
    one_N = torch.ones(1).expand(3)
    logsumexp_N, entropy_N = torch.stack(straight[1:], dim=1).unbind(1)
    logits_to_gradient(spread_NV, targets_N, logsumexp_N, entropy_N, one_N, one_N, 1.0)
    assert torch.equal(made_NV, spread_NV)


def test_an_impossible_target_has_no_gradient():
    logits_NV = rows(False)
    logits_NV[range(3), TARGETS_N] = -float("inf")
    logprobs_N, logsumexp_N, entropy_N = row_numbers(logits_NV, TARGETS_N, 1.0)
    assert (logprobs_N == -float("inf")).all()
    logits_to_gradient(logits_NV, TARGETS_N, logsumexp_N, entropy_N, torch.ones(3), torch.ones(3), 1.0)
    assert (logits_NV[range(3), TARGETS_N] == 0).all()
    assert torch.isfinite(logits_NV).all()


def test_a_logit_that_is_no_number_is_not_hidden():
    logits_NV = rows(False)
    logits_NV[1, 5] = float("nan")
    logprobs_N, _, entropy_N = row_numbers(logits_NV, TARGETS_N, 1.0)
    assert logprobs_N.isnan().tolist() == entropy_N.isnan().tolist() == [False, True, False]


def test_large_logits_do_not_overflow():
    logits_NV = rows(False) + 3e4
    logprobs_N, _, entropy_N = row_numbers(logits_NV, TARGETS_N, 1.0)
    exact = exact_numbers(logits_NV.double(), 1.0)
    torch.testing.assert_close(logprobs_N.double(), exact[0], rtol=0, atol=4e-3)  # a unit in the last place of 3e4
    torch.testing.assert_close(entropy_N.double(), exact[1], rtol=0, atol=1e-5)
