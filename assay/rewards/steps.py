"""Process rewards: where in the tokens each step of an answer ends."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence


def step_ends(text_of: Callable[[Sequence[int]], str], tokens: Sequence[int], text: str, separator: str) -> list[int]:
    """The number of tokens up to the end of each step of `text.split(separator)`.

    A token that completes the separator belongs to the step it ends, whatever follows in it. The last step ends with
    the last token, its EOS included.

    >>> step_ends(lambda tokens: "".join(map(chr, tokens)), list(map(ord, "ab;c")), "ab;c", ";")
    [3, 4]
    """

    def steps_ended(count: int) -> int:
        return text_of(tokens[:count]).count(separator)

    counts = range(1, len(tokens))  # more tokens hold no fewer separators, so each end is found by bisection
    found = [bisect_left(counts, step, key=steps_ended) + 1 for step in range(1, text.count(separator) + 1)]
    return [*found, len(tokens)]
