from dataclasses import replace

import pytest
import torch
from fixtures.tiny import EOS_ID, prompt, tiny_policy

from assay.config.sections import RolloutConfig
from assay.engine.engine import BrokenPolicy
from assay.engine.shared_weights import SharedWeightsEngine
from assay.policy.causal import CausalPolicy
from assay.policy.causal_packing import CausalPacking
from assay.policy.codec import TokenizerCodec
from assay.policy.embedded import tokenizer
from assay.train.step.pack import pack_rows
from assay.types import Sample, StopReason

PROMPTS = [prompt(0, (2, 3, 4)), prompt(1, (5,)), prompt(2, (6, EOS_ID, 7, 8, 9, 10)), prompt(3, (11, 12))]


def sampled(policy, prompts=PROMPTS, *, seed=0, group_size=8, max_tokens=12, greedy=False):
    return SharedWeightsEngine(policy).generate(
        prompts,
        group_size=group_size,
        settings=RolloutConfig(max_tokens=max_tokens),
        seed=seed,
        policy_version=3,
        greedy=greedy,
    )


class WithoutCache(torch.nn.Module):
    """A plain module: ids_BL -> logits_BLV, nothing of Hugging Face about it."""

    def __init__(self, model):
        super().__init__()
        self.inner = model

    def forward(self, ids_BL):
        return self.inner(ids_BL, use_cache=False).logits


def trainer_logprobs(policy, prompts, groups):
    samples = [
        Sample(one, rollout, 0.0, in_loss=True) for one, tries in zip(prompts, groups, strict=True) for rollout in tries
    ]
    (minibatch,) = pack_rows(
        samples,
        range(len(samples)),
        minibatches=1,
        microbatches=1,
        max_tokens=32,
        packing=CausalPacking(torch.device("cpu")),
    )
    (batch,) = minibatch.microbatches
    with torch.no_grad():
        return batch, policy.logprobs(batch.inputs)[0]


@pytest.mark.parametrize("temperature", [1.0, 0.7, 1.5])
@pytest.mark.parametrize("of_the_family", [True, False])
def test_the_samplers_logprobs_are_the_trainers(temperature, of_the_family):
    policy = tiny_policy(temperature=temperature)
    if not of_the_family:
        policy = replace(policy, family=None)
    groups = sampled(policy, group_size=64)
    batch, logprobs_BT = trainer_logprobs(policy, PROMPTS, groups)
    difference = (logprobs_BT - batch.sampler_BT)[batch.mask_BT].abs().max()
    assert difference <= 5e-5
    assert logprobs_BT[batch.mask_BT].std() > 0.5  # the comparison is not between constants


def test_a_wrong_temperature_would_be_seen():
    groups = sampled(tiny_policy(temperature=0.7))
    batch, logprobs_BT = trainer_logprobs(tiny_policy(temperature=1.0), PROMPTS, groups)
    assert (logprobs_BT - batch.sampler_BT)[batch.mask_BT].abs().max() > 0.1


def test_a_rollout_ends_with_its_eos_or_at_the_limit():
    rollouts = [rollout for tries in sampled(tiny_policy(), group_size=32, max_tokens=6) for rollout in tries]
    assert {rollout.stop for rollout in rollouts} == {StopReason.EOS, StopReason.LENGTH}
    for rollout in rollouts:
        assert rollout.policy_version == 3
        if rollout.stop is StopReason.EOS:
            assert rollout.tokens.index(EOS_ID) == len(rollout.tokens) - 1
        else:
            assert EOS_ID not in rollout.tokens
            assert len(rollout.tokens) == 6


def test_eos_on_the_last_allowed_token_is_an_eos_not_a_truncation():
    rollouts = [rollout for tries in sampled(tiny_policy(), group_size=64, max_tokens=2) for rollout in tries]
    last = [rollout for rollout in rollouts if len(rollout.tokens) == 2 and rollout.tokens[-1] == EOS_ID]
    assert last
    assert all(rollout.stop is StopReason.EOS for rollout in last)


def test_text_is_the_tokens_without_the_eos():
    words = tokenizer()
    for tries in sampled(tiny_policy()):
        for rollout in tries:
            kept = [token for token in rollout.tokens if token != EOS_ID]
            # a special token in the middle stays: a checker that cannot see it would reward it
            assert rollout.text == "".join(words.convert_ids_to_tokens(kept))


def test_no_prompts_no_rollouts():
    assert sampled(tiny_policy(), []) == []


def test_members_of_a_group_differ_and_so_do_seeds_and_the_same_seed_does_not():
    policy = tiny_policy()
    groups = sampled(policy)
    assert all(len({rollout.tokens for rollout in tries}) > 4 for tries in groups)
    assert groups == sampled(policy)
    assert groups != sampled(policy, seed=1)


@pytest.mark.parametrize("of_the_family", [True, False])
def test_the_cached_decoders_and_the_plain_one_sample_the_same(of_the_family):
    policy = tiny_policy()
    assert policy.family is not None
    if not of_the_family:
        policy = replace(policy, family=None)
    assert policy.abilities.cache
    plain = CausalPolicy(WithoutCache(policy.model).eval(), TokenizerCodec(tokenizer()), (EOS_ID,), 1.0)
    assert not plain.abilities.cache
    for first, second in zip(sampled(policy), sampled(plain), strict=True):
        assert [rollout.tokens for rollout in first] == [rollout.tokens for rollout in second]
        for one, other in zip(first, second, strict=True):
            assert one.sampler_logprobs == pytest.approx(other.sampler_logprobs, abs=2e-5)


def test_greedy_takes_the_likeliest_token_whatever_the_batch_and_the_padding_beside_it():
    policy = tiny_policy()
    together = sampled(policy, group_size=1, greedy=True)
    for index, one in enumerate(PROMPTS):
        alone = sampled(policy, [one], group_size=1, greedy=True)[0][0]
        assert together[index][0].tokens == alone.tokens
        ids = list(one.tokens)
        for token in alone.tokens:
            with torch.no_grad():
                assert int(policy.logits(torch.tensor([ids]))[0, -1].argmax()) == token
            ids.append(token)


def test_sampling_follows_the_distribution():
    policy = tiny_policy()
    (tries,) = sampled(policy, [PROMPTS[0]], group_size=4000, max_tokens=1)
    counts = torch.zeros(13)
    for rollout in tries:
        counts[rollout.tokens[0]] += 1
    with torch.no_grad():
        expected = policy.logits(torch.tensor([PROMPTS[0].tokens]))[0, -1].softmax(0)
    # five standard deviations of a binomial count
    assert torch.all((counts / 4000 - expected).abs() <= 5 * (expected * (1 - expected) / 4000).sqrt() + 1e-3)


@pytest.mark.parametrize("greedy", [True, False])
def test_a_policy_that_has_blown_up_is_named_in_a_sentence(greedy):
    policy = tiny_policy()
    with torch.no_grad():
        policy.model.lm_head.weight[3, 0] = torch.nan
    with pytest.raises(BrokenPolicy, match="probabilities of the next token are not finite"):
        sampled(policy, greedy=greedy)
