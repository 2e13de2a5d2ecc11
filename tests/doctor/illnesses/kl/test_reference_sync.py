"""Reference, staleness, precision: limits from both sides, and the variants that must stay silent."""

import numpy as np
import pytest

from assay.doctor.examples import edit_batch, healthy_batch, healthy_curves
from assay.doctor.illnesses.kl import reference
from assay.doctor.illnesses.numerics import autocast_mismatch
from assay.doctor.illnesses.sampling import stale_sampler
from assay.verdict import Confidence, Severity, State

FINDING, HEALTHY, NOT_APPLICABLE, NO_DATA = State.FINDING, State.HEALTHY, State.NOT_APPLICABLE, State.NOT_ENOUGH_DATA


# ---------------------------------------------------------------- reference


def at_the_start(distance, **changes):
    batch = healthy_batch(step=1, policy_version=0, plain_ref_logprobs=None)
    ref_BT = batch.arrays["old_logprobs"] - distance
    return edit_batch(batch, **{"ref_logprobs": ref_BT, **changes})


@pytest.mark.parametrize(
    ("dtype", "distance", "state"),
    [
        ("float32", 9e-4, HEALTHY),
        ("float32", 2e-3, FINDING),
        ("bfloat16", 0.09, HEALTHY),
        ("bfloat16", 0.2, FINDING),
        (None, 0.09, HEALTHY),
    ],
)
def test_at_the_start_the_reference_is_the_policy(dtype, distance, state):
    assert reference.check_batch(at_the_start(distance, dtype=dtype)).state is state


def test_a_difference_at_step_one_is_proven_only_of_untouched_weights():
    assert reference.check_batch(at_the_start(0.5)).confidence is Confidence.PROVEN
    assert reference.check_batch(at_the_start(0.5, policy_version=None)).confidence is Confidence.LIKELY


def test_a_policy_that_is_scored_wrongly_does_not_accuse_the_reference():
    batch = at_the_start(0.5)
    assert reference.check_batch(edit_batch(batch, plain_logprobs=batch.arrays["ref_logprobs"])).state is NO_DATA


def test_the_reference_is_asked_again():
    batch = healthy_batch()
    other_BT = batch.arrays["ref_logprobs"] * 0.8  # another temperature, roughly
    assert reference.check_batch(edit_batch(batch, plain_ref_logprobs=other_BT)).state is FINDING
    assert reference.check_batch(batch).state is HEALTHY


@pytest.mark.parametrize(
    ("changes", "state", "confidence"),
    [
        ({}, FINDING, Confidence.PROVEN),
        ({"step": 2}, FINDING, Confidence.POSSIBLE),  # a warm-up may begin with a rate of 0
        ({"dtype": "bfloat16"}, FINDING, Confidence.LIKELY),
        ({"advantages": np.zeros(16)}, FINDING, Confidence.LIKELY),  # without a signal nothing moves
        ({"reference_every": 4}, NO_DATA, None),
        ({"step": 1, "policy_version": 0}, HEALTHY, None),
        ({"update_norm": 0.0}, NO_DATA, None),
        ({"learning_rate": 0.0}, NO_DATA, None),
    ],
)
def test_a_reference_that_follows_the_policy_is_equal_to_the_last_bit(changes, state, confidence):
    (following,) = reference.ILLNESS.sick().batches
    verdict = reference.check_batch(edit_batch(following, plain_ref_logprobs=None, **changes))
    assert verdict.state is state
    assert confidence is None or verdict.confidence is confidence


def test_a_first_kl_above_rounding_is_a_curve_finding_with_one_update_only():
    kl_N = np.linspace(0.02, 0.05, 60)
    assert reference.check_curves(healthy_curves(ref_kl=kl_N, updates_applied=1)).state is FINDING
    assert reference.check_curves(healthy_curves(ref_kl=kl_N, updates_applied=2)).state is HEALTHY
    assert reference.check_curves(healthy_curves(ref_kl=kl_N / 10, updates_applied=1)).state is HEALTHY


def test_a_renewed_reference_may_have_a_kl_of_zero():
    curves = healthy_curves(ref_kl=0.0, settings={"reference_every": 1})
    assert reference.check_curves(curves).state is NO_DATA
    assert reference.check_curves(healthy_curves(ref_kl=0.0, update_norm=0.0)).state is HEALTHY


# ---------------------------------------------------------------- stale_sampler


def behind(lag, spread, **changes):
    return edit_batch(stale_sampler._sampled_by(7 - lag, spread), **changes)


@pytest.mark.parametrize(
    ("lag", "spread", "changes", "state"),
    [
        (1, 0.1, {}, FINDING),
        (3, 1e-5, {}, HEALTHY),  # old holds the sampler's numbers: the ratio corrects
        (1, 0.1, {"correction": "token"}, HEALTHY),  # one step behind on purpose
        (1, 0.08, {"dtype": "bfloat16"}, HEALTHY),
        (2, 0.3, {"dtype": "bfloat16"}, FINDING),
        (2, 0.1, {"sampler_logprobs": None}, FINDING),
        (1, 0.1, {"sampler_logprobs": None}, HEALTHY),  # may be another way to count
    ],
)
def test_a_sampler_is_stale_by_version_where_nothing_corrects(lag, spread, changes, state):
    assert stale_sampler.check_batch(behind(lag, spread, **changes)).state is state


def test_a_lag_counts_from_the_first_update_of_the_rollout():
    assert stale_sampler._lag(healthy_batch(update=1)) == 0
    assert stale_sampler._lag(healthy_batch(update=1, policy_version=9)) == 1


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({}, FINDING),
        ({"policy_version": 0, "sampler_versions": None}, NOT_APPLICABLE),
        ({"top_k": 5}, NOT_APPLICABLE),
        ({"plain_logprobs": None}, NO_DATA),
    ],
)
def test_without_versions_older_weights_are_told_by_their_looks(changes, state):
    verdict = stale_sampler.check_batch(behind(0, 0.1, **changes))
    assert verdict.state is state
    if state is FINDING:
        assert verdict.confidence is Confidence.LIKELY


def test_other_causes_of_a_mismatch_are_not_called_stale():
    batch = behind(0, 0.1)
    sampler_BT = batch.arrays["sampler_logprobs"]
    hot = edit_batch(batch, plain_raw_logprobs=sampler_BT)
    elsewhere = edit_batch(batch, sampler_logprobs=np.roll(sampler_BT, 1, axis=0))
    trainer_off = edit_batch(batch, plain_logprobs=sampler_BT)
    assert {stale_sampler.check_batch(one).state for one in (hot, elsewhere, trainer_off)} == {NOT_APPLICABLE}


@pytest.mark.parametrize(
    ("first", "last", "state"),
    [(1e-6, 5e-3, FINDING), (1e-6, 9e-4, HEALTHY), (5e-3, 5e-3, HEALTHY), (1e-3, 5e-3, HEALTHY)],
)
def test_a_mismatch_that_grows_from_nothing_is_a_curve_finding(first, last, state):
    mismatch_N = np.full(60, last)
    mismatch_N[0] = first
    assert stale_sampler.check_curves(healthy_curves(mismatch_mean=mismatch_N)).state is state


# ---------------------------------------------------------------- autocast_mismatch


def test_rounding_to_bfloat16_is_to_the_nearest_of_8_bits():
    assert autocast_mismatch._to_bfloat16(np.array([-1.0039, -1.006, -0.1, 0.0])).tolist() == [
        -1.0,
        -1.0078125,
        -0.10009765625,
        0.0,
    ]


@pytest.mark.parametrize("kind", [np.float16, "bfloat16"])
@pytest.mark.parametrize("side", ["old_logprobs", "new_logprobs", "ref_logprobs"])
def test_one_rounded_side_is_proven(kind, side):
    batch = healthy_batch()
    values = batch.arrays[side]
    rounded = autocast_mismatch._to_bfloat16(values) if kind == "bfloat16" else values.astype(np.float16)
    verdict = autocast_mismatch.check_batch(edit_batch(batch, **{side: rounded}))
    assert (verdict.state, verdict.confidence, verdict.severity) == (FINDING, Confidence.PROVEN, None)
    assert side in verdict.message
    assert ("bfloat16" in verdict.message) is (kind == "bfloat16")


def test_an_engine_that_reports_rounded_numbers_is_waste_unless_they_are_used():
    batch = healthy_batch()
    rounded_BT = autocast_mismatch._to_bfloat16(batch.arrays["sampler_logprobs"])
    logged = autocast_mismatch.check_batch(edit_batch(batch, sampler_logprobs=rounded_BT))
    used = autocast_mismatch.check_batch(edit_batch(batch, sampler_logprobs=rounded_BT, correction="token"))
    assert (logged.severity, used.severity) == (Severity.WASTEFUL, None)


def test_all_sides_rounded_alike_have_the_same_precision():
    batch = healthy_batch()
    rounded = {name: autocast_mismatch._to_bfloat16(batch.arrays[name]) for name in autocast_mismatch.SIDES}
    assert autocast_mismatch.check_batch(edit_batch(batch, **rounded)).state is HEALTHY


def test_one_side_in_float32_and_the_other_in_float64_are_both_exact():
    batch = healthy_batch()
    single_BT = batch.arrays["old_logprobs"].astype(np.float32)
    assert autocast_mismatch.check_batch(edit_batch(batch, old_logprobs=single_BT)).state is HEALTHY
