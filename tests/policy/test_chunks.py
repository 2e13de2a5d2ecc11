"""The portable path makes log-probs a chunk of logits at a time: same numbers and gradients, never all logits."""

from dataclasses import replace

import pytest
import torch
from fixtures.compared import packed, sampled
from fixtures.tiny import portable_policy, prompt, tiny_policy, uneven_samples

from assay.policy import causal
from assay.policy.causal import Abilities
from assay.policy.causal_packing import CausalPacking, Sharing
from assay.train.step.pack import pack_rows

CPU = torch.device("cpu")
LEAST = 16  # tokens of a chunk, however large the vocabulary is


def batch_of(samples, share_prompts=False):
    (minibatch,) = pack_rows(
        samples,
        range(len(samples)),
        minibatches=1,
        microbatches=1,
        max_tokens=8,
        packing=CausalPacking(CPU, Sharing(share_prompts)),
    )
    return minibatch.microbatches[0]


def numbers(policy, batch, entropy_gradient):
    """(log-probs, entropies, gradients of a mix of both)."""
    policy.model.zero_grad()
    logprobs_BT, entropy_BT = policy.logprobs(batch.inputs, entropy_gradient=entropy_gradient)
    total = (logprobs_BT * torch.linspace(-1, 2, logprobs_BT.numel()).reshape(logprobs_BT.shape)).sum()
    if entropy_gradient:
        total = total + 0.5 * entropy_BT.square().sum()
    total.backward()
    return logprobs_BT.detach(), entropy_BT.detach(), [weight.grad.clone() for weight in policy.model.parameters()]


def truncated_batch():
    policy = tiny_policy(temperature=0.7)
    prompts = [prompt(0, (2, 3, 4)), prompt(1, (5, 6))]
    return packed(prompts, sampled(policy, prompts, group_size=8, max_tokens=6, top_k=5))[0].microbatches[0]


BATCHES = {
    "rows": lambda: batch_of(uneven_samples()),
    "shared": lambda: batch_of(uneven_samples(), share_prompts=True),
    "top-k": truncated_batch,
}


@pytest.mark.parametrize("entropy_gradient", [False, True])
@pytest.mark.parametrize("kind", BATCHES)
def test_chunks_change_neither_numbers_nor_gradients(kind, entropy_gradient, monkeypatch):
    policy, batch = portable_policy(temperature=0.7), BATCHES[kind]()
    whole = numbers(policy, batch, entropy_gradient)
    monkeypatch.setattr(causal, "CHUNK_NUMBERS", 1)
    sizes = watched(policy)
    chunked = numbers(policy, batch, entropy_gradient)
    assert len(sizes) > 1
    torch.testing.assert_close(chunked[:2], whole[:2], rtol=0, atol=1e-6)
    for mine, theirs in zip(chunked[2], whole[2], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)
    assert max(float(gradient.abs().max()) for gradient in whole[2]) > 0.1


def watched(policy):
    """The number of logits that each call of the head made."""
    sizes = []
    policy.model.get_output_embeddings().register_forward_hook(
        lambda module, given, logits: sizes.append(logits.numel())
    )
    return sizes


def test_the_head_never_makes_more_logits_than_a_chunk_and_makes_them_again_for_the_gradient(monkeypatch):
    policy, batch = portable_policy(), BATCHES["rows"]()
    monkeypatch.setattr(causal, "CHUNK_NUMBERS", 20 * 13)
    sizes = watched(policy)
    logprobs_BT, _ = policy.logprobs(batch.inputs)
    assert int(batch.mask_BT.sum()) == 27
    assert sizes == [20 * 13, 7 * 13]
    logprobs_BT.sum().backward()
    assert sorted(sizes) == sorted([20 * 13, 7 * 13] * 2)


def test_no_logits_are_kept_between_forward_and_backward(monkeypatch):
    policy, batch = portable_policy(), BATCHES["rows"]()

    def kept():
        shapes = []

        def keep(tensor):
            shapes.append(tuple(tensor.shape))
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            policy.logprobs(batch.inputs)
        return [shape for shape in shapes if shape and shape[-1] == 13 and len(shape) >= 2 and shape[-2] >= LEAST - 5]

    assert kept()  # one chunk: its logits are kept
    monkeypatch.setattr(causal, "CHUNK_NUMBERS", 1)
    assert kept() == []


def test_scoring_without_a_gradient_makes_the_logits_once(monkeypatch):
    policy, batch = portable_policy(), BATCHES["rows"]()
    monkeypatch.setattr(causal, "CHUNK_NUMBERS", 1)
    sizes = watched(policy)
    with torch.no_grad():
        policy.logprobs(batch.inputs)
    assert sizes == [LEAST * 13, 11 * 13]


def test_a_model_whose_head_is_not_plain_gives_the_same_numbers(monkeypatch):
    policy, batch = portable_policy(temperature=0.7), BATCHES["top-k"]()
    whole = numbers(policy, batch, True)
    monkeypatch.setattr(causal, "CHUNK_NUMBERS", 1)
    through_logits = numbers(replace(policy, abilities=Abilities()), batch, True)
    torch.testing.assert_close(through_logits[:2], whole[:2], rtol=0, atol=1e-6)
    for mine, theirs in zip(through_logits[2], whole[2], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


def test_a_microbatch_of_one_token_works(monkeypatch):
    monkeypatch.setattr(causal, "CHUNK_NUMBERS", 1)
    batch = batch_of(uneven_samples()[1:2])
    logprobs_BT, entropy_BT = portable_policy().logprobs(batch.inputs)
    assert logprobs_BT.shape == entropy_BT.shape == (1, 1)
    assert logprobs_BT.item() < 0 < entropy_BT.item()


@pytest.mark.parametrize("chunk_numbers", [1, causal.CHUNK_NUMBERS])
def test_the_gradient_of_the_entropy_is_that_of_the_models_own_distribution(chunk_numbers, monkeypatch):
    monkeypatch.setattr(causal, "CHUNK_NUMBERS", chunk_numbers)
    policy, samples = portable_policy(temperature=0.7), uneven_samples()
    policy.logprobs(batch_of(samples).inputs, entropy_gradient=True)[1].sum().backward()
    ours = [weight.grad.clone() for weight in policy.model.parameters()]
    policy.model.zero_grad()
    for sample in samples:
        ids_1L = torch.tensor([sample.prompt.tokens + sample.rollout.tokens])
        rows_TV = policy.model(ids_1L).logits[0, len(sample.prompt.tokens) - 1 : -1] / 0.7
        torch.distributions.Categorical(logits=rows_TV).entropy().sum().backward()
    for mine, weight in zip(ours, policy.model.parameters(), strict=True):
        torch.testing.assert_close(mine, weight.grad, rtol=1e-4, atol=1e-4)
    assert max(float(gradient.abs().max()) for gradient in ours) > 1.0
