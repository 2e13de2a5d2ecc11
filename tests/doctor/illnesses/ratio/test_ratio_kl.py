"""Ratio and KL: limits from both sides, and the variants that must stay silent."""

import warnings

import numpy as np
import pytest

from assay.doctor.diagnosis import diagnose
from assay.doctor.evidence import Batch, Evidence
from assay.doctor.examples import edit_batch, healthy_batch, healthy_curves
from assay.doctor.illnesses.kl import kl_sign, reference
from assay.doctor.illnesses.numerics import autocast_mismatch
from assay.doctor.illnesses.ratio import ratio_stuck_at_one, seq_ratio, unbounded_exp
from assay.doctor.illnesses.sampling import stale_sampler
from assay.verdict import Confidence, State

MINE = [
    one.ILLNESS
    for one in (autocast_mismatch, kl_sign, ratio_stuck_at_one, reference, seq_ratio, stale_sampler, unbounded_exp)
]
FINDING, HEALTHY, NOT_APPLICABLE, NO_DATA = State.FINDING, State.HEALTHY, State.NOT_APPLICABLE, State.NOT_ENOUGH_DATA


UNKNOWN = ("policy_version", "update_norm", "gradient_norm", "gradients")  # nothing says that the weights moved


def later(**changes):
    """A second update whose new log-probs are the old ones, bit for bit."""
    return edit_batch(healthy_batch(), **{"update": 1, "policy_version": 8, **changes})


# ---------------------------------------------------------------- ratio_stuck_at_one


def test_a_stuck_ratio_needs_weights_that_moved():
    assert ratio_stuck_at_one.check_batch(later()).confidence is Confidence.PROVEN
    assert ratio_stuck_at_one.check_batch(later(policy_version=7)).state is NOT_APPLICABLE
    assert ratio_stuck_at_one.check_batch(later(**dict.fromkeys(UNKNOWN))).state is NO_DATA
    assert ratio_stuck_at_one.check_batch(later(policy_version=None)).state is FINDING
    assert ratio_stuck_at_one.check_batch(later(policy_version=None, update_norm=0.0)).state is NOT_APPLICABLE


def test_updates_without_any_advantage_move_nothing_whatever_their_versions_say():
    nothing = np.zeros_like(healthy_batch().arrays["advantages"])
    unmeasured = {"update_norm": None, "gradient_norm": None, "gradients": None}
    assert ratio_stuck_at_one.check_batch(later(**unmeasured)).state is FINDING
    assert ratio_stuck_at_one.check_batch(later(**unmeasured, advantages=nothing)).state is NO_DATA


def test_a_stuck_ratio_in_low_precision_is_only_likely():
    assert ratio_stuck_at_one.check_batch(later(dtype="bfloat16")).confidence is Confidence.LIKELY
    assert ratio_stuck_at_one.check_batch(later(dtype=None)).confidence is Confidence.LIKELY


def test_one_token_that_moved_by_a_bit_is_a_ratio_that_moves():
    batch = later()
    new_BT = batch.arrays["new_logprobs"].copy()
    new_BT[0, 0] += 1e-9
    assert ratio_stuck_at_one.check_batch(edit_batch(batch, new_logprobs=new_BT)).state is HEALTHY


def test_one_update_a_rollout_batch_has_ratio_one():
    assert ratio_stuck_at_one.check_batch(healthy_batch()).state is NOT_APPLICABLE
    curves = healthy_curves(settings={"updates_per_rollout": 1}, ratio_min=1.0, ratio_max=1.0)
    assert ratio_stuck_at_one.check_curves(curves).state is NOT_APPLICABLE


@pytest.mark.parametrize(("highest", "state"), [(1.0 + 5e-8, FINDING), (1.0 + 2e-7, HEALTHY)])
def test_a_stuck_curve_is_one_to_the_last_bit_of_float32(highest, state):
    assert ratio_stuck_at_one.check_curves(healthy_curves(ratio_min=1.0, ratio_max=highest)).state is state


def test_steps_with_one_applied_update_say_nothing_of_a_stuck_ratio():
    curves = healthy_curves(updates_applied=1, ratio_min=1.0, ratio_max=1.0)
    assert ratio_stuck_at_one.check_curves(curves).state is NO_DATA


# ---------------------------------------------------------------- seq_ratio


def rows_of_two(ratio, **settings):
    """Three rows of two tokens that moved by 0.1 and 0.3: the mean is 0.2, the sum 0.4."""
    old_BT = np.full((3, 2), -1.0)
    new_BT = old_BT + np.array([0.1, 0.3])
    fields = {"tokens": np.ones((3, 2)), "mask": np.ones((3, 2)), "old_logprobs": old_BT, "new_logprobs": new_BT}
    return Batch.of({**fields, "ratio": ratio, **settings})


@pytest.mark.parametrize(
    ("log_ratio", "state"), [(0.2, HEALTHY), (0.4, FINDING), (0.3, NOT_APPLICABLE), (-0.4, NOT_APPLICABLE)]
)
def test_a_row_ratio_is_told_from_the_product_by_its_value(log_ratio, state):
    assert seq_ratio.check_batch(rows_of_two(np.exp(np.full(3, log_ratio)))).state is state
    assert seq_ratio.check_batch(rows_of_two(np.exp(np.full((3, 2), log_ratio)))).state is state


def test_a_ratio_by_token_is_no_sequence_ratio():
    assert seq_ratio.check_batch(rows_of_two(np.exp(np.tile([0.1, 0.3], (3, 1))))).state is NOT_APPLICABLE
    assert seq_ratio.check_batch(healthy_batch(update=1)).state is NOT_APPLICABLE


@pytest.mark.parametrize(("per_row", "state"), [(True, HEALTHY), (False, FINDING)])
def test_gspo_before_any_update_is_judged_by_its_gradients(per_row, state):
    batch = healthy_batch(objective="gspo", kl_coef=0.0, ratio=None)
    mask_BT = batch.arrays["mask"]
    lengths_B1 = mask_BT.sum(axis=1, keepdims=True) if per_row else 1
    gradients_BT = np.where(mask_BT, -batch.token_advantages, 0.0) / (len(mask_BT) * lengths_B1)
    assert seq_ratio.check_batch(edit_batch(batch, gradients=gradients_BT)).state is state


def test_gspo_gradients_with_a_kl_in_them_are_not_judged():
    assert seq_ratio.check_batch(healthy_batch(objective="gspo", kl_coef=0.05, ratio=None)).state is NO_DATA


# ---------------------------------------------------------------- unbounded_exp


def jumped(by, **changes):
    """One token became likelier by so many nats; no ratio is recorded."""
    batch = healthy_batch(update=1)
    old_BT = batch.arrays["old_logprobs"].copy()
    old_BT[1, 2] = batch.arrays["new_logprobs"][1, 2] - by
    return edit_batch(batch, **{"old_logprobs": old_BT, "ratio": None, **changes})


@pytest.mark.parametrize(("by", "state"), [(9.9, HEALTHY), (10.1, FINDING), (-30.0, HEALTHY)])
def test_a_ratio_runs_away_upwards_beyond_ten_nats(by, state):
    verdict = unbounded_exp.check_batch(jumped(by))
    assert verdict.state is state
    if state is FINDING:
        assert verdict.confidence is Confidence.LIKELY  # without the ratio that was used
        assert (verdict.facts[0].row, verdict.facts[0].token) == (1, 2)


@pytest.mark.parametrize("bound", [{"objective": "cispo"}, {"objective": "sapo"}, {"delta": 4.0}, {"dual_clip": 3.0}])
def test_an_objective_that_bounds_the_ratio_is_left_alone_until_it_overflows(bound):
    assert unbounded_exp.check_batch(jumped(20.0, **bound)).state is HEALTHY
    assert unbounded_exp.check_batch(jumped(89.0, **bound)).state is FINDING


def test_a_trainer_that_clamps_the_ratio_is_healthy():
    ratio_BT = np.ones(healthy_batch().arrays["mask"].shape)
    assert unbounded_exp.check_batch(jumped(30.0, ratio=ratio_BT)).state is HEALTHY
    ratio_BT[1, 2] = np.inf
    verdict = unbounded_exp.check_batch(jumped(30.0, ratio=ratio_BT))
    assert (verdict.state, verdict.confidence) == (FINDING, Confidence.PROVEN)


def test_an_infinite_log_ratio_is_found_and_a_missing_one_is_not():
    assert unbounded_exp.check_batch(jumped(np.inf)).state is FINDING
    assert unbounded_exp.check_batch(jumped(np.nan)).state is HEALTHY


@pytest.mark.parametrize(
    ("level", "off", "state"),
    [("token", 0.5, HEALTHY), ("token", 0.8, FINDING), ("sequence", 0.8, FINDING), ("geometric", 0.5, HEALTHY)],
)
def test_importance_weights_have_a_mean_near_one(level, off, state):
    batch = healthy_batch()
    sampler_BT = batch.arrays["old_logprobs"] + off  # a weight of exp(-off): 0.61 or 0.45 a token
    verdict = unbounded_exp.check_batch(edit_batch(batch, sampler_logprobs=sampler_BT, correction=level))
    assert verdict.state is state
    unused = unbounded_exp.check_batch(edit_batch(batch, sampler_logprobs=sampler_BT))
    assert unused.state is HEALTHY


def test_masked_weights_out_of_bounds_count_as_nothing():
    batch = healthy_batch(correction="token", correction_mode="mask", correction_low=0.7)
    sampler_BT = batch.arrays["old_logprobs"] + 0.5  # 0.61 < 0.7
    assert unbounded_exp.check_batch(edit_batch(batch, sampler_logprobs=sampler_BT)).state is FINDING


def test_one_step_with_a_rare_token_is_no_runaway_curve():
    ratio_N = np.full(60, 1.4)
    ratio_N[7] = 5e3
    assert unbounded_exp.check_curves(healthy_curves(ratio_max=ratio_N)).state is HEALTHY
    ratio_N[8] = 5e3
    assert unbounded_exp.check_curves(healthy_curves(ratio_max=ratio_N)).state is FINDING


def test_a_healthy_batch_shows_its_largest_log_ratio():
    verdict = unbounded_exp.check_batch(jumped(2.5))
    assert verdict.facts[0].value == pytest.approx(2.5)


@pytest.mark.parametrize(
    ("correction", "mean", "state"),
    [("off", 0.06, HEALTHY), ("token", 0.06, FINDING), ("token", 0.6, HEALTHY), ("token", 2.1, FINDING)],
)
def test_a_vanished_correction_matters_where_it_is_used(correction, mean, state):
    curves = healthy_curves(settings={"correction": correction}, correction_mean=mean)
    assert unbounded_exp.check_curves(curves).state is state


# ---------------------------------------------------------------- kl_sign


def test_the_kl_taken_off_is_told_from_the_kl_added():
    numbers = {"kl_coef": 0.1, "policy_loss": -0.02, "kl_loss": 0.005}
    assert kl_sign.check_batch(Batch.of({**numbers, "loss": -0.015})).state is HEALTHY
    assert kl_sign.check_batch(Batch.of({**numbers, "loss": -0.025})).state is FINDING
    assert kl_sign.check_batch(Batch.of({**numbers, "loss": -0.02})).state is NO_DATA  # kl_no_grad's
    assert kl_sign.check_batch(Batch.of({**numbers, "loss": -0.025, "entropy_coef": 0.01})).state is NO_DATA


@pytest.mark.parametrize(("estimator", "state"), [("k3", FINDING), ("k2", FINDING), ("k1", NOT_APPLICABLE)])
def test_only_k1_may_be_negative(estimator, state):
    batch = Batch.of({"kl_coef": 0.1, "kl_loss": -0.005, "loss": -0.02, "kl_estimator": estimator})
    assert kl_sign.check_batch(batch).state is state


@pytest.mark.parametrize("unread", [{"kl_coef": 0.0}, {"kl_placement": "reward"}])
def test_without_a_kl_in_the_loss_there_is_no_sign(unread):
    flipped = edit_batch(kl_sign.ILLNESS.sick().batches[0], **unread)
    assert kl_sign.check_batch(flipped).state is NOT_APPLICABLE


def test_gradients_alone_show_the_sign_of_the_kl():
    (flipped,) = kl_sign.ILLNESS.sick().batches
    assert kl_sign.check_batch(edit_batch(flipped, kl_loss=None)).state is FINDING
    assert kl_sign.check_batch(healthy_batch(kl_loss=None)).state is HEALTHY
    # in a later update only rows without an advantage tell: here the group without signal
    assert kl_sign.check_batch(healthy_batch(update=1, kl_loss=None)).state is HEALTHY


def test_a_kl_lost_in_the_rounding_of_the_loss_is_not_judged():
    numbers = {"kl_coef": 0.1, "policy_loss": -1.0, "kl_loss": 5e-5, "loss": -1.00005}
    assert kl_sign.check_batch(Batch.of(numbers)).state is NO_DATA


def test_a_kl_that_rises_against_its_own_weight_is_a_curve_finding():
    kl_N = np.geomspace(0.1, 4.0, 60)
    part_N = 0.2 * kl_N
    settings = {"kl_coef": 0.2}
    rising = healthy_curves(settings=settings, policy_loss=0.001, kl_loss=part_N, loss=0.001 + part_N, ref_kl=kl_N)
    assert kl_sign.check_curves(rising).state is FINDING
    weak = healthy_curves(
        settings={"kl_coef": 0.001},
        policy_loss=0.01,
        kl_loss=0.001 * kl_N,
        loss=0.01 + 0.001 * kl_N,
        ref_kl=kl_N,
    )
    assert kl_sign.check_curves(weak).state is HEALTHY


# ---------------------------------------------------------------- all of them


@pytest.mark.parametrize("illness", MINE, ids=lambda one: one.code)
@pytest.mark.parametrize("spoiled", ["empty mask", "nan", "no rows"])
def test_empty_and_broken_batches_neither_crash_nor_accuse(illness, spoiled):
    batch = healthy_batch(update=1)
    if spoiled == "empty mask":
        batch = edit_batch(batch, mask=np.zeros_like(batch.arrays["mask"]))
    elif spoiled == "nan":
        names = [name for name in batch.arrays if name.endswith("_logprobs")]
        batch = edit_batch(batch, **{name: np.full(batch.arrays[name].shape, np.nan) for name in names})
    else:
        values = {**batch.settings, **{name: values[:0] for name, values in batch.arrays.items()}, "update": 1}
        batch = Batch.of(values)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (word,) = diagnose(Evidence((batch,)), [illness]).words
    # what was recorded of the loss is still there, and sound
    assert word.verdict.state in (NO_DATA, NOT_APPLICABLE, HEALTHY), word.verdict.message
