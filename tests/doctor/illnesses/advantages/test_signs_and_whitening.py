"""Signs and whitening by hand-worked numbers: inverted, loss_sign, kl_sign, per_sequence_whiten on both sides."""

import numpy as np
import pytest

from assay.doctor.evidence import Batch
from assay.doctor.examples import healthy_batch
from assay.doctor.illnesses.advantages import per_sequence_whiten
from assay.doctor.illnesses.kl import kl_sign
from assay.doctor.illnesses.loss import loss_sign
from assay.doctor.illnesses.ratio import inverted
from assay.doctor.recompute.consistent import consistent
from assay.verdict import Confidence, State

PROVEN, LIKELY, POSSIBLE = Confidence.PROVEN, Confidence.LIKELY, Confidence.POSSIBLE
FINDING, HEALTHY, NOT_APPLICABLE, NO_DATA = State.FINDING, State.HEALTHY, State.NOT_APPLICABLE, State.NOT_ENOUGH_DATA


def told(verdict):
    return verdict.state, verdict.confidence


# ---------------------------------------------------------------- inverted


def pulled(gradients, advantages, **values):
    shape = np.shape(gradients)
    given = {"mask": np.ones(shape), "tokens": np.ones(shape, dtype=int), "gradients": gradients, "step": 1}
    return Batch.of({**given, "advantages": advantages, **values})


@pytest.mark.parametrize(
    ("right", "state"), [(0.76, HEALTHY), (0.74, NOT_APPLICABLE), (0.26, NOT_APPLICABLE), (0.24, FINDING)]
)
def test_the_gradient_agrees_with_the_advantages_by_their_size(right, state):
    # one token each: the first is pulled the right way, the second not; agreement = right - (1 - right)
    verdict = inverted.check_batch(pulled([[-1.0], [-1.0]], [right, right - 1.0], kl_coef=0.0))
    assert verdict.state is state
    assert verdict.confidence is PROVEN


def test_tokens_that_are_clipped_lost_or_unmasked_are_not_judged():
    advantages, gradients = [1.0, -1.0], [[-1.0, 9.0, 9.0], [1.0, -9.0, -9.0]]
    assert inverted.check_batch(pulled(gradients, advantages)).state is NOT_APPLICABLE
    last_two = {"mask": [[1, 0, 0]] * 2}
    assert inverted.check_batch(pulled(gradients, advantages, **last_two)).state is HEALTHY
    assert inverted.check_batch(pulled(gradients, advantages, clipped=[[0, 1, 1]] * 2)).state is HEALTHY
    lost = np.where(np.abs(gradients) > 1, np.nan, gradients)
    assert inverted.check_batch(pulled(lost, advantages)).state is HEALTHY
    assert inverted.check_batch(pulled(np.zeros((2, 3)), advantages)).state is NOT_APPLICABLE


def test_a_kl_that_cannot_be_taken_off_leaves_a_doubt():
    wrong = [[1.0], [-1.0]], [1.0, -1.0]
    assert told(inverted.check_batch(pulled(*wrong))) == (FINDING, PROVEN)
    assert told(inverted.check_batch(pulled(*wrong, kl_coef=0.1))) == (FINDING, LIKELY)
    assert told(inverted.check_batch(pulled(*wrong, kl_coef=0.1, kl_placement="reward"))) == (FINDING, PROVEN)


def test_a_kl_that_outweighs_the_policy_part_inverts_nothing():
    assert inverted.check_batch(consistent(healthy_batch(update=1, kl_coef=50.0))).state is HEALTHY


def test_a_known_ratio_and_an_unknown_gradient_are_enough_and_a_finding_counts_most():
    batch = healthy_batch(update=1, gradients=None)
    assert inverted.check_batch(batch).state is HEALTHY
    upside_down = healthy_batch(update=1, ratio=1 / batch.arrays["ratio"])  # its gradients are right
    assert told(inverted.check_batch(upside_down)) == (FINDING, PROVEN)


# ---------------------------------------------------------------- loss_sign


def signed(against, advantages=(1.0, 1.0, 1.0, -1.0), **values):
    """200 loss tokens on policy, without KL; the first `against` of them are pulled against their advantage."""
    advantages_BT = np.repeat(np.array(advantages)[:, None], 50, axis=1)
    gradients_BT = -advantages_BT / 200
    gradients_BT.flat[:against] *= -1
    logprobs = dict.fromkeys(("new_logprobs", "old_logprobs"), np.full((4, 50), -1.0))
    settings = {"objective": "dapo", "clip_low": 0.2, "clip_high": 0.2, "kl_coef": 0.0, "update": 0}
    return pulled(gradients_BT, list(advantages), **logprobs, **{**settings, **values})


@pytest.mark.parametrize(
    ("against", "state"),
    [(0, HEALTHY), (1, HEALTHY), (3, NOT_APPLICABLE), (197, NOT_APPLICABLE), (199, FINDING), (200, FINDING)],
)
def test_nearly_all_tokens_must_be_pulled_against_their_advantage(against, state):
    assert loss_sign.check_batch(signed(against)).state is state


def test_the_sign_of_the_loss_itself_proves_it():
    # the loss that is meant is -mean(A) = -0.5
    assert told(loss_sign.check_batch(signed(200))) == (FINDING, LIKELY)
    assert told(loss_sign.check_batch(signed(200, policy_loss=0.5))) == (FINDING, PROVEN)
    assert loss_sign.check_batch(signed(200, policy_loss=-0.5)).state is NOT_APPLICABLE
    centred = (1.0, -1.0, 1.0, -1.0)  # the loss is 0 and has no sign
    assert told(loss_sign.check_batch(signed(200, centred, policy_loss=0.5))) == (FINDING, LIKELY)


def test_the_losses_of_tokens_tell_the_sign_where_their_mean_is_zero():
    centred = (1.0, -1.0, 1.0, -1.0)
    meant_BT = -np.repeat(np.array(centred)[:, None], 50, axis=1)
    assert told(loss_sign.check_batch(signed(200, centred, token_loss=-meant_BT))) == (FINDING, PROVEN)
    assert loss_sign.check_batch(signed(200, centred, token_loss=meant_BT)).state is NOT_APPLICABLE


# ---------------------------------------------------------------- kl_sign

SETTINGS = {"kl_coef": 0.1, "kl_estimator": "k3", "kl_placement": "loss"}


@pytest.mark.parametrize(
    ("loss", "policy", "part", "state"),
    [
        (1.0, None, -1.1e-4, FINDING),
        (1.0, None, -0.9e-4, NO_DATA),  # lost in the rounding of the loss
        (0.904, 1.0, 0.1, FINDING),  # loss - policy_loss is -0.096, within a twentieth of -0.1
        (0.896, 1.0, 0.1, FINDING),
        (0.906, 1.0, 0.1, NO_DATA),
        (1.104, 1.0, 0.1, HEALTHY),
        (1.106, 1.0, 0.1, NO_DATA),
        (1.0, None, 0.1, NO_DATA),
    ],
)
def test_the_kl_part_is_added_to_the_policy_part(loss, policy, part, state):
    given = {"loss": loss, "policy_loss": policy, "kl_loss": part, "step": 1, "dtype": "float32"}
    batch = Batch.of({**given, **SETTINGS})
    verdict = kl_sign.check_batch(batch)
    assert verdict.state is state
    assert verdict.confidence is PROVEN


def reference_pull(sign, advantages=(0.0, 0.0), policy=0.0, **values):
    """Two rows whose gradients are `policy` + `sign` times kl_coef * (new - ref) / tokens."""
    apart_BT = np.array([[0.4, -0.2], [0.1, -0.3]])
    logprobs = {"new_logprobs": apart_BT - 2.0, "ref_logprobs": np.full((2, 2), -2.0), "update": 1}
    return pulled(policy + sign * 0.1 * apart_BT / 4, list(advantages), **{**logprobs, **SETTINGS, **values})


def test_rows_without_advantage_show_which_way_the_kl_pulls():
    assert kl_sign.check_batch(reference_pull(1.0)).state is HEALTHY
    assert told(kl_sign.check_batch(reference_pull(-1.0))) == (FINDING, PROVEN)
    assert kl_sign.check_batch(reference_pull(-1.0, kl_estimator="k1")).state is NOT_APPLICABLE
    assert kl_sign.check_batch(reference_pull(-1.0, correction="token")).state is NO_DATA


def test_rows_with_an_advantage_are_judged_by_what_varies_and_only_on_policy():
    good = {"advantages": (1.0, 1.0), "policy": -0.25}
    assert kl_sign.check_batch(reference_pull(-1.0, **good, update=0)).state is FINDING
    assert kl_sign.check_batch(reference_pull(-1.0, **good, update=1)).state is NO_DATA
    by_token = {**good, "advantages": ([1.0, 2.0], [1.0, 2.0])}
    assert kl_sign.check_batch(reference_pull(-1.0, **by_token, update=0)).state is NO_DATA


# ---------------------------------------------------------------- per_sequence_whiten

WHITE = np.array([1.5**0.5, 0.0, -(1.5**0.5)])  # mean 0, population std 1


def by_token(*rows, **values):
    return Batch.of({"advantages": [*rows], "mask": np.ones((len(rows), len(rows[0]))), "step": 1, **values})


@pytest.mark.parametrize(
    ("row", "state"),
    [
        (WHITE, FINDING),
        (WHITE + 0.0009, FINDING),
        (WHITE - 0.0009, FINDING),
        (WHITE + 0.0011, HEALTHY),
        (WHITE - 0.0011, HEALTHY),
        (WHITE * 1.019, FINDING),
        (WHITE * 1.021, HEALTHY),
        (WHITE * 0.981, FINDING),
        (WHITE * 0.979, HEALTHY),
        (WHITE * (2 / 3) ** 0.5, FINDING),  # the sample std is 1
    ],
)
def test_a_whitened_row_has_mean_zero_and_one_of_both_stds_is_one(row, state):
    assert told(per_sequence_whiten.check_batch(by_token(row, -row))) == (state, PROVEN)


@pytest.mark.parametrize(("white", "state"), [(9, FINDING), (8, HEALTHY)])
def test_nine_of_ten_rows_that_vary_must_be_white(white, state):
    rows = [WHITE] * white + [2 * WHITE] * (10 - white)
    assert per_sequence_whiten.check_batch(by_token(*rows)).state is state
    with_equal = [*rows, np.ones(3), np.full(3, np.nan)]  # a row of one number, and one that is lost: not judged
    assert per_sequence_whiten.check_batch(by_token(*with_equal)).state is state


def test_two_rows_of_three_tokens_are_asked_for():
    assert per_sequence_whiten.check_batch(by_token(WHITE, np.ones(3))).state is NO_DATA
    assert per_sequence_whiten.check_batch(by_token(WHITE[:2], WHITE[1:])).state is NO_DATA
    assert per_sequence_whiten.check_batch(by_token(np.ones(3), -np.ones(3))).state is HEALTHY


def test_steps_judged_by_plus_and_minus_one_are_white_by_nature():
    signs = by_token([1, 1, -1, -1], [1, -1, 1, -1], process_rewards=True)
    assert told(per_sequence_whiten.check_batch(signs)) == (FINDING, POSSIBLE)
    one_more = by_token([1, 1, -1, -1], [2**0.5, 0, 0, -(2**0.5)])
    assert told(per_sequence_whiten.check_batch(one_more)) == (FINDING, PROVEN)
