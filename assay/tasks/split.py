"""Which problems are held out: decided by a digest of the content, so that training can never see one of them."""

from __future__ import annotations

import hashlib

HELDOUT_SHARE = 1 / 8


def is_heldout(content: str, share: float = HELDOUT_SHARE) -> bool:
    """The side of a content, the same in every run, whatever the seed.

    A digest and not a CRC: of short texts a CRC is so regular that it would hold out every sum with an 8 in it.

    >>> [number for number in range(20) if is_heldout(str(number))]
    [9]
    """
    return int.from_bytes(hashlib.sha256(content.encode()).digest()[:8]) < share * 2**64
