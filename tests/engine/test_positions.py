"""Learned positions: unlike rotary ones, they show it when left padding shifts a row."""

import pytest
import torch
from fixtures.tiny import EOS_ID, prompt
from transformers import GPT2Config, GPT2LMHeadModel

from assay.config.sections import RolloutConfig
from assay.engine.shared_weights import SharedWeightsEngine
from assay.policy.causal import CausalPolicy
from assay.policy.causal_packing import CausalPacking
from assay.policy.codec import TokenizerCodec
from assay.policy.embedded import tokenizer
from assay.policy.probe import examine_policy
from assay.train.step.pack import pack_rows
from assay.types import Sample, StopReason

PROMPTS = [prompt(0, (2, 3, 4)), prompt(1, (5,)), prompt(2, (6, EOS_ID, 7, 8, 9, 10, 11)), prompt(3, (11, 12))]
LIMIT = 10


class WithoutCache(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.inner = model

    def forward(self, ids_BL):
        return self.inner(ids_BL, use_cache=False).logits


def gpt2(cached=True):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = GPT2LMHeadModel(
            GPT2Config(
                vocab_size=13,
                n_embd=16,
                n_layer=2,
                n_head=2,
                n_positions=24,
                initializer_range=0.4,
                eos_token_id=EOS_ID,
                pad_token_id=EOS_ID,
                bos_token_id=None,
            )
        )
    module = model if cached else WithoutCache(model)
    return examine_policy(CausalPolicy(module.eval(), TokenizerCodec(tokenizer()), (EOS_ID,), 1.0))


def rollouts(policy, prompts=PROMPTS, *, group_size, greedy=False):
    return SharedWeightsEngine(policy).generate(
        prompts,
        group_size=group_size,
        settings=RolloutConfig(max_tokens=LIMIT),
        seed=0,
        policy_version=0,
        greedy=greedy,
    )


def trainers_and_samplers(policy, groups):
    samples = [
        Sample(one, rollout, 0.0, in_loss=True) for one, tries in zip(PROMPTS, groups, strict=True) for rollout in tries
    ]
    (minibatch,) = pack_rows(
        samples,
        range(len(samples)),
        minibatches=1,
        microbatches=1,
        max_tokens=LIMIT,
        packing=CausalPacking(torch.device("cpu")),
    )
    (batch,) = minibatch.microbatches
    with torch.no_grad():
        return policy.logprobs(batch.inputs)[0][batch.mask_BT], batch.sampler_BT[batch.mask_BT]


@torch.no_grad()
def plain_loop(model, tokens, shift=0):
    """(greedy tokens, their log-probs): one row, no cache, no padding; `shift` moves every position."""
    ids = list(tokens)
    logprobs = []
    while len(logprobs) < LIMIT and (not logprobs or ids[-1] != EOS_ID):
        positions = torch.arange(shift, shift + len(ids)).unsqueeze(0)
        output = model(torch.tensor([ids]), position_ids=positions, use_cache=False)
        distribution_V = output.logits[0, -1].log_softmax(0)
        ids.append(int(distribution_V.argmax()))
        logprobs.append(float(distribution_V.max()))
    return tuple(ids[len(tokens) :]), logprobs


@pytest.mark.parametrize("cached", [True, False])
def test_the_samplers_logprobs_are_the_trainers_where_positions_are_learned(cached):
    policy = gpt2(cached)
    assert policy.abilities.cache is cached
    groups = rollouts(policy, group_size=32)
    assert {rollout.stop for tries in groups for rollout in tries} == {StopReason.EOS, StopReason.LENGTH}
    trainer, sampler = trainers_and_samplers(policy, groups)
    assert (trainer - sampler).abs().max() <= 5e-5
    assert trainer.std() > 0.5  # the comparison is not between constants


@pytest.mark.parametrize("cached", [True, False])
def test_greedy_tokens_are_those_of_a_plain_loop_over_one_row_without_padding(cached):
    groups = rollouts(gpt2(cached), group_size=2, greedy=True)
    model = gpt2().model
    for one, tries in zip(PROMPTS, groups, strict=True):
        tokens, logprobs = plain_loop(model, one.tokens)
        for rollout in tries:
            assert rollout.tokens == tokens
            assert rollout.sampler_logprobs == pytest.approx(logprobs, abs=5e-5)
    assert len({tries[0].tokens for tries in groups}) > 1


def test_a_row_that_is_shifted_by_its_padding_would_be_seen():
    model = gpt2().model
    width = max(len(one.tokens) for one in PROMPTS)
    for one in PROMPTS:
        shift = width - len(one.tokens)
        if shift:
            straight, moved = plain_loop(model, one.tokens), plain_loop(model, one.tokens, shift)
            assert abs(straight[1][0] - moved[1][0]) > 1e-2
            assert straight[0] != moved[0]


def test_a_rollout_does_not_depend_on_the_longer_prompt_beside_it():
    policy = gpt2()
    together = rollouts(policy, group_size=1, greedy=True)
    for one, (beside,) in zip(PROMPTS, together, strict=True):
        ((alone,),) = rollouts(policy, [one], group_size=1, greedy=True)
        assert beside.tokens == alone.tokens
        assert beside.sampler_logprobs == pytest.approx(alone.sampler_logprobs, abs=5e-5)
