"""Log-probs, ratios, objectives, KL and mismatch weights, one token at a time: hand-worked numbers.

Everything is reached through the name `grpo`, so that the mutant test can put a mutated module in its place.
"""

import math

import pytest
import torch

import assay.grpo as grpo
from assay.config import LossConfig
from assay.types import Totals

NAN, INF = float("nan"), float("inf")


def tensor(values, dtype=torch.float64):
    return torch.tensor(values, dtype=dtype)


def logs(values):
    return tensor(values).log()


def assert_values(actual, expected, tolerance=1e-12):
    torch.testing.assert_close(actual, tensor(expected, actual.dtype), rtol=tolerance, atol=tolerance)


# ---------------------------------------------------------------- log-probs and entropy


def test_token_logprobs_are_the_log_softmax_of_the_logits_over_the_temperature():
    # logits (0, ln 3): probabilities 1/4 and 3/4; at temperature 1/2 they are 1/10 and 9/10
    logits = torch.tensor([[[0.0, math.log(3)], [0.0, math.log(3)]]])
    targets = torch.tensor([[0, 1]])
    assert_values(grpo.token_logprobs(logits, targets, 1.0), [[math.log(1 / 4), math.log(3 / 4)]], 1e-6)
    assert_values(grpo.token_logprobs(logits, targets, 0.5), [[math.log(1 / 10), math.log(9 / 10)]], 1e-6)


def test_a_token_sampled_among_a_few_is_scored_among_these():
    logits = torch.tensor([[[math.log(6), math.log(3), math.log(1), math.log(90)]]], requires_grad=True)
    support = torch.tensor([[[0, 1, 0]]])  # a token named twice counts once
    among = grpo.restricted(logits, support)
    assert_values(grpo.token_logprobs(among, torch.tensor([[1]]), 1.0), [[math.log(3 / 9)]], 1e-6)
    entropy = -(2 / 3) * math.log(2 / 3) - (1 / 3) * math.log(1 / 3)
    assert_values(grpo.token_entropy(among, 1.0), [[entropy]], 1e-6)
    grpo.token_logprobs(among, torch.tensor([[1]]), 1.0).sum().backward()
    assert_values(logits.grad, [[[-2 / 3, 2 / 3, 0.0, 0.0]]], 1e-6)


def test_token_logprobs_are_computed_in_float32_from_half_precision_logits():
    logits = torch.randn(2, 3, 50, generator=torch.Generator().manual_seed(0)).bfloat16()
    targets = torch.tensor([[1, 2, 3], [4, 5, 6]])
    logprobs = grpo.token_logprobs(logits, targets, 0.7)
    exact = (logits.double() / 0.7).log_softmax(2).gather(2, targets.unsqueeze(2)).squeeze(2)
    assert logprobs.dtype == torch.float32
    torch.testing.assert_close(logprobs.double(), exact, rtol=0, atol=2e-6)
    assert grpo.token_entropy(logits, 0.7).dtype == torch.float32


def test_token_logprobs_of_huge_logits_do_not_overflow():
    assert_values(grpo.token_logprobs(torch.tensor([[[1e4, 0.0]]]), torch.tensor([[1]]), 1.0), [[-1e4]])


def test_entropy_of_a_quarter_and_three_quarters():
    entropy = 0.25 * math.log(4) + 0.75 * math.log(4 / 3)
    logits = torch.tensor([[[0.0, math.log(3)]]])
    assert_values(grpo.token_entropy(logits, 1.0), [[entropy]], 1e-6)
    assert_values(grpo.token_entropy(2 * logits, 2.0), [[entropy]], 1e-6)


def test_entropy_of_a_uniform_distribution_is_the_log_of_its_size_wherever_the_logits_stand():
    assert_values(grpo.token_entropy(torch.full((1, 2, 4), 7.5), 0.3), [[math.log(4), math.log(4)]], 1e-5)


def test_a_token_ruled_out_by_an_infinite_logit_adds_nothing_to_entropy_and_gradient():
    logits = torch.tensor([[[1.0, 0.0, -INF]]], requires_grad=True)
    entropy = grpo.token_entropy(logits, 1.0)
    entropy.sum().backward()
    probability = 1 / (1 + math.exp(-1))
    expected = -probability * math.log(probability) - (1 - probability) * math.log(1 - probability)
    # dH/dz_i = -p_i (log p_i + H)
    slope = -probability * (math.log(probability) + expected)
    assert_values(entropy.detach(), [[expected]], 1e-6)
    assert_values(logits.grad, [[[slope, -slope, 0]]], 1e-6)


# ---------------------------------------------------------------- the ratio


def test_the_token_ratio_is_new_over_old_and_1_under_the_mask():
    mask = torch.tensor([[True, True, False]])
    ratio = grpo.importance_ratio(logs([[0.5, 0.1, 0.9]]), logs([[0.25, 0.4, 0.3]]), mask)
    assert_values(ratio, [[2, 0.25, 1]])


def test_the_sequence_ratio_is_the_geometric_mean_over_the_tokens_of_its_row():
    # ratios 2, 8 and (masked) 100: sqrt(16) = 4; a row without tokens has ratio 1
    mask = torch.tensor([[True, True, False], [False, False, False]])
    new, old = logs([[0.2, 0.8, 0.5], [0.1, 0.1, 0.1]]), logs([[0.1, 0.1, 0.005], [0.9, 0.9, 0.9]])
    assert_values(grpo.importance_ratio(new, old, mask, "sequence"), [[4, 4, 4], [1, 1, 1]])


def test_the_gradient_of_the_sequence_ratio_flows_through_the_mean():
    # d s / d new_t = s / length = 4 / 2, on each of the two equal ratios of the row
    new = logs([[0.2, 0.8, 0.5]]).requires_grad_()
    mask = torch.tensor([[True, True, False]])
    grpo.importance_ratio(new, logs([[0.1, 0.1, 0.005]]), mask, "sequence")[0, 0].backward()
    assert_values(new.grad, [[2, 2, 0]])


def test_the_log_ratio_is_bounded_so_that_no_ratio_overflows():
    ratio = grpo.importance_ratio(tensor([[0.0, -200.0]]), tensor([[-200.0, 0.0]]), torch.tensor([[True, True]]))
    assert_values(ratio, [[math.exp(20), math.exp(-20)]])


def test_an_unknown_ratio_level_is_refused():
    with pytest.raises(ValueError, match="level = 'row' is not one of token, sequence"):
        grpo.importance_ratio(tensor([[0.0]]), tensor([[0.0]]), torch.tensor([[True]]), "row")


# ---------------------------------------------------------------- objectives

CLIP_HIGHER = LossConfig(clip_low=0.2, clip_high=0.3)  # bounds 0.8 and 1.3


def clipped(ratio, advantage, settings=CLIP_HIGHER):
    """loss, whether it counts as clipped, d loss / d ratio of one token"""
    ratio = tensor([[float(ratio)]]).requires_grad_()
    loss, is_clipped = grpo.clipped_surrogate(ratio, tensor([[float(advantage)]]), ratio, settings)
    (gradient,) = torch.autograd.grad(loss.sum(), ratio)
    return round(loss.item(), 12), is_clipped.item(), round(gradient.item(), 12) + 0.0


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "is_clipped", "gradient"),
    [
        (1.0, 2.0, -2.0, False, -2.0),
        (1.0, -2.0, 2.0, False, 2.0),
        (1.5, 2.0, -2.6, True, 0.0),  # min(3, 1.3 * 2)
        (1.5, -2.0, 3.0, False, 2.0),  # min(-3, -2.6)
        (0.5, 2.0, -1.0, False, -2.0),  # min(1, 1.6)
        (0.5, -2.0, 1.6, True, 0.0),  # min(-1, -0.8 * 2)
        (1.25, 2.0, -2.5, False, -2.0),  # a bound of 1.2 would clip it
        (0.75, -2.0, 1.6, True, 0.0),  # a bound of 0.7 would not clip it
        (1.3, 2.0, -2.6, False, -2.0),  # at the bound, not beyond it
        (0.8, -2.0, 1.6, False, 2.0),
        (1.5, 0.0, 0.0, False, 0.0),  # nothing to clip
        (0.5, 0.0, 0.0, False, 0.0),
        (1.5, -0.5, 0.75, False, 0.5),
        (0.5, 0.5, -0.25, False, -0.5),
        (5.0, -2.0, 10.0, False, 2.0),  # unbounded without delta and dual clip
    ],
)
def test_the_clipped_surrogate_is_the_smaller_of_both_arms(ratio, advantage, loss, is_clipped, gradient):
    assert clipped(ratio, advantage) == (loss, is_clipped, gradient)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (5.0, -2.0, 6.0, 0.0),  # max(-10, 3 * -2)
        (2.0, -2.0, 4.0, 2.0),  # max(-4, -6): not yet at the floor
        (0.5, -2.0, 1.6, 0.0),
        (5.0, 2.0, -2.6, 0.0),  # positive advantages never see it: max(2.6, 6) would be 6
        (5.0, 0.5, -0.65, 0.0),
        (1.0, 2.0, -2.0, -2.0),
    ],
)
def test_dual_clip_bounds_the_loss_of_negative_advantages_only(ratio, advantage, loss, gradient):
    settings = LossConfig(clip_low=0.2, clip_high=0.3, dual_clip=3.0)
    assert clipped(ratio, advantage, settings)[::2] == (loss, gradient)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (5.0, -2.0, 8.0, 0.0),  # min(4 * -2, 1.3 * -2)
        (3.0, -2.0, 6.0, 2.0),
        (5.0, 2.0, -2.6, 0.0),
        (0.5, 2.0, -1.0, -2.0),
    ],
)
def test_delta_caps_the_ratio_of_the_unclipped_arm(ratio, advantage, loss, gradient):
    settings = LossConfig(clip_low=0.2, clip_high=0.3, delta=4.0)
    assert clipped(ratio, advantage, settings)[::2] == (loss, gradient)


def test_cispo_weighs_the_logprob_by_the_capped_ratio():
    settings = LossConfig(cispo_max=5.0)
    ratio, advantages, new = tensor([[7, 3, 7, 0.1, 5]]), tensor([[2, 2, -2, 2, 2]]), tensor([[-0.5] * 5])
    loss, is_clipped = grpo.cispo(ratio, advantages, new, settings)
    assert_values(loss, [[5, 3, -5, 0.1, 5]])
    assert is_clipped.tolist() == [[True, False, True, False, False]]


def test_cispo_lets_no_gradient_through_the_ratio():
    new = tensor([[-0.5]]).requires_grad_()
    ratio = (new + 0.5).exp() * 3
    loss, _ = grpo.cispo(ratio, tensor([[2]]), new, LossConfig(cispo_max=5.0))
    (gradient,) = torch.autograd.grad(loss.sum(), new)
    assert_values(gradient, [[-6]])  # -ratio * A; through the ratio it would be -6 * (1 + new) = -3


def test_sapo_gates_the_ratio_by_a_sigmoid_with_a_temperature_for_each_sign():
    settings = LossConfig(sapo_positive=2.0, sapo_negative=0.5)
    ratio, advantages = tensor([[1, 2, 1, 2]]), tensor([[3, 3, -3, -3]])
    loss, is_clipped = grpo.sapo(ratio, advantages, ratio, settings)
    positive = 4 / 2 / (1 + math.exp(-2))
    negative = 4 / 0.5 / (1 + math.exp(-0.5))
    assert_values(loss, [[-3, -3 * positive, 3 * 4, 3 * negative]])
    assert not is_clipped.any()


def test_sapo_has_the_slope_of_the_plain_objective_at_ratio_1_whatever_the_temperature():
    ratio = tensor([[1.0, 1.0]]).requires_grad_()
    loss, _ = grpo.sapo(ratio, tensor([[3, -3]]), ratio, LossConfig(sapo_positive=0.3, sapo_negative=4.0))
    (gradient,) = torch.autograd.grad(loss.sum(), ratio)
    assert_values(gradient, [[-3, 3]])


def test_the_seven_objectives_have_their_level_and_aggregation():
    assert {name: (chosen.level, chosen.aggregation) for name, chosen in grpo.OBJECTIVES.items()} == {
        "grpo": ("token", "sequence_mean"),
        "bnpo": ("token", "token_mean"),
        "dr_grpo": ("token", "constant"),
        "dapo": ("token", "rollout_token_mean"),
        "gspo": ("sequence", "sequence_mean"),
        "cispo": ("token", "rollout_token_mean"),
        "sapo": ("token", "sequence_mean"),
    }


# ---------------------------------------------------------------- token weights

MASK = torch.tensor([[True, True, False], [True, False, False], [False, False, False]])
TOTALS = Totals(sequences=4, tokens=8, share_of_rollout_tokens=10.0, max_tokens=5)


@pytest.mark.parametrize(
    ("aggregation", "weights"),
    [
        ("sequence_mean", [[1 / 8, 1 / 8, 0], [1 / 4, 0, 0], [0, 0, 0]]),
        ("token_mean", [[1 / 8, 1 / 8, 0], [1 / 8, 0, 0], [0, 0, 0]]),
        ("rollout_token_mean", [[1 / 10, 1 / 10, 0], [1 / 10, 0, 0], [0, 0, 0]]),
        ("constant", [[1 / 20, 1 / 20, 0], [1 / 20, 0, 0], [0, 0, 0]]),
    ],
)
def test_token_weights_come_from_the_counts_of_the_whole_update(aggregation, weights):
    assert_values(grpo.token_weights(MASK.double(), aggregation, TOTALS), weights)
    assert_values(grpo.token_weights(MASK, aggregation, TOTALS), weights, 1e-7)


def test_a_single_token_of_an_update_has_the_whole_weight():
    single = Totals(sequences=1, tokens=1, share_of_rollout_tokens=1.0, max_tokens=1)
    for aggregation in ("sequence_mean", "token_mean", "rollout_token_mean", "constant"):
        assert grpo.token_weights(torch.tensor([[True]]), aggregation, single).item() == 1.0


def test_an_update_without_tokens_weighs_nothing_instead_of_dividing_by_zero():
    empty = Totals(sequences=3, tokens=0, share_of_rollout_tokens=0.0, max_tokens=5)
    for aggregation in ("sequence_mean", "token_mean", "rollout_token_mean", "constant"):
        assert torch.equal(grpo.token_weights(MASK & False, aggregation, empty), torch.zeros(3, 3))


def test_an_unknown_aggregation_is_refused():
    with pytest.raises(ValueError, match="aggregation = 'mean' is not one of sequence_mean, token_mean"):
        grpo.token_weights(MASK, "mean", TOTALS)


# ---------------------------------------------------------------- KL


@pytest.mark.parametrize(
    ("estimator", "above", "below"),
    [
        ("k1", math.log(2), -math.log(2)),
        ("k2", math.log(2) ** 2 / 2, math.log(2) ** 2 / 2),
        ("k3", 1 / 2 - 1 + math.log(2), 2 - 1 - math.log(2)),  # ref / new - 1 - log(ref / new)
    ],
)
def test_kl_estimates_where_new_is_twice_and_half_as_likely_as_ref(estimator, above, below):
    estimate = grpo.kl_estimate(logs([[0.5, 0.2]]), logs([[0.25, 0.4]]), estimator)
    assert_values(estimate, [[above, below]])


def test_k3_is_the_default_estimator_and_exact_for_tiny_differences_in_float32():
    # d^2 / 2 - d^3 / 6 for d = 1e-4; exp(-d) - 1 computed naively loses all digits of 5e-9
    estimate = grpo.kl_estimate(torch.tensor([[1e-4]]), torch.tensor([[0.0]]))
    assert_values(estimate, [[5e-9]], tolerance=5e-11)


def test_kl_of_hopeless_tokens_is_bounded_instead_of_overflowing():
    estimate = grpo.kl_estimate(torch.tensor([[-200.0, 0.0]]), torch.tensor([[0.0, -200.0]]), "k3")
    assert_values(estimate, [[math.exp(20) - 21, 19 + math.exp(-20)]], tolerance=1e-6)


def test_an_unknown_estimator_is_refused():
    with pytest.raises(ValueError, match="estimator = 'k4' is not one of k1, k2, k3"):
        grpo.kl_estimate(tensor([[0.0]]), tensor([[0.0]]), "k4")


def test_sequence_kl_adds_up_the_tokens_of_each_row():
    mask = torch.tensor([[True, True, False], [False, True, True]])
    old, ref = logs([[0.5, 0.5, 0.9], [NAN, 0.2, 0.3]]), logs([[0.25, 0.25, 0.1], [0.1, 0.4, 0.3]])
    assert_values(grpo.sequence_kl(old, ref, mask), [2 * math.log(2), -math.log(2)])
    assert_values(grpo.sequence_kl(old, ref, mask, "k3"), [2 * (math.log(2) - 1 / 2), 1 - math.log(2)])


# ---------------------------------------------------------------- engine mismatch

# old / sampler is 4, 1/2, 3/2: product 3
OLD, SAMPLER = logs([[0.8, 0.1, 0.3]]), logs([[0.2, 0.2, 0.2]])
ALL = torch.tensor([[True, True, True]])
ROOT = 3 ** (1 / 3)


def mismatch(old, sampler, mask, level="token", **settings):
    chosen = {f"correction_{name}": value for name, value in settings.items()}
    return grpo.mismatch_weights(old, sampler, mask, LossConfig(correction=level, **chosen))


@pytest.mark.parametrize(
    ("level", "mode", "low", "high", "weights"),
    [
        ("token", "truncate", 0.75, 2.0, [2, 0.75, 1.5]),
        ("token", "mask", 0.75, 2.0, [0, 0, 1.5]),
        ("token", "truncate", 0.0, 9.0, [4, 0.5, 1.5]),
        ("sequence", "truncate", 0.0, 2.0, [2, 2, 2]),
        ("sequence", "truncate", 3.5, 9.0, [3.5, 3.5, 3.5]),
        ("sequence", "mask", 0.0, 2.0, [0, 0, 0]),
        ("sequence", "mask", 3.5, 9.0, [0, 0, 0]),
        ("sequence", "mask", 0.0, 4.0, [3, 3, 3]),
        ("geometric", "truncate", 0.0, 2.0, [ROOT, ROOT, ROOT]),
        ("geometric", "truncate", 0.0, 1.2, [1.2, 1.2, 1.2]),
        ("geometric", "mask", 0.0, 1.2, [0, 0, 0]),
        ("geometric", "mask", 1.2, 2.0, [ROOT, ROOT, ROOT]),
    ],
)
def test_mismatch_weights_by_level_and_mode(level, mode, low, high, weights):
    actual = mismatch(OLD, SAMPLER, ALL, level=level, mode=mode, low=low, high=high)
    assert_values(actual, [weights])


def test_by_default_the_mismatch_is_truncated_at_2_by_token():
    assert_values(mismatch(OLD, SAMPLER, ALL), [[2, 0.5, 1.5]])


@pytest.mark.parametrize(
    ("level", "weights"), [("token", [4, 1, 1.5]), ("sequence", [6, 6, 6]), ("geometric", [6 ** (1 / 3)] * 3)]
)
def test_a_sampler_logprob_that_was_not_reported_weighs_1(level, weights):
    sampler = SAMPLER.clone()
    sampler[0, 1] = NAN
    for mode in ("truncate", "mask"):
        assert_values(mismatch(OLD, sampler, ALL, level=level, mode=mode, high=9.0), [weights])


@pytest.mark.parametrize(("level", "weight"), [("token", 4), ("sequence", 2), ("geometric", math.sqrt(2))])
def test_masked_tokens_take_no_part_in_the_mismatch_and_weigh_1(level, weight):
    mask = torch.tensor([[True, True, False], [False, False, False]])
    old, sampler = OLD.repeat(2, 1), SAMPLER.repeat(2, 1)
    old[:, 2], sampler[1] = INF, NAN
    weights = mismatch(old, sampler, mask, level=level, mode="mask", high=9.0)
    second = 0.5 if level == "token" else weight
    assert_values(weights, [[weight, second, 1], [1, 1, 1]])


def test_weights_exactly_at_the_bounds_are_kept():
    for mode in ("truncate", "mask"):
        weights = mismatch(OLD, OLD, ALL, mode=mode, low=1.0, high=1.0)
        assert torch.equal(weights, torch.ones(1, 3, dtype=torch.float64))


def test_a_sampler_that_calls_its_own_token_impossible_is_bounded_or_dropped():
    impossible = tensor([[-INF, -INF, -INF]])
    for level in ("token", "sequence", "geometric"):
        assert_values(mismatch(OLD, impossible, ALL, level=level, high=3.0), [[3, 3, 3]])
        assert_values(mismatch(OLD, impossible, ALL, level=level, mode="mask", high=3.0), [[0, 0, 0]])


def test_mismatch_weights_carry_no_gradient():
    old = OLD.clone().requires_grad_()
    for mode in ("truncate", "mask"):
        assert not mismatch(old, SAMPLER, ALL, mode=mode).requires_grad


def test_an_unknown_level_or_mode_of_correction_is_refused():
    with pytest.raises(ValueError, match=r"loss.correction = 'row' is not one of token, sequence, geometric"):
        mismatch(OLD, SAMPLER, ALL, level="row")
    with pytest.raises(ValueError, match=r"loss.correction_mode = 'clamp' is not one of truncate, mask"):
        mismatch(OLD, SAMPLER, ALL, mode="clamp")
