"""Held-out curves of two contenders over several seeds, and what may be concluded from them."""

from __future__ import annotations

import hashlib
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

CONTENDERS = ("assay", "trl")
EQUAL, OURS, PEER, UNKNOWN = "equal within noise", "ours better", "TRL better", "one seed shows nothing"
NOISE = 2.0  # standard errors that a mean difference must reach to be called one


@dataclass(frozen=True, slots=True)
class Curve:
    """One run: the rows of its held-out evaluations, oldest first, and the prompts that it was trained on."""

    rows: tuple[Mapping[str, Any], ...]
    prompts_sha256: str  # of the token ids of the training prompts, in order

    def steps(self) -> list[int]:
        return [row["step"] for row in self.rows]

    def scores(self, name: str) -> list[float]:
        return [row[name] for row in self.rows]


# what is compared: its title, and the one number that a run is worth
MEASURES: dict[str, tuple[str, Callable[[Curve], float]]] = {
    "sampled": ("pass@1 sampled, at the end", lambda curve: curve.scores("pass_at_1")[-1]),
    "greedy": ("pass greedy, at the end", lambda curve: curve.scores("pass_greedy")[-1]),
    "sampled_mean": ("pass@1, mean of the run", lambda curve: mean_of_curve(curve)),
}


@dataclass(frozen=True, slots=True)
class Comparison:
    """One measure over all seeds. A standard error is None where one seed gives none."""

    ours: tuple[float, ...]
    peer: tuple[float, ...]

    @property
    def differences(self) -> list[float]:
        return [our - their for our, their in zip(self.ours, self.peer, strict=True)]

    @property
    def verdict(self) -> str:
        """Paired by seed: both runs of a seed saw the same problems, in training and held out."""
        mean, error = mean_and_error(self.differences)
        if error is None:
            return UNKNOWN
        if mean == 0 or abs(mean) < NOISE * error:
            return EQUAL
        return OURS if mean > 0 else PEER


def mean_and_error(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and its standard error.

    >>> mean_and_error([1.0, 2.0, 3.0])
    (2.0, 0.5773502691896258)
    """
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return statistics.fmean(values), error


def mean_of_curve(curve: Curve) -> float:
    """The height of the curve on average, by trapezoids: who learns the same sooner stands higher."""
    steps, scores = curve.steps(), curve.scores("pass_at_1")
    areas = [
        (right - left) * (before + after) / 2
        for left, right, before, after in zip(steps, steps[1:], scores, scores[1:], strict=False)
    ]
    return sum(areas) / (steps[-1] - steps[0])


def compare(ours: Sequence[Curve], peer: Sequence[Curve]) -> dict[str, Comparison]:
    return {name: Comparison(tuple(map(value, ours)), tuple(map(value, peer))) for name, (_, value) in MEASURES.items()}


def unequal(ours: Sequence[Curve], peer: Sequence[Curve], seeds: Sequence[int]) -> list[str]:
    """Sentences that say in what the two runs of a seed were not alike to begin with; none if they were."""
    sentences = []
    for our, their, seed in zip(ours, peer, seeds, strict=True):
        if our.prompts_sha256 != their.prompts_sha256:
            sentences.append(f"seed {seed}: the two were trained on different prompts")
        if our.rows[0] != their.rows[0]:
            sentences.append(f"seed {seed}: before training the two scored differently, so their weights differ")
        if our.steps() != their.steps():
            sentences.append(f"seed {seed}: the two were evaluated after different steps")
    return sentences


def prompts_sha256(prompts: Iterable[Sequence[int]]) -> str:
    """Of token ids, in order."""
    return hashlib.sha256("\n".join(" ".join(map(str, tokens)) for tokens in prompts).encode()).hexdigest()
