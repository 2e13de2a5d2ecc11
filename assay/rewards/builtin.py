"""Rewards that come with Assay and read nothing but text. They run in the workers: a completion is hostile text."""

from __future__ import annotations

import re
from decimal import Decimal

MINUS = "\u2212"  # the minus sign of typography, which models write too
# a sign counts only where it cannot be a subtraction or a range: in 10-4 the last number is 4
_SIGN = r"(?:(?<![0-9A-Za-z)\]}])[-+])?"
_DIGITS = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)"
NUMBER = re.compile(rf"{_SIGN}(?:{_DIGITS}(?:\.[0-9]+)?|(?<![0-9.])\.[0-9]+)(?:[eE][-+]?[0-9]{{1,3}}(?![0-9]))?")


def exact(completion: str, answer: str) -> float:
    """1 if completion and answer are the same text, but for space around them."""
    return float(completion.strip() == answer.strip())


def last_number(completion: str, answer: str) -> float:
    """1 if the last number of the completion is the last number of the answer.

    >>> last_number("3 + 4 = 7. So the answer is 1,007.", "1007")
    1.0
    """
    wanted = _last_number(answer)
    if wanted is None:
        raise ValueError(f"the answer {answer[:80]!r} holds no number")
    return float(_last_number(completion) == wanted)


def _last_number(text: str) -> Decimal | None:
    last = None
    for found in NUMBER.finditer(text.replace(MINUS, "-")):
        last = found
    return Decimal(last.group().replace(",", "")) if last else None


def whole_match(completion: str, pattern: str) -> float:
    """1 if the whole completion matches the regular expression; (?s) at its start lets a dot be a newline too."""
    return float(re.fullmatch(pattern, completion) is not None)
