"""Stop strings: they end an answer wherever tokens begin and end; the reward never sees them, the loss does."""

import pytest
import torch
from fixtures.compared import BYTE_EOS, packed, sampled, spelling_policy
from fixtures.tiny import prompt, tiny_policy

from assay.engine.decoded import stop_at
from assay.policy.causal import CausalPolicy
from assay.policy.codec import TokenizerCodec
from assay.types import StopReason

PROMPT = prompt(0, (65,))
SMILE = "\N{GRINNING FACE}"  # four bytes


def written(text_or_tokens, *stops, words=(), max_tokens=30):
    """The rollout of a model that writes this text, one token a byte, or these tokens."""
    tokens = list(text_or_tokens.encode()) if isinstance(text_or_tokens, str) else text_or_tokens
    policy = spelling_policy(tokens, *words)
    ((rollout,),) = sampled(policy, [PROMPT], group_size=1, max_tokens=max_tokens, stop=stops)
    return rollout


def test_the_tokenizer_of_these_tests_spells_in_bytes():
    policy = spelling_policy([], "END.")
    assert policy.codec.encode("a\n ") == [97, 10, 32]
    assert policy.codec.decode([*SMILE.encode(), 257]) == SMILE + "END."


def test_a_stop_string_may_be_spelled_by_several_tokens():
    rollout = written("42 END and more", "END")
    assert (rollout.text, rollout.stop) == ("42 ", StopReason.STOP)
    assert bytes(rollout.tokens) == b"42 END"  # nothing behind it was sampled
    assert not rollout.truncated


def test_a_stop_string_inside_a_token_ends_the_answer_there_and_the_token_stays_whole():
    rollout = written([52, 50, 257, 99], "END", words=["xENDy"])
    assert (rollout.text, rollout.stop) == ("42x", StopReason.STOP)
    assert rollout.tokens == (52, 50, 257)


def test_a_stop_string_at_the_very_beginning_leaves_an_empty_answer_of_one_token():
    rollout = written("\nrest", "\n")
    assert (rollout.text, rollout.tokens, rollout.stop) == ("", (10,), StopReason.STOP)


def test_of_two_stop_strings_the_earlier_place_counts_whatever_their_order():
    for stops in (("b", "cd"), ("cd", "b")):
        assert written("abcd", *stops).text == "a"
    # both are completed by one and the same token: the text ends before the one that begins first
    for stops in (("CD", "BCD"), ("BCD", "CD")):
        assert written([97, 257], *stops, words=["BCDE"]).text == "a"
    # one that has only begun does not count
    assert written("a12b", "123", "b").text == "a12"


def test_a_stop_string_of_many_bytes_is_found_when_its_last_byte_is_there():
    rollout = written(f"ab{SMILE}c", SMILE)
    assert (rollout.text, rollout.stop) == ("ab", StopReason.STOP)
    assert rollout.tokens == (97, 98, *SMILE.encode())


def test_characters_that_are_split_over_tokens_do_not_hide_or_make_a_stop_string():
    umlauts = "\u00e4\u00f6\u00fc" * 4
    rollout = written(f"{umlauts}\n\nx", "\n\n")
    assert (rollout.text, rollout.stop) == (umlauts, StopReason.STOP)
    # a character of two bytes whose first one is that of the stop string's
    assert written("\u00e5b\u00e4c", "\u00e4").text == "\u00e5b"


def test_an_end_token_before_the_stop_string_is_an_end():
    rollout = written([97, BYTE_EOS, 69, 78, 68], "END")
    assert (rollout.text, rollout.tokens, rollout.stop) == ("a", (97, BYTE_EOS), StopReason.EOS)


def test_a_stop_string_that_the_last_allowed_token_completes_is_a_stop_and_one_token_fewer_a_truncation():
    rollout = written("abEND", "END", max_tokens=5)
    assert (rollout.text, rollout.stop, rollout.truncated) == ("ab", StopReason.STOP, False)
    cut = written("abEND", "END", max_tokens=4)
    assert (cut.text, cut.stop, cut.truncated) == ("abEN", StopReason.LENGTH, True)


def test_the_stop_string_is_in_the_loss_and_behind_it_nothing():
    groups = [[written("a\nb", "\n"), written([98, 98, 98, BYTE_EOS])]]
    (batch,) = packed([PROMPT], groups)[0].microbatches
    assert batch.inputs.targets_BT[0, :2].tolist() == [97, 10]
    assert batch.mask_BT.tolist() == [[True, True, False, False], [True, True, True, True]]


def test_rows_stop_each_at_their_own_place():
    policy = tiny_policy()
    words = policy.codec.decode(range(13))
    groups = sampled(policy, [prompt(0, (2, 3))], group_size=64, max_tokens=6, stop=("7", "34"))
    free = sampled(policy, [prompt(0, (2, 3))], group_size=64, max_tokens=6)
    assert "7" in words
    for rollout, unstopped in zip(groups[0], free[0], strict=True):
        assert "7" not in rollout.text
        assert "34" not in rollout.text
        # the same random numbers, cut short
        assert rollout.tokens == unstopped.tokens[: len(rollout.tokens)]
        if rollout.stop is StopReason.STOP:
            spelled = policy.codec.decode(rollout.tokens)
            assert spelled in (rollout.text + "7", rollout.text + "34")
        else:
            assert (rollout.tokens, rollout.stop) == (unstopped.tokens, unstopped.stop)
    assert {rollout.stop for rollout in groups[0]} == {StopReason.STOP, StopReason.EOS, StopReason.LENGTH}


class Counting:
    """A codec that counts how often it is asked to decode."""

    def __init__(self, codec):
        self.codec, self.calls = codec, 0

    def decode(self, tokens):
        self.calls += 1
        return self.codec.decode(tokens)


@pytest.mark.parametrize(("stops", "calls"), [((), 1), (("never",), 21)])
def test_without_a_stop_string_nothing_is_decoded_while_sampling(stops, calls):
    policy = spelling_policy(b"abcdefghijklmnopqrst")
    counting = Counting(policy.codec)
    watched = CausalPolicy(policy.model, counting, policy.eos_ids, 1.0)
    sampled(watched, [PROMPT], group_size=1, max_tokens=20, stop=stops)
    assert counting.calls == calls  # once for the text of the rollout, and once a token where that is needed


def test_looking_for_a_stop_string_reads_the_end_of_the_text_only():
    lengths = []

    def decode(tokens):
        lengths.append(len(tokens))
        return bytes(tokens).decode()

    assert stop_at([97] * 1000, ["END"], decode) is None
    assert max(lengths) < 10


@torch.no_grad()
def test_every_end_token_of_a_list_ends_a_rollout():
    policy = tiny_policy()
    ends = (1, 5, 9)
    many = CausalPolicy(policy.model, TokenizerCodec(policy.codec.tokenizer), ends, 1.0, policy.abilities)
    groups = sampled(many, [prompt(0, (2, 3)), prompt(1, (4,))], group_size=64, max_tokens=8)
    last = set()
    for rollout in (rollout for tries in groups for rollout in tries):
        assert not set(rollout.tokens[:-1]) & set(ends)
        assert (rollout.stop is StopReason.EOS) == (rollout.tokens[-1] in ends)
        if rollout.stop is StopReason.EOS:
            last.add(rollout.tokens[-1])
            assert rollout.text == many.codec.decode(rollout.tokens[:-1])
    assert last == set(ends)
