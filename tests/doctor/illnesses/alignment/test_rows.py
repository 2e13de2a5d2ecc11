"""Prompts that lost their end, log-probs of other tokens, rows of other samples."""

import numpy as np
import pytest

from assay.doctor.evidence import Batch
from assay.doctor.examples import B, edit_batch, healthy_batch
from assay.doctor.illnesses.alignment import prompt_truncated, row_provenance, sampled_token_logp
from assay.verdict import Confidence, Missing, State

# ---------------------------------------------------------------- prompt_truncated


def prompts(*rows):
    width = max(map(len, rows))
    return Batch.of(
        {
            "prompt_tokens": [[0] * (width - len(row)) + list(row) for row in rows],
            "prompt_mask": [[0] * (width - len(row)) + [1] * len(row) for row in rows],
        }
    )


def test_two_prompts_of_the_greatest_length_without_the_common_ending_are_likely_cut():
    verdict = prompt_truncated.check_batch(prompts([8, 9], [5, 8, 9], [5, 6, 8, 9], [1, 2, 3, 4], [4, 3, 2, 1]))
    assert (verdict.state, verdict.confidence) == (State.FINDING, Confidence.LIKELY)
    assert verdict.facts[0].value == 2
    assert verdict.facts[0].row == 3


def test_one_long_prompt_that_ends_otherwise_is_merely_possible_beside_a_question_mark():
    one = prompt_truncated.check_batch(prompts([5, 9], [5, 6, 9], [5, 6, 7, 9], [1, 2, 3, 4]))
    prefix = prompt_truncated.check_batch(prompts([5, 8, 9], [6, 7, 8, 9], [1, 8, 9], [1, 2, 3, 4]))
    assert one.confidence is Confidence.POSSIBLE
    assert prefix.confidence is Confidence.LIKELY


def test_a_stranger_that_is_not_the_longest_was_not_cut():
    verdict = prompt_truncated.check_batch(prompts([5, 9], [5, 6, 9], [5, 6, 8], [5, 6, 7, 9]))
    assert verdict.state is State.NOT_APPLICABLE


@pytest.mark.parametrize(("length", "state"), [(16, State.FINDING), (15, State.NOT_APPLICABLE)])
def test_prompts_of_one_length_with_other_endings_are_possible_only_where_they_are_long(length, state):
    rows = [[*range(1, length), 20 + number] for number in range(4)]
    verdict = prompt_truncated.check_batch(prompts(*rows))
    assert verdict.state is state
    if state is State.FINDING:
        assert verdict.confidence is Confidence.POSSIBLE
    alike = [[20 + number, *range(1, length)] for number in range(4)]
    assert prompt_truncated.check_batch(prompts(*alike)).state is State.HEALTHY


def test_one_prompt_says_nothing():
    assert prompt_truncated.check_batch(prompts([5, 9], [5, 9])).state is State.NOT_ENOUGH_DATA


# ---------------------------------------------------------------- sampled_token_logp


def sampled(sampler_N, trainer_N, **rest):
    """One row; half of its tokens are equal in both."""
    equal = [-0.1] * len(sampler_N)
    return Batch.of(
        {
            "tokens": [[7] * 2 * len(sampler_N)],
            "mask": [[1] * 2 * len(sampler_N)],
            "sampler_logprobs": [[*sampler_N, *equal]],
            "old_logprobs": [[*trainer_N, *equal]],
            **rest,
        }
    )


TRAINER = np.log([0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3])
LIKELIEST = np.log([0.6, 0.5, 0.7, 0.4, 0.55, 0.45, 0.6, 0.5])


def test_log_probs_of_the_likeliest_token_are_likely_by_old_and_proven_by_the_plain_ones():
    batch = sampled(LIKELIEST, TRAINER)
    verdict = sampled_token_logp.check_batch(batch)
    assert (verdict.state, verdict.confidence) == (State.FINDING, Confidence.LIKELY)
    assert verdict.message.startswith("the sampler's log-probs of 8 of 16 tokens")
    plain = edit_batch(batch, plain_logprobs=batch.arrays["old_logprobs"])
    assert sampled_token_logp.check_batch(plain).confidence is Confidence.PROVEN


def test_an_entropy_that_the_likeliest_token_cannot_have_takes_the_proof_away():
    batch = sampled(LIKELIEST, TRAINER)
    plain = edit_batch(batch, plain_logprobs=batch.arrays["old_logprobs"], entropy=np.full((1, 16), 0.3))
    assert sampled_token_logp.check_batch(plain).confidence is Confidence.LIKELY  # log 0.6 = -0.51 < -0.3


def test_seven_tokens_are_no_pattern():
    assert sampled_token_logp.check_batch(sampled(LIKELIEST[:7], TRAINER[:7])).state is State.HEALTHY


@pytest.mark.parametrize(
    "sampler_N",
    [
        TRAINER - np.log(0.7),  # truncated sampling: all by the same amount
        TRAINER / 0.7,  # another temperature
        TRAINER + np.array([1, -1, 1, -1, 1, -1, 1, -1]),  # noise of both signs
        np.log([0.6, 0.5, 0.7, 0.4, 0.55, 0.45, 0.1, 0.1]),  # two are less likely than what was sampled
        np.log([0.995] * 8),  # two tokens cannot have 0.995 and 0.3
    ],
    ids=["truncated", "temperature", "noise", "uneven", "impossible"],
)
def test_other_differences_are_left_to_other_illnesses(sampler_N):
    assert sampled_token_logp.check_batch(sampled(sampler_N, TRAINER)).state is State.HEALTHY


def test_bfloat16_rounding_is_no_other_token():
    batch = sampled(TRAINER + 0.4, TRAINER, dtype="bfloat16")
    assert sampled_token_logp.check_batch(batch).facts[0].value == 0


# ---------------------------------------------------------------- row_provenance


@pytest.mark.parametrize("name", ["old_logprobs", "new_logprobs", "sampler_logprobs", "ref_logprobs"])
def test_rows_of_log_probs_that_belong_to_others_are_named(name):
    batch = healthy_batch()
    verdict = row_provenance.check_batch(edit_batch(batch, **{name: np.roll(batch.arrays[name], 1, axis=0)}))
    assert (verdict.state, verdict.confidence) == (State.FINDING, Confidence.PROVEN)
    assert verdict.message.startswith(f"{name} of ")
    assert f"row 0 holds those of row {B - 1}" in verdict.message


def test_without_plain_log_probs_the_sampler_is_the_witness():
    batch = healthy_batch(update=1, plain_logprobs=None, plain_ref_logprobs=None)
    moved = edit_batch(batch, old_logprobs=np.roll(batch.arrays["old_logprobs"], 1, axis=0))
    assert "as sampler_logprobs show" in row_provenance.check_batch(moved).message
    assert row_provenance.check_batch(batch).state is State.HEALTHY


def test_two_rows_that_changed_places_are_enough_and_one_copied_row_is_not():
    batch = healthy_batch()
    old_BT = batch.arrays["old_logprobs"]
    order = np.arange(B)
    order[[3, 9]] = order[[9, 3]]  # both of the full length
    assert row_provenance.check_batch(edit_batch(batch, old_logprobs=old_BT[order])).facts[1].value == 2
    copied_BT = old_BT.copy()
    copied_BT[3] = old_BT[9]
    assert row_provenance.check_batch(edit_batch(batch, old_logprobs=copied_BT)).state is State.HEALTHY


def test_rows_that_go_wrong_late_still_fit_themselves_best():
    plain_BT = -np.random.default_rng(0).exponential(size=(4, 200))
    old_BT = np.where(np.arange(200) < row_provenance.MOST_COMPARED, plain_BT, plain_BT - 1.0)
    batch = Batch.of({"mask": np.ones((4, 200)), "plain_logprobs": plain_BT, "old_logprobs": old_BT})
    assert row_provenance.check_batch(batch).state is State.HEALTHY


@pytest.mark.parametrize("spread", [0.03, 1.0])
def test_noise_is_not_another_row(spread):
    batch = healthy_batch(dtype="bfloat16")
    noise_BT = spread * np.random.default_rng(0).standard_normal(batch.arrays["mask"].shape)
    noisy = edit_batch(batch, old_logprobs=batch.arrays["old_logprobs"] + noise_BT)
    assert row_provenance.check_batch(noisy).state is State.HEALTHY


def test_equal_rows_are_not_mistaken_for_each_other():
    batch = healthy_batch()
    same = {name: np.repeat(batch.arrays[name][:1], B, axis=0) for name in ("old_logprobs", "plain_logprobs", "mask")}
    assert (
        row_provenance.check_batch(edit_batch(batch, new_logprobs=same["old_logprobs"], **same)).state is State.HEALTHY
    )


def advantages(order=None, rewards=(3.0, 1.0, 0.0, 2.0, 5.0, 1.0, 1.0, 0.0), **rest):
    """Two groups of four, centred and not scaled: the means are 1.5 and 1.75."""
    expected = [1.5, -0.5, -1.5, 0.5, 3.25, -0.75, -0.75, -1.75]
    given = expected if order is None else [expected[row] for row in order]
    values = {"rewards": rewards, "advantages": given, "group_ids": [0, 0, 0, 0, 1, 1, 1, 1], "std": "none"}
    return Batch.of(values | rest)


@pytest.mark.parametrize(
    ("order", "words"),
    [
        ([7, 0, 1, 2, 3, 4, 5, 6], "shifted by 1 of 8 rows"),
        ([3, 0, 1, 2, 7, 4, 5, 6], "shifted by 1 within each group"),
        ([7, 6, 5, 4, 3, 2, 1, 0], "in reverse"),
        ([0, 4, 1, 5, 2, 6, 3, 7], "in the order of another layout"),
    ],
)
def test_advantages_of_other_rows_are_recognised_by_their_order(order, words):
    verdict = row_provenance.check_batch(advantages(order))
    assert verdict.state is State.FINDING
    assert words in verdict.message


def test_two_rows_that_changed_places_are_only_likely():
    verdict = row_provenance.check_batch(advantages([1, 0, 2, 3, 4, 5, 6, 7]))
    assert (verdict.state, verdict.confidence) == (State.FINDING, Confidence.LIKELY)


def test_advantages_by_another_formula_are_not_taken_for_other_rows():
    assert row_provenance.check_batch(advantages()).state is State.HEALTHY
    assert row_provenance.check_batch(advantages(std="sample")).state is State.HEALTHY


def test_advantages_of_unscored_rows_are_0_and_no_sign_of_another_order():
    batch = advantages(rewards=(3.0, 1.0, 0.0, 2.0, np.nan, np.nan, np.nan, np.nan))
    zeros = edit_batch(batch, advantages=[1.5, -0.5, -1.5, 0.5, 0.0, 0.0, 0.0, 0.0])
    assert row_provenance.check_batch(zeros).state is State.HEALTHY


def test_nothing_to_compare_is_not_healthy():
    with pytest.raises(Missing, match="plain_logprobs"):
        row_provenance.check_batch(Batch.of({"mask": [[1]], "old_logprobs": [[-1.0]]}))
