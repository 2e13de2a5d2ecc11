"""The law of the step, on optimizers as they are: downhill with one sign, uphill with the other."""

import pytest
import torch

from assay.doctor.examples import edit_batch, healthy_batch
from assay.doctor.laws.step import check_batch
from assay.examine.weights import Weights
from assay.verdict import Confidence, State


def numbers_of_a_step(make_optimizer, **options):
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(40, 10))
    optimizer = make_optimizer([weight], lr=1e-3, **options)
    weight.grad = torch.randn(40, 10)
    weights = Weights([weight])
    optimizer.step()
    return weights.after()


@pytest.mark.parametrize("make_optimizer", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
def test_the_first_step_of_an_optimizer_goes_downhill_or_is_found(make_optimizer):
    down, up = (numbers_of_a_step(make_optimizer, maximize=maximize) for maximize in (False, True))
    first = edit_batch(healthy_batch(), step=1, learning_rate=1e-3)
    assert check_batch(edit_batch(first, **down)).state is State.HEALTHY
    verdict = check_batch(edit_batch(first, **up))
    assert (verdict.state, verdict.confidence) == (State.FINDING, Confidence.PROVEN)
    assert down["descent"] == pytest.approx(-up["descent"], rel=0.05)


def test_the_cosine_is_right_by_hand():
    weight = torch.nn.Parameter(torch.zeros(2))
    weight.grad = torch.tensor([3.0, 4.0])
    weights = Weights([weight])
    with torch.no_grad():
        weight -= torch.tensor([1.0, 0.0])  # against the first number of the gradient alone: 3 / 5
    assert weights.after()["descent"] == pytest.approx(0.6)


def test_log_probs_that_move_the_wrong_way_are_found_where_the_weights_look_right():
    batch = edit_batch(healthy_batch(), step=1, descent=0.5)
    gradients_BT, plain_BT = batch.arrays["gradients"], batch.arrays["plain_logprobs"]
    turned = edit_batch(batch, plain_logprobs_after=plain_BT + gradients_BT)
    assert "log-probs of the trained tokens move against" in check_batch(turned).message
    assert check_batch(edit_batch(batch, plain_logprobs_after=plain_BT - gradients_BT)).state is State.HEALTHY


def test_weights_with_a_gradient_and_a_rate_that_stay_are_found():
    stays = {"tensors_changed": 0, "numbers_changed_share": 0.0, "update_norm": 0.0, "descent": None}
    verdict = check_batch(edit_batch(healthy_batch(), **stays))
    assert (verdict.state, verdict.confidence) == (State.FINDING, Confidence.PROVEN)
    tiny = check_batch(
        edit_batch(
            healthy_batch(),
            **stays,
            smallest_step=2.0**-24,
            learning_rate=5e-8,
            mean_move=0.0,
            plain_logprobs_after=healthy_batch().arrays["plain_logprobs"] * 0.999,
        )
    )
    assert tiny.state is not State.FINDING


def test_weights_that_move_by_far_more_than_the_rate_are_a_possible_finding():
    numbers = numbers_of_a_step(torch.optim.Adam)
    batch = edit_batch(healthy_batch(), **numbers, step=1)
    assert check_batch(edit_batch(batch, learning_rate=1e-3)).state is State.HEALTHY
    verdict = check_batch(edit_batch(batch, learning_rate=1e-5))  # 1e-3 is 100 times as much
    assert (verdict.state, verdict.confidence) == (State.FINDING, Confidence.POSSIBLE)
