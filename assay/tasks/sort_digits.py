"""Sort digits: "4713>" -> "1347". Small enough to learn in a minute, exact to check, of varying length."""

from __future__ import annotations

import random
import zlib
from dataclasses import dataclass

from assay.config import ConfigError
from assay.config.sections import setting
from assay.tasks.split import MadeTask
from assay.types import Problem, Prompt, Rollout, Score

ALPHABET = "0123456789>"
HELDOUT_SHARE = 8  # one text in eight is never trained on, chosen by its checksum


@dataclass(frozen=True, slots=True)
class SortDigitsOptions:
    """Digits to be put in ascending order."""

    min_digits: int = setting(4, "fewest digits", low=1)
    max_digits: int = setting(6, "most digits", low=1)


@dataclass(frozen=True, slots=True)
class SortDigits(MadeTask):
    """
    >>> task = SortDigits(min_digits=4, max_digits=6, seed=1)
    >>> problem = task.training_problem(0)
    >>> problem.answer == "".join(sorted(problem.text.rstrip(">")))
    True
    """

    min_digits: int
    max_digits: int
    seed: int

    def __post_init__(self) -> None:
        if self.min_digits > self.max_digits:
            raise ConfigError(
                f"task.options.min_digits = {self.min_digits} exceeds task.options.max_digits = {self.max_digits}"
            )

    @classmethod
    def of(cls, options: SortDigitsOptions, seed: int) -> SortDigits:
        return cls(options.min_digits, options.max_digits, seed)

    def score(self, prompt: Prompt, rollout: Rollout) -> Score:
        """1 for exactly the sorted digits, ended by the policy itself; else 0."""
        return Score.of({"exact": float(rollout.text == prompt.answer and not rollout.truncated)})

    def _draw(self, source: random.Random, name: str) -> tuple[bool, Problem]:
        length = source.randint(self.min_digits, self.max_digits)
        digits = "".join(source.choice("0123456789") for _ in range(length))
        is_heldout = zlib.crc32(digits.encode()) % HELDOUT_SHARE == 0
        return is_heldout, Problem(f"sort-{name}", f"{digits}>", "".join(sorted(digits)))
