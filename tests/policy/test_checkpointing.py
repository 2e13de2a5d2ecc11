"""Gradient checkpointing: layers are computed twice, and nothing else about a run may change."""

from dataclasses import replace

import pytest
import torch
from fixtures.compared import sampled
from fixtures.tiny import EOS_ID, prompt, tiny_policy, uneven_samples
from transformers import GPT2Config, GPT2LMHeadModel, OPTConfig, OPTForCausalLM

from assay.config import LossConfig, OptimizerConfig, load
from assay.policy.causal import CausalPolicy
from assay.policy.causal_packing import CausalPacking, Sharing
from assay.policy.load import with_adapter
from assay.policy.probe import examine_policy
from assay.train.step.learner import Learner
from assay.train.step.pack import pack_rows


def batch_of(share_prompts=False):
    samples = uneven_samples()
    return pack_rows(
        samples,
        range(len(samples)),
        minibatches=1,
        microbatches=1,
        max_tokens=8,
        packing=CausalPacking(torch.device("cpu"), Sharing(share_prompts)),
    )


def gpt2():
    shape = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32, "vocab_size": 13, "initializer_range": 0.3}
    dropout = {"attn_pdrop": 0.5, "embd_pdrop": 0.5, "resid_pdrop": 0.5}
    return GPT2LMHeadModel(GPT2Config(**shape, **dropout, eos_token_id=EOS_ID, bos_token_id=None))


def opt():
    """Its layers apply dropout themselves, by their own training mode."""
    shape = {"hidden_size": 16, "ffn_dim": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "init_std": 0.3}
    size = {"vocab_size": 13, "max_position_embeddings": 32, "word_embed_proj_dim": 16}
    ids = {"eos_token_id": EOS_ID, "pad_token_id": EOS_ID, "bos_token_id": None}
    return OPTForCausalLM(OPTConfig(**shape, **size, **ids, dropout=0.5, attention_dropout=0.5))


MODELS = {"llama": lambda: tiny_policy().model, "gpt2": gpt2, "opt": opt}
LAYERS = {"llama": "model.layers.0.mlp", "gpt2": "transformer.h.0.mlp", "opt": "model.decoder.layers.0.fc1"}


def policy_of(name, checkpointing):
    torch.manual_seed(0)
    model = MODELS[name]()
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return examine_policy(CausalPolicy(model.eval(), tiny_policy().codec, (EOS_ID,), 1.0, checkpointing=checkpointing))


def portable(policy):
    """Computed by the model's own layers, which can be counted."""
    return replace(policy, family=None)


def counted(policy, name):
    calls = []
    # before, not after: the second computation of a layer ends as soon as it has made what the gradient needs
    policy.model.get_submodule(LAYERS[name]).register_forward_pre_hook(lambda *_: calls.append(1))
    return calls


def differentiated(policy, share_prompts=False):
    (batch,) = batch_of(share_prompts)[0].microbatches
    policy.model.zero_grad()
    logprobs_BT, entropy_BT = policy.logprobs(batch.inputs, entropy_gradient=True)
    (logprobs_BT.square().sum() + entropy_BT.sum()).backward()
    return logprobs_BT.detach(), {name: weight.grad.clone() for name, weight in policy.model.named_parameters()}


@pytest.mark.parametrize("name", MODELS)
def test_the_same_logprobs_to_the_bit_and_the_same_gradients(name):
    plain, again = policy_of(name, checkpointing=False), policy_of(name, checkpointing=True)
    calls = counted(again, name)
    kept, recomputed = differentiated(portable(plain)), differentiated(portable(again))
    assert len(calls) == 2  # once forward, once more in the backward pass
    assert torch.equal(kept[0], recomputed[0])
    for weight, gradient in kept[1].items():
        torch.testing.assert_close(gradient, recomputed[1][weight], rtol=1e-6, atol=1e-6)
    assert max(float(gradient.abs().max()) for gradient in kept[1].values()) > 0.1


@pytest.mark.parametrize("share_prompts", [False, True])
def test_packed_too_the_logprobs_are_the_same_to_the_bit_and_less_is_kept(share_prompts):
    kept_bytes = []

    def measured(policy):
        kept = []

        def keep(tensor):
            kept.append(tensor.nbytes)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            answer = differentiated(policy, share_prompts)
        kept_bytes.append(sum(kept))
        return answer

    plain, again = policy_of("llama", checkpointing=False), policy_of("llama", checkpointing=True)
    assert plain.family is not None
    assert again.family is not None
    kept, recomputed = measured(plain), measured(again)
    assert torch.equal(kept[0], recomputed[0])
    for weight, gradient in kept[1].items():
        torch.testing.assert_close(gradient, recomputed[1][weight], rtol=1e-6, atol=1e-6)
    assert kept_bytes[1] < kept_bytes[0] / 2


def test_a_layer_of_a_policy_that_keeps_its_activations_is_computed_once():
    policy = portable(policy_of("llama", checkpointing=False))
    calls = counted(policy, "llama")
    differentiated(policy)
    assert len(calls) == 1


def test_without_a_gradient_nothing_is_recomputed_and_old_equals_new_to_the_bit():
    policy = policy_of("opt", checkpointing=True)
    (batch,) = batch_of()[0].microbatches
    with torch.no_grad():
        old_BT = policy.logprobs(batch.inputs)[0]
    assert torch.equal(old_BT, policy.logprobs(batch.inputs)[0])


@pytest.mark.parametrize("name", MODELS)
def test_every_module_is_in_eval_mode_afterwards_even_after_an_error(name):
    policy = policy_of(name, checkpointing=True)
    differentiated(policy)
    (batch,) = batch_of()[0].microbatches
    with pytest.raises(IndexError):
        policy.logprobs(replace(batch.inputs, ids_RS=batch.inputs.ids_RS + 99))
    assert not any(module.training for module in policy.model.modules())
    assert not any(module._forward_pre_hooks for module in policy.model.modules())


def test_generation_after_training_steps_is_that_of_a_run_without_checkpointing():
    rollouts = []
    for checkpointing in (False, True):
        policy = policy_of("llama", checkpointing)
        assert policy.abilities.cache
        learner = Learner(policy, None, LossConfig(), OptimizerConfig(epochs=2, learning_rate=1e-3), 10)
        batch = learner.freeze(batch_of(share_prompts=True))
        first, _ = (learner.update(batch.minibatches[0], batch.frozen[0], number).update for number in range(2))
        assert (first.ratio_min, first.ratio_max) == (1.0, 1.0)
        rollouts.append(sampled(policy, [prompt(0, (2, 3)), prompt(1, (4,))], group_size=8, max_tokens=8))
    for kept, recomputed in zip(rollouts[0], rollouts[1], strict=True):
        assert [one.tokens for one in kept] == [one.tokens for one in recomputed]


def test_adapters_get_their_gradient_through_recomputed_layers():
    gradients = []
    for checkpointing in (False, True):
        settings = load(None, ["model.path=x", "model.lora_rank=2"])
        policy = with_adapter(portable(policy_of("llama", checkpointing)), settings)
        calls = counted(policy, "llama")
        (batch,) = batch_of()[0].microbatches
        policy.logprobs(batch.inputs)[0].sum().backward()
        assert len(calls) == (2 if checkpointing else 1)
        gradients.append({n: w.grad for n, w in policy.model.named_parameters() if w.requires_grad})
    assert any(float(gradient.abs().max()) > 1e-3 for gradient in gradients[0].values())
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name], rtol=1e-5, atol=1e-6)
