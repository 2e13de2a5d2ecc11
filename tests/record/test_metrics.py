"""StepRecord -> metrics and timings, with numbers worked out by hand."""

import json
import math
from dataclasses import replace

import pytest
from fixtures.fake_records import fake_group, fake_record, fake_update

from assay.record.metrics import METRICS, metrics_row, timings_row
from assay.types import NO_SIGNAL, Score, Update


def test_metrics_of_a_hand_worked_step():
    first = fake_update(
        tokens=4,
        ratio_sum=4.0,
        ratio_square_sum=4.0,
        entropy_sum=4.0,
        mismatch_max=0.5,
        surprise_sum=-2.0,
        surprise_square_sum=2.0,  # a variance of 2 / 4 - 0.25
    )
    second = fake_update(
        loss=-0.5,
        policy_loss=0.75,
        kl_loss=0.375,
        entropy_loss=-0.125,
        learning_rate=0.003,
        gradient_norm=4.0,
        update_norm=1.5,
        tensors_changed=2,
        tokens=12,
        ratio_sum=20.0,
        ratio_square_sum=40.0,
        ratio_min=0.5,
        ratio_max=2.5,
        clipped_tokens=4,
        old_kl_sum=1.6,
        ref_kl_sum=1.0,
        entropy_sum=4.0,
        mismatch_sum=1.0,
        mismatch_max=0.25,
        correction_sum=10.0,
        correction_square_sum=10.0,
    )
    broken = fake_update(applied=False, skipped="the loss is nan", loss=math.nan, tokens=99, ratio_max=math.inf)
    row = metrics_row(fake_record(updates=(first, second, broken), refill_rounds=2, groups_without_signal=1))
    assert row == {
        "step": 1,
        "policy_version": 7,
        "groups": 2,
        "groups_without_signal": 1,
        "zero_variance_share": 1 / 2,
        "refill_rounds": 2,
        "rollouts_scored": 3,
        "rollouts_unscored": 1,
        "reward_mean": pytest.approx(4 / 3),
        "reward_std": pytest.approx(math.sqrt(7 / 3)),  # 1, 0, 3: squares of 1/3, 4/3, 5/3 sum to 42/9, over 2
        "reward_min": 0.0,
        "reward_max": 3.0,
        "length_mean": 2.5,
        "length_max": 3,
        "truncated_share": 0.5,
        "tokens_generated": 10,
        "tokens_in_loss": 7,
        "tokens_trained": 16,
        "updates_applied": 2,
        "updates_without_signal": 0,
        "updates_skipped": 1,
        "loss": 0.0,
        "policy_loss": 0.5,
        "kl_loss": 0.25,
        "entropy_loss": 0.0,
        "learning_rate": 0.003,
        "gradient_norm": 3.0,
        "gradient_norm_max": 4.0,
        "update_norm": 1.0,
        "tensors_changed_share": 0.75,
        "ratio_mean": 1.5,  # 24 / 16, where the mean of the two means would be 4 / 3
        "ratio_std": pytest.approx(math.sqrt(44 / 16 - 1.5**2)),
        "ratio_min": 0.5,
        "ratio_max": 2.5,
        "first_ratio_max_deviation": 0.0,
        "clipped_share": 0.25,
        "old_kl": 0.1,
        "ref_kl": None,
        "entropy": 0.5,
        "surprise_mean": -0.5,
        "surprise_error": 0.25,
        "mismatch_mean": 0.1,
        "mismatch_max": 0.5,
        "correction_mean": 1.0,
        "correction_ess": 1.0,
        "reward_exact_mean": pytest.approx(2 / 3),
        "reward_exact_std": pytest.approx(math.sqrt(1 / 3)),
        "reward_format_mean": 2.0,
        "reward_format_std": None,
    }
    assert list(row)[: len(METRICS)] == list(METRICS)


def test_the_reference_kl_is_a_number_only_with_a_reference():
    record = fake_record()
    assert metrics_row(replace(record, ref_logprobs=record.old_logprobs))["ref_kl"] == pytest.approx(0.1)


def test_the_first_ratio_is_judged_on_the_worse_side():
    low, high = fake_update(ratio_min=0.25, ratio_max=1.5), fake_update(ratio_min=0.875, ratio_max=1.5)
    assert metrics_row(fake_record(updates=(low, high)))["first_ratio_max_deviation"] == 0.75
    assert metrics_row(fake_record(updates=(high, low)))["first_ratio_max_deviation"] == 0.5


def test_unequal_correction_weights_lower_the_effective_sample_size():
    # weights 2, 0, 0, 0: sum 2, squares 4, so 2 * 2 / (4 * 4)
    row = metrics_row(fake_record(updates=(fake_update(tokens=4, correction_sum=2.0, correction_square_sum=4.0),)))
    assert (row["correction_mean"], row["correction_ess"]) == (0.5, 0.25)


def test_an_update_without_signal_is_measured_but_did_not_move_anything():
    idle = fake_update(
        applied=False, skipped=NO_SIGNAL, loss=0.0, update_norm=0.0, tensors_changed=0, learning_rate=9.0
    )
    row = metrics_row(fake_record(updates=(fake_update(), idle)))
    assert (row["updates_applied"], row["updates_without_signal"], row["updates_skipped"]) == (1, 1, 0)
    assert (row["loss"], row["update_norm"], row["tensors_changed_share"], row["learning_rate"]) == (
        0.25,
        0.5,
        1.0,
        0.001,
    )
    assert (row["tokens_trained"], row["entropy"]) == (6, 0.5)


def test_what_does_not_exist_is_null_and_never_zero():
    unscored = fake_record(groups=(fake_group(0, [Score.failed("x"), Score.failed("y")]),), updates=())
    row = metrics_row(unscored)
    gone = ["reward_mean", "reward_std", "reward_max", "loss", "learning_rate", "ratio_mean", "ratio_std", "ratio_min"]
    gone += ["first_ratio_max_deviation", "clipped_share", "entropy", "mismatch_max", "correction_ess", "update_norm"]
    assert {row[name] for name in gone} == {None}
    assert (row["rollouts_unscored"], row["tokens_trained"]) == (2, 0)
    empty = metrics_row(fake_record(groups=(), updates=(), groups_without_signal=0))
    assert (empty["length_mean"], empty["length_max"], empty["zero_variance_share"]) == (None, None, None)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e308])
def test_no_number_in_a_row_is_ever_infinite_or_nan(value):
    broken = {
        name: value
        for name in Update.__slots__
        if name not in ("applied", "skipped", "tokens", "tensors", "tensors_changed", "clipped_tokens")
    }
    group = fake_group(0, [Score.of({"a": value}), Score.of({"a": -value}), Score.of({"a": 1.0})])
    record = fake_record(groups=(group,), updates=(fake_update(), fake_update(**broken)), seconds={"loss": value})
    record = replace(record, ref_logprobs=record.old_logprobs)
    for row in (metrics_row(record), timings_row(record)):
        json.dumps(row, allow_nan=False)
    if not math.isfinite(value):
        assert metrics_row(record)["ratio_max"] is None
        assert metrics_row(record)["reward_max"] is None


def test_timings_of_a_hand_worked_step():
    assert timings_row(fake_record()) == {
        "step": 1,
        "seconds": 2.0,
        "tokens_per_second": 5.0,
        "seconds_generated": 1.5,
        "seconds_loss": 0.5,
        "memory_bytes_generated": 1000,
    }
