"""Where the steps of an answer end, in tokens."""

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


def test_bytes_of_a_character_that_are_apart_do_not_disturb_it():
    raw = "\u00e9\nb".encode()  # its first character is two tokens

    def text_of(tokens):
        return bytes(tokens).decode(errors="replace")

    assert step_ends(text_of, tuple(raw), "\u00e9\nb", "\n") == [3, 4]
