"""Weights of actions, made of rewards by hand, and the way in which they are found to be made."""

import numpy as np
import pytest

from assay.programs.run.returns import reproduce
from assay.programs.run.watched import Stored

REWARDS = np.array([1.0, 0.5, -0.2, 0.3, 2.0, 0.1, -1.0, 0.7, 0.4, 0.9, -0.6, 0.8, 0.25, 1.5, -0.3, 0.05])
DONES = np.zeros(16)
DONES[[4, 9, 15]] = 1
VALUES = np.sin(np.arange(16.0))


def gae(discount, trace, ends, values, last=0.0):
    made, after = np.zeros(16), 0.0
    for step in reversed(range(16)):
        on = 1 - ends[step]
        following = last if step == 15 else values[step + 1]
        after = REWARDS[step] + discount * on * following - values[step] + discount * trace * on * after
        made[step] = after
    return made


def returns(discount, ends=DONES):
    return gae(discount, 1.0, ends, np.zeros(16))


def found(weights, *others):
    stored = [Stored("rewards", REWARDS), Stored("dones", DONES), Stored("values", VALUES), *others]
    return reproduce(weights.reshape(16, 1), stored, (16, 1))


@pytest.mark.parametrize("weights", [returns(0.9), 3 * returns(0.9) - 2, (returns(0.9) - 1.0) / 7])
def test_returns_that_end_with_their_episode_are_sound_however_they_are_scaled(weights):
    form, name, discount, ends = found(weights)
    assert (form, name, ends) == ("", "rewards", 2)
    assert discount == pytest.approx(0.9)


def test_gae_is_found_with_its_discount_and_the_critic_behind_the_last_action_need_not_be_known():
    form, name, discount, _ = found(gae(0.97, 0.8, DONES, VALUES, last=5.0))
    assert (form, name) == ("", "rewards")
    assert discount == pytest.approx(0.97)


def test_returns_that_go_on_over_ends_of_episodes_are_a_mistake():
    assert found(returns(0.9, ends=np.zeros(16)))[:2] == ("uncut", "rewards")
    assert found(gae(0.97, 0.8, np.zeros(16), VALUES))[:2] == ("uncut", "rewards")


def test_without_any_ends_nothing_has_to_be_cut():
    stored = [Stored("rewards", REWARDS)]
    assert reproduce(returns(0.9, ends=np.zeros(16)).reshape(16, 1), stored, (16, 1))[:2] == ("", "rewards")


def test_rewards_of_the_past_and_returns_in_the_opposite_order_are_mistakes():
    past = np.array([sum(0.9 ** (step - at) * REWARDS[at] for at in range(step + 1)) for step in range(16)])
    stored = [Stored("rewards", REWARDS)]
    assert reproduce(past.reshape(16, 1), stored, (16, 1))[0] == "past"
    backwards = returns(0.9, ends=np.zeros(16))[::-1]
    assert reproduce(backwards.reshape(16, 1), stored, (16, 1))[0] == "reversed"


def test_weights_of_another_kind_and_one_weight_for_an_episode_are_not_judged():
    assert found(np.cos(np.arange(16.0) ** 2)) is None
    assert found(np.repeat([1.0, -1.0, 0.5], [5, 5, 6])) is None
