"""Continuous batching: who sits where, what is looked at, what leaves; and that none of it changes a rollout."""

import time
from itertools import chain

import numpy as np
import pytest
import torch
from engine.compared import sampled, spelling_policy
from engine.families import PROMPTS, Recording, family_policy, rolled
from tiny import prompt

from assay.config.sections import RolloutConfig
from assay.engine.decoder import Sampled
from assay.engine.lanes import NoRoom
from assay.engine.rows import BrokenPolicy, Rows
from assay.types import StopReason

MANY_ENDS = tuple(range(0, 257, 5))
MANY = [prompt(number, tuple(range(1, 2 + number % 6))) for number in range(9)]


class Looking(Recording):
    """Looks at several positions at a time, as a decoder does whose tokens are far away."""

    look_every = 5


def test_a_rollout_does_not_depend_on_lanes_or_looks_or_what_is_decoded_beside_it():
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
    ("room", "max_rows", "lanes"), [(10**9, 512, 36), (10**9, 10, 10), (10**9, 2, 4), (5, 512, 5), (1, 1, 1)]
)
def test_how_many_lanes_there_are(room, max_rows, lanes):
    policy, family = family_policy()
    decoder = Recording(family, room)
    rolled(policy, decoder, MANY, group_size=4, max_tokens=2, max_rows=max_rows)
    ((opened, slots, width),) = decoder.written("open")
    assert opened == lanes
    assert width == 5  # the longest prompt has six tokens; the last is the first input of its lanes
    assert slots <= len(MANY)


def test_a_prompt_is_remembered_once_and_several_at_a_time():
    policy, family = family_policy(eos=MANY_ENDS)
    decoder = Recording(family)
    rolled(policy, decoder, MANY, group_size=4, max_tokens=13, max_rows=16)
    remembered = [slots for (slots,) in decoder.written("remember")]
    assert sum(map(len, remembered)) == len(MANY)
    assert remembered[0] == [0, 1, 2, 3]
    seats = [seat for (part,) in decoder.written("seat") for seat in part]
    assert [rollout for _, rollout in seats] == list(range(36))  # in their order
    assert seats[:16] == [(lane, lane) for lane in range(16)]


def test_an_ended_lane_is_given_the_next_rollout_and_the_decoding_is_that_much_shorter():
    policy, family = family_policy(eos=MANY_ENDS)
    decoder = Recording(family)
    groups = rolled(policy, decoder, MANY, group_size=4, max_tokens=13, max_rows=12)
    tokens = sum(len(rollout.tokens) for tries in groups for rollout in tries)
    decoded = sum(lanes * positions for positions, lanes in decoder.written("advance"))
    in_turn = sum(
        12 * max(len(rollout.tokens) for tries in groups[first : first + 3] for rollout in tries)
        for first in range(0, 9, 3)
    )
    assert tokens <= decoded < 0.8 * in_turn


def test_lanes_that_have_ended_are_taken_away_when_none_waits():
    policy, family = family_policy(eos=MANY_ENDS)
    decoder = Recording(family)
    rolled(policy, decoder, MANY, group_size=4, max_tokens=13)
    widths = [lanes for _, lanes in decoder.written("advance")]
    assert widths[0] == 36
    assert widths[-1] < 10
    for (kept,) in decoder.written("keep"):
        assert len(set(kept)) == len(kept)
        assert all(lane == place for place, lane in enumerate(kept) if lane < len(kept))  # the others fill holes
    waiting = Recording(family)
    rolled(policy, waiting, MANY, group_size=4, max_tokens=13, max_rows=8)
    first_keep = next(place for place, entry in enumerate(waiting.diary) if entry[0] == "keep")
    assert not any(entry[0] in ("seat", "remember") for entry in waiting.diary[first_keep:])


def test_no_position_is_decoded_behind_the_limit():
    policy, family = family_policy()
    decoder = Looking(family)
    rolled(policy, decoder, PROMPTS, max_tokens=12)
    assert sum(positions for positions, _ in decoder.written("advance")) == 12


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


def test_no_room_for_one_lane_says_what_to_change():
    policy, family = family_policy()
    with pytest.raises(NoRoom, match=r"lower rollout\.max_tokens"):
        rolled(policy, Recording(family, room=0))


def looked_at(rows, rollouts, tokens, logprobs=None):
    tokens = torch.tensor(tokens)
    logprobs = torch.full(tokens.shape, -1.0) if logprobs is None else torch.tensor(logprobs)
    return rows.take(np.array(rollouts), Sampled(tokens, logprobs, None)).tolist()


def test_what_is_behind_an_end_is_thrown_away_and_may_be_anything():
    policy = spelling_policy(b"")  # 256 ends
    rows = Rows(policy, RolloutConfig(max_tokens=5), 4)
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
    rows = Rows(spelling_policy(b""), RolloutConfig(max_tokens=6, stop=("BC",)), 2)
    assert looked_at(rows, [0, 1], [[65, 66], [66, 65]]) == [False, False]
    assert looked_at(rows, [0, 1], [[67, 256], [256, 67]]) == [True, True]
    first, second = (rows.rollout(number, PROMPTS[0], 0) for number in range(2))
    assert (first.tokens, first.stop, first.text) == ((65, 66, 67), StopReason.STOP, "A")
    assert (second.tokens, second.stop, second.text) == ((66, 65, 256), StopReason.EOS, "BA")


def test_a_look_at_a_thousand_lanes_costs_little():
    rows = Rows(spelling_policy(b""), RolloutConfig(max_tokens=1024), 1000)
    given = Sampled(torch.randint(0, 256, (1000, 16)), torch.zeros(1000, 16), None)
    took = []
    for _ in range(20):
        began = time.thread_time()
        rows.take(np.arange(1000), given)
        took.append(time.thread_time() - began)
    assert min(took) < 2e-3
