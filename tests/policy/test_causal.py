from dataclasses import replace

import pytest
import torch
from fixtures.tiny import tiny_policy, uneven_samples

from assay.policy.causal_packing import CausalPacking
from assay.policy.codec import PromptRefused
from assay.train.step.pack import pack_rows
from assay.types import Problem


def logprobs(policy, samples):
    (minibatch,) = pack_rows(
        samples,
        range(len(samples)),
        minibatches=1,
        microbatches=1,
        max_tokens=8,
        packing=CausalPacking(torch.device("cpu")),
    )
    (batch,) = minibatch.microbatches
    with torch.no_grad():
        return batch, *policy.logprobs(batch.inputs)


def test_logprobs_are_those_of_each_row_alone_and_unpadded():
    policy = tiny_policy(temperature=0.8)
    samples = uneven_samples()
    batch, logprobs_BT, entropy_BT = logprobs(policy, samples)
    for row, sample in enumerate(samples):
        ids = torch.tensor([sample.prompt.tokens + sample.rollout.tokens])
        with torch.no_grad():
            scaled_LV = (policy.model(ids).logits[0] / 0.8).log_softmax(dim=1)
        start = len(sample.prompt.tokens)
        for t, token in enumerate(sample.rollout.tokens):
            expected_V = scaled_LV[start + t - 1]
            assert logprobs_BT[row, t] == pytest.approx(float(expected_V[token]), abs=2e-5)
            entropy = -float((expected_V.exp() * expected_V).sum())
            assert entropy_BT[row, t] == pytest.approx(entropy, abs=2e-5)
    assert batch.mask_BT.sum() == 27


def test_a_model_in_training_mode_is_refused_because_dropout_would_tell_new_from_old():
    policy = tiny_policy()
    policy.model.train()
    with pytest.raises(ValueError, match=r"in training mode; call model\.eval\(\)"):
        replace(policy, temperature=0.5)
    assert policy.model.training  # it is the caller's


def test_a_prompt_that_leaves_no_room_for_an_answer_is_refused():
    policy = tiny_policy()
    assert policy.prompt(Problem("fits", "1" * 24, ""), max_tokens=8).tokens
    with pytest.raises(PromptRefused, match=r"'long' has 25 tokens and may get 8 more, but the model's context is 32"):
        policy.prompt(Problem("long", "1" * 25, ""), max_tokens=8)


def test_an_empty_prompt_is_refused():
    with pytest.raises(ValueError, match="'empty' has no tokens"):
        tiny_policy().prompt(Problem("empty", "", ""), max_tokens=8)
