"""Whether sampled tokens are draws from a distribution, by sums that stay small whatever the vocabulary.

    tally = Tally()
    tally.add(logprobs_TV, tokens, before=prompt)      # the whole distribution at each sampled token, and the token
    tally.fields()                                     # arrays of a Batch, which are added up over batches

Two kinds of sums are kept:

Tables by id and place: how often each id was drawn there, how often it should have been (the sum of its probability p),
with which variance (the sum of p (1 - p)), and how improbable it is that it was never drawn (the sum of -log(1 - p)).

Gains of variants: for each known way in which a sampler differs from the scored distribution p, the sum of log q(token)
- log p(token), where q is what that sampler draws from. If the tokens are draws from p, then the mean of the product of
q / p is 1, so that its sum of logarithms is above g with a probability of at most exp(-g), however steps are pooled.

Shape legend: T tokens of a row, V ids, Q classes of places, I classes of ids, M variants.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

SINGLE_PLACES = 8  # the first places are counted one by one, later ones in classes that double
PLACE_CLASSES = 16
ID_CLASSES = 256  # ids are classed by their remainder
ROOM = 32_000_000  # probabilities that one tally looks at: of a large vocabulary some hundred tokens
KEPT = 512  # of the likeliest ids at a place; what is left is a tail
SAME = 1e-6  # log-probs of two ids that a cut does not separate
LARGEST = 0.999_999  # probability that counts as less than 1


@dataclass(frozen=True)
class Variant:
    """A way to draw from another distribution than p."""

    kind: str
    amount: float

    @property
    def words(self) -> str:
        return _WORDS[self.kind].format(amount=self.amount, share=100 * self.amount)


_WORDS = {
    "heat": "another temperature, {amount:g} times the scored one",
    "top_k": "among the {amount:g} likeliest tokens alone (top-k)",
    "greedy": "greedily: the likeliest token always",
    "top_p": "from the likeliest {share:g} % of the distribution alone (top-p)",
    "min_p": "among tokens with at least {share:g} % of the likeliest one's probability alone (min-p)",
    "uniform": "uniformly at random in about {share:g} % of the draws (exploration)",
    "epsilon_greedy": "greedily, and at random in about {share:g} % of the draws",
    "presence": "with a penalty on tokens that the answer has already, of about {amount:g} in the logits",
    "presence_in_all": "with a penalty on tokens that prompt or answer have already, of about {amount:g} in the logits",
}
VARIANTS: tuple[Variant, ...] = tuple(
    Variant(kind, amount)
    for kind, amounts in {
        "heat": (0.25, 0.35, 0.5, 0.6, 0.7, 0.8, 0.9, 1.1, 1.2, 1.35, 1.5, 1.75, 2.0, 3.0),
        "greedy": (0.0,),
        "top_k": (2, 3, 4, 5, 6, 8, 10, 16, 20, 32, 50),
        "top_p": (0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95),
        "min_p": (0.02, 0.05, 0.1, 0.2, 0.3),
        "uniform": (0.05, 0.1, 0.2, 0.3, 0.5),
        "epsilon_greedy": (0.05, 0.1, 0.2, 0.3, 0.5),
        "presence": (0.3, 1.0, 3.0),
        "presence_in_all": (0.3, 1.0, 3.0),
    }.items()
    for amount in amounts
)
TABLES = ("drawn_counts", "drawn_expected", "drawn_variance", "drawn_absent")
GAINS = ("variant_gains", "variant_impossible")


def place_class(places: Array) -> Array:
    """
    >>> place_class(np.array([0, 7, 8, 15, 16, 40, 10**6])).tolist()
    [0, 7, 8, 8, 9, 10, 15]
    """
    later = np.floor(np.log2(np.maximum(places, SINGLE_PLACES) / SINGLE_PLACES)).astype(int)
    return np.where(places < SINGLE_PLACES, places, np.minimum(SINGLE_PLACES + later, PLACE_CLASSES - 1))


class Tally:
    """Adds up what rows of sampled tokens say about the distributions that they are scored with."""

    def __init__(self) -> None:
        self.tokens = 0
        self._looked_at = 0
        self._tables: Array | None = None  # [4, Q, I], in the order of TABLES
        self._gains_M = np.zeros(len(VARIANTS))
        self._impossible_M = np.zeros(len(VARIANTS))

    def add(
        self,
        logprobs_TV: Array,
        tokens: Sequence[int],
        before: Sequence[int] = (),
        counted: Sequence[bool] | None = None,
        first: int = 0,
        answer: Sequence[int] = (),
    ) -> None:
        """`before` is the prompt; `first` is the place of the first of these tokens, and `answer` what the row has
        before them. Tokens that the policy did not sample are not `counted`."""
        ids_T, places_T = np.asarray(tokens, dtype=int), first + np.arange(len(tokens))
        kept_T = np.ones(len(tokens), dtype=bool) if counted is None else np.asarray(counted, dtype=bool).copy()
        kept_T &= np.isfinite(logprobs_TV[np.arange(len(tokens)), ids_T])
        vocabulary = logprobs_TV.shape[1]
        room = max((ROOM - self._looked_at) // vocabulary, 0)
        kept_T &= np.cumsum(kept_T) <= room
        if not kept_T.any():
            return
        self._looked_at += int(kept_T.sum()) * vocabulary
        self.tokens += int(kept_T.sum())
        logprobs_tV = np.maximum(logprobs_TV[kept_T].astype(np.float64), -1e4)
        self._count(np.exp(logprobs_tV), ids_T[kept_T], place_class(places_T[kept_T]))
        seen = _seen(logprobs_tV, ids_T, kept_T, before, answer) if vocabulary <= ID_CLASSES else None
        gains_tM = _gains(logprobs_tV, ids_T[kept_T], seen)
        impossible_tM = np.isneginf(gains_tM)
        self._gains_M += np.where(impossible_tM, 0.0, gains_tM).sum(axis=0)
        self._impossible_M += impossible_tM.sum(axis=0)

    def _count(self, p_tV: Array, ids_t: Array, classes_t: Array) -> None:
        classes = min(p_tV.shape[1], ID_CLASSES)
        if self._tables is None:
            self._tables = np.zeros((len(TABLES), PLACE_CLASSES, classes))
        padded = -p_tV.shape[1] % classes
        p_tI = np.pad(p_tV, ((0, 0), (0, padded))).reshape(len(p_tV), -1, classes).sum(axis=1)
        p_tI = np.minimum(p_tI, 1.0)
        np.add.at(self._tables[0], (classes_t, ids_t % classes), 1.0)
        for table_QI, values_tI in zip(
            self._tables[1:], (p_tI, p_tI * (1 - p_tI), -np.log1p(-np.minimum(p_tI, LARGEST))), strict=True
        ):
            np.add.at(table_QI, classes_t, values_tI)

    def fields(self) -> dict[str, Array]:
        """Of a Batch; nothing where no token was added."""
        if self._tables is None:
            return {}
        return dict(zip(TABLES, self._tables, strict=True)) | dict(
            zip(GAINS, (self._gains_M, self._impossible_M), strict=True)
        )


def _seen(
    logprobs_tV: Array, ids_T: Array, kept_T: Array, before: Sequence[int], answer: Sequence[int]
) -> tuple[Array, Array]:
    """Which ids the answer has before each place, and which prompt or answer have."""
    answer_TV = np.zeros((len(ids_T), logprobs_tV.shape[1]), dtype=bool)
    answer_TV[0, list(answer)] = True
    for place, token in enumerate(ids_T[:-1].tolist()):
        answer_TV[place + 1] = answer_TV[place]
        answer_TV[place + 1, token] = True
    all_TV = answer_TV.copy()
    all_TV[:, [token for token in before if 0 <= token < all_TV.shape[1]]] = True
    return answer_TV[kept_T], all_TV[kept_T]


def _gains(logprobs_tV: Array, ids_t: Array, seen: tuple[Array, Array] | None) -> Array:
    """[t, M]: log q - log p of each token under each variant; -inf where the variant cannot draw it."""
    rows_t, vocabulary = np.arange(len(ids_t)), logprobs_tV.shape[1]
    chosen_t = logprobs_tV[rows_t, ids_t]
    sorted_tK, tail_t = _likeliest(logprobs_tV)
    p_tK = np.exp(sorted_tK)
    cumulated_tK = p_tK.cumsum(axis=1)
    gains_tM = np.zeros((len(ids_t), len(VARIANTS)))

    def cut(threshold_t: Array) -> Array:
        inside_tK = sorted_tK >= threshold_t[:, None] - SAME
        mass_t = np.where(inside_tK, p_tK, 0.0).sum(axis=1)
        mass_t = np.where(inside_tK.all(axis=1), mass_t + tail_t, mass_t)
        return np.where(chosen_t >= threshold_t - SAME, -np.log(np.clip(mass_t, 1e-300, 1.0)), -np.inf)

    for number, variant in enumerate(VARIANTS):
        amount = variant.amount
        if variant.kind == "heat":
            power, last_t = 1 / amount, sorted_tK[:, -1]  # the tail is scaled as its likeliest id is
            tail_log_t = np.log(np.maximum(tail_t, 1e-300)) + (power - 1) * last_t
            sum_t = np.logaddexp(np.logaddexp.reduce(power * sorted_tK, axis=1), tail_log_t)
            gains_tM[:, number] = (power - 1) * np.maximum(chosen_t, last_t) - sum_t
        elif variant.kind == "greedy":
            gains_tM[:, number] = cut(sorted_tK[:, 0])
        elif variant.kind == "top_k":
            at = int(amount) - 1
            gains_tM[:, number] = cut(sorted_tK[:, at]) if at < sorted_tK.shape[1] else 0.0
        elif variant.kind == "top_p":
            at_t = (cumulated_tK < amount).sum(axis=1)
            last_t = np.minimum(at_t, sorted_tK.shape[1] - 1)
            gains_tM[:, number] = np.where(at_t < sorted_tK.shape[1], cut(sorted_tK[rows_t, last_t]), 0.0)
        elif variant.kind == "min_p":
            lowest_t = sorted_tK[:, 0] + np.log(amount)
            is_known_t = (lowest_t > sorted_tK[:, -1]) | (tail_t <= 0)
            gains_tM[:, number] = np.where(is_known_t, cut(lowest_t), 0.0)
        elif variant.kind == "uniform":
            gains_tM[:, number] = np.log1p(amount * (np.exp(-chosen_t) / vocabulary - 1))
        elif variant.kind == "epsilon_greedy":
            best_t = (chosen_t >= sorted_tK[:, 0] - SAME) * (1 - amount)
            gains_tM[:, number] = np.log(best_t + amount / vocabulary) - chosen_t
        elif seen is not None:
            seen_tV = seen[variant.kind == "presence_in_all"]
            mass_t = np.where(seen_tV, np.exp(logprobs_tV), 0.0).sum(axis=1)
            lowered_t = np.log1p(np.clip(mass_t, 0.0, 1.0) * np.expm1(-amount))
            gains_tM[:, number] = -amount * seen_tV[rows_t, ids_t] - lowered_t
    return gains_tM


def _likeliest(logprobs_tV: Array) -> tuple[Array, Array]:
    """(log-probs of the likeliest ids, falling; the probability of all others)"""
    count = min(KEPT, logprobs_tV.shape[1])
    if count == logprobs_tV.shape[1]:
        return -np.sort(-logprobs_tV, axis=1), np.zeros(len(logprobs_tV))
    top_tK = -np.sort(np.partition(-logprobs_tV, count - 1, axis=1)[:, :count], axis=1)
    return top_tK, np.maximum(1.0 - np.exp(top_tK).sum(axis=1), 0.0)
