"""group_order and reward_position: how sure, by what identifies a prompt and by what else lays zeros on tokens."""

import numpy as np
import pytest

from assay.doctor.evidence import Batch
from assay.doctor.illnesses.advantages import group_order, reward_position
from assay.verdict import Confidence, State

PROVEN, LIKELY, POSSIBLE = Confidence.PROVEN, Confidence.LIKELY, Confidence.POSSIBLE


def grouped(groups, prompts=None, names=None, **values):
    texts = {} if names is None else {"prompt_id": names}
    return Batch.of({"group_ids": groups, "prompt_tokens": prompts, "step": 1, **values}, texts=texts)


def told(verdict):
    return verdict.state, verdict.confidence


def test_two_names_in_one_group_are_proven_and_two_token_lists_are_likely():
    # no prompt stands in two groups: a name says that they differ, tokens may differ by a template
    assert told(group_order.check_batch(grouped([0, 0, 1], names=["a", "b", "c"]))) == (State.FINDING, PROVEN)
    mixed = grouped([0, 0, 1], prompts=[[5, 6], [5, 7], [8, 8]])
    assert told(group_order.check_batch(mixed)) == (State.FINDING, LIKELY)
    torn = grouped([0, 0, 1], prompts=[[5, 6], [5, 7], [5, 6]])  # and one prompt's rows stand in two groups
    assert told(group_order.check_batch(torn)) == (State.FINDING, PROVEN)


def test_padding_of_a_prompt_is_not_the_prompt():
    prompts, mask = [[0, 5], [9, 5]], [[0, 1], [0, 1]]
    assert group_order.check_batch(grouped([0, 0], prompts=prompts, prompt_mask=mask)).state is State.HEALTHY
    assert group_order.check_batch(grouped([0, 0], prompts=prompts)).state is State.FINDING


def test_a_group_of_two_among_single_rows_is_enough_to_look_at():
    assert group_order.check_batch(grouped([0, 1, 1], names=["a", "b", "b"])).state is State.HEALTHY
    assert group_order.check_batch(grouped([0, 1, 2], names=["a", "b", "b"])).state is State.NOT_ENOUGH_DATA
    mixed = group_order.check_batch(grouped([0, 1, 1], names=["a", "b", "c"]))
    assert "1 of 2 groups" in mixed.message
    assert "rows 1 and 2" in mixed.message


def test_the_order_by_turns_is_named_only_where_it_explains_every_row():
    turns = group_order.check_batch(grouped([0, 0, 1, 1], names=["a", "b", "a", "b"]))
    assert "repeat for repeat_interleave" in turns.message
    other = group_order.check_batch(grouped([0, 0, 1, 1], names=["a", "b", "b", "a"]))
    assert "repeat" not in other.message


def laid(*rows, rewards, **values):
    """Rows of three loss tokens and one of padding."""
    mask = [[1, 1, 1, 0]] * len(rows)
    return Batch.of({"token_rewards": [*rows], "mask": mask, "rewards": rewards, "step": 1, **values})


@pytest.mark.parametrize(
    ("row", "confidence"),
    [([2, 0, 0, 0], PROVEN), ([0, 0, 0, 2], PROVEN), ([2, 2, 2, 0], PROVEN), ([0, 0, 0, 0], POSSIBLE)],
)
def test_a_reward_at_another_place_is_proven_and_one_that_is_gone_is_not(row, confidence):
    assert told(reward_position.check_batch(laid(row, row, rewards=[2, 2]))) == (State.FINDING, confidence)


def test_rewards_that_were_normalised_are_zero_in_a_group_of_equals():
    equals, half = [0, 0, 0, 0], [0, 0, 0.5, 0]  # 1 - mean of (1, 1), and 1 - mean of (1, 0)
    mixed = laid(equals, equals, half, rewards=[1, 1, 1])
    assert told(reward_position.check_batch(mixed)) == (State.FINDING, POSSIBLE)


def test_one_row_with_its_reward_elsewhere_is_only_likely():
    batch = laid([2, 0, 0, 0], [0, 0, 2, 0], rewards=[2, 2])
    assert told(reward_position.check_batch(batch)) == (State.FINDING, LIKELY)


@pytest.mark.parametrize(("rest", "state"), [(0.09, State.HEALTHY), (0.11, State.NOT_ENOUGH_DATA)])
def test_a_reward_is_recognised_to_a_twentieth(rest, state):
    row = [0.0, 0.0, 2.0 + rest, 0.0]  # 0.05 * 2 = 0.1
    assert reward_position.check_batch(laid(row, row, rewards=[2, 2])).state is state


@pytest.mark.parametrize(("reward", "state"), [(1.01, State.FINDING), (0.99, State.NOT_ENOUGH_DATA)])
def test_a_reward_of_less_than_ten_penalties_is_not_looked_for(reward, state):
    row = np.array([reward, 0, 0, 0]) - [0.1, 0.1, 0.1, 0]
    settings = {"kl_coef": 0.1, "kl_placement": "reward", "kl": [[1, 1, 1, 0]] * 2}
    assert reward_position.check_batch(laid(row, row, rewards=[reward] * 2, **settings)).state is state
