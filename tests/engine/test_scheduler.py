"""Continuous batching: who sits where, what is looked at, what leaves; and that none of it changes a rollout."""

import time
from itertools import chain, pairwise

import numpy as np
import pytest
import torch
from fixtures.compared import sampled, spelling_policy
from fixtures.families import PROMPTS, Recording, family_policy, rolled
from fixtures.tiny import prompt

from assay.config.sections import RolloutConfig
from assay.engine.decoded import DecodedRollouts
from assay.engine.engine import BrokenPolicy, NoRoom
from assay.llama.decoder import Sampled
from assay.types import StopReason

MANY_ENDS = tuple(range(0, 257, 5))
MANY = [prompt(number, tuple(range(1, 2 + number % 6))) for number in range(9)]


class Looking(Recording):
    """Looks at several positions at a time, as a decoder does whose tokens are far away."""

    look_every = 5


class Ahead(Looking):
    """Is asked for more before a look is read."""

    ahead = 3


class AllAhead(Looking):
    ahead = 5


def test_a_rollout_does_not_depend_on_slots_or_looks_or_what_is_decoded_beside_it():
    policy, family = family_policy(eos=MANY_ENDS)
    whole = rolled(policy, Recording(family), MANY, group_size=4, max_tokens=13)
    assert len({len(rollout.tokens) for tries in whole for rollout in tries}) > 6
    for decoder, settings in (
        (Recording(family), {"max_rows": 4}),
        (Recording(family), {"max_rows": 1}),  # one group at least
        (Recording(family), {"max_rows": 7}),
        (Recording(family, room=3), {}),
        (Recording(family, room=1), {}),
        (Looking(family), {}),
        (Looking(family, room=6), {}),
        (Ahead(family), {}),
        (Ahead(family, room=6), {}),
        (Ahead(family, room=1), {}),
        (AllAhead(family, room=9), {}),
    ):
        parts = rolled(policy, decoder, MANY, group_size=4, max_tokens=13, **settings)
        for one, other in zip(chain.from_iterable(whole), chain.from_iterable(parts), strict=True):
            assert (one.tokens, one.stop, one.text, one.prompt_id) == (
                other.tokens,
                other.stop,
                other.text,
                other.prompt_id,
            )
            assert one.sampler_logprobs == pytest.approx(other.sampler_logprobs, abs=2e-5)


def test_the_portable_path_does_not_depend_on_the_rows_side_by_side_either():
    policy, _ = family_policy(eos=MANY_ENDS)
    whole = sampled(policy, MANY, group_size=4, max_tokens=8)
    parts = sampled(policy, MANY, group_size=4, max_tokens=8, max_rows=9)
    assert [[one.tokens for one in tries] for tries in whole] == [[one.tokens for one in tries] for tries in parts]


def test_every_rollout_has_random_numbers_of_its_own():
    policy, family = family_policy()
    same = [prompt(number, (4, 5)) for number in range(3)]
    groups = rolled(policy, Recording(family), same, group_size=8)
    assert len({rollout.tokens for tries in groups for rollout in tries}) == 24


@pytest.mark.parametrize(
    ("room", "max_rows", "slots", "prompt_rows", "asked"),
    [
        (10**9, 512, 36, 9, 9 / 36),  # all prompts at once
        (10**9, 10, 10, 7, 7 / 10),  # three groups have slots: twice as many prompts, and one that is about to begin
        (10**9, 2, 4, 3, 3 / 4),  # one group at least
        (5, 512, 5, 5, 9 / 36),
        (1, 1, 1, 3, 3 / 4),
    ],
)
def test_how_many_slots_and_prompts_there_is_room_for(room, max_rows, slots, prompt_rows, asked):
    policy, family = family_policy()
    decoder = Recording(family, room)
    rolled(policy, decoder, MANY, group_size=4, max_tokens=2, max_rows=max_rows)
    # the longest prompt has six tokens; the last is the first input of its slots
    assert decoder.written("open") == [(slots, prompt_rows, 5)]
    assert decoder.written("fit") == [(asked, 5, 2)]


def test_a_prompt_is_prefilled_once_and_several_at_a_time():
    policy, family = family_policy(eos=MANY_ENDS)
    decoder = Recording(family)
    rolled(policy, decoder, MANY, group_size=4, max_tokens=13, max_rows=16)
    prefilled = [slots for (slots,) in decoder.written("prefill")]
    assert sum(map(len, prefilled)) == len(MANY)
    assert prefilled[0] == [0, 1, 2, 3]
    starts = [start for (part,) in decoder.written("start") for start in part]
    assert [rollout for _, rollout in starts] == list(range(36))  # in their order
    assert starts[:16] == [(slot, slot) for slot in range(16)]


def test_an_ended_slot_is_given_the_next_rollout_and_the_decoding_is_that_much_shorter():
    policy, family = family_policy(eos=MANY_ENDS)
    decoder = Recording(family)
    groups = rolled(policy, decoder, MANY, group_size=4, max_tokens=13, max_rows=12)
    tokens = sum(len(rollout.tokens) for tries in groups for rollout in tries)
    decoded = sum(slots * positions for positions, slots in decoder.written("advance"))
    in_turn = sum(
        12 * max(len(rollout.tokens) for tries in groups[first : first + 3] for rollout in tries)
        for first in range(0, 9, 3)
    )
    assert tokens <= decoded < 0.8 * in_turn


def test_slots_that_have_ended_are_taken_away_when_none_waits():
    policy, family = family_policy(eos=MANY_ENDS)
    decoder = Recording(family)
    rolled(policy, decoder, MANY, group_size=4, max_tokens=13)
    widths = [slots for _, slots in decoder.written("advance")]
    assert widths[0] == 36
    assert widths[-1] < 10
    shrunk = [(before, after) for before, after in pairwise(widths) if before != after]
    assert shrunk
    assert all(after <= decoder.keep_below * before for before, after in shrunk)  # or moving caches would not pay
    for (kept,) in decoder.written("keep"):
        assert len(set(kept)) == len(kept)
        assert all(slot == place for place, slot in enumerate(kept) if slot < len(kept))  # the others fill holes
    waiting = Recording(family)
    rolled(policy, waiting, MANY, group_size=4, max_tokens=13, max_rows=8)
    first_keep = next(place for place, entry in enumerate(waiting.diary) if entry[0] == "keep")
    assert not any(entry[0] in ("start", "prefill") for entry in waiting.diary[first_keep:])


class Scripted:
    """A decoder whose rollout number r ends with its `lengths[r]`-th token."""

    keep_below = 0.0

    def __init__(self, lengths, slots, look_every, ahead):
        self.lengths, self.slots, self.look_every, self.ahead = lengths, slots, look_every, ahead
        self.starts, self.prefilled, self.advanced, self.written = [], [], [], []

    def slots_that_fit(self, prompts_per_slot, prompt_width, max_tokens):
        return self.slots

    def open(self, decoding):
        self.rollouts, self.done = [0] * decoding.slots, [0] * decoding.slots

    def prefill(self, prompts):
        self.prefilled.append([slot for slot, _ in prompts])

    def start(self, starts):
        self.starts.append([(start.slot, start.rollout) for start in starts])
        for start in starts:
            self.rollouts[start.slot], self.done[start.slot] = start.rollout, 0

    def advance(self, positions):
        self.advanced.append(positions)
        for _ in range(positions):
            self.done = [done + 1 for done in self.done]
            slots = zip(self.rollouts, self.done, strict=True)
            self.written.append([256 if done == self.lengths[rollout] else 65 for rollout, done in slots])

    def look(self):
        tokens_LC, self.written = torch.tensor(self.written).t(), []
        return lambda: Sampled(tokens_LC, torch.zeros(tokens_LC.shape), None)

    def close(self):
        """Nothing to give back."""


def scheduled(lengths, *, group_size, slots, look_every, limit, ahead=0):
    decoder, policy = Scripted(lengths, slots, look_every, ahead), spelling_policy(b"")  # 256 ends
    prompts = [prompt(number, (4, 5)) for number in range(len(lengths) // group_size)]
    groups = rolled(policy, decoder, prompts, group_size=group_size, max_tokens=limit)
    assert [len(rollout.tokens) for tries in groups for rollout in tries] == lengths
    return decoder


def test_slots_advance_as_far_as_the_one_with_the_most_before_it_may():
    """The first rollout ends at once; the third takes its slot and has all of its 6 tokens before it when the second
    has 2 left. The second then stays within its room."""
    decoder = scheduled([2, 6, 6], group_size=1, slots=2, look_every=4, limit=6)
    assert decoder.advanced == [4, 4, 2]
    assert decoder.starts == [[(0, 0), (1, 1)], [(0, 2)]]


def test_positions_ahead_of_a_look_count_for_those_who_sat_there_and_for_nobody_else():
    """As above, one position ahead. The third rollout starts behind it and has 3 tokens after the second look, the
    second has 5 before that look and ends in it."""
    decoder = scheduled([2, 6, 6], group_size=1, slots=2, look_every=4, limit=6, ahead=1)
    assert decoder.advanced == [4, 1, 3, 1, 2]
    assert decoder.starts == [[(0, 0), (1, 1)], [(0, 2)]]


@pytest.mark.parametrize("ahead", [0, 1, 2, 5])
def test_rollouts_of_all_lengths_keep_them(ahead):
    lengths = [1 + (7 * number) % 11 for number in range(60)]
    scheduled(lengths, group_size=4, slots=9, look_every=5, limit=11, ahead=ahead)


def test_a_new_prompt_is_prefilled_when_an_eighth_of_the_slots_is_free_and_its_group_then_takes_every_slot():
    """16 slots, groups of 4: two slots must be free for the fifth prompt; one is enough for the rest of its group."""
    decoder = scheduled([1, 2, 3] + [8] * 17, group_size=4, slots=16, look_every=1, limit=8)
    assert decoder.prefilled == [[0, 1, 2, 3], [4]]
    assert decoder.starts == [
        [(slot, slot) for slot in range(16)],
        [(0, 16), (1, 17)],  # not when slot 0 alone was free
        [(2, 18)],
        [(3, 19)],
    ]


def test_a_whole_group_need_not_be_waited_for_but_no_more_slots_than_it_has():
    """64 slots, of which an eighth is 8; a group of 2 is worth its prompt when 2 are free."""
    decoder = scheduled([1, 2] + [4] * 64, group_size=2, slots=64, look_every=1, limit=4)
    assert decoder.starts[1] == [(0, 64), (1, 65)]


@pytest.mark.parametrize(("kind", "advances"), [(Looking, [5, 5, 2]), (Ahead, [5, 3, 2, 2])])
def test_no_position_is_decoded_behind_the_limit(kind, advances):
    policy, family = family_policy()
    decoder = kind(family)
    rolled(policy, decoder, PROMPTS, max_tokens=12)
    assert [positions for positions, _ in decoder.written("advance")] == advances


@pytest.mark.parametrize("settings", [{"stop": ("a", "\n")}, {"top_k": 7}, {"top_k": 7, "max_rows": 5}])
def test_what_is_decoded_ahead_of_a_look_is_nobody_elses(settings):
    policy, family = family_policy(eos=MANY_ENDS)
    plain, ahead = (
        rolled(policy, kind(family), MANY, group_size=4, max_tokens=13, **settings) for kind in (Recording, Ahead)
    )
    for one, other in zip(chain.from_iterable(plain), chain.from_iterable(ahead), strict=True):
        assert (one.tokens, one.stop, one.text, one.support) == (other.tokens, other.stop, other.text, other.support)
        assert one.sampler_logprobs == pytest.approx(other.sampler_logprobs, abs=2e-5)


def test_progress_counts_positions_of_all_rollouts_up_to_the_end():
    policy, family = family_policy(eos=MANY_ENDS)
    seen = []
    rolled(policy, Recording(family), MANY, group_size=4, max_rows=8, on_token=lambda *given: seen.append(given))
    assert {limit for _, limit in seen} == {9 * 4 * 12}
    done = [count for count, _ in seen]
    assert done == sorted(done)
    assert done[-1] == 9 * 4 * 12


def test_the_cache_is_given_back_when_decoding_is_interrupted():
    policy, family = family_policy()
    decoder = Recording(family)

    def interrupt(done, limit):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rolled(policy, decoder, on_token=interrupt)
    assert decoder.diary[-1] == ("close",)
    assert not hasattr(decoder, "own_keys")
    assert rolled(policy, decoder) == rolled(policy, Recording(family))


def test_a_policy_that_has_blown_up_is_named_in_a_sentence():
    policy, family = family_policy()
    with torch.no_grad():
        policy.model.lm_head.weight[3, 0] = torch.nan
    decoder = Recording(family)
    with pytest.raises(BrokenPolicy, match="probabilities of the next token are not finite"):
        rolled(policy, decoder)
    assert decoder.diary[-1] == ("close",)


def test_no_room_for_one_slot_says_what_to_change():
    policy, family = family_policy()
    with pytest.raises(NoRoom, match=r"lower rollout\.max_tokens"):
        rolled(policy, Recording(family, room=0))


def looked_at(rows, rollouts, tokens, logprobs=None):
    tokens = torch.tensor(tokens)
    logprobs = torch.full(tokens.shape, -1.0) if logprobs is None else torch.tensor(logprobs)
    return rows.take(np.array(rollouts), Sampled(tokens, logprobs, None)).tolist()


def test_what_is_behind_an_end_is_thrown_away_and_may_be_anything():
    policy = spelling_policy(b"")  # 256 ends
    rows = DecodedRollouts(policy, RolloutConfig(max_tokens=5), 4)
    nan = float("nan")
    ended = looked_at(
        rows,
        [0, 2, 3],
        [[65, 66, 67], [65, 256, 67], [256, 256, 256]],
        [[-1.0, -2.0, -3.0], [-4.0, -5.0, nan], [-6.0, nan, nan]],
    )
    assert ended == [False, True, True]
    # 3 of rollout 0 are there: two more fit, whatever the look brought
    assert looked_at(rows, [0, 1], [[68, 69, 256], [70, 71, 72]]) == [True, False]
    assert looked_at(rows, [1], [[73, 256, 74]]) == [True]
    read = [rows.rollout(number, PROMPTS[0], 7) for number in range(4)]
    assert [rollout.tokens for rollout in read] == [
        (65, 66, 67, 68, 69),
        (70, 71, 72, 73, 256),
        (65, 256),
        (256,),
    ]
    assert [rollout.stop for rollout in read] == [StopReason.LENGTH] + [StopReason.EOS] * 3
    assert [rollout.text for rollout in read] == ["ABCDE", "FGHI", "A", ""]
    assert read[0].sampler_logprobs == (-1.0, -2.0, -3.0, -1.0, -1.0)
    assert read[2].sampler_logprobs == (-4.0, -5.0)
    assert rows.positions == 20


def test_a_stop_string_in_the_middle_of_a_look_wins_over_an_end_behind_it():
    rows = DecodedRollouts(spelling_policy(b""), RolloutConfig(max_tokens=6, stop=("BC",)), 2)
    assert looked_at(rows, [0, 1], [[65, 66], [66, 65]]) == [False, False]
    assert looked_at(rows, [0, 1], [[67, 256], [256, 67]]) == [True, True]
    first, second = (rows.rollout(number, PROMPTS[0], 0) for number in range(2))
    assert (first.tokens, first.stop, first.text) == ((65, 66, 67), StopReason.STOP, "A")
    assert (second.tokens, second.stop, second.text) == ((66, 65, 256), StopReason.EOS, "BA")


def test_what_a_look_brings_behind_a_stop_string_never_happened():
    rows = DecodedRollouts(spelling_policy(b""), RolloutConfig(max_tokens=6, stop=("BC",)), 1)
    assert looked_at(rows, [0], [[65, 66, 67, 66, 67]]) == [True]
    assert rows.rollout(0, PROMPTS[0], 0).tokens == (65, 66, 67)


def test_a_support_ends_with_its_rollout_and_names_a_token_once():
    rows = DecodedRollouts(spelling_policy(b""), RolloutConfig(max_tokens=3, top_k=3), 2)
    support_NCK = torch.tensor([[[65, 66, 65], [67, 68, 69]], [[256, 65, 256], [70, 71, 72]]])
    rows.take(np.array([0, 1]), Sampled(torch.tensor([[66, 67], [256, 70]]), torch.zeros(2, 2), support_NCK))
    rows.take(np.array([0]), Sampled(torch.tensor([[73, 74]]), torch.zeros(1, 2), torch.tensor([[[73, 75, 76]] * 2])))
    first, second = (rows.rollout(number, PROMPTS[0], 0) for number in range(2))
    assert (first.tokens, first.support) == ((66, 67, 73), ((65, 66), (67, 68, 69), (73, 75, 76)))
    assert (second.tokens, second.support) == ((256,), ((256, 65),))


def test_an_end_token_ends_as_itself_though_its_name_is_a_stop_string():
    rows = DecodedRollouts(spelling_policy(b""), RolloutConfig(max_tokens=6, stop=("<eos>", "B")), 2)
    assert looked_at(rows, [0, 1], [[65, 256], [65, 66]]) == [True, True]
    first, second = (rows.rollout(number, PROMPTS[0], 0) for number in range(2))
    assert (first.tokens, first.stop, first.text) == ((65, 256), StopReason.EOS, "A")
    assert (second.tokens, second.stop, second.text) == ((65, 66), StopReason.STOP, "A")


def test_a_look_at_a_thousand_slots_costs_little():
    rows = DecodedRollouts(spelling_policy(b""), RolloutConfig(max_tokens=1024), 1000)
    given = Sampled(torch.randint(0, 256, (1000, 16)), torch.zeros(1000, 16), None)
    took = []
    for _ in range(20):
        began = time.thread_time()
        rows.take(np.arange(1000), given)
        took.append(time.thread_time() - began)
    assert min(took) < 2e-3


def test_more_rollouts_than_memory_are_refused_before_anything_is_drawn():
    policy, _ = family_policy()
    with pytest.raises(NoRoom, match=r"no memory for 4,000,000,000,000 rollouts .* lower rollout\.prompts"):
        sampled(policy, [PROMPTS[0]], group_size=4 * 10**12, max_tokens=10)
