"""no_update, pure_bf16, dropout, clip_dead, kl_no_grad and loss_sign at their limits and on what must stay silent."""

import numpy as np
import pytest

from assay.doctor.examples import edit_batch, healthy_batch
from assay.doctor.illnesses.kl import kl_no_grad
from assay.doctor.illnesses.loss import loss_sign
from assay.doctor.illnesses.numerics import dropout
from assay.doctor.illnesses.optimizer import no_update, pure_bf16
from assay.doctor.illnesses.ratio import clip_dead
from assay.doctor.recompute import gradient_parts
from assay.doctor.recompute.loss import aggregation_of, weights
from assay.verdict import Confidence, Missing, Severity, State


def test_an_update_that_changes_nothing_is_fatal():
    verdict = no_update.check_batch(healthy_batch(tensors_changed=0))
    assert (verdict.severity, verdict.confidence) == (Severity.FATAL, Confidence.PROVEN)
    assert "none of 20" in verdict.message


def test_one_tensor_of_twenty_that_stays_is_found():
    verdict = no_update.check_batch(healthy_batch(tensors_changed=19))
    assert (verdict.state, verdict.severity) == (State.FINDING, None)
    assert "only 19 of 20" in verdict.message


@pytest.mark.parametrize(
    ("change", "sure"),
    [
        ({"dtype": "bfloat16"}, Confidence.LIKELY),
        ({"learning_rate": 1e-7}, Confidence.POSSIBLE),
        ({"learning_rate": 1e-7, "tensors_changed": 0}, Confidence.LIKELY),
    ],
)
def test_a_tensor_that_stays_may_be_rounding_in_low_precision_or_at_a_tiny_rate(change, sure):
    assert no_update.check_batch(healthy_batch(**{"tensors_changed": 19, **change})).confidence is sure


@pytest.mark.parametrize(("rate", "state"), [(5e-8, State.NOT_APPLICABLE), (1e-6, State.FINDING)])
def test_a_weight_near_one_cannot_move_by_less_than_half_of_its_last_digit(rate, state):
    batch = healthy_batch(tensors_changed=19, smallest_step=2.0**-24, learning_rate=rate)
    assert no_update.check_batch(batch).state is state


@pytest.mark.parametrize(
    ("step", "steps", "confidence"),
    [(2, 100, Confidence.POSSIBLE), (3, 100, Confidence.LIKELY), (9, None, Confidence.LIKELY)],
)
def test_a_rate_of_zero_after_the_first_steps_is_a_finding(step, steps, confidence):
    verdict = no_update.check_batch(healthy_batch(tensors_changed=0, learning_rate=0.0, step=step, steps=steps))
    assert (verdict.state, verdict.severity, verdict.confidence) == (State.FINDING, Severity.FATAL, confidence)


def test_a_rate_of_zero_of_one_group_is_not_the_rate_of_all():
    verdict = no_update.check_batch(healthy_batch(tensors_changed=20, learning_rate=0.0, step=9))
    assert verdict.state is State.NOT_APPLICABLE


def test_a_gradient_of_zero_is_a_finding_where_nothing_else_is_known_of_the_weights():
    unknown = dict.fromkeys(("tensors", "tensors_changed", "tensors_without_gradient", "numbers_changed_share"))
    verdict = no_update.check_batch(healthy_batch(gradient_norm=0.0, **unknown))
    assert (verdict.state, verdict.confidence) == (State.FINDING, Confidence.LIKELY)


def test_a_rate_of_zero_changes_nothing_by_right():
    verdict = no_update.check_batch(healthy_batch(tensors_changed=0, learning_rate=0.0, step=1))
    assert verdict.state is State.NOT_APPLICABLE


def test_more_than_half_of_the_adapters_without_gradient_is_not_a_fresh_start():
    fresh, odd = (
        no_update.check_batch(
            healthy_batch(tensors_changed=20 - without, tensors_without_gradient=without, lora_rank=8)
        )
        for without in (10, 11)
    )
    assert fresh.state is State.HEALTHY
    assert (odd.state, odd.confidence, odd.severity) == (State.FINDING, Confidence.POSSIBLE, Severity.WASTEFUL)


def test_no_gradient_at_all_is_a_finding_only_if_an_advantage_asks_for_one():
    none = {"tensors_changed": 0, "tensors_without_gradient": 20, "gradient_norm": 0.0}
    assert no_update.check_batch(healthy_batch(**none)).severity is Severity.FATAL
    solved = healthy_batch(**none, advantages=np.zeros(16))
    assert no_update.check_batch(solved).state is State.NOT_APPLICABLE
    clipped = healthy_batch(**none)
    assert no_update.check_batch(edit_batch(clipped, clipped=clipped.arrays["mask"])).state is State.NOT_APPLICABLE


def test_an_update_refused_for_a_nan_says_nothing_about_the_optimizer():
    assert no_update.check_batch(healthy_batch(gradient_norm=np.nan, tensors_changed=0)).state is State.NOT_APPLICABLE


@pytest.mark.parametrize(("share", "state"), [(0.049, State.FINDING), (0.051, State.HEALTHY)])
def test_five_percent_of_the_numbers_must_change(share, state):
    assert pure_bf16.check_batch(healthy_batch(numbers_changed_share=share, dtype="bfloat16")).state is state


@pytest.mark.parametrize(
    ("known", "state", "confidence"),
    [
        ({"dtype": "float32"}, State.NOT_APPLICABLE, None),
        ({"dtype": "bfloat16", "weight_bits": 32}, State.NOT_APPLICABLE, None),
        ({"dtype": "bfloat16"}, State.FINDING, Confidence.LIKELY),
        ({"dtype": "bfloat16", "weight_bits": 16}, State.FINDING, Confidence.PROVEN),
        ({"dtype": "float32", "weight_bits": 16}, State.FINDING, Confidence.PROVEN),
    ],
)
def test_only_weights_of_16_bits_are_below_their_precision(known, state, confidence):
    verdict = pure_bf16.check_batch(healthy_batch(numbers_changed_share=0.01, **known))
    assert verdict.state is state
    assert confidence is None or verdict.confidence is confidence


@pytest.mark.parametrize(
    ("dtype", "noise", "state"),
    [
        ("float32", 0.0009, State.HEALTHY),
        ("float32", 0.0011, State.FINDING),
        ("bfloat16", 0.049, State.HEALTHY),
        ("bfloat16", 0.051, State.FINDING),
    ],
)
def test_scoring_again_may_differ_by_rounding_of_the_dtype(dtype, noise, state):
    batch = healthy_batch(dtype=dtype)
    verdict = dropout.check_batch(edit_batch(batch, scored_again=batch.arrays["new_logprobs"] + noise))
    assert verdict.state is state


def test_dropout_modules_whose_passes_agree_do_nothing():
    assert dropout.check_batch(healthy_batch(dropout_modules=3)).state is State.HEALTHY
    unasked = dropout.check_batch(healthy_batch(dropout_modules=3, scored_again=None))
    assert (unasked.state, unasked.confidence) == (State.FINDING, Confidence.LIKELY)


def test_one_token_off_is_an_outlier_and_a_nan_is_another_illness():
    batch = healthy_batch()
    again_BT = batch.arrays["new_logprobs"].copy()
    again_BT[0, 0] += 0.5
    alone = {"scored_permuted": None, "scored_alone": None}
    assert dropout.check_batch(edit_batch(batch, scored_again=again_BT, **alone)).confidence is Confidence.LIKELY
    again_BT[0, 0] = np.nan
    assert dropout.check_batch(edit_batch(batch, scored_again=again_BT)).state is State.HEALTHY


@pytest.mark.parametrize("objective", ["gspo", "cispo", "sapo"])
def test_objectives_without_a_hard_token_clip_are_left_alone(objective):
    (batch,) = clip_dead.ILLNESS.sick().batches
    assert clip_dead.check_batch(edit_batch(batch, objective=objective)).state is State.NOT_APPLICABLE


def test_a_loss_scaled_as_a_whole_hides_no_dead_clip():
    (sick,), (well,) = clip_dead.ILLNESS.sick().batches, clip_dead.ILLNESS.well().batches
    for batch, state in ((sick, State.FINDING), (well, State.HEALTHY)):
        scaled = edit_batch(batch, gradients=7.0 * batch.arrays["gradients"])
        assert clip_dead.check_batch(scaled).state is state


def test_gradients_of_another_loss_say_nothing_about_the_clip():
    (batch,) = clip_dead.ILLNESS.sick().batches
    strange_BT = np.random.default_rng(0).standard_normal(batch.arrays["gradients"].shape)
    with pytest.raises(Missing):
        clip_dead.check_batch(edit_batch(batch, gradients=strange_BT))


def test_an_inverted_clip_pushes_the_same_tokens_and_is_told_by_those_it_holds_back(monkeypatch):
    (batch,) = clip_dead.ILLNESS.sick().batches
    assert clip_dead.check_batch(batch).confidence is Confidence.PROVEN
    gradients_BT = batch.arrays["gradients"].copy()
    unwanted = np.flatnonzero(batch.arrays["advantages"] < 0)[0]
    gradients_BT[unwanted, 1] = 0.0
    monkeypatch.setattr(clip_dead, "FIT", 0.9)  # as in a large batch, where one token hardly counts in the fit
    assert clip_dead.check_batch(edit_batch(batch, gradients=gradients_BT)).state is State.NOT_APPLICABLE
    mask_BT = batch.arrays["mask"].copy()
    mask_BT[unwanted, 1] = False
    assert clip_dead.check_batch(edit_batch(batch, mask=mask_BT)).confidence is Confidence.LIKELY


def test_a_first_update_clips_nothing():
    assert clip_dead.check_batch(healthy_batch()).state is State.NOT_APPLICABLE


def test_a_kl_taken_off_the_reward_or_with_weight_zero_needs_no_gradient():
    (batch,) = kl_no_grad.ILLNESS.sick().batches
    for change in ({"kl_placement": "reward"}, {"kl_coef": 0.0}):
        assert kl_no_grad.check_batch(edit_batch(batch, **change)).state is State.NOT_APPLICABLE


def test_a_policy_that_is_still_its_reference_has_no_slope_to_look_at():
    (batch,) = kl_no_grad.ILLNESS.sick().batches
    same = edit_batch(batch, ref_logprobs=batch.arrays["new_logprobs"])
    assert kl_no_grad.check_batch(same).state is State.NOT_APPLICABLE


def test_the_unbiased_kl_gradient_is_seen_as_such():
    batch = healthy_batch(update=1, kl_gradient="unbiased")
    policy_BT, kl_BT = gradient_parts(batch, weights(batch, aggregation_of(batch)))
    assert kl_no_grad.check_batch(edit_batch(batch, gradients=policy_BT + kl_BT)).state is State.HEALTHY
    assert kl_no_grad.check_batch(edit_batch(batch, gradients=policy_BT)).state is State.FINDING


def test_a_subtracted_kl_is_not_a_missing_one():
    batch = healthy_batch(update=1)
    policy_BT, kl_BT = gradient_parts(batch, weights(batch, aggregation_of(batch)))
    assert kl_no_grad.check_batch(edit_batch(batch, gradients=policy_BT - kl_BT)).state is State.NOT_APPLICABLE


def test_a_gradient_flipped_without_the_loss_is_an_inverted_ratio():
    batch = healthy_batch(update=1)
    flipped = edit_batch(batch, gradients=-batch.arrays["gradients"])
    assert loss_sign.check_batch(flipped).state is State.NOT_APPLICABLE
    by_number = edit_batch(flipped, token_loss=None)
    assert loss_sign.check_batch(by_number).state is State.NOT_APPLICABLE


def test_without_a_loss_the_sign_is_only_likely():
    batch = healthy_batch(update=1)
    bare = edit_batch(batch, gradients=-batch.arrays["gradients"], token_loss=None, policy_loss=None, loss=None)
    assert loss_sign.check_batch(bare).confidence is Confidence.LIKELY


def test_a_strong_kl_that_outweighs_the_advantage_is_not_a_flipped_sign():
    batch = healthy_batch(update=1, kl_coef=50.0)
    policy_BT, kl_BT = gradient_parts(batch, weights(batch, aggregation_of(batch)))
    assert loss_sign.check_batch(edit_batch(batch, gradients=policy_BT + kl_BT)).state is not State.FINDING


def test_passes_that_agree_without_gradients_are_not_random():
    batch = healthy_batch()
    other_BT = batch.arrays["new_logprobs"] - 0.05
    same = dict.fromkeys(("scored_again", "scored_permuted", "scored_alone"), other_BT)
    assert dropout.check_batch(edit_batch(batch, **same)).state is State.HEALTHY
    assert dropout.check_batch(edit_batch(batch, **same, dropout_modules=2)).state is State.FINDING
    noisy = {**same, "scored_alone": other_BT + np.random.default_rng(0).normal(0.0, 0.05, other_BT.shape)}
    assert dropout.check_batch(edit_batch(batch, **noisy)).state is State.FINDING
