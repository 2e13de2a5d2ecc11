"""The laws of identity, scoring and support look at every row: one bad row of many is found and named."""

import numpy as np
import pytest

from assay.doctor.examples import edit_batch, healthy_batch, scored_behind
from assay.doctor.illnesses.alignment import wrong_context
from assay.doctor.laws import identity, scoring, support
from assay.verdict import Confidence, Missing, State

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


@pytest.mark.parametrize("dtype", ["bfloat16", None])
def test_rows_that_agree_by_chance_to_the_last_bit_do_not_make_16_bits_exact(dtype):
    batch = healthy_batch()
    noise_BT = np.random.default_rng(0).normal(0, 0.03, batch.arrays["mask"].shape)
    noise_BT[:4] = 0.0
    near = edit_batch(batch, dtype=dtype, new_logprobs=batch.arrays["new_logprobs"] + noise_BT, old_logprobs=None)
    assert scoring.check_batch(near).state is State.HEALTHY


def test_answers_that_are_certain_do_not_show_that_weights_are_the_same():
    batch = healthy_batch()
    new_BT, plain_BT = batch.arrays["new_logprobs"] - 0.3, batch.arrays["plain_logprobs"].copy()
    new_BT[:3], plain_BT[:3] = -2e-6, -1e-6
    later = edit_batch(
        batch, update=1, new_logprobs=new_BT, plain_logprobs=plain_BT, old_logprobs=None, ref_logprobs=None
    )
    with pytest.raises(Missing):
        scoring.check_batch(later)


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


def in_rows(batch, name, rows, values_BT):
    mixed_BT = batch.arrays[name].copy()
    mixed_BT[rows] = values_BT[rows]
    return edit_batch(batch, **{name: mixed_BT})


def test_a_last_chunk_without_the_temperature_is_named_with_its_rows():
    batch = healthy_batch()
    raw_BT = batch.arrays["plain_logprobs"] * 1.5 - 0.1
    batch = in_rows(
        edit_batch(batch, temperature=0.6, plain_raw_logprobs=raw_BT), "new_logprobs", range(11, 16), raw_BT
    )
    verdict = scoring.check_batch(batch)
    assert "all tokens of the last 5 of 16 rows" in verdict.message
    assert "they are those of temperature 1, and sampling was at 0.6" in verdict.message
    assert verdict.confidence is Confidence.PROVEN


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda plain_BT: np.roll(plain_BT, 1, axis=1), "those of the token before: shifted by one"),
        (lambda plain_BT: np.roll(plain_BT, -1, axis=1), "those of the token behind: shifted by one"),
        (lambda plain_BT: plain_BT / 0.6, "divided by the temperature once more, behind the softmax"),
        (lambda plain_BT: -plain_BT, "the negative of them"),
        (lambda plain_BT: np.roll(plain_BT, 3, axis=0), "those of another row"),
    ],
)
def test_the_way_of_scoring_that_gives_the_numbers_is_named(change, words):
    batch = edit_batch(healthy_batch(), temperature=0.6, lengths=np.full(16, 12), mask=np.ones((16, 12), dtype=bool))
    plain_BT = np.random.default_rng(1).normal(-2.0, 0.5, (16, 12))
    same = dict.fromkeys(("new_logprobs", "old_logprobs", "plain_logprobs"), plain_BT)
    batch = edit_batch(batch, **same, plain_raw_logprobs=None, ref_logprobs=None)
    changed_BT = change(plain_BT)
    assert words in scoring.check_batch(in_rows(batch, "new_logprobs", [2, 7], changed_BT)).message
    assert scoring.check_batch(batch).state is State.HEALTHY


def test_a_way_of_scoring_that_nobody_listed_gets_no_name():
    noise_BT = np.random.default_rng(0).normal(0, 0.3, (16, 12))
    batch = edit_batch(healthy_batch(), new_logprobs=healthy_batch().arrays["new_logprobs"] + noise_BT)
    assert ": they are" not in scoring.check_batch(batch).message


def beside_the_sampler(rows, **more):
    """Nobody asked the model; the rows are scored at another temperature than the sampler's."""
    batch = healthy_batch()
    kept = ("tokens", "mask", "lengths", "new_logprobs", "sampler_logprobs")
    same_BT = batch.arrays["new_logprobs"]
    batch = edit_batch(batch.only(kept), sampler_logprobs=same_BT, **more)
    return in_rows(batch, "new_logprobs", rows, same_BT * 0.7)


def test_without_a_model_rows_of_one_chunk_that_leave_the_sampler_are_likely_scored_otherwise():
    verdict = scoring.check_batch(beside_the_sampler(range(11, 16)))
    assert "the sampler's own in 11 of 16 rows" in verdict.message
    assert "the last 5 of 16 rows" in verdict.message
    assert verdict.confidence is Confidence.LIKELY


def test_rows_here_and_there_may_have_older_weights():
    assert scoring.check_batch(beside_the_sampler([2, 5, 11])).confidence is Confidence.POSSIBLE
    for quiet in (
        beside_the_sampler(range(16)),  # another engine
        beside_the_sampler(range(11, 16), update=1),
        beside_the_sampler(range(11, 16), dtype="bfloat16"),
        beside_the_sampler(range(11, 16), sampler_versions=np.arange(16) // 11),
    ):
        with pytest.raises(Missing):
            scoring.check_batch(quiet)


def test_plain_log_probs_of_later_weights_prove_nothing_but_agreeing_rows_do():
    batch = edit_batch(healthy_batch(), sampler_versions=None, ref_logprobs=None)
    off_BT = batch.arrays["new_logprobs"] - 0.3
    with pytest.raises(Missing):
        scoring.check_batch(in_rows(batch, "new_logprobs", range(16), off_BT))
    assert "rows 3, 4" in scoring.check_batch(in_rows(batch, "new_logprobs", [3, 4], off_BT)).message


def test_rows_that_attend_to_those_before_them_in_a_packed_line_are_named():
    batch = edit_batch(healthy_batch(), packed_behind=np.arange(16) % 3)
    behind = np.flatnonzero(np.arange(16) % 3 > 0)
    verdict = scoring.check_batch(in_rows(batch, "new_logprobs", behind, batch.arrays["new_logprobs"] - 0.2))
    assert "all rows that stand behind another one in their packed line" in verdict.message
    assert "the others attend to the rows before them" in verdict.message


def test_a_prompt_whose_rest_is_another_prompt_is_cut():
    """Row 0 is given the last three tokens of its prompt, and these are the whole prompt of another row."""
    batch = healthy_batch()
    prompts_BP, mask_BP = (batch.arrays[name].copy() for name in ("prompt_tokens", "prompt_mask"))
    prompts_BP[4:8], mask_BP[4:8] = prompts_BP[0], False
    mask_BP[0:4], mask_BP[4:8, -3:] = True, True
    shown_BP = mask_BP.copy()
    shown_BP[0:4, :-3] = False
    whole = {"prompt_tokens": prompts_BP, "prompt_mask": mask_BP}
    cut = edit_batch(batch, **scored_behind(batch, np.where(shown_BP, prompts_BP, 0), shown_BP) | whole)
    assert "the prompt is cut to 3 of its 6 tokens" in wrong_context.check_batch(cut).message
    moved = scored_behind(batch, *(np.roll(batch.arrays[name], 4, axis=0) for name in ("prompt_tokens", "prompt_mask")))
    assert "another row's prompt" in wrong_context.check_batch(edit_batch(batch, **moved)).message
