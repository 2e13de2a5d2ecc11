"""The law of the step, on optimizers as they are: downhill with one sign, uphill with the other."""

import numpy as np
import pytest
import torch

from assay.doctor.examples import edit_batch, healthy_batch
from assay.doctor.laws.step import check_batch, check_batches, minimises
from assay.examine.weights import Weights
from assay.verdict import Confidence, Missing, State


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


def _two_updates(direction):
    """The same rows twice in each of two steps; log-probs move by 0.01 along their advantages, or against them."""
    batch = healthy_batch()
    moved_BT = batch.arrays["new_logprobs"] + direction * 0.01 * np.sign(batch.token_advantages)
    return [
        edit_batch(batch, step=step, update=update, new_logprobs=moved_BT if update else batch.arrays["new_logprobs"])
        for step in (1, 2)
        for update in (0, 1)
    ]


def test_rows_that_come_again_show_an_update_against_their_advantages():
    assert check_batches(_two_updates(1.0)).state is State.HEALTHY
    found = check_batches(_two_updates(-1.0))
    assert (found.state, found.confidence) == (State.FINDING, Confidence.LIKELY)
    assert found.facts[0].value == pytest.approx(-1.0)


def test_rows_of_other_steps_and_other_tokens_are_not_compared():
    batches = _two_updates(-1.0)
    other = edit_batch(batches[1], tokens=batches[1].arrays["tokens"][::-1].copy())
    with pytest.raises(Missing):
        check_batches([batches[0], other, batches[3]])


def test_some_tensors_that_go_their_own_way_are_likely_and_exchanged_ones_proven():
    def of(judged, against, astray, exchanged):
        numbers = {"judged": judged, "against": against, "astray": astray, "exchanged": exchanged}
        named = {f"tensors_{name}": value for name, value in numbers.items()}
        return check_batch(edit_batch(healthy_batch(), descent=0.5, **named))

    assert of(20, 0, 2, 2).confidence is Confidence.PROVEN
    assert of(20, 0, 2, 0).confidence is Confidence.LIKELY
    assert of(20, 3, 0, 0).confidence is Confidence.LIKELY
    assert of(20, 0, 15, 0).confidence is Confidence.POSSIBLE  # most of them: an optimizer of another kind
    assert "nothing to do with their gradients" in of(20, 0, 20, 0).message
    assert of(20, 0, 0, 0).state is not State.FINDING


def test_the_sign_of_the_loss_is_read_from_its_gradients_or_its_value():
    batch = healthy_batch()
    assert minimises(batch) is True
    turned = edit_batch(batch, gradients=-batch.arrays["gradients"])
    assert minimises(turned) is False
