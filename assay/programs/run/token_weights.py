"""How much each token counts in an update: read from the gradient at its log-prob.

In a first update the ratio is 1, and the gradient of a policy loss at a log-prob is -A times the token's weight.

Shape legend: B completions, T tokens, N tokens in the loss.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from functools import cached_property

import numpy as np

from assay.programs.once import once
from assay.programs.run.watched import WatchedRun, WatchedUpdate
from assay.record.batch import Array, Batch
from assay.verdict import Place

GRADIENT_FIT = 2e-3
LEAST_ADVANTAGE = 0.05  # of the largest advantage: what is smaller may be rounding


@dataclass(frozen=True)
class PartWeights:
    """One backward of an update: how much its tokens count, and how many there are."""

    rows: int
    width: int
    tokens: int
    by_token: float | None  # weight of every token; None: they differ
    by_row: float | None  # weight of every row, spread over its tokens; None: rows differ
    against: float  # share of the tokens that are pulled against their advantage


class Split(Enum):
    """How the micro-batches of an update are put together."""

    WHOLE = auto()  # the gradient is that of the whole batch
    OWN_TOKENS_ADDED = auto()  # each is divided by its own tokens, and they are added
    OWN_TOKENS_AVERAGED = auto()  # each is divided by its own tokens, and they are averaged
    ADDED = auto()  # added where they should be averaged
    DIVIDED_TWICE = auto()


@dataclass(frozen=True)
class TokenWeights:
    """One update, part by part."""

    update: WatchedUpdate
    batch: Batch
    parts: tuple[PartWeights, ...]
    place: Place

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)

    @property
    def tokens(self) -> int:
        return sum(part.tokens for part in self.parts)

    @cached_property
    def split(self) -> Split | None:
        """None: there is one part only, or what is seen fits nothing."""
        count = len(self.parts)
        if count < 2:
            return None
        shares = [part.by_token * part.tokens for part in self.parts if part.by_token is not None]
        by_row = [part.by_row for part in self.parts if part.by_row is not None]
        # every completion counts the same
        even = len(by_row) == count and all(is_near(weight, by_row[0]) for weight in by_row)
        differ = len({part.tokens for part in self.parts}) > 1
        if len(shares) == count and differ and not even and all(is_near(share, shares[0]) for share in shares):
            if is_near(shares[0], 1.0):
                return Split.OWN_TOKENS_ADDED
            return Split.OWN_TOKENS_AVERAGED if is_near(shares[0], 1.0 / count) else None
        factors = self._factors()
        if even:
            factors.append(by_row[0] * self.rows)
        for split, factor in ((Split.WHOLE, 1.0), (Split.ADDED, float(count)), (Split.DIVIDED_TWICE, 1.0 / count)):
            if any(is_near(seen, factor) for seen in factors):
                return split
        return None

    def _factors(self) -> list[float]:
        """Times that of the whole batch, by each way to count its tokens: 1 where the gradient is right."""
        weights = [part.by_token for part in self.parts if part.by_token is not None]
        if len(weights) < len(self.parts) or not all(is_near(weight, weights[0]) for weight in weights):
            return []
        widest = max(part.width for part in self.parts)
        longest = self.batch.settings.get("max_tokens") or widest
        return [weights[0] * self.tokens, weights[0] * self.rows * widest, weights[0] * self.rows * float(longest)]


@once
def token_weights(run: WatchedRun) -> list[TokenWeights]:
    """Of the first update of each rollout batch, where the advantages are known and no KL pulls."""
    return list(_token_weights(run))


def _token_weights(run: WatchedRun) -> Iterator[TokenWeights]:
    by_source = {update.source: update for update in run.updates}
    for batch in run.batches:
        update = by_source.get(batch.source)
        names = ("mask", "gradients", "advantages", "new_logprobs")
        arrays = [batch.get(name) for name in names]
        if update is None or any(array is None for array in arrays) or not _is_plain(batch):
            continue
        mask_BT, gradients_BT, advantages, new_BT = (np.asarray(array) for array in arrays)
        advantages_BT = advantages if advantages.ndim == 2 else np.broadcast_to(advantages[:, None], mask_BT.shape)
        old_BT = batch.get("old_logprobs")
        ratio_BT = np.ones(mask_BT.shape) if old_BT is None else np.exp(np.where(mask_BT, new_BT - old_BT, 0.0))
        if np.abs(ratio_BT - 1).max() > GRADIENT_FIT or sum(rows for rows, _ in update.parts) != len(mask_BT):
            continue
        products = [piece.product.place for piece in update.pieces if piece.product is not None]
        parts = tuple(_parts(update, mask_BT, gradients_BT, advantages_BT))
        if len(parts) == len(update.parts):
            yield TokenWeights(update, batch, parts, products[0] if products else update.place)


def _is_plain(batch: Batch) -> bool:
    """The first update of its rollouts, and no KL that pulls."""
    ref_BT, new_BT, mask_BT = batch.get("ref_logprobs"), batch.get("new_logprobs"), batch.get("mask")
    if batch.numbers.get("update") != 0:
        return False
    if ref_BT is None or new_BT is None or mask_BT is None:
        return True
    return bool(np.abs(np.where(mask_BT, ref_BT - new_BT, 0.0)).max(initial=0.0) < 1e-5)


def _parts(update: WatchedUpdate, mask_BT: Array, gradients_BT: Array, advantages_BT: Array) -> Iterator[PartWeights]:
    first = 0
    for rows, width in update.parts:
        inside = slice(first, first + rows)
        first += rows
        mask = mask_BT[inside]
        sizes = np.abs(np.where(mask, advantages_BT[inside], 0.0))
        judged = mask & (sizes > LEAST_ADVANTAGE * sizes.max(initial=0.0)) & np.isfinite(gradients_BT[inside])
        if not judged.any():
            return
        with np.errstate(divide="ignore", invalid="ignore"):
            weights = np.where(judged, -gradients_BT[inside] / advantages_BT[inside], np.nan)
        lengths = mask.sum(axis=1, keepdims=True)
        against = float((weights[judged] < 0).mean())
        by_row = _common((weights * lengths)[judged])
        yield PartWeights(rows, width, int(mask.sum()), _common(weights[judged]), by_row, against)


def _common(numbers: Array) -> float | None:
    """The number that they all are."""
    middle = float(np.median(numbers))
    return middle if middle > 0 and np.abs(numbers - middle).max() <= GRADIENT_FIT * middle else None


def is_near(number: float, expected: float) -> bool:
    return abs(number - expected) <= GRADIENT_FIT * expected
