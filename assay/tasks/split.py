"""Tasks whose problems are made as they are asked for. Which are held out is decided by a digest of their content, so
that training can never see one of them."""

from __future__ import annotations

import hashlib
import random
from abc import ABC, abstractmethod
from typing import ClassVar

from assay.types import Problem

HELDOUT_SHARE = 1 / 8


def is_heldout(content: str, share: float = HELDOUT_SHARE) -> bool:
    """The side of a content, the same in every run, whatever the seed.

    A digest and not a CRC: of short texts a CRC is so regular that it would hold out every sum with an 8 in it.

    >>> [number for number in range(20) if is_heldout(str(number))]
    [9]
    """
    return int.from_bytes(hashlib.sha256(content.encode()).digest()[:8]) < share * 2**64


class MadeTask(ABC):
    """Draws problems until one is of the part that was asked for."""

    __slots__ = ()
    own_reward: ClassVar[str] = ""
    fingerprint: ClassVar[str] = ""
    seed: int

    def training_problem(self, index: int) -> Problem:
        return self._problem("train", index)

    def heldout_problem(self, index: int) -> Problem:
        return self._problem("heldout", index)

    def _problem(self, split: str, index: int) -> Problem:
        source = random.Random(f"{self.seed}/{split}/{index}")
        while True:
            is_heldout, problem = self._draw(source, f"{split}-{index}")
            if is_heldout == (split == "heldout"):
                return problem

    @abstractmethod
    def _draw(self, source: random.Random, name: str) -> tuple[bool, Problem]:
        """(whether it is held out, the problem); `name` is the end of its id."""
