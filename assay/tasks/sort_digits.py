"""Sort digits: "4713>" -> "1347". Small enough to learn in a minute, exact to check, of varying length."""

from __future__ import annotations

import random
import zlib
from dataclasses import dataclass

from assay.types import Prompt, Rollout, Score

ALPHABET = "0123456789>"
HELDOUT_SHARE = 8  # one text in eight is never trained on, chosen by its checksum


@dataclass(frozen=True, slots=True)
class SortProblem:
    id: str
    text: str
    answer: str


@dataclass(frozen=True, slots=True)
class SortDigits:
    """
    >>> task = SortDigits(min_digits=4, max_digits=6, seed=1)
    >>> problem = task.training_problem(0)
    >>> problem.answer == "".join(sorted(problem.text.rstrip(">")))
    True
    """

    min_digits: int
    max_digits: int
    seed: int

    def training_problem(self, index: int) -> SortProblem:
        return self._problem("train", index)

    def heldout_problem(self, index: int) -> SortProblem:
        return self._problem("heldout", index)

    def score(self, prompt: Prompt, rollout: Rollout) -> Score:
        """1 for exactly the sorted digits, ended by the policy itself; else 0."""
        return Score.of({"exact": float(rollout.text == prompt.answer and not rollout.truncated)})

    def close(self) -> None:
        """Nothing to let go of."""

    def _problem(self, split: str, index: int) -> SortProblem:
        source = random.Random(f"{self.seed}/{split}/{index}")
        while True:
            length = source.randint(self.min_digits, self.max_digits)
            digits = "".join(source.choice("0123456789") for _ in range(length))
            is_heldout = zlib.crc32(digits.encode()) % HELDOUT_SHARE == 0
            if is_heldout == (split == "heldout"):
                return SortProblem(f"sort-{split}-{index}", f"{digits}>", "".join(sorted(digits)))
