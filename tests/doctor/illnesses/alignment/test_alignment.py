"""Numbers of the alignment illnesses that the generic tests do not see: small rows worked by hand, deliberate variants.

Shape legend: B completions, T completion tokens, P prompt tokens, S tokens given to the model.
"""

import numpy as np
import pytest

from assay.doctor.diagnosis import diagnose
from assay.doctor.evidence import Batch, Evidence
from assay.doctor.examples import B, T, edit_batch, healthy_batch
from assay.doctor.facts.context import last_place
from assay.doctor.illnesses.alignment import attention_mask, position_ids, retokenise, shift, wrong_context
from assay.verdict import Confidence, Missing, State

MINE = [one.ILLNESS for one in (shift, retokenise, wrong_context, position_ids, attention_mask)]
RANDOM = np.random.default_rng(0)
TRUTH = -RANDOM.exponential(1.0, size=(6, 8))


def shifted(by, **values):
    """old[t] = truth[t + by]; what comes from beyond the row is made up."""
    old_BT = -np.random.default_rng(1).exponential(1.0, size=TRUTH.shape)
    if by >= 0:
        old_BT[:, : 8 - by] = TRUTH[:, by:]
    else:
        old_BT[:, -by:] = TRUTH[:, :by]
    return Batch.of({"mask": np.ones(TRUTH.shape), "old_logprobs": old_BT, "dtype": "float32", **values})


@pytest.mark.parametrize(("by", "words"), [(1, "1 token later"), (-1, "1 token earlier"), (2, "2 tokens later")])
def test_a_shift_is_measured(by, words):
    proven = shift.check_batch(shifted(by, plain_logprobs=TRUTH))
    assert (proven.state, proven.confidence) == (State.FINDING, Confidence.PROVEN)
    assert words in proven.message
    likely = shift.check_batch(shifted(by, sampler_logprobs=TRUTH))
    assert (likely.state, likely.confidence) == (State.FINDING, Confidence.LIKELY)


def test_log_probs_in_place_and_log_probs_with_noise_are_not_shifted():
    assert shift.check_batch(shifted(0, plain_logprobs=TRUTH)).state is State.HEALTHY
    noisy = shifted(0, plain_logprobs=TRUTH + np.random.default_rng(2).normal(0.0, 0.5, size=TRUTH.shape))
    assert shift.check_batch(noisy).state is State.HEALTHY
    shifted_and_noisy = shifted(1, plain_logprobs=TRUTH + np.random.default_rng(2).normal(0.0, 0.3, size=TRUTH.shape))
    assert shift.check_batch(shifted_and_noisy).state is State.HEALTHY  # only four times nearer than in place


def test_rows_that_are_all_alike_show_no_shift():
    flat_BT = np.full((6, 8), -0.7)
    batch = Batch.of({"mask": np.ones((6, 8)), "old_logprobs": flat_BT, "plain_logprobs": flat_BT})
    assert shift.check_batch(batch).state is State.HEALTHY


def test_a_lag_that_fits_only_somewhat_better_is_no_shift():
    wave_BT = 0.02 * np.tile([1.0, -1.0], (6, 4))
    batch = Batch.of({"mask": np.ones((6, 8)), "old_logprobs": -0.69 - wave_BT, "plain_logprobs": -0.7 + wave_BT})
    assert shift.check_batch(batch).state is State.HEALTHY  # 0.01 off one token later, 0.04 in place


def test_short_rows_cannot_show_a_shift():
    short_BT = -np.random.default_rng(5).exponential(1.0, size=(30, 3))
    batch = Batch.of({"mask": np.ones((30, 3)), "old_logprobs": short_BT, "plain_logprobs": short_BT})
    assert shift.check_batch(batch).state is State.NOT_ENOUGH_DATA


def test_unrelated_log_probs_far_below_the_models_are_likely_unshifted_logits():
    unrelated_BT = -np.random.default_rng(3).exponential(1.0, size=TRUTH.shape)
    for lower, state in ((1.5, State.FINDING), (0.5, State.HEALTHY)):
        batch = Batch.of({"mask": np.ones(TRUTH.shape), "old_logprobs": unrelated_BT - lower, "plain_logprobs": TRUTH})
        assert shift.check_batch(batch).state is state, lower
    related = shifted(0, old_logprobs=TRUTH - 1.5, plain_logprobs=TRUTH)  # far below, but of the same tokens
    assert shift.check_batch(related).state is State.HEALTHY


def test_a_shifted_engine_is_named():
    batch = shifted(0, plain_logprobs=TRUTH, sampler_logprobs=np.roll(TRUTH, -1, axis=1))
    assert shift.check_batch(batch).message.startswith("the sampler's log-probs are shifted")


def test_every_other_id_is_counted_and_placed():
    batch = healthy_batch()
    sampled_BT = batch.arrays["tokens"].copy()
    sampled_BT[2, 0] += 1
    sampled_BT[5, 1:3] += 1
    verdict = retokenise.check_batch(edit_batch(batch, sampled_tokens=sampled_BT))
    assert verdict.message.startswith(f"2 of {B} rows")
    assert [fact.value for fact in verdict.facts[:2]] == [2, 3]
    assert (verdict.facts[1].row, verdict.facts[1].token) == (2, 0)


def test_a_forced_token_may_differ_from_the_sampled_one():
    batch = healthy_batch()
    sampled_BT, forced_BT = batch.arrays["tokens"].copy(), np.zeros((B, T), dtype=bool)
    sampled_BT[2, 0] += 1
    forced_BT[2, 0] = True
    assert retokenise.check_batch(edit_batch(batch, sampled_tokens=sampled_BT, forced=forced_BT)).state is State.HEALTHY


PROMPTS = [[11, 12, 13], [21, 22, 23]]
ANSWERS = [[31, 32, 1], [41, 42, 43]]


def given(rows, attention=None, **values):
    """Two rows as the model was given them; by default all of it is attended to."""
    width = max(map(len, rows))
    return Batch.of(
        {
            "prompt_tokens": PROMPTS,
            "prompt_mask": np.ones((2, 3)),
            "tokens": ANSWERS,
            "mask": np.ones((2, 3)),
            "lengths": [3, 3],
            "input_ids": [[*row, *[0] * (width - len(row))] for row in rows],
            "attention_mask": attention or [[1] * len(row) + [0] * (width - len(row)) for row in rows],
            "pad_id": 0,
            **values,
        }
    )


RIGHT = [PROMPTS[0] + ANSWERS[0], PROMPTS[1] + ANSWERS[1]]


@pytest.mark.parametrize(
    "rows",
    [
        RIGHT,
        [[0, 0, *RIGHT[0]], RIGHT[1]],  # padding on the left
        [RIGHT[0][:-1], RIGHT[1][:-1]],  # the last token predicts nothing
        [[*PROMPTS[0], 0, 0, *ANSWERS[0]], RIGHT[1]],  # prompts padded on the right
    ],
)
def test_prompt_and_completion_are_found_wherever_they_stand(rows):
    assert wrong_context.check_batch(given(rows)).state is State.HEALTHY


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (ANSWERS[0], "the prompt is missing"),
        ([*PROMPTS[0][1:], *ANSWERS[0]], "the prompt is cut to 2 of its 3 tokens"),
        ([*PROMPTS[1], *ANSWERS[0]], "behind another row's prompt"),
        ([*PROMPTS[0], *ANSWERS[1]], "followed by another row's completion"),
        ([*PROMPTS[0], 7, 8, *ANSWERS[0]], "something stands between"),
        ([*PROMPTS[0], 51, 52, 53], "the completion is not the trained one"),
        ([61, 62, *ANSWERS[0]], "the prompt is another one"),
        ([61, 62, 63, 64], "neither"),
    ],
)
def test_the_kind_of_wrong_context_is_named(row, words):
    verdict = wrong_context.check_batch(given([row, RIGHT[1]]))
    assert (verdict.state, verdict.confidence) == (State.FINDING, Confidence.PROVEN)
    assert verdict.message.startswith("1 of 2 rows")
    assert words in verdict.message


def test_a_prompt_that_comes_twice_is_proven_and_other_tokens_in_front_are_likely():
    twice = wrong_context.check_batch(given([[*PROMPTS[0], *RIGHT[0]], RIGHT[1]]))
    assert (twice.state, twice.confidence) == (State.FINDING, Confidence.PROVEN)
    bos = wrong_context.check_batch(given([[2, *RIGHT[0]], [2, *RIGHT[1]]]))
    assert (bos.state, bos.confidence) == (State.FINDING, Confidence.LIKELY)


def test_ids_are_not_found_between_two_numbers():
    """The bytes of 5, 1 hold those of 256 from the last byte of the 5 on."""
    wanted = np.array([256])
    assert last_place(np.array([5, 1, 7]), wanted) is None
    assert last_place(np.array([256, 5, 1, 7]), wanted) == 0


MOVED = {"scored_again": np.full((2, 3), -1.0), "new_logprobs": np.full((2, 3), -1.0), "dtype": "float32", "update": 0}
PADDED = [[0, 0, *RIGHT[0]], [*RIGHT[1]]]


def test_padding_that_is_attended_to_is_a_fault_and_padding_on_the_right_is_none():
    sick = attention_mask.check_batch(given(PADDED))
    assert (sick.state, sick.confidence) == (State.FINDING, Confidence.PROVEN)
    assert "2 padding tokens are attended to" in sick.message
    hidden = attention_mask.check_batch(given(PADDED, [[0, 0, *[1] * 6], [1] * 6 + [0, 0]]))
    assert hidden.state is State.HEALTHY
    right = attention_mask.check_batch(given([[*RIGHT[0], 0, 0], RIGHT[1]], [[1] * 8, [1] * 8]))
    assert right.state is State.HEALTHY


def test_a_real_token_that_is_hidden_is_a_fault():
    """An EOS inside the prompt, hidden by a mask made by value."""
    verdict = attention_mask.check_batch(given(RIGHT, [[1, 0, 1, 1, 1, 1], [1] * 6]))
    assert verdict.state is State.FINDING
    assert "1 of its own tokens are hidden, the first at input column 1 (id 12)" in verdict.message


def test_a_mask_that_moves_nothing_is_not_accused():
    quiet = attention_mask.check_batch(given(PADDED, **MOVED, scored_padded=np.full((2, 3), -1.0)))
    assert quiet.state is State.HEALTHY
    loud = attention_mask.check_batch(given(PADDED, **MOVED, scored_padded=np.full((2, 3), -1.4)))
    assert loud.state is State.FINDING
    assert "0.4 on average with padding added" in loud.message


def test_positions_are_counted_over_the_attended_tokens():
    mask = [[0, 0, *[1] * 6], [1] * 6 + [0, 0]]
    second = [0, 1, 2, 3, 4, 5, 0, 0]
    right = given(PADDED, mask, position_ids=[[0, 0, 0, 1, 2, 3, 4, 5], second])
    assert position_ids.check_batch(right).state is State.HEALTHY
    offset = position_ids.check_batch(given(PADDED, mask, position_ids=[list(range(8)), second]))
    assert (offset.state, offset.confidence) == (State.FINDING, Confidence.LIKELY)
    assert "begin at 2" in offset.message
    gap = position_ids.check_batch(given(PADDED, mask, position_ids=[[0, 0, 0, 1, 2, 5, 6, 7], second]))
    assert (gap.state, gap.confidence) == (State.FINDING, Confidence.PROVEN)
    assert "go from 2 to 5 at input token 3" in gap.message


def test_an_offset_that_a_rotary_model_ignores_is_healthy():
    mask = [[0, 0, *[1] * 6], [1] * 6 + [0, 0]]
    positions = [list(range(8)), [0, 1, 2, 3, 4, 5, 0, 0]]
    for alone, state in ((-1.0, State.HEALTHY), (-1.3, State.FINDING)):
        batch = given(PADDED, mask, position_ids=positions, **MOVED, scored_alone=np.full((2, 3), alone))
        assert position_ids.check_batch(batch).state is state


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({}, "ALGN05"),  # mask and positions are right: something leaks past the mask
        ({"position_ids": None}, "ALGN04"),  # the mask is right, the positions are unknown
        ({"attention_mask": None}, "ALGN05"),
        ({"attention_mask": None, "position_ids": None}, "ALGN05"),
    ],
)
def test_padding_that_moves_log_probs_is_blamed_on_one_of_the_two(changes, named):
    batch = healthy_batch()
    scored_BT = batch.arrays["scored_again"] + np.random.default_rng(4).normal(0.0, 0.3, size=(B, T))
    diagnosis = diagnose(Evidence((edit_batch(batch, scored_padded=scored_BT, **changes),)), MINE)
    assert [word.code for word in diagnosis.findings] == [named]
    assert diagnosis.findings[0].confidence is Confidence.LIKELY


def test_a_wrong_mask_leaves_unknown_positions_in_peace():
    (batch,) = attention_mask.ILLNESS.sick().batches
    diagnosis = diagnose(Evidence((edit_batch(batch, position_ids=None),)), MINE)
    assert [word.code for word in diagnosis.findings] == ["ALGN05"]


def test_scoring_that_is_not_repeatable_says_nothing_about_padding():
    batch = healthy_batch()
    again_BT = batch.arrays["scored_again"] + np.random.default_rng(4).normal(0.0, 0.3, size=(B, T))
    assert not diagnose(Evidence((edit_batch(batch, scored_again=again_BT),)), MINE).findings


def test_bfloat16_rounding_is_not_padding():
    batch = healthy_batch(dtype="bfloat16")
    rounded = {
        name: batch.arrays[name] + np.random.default_rng(seed).normal(0.0, 0.04, size=(B, T))
        for seed, name in enumerate(("scored_padded", "scored_alone", "scored_permuted", "plain_logprobs"))
    }
    assert not diagnose(Evidence((edit_batch(batch, **rounded),)), MINE).findings


@pytest.mark.parametrize(
    "changes",
    [
        {"mask": np.zeros((B, T), dtype=bool)},
        {"plain_logprobs": np.full((B, T), np.nan), "sampler_logprobs": np.full((B, T), np.nan)},
        {"lengths": np.zeros(B, dtype=int)},
        {"prompt_mask": np.zeros((B, 6), dtype=bool), "input_ids": None},
        {"scored_padded": np.full((B, T), np.nan)},
    ],
)
def test_empty_masks_and_nan_break_nothing_and_accuse_nobody(changes):
    diagnosis = diagnose(Evidence((edit_batch(healthy_batch(), **changes),)), MINE)
    assert not diagnosis.of(State.CRASHED), diagnosis.of(State.CRASHED)
    assert not diagnosis.findings


def test_a_context_without_its_prompts_is_not_judged():
    with pytest.raises(Missing, match="prompt_mask"):
        wrong_context.check_batch(edit_batch(healthy_batch(), prompt_mask=None))
