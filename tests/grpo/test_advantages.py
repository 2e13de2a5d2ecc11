"""Rewards -> advantages: hand-worked numbers and invariances.

Everything is reached through the name `grpo`, so that the mutant test can put a mutated module in its place.
"""

import itertools
import math

import pytest
import torch

import assay.grpo as grpo

NAN = float("nan")
VARIANTS = list(itertools.product(("mean", "leave_one_out"), ("sample", "population", "none"), ("group", "batch")))


def tensor(values, dtype=torch.float64):
    return torch.tensor(values, dtype=dtype)


def assert_values(actual, expected, tolerance=1e-12):
    torch.testing.assert_close(actual, tensor(expected, actual.dtype), rtol=tolerance, atol=tolerance)


def test_the_sample_std_divides_by_n_minus_1():
    # mean 1/2, squares 4 * 1/4 = 1, variance 1 / 3
    advantage = 0.5 / (math.sqrt(1 / 3) + 1e-4)
    assert_values(grpo.group_advantages(tensor([[1, 0, 0, 1]])), [[advantage, -advantage, -advantage, advantage]])


def test_the_population_std_divides_by_n():
    # variance 1 / 4, std 1 / 2
    advantages = grpo.group_advantages(tensor([[1, 0, 0, 1]]), std="population")
    assert_values(advantages, [[0.5 / 0.5001, -0.5 / 0.5001, -0.5 / 0.5001, 0.5 / 0.5001]])


def test_one_success_in_eight_has_the_advantages_other_trainers_print():
    advantages = grpo.group_advantages(tensor([[1, 0, 0, 0, 0, 0, 0, 0]]))
    assert_values(advantages, [[2.4742, *[-0.35346] * 7]], tolerance=1e-4)


def test_without_a_std_the_advantage_is_the_distance_from_the_mean():
    assert_values(grpo.group_advantages(tensor([[3, 1, 2, 6]]), std="none"), [[0, -2, -1, 3]])


def test_epsilon_is_added_to_the_std():
    # population std of (1, 0) is 1/2; 1/2 / (1/2 + 1/2) = 1/2
    assert_values(grpo.group_advantages(tensor([[1, 0]]), std="population", epsilon=0.5), [[0.5, -0.5]])


def test_each_group_has_its_own_mean_and_std():
    # sample std of (0, 2) is sqrt(2), of (10, 50) is 20 sqrt(2)
    advantages = grpo.group_advantages(tensor([[0, 2], [10, 50]]), epsilon=0.0)
    half = 1 / math.sqrt(2)
    assert_values(advantages, [[-half, half], [-half, half]])


@pytest.mark.parametrize(("std", "variance"), [("sample", 104 / 3), ("population", 104 / 4)])
def test_batch_scale_divides_by_the_std_of_all_rewards_around_their_common_mean(std, variance):
    # mean 6: squares 36 + 16 + 16 + 36 = 104; the baselines stay those of the groups, 1 and 11
    advantages = grpo.group_advantages(tensor([[0, 2], [10, 12]]), std=std, scale="batch")
    unit = 1 / (math.sqrt(variance) + 1e-4)
    assert_values(advantages, [[-unit, unit], [-unit, unit]])


def test_leave_one_out_subtracts_the_mean_of_the_others():
    # 3 - (1+2+6)/3, 1 - (3+2+6)/3, 2 - (3+1+6)/3, 6 - (3+1+2)/3
    advantages = grpo.group_advantages(tensor([[3, 1, 2, 6]]), baseline="leave_one_out", std="none")
    assert_values(advantages, [[0, -8 / 3, -4 / 3, 4]])


def test_leave_one_out_still_divides_by_the_std_of_the_whole_group():
    # squares 0 + 4 + 1 + 9 = 14
    advantages = grpo.group_advantages(tensor([[3, 1, 2, 6]]), baseline="leave_one_out", epsilon=0.0)
    assert_values(advantages, [[0, -8 / 3 / math.sqrt(14 / 3), -4 / 3 / math.sqrt(14 / 3), 4 / math.sqrt(14 / 3)]])


def test_leave_one_out_over_the_std_of_the_group_is_grpo_times_n_over_n_minus_1():
    rewards = tensor([[3, 1, 2, 6], [0, 1, 1, 1]])
    divided = grpo.group_advantages(rewards, baseline="leave_one_out")
    torch.testing.assert_close(divided, grpo.group_advantages(rewards) * 4 / 3)
    alone = grpo.group_advantages(rewards, baseline="leave_one_out", std="none")
    # without the std each group keeps its own scale: the stds are sqrt(14 / 3) = 2.16 and 1 / 2
    torch.testing.assert_close(alone, divided * (tensor([[(14 / 3) ** 0.5], [0.5]]) + 1e-4))


def test_leave_one_out_counts_only_scored_rollouts_as_others():
    # 3 - (1+2)/2, unscored, 1 - (3+2)/2, 2 - (3+1)/2
    advantages = grpo.group_advantages(tensor([[3, NAN, 1, 2]]), baseline="leave_one_out", std="none")
    assert_values(advantages, [[1.5, 0, -1.5, 0]])


@pytest.mark.parametrize(("std", "variance"), [("sample", 1 / 3), ("population", 2 / 9)])
def test_an_unscored_rollout_leaves_mean_and_std_and_gets_exactly_zero(std, variance):
    # scored: 1, 0, 1 with mean 2/3 and squares 1/9 + 4/9 + 1/9 = 2/3
    advantages = grpo.group_advantages(tensor([[1, NAN, 0, 1]]), std=std)
    unit = 1 / 3 / (math.sqrt(variance) + 1e-4)
    assert_values(advantages, [[unit, 0, -2 * unit, unit]])
    assert advantages[0, 1].item() == 0.0


def test_an_unscored_rollout_leaves_the_batch_std_as_well():
    # scored: 0, 2, 12 with mean 14/3 and squares (196 + 64 + 484) / 9; the 12 is alone in its group
    advantages = grpo.group_advantages(tensor([[0, 2], [NAN, 12]]), scale="batch")
    unit = 1 / (math.sqrt(744 / 9 / 2) + 1e-4)
    assert_values(advantages, [[-unit, unit], [0, 0]])


@pytest.mark.parametrize(("baseline", "std", "scale"), VARIANTS)
def test_a_group_without_scores_or_with_one_score_gets_exactly_zero(baseline, std, scale):
    rewards = tensor([[NAN, NAN, NAN], [NAN, 5, NAN], [1, 2, 4]])
    advantages = grpo.group_advantages(rewards, baseline=baseline, std=std, scale=scale)
    assert torch.equal(advantages[:2], torch.zeros(2, 3, dtype=torch.float64))
    assert advantages[2].isfinite().all()
    assert advantages[2].abs().min() > 0


@pytest.mark.parametrize(("baseline", "std", "scale"), VARIANTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_rewards_give_exactly_zero_even_where_their_float_mean_is_off_by_a_bit(baseline, std, scale, dtype):
    off_by_a_bit = 0
    for size, reward, epsilon in itertools.product((2, 3, 7, 10, 13, 16), (0.1, 0.7, -0.3, 1e6 + 0.1), (1e-4, 0.0)):
        rewards = torch.full((2, size), reward, dtype=dtype)
        rewards[1, 0] = NAN
        off_by_a_bit += int((rewards[0] - rewards[0].mean()).abs().max() > 0)
        advantages = grpo.group_advantages(rewards, baseline=baseline, std=std, scale=scale, epsilon=epsilon)
        assert torch.equal(advantages, torch.zeros_like(rewards)), (size, reward, epsilon)
    assert off_by_a_bit > 0, "no case here has a mean that is off: choose other rewards"


@pytest.mark.parametrize(("baseline", "std", "scale"), VARIANTS)
def test_adding_a_constant_to_all_rewards_changes_nothing(baseline, std, scale):
    rewards = tensor([[1, 0, 3, NAN], [2, 2, 5, 1]])
    settings = {"baseline": baseline, "std": std, "scale": scale}
    shifted = grpo.group_advantages(rewards + 7, **settings)
    torch.testing.assert_close(shifted, grpo.group_advantages(rewards, **settings), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("baseline", "std", "scale"), VARIANTS)
def test_stretching_all_rewards_stretches_the_advantages_only_without_a_std(baseline, std, scale):
    rewards = tensor([[1, 0, 3, NAN], [2, 2, 5, 1]])
    settings = {"baseline": baseline, "std": std, "scale": scale, "epsilon": 0.0}
    stretched = grpo.group_advantages(rewards * 3, **settings)
    factor = 3 if std == "none" else 1
    torch.testing.assert_close(stretched, factor * grpo.group_advantages(rewards, **settings), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("baseline", "std", "scale"), VARIANTS)
def test_advantages_follow_their_rollouts_in_any_order_of_rows_and_groups(baseline, std, scale):
    rewards = tensor([[1, 0, 3, NAN], [2, 2, 5, 1], [0, 0, 0, 1]])
    settings = {"baseline": baseline, "std": std, "scale": scale}
    advantages = grpo.group_advantages(rewards, **settings)
    rows, groups = [2, 0, 3, 1], [2, 0, 1]
    shuffled = grpo.group_advantages(rewards[groups][:, rows], **settings)
    torch.testing.assert_close(shuffled, advantages[groups][:, rows], rtol=1e-12, atol=1e-12)


def test_a_group_of_one_is_refused_with_the_reason():
    with pytest.raises(ValueError, match="group of 1 has nobody to be compared with"):
        grpo.group_advantages(tensor([[1], [0]]))
    with pytest.raises(ValueError, match="group_size >= 2"):
        grpo.process_advantages(tensor([[[1, 0, 3]]]), torch.tensor([[[0, 1, 2]]]), 3)
    with pytest.raises(ValueError, match="group_size >= 2"):
        grpo.gdpo_advantages(tensor([[[1, 0]]]), tensor([1, 1]))


@pytest.mark.parametrize("reward", [math.inf, -math.inf, 1e20, -1e20])
def test_a_reward_too_large_to_be_squared_is_refused_because_it_would_silence_its_group(reward):
    rewards = torch.tensor([[1.0, 0.0, reward]])
    assert rewards.square().isinf().any()
    with pytest.raises(ValueError, match="infinite or beyond 1e\\+15"):
        grpo.group_advantages(rewards)
    with pytest.raises(ValueError, match="infinite or beyond 1e\\+15"):
        grpo.process_advantages(rewards.unsqueeze(0).mT, torch.tensor([[[0], [0], [0]]]), 1)
    with pytest.raises(ValueError, match="infinite or beyond 1e\\+15"):
        grpo.gdpo_advantages(rewards.unsqueeze(2), torch.tensor([1.0]))


def test_the_largest_rewards_that_are_accepted_do_not_overflow_in_float32():
    advantages = grpo.group_advantages(torch.tensor([[1e15, -1e15]] * 4096), scale="batch")
    assert_values(advantages[:1], [[1, -1]], tolerance=1e-3)


@pytest.mark.parametrize("setting", ["baseline", "std", "scale"])
def test_a_misspelt_choice_is_refused_rather_than_read_as_another(setting):
    with pytest.raises(ValueError, match=f"{setting} = 'smaple' is not one of"):
        grpo.group_advantages(tensor([[1, 0]]), **{setting: "smaple"})


# one group a row; each row holds (first reward, second reward) of two rollouts
GDPO_REWARDS = [[[1, 0], [0, 2]], [[0, 1], [0, 3]]]


def test_gdpo_scores_each_reward_within_its_group_and_the_weighted_sum_over_the_batch():
    # with s = 1 / sqrt(2): first z (s, -s), (0, 0); second z (-s, s), (-s, s)
    # sum 1 * first + 1/2 * second: (s/2, -s/2), (-s/2, s/2); variance 4 * (1/8) / 3 = 1/6; s/2 * sqrt(6) = sqrt(3)/2
    advantages = grpo.gdpo_advantages(tensor(GDPO_REWARDS), tensor([1, 0.5]), epsilon=0.0)
    half = math.sqrt(3) / 2
    assert_values(advantages, [[half, -half], [-half, half]])


def test_gdpo_with_population_stds():
    # z are 1 or -1 or 0; the sums are 1/2 or -1/2, their population std 1/2
    advantages = grpo.gdpo_advantages(tensor(GDPO_REWARDS), tensor([1, 0.5]), std="population", epsilon=0.0)
    assert_values(advantages, [[1, -1], [-1, 1]])


def test_gdpo_without_a_std_adds_up_the_centred_rewards():
    # centred: (1/2, -1/2), (0, 0) and (-1, 1), (-1, 1)
    advantages = grpo.gdpo_advantages(tensor(GDPO_REWARDS), tensor([1, 0.5]), std="none")
    assert_values(advantages, [[0, 0], [-0.5, 0.5]])


def test_gdpo_adds_epsilon_to_both_stds():
    # one group, one reward: z = 1/2 / (1/2 + e); its population std is z itself
    z = 0.5 / 0.75
    advantages = grpo.gdpo_advantages(tensor([[[1], [0]]]), tensor([1]), std="population", epsilon=0.25)
    assert_values(advantages, [[z / (z + 0.25), -z / (z + 0.25)]])


def test_gdpo_has_the_epsilon_of_the_group_advantages_by_default():
    z = 0.5 / 0.5001
    advantages = grpo.gdpo_advantages(tensor([[[1], [0]]]), tensor([1]), std="population")
    assert_values(advantages, [[z / (z + 1e-4), -z / (z + 1e-4)]])


def test_gdpo_takes_a_missing_component_as_the_mean_and_a_missing_rollout_out_of_the_batch():
    # first reward: 2, NaN, 0, NaN -> 1, 0, -1, -; second: 0, 4, NaN, NaN -> -2, 2, 0, -; sums -1, 2, -1
    rewards = tensor([[[2, 0], [NAN, 4], [0, NAN], [NAN, NAN]]])
    assert_values(grpo.gdpo_advantages(rewards, tensor([1, 1]), std="none"), [[-1, 2, -1, 0]])
    # population z: (1, 0, -1) and (-1, 1, 0) -> sums 0, 1, -1; population std over the 3 scored rollouts sqrt(2/3)
    advantages = grpo.gdpo_advantages(rewards, tensor([1, 1]), std="population", epsilon=0.0)
    assert_values(advantages, [[0, math.sqrt(1.5), -math.sqrt(1.5), 0]])
    assert advantages[0, 3].item() == 0.0


def test_gdpo_refuses_a_wrong_number_of_weights():
    with pytest.raises(ValueError, match="zip"):
        grpo.gdpo_advantages(tensor(GDPO_REWARDS), tensor([1]))


# two rollouts: steps worth 1 and 3 ending at tokens 1 and 3; one step worth 0 ending at token 2, one not there
STEPS = [[[1, 3], [0, NAN]]]
ENDS = [[[1, 3], [2, 0]]]


@pytest.mark.parametrize(
    ("std", "spread"), [("none", 1.0), ("sample", math.sqrt(7 / 3)), ("population", math.sqrt(14 / 9))]
)
def test_a_tokens_process_advantage_is_the_sum_of_the_steps_that_end_at_it_or_later(std, spread):
    # mean of 1, 3, 0 is 4/3: steps -1/3, 5/3 and -4/3; squares (1 + 25 + 16) / 9 = 14/3
    advantages = grpo.process_advantages(tensor(STEPS), torch.tensor(ENDS), 5, std=std, epsilon=0.0)
    first = [4 / 3, 4 / 3, 5 / 3, 5 / 3, 0]
    second = [-4 / 3, -4 / 3, -4 / 3, 0, 0]
    assert_values(advantages, [[[x / spread for x in first], [x / spread for x in second]]])


def test_process_advantages_add_epsilon_to_the_std():
    # one step each, worth 1 and 0: population std 1/2
    advantages = grpo.process_advantages(
        tensor([[[1], [0]]]), torch.tensor([[[0], [0]]]), 1, std="population", epsilon=0.5
    )
    assert_values(advantages, [[[0.5], [-0.5]]])


def test_process_advantages_with_one_step_at_the_end_are_the_group_advantages_on_every_token():
    rewards = tensor([[1, 0, 0, NAN], [3, 1, 2, 6]])
    advantages = grpo.process_advantages(rewards.unsqueeze(2), torch.full((2, 4, 1), 2), 3)
    expected = grpo.group_advantages(rewards).unsqueeze(2).expand(2, 4, 3)
    torch.testing.assert_close(advantages, expected, rtol=1e-12, atol=1e-12)
    assert torch.equal(advantages[0, 3], torch.zeros(3, dtype=torch.float64))


def test_equal_or_missing_process_rewards_give_exactly_zero():
    rewards = torch.tensor([[[0.1] * 7, [0.1] * 7], [[NAN] * 7, [NAN] * 7]])
    ends = torch.arange(7).expand(2, 2, 7)
    for std, epsilon in itertools.product(("sample", "population", "none"), (1e-4, 0.0)):
        advantages = grpo.process_advantages(rewards, ends, 7, std=std, epsilon=epsilon)
        assert torch.equal(advantages, torch.zeros(2, 2, 7))


def test_the_overlong_penalty_grows_linearly_over_the_last_tokens_before_the_limit():
    # limit 10, penalty over the last 4: free up to 6, then a quarter a token
    penalty = grpo.overlong_penalty(torch.tensor([1, 6, 7, 8, 10, 12]), max_tokens=10, penalty_tokens=4)
    assert_values(penalty, [0, 0, -0.25, -0.5, -1, -1])
