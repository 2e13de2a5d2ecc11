"""Checks of batches speak only on sound ground: of the rows, tokens and policies that they are about."""

from dataclasses import replace

import numpy as np
import pytest

from assay.doctor.catalogue import catalogue
from assay.doctor.diagnosis import diagnose
from assay.doctor.evidence import Evidence
from assay.doctor.examples import EOS, edit_batch, healthy_batch
from assay.doctor.examples.evidence import SCORED
from assay.doctor.recompute.consistent import consistent
from assay.verdict import Confidence, State

CHECKS = {illness.code: illness for illness in catalogue()}


def verdict(code, batch):
    (word,) = diagnose(Evidence((batch,)), [CHECKS[code]]).words
    return word.verdict


def only_the_last_token_trained():
    batch = healthy_batch(kl_coef=0.0, kl=None, kl_loss=None, kl_mean=None)
    last_BT = np.arange(12) == batch.arrays["lengths"][:, None] - 1
    return edit_batch(batch, gradients=np.where(last_BT, batch.arrays["gradients"], 0.0))


@pytest.mark.parametrize("code", ["LOSS01", "RAT04"])
def test_a_loss_that_trains_only_the_last_token_is_not_called_the_right_way(code):
    batch = only_the_last_token_trained()
    if code == "RAT04":
        batch = edit_batch(batch, ratio=None)
    said = verdict(code, batch)
    assert said.state is State.NOT_APPLICABLE
    assert "the gradient is 0 at" in said.message
    assert verdict("LAW05", batch).state is State.FINDING


@pytest.mark.parametrize("code", ["LOSS01", "RAT04"])
@pytest.mark.parametrize("update", [0, 1])
def test_tokens_without_a_gradient_for_a_reason_do_not_count(code, update):
    batch = healthy_batch(update=update)  # one group has no signal, some tokens of the second update are clipped
    assert verdict(code, batch).state is State.HEALTHY


def test_a_flipped_loss_is_found_though_some_tokens_have_no_gradient():
    batch = only_the_last_token_trained()
    flipped = {name: -batch.numbers[name] for name in ("loss", "policy_loss")}
    said = verdict("LOSS01", edit_batch(batch, gradients=-batch.arrays["gradients"], token_loss=None, **flipped))
    assert said.state is State.FINDING
    assert "100% of the tokens that have a gradient" in said.message


def with_other_tokens(rows):
    """The rows hold other tokens than those that were sampled, with an EOS in the middle."""
    batch = healthy_batch()
    tokens_BT = batch.arrays["tokens"].copy()
    tokens_BT[rows, 1] = EOS
    return edit_batch(batch, tokens=tokens_BT, lengths=None)


def test_what_follows_an_eos_that_was_not_sampled_is_not_called_padding_in_the_loss():
    said = verdict("MASK02", with_other_tokens([2]))
    assert said.state is State.HEALTHY
    assert "not looked at: 1 rows whose tokens are not the sampled ones" in said.message
    assert verdict("MASK02", with_other_tokens(slice(None))).state is State.NOT_APPLICABLE
    sampled = with_other_tokens([2])
    sampled = edit_batch(sampled, sampled_tokens=sampled.arrays["tokens"])
    assert verdict("MASK02", sampled).state is State.FINDING


def shifted(rows):
    """The new and old log-probs of these rows are those of the next token."""
    batch = healthy_batch()
    new_BT = batch.arrays["new_logprobs"].copy()
    new_BT[rows] = np.roll(new_BT[rows], -1, axis=1)
    new_BT = np.where(batch.arrays["mask"], new_BT, 0.0)
    return consistent(batch, new_logprobs=new_BT, old_logprobs=new_BT)


def test_one_shifted_row_of_sixteen_is_found():
    said = verdict("ALGN01", shifted([3]))
    assert said.state is State.FINDING
    assert said.confidence is Confidence.PROVEN
    assert "row 3" in said.message
    assert said.facts[0].row == 3


def test_one_row_of_other_numbers_is_no_shift_and_not_healthy():
    batch = healthy_batch()
    new_BT = batch.arrays["new_logprobs"].copy()
    new_BT[3] = np.where(batch.arrays["mask"][3], new_BT[3] - 0.7, 0.0)
    said = verdict("ALGN01", consistent(batch, new_logprobs=new_BT, old_logprobs=new_BT))
    assert said.state is State.NOT_APPLICABLE
    assert "row 3" in said.message


def test_a_shift_is_not_claimed_of_rows_with_other_tokens():
    batch = shifted([3])
    tokens_BT = batch.arrays["tokens"].copy()
    tokens_BT[3, 0] = 40 if tokens_BT[3, 0] != 40 else 41
    assert verdict("ALGN01", edit_batch(batch, tokens=tokens_BT)).state is not State.FINDING


def sorted_by_length():
    """Rows with their tokens and prompts in another order, groups, rewards and advantages as they were."""
    batch = healthy_batch()
    order = np.argsort(batch.arrays["lengths"], kind="stable")
    kept = ("group_ids", "rewards", "advantages")
    arrays = {name: values[order] for name, values in batch.arrays.items() if name not in kept}
    texts = {name: [column[row] for row in order.tolist()] for name, column in batch.texts.items()}
    return replace(consistent(edit_batch(batch, **arrays)), texts=texts)


def test_rows_that_were_sorted_after_their_groups_were_made_are_the_cause_of_mixed_groups():
    diagnosis = diagnose(Evidence((sorted_by_length(),)), [CHECKS["ADV02"], CHECKS["ALGN10"]])
    assert [word.code for word in diagnosis.findings] == ["ALGN10", "ADV02"]
    assert diagnosis.causes == {"ADV02": "ALGN10"}


def test_prompts_by_turns_are_a_wrong_grouping_and_not_moved_rows():
    diagnosis = diagnose(CHECKS["ADV02"].sick(), [CHECKS["ADV02"], CHECKS["ALGN10"]])
    assert [word.code for word in diagnosis.findings] == ["ADV02"]


def test_advantages_of_stale_rewards_are_not_blamed_on_the_std():
    batch = healthy_batch()
    rewards_B = np.roll(batch.arrays["rewards"], 1)  # of the groups, one is flat in either
    rewards_B[:4] = (0.0, 1.0, 1.0, 0.0)
    rewards_B[4:8] = 0.0
    advantages_B = batch.arrays["advantages"].copy()
    advantages_B[4:8] = (0.8, -0.8, 0.8, -0.8)
    stale = consistent(batch, rewards=rewards_B, advantages=advantages_B)
    assert verdict("ADV04", stale).state is not State.FINDING
    fresh = consistent(batch, advantages=advantages_B)
    assert verdict("ADV04", fresh).state is State.FINDING  # the other groups follow their rewards


def test_old_taken_from_the_reference_does_not_make_the_reference_the_policy():
    batch = healthy_batch()
    old_is_ref = consistent(batch, old_logprobs=batch.arrays["ref_logprobs"], step=5)
    assert verdict("KL05", edit_batch(old_is_ref, plain_ref_logprobs=None)).state is not State.FINDING
    ref_is_policy = consistent(batch, ref_logprobs=batch.arrays["new_logprobs"], step=5)
    said = verdict("KL05", edit_batch(ref_is_policy, plain_ref_logprobs=None))
    assert said.state is State.FINDING
    assert "bit for bit" in said.message


def test_a_reference_that_equals_old_is_not_assured_of_after_the_first_update():
    batch = healthy_batch(update=1)
    follows = consistent(batch, ref_logprobs=batch.arrays["old_logprobs"])
    said = verdict("KL05", edit_batch(follows, plain_ref_logprobs=None, sampler_logprobs=None))
    assert said.state is State.NOT_ENOUGH_DATA
    seen = verdict("KL05", edit_batch(follows, plain_ref_logprobs=None))  # the engine says that old is the policy
    assert (seen.state, seen.confidence) == (State.FINDING, Confidence.LIKELY)


def test_a_reference_that_moves_with_the_policy_is_the_policy():
    batch = healthy_batch(update=1)
    moves = consistent(batch, ref_logprobs=batch.arrays["old_logprobs"])
    said = verdict("KL05", edit_batch(moves, plain_ref_logprobs=batch.arrays["plain_logprobs"]))
    assert (said.state, said.confidence) == (State.FINDING, Confidence.PROVEN)
    assert "the reference is the policy itself" in said.message
    assert verdict("KL05", batch).state is State.HEALTHY


def lost_to(batch):
    return [fact.what for fact in verdict("MET07", batch).facts]


def test_rows_masked_without_a_setting_are_not_explained_as_cut_off():
    batch = healthy_batch()
    mask_BT = batch.arrays["mask"].copy()
    mask_BT[1::2] = False  # rows 3 and 9 were cut off
    assert "lost: masked" in lost_to(consistent(batch, mask=mask_BT))
    assert "lost: cut off and masked" not in lost_to(consistent(batch, mask=mask_BT))
    by_setting_BT = batch.arrays["mask"] & batch.arrays["finished"][:, None]
    assert "lost: cut off and masked" in lost_to(consistent(batch, mask=by_setting_BT, mask_truncated=True))


def with_hidden(column):
    """The attention mask hides this token of row 0, counted from the end of its answer; nothing was computed again."""
    batch = healthy_batch(**dict.fromkeys(SCORED))
    attention_BS = batch.arrays["attention_mask"].copy()
    attention_BS[0, 6 + batch.arrays["lengths"][0] + column] = False
    return edit_batch(batch, attention_mask=attention_BS)


def test_a_hidden_eos_behind_which_nothing_follows_is_a_note():
    said = verdict("ALGN05", with_hidden(-1))
    assert (said.state, said.confidence) == (State.FINDING, Confidence.POSSIBLE)
    assert verdict("ALGN05", with_hidden(-2)).confidence is Confidence.PROVEN
