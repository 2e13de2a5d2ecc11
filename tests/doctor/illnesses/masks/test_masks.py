"""Which tokens are in the loss, and what the loss makes of those that are not."""

import warnings

import numpy as np
import pytest

from assay.doctor.evidence import Batch
from assay.doctor.examples import EOS, PAD, edit_batch, healthy_batch, healthy_curves
from assay.doctor.facts.rounding import gradients_off, loss_limit
from assay.doctor.illnesses.alignment import prompt_truncated, row_provenance, sampled_token_logp
from assay.doctor.illnesses.loss import split_dependence
from assay.doctor.illnesses.masks import (
    empty_mask,
    eos_untrained,
    exp_before_mask,
    padding_dependence,
    post_eos_in_loss,
    prompt_in_loss,
    stat_without_mask,
    tool_tokens,
)
from assay.verdict import Confidence, Missing, Severity, State

MINE = [
    empty_mask,
    eos_untrained,
    exp_before_mask,
    padding_dependence,
    post_eos_in_loss,
    prompt_in_loss,
    prompt_truncated,
    row_provenance,
    sampled_token_logp,
    split_dependence,
    stat_without_mask,
    tool_tokens,
]
NAN = float("nan")


def two_rows(mask, *, tokens=((7, 8, EOS, PAD), (9, 9, 9, 9)), **rest):
    """Row 0 ends by EOS after three tokens; row 1 is cut off after four."""
    return Batch.of({"tokens": tokens, "mask": mask, "eos_ids": (EOS,), "pad_id": PAD, **rest})


def odd_batches():
    batch = healthy_batch()
    for name, values in batch.arrays.items():
        yield edit_batch(batch, **{name: None})
        if values.dtype.kind == "f":
            yield edit_batch(batch, **{name: np.full(values.shape, NAN)})
            yield edit_batch(batch, **{name: np.full(values.shape, np.inf)})
    nothing_BT = np.zeros(batch.arrays["mask"].shape, dtype=bool)
    yield edit_batch(batch, mask=nothing_BT, prompt_mask=np.zeros_like(batch.arrays["prompt_mask"]))
    for number in batch.numbers:
        if number.startswith("loss"):
            yield edit_batch(batch, **{number: NAN})
    yield Batch.of({"tokens": np.zeros((0, 4)), "mask": np.zeros((0, 4)), "lengths": np.zeros(0), "eos_ids": (EOS,)})
    yield Batch.of({"tokens": np.zeros((2, 0)), "mask": np.zeros((2, 0)), "lengths": np.zeros(2), "eos_ids": (EOS,)})
    yield two_rows([[1, 1, 1, 0], [1, 1, 1, 1]], lengths=[9, 0], finished=[1, 0])


@pytest.mark.parametrize("module", MINE, ids=lambda module: module.__name__.rpartition(".")[2])
def test_odd_batches_crash_no_check_and_warn_of_nothing(module):
    for batch in odd_batches():
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                verdict = module.check_batch(batch)
            except Missing:
                continue
        assert verdict.state is not State.CRASHED


# ---------------------------------------------------------------- eos_untrained


def test_an_eos_outside_of_the_mask_is_proven_by_the_lengths():
    verdict = eos_untrained.check_batch(two_rows([[1, 1, 0, 0], [1, 1, 1, 1]], lengths=[3, 4]))
    assert (verdict.state, verdict.confidence) == (State.FINDING, Confidence.PROVEN)
    assert verdict.facts[0].row == 0
    assert verdict.facts[0].token == 2
    assert verdict.message.startswith("1 of 1 rows")


def test_without_lengths_an_untrained_eos_is_only_likely():
    verdict = eos_untrained.check_batch(two_rows([[1, 1, 0, 0], [1, 1, 1, 1]], finished=[1, 0]))
    assert (verdict.state, verdict.confidence) == (State.FINDING, Confidence.LIKELY)


def test_padding_with_the_id_of_eos_behind_a_cut_off_row_is_not_an_untrained_eos():
    batch = two_rows(
        [[1, 1, 1, 0], [1, 1, 0, 0]], tokens=[[7, 8, EOS, EOS], [9, 9, EOS, EOS]], finished=[1, 0], lengths=[3, 2]
    )
    assert eos_untrained.check_batch(batch).state is State.HEALTHY
    assert eos_untrained.check_batch(edit_batch(batch, lengths=None)).state is State.HEALTHY


@pytest.mark.parametrize(
    ("mask", "rest"),
    [
        ([[0, 0, 0, 0], [1, 1, 1, 1]], {}),  # the whole row is left out
        ([[0, 1, 0, 0], [1, 1, 1, 1]], {}),  # only chosen tokens are trained
        ([[1, 1, 0, 0], [1, 1, 1, 1]], {"forced": [[0, 0, 1, 0], [0, 0, 0, 0]]}),  # the trainer added the EOS
    ],
)
def test_rows_that_leave_their_eos_out_on_purpose_do_not_count(mask, rest):
    assert eos_untrained.check_batch(two_rows(mask, lengths=[3, 4], **rest)).state is State.NOT_APPLICABLE


@pytest.mark.parametrize(
    ("last", "reward", "state"),
    [(0.95, 0.0, State.FINDING), (0.85, 0.0, State.HEALTHY), (0.95, 0.2, State.HEALTHY)],
)
def test_curves_speak_only_where_nothing_ends_any_more_and_the_reward_did_not_rise(last, reward, state):
    progress_N = np.interp(np.arange(60), [0, 40], [0.0, 1.0])
    curves = healthy_curves(
        truncated_share=last * progress_N, length_mean=30 + 33 * progress_N, reward_mean=0.3 + reward * progress_N
    )
    assert eos_untrained.check_curves(curves).state is state


# ---------------------------------------------------------------- post_eos_in_loss, prompt_in_loss, tool_tokens


def test_one_column_of_padding_in_the_loss_is_proven():
    verdict = post_eos_in_loss.check_batch(two_rows([[1, 1, 1, 1], [1, 1, 1, 1]], lengths=[3, 4]))
    assert (verdict.state, verdict.confidence) == (State.FINDING, Confidence.PROVEN)
    assert verdict.facts[0].value == 1
    assert verdict.facts[1].value == pytest.approx(1 / 8)


def test_without_lengths_words_after_an_eos_are_likely_and_padding_is_proven():
    tokens = [[7, EOS, 8, 8], [9, 9, 9, 9]]
    words = post_eos_in_loss.check_batch(two_rows([[1, 1, 1, 1], [1, 1, 1, 1]], tokens=tokens))
    padding = post_eos_in_loss.check_batch(two_rows([[1, 1, 1, 1], [1, 1, 1, 1]]))
    assert (words.state, words.confidence) == (State.FINDING, Confidence.LIKELY)
    assert (padding.state, padding.confidence) == (State.FINDING, Confidence.PROVEN)


@pytest.mark.parametrize(
    ("mask", "rest"),
    [
        ([[1, 1, 0, 1], [1, 1, 1, 1]], {}),  # a tool speaks between two turns
        ([[1, 1, 1, 1], [1, 1, 1, 1]], {"lengths": [4, 4]}),  # the EOS did not end it
        ([[1, 1, 0, 1], [1, 1, 1, 1]], {"lengths": [3, 4]}),  # lengths count the policy's own tokens
        ([[1, 1, 1, 1], [1, 1, 1, 1]], {"forced": [[0, 0, 1, 0], [0, 0, 0, 0]]}),
    ],
)
def test_an_eos_between_turns_is_no_end(mask, rest):
    batch = two_rows(mask, tokens=[[7, EOS, 5, 8], [9, 9, 9, 9]], **rest)
    verdict = post_eos_in_loss.check_batch(batch)
    assert verdict.state is State.HEALTHY or (rest == {"lengths": [4, 4]} and verdict.confidence is Confidence.POSSIBLE)


def test_an_eos_added_to_a_cut_off_row_belongs_to_tool_tokens_alone():
    batch = two_rows(
        [[1, 1, 1, 1], [1, 1, 1, 1]], tokens=[[7, 8, 8, EOS], [9, 9, 9, EOS]], lengths=[3, 4], finished=[0, 1]
    )
    added = tool_tokens.check_batch(batch)
    assert added.state is State.FINDING
    assert "1 EOS tokens that were added" in added.message
    assert post_eos_in_loss.check_batch(batch).state is State.HEALTHY


def test_lengths_counted_without_their_eos_are_no_fault_and_a_second_eos_is():
    counted_short = two_rows([[1, 1, 1, 0], [1, 1, 1, 1]], lengths=[2, 4], finished=[1, 0])
    second = two_rows([[1, 1, 1, 0], [1, 1, 1, 1]], tokens=[[7, EOS, EOS, EOS], [9] * 4], lengths=[2, 4])
    assert post_eos_in_loss.check_batch(counted_short).state is State.HEALTHY
    assert post_eos_in_loss.check_batch(second).state is State.FINDING


def test_padding_with_the_id_of_eos_behind_a_finished_row_was_not_added_to_it():
    tokens, ones_BT = [[7, EOS, EOS, EOS], [9, EOS, EOS, EOS]], np.ones((2, 4))
    batch = two_rows(ones_BT, tokens=tokens, lengths=[2, 2], finished=[1, 1], forced=np.zeros((2, 4)))
    assert tool_tokens.check_batch(batch).state is State.NOT_APPLICABLE
    assert post_eos_in_loss.check_batch(batch).state is State.FINDING


def test_tool_tokens_without_a_word_on_forced_tokens_is_not_healthy():
    with pytest.raises(Missing, match="forced"):
        tool_tokens.check_batch(two_rows([[1, 1, 1, 0], [1, 1, 1, 1]], lengths=[3, 4], finished=[1, 0]))


def with_prompts(mask, **rest):
    """Rows that begin with their prompts 5 6 7 and 4 5 6."""
    return Batch.of(
        {
            "tokens": [[5, 6, 7, 8, EOS], [4, 5, 6, 9, EOS]],
            "mask": mask,
            "prompt_tokens": [[5, 6, 7], [4, 5, 6]],
            "prompt_mask": [[1, 1, 1], [1, 1, 1]],
            **rest,
        }
    )


def test_a_single_prompt_token_in_the_loss_is_proven_by_the_lengths():
    verdict = prompt_in_loss.check_batch(with_prompts([[0, 0, 1, 1, 1], [0, 0, 1, 1, 1]], lengths=[2, 2]))
    assert (verdict.state, verdict.confidence) == (State.FINDING, Confidence.PROVEN)
    assert verdict.facts[0].value == 2
    assert (verdict.facts[0].row, verdict.facts[0].token) == (0, 2)


def test_without_lengths_a_trained_prompt_is_only_likely_and_one_row_of_two_is_nothing():
    both = prompt_in_loss.check_batch(with_prompts(np.ones((2, 5))))
    assert (both.state, both.confidence) == (State.FINDING, Confidence.LIKELY)
    with pytest.raises(Missing, match="lengths"):
        prompt_in_loss.check_batch(with_prompts([[1, 1, 1, 1, 1], [0, 0, 0, 1, 1]]))


def test_a_policy_that_repeats_its_prompt_may_be_trained_on_it():
    ones_BT = np.ones((2, 5))
    tokens = [[5, 6, 7, 8, EOS], [4, 5, 6, 9, EOS]]
    assert prompt_in_loss.check_batch(with_prompts(ones_BT, lengths=[5, 5])).state is State.HEALTHY
    assert prompt_in_loss.check_batch(with_prompts(ones_BT, sampled_tokens=tokens)).state is State.HEALTHY


def test_prompts_are_found_behind_padding_and_without_their_first_token():
    padded = [[PAD, 5, 6, 7, EOS], [4, 5, 6, 9, EOS]]
    dropped = [[6, 7, 8, 8, EOS], [5, 6, 9, 9, EOS]]
    for tokens, count in ((padded, 6), (dropped, 4)):
        verdict = prompt_in_loss.check_batch(with_prompts(np.ones((2, 5)), tokens=tokens, lengths=[1, 1]))
        assert verdict.facts[0].value == count


# ---------------------------------------------------------------- what the loss makes of it


@pytest.mark.parametrize(("change", "state"), [(2e-6, State.FINDING), (2e-7, State.HEALTHY)])
def test_the_limit_of_rounding_is_measured_against_the_terms_where_the_loss_is_0(change, state):
    batch = Batch.of({"gradients": [[0.5, -0.5]], "mask": [[1, 1]], "tokens": [[7, 8]], "loss_again": 0.0})
    assert loss_limit(batch, 0.0) == pytest.approx(1e-6)
    checks = {"loss_padded": padding_dependence, "loss_split": split_dependence, "loss_perturbed": stat_without_mask}
    for name, module in checks.items():
        assert module.check_batch(edit_batch(batch, **{name: change})).state is state


def test_without_gradients_the_terms_are_as_large_as_the_advantages():
    batch = Batch.of({"tokens": [[7, 8, 9]], "mask": [[1, 1, 0]], "advantages": [[2.0, -4.0, 100.0]]})
    assert loss_limit(batch, 0.0) == pytest.approx(3e-6)
    assert loss_limit(Batch.of({}), 0.0) == pytest.approx(1e-6)
    assert loss_limit(Batch.of({"dtype": "unheard of"}), 10.0) == pytest.approx(1e-4 + 1e-6)


def test_a_loss_in_bfloat16_may_lose_its_last_digit():
    batch = Batch.of({"loss_again": 1.0, "loss_padded": 1.0078, "dtype": "bfloat16"})
    assert padding_dependence.check_batch(batch).state is State.HEALTHY
    assert padding_dependence.check_batch(edit_batch(batch, dtype="float32")).state is State.FINDING


def test_gradients_differ_beyond_rounding_or_where_one_is_nan():
    batch = Batch.of({"dtype": "float32"})
    first_BT = np.array([[1.0, 1e-9, 0.5, NAN]])
    second_BT = np.array([[1.0003, 0.0, NAN, NAN]])
    assert gradients_off(batch, first_BT, second_BT).tolist() == [[True, False, True, False]]


def test_padding_that_only_scales_the_loss_is_not_taken_for_a_statistic_without_mask():
    batch = healthy_batch(update=1)
    scaled = {"loss_padded": batch.number("loss") * 0.8, "loss_perturbed": batch.number("loss") * 0.8}
    batch = edit_batch(batch, gradients_perturbed=batch.arrays["gradients"] * 0.8, **scaled)
    assert stat_without_mask.check_batch(batch).state is State.HEALTHY
    assert padding_dependence.check_batch(batch).state is State.FINDING
    unscaled = edit_batch(batch, loss_padded=batch.number("loss"), loss_perturbed=batch.number("loss"))
    assert "gradient of" in stat_without_mask.check_batch(unscaled).message


def test_a_gradient_outside_of_the_mask_is_a_leak():
    batch = Batch.of({"tokens": [[7, 8]], "mask": [[1, 0]], "gradients": [[0.5, 0.01]]})
    verdict = stat_without_mask.check_batch(batch)
    assert verdict.state is State.FINDING
    assert (verdict.facts[0].row, verdict.facts[0].token) == (0, 1)


def test_whitening_over_padding_is_told_from_whitening_over_loss_tokens():
    raw_BT, mask_BT = np.array([[1.0, 3.0, 0.0, 0.0], [2.0, 6.0, 4.0, 0.0]]), np.array([[1, 1, 0, 0], [1, 1, 1, 0]])
    inside = raw_BT[mask_BT == 1]
    right_BT, wrong_BT = (raw_BT - inside.mean()) / inside.std(), (raw_BT - raw_BT.mean()) / raw_BT.std()
    for advantages_BT, state in ((right_BT, State.HEALTHY), (wrong_BT, State.FINDING), (raw_BT, State.HEALTHY)):
        batch = Batch.of({"mask": mask_BT, "raw_advantages": raw_BT, "advantages": advantages_BT * mask_BT})
        assert stat_without_mask.check_batch(batch).state is state


def test_a_cut_names_its_factor():
    gradients_BT = np.array([[0.1, -0.2], [0.3, 0.1]])
    doubled = split_dependence.check_batch(Batch.of({"gradients": gradients_BT, "gradients_split": 2 * gradients_BT}))
    uneven = split_dependence.check_batch(
        Batch.of({"gradients": gradients_BT, "gradients_split": gradients_BT * [[1.5], [0.75]]})
    )
    assert "is 2 times that of the whole" in doubled.message
    assert "0.75 to 1.5 times" in uneven.message


def test_a_loss_that_is_nan_is_laid_on_an_empty_row_only_if_its_inputs_are_finite():
    inputs = {"new_logprobs": np.zeros((2, 2)), "old_logprobs": np.zeros((2, 2)), "advantages": [1.0, -1.0]}
    batch = Batch.of({"tokens": [[7, 8], [7, 8]], "mask": [[1, 1], [0, 0]], "loss": NAN, **inputs})
    assert empty_mask.check_batch(batch).confidence is Confidence.PROVEN
    assert empty_mask.check_batch(batch).facts[0].row == 1
    broken = edit_batch(batch, new_logprobs=[[NAN, 0.0], [0.0, 0.0]])
    assert empty_mask.check_batch(broken).state is State.NOT_APPLICABLE
    under_the_mask = edit_batch(batch, new_logprobs=[[0.0, 0.0], [NAN, 0.0]])
    assert empty_mask.check_batch(under_the_mask).state is State.FINDING
    assert empty_mask.check_batch(edit_batch(batch, loss=0.5)).state is State.HEALTHY
    assert empty_mask.check_batch(edit_batch(batch, mask=[[1, 1], [0, 1]])).state is State.HEALTHY


def test_a_batch_without_loss_tokens_is_fatal_unless_it_was_left_out_on_purpose():
    values = {"mask": np.zeros((4, 2)), "finished": np.zeros(4), "advantages": [1.0, -1.0, 0.0, 0.0]}
    batch = Batch.of({**values, "mask_truncated": False})
    assert (empty_mask.check_batch(batch).severity, empty_mask.check_batch(batch).confidence) == (
        None,
        Confidence.PROVEN,
    )
    assert empty_mask.ILLNESS.severity is Severity.FATAL
    flat = edit_batch(batch, advantages=np.zeros(4))  # groups of equal rewards may be left out
    for other in (flat, edit_batch(batch, mask_truncated=True), edit_batch(batch, mask_truncated=None)):
        on_purpose = empty_mask.check_batch(other)
        assert (on_purpose.severity, on_purpose.confidence) == (Severity.WASTEFUL, Confidence.POSSIBLE)


def test_a_nan_loss_is_laid_on_what_stands_under_the_mask_only_if_all_inside_is_finite():
    values = {"mask": [[1, 0]], "loss": NAN, "ratio": [[1.0, np.inf]]}
    assert exp_before_mask.check_batch(Batch.of(values)).state is State.FINDING
    assert exp_before_mask.check_batch(Batch.of(values | {"loss": 0.5})).state is State.HEALTHY
    inside = values | {"kl": [[NAN, 0.0]]}
    assert exp_before_mask.check_batch(Batch.of(inside)).state is State.NOT_APPLICABLE
    assert exp_before_mask.check_batch(Batch.of(values | {"ratio": [[1.0, 1.0]]})).state is State.NOT_APPLICABLE


def test_a_loss_that_large_values_under_the_mask_break_is_a_finding():
    batch = Batch.of({"loss_again": 0.5, "loss_perturbed": np.inf})
    assert exp_before_mask.check_batch(batch).state is State.FINDING
    assert exp_before_mask.check_batch(edit_batch(batch, loss_perturbed=0.5)).state is State.HEALTHY


def test_a_batch_with_nothing_extreme_under_its_mask_proves_nothing():
    with pytest.raises(Missing, match="loss_perturbed"):
        exp_before_mask.check_batch(Batch.of({"mask": [[1, 0]], "loss": 0.5, "ratio": [[1.0, 1.0]]}))
