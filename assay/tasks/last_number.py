"""The last number of a text, which is what counts as the answer when a model talks before it answers."""

from __future__ import annotations

import re
from decimal import Decimal

MINUS = "\u2212"  # the minus sign of typography, which models write too
# a sign counts only where it cannot be a subtraction or a range: in 10-4 the last number is 4
_SIGN = r"(?:(?<![0-9A-Za-z)\]}])[-+])?"
_DIGITS = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)"
# every quantifier consumes, so that time is linear; an exponent is short, so that no number is too long to write
NUMBER = re.compile(rf"{_SIGN}(?:{_DIGITS}(?:\.[0-9]+)?|(?<![0-9.])\.[0-9]+)(?:[eE][-+]?[0-9]{{1,3}}(?![0-9]))?")


def last_number(text: str) -> str:
    r"""The last decimal number as it is written, except for thousands separators and a plus; "" if there is none.

    >>> last_number("2 + 3 is 5."), last_number("about 1,234.50 dollars"), last_number("7-9=-2"), last_number("none")
    ('5', '1234.50', '-2', '')
    """
    found = NUMBER.findall(text.replace(MINUS, "-"))
    return found[-1].replace(",", "").removeprefix("+") if found else ""


def plain(number: str) -> str:
    """A number in digits, without what does not change it. Never a float: it may be long.

    >>> plain("007"), plain("12.0"), plain("-0"), plain(".50"), plain("5e3"), plain("")
    ('7', '12', '0', '0.5', '5000', '')
    """
    if not number:
        return ""
    digits = f"{Decimal(number):f}"
    digits = digits.rstrip("0").removesuffix(".") if "." in digits else digits
    return "0" if digits == "-0" else digits
