"""The last number of a text, which is what counts as the answer when a model talks before it answers."""

from __future__ import annotations

import re

# a minus behind a digit or a letter is a subtraction or a hyphen; every quantifier consumes, so that time is linear
_NUMBER = re.compile(r"(?:(?<![0-9A-Za-z])-)?[0-9]+(?:,[0-9]{3})*(?:\.[0-9]+)?")


def last_number(text: str) -> str:
    r"""The last decimal number, without thousands separators; "" if there is none. Never a float: it may be long.

    >>> last_number("2 + 3 is 5."), last_number("about 1,234.50 dollars"), last_number("7-9=-2"), last_number("none")
    ('5', '1234.50', '-2', '')
    """
    found = _NUMBER.findall(text.replace("\u2212", "-"))  # the typographic minus
    return found[-1].replace(",", "") if found else ""


def plain(number: str) -> str:
    """A number without what does not change it.

    >>> plain("007"), plain("12.0"), plain("-0"), plain("0.50"), plain("")
    ('7', '12', '0', '0.5', '')
    """
    sign, digits = ("-", number[1:]) if number.startswith("-") else ("", number)
    whole, _, part = digits.partition(".")
    if not whole:
        return ""
    whole, part = whole.lstrip("0") or "0", part.rstrip("0")
    value = f"{whole}.{part}" if part else whole
    return value if value == "0" else sign + value
