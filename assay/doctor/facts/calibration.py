"""Batches --> which way of drawing explains the sampled tokens better than the distribution that scores them.

Every explanation has its evidence in nats: if the tokens were draws from the scored distribution, evidence of so much
would come up with a probability of at most exp(-evidence), after all ids, places and variants that were tried.

Shape legend: Q classes of places, I classes of ids, M variants.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from assay.calibration import GAINS, ID_CLASSES, SINGLE_PLACES, TABLES, VARIANTS, Variant
from assay.record.batch import Array, Batch

MOST_BANNED = 12  # ids that are looked for together
GROWTH = 1.5  # of how much too often the end is drawn, at last over before, that a selection by length leaves
FEW = 8  # ends that are expected at the last places, whose odds are compared


@dataclass(frozen=True)
class Explanation:
    evidence: float  # nats
    words: str


@dataclass(frozen=True)
class Calibration:
    """Sums over the tokens of some batches."""

    tables: Array  # [4, Q, I]: see calibration.TABLES
    gains_M: Array
    impossible_M: Array
    ends: frozenset[int]  # ids that end an answer, if known

    @property
    def tokens(self) -> int:
        return int(np.nan_to_num(self.tables[0], posinf=0.0, neginf=0.0).sum())

    def explanations(self) -> list[Explanation]:
        """The best first."""
        found = [*self._variants(), *self._never_drawn(), *self._too_often_or_rare()]
        return sorted(found, key=lambda explanation: -explanation.evidence)

    def _variants(self) -> list[Explanation]:
        return [
            Explanation(float(gain) - math.log(len(VARIANTS)), _drawn_as(variant))
            for variant, gain, impossible in zip(VARIANTS, self.gains_M, self.impossible_M, strict=True)
            if impossible == 0
        ]

    def _never_drawn(self) -> list[Explanation]:
        """Ids that did not come at the first places, or anywhere."""
        counts_QI, expected_QI, _, absent_QI = self.tables
        used = np.flatnonzero(counts_QI.sum(axis=1))
        found = []
        for last in used.tolist():
            before_QI = slice(0, last + 1)
            absent_I = np.where(counts_QI[before_QI].sum(axis=0) == 0, absent_QI[before_QI].sum(axis=0), 0.0)
            order = np.argsort(-absent_I)[:MOST_BANNED]
            for count in range(1, int((absent_I[order] > 0).sum()) + 1):
                ids = order[:count].tolist()
                expected = float(expected_QI[before_QI][:, ids].sum())
                is_end = count == 1 and self._is_end(ids[0])  # the first suspect: half of the chance is for it
                tried = math.log(2 * len(used)) + (0 if is_end else count * math.log(counts_QI.shape[1]))
                where = "" if last == used[-1] else f" among the first {_places(last)} tokens of an answer"
                words = f"{self._ids(ids)} never drawn{where}, where {expected:.1f} are expected: the sampler bans "
                words += "it there" if count == 1 else "them there"
                found.append(Explanation(float(absent_I[ids].sum()) - tried, words))
        return found

    def _too_often_or_rare(self) -> list[Explanation]:
        counts_QI, expected_QI, variance_QI, _ = self.tables
        used = np.flatnonzero(counts_QI.sum(axis=1)).tolist()
        parts = [(used, ""), *(([q], f" at token {q + 1} of an answer") for q in used if q < SINGLE_PLACES)]
        found = []
        for places, where in parts:
            count_I, expected_I, variance_I = (
                table_QI[places].sum(axis=0) for table_QI in (counts_QI, expected_QI, variance_QI)
            )
            off_I = count_I - expected_I
            nats_I = off_I**2 / (2 * (variance_I + np.abs(off_I) / 3) + 1e-12)  # the bound of Bernstein
            worst = int(np.argmax(nats_I))
            tried = math.log(4 * len(parts)) + (0 if self._is_end(worst) else math.log(counts_QI.shape[1]))
            often = "too often" if off_I[worst] > 0 else "too rarely"
            words = (
                f"{self._ids([worst])} drawn {often}{where}: {count_I[worst]:.0f} times, where {expected_I[worst]:.1f} "
                "are expected"
            )
            if off_I[worst] > 0 and self._is_end(worst):
                rejected = "answers that do not end are drawn again or left out (rejection sampling)"
                grows = self._grows(worst, used)
                words += f", most towards the limit: {rejected}" if grows else f": it is favoured, or {rejected}"
            found.append(Explanation(float(nats_I[worst]) - tried, words))
        return found

    def _grows(self, end: int, used: Sequence[int]) -> bool:
        """Whether the end comes the more too often, by its odds, the later: as where rows are chosen for it."""
        counts_QI, expected_QI, *_ = self.tables
        all_Q = counts_QI.sum(axis=1)
        last = next((at for at in range(len(used) - 1, 0, -1) if expected_QI[used[at:], end].sum() >= FEW), 0)
        factors = []
        for part in (used[:last], used[last:]):
            drawn, expected, total = (
                float(values[part].sum()) for values in (counts_QI[:, end], expected_QI[:, end], all_Q)
            )
            others, expected_others = total - drawn + 0.5, total - expected
            factors.append((drawn + 0.5) * max(expected_others, 1e-9) / (others * max(expected, 1e-9)))
        return factors[1] > GROWTH * factors[0]

    def _is_end(self, class_: int) -> bool:
        return any(end % self.tables.shape[2] == class_ for end in self.ends)

    def _ids(self, ids: Sequence[int]) -> str:
        shown = ", ".join(f"{number}{' (the end)' if self._is_end(number) else ''}" for number in sorted(ids))
        if self.tables.shape[2] == ID_CLASSES:
            return f"ids with remainder {shown} by {ID_CLASSES} were"
        return f"token {shown} was" if len(ids) == 1 else f"tokens {shown} were"


def calibration_of(batches: Sequence[Batch], ends: Collection[int] = ()) -> Calibration | None:
    """None where no batch has these sums. Batches with other classes of ids than the first are left out."""
    known = [batch for batch in batches if all(batch.get(name) is not None for name in (*TABLES, *GAINS))]
    tables = [np.stack([batch.arrays[name] for name in TABLES]) for batch in known]
    same = [number for number, table in enumerate(tables) if table.shape == tables[0].shape]
    if not same:
        return None
    gains, impossible = (np.sum([known[number].arrays[name] for number in same], axis=0) for name in GAINS)
    return Calibration(np.sum([tables[number] for number in same], axis=0), gains, impossible, frozenset(ends))


def _drawn_as(variant: Variant) -> str:
    return f"they look as if drawn {'at ' if variant.kind == 'heat' else ''}{variant.words}"


def _places(class_: int) -> int:
    return class_ + 1 if class_ < SINGLE_PLACES else SINGLE_PLACES * 2 ** (class_ - SINGLE_PLACES + 1)
