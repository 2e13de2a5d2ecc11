"""Whether sampled tokens are draws from a distribution, by sums that stay small whatever the vocabulary.

    tally = Tally()
    tally.add(Distributions.of(logprobs_TV, tokens), prompt)  # the whole distribution at each sampled token
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
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

SINGLE_PLACES = 8  # the first places are counted one by one, later ones in classes that double
PLACE_CLASSES = 16
ID_CLASSES = 256  # ids are classed by their remainder
ROOM = 64_000_000  # probabilities that one tally looks at: of a large vocabulary some hundred tokens
KEPT = 64  # of the likeliest ids at a place, where there are many more; what is left is a tail
MANY = 512  # ids: more are cut to those that are kept
TOGETHER = 512  # tokens whose gains are computed together
LOWEST = -1e4  # a log-prob that stands for 0
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


class Distributions(NamedTuple):
    """What is kept of the distributions at the tokens of a row, T of them."""

    ids_T: Array
    chosen_T: Array  # log-probs of these
    sorted_TK: Array  # log-probs of the likeliest ids, falling
    tail_T: Array  # probability of all others
    classes_TI: Array  # probabilities of the classes of ids
    vocabulary: int
    p_TV: Array | None  # of all ids, where they are few

    @classmethod
    def of(cls, logprobs_TV: Array, tokens: Sequence[int]) -> Distributions:
        """Of a vocabulary that is not large."""
        ids_T, vocabulary = np.asarray(tokens, dtype=int), logprobs_TV.shape[1]
        logprobs_TV = np.maximum(logprobs_TV.astype(np.float64), LOWEST)
        p_TV, classes = np.exp(logprobs_TV), min(vocabulary, ID_CLASSES)
        padded_TV = np.pad(p_TV, ((0, 0), (0, -vocabulary % classes)))
        return cls(
            ids_T,
            logprobs_TV[np.arange(len(ids_T)), ids_T],
            -np.sort(-logprobs_TV, axis=1),
            np.zeros(len(ids_T)),
            padded_TV.reshape(len(ids_T), -1, classes).sum(axis=1),
            vocabulary,
            p_TV,
        )


class _Seen(NamedTuple):
    """Of tokens that stand before each place: their probability, and whether the drawn one is one of them."""

    mass_T: Array
    is_drawn_T: Array


class Tally:
    """Adds up what rows of sampled tokens say about the distributions that they are scored with."""

    def __init__(self) -> None:
        self._looked_at = 0
        self._tables: Array | None = None  # [4, Q, I], in the order of TABLES
        self._gains_M = np.zeros(len(VARIANTS))
        self._impossible_M = np.zeros(len(VARIANTS))
        self._waiting: list[tuple[Distributions, _Seen, _Seen, Array]] = []

    def has_room(self, tokens: int, vocabulary: int) -> bool:
        return self._looked_at + tokens * vocabulary <= ROOM

    def add(
        self,
        row: Distributions,
        prompt: Sequence[int] = (),
        counted: Sequence[bool] | None = None,
        first: int = 0,
        answer: Sequence[int] = (),
    ) -> None:
        """`first` is the place of the first of these tokens, and `answer` what the row has before them. Tokens that the
        policy did not sample are not `counted`."""
        kept_T = row.chosen_T > LOWEST
        kept_T = kept_T if counted is None else kept_T & np.asarray(counted, dtype=bool)
        if not kept_T.any():
            return
        self._looked_at += len(kept_T) * row.vocabulary
        part = row._replace(
            ids_T=row.ids_T[kept_T],
            chosen_T=row.chosen_T[kept_T],
            sorted_TK=row.sorted_TK[kept_T],
            tail_T=row.tail_T[kept_T],
            classes_TI=row.classes_TI[kept_T],
            p_TV=None,
        )
        in_answer, in_all = (
            _Seen(seen.mass_T[kept_T], seen.is_drawn_T[kept_T])
            for seen in (_seen(row, answer, ()), _seen(row, answer, prompt))
        )
        self._waiting.append((part, in_answer, in_all, place_class(first + np.flatnonzero(kept_T))))
        if sum(len(waiting[0].ids_T) for waiting in self._waiting) >= TOGETHER:
            self._settle()

    def _settle(self) -> None:
        rows, in_answer, in_all, classes = zip(*self._waiting, strict=True)
        self._waiting = []
        vocabulary = rows[0].vocabulary
        ids_N, chosen_N, sorted_NK, tail_N, p_NI = (
            np.concatenate([row[number] for row in rows]) for number in range(5)
        )
        seen = [_Seen(*(np.concatenate(parts) for parts in zip(*part, strict=True))) for part in (in_answer, in_all)]
        self._count(np.minimum(p_NI, 1.0), ids_N, np.concatenate(classes))
        gains_NM = _gains(chosen_N, sorted_NK, tail_N, vocabulary, seen)
        impossible_NM = np.isneginf(gains_NM)
        self._gains_M += np.where(impossible_NM, 0.0, gains_NM).sum(axis=0)
        self._impossible_M += impossible_NM.sum(axis=0)

    def _count(self, p_NI: Array, ids_N: Array, classes_N: Array) -> None:
        if self._tables is None:
            self._tables = np.zeros((len(TABLES), PLACE_CLASSES, p_NI.shape[1]))
        np.add.at(self._tables[0], (classes_N, ids_N % p_NI.shape[1]), 1.0)
        sums = (p_NI, p_NI * (1 - p_NI), -np.log1p(-np.minimum(p_NI, LARGEST)))
        for table_QI, values_NI in zip(self._tables[1:], sums, strict=True):
            np.add.at(table_QI, classes_N, values_NI)

    def fields(self) -> dict[str, Array]:
        """Of a Batch; nothing where no token was added."""
        if self._waiting:
            self._settle()
        if self._tables is None:
            return {}
        return dict(zip(TABLES, self._tables, strict=True)) | dict(
            zip(GAINS, (self._gains_M, self._impossible_M), strict=True)
        )


def _seen(row: Distributions, answer: Sequence[int], prompt: Sequence[int]) -> _Seen:
    """Of the tokens of the answer before each place, and of the prompt; nothing where the vocabulary is large."""
    if row.p_TV is None:
        return _Seen(np.zeros(len(row.ids_T)), np.zeros(len(row.ids_T), dtype=bool))
    seen_V = np.zeros(row.vocabulary, dtype=bool)
    seen_V[[token for token in (*answer, *prompt) if 0 <= token < row.vocabulary]] = True
    mass_T, is_drawn_T = np.zeros(len(row.ids_T)), np.zeros(len(row.ids_T), dtype=bool)
    for place, token in enumerate(row.ids_T.tolist()):
        mass_T[place], is_drawn_T[place] = row.p_TV[place, seen_V].sum(), seen_V[token]
        seen_V[token] = True
    return _Seen(mass_T, is_drawn_T)


def _gains(chosen_N: Array, sorted_NK: Array, tail_N: Array, vocabulary: int, seen: Sequence[_Seen]) -> Array:
    """[N, M]: log q - log p of each token under each variant; -inf where the variant cannot draw it."""
    rows_N, last_N = np.arange(len(chosen_N)), sorted_NK[:, -1]
    p_NK = np.exp(sorted_NK)
    cumulated_NK = p_NK.cumsum(axis=1)
    gains_NM = np.zeros((len(chosen_N), len(VARIANTS)))

    def cut(threshold_N: Array) -> Array:
        inside_NK = sorted_NK >= threshold_N[:, None] - SAME
        mass_N = np.where(inside_NK, p_NK, 0.0).sum(axis=1) + np.where(inside_NK[:, -1], tail_N, 0.0)
        return np.where(chosen_N >= threshold_N - SAME, -np.log(np.clip(mass_N, 1e-300, 1.0)), -np.inf)

    for number, variant in enumerate(VARIANTS):
        amount = variant.amount
        if variant.kind == "heat":  # the tail is scaled as its likeliest id is
            power = 1 / amount
            tail_log_N = np.log(np.maximum(tail_N, 1e-300)) + (power - 1) * last_N
            sum_N = np.logaddexp(np.log(np.exp(power * sorted_NK).sum(axis=1)), tail_log_N)
            gains_NM[:, number] = (power - 1) * np.maximum(chosen_N, last_N) - sum_N
        elif variant.kind == "greedy":
            gains_NM[:, number] = cut(sorted_NK[:, 0])
        elif variant.kind == "top_k":
            at = int(amount) - 1
            gains_NM[:, number] = cut(sorted_NK[:, at]) if at < sorted_NK.shape[1] else 0.0
        elif variant.kind == "top_p":
            at_N = (cumulated_NK < amount).sum(axis=1)
            lowest_N = sorted_NK[rows_N, np.minimum(at_N, sorted_NK.shape[1] - 1)]
            gains_NM[:, number] = np.where(at_N < sorted_NK.shape[1], cut(lowest_N), 0.0)
        elif variant.kind == "min_p":
            lowest_N = sorted_NK[:, 0] + np.log(amount)
            gains_NM[:, number] = np.where((lowest_N > last_N) | (tail_N <= 0), cut(lowest_N), 0.0)
        elif variant.kind == "uniform":
            gains_NM[:, number] = np.log1p(amount * (np.exp(-np.maximum(chosen_N, -700.0)) / vocabulary - 1))
        elif variant.kind == "epsilon_greedy":
            ties_N = (sorted_NK >= sorted_NK[:, :1] - SAME).sum(axis=1)  # one of several that are as likely
            best_N = (chosen_N >= sorted_NK[:, 0] - SAME) * (1 - amount) / ties_N
            gains_NM[:, number] = np.log(best_N + amount / vocabulary) - chosen_N
        else:
            mass_N, is_drawn_N = seen[variant.kind == "presence_in_all"]
            gains_NM[:, number] = -amount * is_drawn_N - np.log1p(np.clip(mass_N, 0.0, 1.0) * np.expm1(-amount))
    return gains_NM
