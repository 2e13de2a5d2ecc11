"""The family's decoder against Hugging Face's own forward pass, and against the portable path."""

from dataclasses import replace
from itertools import chain

import pytest
import torch
from fixtures.compared import BYTE_EOS, sampled
from fixtures.families import CONTEXT, KINDS, PROMPTS, distances, family_policy, rolled
from fixtures.tiny import prompt

from assay.llama.cpu import CpuDecoder
from assay.types import StopReason

LIMIT = 5e-5
MAKERS = [CpuDecoder]


def tokens(groups):
    return [[rollout.tokens for rollout in tries] for tries in groups]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("adapters", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_logprobs_are_those_of_hugging_face(kind, adapters, make):
    policy, family = family_policy(kind, adapters=adapters, temperature=0.7)
    groups = rolled(policy, make(family), group_size=6)
    far = distances(policy, PROMPTS, groups)
    assert far.max() <= LIMIT
    assert len(far) > 100
    logprobs = torch.tensor([value for tries in groups for rollout in tries for value in rollout.sampler_logprobs])
    assert logprobs.std() > 0.5  # the comparison is not between constants
    plain = sampled(policy, PROMPTS, group_size=6, max_tokens=12)
    assert tokens(groups) == tokens(plain)


@pytest.mark.parametrize("make", MAKERS)
def test_adapters_are_not_left_out(make):
    policy, family = family_policy(adapters=True)
    groups = rolled(policy, make(family.without_adapters()))
    assert distances(policy, PROMPTS, groups).max() > 0.1


@pytest.mark.parametrize("make", MAKERS)
def test_other_shapes_of_the_family(make):
    for changes in (
        {"num_key_value_heads": 4},
        {"num_key_value_heads": 1},
        {"head_dim": 12},
        {"attention_bias": True, "mlp_bias": True},
        {"tie_word_embeddings": True},
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0}},
    ):
        policy, family = family_policy("llama", **changes)
        assert distances(policy, PROMPTS, rolled(policy, make(family), group_size=2)).max() <= LIMIT, changes


@pytest.mark.parametrize("make", MAKERS)
def test_a_copied_model_whose_matrices_lie_apart(make):
    policy, family = family_policy("qwen2", adapters=True)
    for stack in family.stacks:
        for part in stack.parts:
            part.weight_OI.data = part.weight_OI.data.clone()
    assert family.layers[0].gate_up.weight() is None
    assert distances(policy, PROMPTS, rolled(policy, make(family))).max() <= LIMIT


@pytest.mark.parametrize("make", MAKERS)
def test_a_batch_of_one_and_prompts_of_one_token(make):
    policy, family = family_policy("qwen3")
    for prompts, group_size in (
        ([PROMPTS[0]], 1),
        ([PROMPTS[1]], 1),
        ([prompt(0, (4,)), prompt(1, (5,))], 3),
        ([prompt(0, (4,)), prompt(1, tuple(range(20)))], 2),
    ):
        groups = rolled(policy, make(family), prompts, group_size=group_size)
        assert distances(policy, prompts, groups).max() <= LIMIT


@pytest.mark.parametrize("make", MAKERS)
def test_the_longest_prompt_that_leaves_room_in_the_context(make):
    policy, family = family_policy()
    prompts = [prompt(0, tuple(range(CONTEXT - 12))), PROMPTS[1]]
    groups = rolled(policy, make(family), prompts, group_size=4)
    assert max(len(rollout.tokens) for rollout in groups[0]) == 12
    assert distances(policy, prompts, groups).max() <= LIMIT


@pytest.mark.parametrize("make", MAKERS)
def test_every_rollout_may_end_at_its_first_token(make):
    policy, family = family_policy(eos=tuple(range(257)))
    groups = rolled(policy, make(family), group_size=8, max_rows=8)
    assert {(len(rollout.tokens), rollout.stop) for tries in groups for rollout in tries} == {(1, StopReason.EOS)}
    assert distances(policy, PROMPTS, groups).max() <= LIMIT
    assert tokens(groups) == tokens(rolled(policy, make(family), group_size=8))


@pytest.mark.parametrize("make", MAKERS)
def test_an_end_token_on_the_last_allowed_position_is_an_end(make):
    policy, family = family_policy(eos=(BYTE_EOS,))
    ((rollout,),) = rolled(policy, make(family), [PROMPTS[0]], group_size=1, seed=None, max_tokens=5)
    last = rollout.tokens[-1]
    assert last not in rollout.tokens[:-1]
    ended = replace(policy, eos_ids=(last,))
    ((again,),) = rolled(ended, make(family), [PROMPTS[0]], group_size=1, seed=None, max_tokens=5)
    assert (again.tokens, again.stop, rollout.stop) == (rollout.tokens, StopReason.EOS, StopReason.LENGTH)
    ((one,),) = rolled(ended, make(family), [PROMPTS[0]], group_size=1, seed=None, max_tokens=4)
    assert (one.tokens, one.stop) == (rollout.tokens[:-1], StopReason.LENGTH)


def many_ends():
    """A fifth of all tokens end a rollout, so that lengths differ."""
    return tuple(range(0, 257, 5))


@pytest.mark.parametrize("make", MAKERS)
def test_a_thousand_sequences_in_fewer_slots(make):
    policy, family = family_policy(eos=many_ends())
    prompts = [prompt(number, tuple(range(1, 2 + number % 9))) for number in range(125)]
    groups = rolled(policy, make(family), prompts, group_size=8, max_tokens=10, max_rows=96)
    assert len({len(rollout.tokens) for tries in groups for rollout in tries}) == 10
    assert distances(policy, prompts, groups).max() <= LIMIT
    assert tokens(groups) == tokens(sampled(policy, prompts, group_size=8, max_tokens=10))


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("settings", [{"top_k": 6, "top_p": 0.9}, {"top_k": 40, "min_p": 0.2}])
def test_a_restricted_support_is_drawn_from_as_on_the_portable_path(settings, make):
    policy, family = family_policy(temperature=0.8, eos=many_ends())
    ours = rolled(policy, make(family), group_size=8, max_rows=8, **settings)
    plain = sampled(policy, PROMPTS, group_size=8, max_tokens=12, **settings)
    for one, other in zip(chain.from_iterable(ours), chain.from_iterable(plain), strict=True):
        assert (one.tokens, one.stop, one.text) == (other.tokens, other.stop, other.text)
        assert [set(among) for among in one.support] == [set(among) for among in other.support]
        assert one.sampler_logprobs == pytest.approx(other.sampler_logprobs, abs=LIMIT)


@pytest.mark.parametrize("make", MAKERS)
def test_stop_strings_end_a_rollout_as_on_the_portable_path(make):
    policy, family = family_policy(eos=(BYTE_EOS,))
    letters = tuple("abcdefghijklmnopqrstuvwxyz")
    ours = rolled(policy, make(family), group_size=16, max_rows=16, stop=letters)
    plain = sampled(policy, PROMPTS, group_size=16, max_tokens=12, stop=letters)
    read = [[(rollout.tokens, rollout.stop, rollout.text) for rollout in tries] for tries in ours]
    assert read == [[(rollout.tokens, rollout.stop, rollout.text) for rollout in tries] for tries in plain]
    assert sum(rollout.stop is StopReason.STOP for tries in ours for rollout in tries) > 10


@pytest.mark.parametrize("make", MAKERS)
def test_an_optimizer_step_is_seen_by_the_next_rollout(make):
    policy, family = family_policy()
    decoder = make(family)
    before = rolled(policy, decoder)
    with torch.no_grad():
        policy.model.model.layers[0].mlp.up_proj.weight.mul_(1.5)
    after = rolled(policy, decoder)
    assert distances(policy, PROMPTS, after).max() <= LIMIT < distances(policy, PROMPTS, before).max()


@pytest.mark.parametrize("make", MAKERS)
def test_a_vocabulary_of_several_parts_of_the_head(make):
    policy, family = family_policy("qwen2", vocab_size=2500)
    groups = rolled(policy, make(family), group_size=2, max_tokens=6)
    assert distances(policy, PROMPTS, groups).max() <= LIMIT
    assert max(token for tries in groups for rollout in tries for token in rollout.tokens) > 2048


@pytest.mark.parametrize("make", MAKERS)
def test_bfloat16_is_near_hugging_faces(make):
    policy, family = family_policy("qwen3", adapters=True, dtype=torch.bfloat16)
    far = distances(policy, PROMPTS, rolled(policy, make(family), group_size=16))
    assert far.mean() <= 0.05


def test_a_window_shorter_than_the_sequence_is_left_to_the_portable_path():
    policy, family = family_policy("mistral", sliding_window=8)
    assert family.longest == 8
    policy = replace(policy, family=family)
    short = sampled(policy, [PROMPTS[0]], group_size=4, max_tokens=5)
    long = sampled(policy, PROMPTS, group_size=4, max_tokens=9)
    assert distances(policy, [PROMPTS[0]], short).max() <= LIMIT
    assert distances(policy, PROMPTS, long).max() <= LIMIT
    blind = rolled(policy, CpuDecoder(family), max_tokens=9)  # what the portable path saves us from
    assert distances(policy, PROMPTS, blind).max() > 1e-3


def test_generate_decodes_a_policy_with_a_family_by_it(monkeypatch):
    policy, family = family_policy()
    steps = []
    step = CpuDecoder._step
    monkeypatch.setattr(CpuDecoder, "_step", lambda self: steps.append(1) or step(self))
    with_family = sampled(replace(policy, family=family), PROMPTS, max_tokens=6)
    assert len(steps) == 6
    assert tokens(with_family) == tokens(sampled(policy, PROMPTS, max_tokens=6))
    assert len(steps) == 6
