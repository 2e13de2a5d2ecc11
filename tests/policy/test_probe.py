"""What a model can do is seen, not believed; what it cannot is done another way, to the same numbers."""

from dataclasses import replace

import pytest
import torch
import transformers
from fixtures.compared import sampled, trainers_and_samplers
from fixtures.small_models import EOS, recurrent, share_of_good
from fixtures.small_models import PROMPTS as TRAINER_PROMPTS
from fixtures.tiny import EOS_ID, prompt, tiny_policy

from assay import GRPOTrainer
from assay.policy import probe
from assay.policy.causal import Abilities, CausalPolicy
from assay.policy.codec import TokenizerCodec
from assay.policy.continuation import CachedRows, RecomputedRows
from assay.policy.embedded import tokenizer
from assay.policy.probe import LEFT, PROMPT, RIGHT, _spread, examine_policy, with_family

PROMPTS = [prompt(0, (2, 3, 4)), prompt(1, (5, 5)), prompt(2, (6, EOS_ID, 7, 8, 9, 10)), prompt(3, (11, 12))]
COMMON = {
    "vocab_size": 13,
    "eos_token_id": EOS_ID,
    "pad_token_id": EOS_ID,
    "bos_token_id": None,
    "tie_word_embeddings": False,
}
NARROW = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 32,
    "initializer_range": 0.3,
}


def bloom():
    shape = {"hidden_size": 16, "n_layer": 2, "n_head": 2, "initializer_range": 0.3}
    return transformers.BloomForCausalLM(transformers.BloomConfig(**shape, **COMMON))


def gemma2(softcap=2.0, window=4):
    config = transformers.Gemma2Config(
        **NARROW, **COMMON, final_logit_softcapping=softcap, sliding_window=window, query_pre_attn_scalar=8
    )
    return transformers.Gemma2ForCausalLM(config)


def mistral(window):
    return transformers.MistralForCausalLM(transformers.MistralConfig(**NARROW, **COMMON, sliding_window=window))


def gpt2():
    shape = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32, "initializer_range": 0.4}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**shape, **COMMON))


def mamba():
    shape = {"hidden_size": 16, "state_size": 4, "num_hidden_layers": 2, "conv_kernel": 3, "initializer_range": 0.5}
    return transformers.MambaForCausalLM(transformers.MambaConfig(**shape, **COMMON))


def opt():
    shape = {"hidden_size": 16, "ffn_dim": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "init_std": 0.3}
    config = transformers.OPTConfig(**shape, **COMMON, max_position_embeddings=32, word_embed_proj_dim=16)
    return transformers.OPTForCausalLM(config)


def xglm():
    shape = {"d_model": 16, "ffn_dim": 32, "num_layers": 2, "attention_heads": 2, "init_std": 0.3}
    config = transformers.XGLMConfig(**shape, **COMMON, max_position_embeddings=32, scale_embedding=False)
    return transformers.XGLMForCausalLM(config)


def roberta():
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.RobertaConfig(
        **shape, **COMMON, max_position_embeddings=40, initializer_range=0.3, is_decoder=True
    )
    return transformers.RobertaForCausalLM(config)


MODELS = {
    "bloom": bloom,
    "gemma2": gemma2,
    "gpt2": gpt2,
    "mamba": mamba,
    "mistral-window": lambda: mistral(9),  # wider than the rows that the probe looks at
    "mistral": lambda: mistral(None),
    "opt": opt,
    "roberta": roberta,
    "xglm": xglm,
}
# what each must be seen to do; the rest may go either way as transformers develops
SEEN = {
    "gemma2": {"cache": True, "head": False, "sharing": False},
    "gpt2": {"cache": True, "head": True, "sharing": True},
    "mamba": {"cache": False, "sharing": False},
    "mistral-window": {"cache": True, "head": True, "sharing": False},
    "mistral": {"cache": True, "head": True, "sharing": True},
    "roberta": {"cache": False, "head": False, "sharing": False},
}


def policy_of(name, temperature=0.8):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = MODELS[name]()
    return examine_policy(CausalPolicy(model.eval(), TokenizerCodec(tokenizer()), (EOS_ID,), temperature))


@pytest.mark.parametrize("name", SEEN)
def test_abilities_are_those_that_the_model_has(name):
    abilities = policy_of(name).abilities
    assert {ability: getattr(abilities, ability) for ability in SEEN[name]} == SEEN[name]


@pytest.mark.parametrize("name", MODELS)
def test_the_samplers_logprobs_are_the_trainers_for_every_kind_of_model(name):
    policy = policy_of(name)
    groups = sampled(policy, PROMPTS, group_size=8, max_tokens=10)
    trainer, sampler = trainers_and_samplers(policy, PROMPTS, groups)
    assert (trainer - sampler).abs().max() <= 5e-5
    assert trainer.std() > 0.1
    if policy.abilities.sharing:
        shared, _ = trainers_and_samplers(policy, PROMPTS, groups, share_prompts=True)
        assert (shared - sampler).abs().max() <= 5e-5


@pytest.mark.parametrize("name", MODELS)
def test_the_trainers_logprobs_are_those_of_each_row_alone(name):
    policy = policy_of(name)
    groups = sampled(policy, PROMPTS, group_size=2, max_tokens=10)
    trainer, _ = trainers_and_samplers(policy, PROMPTS, groups)
    alone = []
    for one, tries in zip(PROMPTS, groups, strict=True):
        for rollout in tries:
            with torch.no_grad():
                scaled_LV = policy.model(torch.tensor([one.tokens + rollout.tokens])).logits[0] / 0.8
            rows = scaled_LV.log_softmax(dim=1)[len(one.tokens) - 1 : -1]
            alone += [float(row[token]) for row, token in zip(rows, rollout.tokens, strict=True)]
    assert trainer.tolist() == pytest.approx(alone, abs=5e-5)


def test_a_model_without_a_usable_cache_is_never_asked_for_it(monkeypatch):
    def refuse(*given, **rest):
        raise AssertionError("the cached decoder was used")

    able = replace(tiny_policy(), family=None)
    unable = replace(able, abilities=replace(able.abilities, cache=False))
    monkeypatch.setattr(CausalPolicy, "next_logits", refuse)
    assert len(sampled(unable, PROMPTS, group_size=2, max_tokens=4)) == 4
    with pytest.raises(AssertionError, match="was used"):
        sampled(able, PROMPTS, group_size=2, max_tokens=4)


def test_taking_a_capped_head_for_a_plain_one_would_be_seen():
    policy = policy_of("gemma2")
    groups = sampled(policy, PROMPTS, group_size=4, max_tokens=6)
    believed = replace(policy, abilities=replace(policy.abilities, head=True))
    trainer, sampler = trainers_and_samplers(believed, PROMPTS, groups)
    assert (trainer - sampler).abs().max() > 0.05


def test_sharing_prompts_under_a_sliding_window_would_be_seen():
    policy = policy_of("mistral-window")
    groups = sampled(policy, PROMPTS, group_size=4, max_tokens=8)
    believed = replace(policy, abilities=replace(policy.abilities, sharing=True))
    trainer, sampler = trainers_and_samplers(believed, PROMPTS, groups, share_prompts=True)
    assert (trainer - sampler).abs().max() > 1e-3


def test_a_cache_that_loses_the_padding_would_be_seen():
    """A GPT-2 that forgets the positions it is given: probed, it is run without its cache."""
    policy = policy_of("gpt2")
    inner = policy.model.transformer.forward

    def forgetful(*given, position_ids=None, **rest):
        return inner(*given, **rest)

    policy.model.transformer.forward = forgetful
    seen = examine_policy(replace(policy, abilities=Abilities()))
    assert (seen.abilities.cache, seen.abilities.sharing) == (False, False)
    groups = sampled(seen, PROMPTS, group_size=4, max_tokens=6)
    trainer, sampler = trainers_and_samplers(seen, PROMPTS, groups)
    assert (trainer - sampler).abs().max() <= 5e-5


def test_both_decoders_give_the_same_logits_token_by_token():
    policy = tiny_policy()
    with torch.no_grad():
        cached, plain = (kind(policy, PROMPTS, 2) for kind in (CachedRows, RecomputedRows))
        for token in (3, 9, 4):
            torch.testing.assert_close(cached.logits(), plain.logits(), rtol=0, atol=2e-5)
            tokens_N = torch.full((8,), token) + torch.arange(8) % 3
            cached.append(tokens_N)
            plain.append(tokens_N)
        torch.testing.assert_close(cached.logits(), plain.logits(), rtol=0, atol=2e-5)


def test_a_plain_torch_module_is_trained_without_any_ability():
    trainer = GRPOTrainer(recurrent(), share_of_good, eos_id=EOS, max_tokens=6, learning_rate=0.05, epochs=2)
    assert trainer.policy.abilities == Abilities()
    history = [trainer.train_step(TRAINER_PROMPTS, step) for step in range(8)]
    assert all(stats["first_ratio_max_deviation"] == 0.0 for stats in history)
    assert max(stats["mismatch_max"] for stats in history) <= 5e-5
    assert history[-1]["reward_mean"] > history[0]["reward_mean"] + 0.2


def test_a_model_is_looked_at_with_ordinary_tokens_of_its_vocabulary():
    for vocabulary in (13, 49152, 151936):
        ids = _spread([*PROMPT, *LEFT, *RIGHT], vocabulary, torch.device("cpu")).tolist()
        assert len(set(ids)) == 8
        assert vocabulary // 11 < min(ids) < max(ids) < vocabulary * 10 // 11


@pytest.mark.parametrize(
    ("dtype", "rows", "share", "is_read"),
    [
        (torch.bfloat16, slice(4, 5), 0.2, True),  # one of 13 rows, by rounding
        (torch.bfloat16, slice(0, 13), 0.2, False),  # all of them: something is read wrongly
        (torch.bfloat16, slice(3, 8), 0.4, False),  # those of the answers that share a prompt
        (torch.float32, slice(4, 5), 0.01, False),
    ],
)
def test_in_low_precision_one_row_may_be_far_off(monkeypatch, dtype, rows, share, is_read):
    policy, said = tiny_policy(dtype=dtype), []
    real = probe.project

    def off(states_ND, head):
        logits_NV = real(states_ND, head)
        logits_NV[rows] += share * logits_NV.abs().max()
        return logits_NV

    monkeypatch.setattr(probe, "project", off)
    assert (with_family(policy, said.append).family is not None) == is_read
    assert len(said) == (not is_read)
