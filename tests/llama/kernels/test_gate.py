"""silu(gate) * up against the torch expression in float64."""

import torch
from llama.kernels.oracles import assert_close, random
from torch.nn.functional import silu

from assay.llama.joined import GatedProjection
from assay.llama.kernels import gate as gate_kernels
from assay.llama.kernels.gate import gate_and_up


def expression(gate_up_NJ):
    gate_NM, up_NM = gate_up_NJ.chunk(2, dim=1)
    return silu(gate_NM) * up_NM


def test_numbers_and_gradients_are_those_of_the_expression(monkeypatch):
    monkeypatch.setattr(gate_kernels, "BLOCK", 16)  # 24 columns: one block and a half
    given = (random(5, 48) * 3).requires_grad_()
    exact, gradient = given.detach().double().requires_grad_(), random(5, 24, seed=1)
    ours, expected = gate_and_up(given), expression(exact)
    assert_close(ours, expected)
    (made,) = torch.autograd.grad(ours, given, gradient)
    assert_close(made, torch.autograd.grad(expected, exact, gradient.double())[0])


def test_in_half_precision_it_rounds_where_the_expression_rounds():
    given = (random(5, 48) * 3).half()
    assert torch.equal(gate_and_up(given), expression(given))


def test_the_projection_behind_the_gate_has_the_gradients_of_the_expression():
    given = [random(5, 16).requires_grad_(), random(6, 8, seed=1).requires_grad_(), random(6, seed=2).requires_grad_()]
    exact = [value.detach().double().requires_grad_() for value in given]
    gradient = random(5, 6, seed=3)
    ours = GatedProjection.apply(*given)
    expected = expression(exact[0]) @ exact[1].T + exact[2]
    assert_close(ours, expected)
    made = torch.autograd.grad(ours, given, gradient)
    for mine, other in zip(made, torch.autograd.grad(expected, exact, gradient.double()), strict=True):
        assert_close(mine, other)
    ours = GatedProjection.apply(given[0], given[1].detach(), None)  # frozen, without a bias
    expected = expression(exact[0]) @ exact[1].T
    (made,) = torch.autograd.grad(ours, given[:1], gradient)
    assert_close(made, torch.autograd.grad(expected, exact[:1], gradient.double())[0])
