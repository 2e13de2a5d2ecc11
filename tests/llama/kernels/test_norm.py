"""add_norm against the torch expression in float64."""

import pytest
import torch
from llama.kernels.oracles import assert_close, random

from assay.llama.forward import norm
from assay.llama.kernels import norm as norm_kernels
from assay.llama.kernels.norm import add_norm


@pytest.mark.parametrize("width", [16, 24])
@pytest.mark.parametrize("add", [False, True])
def test_numbers_and_gradients_are_those_of_the_expression(width, add, monkeypatch):
    monkeypatch.setattr(norm_kernels, "PROGRAMS", 3)  # rows do not divide evenly among programs
    states, delta = random(7, width), random(7, width, seed=1) if add else None
    weight = random(width, seed=2)
    gradients = random(7, width, seed=3), random(7, width, seed=4)
    exact = [None if value is None else value.double().requires_grad_() for value in (states, delta, weight)]
    given = [None if value is None else value.clone().requires_grad_() for value in (states, delta, weight)]
    sums = exact[0] + exact[1] if add else exact[0]
    expected = sums, norm(sums, exact[2], 0.1)
    ours = add_norm(*given, 0.1)
    for mine, other in zip(ours, expected, strict=True):
        assert_close(mine, other)
    inputs = [value for value in given if value is not None]
    theirs = [value for value in exact if value is not None]
    made = torch.autograd.grad(ours, inputs, gradients)
    wanted = torch.autograd.grad(expected, theirs, [gradient.double() for gradient in gradients])
    for mine, other in zip(made, wanted, strict=True):
        assert_close(mine, other)


def test_in_half_precision_it_rounds_where_the_expression_rounds():
    states, delta, weight = (random(5, 32, seed=seed).half() for seed in range(3))
    sums, normed = add_norm(states, delta, weight[0], 1e-5)
    assert torch.equal(sums, states + delta)
    assert torch.equal(normed, norm(states + delta, weight[0], 1e-5))


def test_a_frozen_weight_gets_no_gradient():
    states, weight = random(4, 16).requires_grad_(), random(16, seed=1)
    _, normed = add_norm(states, None, weight, 1e-5)
    exact = states.detach().double().requires_grad_()
    expected = norm(exact, weight.double(), 1e-5)
    assert_close(torch.autograd.grad(normed.sum(), states)[0], torch.autograd.grad(expected.sum(), exact)[0])
