"""ratio_not_one on both sides of its limits, and other illnesses whose proof rests on one number."""

import numpy as np
import pytest

from assay.doctor.evidence import Batch
from assay.doctor.examples import healthy_batch, healthy_curves
from assay.doctor.illnesses.advantages import returns_from_whitened
from assay.doctor.illnesses.loss import split_dependence
from assay.doctor.illnesses.masks import padding_dependence
from assay.doctor.illnesses.ratio import ratio_not_one
from assay.verdict import Confidence, State

PROVEN, LIKELY, POSSIBLE = Confidence.PROVEN, Confidence.LIKELY, Confidence.POSSIBLE
FINDING, HEALTHY, NOT_APPLICABLE, NO_DATA = State.FINDING, State.HEALTHY, State.NOT_APPLICABLE, State.NOT_ENOUGH_DATA


def told(verdict):
    return verdict.state, verdict.confidence


# ---------------------------------------------------------------- ratio_not_one


def first_update(distances, **values):
    """One row of 200 loss tokens and one of padding; the first tokens of new are off by `distances`."""
    old_BT = np.full((1, 201), -2.0)
    new_BT = old_BT.copy()
    new_BT[0, : len(distances)] += distances
    new_BT[0, 200] = -9.0
    mask_BT = np.arange(201)[None, :] < 200
    given = {"mask": mask_BT, "new_logprobs": new_BT, "old_logprobs": old_BT, "update": 0, "step": 4}
    return Batch.of({**given, "dtype": "float32", **values})


@pytest.mark.parametrize(
    ("dtype", "distance", "state"),
    [
        ("float32", 0.9e-3, HEALTHY),
        ("float32", 1.1e-3, FINDING),
        ("float16", 0.9e-2, HEALTHY),
        ("float16", 1.1e-2, FINDING),
        ("bfloat16", 4.9e-2, HEALTHY),
        ("bfloat16", 5.1e-2, FINDING),
    ],
)
@pytest.mark.parametrize("sign", [1, -1])
def test_each_precision_has_its_own_limit(dtype, distance, state, sign):
    assert ratio_not_one.check_batch(first_update([sign * distance] * 9, dtype=dtype)).state is state


def test_more_than_one_token_in_a_hundred_proves_it():
    assert told(ratio_not_one.check_batch(first_update([0.01] * 3))) == (FINDING, PROVEN)  # 1.5 %
    assert told(ratio_not_one.check_batch(first_update([0.01] * 2))) == (FINDING, LIKELY)  # 1 %
    verdict = ratio_not_one.check_batch(first_update([0.01, -0.02, 0.01]))
    assert (verdict.facts[0].value, verdict.facts[0].token) == (pytest.approx(0.02), 1)
    assert verdict.facts[1].value == pytest.approx(0.015)


def test_a_ratio_that_is_lost_is_left_to_not_finite():
    verdict = ratio_not_one.check_batch(first_update([np.nan, 0.01, np.nan, 0.01, 0.01]))
    assert told(verdict) == (FINDING, PROVEN)  # 3 of the 198 that are left
    assert (verdict.facts[0].value, verdict.facts[0].token) == (pytest.approx(0.01), 1)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sixteen_bits_leave_a_tenth_on_average(dtype):
    # half of the tokens off by 0.18: a mean of 0.09; by 0.22: 0.11
    assert told(ratio_not_one.check_batch(first_update([0.18] * 100, dtype=dtype))) == (FINDING, POSSIBLE)
    assert told(ratio_not_one.check_batch(first_update([0.22] * 100, dtype=dtype))) == (FINDING, PROVEN)


def test_an_unstated_precision_may_be_sixteen_bits():
    assert told(ratio_not_one.check_batch(first_update([0.04] * 100, dtype=None))) == (FINDING, POSSIBLE)
    assert told(ratio_not_one.check_batch(first_update([0.22] * 100, dtype=None))) == (FINDING, PROVEN)


def test_a_later_update_may_have_moved():
    assert ratio_not_one.check_batch(first_update([0.5] * 200, update=1)).state is NOT_APPLICABLE


@pytest.mark.parametrize(("deviation", "state"), [(0.9e-3, HEALTHY), (1.1e-3, FINDING)])
def test_the_largest_deviation_of_all_steps_counts(deviation, state):
    deviations = np.zeros(60)
    deviations[7] = deviation
    verdict = ratio_not_one.check_curves(healthy_curves(first_ratio_max_deviation=deviations))
    assert verdict.state is state
    assert (verdict.facts[0].value, verdict.facts[0].step) == (deviation, 8)


# ---------------------------------------------------------------- padding_dependence and split_dependence


@pytest.mark.parametrize(
    ("check", "name"),
    [(padding_dependence.check_batch, "loss_padded"), (split_dependence.check_batch, "loss_split")],
)
def test_a_loss_that_follows_padding_or_cutting_is_proven(check, name):
    batch = healthy_batch(gradients_split=None)
    loss = batch.number("loss_again")
    assert check(batch).state is HEALTHY
    moved = check(healthy_batch(gradients_split=None, **{name: 1.1 * loss + 0.1}))
    assert told(moved) == (FINDING, PROVEN)
    assert check(healthy_batch(**{name: np.nan})).state is FINDING
    assert check(healthy_batch(**{name: np.nan, "loss_again": np.nan, "loss": np.nan})).state is not FINDING


# ---------------------------------------------------------------- returns_from_whitened


def critic(gained_N, raw_N=None, **values):
    """One row of loss tokens; the critic predicts 0.3 for all of them."""
    shape = (1, len(gained_N))
    given = {"mask": np.ones(shape), "values": np.full(shape, 0.3), "returns": 0.3 + np.reshape(gained_N, shape)}
    raw = {} if raw_N is None else {"raw_advantages": np.reshape(raw_N, shape)}
    return Batch.of({**given, **raw, "step": 1, **values})


RAW = np.arange(40) / 10  # mean 1.95, std 1.1543
WHITE = (RAW - RAW.mean()) / RAW.std()


def test_returns_of_whitened_advantages_are_proven_by_the_raw_ones():
    assert told(returns_from_whitened.check_batch(critic(WHITE, RAW))) == (FINDING, PROVEN)
    assert told(returns_from_whitened.check_batch(critic(WHITE))) == (FINDING, LIKELY)
    assert told(returns_from_whitened.check_batch(critic(0.5 * WHITE, RAW))) == (FINDING, LIKELY)  # not white, scaled
    assert returns_from_whitened.check_batch(critic(RAW, RAW)).state is HEALTHY
    assert returns_from_whitened.check_batch(critic(RAW)).state is HEALTHY
    assert returns_from_whitened.check_batch(critic(-WHITE, RAW)).state is NOT_APPLICABLE
    assert returns_from_whitened.check_batch(critic(WHITE[:19], RAW[:19])).state is NO_DATA


@pytest.mark.parametrize(
    ("gained_N", "state"),
    [
        (1.009 * WHITE, FINDING),
        (1.011 * WHITE, HEALTHY),
        (0.991 * WHITE, FINDING),
        (0.989 * WHITE, HEALTHY),
        (WHITE + 0.009, FINDING),
        (WHITE - 0.011, HEALTHY),
    ],
)
def test_white_is_mean_zero_and_std_one_to_a_hundredth(gained_N, state):
    assert returns_from_whitened.check_batch(critic(gained_N)).state is state


def test_a_critic_with_a_lambda_of_its_own_is_not_judged():
    bent_N = WHITE.copy()
    bent_N[::2] += 0.03  # off the line by 0.015, more than a hundredth of the spread
    assert returns_from_whitened.check_batch(critic(bent_N, RAW)).state is NOT_APPLICABLE
    bent_N = WHITE.copy()
    bent_N[::2] += 0.01
    assert returns_from_whitened.check_batch(critic(bent_N, RAW)).state is FINDING


def test_lost_tokens_are_left_out_of_a_critics_numbers():
    lost_N = np.append(WHITE, [np.nan, 50.0])
    batch = critic(lost_N, np.append(RAW, [1.0, np.nan]))
    assert told(returns_from_whitened.check_batch(batch)) == (FINDING, PROVEN)
