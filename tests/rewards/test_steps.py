"""Where the steps of an answer end, in tokens."""

import random

import pytest

from assay.rewards.steps import step_ends


@pytest.mark.parametrize(
    ("pieces", "separator", "ends"),
    [
        (["a", "\n", "b", "c", "\n", "d"], "\n", [2, 5, 6]),
        (["a\nb", "c", "\nd"], "\n", [1, 3, 3]),  # a token that straddles the end belongs to the step it ends
        (["a", "b"], "\n", [2]),
        (["a", "\n\n", "b"], "\n", [2, 2, 3]),  # the empty step between has no token
        (["a\n", "\nb", "\n", "\n", "c"], "\n\n", [2, 4, 5]),  # a separator of two tokens
        (["a", "\n"], "\n", [2, 2]),
    ],
)
def test_a_step_ends_with_the_token_that_completes_the_separator(pieces, separator, ends):
    def text_of(tokens):
        return "".join(pieces[token] for token in tokens)

    tokens = range(len(pieces))
    assert step_ends(text_of, tokens, text_of(tokens), separator) == ends


def test_the_last_step_takes_the_eos_and_the_text_that_was_cut_off():
    pieces = ["a", "\n", "b", "\nSTOP", "</s>"]

    def text_of(tokens):
        return "".join(pieces[token] for token in tokens)

    assert step_ends(text_of, range(5), "a\nb", "\n") == [2, 5]


@pytest.mark.parametrize("separator", ["\n", "\n\n", "\u00e9", "a\n"])
def test_many_tokens_end_where_each_beginning_says(separator):
    source = random.Random(3)
    pieces = ["\n", "\n\n", "a", " ", "\u00e9".encode()[:1], "\u00e9".encode()[1:], "\U0001f600".encode()[:2], b"\x9f"]
    raw = [piece if isinstance(piece, bytes) else piece.encode() for piece in pieces]

    def text_of(tokens):
        return b"".join(raw[token] for token in tokens).decode(errors="replace").lstrip(" ")  # as SentencePiece does

    for _ in range(50):
        tokens = [source.randrange(len(raw)) for _ in range(source.randrange(1, 120))]
        text = text_of(tokens)
        counts = [text_of(tokens[:count]).count(separator) for count in range(1, len(tokens) + 1)]
        ends = [next(at for at, count in enumerate(counts, 1) if count >= step) for step in range(1, counts[-1] + 1)]
        assert step_ends(text_of, tokens, text, separator) == [*ends, len(tokens)]


def test_the_time_grows_with_the_length_and_not_with_its_square():
    decoded = 0

    def text_of(tokens):
        nonlocal decoded
        decoded += len(tokens)
        return "".join(map(chr, tokens))

    assert step_ends(text_of, [10] * 4000, "\n" * 4000, "\n") == [*range(1, 4001), 4000]
    assert decoded < 60 * 4000


def test_bytes_of_a_character_that_are_apart_do_not_disturb_it():
    raw = "\u00e9\nb".encode()  # its first character is two tokens

    def text_of(tokens):
        return bytes(tokens).decode(errors="replace")

    assert step_ends(text_of, tuple(raw), "\u00e9\nb", "\n") == [3, 4]
