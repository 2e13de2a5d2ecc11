"""Low-rank adapters: they begin as the identity, they alone learn, and the model without them is the reference."""

from dataclasses import replace

import pytest
import torch
from fixtures.compared import packed, sampled, trainers_and_samplers
from fixtures.tiny import EOS_ID, prompt, tiny_policy, uneven_samples
from transformers import GPT2Config, GPT2LMHeadModel

from assay.config import ConfigError, LossConfig, OptimizerConfig, load
from assay.policy.causal import CausalPolicy
from assay.policy.causal_packing import CausalPacking
from assay.policy.load import with_adapter
from assay.policy.probe import examine_policy
from assay.record import RunError
from assay.train.run.saved_weights import put_weights
from assay.train.run.saver import trained_state
from assay.train.step.learner import Learner
from assay.train.step.pack import pack_rows

PROMPTS = [prompt(0, (2, 3, 4)), prompt(1, (5, 5))]


def config(*overrides):
    return load(None, ["model.path=somewhere", "model.lora_rank=4", *overrides])


def adapted(policy=None, *overrides):
    return with_adapter(policy or tiny_policy(), config(*overrides))


def batch_of(samples=None):
    samples = samples or uneven_samples()
    return pack_rows(
        samples,
        range(len(samples)),
        minibatches=1,
        microbatches=1,
        max_tokens=8,
        packing=CausalPacking(torch.device("cpu")),
    )


def logprobs(policy):
    with torch.no_grad():
        return policy.logprobs(batch_of()[0].microbatches[0].inputs)[0]


def learner_of(policy, kl_coef=0.1):
    settings = OptimizerConfig(epochs=2, warmup=0, learning_rate=1e-2)
    return Learner(policy, policy.frozen_copy(), LossConfig(kl_coef=kl_coef), settings, total_updates=10)


def updates(learner, count, first=0):
    batch = learner.freeze(batch_of())
    return [learner.update(batch.minibatches[0], batch.frozen[0], first + number).update for number in range(count)]


def test_a_fresh_adapter_changes_no_bit_and_its_kl_to_the_reference_is_exactly_0():
    plain, policy = tiny_policy(), adapted()
    assert torch.equal(logprobs(policy), logprobs(plain))
    first, second = updates(learner_of(policy), 2)
    assert (first.ref_kl_sum, first.kl_loss, first.ratio_min, first.ratio_max) == (0.0, 0.0, 1.0, 1.0)
    assert second.ref_kl_sum > 0


def test_training_moves_the_adapters_and_not_one_bit_of_the_model():
    policy = adapted()
    before = {name: weight.detach().clone() for name, weight in policy.model.named_parameters()}
    learner = learner_of(policy)
    assert learner.names
    assert all("lora_" in name for name in learner.names)
    (update, _) = updates(learner, 2)
    assert update.applied
    for name, weight in policy.model.named_parameters():
        assert torch.equal(weight, before[name]) == ("lora_" not in name), name


def test_the_reference_is_the_model_without_adapters_whatever_the_adapters_learn():
    plain, policy = tiny_policy(), adapted()
    reference = policy.frozen_copy()
    before = logprobs(reference)
    updates(learner_of(policy), 2)
    assert torch.equal(logprobs(reference), before)
    assert torch.equal(before, logprobs(plain))
    # and the adapters are on again afterwards
    assert (logprobs(policy) - before).abs().max() > 1e-3


def test_sampling_is_from_the_model_with_its_adapters():
    policy = adapted()
    updates(learner_of(policy), 2)
    groups = sampled(policy, PROMPTS, group_size=16, max_tokens=8)
    trainer, sampler = trainers_and_samplers(policy, PROMPTS, groups)
    assert (trainer - sampler).abs().max() <= 5e-5
    base, _ = trainers_and_samplers(policy.frozen_copy(), PROMPTS, groups)
    assert (base - sampler).abs().max() > 1e-2


def test_a_checkpoint_holds_what_is_trained_alone_and_puts_it_back():
    policy = adapted()
    updates(learner_of(policy), 2)
    saved = {name: tensor.clone() for name, tensor in trained_state(policy.model).items()}
    assert set(saved) == set(learner_of(policy).names)
    fresh = adapted()
    assert not torch.equal(logprobs(fresh), logprobs(policy))
    put_weights(fresh, saved, "a checkpoint")
    assert torch.equal(logprobs(fresh), logprobs(policy))
    with pytest.raises(RunError, match="do not fit the model of the run"):
        put_weights(tiny_policy(), saved, "a checkpoint")


def tied():
    torch.manual_seed(0)
    shape = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 32, "vocab_size": 13}
    model = GPT2LMHeadModel(GPT2Config(**shape, eos_token_id=EOS_ID, bos_token_id=None, pad_token_id=None))
    assert model.lm_head.weight is model.transformer.wte.weight
    return examine_policy(CausalPolicy(model.eval(), tiny_policy().codec, (EOS_ID,), 1.0))


@pytest.mark.filterwarnings("ignore:fan_in_fan_out")
def test_the_frozen_head_of_a_tied_model_is_no_part_of_the_checkpoint():
    policy = adapted(tied(), "model.lora_targets=c_attn")
    assert all("lora_" in name for name in trained_state(policy.model))


def test_the_same_seed_gives_the_same_adapters_and_leaves_the_global_generator_alone():
    state = torch.get_rng_state()
    first, second, other = adapted(), adapted(), adapted(None, "run.seed=2")
    assert torch.equal(state, torch.get_rng_state())
    weights = [trained_state(policy.model) for policy in (first, second, other)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert not all(torch.equal(weights[0][name], weights[2][name]) for name in weights[0])


def test_the_adapters_output_is_scaled_by_alpha_over_rank():
    weak, strong = (adapted(None, f"model.lora_alpha={alpha}") for alpha in (4, 8))
    for policy in (weak, strong):
        for name, weight in policy.model.named_parameters():
            if "lora_B" in name:
                weight.data.fill_(1e-3)
    base = logprobs(tiny_policy())
    moved = [(logprobs(policy) - base).abs().mean() for policy in (weak, strong)]
    assert moved[1] / moved[0] == pytest.approx(2.0, rel=0.1)


def test_targets_are_taken_by_name_and_those_that_fit_nothing_are_refused_in_a_sentence():
    names = learner_of(adapted(None, "model.lora_targets=q_proj, v_proj")).names
    assert {name.split(".")[-4] for name in names} == {"q_proj", "v_proj"}
    with pytest.raises(ConfigError) as caught:
        adapted(None, "model.lora_targets=query")
    assert str(caught.value).startswith("model.lora_targets = 'query' fits no module of the model")
    assert "\n" not in str(caught.value)


def test_a_bfloat16_model_keeps_its_adapters_in_float32_and_learns():
    policy = adapted(tiny_policy(dtype=torch.bfloat16))
    dtypes = {("lora_" in name, weight.dtype) for name, weight in policy.model.named_parameters()}
    assert dtypes == {(False, torch.bfloat16), (True, torch.float32)}
    learner = learner_of(policy)
    assert all(master is weight for master, weight in zip(learner.masters, learner.weights, strict=True))
    first, second = updates(learner, 2)
    assert (first.ref_kl_sum, first.ratio_max) == (0.0, 1.0)
    assert first.tensors_changed > 0
    assert second.ref_kl_sum > 0
    groups = sampled(policy, PROMPTS, group_size=8, max_tokens=6)
    trainer, sampler = trainers_and_samplers(policy, PROMPTS, groups)
    assert (trainer - sampler).abs().max() < 0.1  # three digits of logits up to 4


def test_adapters_and_shared_prompts_give_the_same_update():
    moved = []
    for share_prompts in (False, True):
        policy = adapted()
        groups = sampled(tiny_policy(), PROMPTS, group_size=4, max_tokens=5)
        learner = learner_of(policy)
        batch = learner.freeze(packed(PROMPTS, groups, share_prompts=share_prompts))
        moved.append(learner.update(batch.minibatches[0], batch.frozen[0], 0).update)
    assert moved[0].loss == pytest.approx(moved[1].loss, abs=1e-6)
    assert moved[0].gradient_norm == pytest.approx(moved[1].gradient_norm, rel=1e-4)


def test_the_reference_without_adapters_can_be_told_from_the_policy_by_its_switch_alone():
    policy = adapted()
    reference = policy.frozen_copy()
    assert (reference.model is policy.model, reference.without_adapter) == (True, True)
    assert replace(reference, without_adapter=False, family=policy.family) == policy
