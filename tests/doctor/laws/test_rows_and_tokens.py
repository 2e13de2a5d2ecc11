"""The laws of identity, scoring and support look at every row: one bad row of many is found and named."""

import numpy as np
import pytest

from assay.doctor.examples import edit_batch, healthy_batch
from assay.doctor.laws import identity, scoring, support
from assay.verdict import State

ROWS = range(16)


def with_row(batch, name, row, change):
    values_BT = batch.arrays[name].copy()
    values_BT[row] = change(values_BT[row])
    return edit_batch(batch, **{name: values_BT})


@pytest.mark.parametrize("row", ROWS)
def test_one_row_with_another_token_is_found(row):
    batch = with_row(healthy_batch(), "tokens", row, lambda tokens_T: np.where(np.arange(12) == 1, 77, tokens_T))
    verdict = identity.check_batch(batch)
    assert verdict.state is State.FINDING
    assert f"row {row}" in verdict.message
    assert "77" in str(verdict.facts[0])


@pytest.mark.parametrize("row", ROWS)
def test_a_prompt_that_lost_its_first_token_is_found(row):
    batch = healthy_batch()
    begin = int(np.argmax(batch.arrays["attention_mask"][row]))
    attention_BS = batch.arrays["attention_mask"].copy()
    attention_BS[row, begin] = False
    assert identity.check_batch(edit_batch(batch, attention_mask=attention_BS)).facts[0].value == row


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("name", ["new_logprobs", "ref_logprobs"])
def test_one_row_shifted_by_one_is_found(row, name):
    verdict = scoring.check_batch(with_row(healthy_batch(), name, row, lambda values_T: np.roll(values_T, 1)))
    assert verdict.state is State.FINDING
    assert f"row {row}" in verdict.message


def test_log_probs_at_another_temperature_are_found_in_all_rows():
    batch = healthy_batch()
    assert (
        "all 130 tokens"
        in scoring.check_batch(edit_batch(batch, new_logprobs=batch.arrays["new_logprobs"] * 0.8)).message
    )


def test_what_16_bits_leave_is_not_a_finding():
    batch = healthy_batch()
    noise_BT = np.random.default_rng(0).normal(0, 0.05, batch.arrays["mask"].shape)
    near = edit_batch(batch, dtype="bfloat16", new_logprobs=batch.arrays["new_logprobs"] + noise_BT, old_logprobs=None)
    assert scoring.check_batch(near).state is State.HEALTHY


@pytest.mark.parametrize("row", ROWS)
def test_the_last_token_of_one_row_that_is_masked_is_found(row):
    batch = healthy_batch()
    last = int(batch.arrays["lengths"][row]) - 1
    verdict = support.check_batch(with_row(batch, "mask", row, lambda mask_T: mask_T & (np.arange(12) != last)))
    assert verdict.state is State.FINDING
    assert (verdict.facts[0].row, verdict.facts[0].token) == (row, last)


def test_rows_at_the_limit_may_be_left_out_only_where_a_setting_says_so():
    batch = healthy_batch()
    without = edit_batch(batch, mask=batch.arrays["mask"] & batch.arrays["finished"][:, None])
    assert "the rows that the token limit cut off" in support.check_batch(without).message
    assert support.check_batch(edit_batch(without, mask_truncated=True)).state is State.HEALTHY


def test_a_mask_that_runs_into_the_padding_is_found():
    batch = healthy_batch()
    verdict = support.check_batch(edit_batch(batch, mask=np.ones_like(batch.arrays["mask"])))
    assert "were not sampled" in verdict.message
