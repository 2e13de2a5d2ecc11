"""The decoder on a CPU: copies in parts and blocks, caches that grow and shrink, autocast."""

from itertools import chain

import pytest
import torch
from fixtures.families import PROMPTS, distances, family_policy, rolled

from assay.llama.cpu import CpuDecoder
from assay.llama.kernels import onednn
from assay.llama.kernels.onednn import Cut
from assay.policy.probe import with_family

LIMIT = 5e-5


def tokens(groups):
    return [rollout.tokens for rollout in chain.from_iterable(groups)]


def logprobs(groups):
    return torch.tensor([value for one in chain.from_iterable(groups) for value in one.sampler_logprobs])


@pytest.mark.skipif(not onednn.usable(torch.zeros(2, 2)), reason="torch has no such oneDNN here")
@pytest.mark.parametrize("adapters", [False, True])
def test_copies_in_parts_and_blocks_give_the_numbers_of_hugging_face(monkeypatch, adapters):
    monkeypatch.setattr("assay.llama.matrix.IN_A_LAYER", Cut(10))
    monkeypatch.setattr("assay.llama.matrix.IN_THE_HEAD", Cut(7, 100))
    policy, family = family_policy("qwen2", adapters=adapters, temperature=0.7)
    assert distances(policy, PROMPTS, rolled(policy, CpuDecoder(family))).max() <= LIMIT


def test_under_autocast_the_rollouts_are_those_of_the_parameters():
    policy, family = family_policy(temperature=0.7)
    plain = rolled(policy, CpuDecoder(family))
    with torch.autocast("cpu", torch.bfloat16):
        cast = rolled(policy, CpuDecoder(family))
    assert tokens(cast) == tokens(plain)
    assert torch.equal(logprobs(cast), logprobs(plain))


@pytest.mark.parametrize("max_rows", [3, 7, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_slots_that_start_again_and_are_dropped_change_nothing(max_rows, dtype):
    """Prompts of several lengths whose slots have several counts, in slots that come and go."""
    policy, family = family_policy(temperature=0.7, dtype=dtype, eos=(5,))
    alone = [rolled(policy, CpuDecoder(family), [one], group_size=3, seed=None)[0] for one in PROMPTS]
    together = rolled(policy, CpuDecoder(family), PROMPTS, group_size=3, seed=None, max_rows=max_rows)
    if dtype is torch.float32:
        assert tokens(together) == tokens(alone)
        torch.testing.assert_close(logprobs(together), logprobs(alone), rtol=0, atol=LIMIT)
    else:  # rounded so coarsely that another order of a sum may choose another token
        first = [one.sampler_logprobs[0] for one in chain.from_iterable(together)]
        wanted = [one.sampler_logprobs[0] for one in chain.from_iterable(alone)]
        assert first == pytest.approx(wanted, abs=0.05)


@pytest.mark.skipif(not onednn.usable(torch.zeros(2, 2)), reason="torch has no such oneDNN here")
def test_a_head_with_fewer_outputs_than_there_are_embeddings_draws_only_those(monkeypatch):
    monkeypatch.setattr("assay.llama.matrix.IN_THE_HEAD", Cut(7, 100))
    policy, _ = family_policy(tie_word_embeddings=False)
    policy.model.lm_head = torch.nn.Linear(policy.model.config.hidden_size, 230, bias=False)
    with torch.no_grad():
        policy.model.lm_head.weight.normal_(std=0.25)
    policy = with_family(policy)
    groups = rolled(policy, CpuDecoder(policy.family))
    assert max(token for one in tokens(groups) for token in one) < 230
    assert distances(policy, PROMPTS, groups).max() <= LIMIT
