"""The edges of a rollout on the decoder for a GPU, in Triton's interpreter: the tokens, ends, texts and supports of the
CPU's decoder and of the portable path, and log-probs that are those of the Hugging Face model."""

from dataclasses import replace
from itertools import chain

import fixtures.interpreted  # noqa: F401  before triton
import pytest
import torch
from fixtures.cases import thorough
from fixtures.compared import BYTE_EOS, sampled
from fixtures.families import distances, family_policy, rolled
from fixtures.tiny import prompt

from assay.llama.cpu import CpuDecoder
from assay.llama.cuda import CudaDecoder
from assay.types import StopReason

LIMIT = 5e-5
SMALL = {
    "num_hidden_layers": 1, "hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2,
    "num_key_value_heads": 1, "initializer_range": 0.5,
}  # fmt: skip
LONG, ONE, SHORT = prompt(0, (2, 3, BYTE_EOS, 4, 5)), prompt(1, (6,)), prompt(2, (7, 8))


class Narrow(CudaDecoder):
    """As on a GPU whose memory holds so many slots; writes down how many were kept."""

    room = 10**9

    def __init__(self, family):
        super().__init__(family)
        self.kept = []

    def slots_that_fit(self, prompts_per_slot, prompt_width, max_tokens):
        return min(self.room, super().slots_that_fit(prompts_per_slot, prompt_width, max_tokens))

    def keep(self, slots):
        self.kept.append(list(slots))
        super().keep(slots)


def small_policy(kind="llama", **changes):
    return family_policy(kind, **{**SMALL, **changes})


def read(groups):
    return [(one.prompt_id, one.tokens, one.stop, one.text) for one in chain.from_iterable(groups)]


def agreed(policy, family, prompts, *, decoder=None, group_size=1, seed=0, max_tokens=3, **settings):
    """Rollouts of the decoder for a GPU, compared with those of both others."""
    how = {"group_size": group_size, "max_tokens": max_tokens, **settings}
    ours = rolled(policy, decoder or CudaDecoder(family), prompts, seed=seed, **how)
    on_cpu = rolled(policy, CpuDecoder(family), prompts, seed=seed, **how)
    portable = sampled(policy, prompts, seed=seed or 0, greedy=seed is None, **how)
    assert policy.family is None  # so this was the portable path
    for others in (on_cpu, portable):
        assert read(ours) == read(others)
        for one, other in zip(chain.from_iterable(ours), chain.from_iterable(others), strict=True):
            assert one.sampler_logprobs == pytest.approx(other.sampler_logprobs, abs=LIMIT)
            assert (one.support is None) == (other.support is None)
            for mine, theirs in zip(one.support or (), other.support or (), strict=True):
                assert set(mine) == set(theirs)
    if not settings.get("top_k"):
        assert distances(policy, prompts, ours).max() <= LIMIT
    return ours


@pytest.mark.parametrize("kind", ["qwen3", *thorough("llama")])
def test_a_batch_of_one_and_a_prompt_of_one_token(kind):
    policy, family = small_policy(kind)
    ((rollout,),) = agreed(policy, family, [ONE])
    assert len(rollout.tokens) == 3
    agreed(policy, family, [LONG], max_tokens=1)


def test_only_prompts_of_one_token_and_some_beside_a_longer_one():
    policy, family = small_policy()
    agreed(policy, family, [ONE, prompt(3, (9,))], group_size=2)
    agreed(policy, family, [ONE, LONG], group_size=2, max_tokens=2)


def test_every_rollout_ends_at_its_first_token():
    """Each start is given up after every look, so that all rollouts pass through few slots."""
    policy, family = small_policy(eos=tuple(range(257)))
    decoder = Narrow(family)
    decoder.room = 2
    groups = agreed(policy, family, [LONG, ONE, SHORT], decoder=decoder, group_size=2)
    assert {(len(rollout.tokens), rollout.stop) for tries in groups for rollout in tries} == {(1, StopReason.EOS)}


def test_an_end_token_on_the_last_allowed_position_is_an_end():
    policy, family = small_policy()
    ((rollout,),) = agreed(policy, family, [LONG], seed=None, max_tokens=4)
    last = rollout.tokens[-1]
    assert last not in rollout.tokens[:-1]
    ended = replace(policy, eos_ids=(last,))
    ((again,),) = agreed(ended, family, [LONG], seed=None, max_tokens=4)
    assert (again.tokens, again.stop, rollout.stop) == (rollout.tokens, StopReason.EOS, StopReason.LENGTH)
    ((before,),) = agreed(ended, family, [LONG], seed=None, max_tokens=3)
    assert (before.tokens, before.stop) == (rollout.tokens[:-1], StopReason.LENGTH)


def test_more_rollouts_than_slots_ends_at_any_place_and_slots_that_are_taken_away():
    policy, family = small_policy(eos=tuple(range(0, 257, 3)))
    decoder = Narrow(family)
    decoder.room, decoder.look_every = 4, 2  # looks fall before, on and behind ends
    groups = agreed(policy, family, [LONG, ONE, SHORT], decoder=decoder, group_size=3, max_tokens=5)
    lengths = {len(rollout.tokens) for tries in groups for rollout in tries}
    assert len(lengths) >= 3
    assert decoder.kept
    assert {rollout.stop for tries in groups for rollout in tries} == {StopReason.EOS, StopReason.LENGTH}


def test_a_stop_string_ends_a_rollout_in_the_middle_of_a_look():
    policy, family = small_policy()
    texts = tuple(map(chr, range(64, 127)))
    groups = agreed(policy, family, [LONG, SHORT], group_size=4, max_tokens=4, max_rows=4, stop=texts)
    ends = [rollout.stop for tries in groups for rollout in tries]
    assert {StopReason.STOP, StopReason.LENGTH} <= set(ends)
    stopped = [rollout for tries in groups for rollout in tries if rollout.stop is StopReason.STOP]
    assert min(len(rollout.tokens) for rollout in stopped) < 4


@pytest.mark.parametrize(
    "settings",
    [{"top_k": 6, "top_p": 0.7}, *thorough({"top_k": 3}, {"top_k": 40, "min_p": 0.2})],
)
def test_a_restricted_support_with_more_rollouts_than_slots(settings):
    policy, family = small_policy(temperature=0.8, eos=tuple(range(0, 257, 3)))
    groups = agreed(policy, family, [LONG, ONE], group_size=3, max_rows=4, **settings)
    sizes = {len(among) for tries in groups for rollout in tries for among in rollout.support}
    assert max(sizes) <= settings["top_k"]
    assert (len(sizes) > 1) == (len(settings) > 1)
    logprobs = torch.tensor([value for tries in groups for rollout in tries for value in rollout.sampler_logprobs])
    assert logprobs.std() > 0.1


def test_the_likeliest_token_has_no_support_whatever_top_k():
    policy, family = small_policy()
    ((rollout,),) = agreed(policy, family, [SHORT], seed=None, top_k=4)
    assert rollout.support is None
    assert distances(policy, [SHORT], [[rollout]]).max() <= LIMIT


@pytest.mark.parametrize("settings", [{"top_k": 6}, *thorough({})])
def test_slots_that_are_taken_and_kept_while_positions_wait_to_be_looked_at(settings):
    policy, family = small_policy(temperature=0.8, eos=tuple(range(0, 257, 5)))
    decoder = Narrow(family)
    decoder.room, decoder.look_every, decoder.ahead = 4, 3, 2
    agreed(policy, family, [LONG, ONE, SHORT], decoder=decoder, group_size=3, max_tokens=6, **settings)
    assert decoder.kept
