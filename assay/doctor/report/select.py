"""Which illnesses are looked for: codes, names and families of --select and --ignore --> illnesses."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

from assay.doctor.catalogue import Illness, as_name
from assay.machine.user_error import UserError


class UnknownCode(UserError, ValueError):
    """No illness is called so. The message is one sentence with the nearest."""


def select(illnesses: Sequence[Illness], chosen: Sequence[str], ignored: Sequence[str]) -> list[Illness]:
    """Those that `chosen` names and `ignored` does not, in the order of the catalogue; if `chosen` names none, all.
    Those that need a reward to be called are left out."""
    without_a_call = {illness.code for illness in illnesses if not illness.needs_a_call}
    kept = _codes_named(illnesses, chosen) & without_a_call if _split(chosen) else without_a_call
    if not kept:
        raise UnknownCode(f"{', '.join(_split(chosen))} needs a reward to call; try it with: assay reward-check")
    kept = kept - _codes_named(illnesses, ignored)
    if not kept:
        raise UnknownCode("--ignore takes away every check that --select names; nothing is left to look for")
    return [illness for illness in illnesses if illness.code in kept]


def nearest(word: str, illnesses: Sequence[Illness]) -> str:
    """The end of the sentence about an unknown code: did you mean RAT01?"""
    known = [*(illness.code for illness in illnesses), *(illness.name for illness in illnesses)]
    code = re.sub(r"(?<=[A-Z])(\d)$", r"0\1", word.upper())
    near = difflib.get_close_matches(code, known, n=1) or difflib.get_close_matches(as_name(word), known, n=1)
    return f"did you mean {near[0]}?" if near else "'assay explain' lists them all"


def _codes_named(illnesses: Sequence[Illness], words: Sequence[str]) -> set[str]:
    codes: set[str] = set()
    for word in _split(words):
        found = {illness.code for illness in illnesses if illness.code.startswith(word.upper())}
        found |= {illness.code for illness in illnesses if illness.name == as_name(word)}
        if not found:
            unknown = f"{word[:40]!r} is not the code, name or family of an illness"
            raise UnknownCode(f"{unknown}; {nearest(word, illnesses)}")
        codes |= found
    return codes


def _split(words: Sequence[str]) -> list[str]:
    """--select ADV,RAT01 --select kl05 --> ADV, RAT01, kl05"""
    return [part.strip() for word in words for part in word.split(",") if part.strip()]
