"""GRPOTrainer.compute_advantages and compute_policy_loss: hand-worked numbers, and a sentence for each mistake."""

import math

import pytest
import torch
from fixtures.small_models import bigram

# ---------------------------------------------------------------- advantages


def test_advantages_are_distances_from_the_group_mean_over_its_sample_std():
    advantages, stats = bigram().compute_advantages([1.0, 0.0, 0.0, 1.0, 3.0, 1.0, 2.0, 6.0], group_size=4)
    # first group: mean 1/2, variance 4 * 1/4 / 3; second: mean 3, squares 0 + 4 + 1 + 9 = 14, variance 14 / 3
    first, second = math.sqrt(1 / 3) + 1e-4, math.sqrt(14 / 3) + 1e-4
    expected = [0.5 / first, -0.5 / first, -0.5 / first, 0.5 / first, 0.0, -2 / second, -1 / second, 3 / second]
    torch.testing.assert_close(advantages, torch.tensor(expected))
    # all eight: sum 14, mean 1.75, squares 52 - 8 * 1.75^2 = 27.5
    assert stats == {
        "mean": 1.75,
        "std": pytest.approx(math.sqrt(27.5 / 7)),
        "groups": 2,
        "zero_variance_share": 0.0,
        "unscored": 0,
    }


def test_the_std_and_whose_it_is_can_be_chosen():
    plain, _ = bigram(std="none").compute_advantages([3.0, 1.0, 2.0, 6.0])
    assert plain.tolist() == [0.0, -2.0, -1.0, 3.0]
    # groups (0, 2) and (10, 12): mean of all 6, squares 36 + 16 + 16 + 36 = 104, population variance 26
    batch, _ = bigram(std="population", scale="batch").compute_advantages([0, 2, 10, 12], group_size=2)
    torch.testing.assert_close(batch, torch.tensor([-1.0, 1.0, -1.0, 1.0]) / (math.sqrt(26) + 1e-4))


@pytest.mark.parametrize("make", [list, torch.tensor, lambda values: torch.tensor(values).numpy()])
def test_a_group_of_equal_rewards_gets_zeros_and_is_counted(make):
    advantages, stats = bigram().compute_advantages(make([0.1, 0.1, 0.1, 0.1, 1.0, 0.0, 0.0, 0.0]))
    assert advantages[:4].tolist() == [0.0] * 4
    assert advantages[4] > 1.4
    assert stats["zero_variance_share"] == 0.5


def test_an_unscored_reward_leaves_the_baseline_and_gets_advantage_0():
    advantages, stats = bigram(std="none").compute_advantages([1.0, None, 0.0, 0.5])
    assert advantages.tolist() == [0.5, 0.0, -0.5, 0.0]
    assert (stats["mean"], stats["unscored"]) == (0.5, 1)


def test_rewards_that_cannot_be_cut_into_groups_are_refused():
    with pytest.raises(
        ValueError, match=r"^10 rewards cannot be cut into groups of 4; pass group_size rewards for each"
    ):
        bigram().compute_advantages([0.0] * 10)
    with pytest.raises(ValueError, match=r"^0 rewards cannot be cut into groups of 4"):
        bigram().compute_advantages([])


def test_a_group_of_one_is_refused():
    with pytest.raises(ValueError, match=r"^a group of 1 has nobody to be compared with"):
        bigram().compute_advantages([1.0, 0.0], group_size=1)
    with pytest.raises(ValueError, match=r"^group_size = 1 is below its minimum 2; a group of one has nobody"):
        bigram(group_size=1)


def test_a_group_that_mixes_problems_is_refused_with_the_usual_cause():
    problems = torch.tensor([10, 11]).repeat_interleave(2)
    bigram().compute_advantages([1.0, 0.0, 1.0, 0.0], group_size=2, problems=problems)
    with pytest.raises(ValueError, match="group") as refused:
        bigram().compute_advantages([1.0, 0.0, 1.0, 0.0], group_size=2, problems=["x", "x", "a", "b"])
    assert str(refused.value) == (
        "group 1 (rewards 2 to 3) mixes problems 'a' and 'b', but only answers to one problem can be compared; were "
        "the prompts repeated with repeat instead of repeat_interleave?"
    )
    with pytest.raises(ValueError, match=r"group 0 .* mixes problems 10 and 11"):
        bigram().compute_advantages([1.0, 0.0, 1.0, 0.0], group_size=2, problems=torch.tensor([10, 11]).repeat(2))
    with pytest.raises(ValueError, match=r"^problems names 1 problems for 2 rewards; give the problem of each reward"):
        bigram().compute_advantages([1.0, 0.0], group_size=2, problems=["a"])


# ---------------------------------------------------------------- loss


def two_rows():
    """Ratios 1.25 and 0.5 in both rows; advantages +1 and -1."""
    new = torch.tensor([[0.5, 0.25], [0.5, 0.25]]).log().requires_grad_()
    old = torch.tensor([[0.4, 0.5], [0.4, 0.5]]).log()
    return new, old, torch.tensor([1.0, -1.0])


def test_the_policy_loss_has_the_hand_worked_value_and_gradient():
    new, old, advantages = two_rows()
    trainer = bigram()
    loss = trainer.compute_policy_loss(new, old, advantages)
    stats = trainer.loss_stats
    # row 0: -min(1.25, 1.2) = -1.2 and -min(0.5, 0.8) = -0.5, mean -0.85
    # row 1: -min(-1.25, -1.2) = 1.25 and -min(-0.5, -0.8) = 0.8, mean 1.025
    torch.testing.assert_close(loss, torch.tensor((-0.85 + 1.025) / 2))
    loss.backward()
    # of a token that is not clipped: -ratio * A / (2 tokens * 2 rows)
    torch.testing.assert_close(new.grad, torch.tensor([[0.0, -0.5 / 4], [1.25 / 4, 0.0]]))
    numbers = {"ratio_mean": 0.875, "ratio_min": 0.5, "ratio_max": 1.25, "clipped_share": 0.5, "tokens": 4}
    assert {name: stats[name] for name in numbers} == pytest.approx(numbers)
    assert stats["loss"] == stats["policy_loss"] == loss.item()
    assert "kl" not in stats


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32])
def test_masked_tokens_do_not_count_and_may_be_anything(dtype):
    new, old, advantages = two_rows()
    old[1, 1] = math.nan
    mask = torch.tensor([[1, 1], [1, 0]]).to(dtype)
    trainer = bigram()
    loss = trainer.compute_policy_loss(new, old, advantages, mask)
    stats = trainer.loss_stats
    torch.testing.assert_close(loss, torch.tensor((-0.85 + 1.25) / 2))
    assert stats["tokens"] == 3


def test_sequence_log_probs_and_token_advantages_are_understood():
    new, old, advantages = two_rows()
    trainer = bigram()
    whole = trainer.compute_policy_loss(new, old, advantages)
    by_token = trainer.compute_policy_loss(new, old, advantages[:, None].repeat(1, 2))
    assert whole.item() == by_token.item()
    sequences = trainer.compute_policy_loss(new[:, 0], old[:, 0], advantages)
    torch.testing.assert_close(sequences, torch.tensor((-1.2 + 1.25) / 2))


def test_clip_range_may_have_two_sides_and_the_objective_can_be_chosen():
    new, old, advantages = two_rows()
    trainer = bigram(clip_range=(0.6, 0.1))
    loss = trainer.compute_policy_loss(new, old, advantages)
    stats = trainer.loss_stats
    # -min(1.25, 1.1), -0.5 | 1.25, 0.5
    torch.testing.assert_close(loss, torch.tensor((-1.1 - 0.5 + 1.25 + 0.5) / 4))
    assert stats["clipped_share"] == 0.25
    constant = bigram(objective="dr_grpo").compute_policy_loss(new, old, advantages)
    torch.testing.assert_close(constant, torch.tensor((-1.2 - 0.5 + 1.25 + 0.8) / (2 * 6)))  # 2 rows of max_tokens 6


def test_the_kl_to_the_reference_is_added_to_the_loss():
    new = torch.tensor([[-1.0]], requires_grad=True)
    ref = new.detach() - math.log(2)
    trainer = bigram(kl_coef=0.1)
    loss = trainer.compute_policy_loss(new, new.detach(), torch.tensor([1.0]), ref_log_probs=ref)
    stats = trainer.loss_stats
    kl = 0.5 - 1 + math.log(2)  # k3 with d = log 2
    assert loss.item() == pytest.approx(-1 + 0.1 * kl)
    assert (stats["kl"], stats["kl_loss"]) == pytest.approx((kl, 0.1 * kl))
    with pytest.raises(ValueError, match=r"^kl_coef = 0\.1 needs ref_log_probs, those of the frozen reference"):
        bigram(kl_coef=0.1).compute_policy_loss(new, new.detach(), torch.tensor([1.0]))


@pytest.mark.parametrize("name", ["old_log_probs", "advantages", "ref_log_probs"])
def test_what_must_be_fixed_may_not_carry_gradient(name):
    given = {"old_log_probs": torch.zeros(2, 3), "advantages": torch.zeros(2), "ref_log_probs": torch.zeros(2, 3)}
    given[name].requires_grad_()
    with pytest.raises(ValueError, match=rf"^{name} carries gradient, so that .*; call \.detach\(\) on it$"):
        bigram().compute_policy_loss(torch.zeros(2, 3, requires_grad=True), **given)


def test_log_probs_without_gradient_are_refused_where_a_gradient_could_be():
    new, old, advantages = two_rows()
    with pytest.raises(ValueError, match=r"^log_probs carries no gradient, so that nothing would be learned"):
        bigram().compute_policy_loss(new.detach(), old, advantages)
    with torch.no_grad():
        loss = bigram().compute_policy_loss(new.detach(), old, advantages)
    assert loss.item() == pytest.approx(0.0875)


@pytest.mark.parametrize(
    ("log_probs", "name", "shape", "wanted"),
    [
        ((3, 2), "advantages", (3, 1), r"\[3\] or \[3, 2\]"),
        ((3, 2), "advantages", (2,), r"\[3\] or \[3, 2\]"),
        ((3, 2), "advantages", (), r"\[3\] or \[3, 2\]"),
        ((3,), "advantages", (3, 1), r"\[3\]"),
        ((3,), "old_log_probs", (3, 1), r"\[3\]"),
        ((3, 2), "old_log_probs", (3,), r"\[3, 2\]"),
        ((3, 2), "ref_log_probs", (1, 2), r"\[3, 2\]"),
        ((3, 2), "mask", (3,), r"\[3, 2\]"),
    ],
)
def test_shapes_that_would_be_broadcast_are_refused(log_probs, name, shape, wanted):
    given = {"old_log_probs": torch.zeros(log_probs), "advantages": torch.zeros(log_probs[0]), name: torch.zeros(shape)}
    with pytest.raises(ValueError, match=rf"^{name} has shape .* beside log_probs .*; wanted is {wanted}: any other"):
        bigram().compute_policy_loss(torch.zeros(log_probs, requires_grad=True), **given)


def test_other_tensors_that_make_no_loss_are_refused():
    new, old, advantages = two_rows()
    with pytest.raises(ValueError, match=r"^log_probs has shape \[1, 2, 2\]; expected \[B, T\] \(per token\) or \[N\]"):
        bigram().compute_policy_loss(new[None], old[None], advantages)
    with pytest.raises(ValueError, match=r"^mask is False everywhere, so no token is left to train on"):
        bigram().compute_policy_loss(new, old, advantages, torch.zeros(2, 2))
    with pytest.raises(ValueError, match=r"^mask holds values other than 0 and 1"):
        bigram().compute_policy_loss(new, old, advantages, torch.full((2, 2), 0.5))
    with pytest.raises(TypeError, match=r"^advantages is the list \[1\.0, -1\.0\]; pass a tensor"):
        bigram().compute_policy_loss(new, old, [1.0, -1.0])
    with pytest.raises(ValueError, match=r"^log-probs in torch\.bfloat16 .* keep 3 digits"):
        bigram().compute_policy_loss(new.bfloat16(), old.bfloat16(), advantages)
