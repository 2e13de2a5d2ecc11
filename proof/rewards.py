"""Rewards of the healthy runs: deliberate variants of what an answer to sort_digits is worth."""

from __future__ import annotations

import random

SEPARATOR = "5"  # ends a step where answers are digits


def sorted_parts(completion: str, answer: str) -> list[float]:
    """A process reward: each part of the answer, split at SEPARATOR, that is in order."""
    return [float(part == "".join(sorted(part))) for part in completion.split(SEPARATOR)]


def right(completion: str, answer: str, truncated: bool) -> float:
    return float(completion == answer and not truncated)


def right_length(completion: str, answer: str) -> float:
    return float(len(completion) == len(answer))


def closeness(completion: str, answer: str) -> float:
    """The share of digits in their right places: many different rewards in a group."""
    return sum(a == b for a, b in zip(completion, answer, strict=False)) / max(len(completion), len(answer), 1)


def noisy(completion: str, answer: str, truncated: bool) -> float:
    """A verifier that is wrong one time in ten, always alike on the same answer."""
    chance = random.Random(f"{answer}/{completion}").random()
    return 1.0 - right(completion, answer, truncated) if chance < 0.1 else right(completion, answer, truncated)


def answered(completion: str) -> float:
    """What almost every answer passes: a task that is solved."""
    return float(len(completion) > 0)


def impossible(completion: str) -> float:
    """What no answer passes: a task that is too hard."""
    return float("unreachable" in completion)
