"""The law of support where lengths are not given, text is put in, columns are cut, and episodes end."""

import numpy as np
import pytest

from assay.doctor.laws.support import check_batch, check_batches
from assay.record.batch import Batch
from assay.verdict import Confidence, Missing, State

EOS, WIDTH = 9, 6
TOKENS = np.array(
    [
        [1, 2, 9, 9, 9, 9],
        [3, 4, 5, 6, 7, 1],
        [2, 9, 9, 9, 9, 9],
        [4, 4, 3, 2, 1, 8],
        [5, 6, 7, 9, 9, 9],
    ]
)
LENGTHS, ENDED = np.array([3, 6, 2, 6, 4]), np.array([True, False, True, False, True])
RIGHT = np.arange(WIDTH) < LENGTHS[:, None]


def batch_of(mask, **more):
    values = {"tokens": TOKENS, "mask": mask, "finished": ENDED, "eos_ids": [EOS], "max_tokens": WIDTH, "step": 1}
    return Batch.of({**values, **more})


def test_a_right_mask_is_healthy_without_lengths():
    assert check_batch(batch_of(RIGHT)).state is State.HEALTHY


@pytest.mark.parametrize("eos_ids", [EOS, (EOS,), np.array([EOS]), np.array([EOS, 77])], ids=str)
def test_the_ids_that_end_an_answer_may_be_one_number_a_tuple_or_an_array(eos_ids):
    assert check_batch(batch_of(RIGHT, eos_ids=eos_ids)).state is State.HEALTHY


def test_rows_at_the_limit_that_keep_one_token_are_proven():
    first = np.argmax(TOKENS == EOS, axis=1)  # 0 where there is none
    verdict = check_batch(batch_of(np.arange(WIDTH) <= first[:, None]))
    assert verdict.confidence is Confidence.PROVEN
    assert "all but the first token of rows that the token limit cut off (10 of 21 tokens)" in verdict.message


def test_cut_columns_are_named():
    verdict = check_batch(batch_of(RIGHT & (np.arange(WIDTH) < 3)))
    assert verdict.state is State.FINDING
    assert "all tokens from column 3 on (7 of 21 tokens)" in verdict.message


def test_rows_at_the_limit_are_kept_where_the_setting_keeps_them():
    left_out = RIGHT & ENDED[:, None]
    kept = check_batch(batch_of(left_out, mask_truncated=False, lengths=LENGTHS))
    assert kept.confidence is Confidence.PROVEN
    assert "the rows that the token limit cut off" in kept.message
    assert check_batch(batch_of(left_out, mask_truncated=True, lengths=LENGTHS)).state is State.HEALTHY


@pytest.mark.parametrize(
    "more",
    [
        {"eos_ids": None},
        {"finished": None, "max_tokens": None},  # rows without an end may be shorter than the columns
        {"mask": np.ones((5, WIDTH), dtype=bool)},  # several turns, or MASK02
        {"pad_id": 8},  # row 3 ends in padding
    ],
)
def test_lengths_that_the_ids_do_not_show_are_missing(more):
    values = {"tokens": TOKENS, "mask": RIGHT, "finished": ENDED, "eos_ids": [EOS], "max_tokens": WIDTH, "step": 1}
    kept = {name: value for name, value in (values | more).items() if value is not None}
    with pytest.raises(Missing):
        check_batch(Batch.of(kept))


def inserted(shift, chance, ids=(7,)):
    """Ten rows: two tokens of the policy, three put in that end with 7, two of the policy."""
    rows = 10
    tokens = np.random.default_rng(0).integers(10, 60, (rows, 7))
    tokens[:, 2:5] = [5, 6, 7]
    if shift == 0:
        tokens[:, 5] = np.resize(ids, rows)
    forced = np.zeros((rows, 7), dtype=bool)
    forced[:, 2 + shift : 5 + shift] = True
    logprobs = np.full((rows, 7), np.log(chance))
    return Batch.of(
        {
            "tokens": tokens,
            "mask": ~forced,
            "forced": forced,
            "lengths": np.full(rows, 7),
            "plain_logprobs": logprobs,
            "step": 1,
        }
    )


def test_a_mask_of_inserted_text_that_ends_early_is_found():
    verdict = check_batch(inserted(-1, 0.05))
    assert verdict.state is State.FINDING
    assert verdict.confidence is Confidence.LIKELY
    assert check_batches([inserted(-1, 0.05)]).state is State.FINDING


def test_what_the_policy_itself_writes_behind_inserted_text_is_sound():
    assert check_batch(inserted(0, 0.05, ids=(11, 12, 13))).state is State.HEALTHY
    assert check_batch(inserted(0, 0.97, ids=(11,))).state is State.HEALTHY  # it is sure of this one


def episodes(kept_after, first_reward=-0.1, paid_at_the_end=True):
    """Six episodes of up to 5 steps that end at steps 2, 3, 4, 2, 3 and never."""
    steps, ends = np.arange(5), np.array([2, 3, 4, 2, 3, 9])
    alive = steps <= ends[:, None]
    rewards = np.where(alive, first_reward, 0.0)
    if paid_at_the_end:
        rewards = np.where(steps == ends[:, None], 1.0, rewards)
    mask = steps < ends[:, None] if kept_after else alive
    return Batch.of({"tokens": np.ones((6, 5), dtype=int), "mask": mask, "step_rewards": rewards, "step": 1})


def test_a_last_step_that_is_paid_and_not_trained_is_found():
    verdict = check_batch(episodes(kept_after=True))
    assert verdict.state is State.FINDING
    assert verdict.confidence is Confidence.LIKELY
    assert "the last step of 5 of 5 episodes" in verdict.message


def test_rewards_that_may_be_written_a_step_late_are_merely_possible():
    assert check_batch(episodes(kept_after=True, first_reward=0.0)).confidence is Confidence.POSSIBLE


def test_episodes_with_their_last_step_are_sound():
    with pytest.raises(Missing):
        check_batch(episodes(kept_after=False))
