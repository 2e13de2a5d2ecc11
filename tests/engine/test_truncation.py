"""Truncated sampling: top-k, top-p and min-p choose the tokens, and the trainer trains what was sampled from."""

import math
from dataclasses import replace

import pytest
import torch
from fixtures.compared import Fixed, packed, sampled, trainers_and_samplers
from fixtures.tiny import EOS_ID, prompt, tiny_policy

from assay.config import LossConfig, OptimizerConfig
from assay.config.sections import RolloutConfig
from assay.grpo import restricted, token_entropy, token_logprobs
from assay.policy.causal import CausalPolicy
from assay.policy.codec import TokenizerCodec
from assay.policy.embedded import tokenizer
from assay.sampling import support
from assay.train.step.learner import Learner

PROMPTS = [prompt(0, (2, 3, 4)), prompt(1, (5, 5)), prompt(2, (6, EOS_ID, 7, 8, 9, 10)), prompt(3, (11, 12))]
# tokens 3 1 4 0 2, from the likeliest on, have these probabilities
PROBABILITIES = [0.1, 0.3, 0.05, 0.4, 0.15]
LOGITS = torch.tensor([PROBABILITIES]).log()


def kept(logits_1V=LOGITS, **settings):
    return set(support(logits_1V, RolloutConfig(**settings))[0].tolist())


def test_top_k_keeps_the_k_likeliest():
    assert [kept(top_k=k) for k in (1, 2, 3)] == [{3}, {3, 1}, {3, 1, 4}]
    assert kept(top_k=5) == kept(top_k=99) == {0, 1, 2, 3, 4}


def test_top_p_keeps_the_smallest_set_that_holds_it():
    # of all five: 0.4, 0.7, 0.85, 0.95, 1.0
    assert kept(top_k=5, top_p=0.39) == {3}
    assert kept(top_k=5, top_p=0.41) == {3, 1}
    assert kept(top_k=5, top_p=0.69) == {3, 1}
    assert kept(top_k=5, top_p=0.71) == {3, 1, 4}
    assert kept(top_k=5, top_p=0.96) == {0, 1, 2, 3, 4}
    assert kept(top_k=5, top_p=1e-6) == {3}


def test_min_p_is_a_share_of_the_likeliest():
    # 0.4 times 0.3 is 0.12: 0.15 stays, 0.1 goes; times 0.2 is 0.08: 0.1 stays, 0.05 goes
    assert kept(top_k=5, min_p=0.3) == {3, 1, 4}
    assert kept(top_k=5, min_p=0.2) == {3, 1, 4, 0}
    assert kept(top_k=5, min_p=1.0) == {3}
    assert kept(top_k=5, min_p=2.0) == {3}  # there is always one to sample


def test_top_p_is_of_the_probability_that_top_k_left():
    # of the first three it is 0.471, 0.824, 1; of all five 0.4, 0.7, 0.85
    assert kept(top_k=5, top_p=0.8) == {3, 1, 4}
    assert kept(top_k=3, top_p=0.8) == {3, 1}
    # and min-p cannot bring back what top-p took: 0.15 is more than a tenth of 0.4
    assert kept(top_k=5, top_p=0.69, min_p=0.1) == {3, 1}


def test_the_temperature_is_in_the_probabilities_that_top_p_and_min_p_see():
    # at temperature 0.5 the probabilities are squared: 0.16 0.09 0.0225 0.01 0.0025 of 0.285, cumulated 0.561 0.877
    assert kept(LOGITS / 0.5, top_k=5, top_p=0.87) == {3, 1}
    assert kept(top_k=5, top_p=0.87) == {3, 1, 4, 0}
    # the second is 0.5625 of the first, not 0.75
    assert kept(LOGITS / 0.5, top_k=5, min_p=0.6) == {3}
    assert kept(top_k=5, min_p=0.6) == {3, 1}


def test_rows_are_cut_each_by_its_own_numbers():
    flat = torch.zeros(1, 5)
    both = support(torch.cat([LOGITS, flat]), RolloutConfig(top_k=5, top_p=0.69))
    assert [len(set(row)) for row in both.tolist()] == [2, 4]


def fixed_policy(temperature):
    return CausalPolicy(Fixed(LOGITS).eval(), TokenizerCodec(tokenizer()), (0,), temperature)


@pytest.mark.parametrize(("temperature", "among"), [(1.0, {3, 1, 4, 0}), (0.5, {3, 1, 4})])
def test_the_draws_follow_the_renormalised_distribution(temperature, among):
    # of the first four, at temperature 1: cumulated 0.421 0.737 0.895 1; at 0.5: 0.566 0.885 0.965 1
    draws, policy = 6000, fixed_policy(temperature)
    (tries,) = sampled(policy, [prompt(0, (2,))], group_size=draws, max_tokens=1, top_k=4, top_p=0.9, max_rows=draws)
    scaled = [probability ** (1 / temperature) for probability in PROBABILITIES]
    expected = {token: scaled[token] / sum(scaled[one] for one in among) for token in among}
    counts = {token: sum(rollout.tokens == (token,) for rollout in tries) for token in range(5)}
    assert all(counts[token] == 0 for token in range(5) if token not in among)
    chi_square = sum((counts[token] - draws * share) ** 2 / (draws * share) for token, share in expected.items())
    assert chi_square < 16.3  # three degrees of freedom: once in a thousand
    for rollout in tries[:50]:
        assert set(rollout.support[0]) == among
        assert rollout.sampler_logprobs[0] == pytest.approx(math.log(expected[rollout.tokens[0]]), abs=1e-6)


@pytest.mark.parametrize("share_prompts", [False, True])
@pytest.mark.parametrize("settings", [{"top_k": 6, "top_p": 0.9}, {"top_k": 5, "min_p": 0.2}, {"top_k": 1}])
def test_the_samplers_logprobs_are_the_trainers_under_truncation(settings, share_prompts):
    policy = tiny_policy(temperature=0.7)
    assert policy.abilities.sharing
    groups = sampled(policy, PROMPTS, group_size=16, max_tokens=8, **settings)
    trainer, sampler = trainers_and_samplers(policy, PROMPTS, groups, share_prompts=share_prompts)
    assert (trainer - sampler).abs().max() <= 5e-5
    if settings["top_k"] == 1:
        assert sampler.abs().max() == 0.0  # one token is certain
    else:
        sizes = {len(among) for tries in groups for rollout in tries for among in rollout.support}
        assert len(sizes) > 1
        assert trainer.std() > 0.3


@pytest.mark.parametrize("of_the_family", [True, False])
def test_the_likeliest_token_has_its_log_prob_among_all_and_so_no_support(of_the_family):
    """A support of one token would make it certain, and the trainer's log-prob 0."""
    policy = tiny_policy(temperature=0.7)
    if not of_the_family:
        policy = replace(policy, family=None)
    groups = sampled(policy, PROMPTS, group_size=2, max_tokens=8, greedy=True, top_k=4)
    assert groups == sampled(policy, PROMPTS, group_size=2, max_tokens=8, greedy=True)
    assert {rollout.support for tries in groups for rollout in tries} == {None}
    trainer, sampler = trainers_and_samplers(policy, PROMPTS, groups)
    assert (trainer - sampler).abs().max() <= 5e-5
    assert sampler.min() < -0.1


def test_training_the_unrestricted_distribution_would_be_seen():
    policy = tiny_policy(temperature=0.7)
    groups = sampled(policy, PROMPTS, group_size=8, max_tokens=8, top_k=3)
    (batch,) = packed(PROMPTS, groups)[0].microbatches
    ids = torch.tensor([PROMPTS[0].tokens])
    with torch.no_grad():
        whole_V = (policy.logits(ids)[0, -1] / 0.7).log_softmax(0)
    assert batch.sampler_BT[0, 0] - whole_V[batch.inputs.targets_BT[0, 0]] > 0.01


@pytest.mark.parametrize("share_prompts", [False, True])
def test_the_first_ratio_under_truncation_is_exactly_1(share_prompts):
    policy = tiny_policy(temperature=0.7)
    groups = sampled(policy, PROMPTS, group_size=8, max_tokens=8, top_k=6, top_p=0.9)
    learner = Learner(policy, None, LossConfig(), OptimizerConfig(epochs=2, warmup=0, learning_rate=1e-3), 10)
    batch = learner.freeze(packed(PROMPTS, groups, share_prompts=share_prompts))
    first, second = (learner.update(batch.minibatches[0], batch.frozen[0], number).update for number in range(2))
    assert (first.ratio_min, first.ratio_max) == (1.0, 1.0)
    assert first.mismatch_max <= 5e-5
    assert second.ratio_max > 1.0 > second.ratio_min


def test_the_gradient_of_a_restricted_logprob_is_that_of_finite_differences():
    torch.manual_seed(0)
    logits_BTV = torch.randn(1, 2, 5, dtype=torch.float64)
    among_BTK, target_BT = torch.tensor([[[3, 1, 4], [0, 2, 2]]]), torch.tensor([[1, 2]])
    weights_BT = torch.tensor([[1.0, -2.0]], dtype=torch.float64)

    def value(logits_BTV):
        scaled_BTV = restricted(logits_BTV, among_BTK) / 0.7
        chosen_BT = scaled_BTV.gather(2, target_BT.unsqueeze(2)).squeeze(2) - scaled_BTV.logsumexp(dim=2)
        return (weights_BT * chosen_BT).sum()

    given = logits_BTV.clone().requires_grad_()
    ours = (weights_BT * token_logprobs(restricted(given, among_BTK), target_BT, 0.7)).sum()
    ours.backward()
    for place in range(10):
        step = torch.zeros(10, dtype=torch.float64)
        step[place] = 1e-6
        step = step.reshape(1, 2, 5)
        slope = (value(logits_BTV + step) - value(logits_BTV - step)) / 2e-6
        assert given.grad.flatten()[place] == pytest.approx(float(slope), abs=1e-5)
    outside = [given.grad[0, 0, token] for token in (0, 2)] + [given.grad[0, 1, token] for token in (1, 3, 4)]
    assert outside == [0.0] * 5
    assert given.grad.abs().max() > 0.5


def test_the_entropy_is_that_of_the_restricted_distribution_and_its_gradient_is_finite():
    given = LOGITS.unsqueeze(0).clone().requires_grad_()
    entropy = token_entropy(restricted(given, torch.tensor([[[3, 1]]])), 1.0)
    shares = (4 / 7, 3 / 7)
    assert float(entropy.detach()) == pytest.approx(-sum(share * math.log(share) for share in shares), abs=1e-6)
    entropy.sum().backward()
    assert given.grad.isfinite().all()
    # dH/dz = -p (log p + H): only the two tokens move it, in opposite directions
    assert given.grad[0, 0, 3] == pytest.approx(-float(given.grad[0, 0, 1]), abs=1e-6)
    assert given.grad[0, 0, 3] < -0.01
    assert given.grad[0, 0, [0, 2, 4]].abs().max() == 0.0
