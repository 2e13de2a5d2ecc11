"""Addition of two numbers: what a small language model half knows, and can be made to know."""

from __future__ import annotations

import random
from dataclasses import dataclass

from assay.config import ConfigError
from assay.config.sections import setting
from assay.tasks.last_number import last_number, plain
from assay.tasks.split import MadeTask, is_heldout
from assay.types import Problem, Prompt, Rollout, Score

# examples that a few-shot prompt shows, none of them held out; a problem is never shown among its own examples
_SHOWN = {1: ((2, 5), (6, 3), (1, 7)), 2: ((37, 42), (26, 31), (45, 32))}
_HELDOUT_SHARE = {1: 1 / 4, 2: 1 / 8}  # of 55 and of 4,095 pairs


@dataclass(frozen=True, slots=True)
class AdditionOptions:
    """Two numbers to be added."""

    digits: int = setting(1, "digits of each number: 1 or 2", low=1)
    style: str = setting(
        "few_shot",
        'few_shot: two solved lines and "4 + 8 =" as raw text, answered up to the end of the line (set '
        'rollout.stop = ["\\n"]); chat: "What is 4 + 8?", where the last number of the answer counts',
        choices=("few_shot", "chat"),
    )


@dataclass(frozen=True, slots=True)
class Addition(MadeTask):
    r"""
    >>> task = Addition(AdditionOptions(), seed=1)
    >>> problem = task.training_problem(0)
    >>> problem.text.splitlines()[:2]
    ['2 + 5 = 7', '6 + 3 = 9']
    >>> left, _, right, _ = problem.text.splitlines()[-1].split()
    >>> problem.answer == str(int(left) + int(right))
    True
    """

    options: AdditionOptions
    seed: int

    def __post_init__(self) -> None:
        if self.options.digits not in _SHOWN:
            raise ConfigError(f"task.options.digits = {self.options.digits} must be 1 or 2")

    def score(self, prompt: Prompt, rollout: Rollout) -> Score:
        """1 for the right sum. few_shot: it must be the whole line, and the line must have ended."""
        if self.options.style == "chat":
            right = plain(last_number(rollout.text)) == prompt.answer
        else:
            line, newline, _ = rollout.text.partition("\n")
            right = line.strip() == prompt.answer and (bool(newline) or not rollout.truncated)
        return Score.of({"exact": float(right)})

    def _draw(self, source: random.Random, name: str) -> tuple[bool, Problem]:
        low, high = (0, 9) if self.options.digits == 1 else (10, 99)
        left, right = source.randint(low, high), source.randint(low, high)
        return pair_is_heldout(left, right, self.options.digits), self._problem_of(left, right, f"addition-{name}")

    def _problem_of(self, left: int, right: int, name: str) -> Problem:
        answer = str(left + right)
        if self.options.style == "chat":
            question = f"What is {left} + {right}?"
            return Problem(name, question, answer, ({"role": "user", "content": question},))
        shown = [pair for pair in _SHOWN[self.options.digits] if set(pair) != {left, right}][:2]
        lines = [f"{first} + {second} = {first + second}\n" for first, second in shown]
        return Problem(name, "".join(lines) + f"{left} + {right} =", answer)


def pair_is_heldout(left: int, right: int, digits: int) -> bool:
    """a + b and b + a are the same problem."""
    return is_heldout(f"{min(left, right)} + {max(left, right)}", _HELDOUT_SHARE[digits])
