"""Micro-batches as packed tokens: the right tokens, and the numbers of the path that works for every architecture."""

from dataclasses import replace

import pytest
import torch
from fixtures.compared import packed, sampled
from fixtures.tiny import EOS_ID, portable_policy, prompt, sample, tiny_policy, uneven_samples
from peft import LoraConfig, inject_adapter_in_model
from transformers import GPT2Config, GPT2LMHeadModel, MistralConfig, MistralForCausalLM

from assay.llama.layout import layout_of, longest_sequence
from assay.llama.packed import Segment
from assay.policy.causal import CausalPolicy
from assay.policy.causal_packing import CausalPacking, Sharing
from assay.policy.probe import examine_policy, rejoin_family, with_family
from assay.train.step.pack import pack_rows

CPU = torch.device("cpu")


def batch_of(samples, share_prompts=Sharing.ALWAYS, window=None):
    (minibatch,) = pack_rows(
        samples,
        range(len(samples)),
        minibatches=1,
        microbatches=1,
        max_tokens=8,
        packing=CausalPacking(CPU, Sharing(share_prompts), window),
    )
    return minibatch.microbatches[0]


def test_a_layout_by_hand():
    samples = [
        sample(0, (2, 3), (4, EOS_ID), 1.0),
        sample(0, (2, 3), (5,), -1.0),
        sample(1, (7,), (8, 9, 10), 0.5),
    ]
    layout = layout_of(batch_of(samples).inputs)
    assert layout.packed.ids_N.tolist() == [2, 3, 4, EOS_ID, 5, 7, 8, 9, 10]
    assert layout.packed.positions_N.tolist() == [0, 1, 2, 3, 2, 0, 1, 2, 3]
    # a prompt with a single answer is an ordinary sequence
    assert layout.packed.segments == (Segment(0, 2), Segment(2, 4, stem=0), Segment(4, 5, stem=0), Segment(5, 9))
    assert layout.places_M.tolist() == [0, 1, 3, 6, 7, 8]  # of three rows of three
    assert layout.predictors_M.tolist() == [1, 2, 1, 5, 6, 7]


def test_a_layout_is_made_once_and_anew_for_other_tensors():
    batch = batch_of(uneven_samples())
    assert layout_of(batch.inputs) is layout_of(batch.inputs)
    other = replace(batch.inputs, ids_RS=batch.inputs.ids_RS + 1)
    assert torch.equal(layout_of(other).packed.ids_N, layout_of(batch.inputs).packed.ids_N + 1)


def top_k_batch():
    prompts = [prompt(0, (2, 3, 4)), prompt(1, (5, 6))]
    groups = sampled(tiny_policy(temperature=0.7), prompts, group_size=4, max_tokens=6, top_k=5)
    return packed(prompts, groups)[0].microbatches[0]


BATCHES = {
    "rows": lambda: batch_of(uneven_samples(), Sharing.NEVER),
    "shared": lambda: batch_of(uneven_samples()),
    "top-k": top_k_batch,
}


@pytest.mark.parametrize("kind", BATCHES)
def test_packed_numbers_and_gradients_are_those_of_the_portable_path(kind):
    answers = []
    batch = BATCHES[kind]()
    for policy in (tiny_policy(temperature=0.7), portable_policy(temperature=0.7)):
        logprobs_BT, entropy_BT = policy.logprobs(batch.inputs, entropy_gradient=True)
        weights_BT = torch.linspace(-1, 2, logprobs_BT.numel()).reshape(logprobs_BT.shape)
        ((logprobs_BT * weights_BT).sum() + 0.5 * entropy_BT.square().sum()).backward()
        answers.append((logprobs_BT.detach(), entropy_BT.detach(), [one.grad for one in policy.model.parameters()]))
    (ours, ours_entropy, gradients), (theirs, their_entropy, expected) = answers
    torch.testing.assert_close((ours, ours_entropy), (theirs, their_entropy), rtol=0, atol=5e-6)
    for mine, gradient in zip(gradients, expected, strict=True):
        torch.testing.assert_close(mine, gradient, rtol=1e-4, atol=1e-4)
    assert max(float(gradient.abs().max()) for gradient in expected) > 0.1


def test_a_policy_of_the_family_does_not_call_its_model():
    policy = tiny_policy()
    policy.model.base_model.register_forward_pre_hook(lambda *given: pytest.fail("the model was called"))
    policy.logprobs(batch_of(uneven_samples()).inputs)
    with pytest.raises(pytest.fail.Exception):
        replace(policy, family=None).logprobs(batch_of(uneven_samples(), Sharing.NEVER).inputs)


def windowed(say=lambda sentence: None):
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    size = {"num_key_value_heads": 1, "vocab_size": 13, "max_position_embeddings": 32, "initializer_range": 0.3}
    model = MistralForCausalLM(MistralConfig(**shape, **size, sliding_window=7, eos_token_id=EOS_ID, pad_token_id=None))
    return examine_policy(CausalPolicy(model.eval(), tiny_policy().codec, (EOS_ID,), 1.0), say)


def test_a_sequence_longer_than_the_window_is_computed_by_the_model_itself_and_shares_nothing():
    policy = windowed()
    assert policy.family.longest == 7
    assert not policy.abilities.sharing
    samples = [sample(0, (2, 3, 4), (5, 6), 1.0), sample(0, (2, 3, 4), (7, 8, 9, 10, 11, 12), -1.0)]
    inside, beyond = batch_of(samples[:1] * 2, window=7), batch_of(samples, window=7)
    assert longest_sequence(inside.inputs) <= policy.family.longest < longest_sequence(beyond.inputs)
    assert (len(inside.inputs.ids_RS), len(beyond.inputs.ids_RS)) == (1, 2)
    for batch, chosen in ((inside, samples[:1] * 2), (beyond, samples)):
        logprobs_BT = policy.logprobs(batch.inputs)[0].detach()
        for row, one in enumerate(chosen):
            ids_1L = torch.tensor([one.prompt.tokens + one.rollout.tokens])
            with torch.no_grad():
                rows_TV = policy.model(ids_1L).logits[0, len(one.prompt.tokens) - 1 : -1].log_softmax(dim=1)
            expected = [float(rows_TV[place, token]) for place, token in enumerate(one.rollout.tokens)]
            assert logprobs_BT[row, : len(expected)].tolist() == pytest.approx(expected, abs=1e-5)


def test_what_is_longer_than_the_window_is_said_once_by_whoever_meets_it_first():
    samples = [sample(0, (2, 3, 4), (5, 6, 7, 8), 1.0), sample(0, (2, 3, 4), (7, 8, 9, 10, 11), -1.0)]
    inside, beyond = batch_of(samples[:1], window=7), batch_of(samples[1:], window=7)

    def roll_out(policy, max_tokens):
        sampled(policy, [samples[0].prompt], group_size=2, max_tokens=max_tokens)

    for meet in (lambda policy: policy.logprobs(beyond.inputs), lambda policy: roll_out(policy, 5)):
        said = []
        policy = windowed(said.append)
        policy.logprobs(inside.inputs)
        roll_out(policy, 4)
        assert said == []
        meet(policy)
        (sentence,) = said
        assert sentence == (
            "sequences of more than 7 tokens, the window of attention of MistralForCausalLM, are decoded and trained "
            "by the portable path, slowly"
        )
        policy.logprobs(beyond.inputs)
        roll_out(replace(policy, checkpointing=True), 5)
        assert said == [sentence]


def test_a_reading_that_fails_at_the_length_of_a_real_prompt_is_given_up_and_that_is_said():
    said, policy = [], replace(tiny_policy(), say=lambda sentence: said.append(sentence))
    long = sample(0, (2, 3, 4), (5,), 1.0).prompt
    assert policy.check_shortcuts(long, 8).family is policy.family
    assert said == []
    wrong = replace(policy, family=replace(policy.family, frequencies_H=policy.family.frequencies_H * 2))
    assert wrong.check_shortcuts(long, 8).family is None
    (sentence,) = said
    assert "LlamaForCausalLM is decoded and trained by the portable path" in sentence


def test_whoever_is_not_of_the_family_is_computed_portably_and_the_reason_is_said():
    said = []
    shape = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 32, "vocab_size": 13}
    gpt2 = GPT2LMHeadModel(GPT2Config(**shape, eos_token_id=EOS_ID, bos_token_id=None))
    assert examine_policy(CausalPolicy(gpt2.eval(), tiny_policy().codec, (EOS_ID,), 1.0), said.append).family is None
    assert "GPT2LMHeadModel is decoded and trained by the portable path, slowly, because" in said[0]
    assert examine_policy(tiny_policy(), said.append).family is not None
    assert len(said) == 1


class Doubled(torch.nn.Module):
    """A norm with another result than its weight says."""

    def __init__(self, norm):
        super().__init__()
        self.weight, self.norm = norm.weight, norm

    def forward(self, states):
        return 2 * self.norm(states)


def test_numbers_that_are_not_those_of_the_model_are_not_used():
    said = []
    policy = tiny_policy()
    policy.model.model.layers[1].mlp.act_fn = torch.nn.GELU()  # the config says silu
    assert with_family(policy, said.append).family is None
    assert "its numbers are not those of the Llama family" in said[0]


def _other_norm(model):
    model.model.norm = Doubled(model.model.norm)


def _other_head(model):
    model.lm_head = torch.nn.Linear(16, 13)


def _other_weight(model):
    model.model.layers[1].mlp.up_proj.weight = torch.nn.Parameter(torch.randn(32, 16))


def _other_forward(model):
    mlp = model.model.layers[0].mlp
    mlp.forward = lambda states, own=mlp.forward: 2 * own(states)


def _other_mlp(model):
    model.model.layers[0].mlp = torch.nn.Sequential(model.model.layers[0].mlp, torch.nn.Linear(16, 16))


def _adapters(model):
    how = LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)
    inject_adapter_in_model(how, model)


def _fewer_layers(model):
    del model.model.layers[1]


@pytest.mark.parametrize(
    "change", [_other_norm, _other_head, _other_weight, _other_forward, _other_mlp, _adapters, _fewer_layers]
)
def test_what_is_changed_in_the_model_later_counts(change):
    torch.manual_seed(0)
    policy = tiny_policy()
    before_BT = policy.logprobs(batch_of(uneven_samples()).inputs)[0]
    change(policy.model)
    policy = rejoin_family(policy)
    alone = replace(policy, family=None)
    expected_BT = alone.logprobs(batch_of(uneven_samples(), Sharing.NEVER).inputs)[0]
    assert not torch.allclose(expected_BT, before_BT, atol=1e-2)
    sharing = Sharing.NEVER if policy.family is None else Sharing.ALWAYS
    torch.testing.assert_close(policy.logprobs(batch_of(uneven_samples(), sharing).inputs)[0], expected_BT)
    assert rejoin_family(policy) is policy


def test_weights_that_moved_in_memory_are_read_anew():
    """As after a journey to another device: whatever was prepared for their old places, a graph for one, is void."""
    policy = tiny_policy()
    for weight in policy.model.parameters():
        weight.data = weight.data.clone()
    fresh = rejoin_family(policy)
    assert fresh.family is not None
    assert fresh.family is not policy.family
    assert rejoin_family(fresh) is fresh


def test_a_backward_hook_is_called():
    policy, called = tiny_policy(), []
    policy.model.model.layers[0].register_full_backward_hook(lambda *given: called.append(given))
    rejoin_family(policy).logprobs(batch_of(uneven_samples(), Sharing.NEVER).inputs)[0].sum().backward()
    assert called


def test_a_hook_or_another_embedding_that_came_later_is_noticed():
    policy = tiny_policy()
    assert rejoin_family(policy) is policy
    handle = policy.model.model.layers[0].register_forward_hook(lambda *given: None)
    assert rejoin_family(policy).family is None
    handle.remove()
    policy.model.set_input_embeddings(torch.nn.Embedding(13, 16))
    fresh = rejoin_family(policy)
    assert fresh.family.embedding_VD is policy.model.get_input_embeddings().weight
    batch = batch_of(uneven_samples())
    assert not torch.allclose(fresh.logprobs(batch.inputs)[0], tiny_policy().logprobs(batch.inputs)[0], atol=1e-2)


def test_the_frozen_copy_is_read_by_itself():
    policy = tiny_policy()
    reference = policy.frozen_copy()
    batch = batch_of(uneven_samples())
    before = reference.logprobs(batch.inputs)[0]
    assert torch.equal(before, policy.logprobs(batch.inputs)[0].detach())
    with torch.no_grad():
        for weight in policy.model.parameters():
            weight.add_(0.1)
    assert torch.equal(reference.logprobs(batch.inputs)[0], before)
    assert not before.requires_grad
