"""Stop strings: texts that end an answer, wherever the tokens that spell them begin and end."""

from __future__ import annotations

from collections.abc import Callable, Sequence

SLACK = 4  # tokens that spell nothing by themselves: the first bytes of a character, a marker


def stop_at(tokens: Sequence[int], stops: Sequence[str], decode: Callable[[Sequence[int]], str]) -> str | None:
    """The text before the first stop string, if the newest token completed one; else None.

    >>> stop_at([72, 105, 10, 13], ["\\n\\r"], lambda tokens: bytes(tokens).decode())
    'Hi'
    """
    if not stops:
        return None
    # the newest token ends the stop string, which is no longer than so many tokens; the whole text is read only then
    window = max(len(stop.encode()) for stop in stops) + SLACK
    tail = decode(tokens[-window:])
    if not any(stop in tail for stop in stops):
        return None
    text = decode(tokens)
    places = [text.find(stop) for stop in stops if stop in text]
    return text[: min(places)] if places else None
