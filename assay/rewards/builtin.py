"""Rewards that come with Assay and read nothing but text. They run in the workers: a completion is hostile text."""

from __future__ import annotations

import re

from assay.tasks import last_number as numbers


def exact(completion: str, answer: str) -> float:
    """1 if completion and answer are the same text, except for space around them."""
    return float(completion.strip() == answer.strip())


def last_number(completion: str, answer: str) -> float:
    """1 if the last number of the completion is the answer: one number, alone or after #### as in GSM8K.

    >>> last_number("3 + 4 = 7. So the answer is 1,007.", "1007")
    1.0
    """
    wanted = answer.rpartition("####")[2].strip()
    if not numbers.NUMBER.fullmatch(wanted.replace(numbers.MINUS, "-")):  # of 3/4 the last number would be 4
        raise ValueError(f"the answer {wanted[:80]!r} is not one number; use math")
    return float(numbers.plain(numbers.last_number(completion)) == numbers.plain(numbers.last_number(wanted)))


def whole_match(completion: str, pattern: str) -> float:
    """1 if the whole completion matches the regular expression; (?s) at its start lets a dot be a newline too."""
    return float(re.fullmatch(pattern, completion) is not None)
