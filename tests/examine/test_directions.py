"""The first step of an optimizer against the gradient of each tensor, on real optimizers and real gradients."""

import pytest
import torch
from torch import nn

from assay.examine.directions import remembers
from assay.examine.weights import Weights

OPTIMIZERS = {
    "SGD": lambda tensors: torch.optim.SGD(tensors, lr=0.1),
    "SGD with much decay": lambda tensors: torch.optim.SGD(tensors, lr=0.1, weight_decay=0.5),
    "SGD with momentum": lambda tensors: torch.optim.SGD(tensors, lr=0.1, momentum=0.9, nesterov=True),
    "Adam": lambda tensors: torch.optim.Adam(tensors, lr=1e-3),
    "AdamW with decay": lambda tensors: torch.optim.AdamW(tensors, lr=1e-3, weight_decay=1.0),
    "RMSprop": lambda tensors: torch.optim.RMSprop(tensors, lr=1e-3),
    "Adagrad": lambda tensors: torch.optim.Adagrad(tensors, lr=1e-2),
    "Adafactor": lambda tensors: torch.optim.Adafactor(tensors, lr=1e-2),
    "NAdam": lambda tensors: torch.optim.NAdam(tensors, lr=1e-3),
    "RAdam": lambda tensors: torch.optim.RAdam(tensors, lr=1e-3),
    "Rprop": lambda tensors: torch.optim.Rprop(tensors, lr=1e-3),
}


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))


def with_gradients(model):
    inputs_ND = torch.randn(32, 8)
    (model(inputs_ND) - torch.randn(32, 8)).square().mean().backward()
    return list(model.parameters())


def step(optimizer, tensors, tampering=lambda: None):
    weights = Weights(tensors, fresh=not remembers(optimizer))
    tampering()
    optimizer.step()
    numbers = weights.after()
    return tuple(numbers.get(f"tensors_{name}") for name in ("judged", "against", "astray", "exchanged"))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_sound_first_step_follows_every_gradient(name):
    tensors = with_gradients(network())
    assert step(OPTIMIZERS[name](tensors), tensors) == (3, 0, 0, 0)  # biases of 8 numbers are not judged


def test_a_step_that_remembers_earlier_ones_is_not_judged():
    tensors = with_gradients(network())
    optimizer = torch.optim.Adam(tensors)
    step(optimizer, tensors)
    assert step(optimizer, tensors) == (None, None, None, None)


def test_a_step_of_an_optimizer_that_remembers_nothing_is_judged_each_time():
    tensors = with_gradients(network())
    optimizer = torch.optim.SGD(tensors, lr=0.1)
    assert [step(optimizer, tensors) for _ in range(2)] == [(3, 0, 0, 0)] * 2


def test_two_gradients_that_change_places_are_found():
    tensors = with_gradients(network())
    first, second = tensors[0], tensors[2]

    def exchange():
        first.grad, second.grad = second.grad, first.grad

    assert step(torch.optim.Adam(tensors), tensors, exchange) == (3, 0, 2, 2)


def test_one_gradient_that_is_turned_around_is_found():
    tensors = with_gradients(network())
    assert step(torch.optim.AdamW(tensors), tensors, lambda: tensors[2].grad.neg_()) == (3, 1, 0, 0)


def test_a_gradient_that_is_replaced_by_an_earlier_one_is_found():
    model = network()
    stale = [weight.grad.clone() for weight in with_gradients(model)]
    model.zero_grad()
    tensors = with_gradients(model)

    def put_back():
        for weight, gradient in zip(tensors, reversed([one for one in stale if one.ndim == 2]), strict=False):
            if weight.ndim == 2:
                weight.grad = gradient.flip(0)

    judged, against, astray, _ = step(torch.optim.Adam(tensors), tensors, put_back)
    assert (judged, against) == (3, 0)
    assert astray >= 1


def test_an_optimizer_that_climbs_goes_against_every_gradient():
    tensors = with_gradients(network())
    assert step(torch.optim.Adam(tensors, maximize=True), tensors) == (3, 3, 0, 0)


def test_clipping_and_noise_below_the_gradient_leave_the_signs():
    tensors = with_gradients(network())
    assert step(torch.optim.Adam(tensors), tensors, lambda: nn.utils.clip_grad_value_(tensors, 1e-3)) == (3, 0, 0, 0)
