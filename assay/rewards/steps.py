"""Process rewards: where in the tokens each step of an answer ends."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

WINDOW = 16  # tokens that are decoded again for each further one: more than any character or space rule reaches
_CUT = "\ufffd"  # what a character reads as while some of its bytes are missing

Decode = Callable[[Sequence[int]], str]


def step_ends(text_of: Decode, tokens: Sequence[int], text: str, separator: str) -> list[int]:
    """The number of tokens up to the end of each step of `text.split(separator)`.

    A token that completes the separator belongs to the step it ends, whatever follows in it. The last step ends with
    the last token, its EOS included.

    >>> step_ends(lambda tokens: "".join(map(chr, tokens)), list(map(ord, "ab;c")), "ab;c", ";")
    [3, 4]
    """
    ended = text.count(separator)
    if not ended:
        return [len(tokens)]
    whole = text_of(tokens)
    lengths = _lengths(text_of, tokens, whole)
    found: list[int] = []
    place = 0
    for _ in range(ended):
        at = whole.find(separator, place)
        place = at + len(separator) if at >= 0 else len(whole) + 1
        found.append(min(bisect_left(lengths, place) + 1, len(tokens)))
    return [*found, len(tokens)]


def _lengths(text_of: Decode, tokens: Sequence[int], whole: str) -> list[int]:
    """How many characters of `whole` the first 1, 2, ... tokens hold.

    A window of the last tokens is decoded and found in `whole`, not the whole beginning: that would take the square of
    the time. Where the window reads otherwise than it does in `whole`, the beginning is decoded after all.
    """
    lengths: list[int] = []
    start, base = 0, 0  # the first token of the window, and where in `whole` its text begins
    for count in range(1, len(tokens) + 1):
        piece = text_of(tokens[start:count])
        shared = _shared_length(whole[base : base + len(piece)], piece)
        if piece[shared:].strip(_CUT):
            start, base = 0, 0
            piece = text_of(tokens[:count])
            shared = _shared_length(whole, piece)
        lengths.append(max(base + shared, lengths[-1] if lengths else 0))
        if count - start >= 2 * WINDOW and shared == len(piece):
            tail = text_of(tokens[count - WINDOW : count])
            if piece.endswith(tail):
                start, base = count - WINDOW, base + len(piece) - len(tail)
    return lengths


def _shared_length(one: str, other: str) -> int:
    """How many characters both begin with."""
    if one == other:
        return len(one)
    pairs = zip(one, other, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
