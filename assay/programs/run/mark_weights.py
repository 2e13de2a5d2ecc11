"""How much each token counts in an update, told by the gradient at its log-prob; and what the rewards were.

In a first update the ratio is 1, and the gradient of a policy loss at a log-prob is -A times the token's weight.

Shape legend: B completions, T tokens, N tokens in the loss.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from assay.programs.run.mark_ratio import slope
from assay.programs.run.watched import Update, WatchedRun
from assay.programs.value import Value
from assay.record.batch import Array, Batch
from assay.verdict import Confidence, Place

FIT = 2e-3
NEARLY_ALL = 0.999
LEAST = 0.05  # of the largest advantage: what is smaller may be rounding
ROLLOUTS, ROWS = 3, 12  # with one and the same reward, before it is told


@dataclass(frozen=True)
class Part:
    """One backward of an update: how much its tokens count, and how many there are."""

    rows: int
    width: int
    tokens: int
    by_token: float | None  # weight of every token; None: they differ
    by_row: float | None  # weight of every row, spread over its tokens; None: rows differ
    against: float  # share of the tokens that are pulled against their advantage


@dataclass(frozen=True)
class Weighed:
    update: Update
    batch: Batch
    parts: tuple[Part, ...]
    place: Place

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)

    @property
    def tokens(self) -> int:
        return sum(part.tokens for part in self.parts)


def mark_weights(trace: WatchedRun) -> None:
    weighed = list(_weighed(trace))
    for one in weighed:
        _sign(trace, one)
    _splits(trace, weighed)
    _padding(trace, weighed)
    _rewards(trace)


def _weighed(trace: WatchedRun) -> Iterator[Weighed]:
    by_source = {f"optimizer step {update.number + 1} ({update.place})": update for update in trace.updates}
    for batch in trace.batches:
        update = by_source.get(batch.source)
        names = ("mask", "gradients", "advantages", "new_logprobs")
        arrays = [batch.get(name) for name in names]
        if update is None or any(array is None for array in arrays) or not _is_plain(batch):
            continue
        mask_BT, gradients_BT, advantages, new_BT = (np.asarray(array) for array in arrays)
        advantages_BT = advantages if advantages.ndim == 2 else np.broadcast_to(advantages[:, None], mask_BT.shape)
        old_BT = batch.get("old_logprobs")
        ratio_BT = np.ones(mask_BT.shape) if old_BT is None else np.exp(np.where(mask_BT, new_BT - old_BT, 0.0))
        if np.abs(ratio_BT - 1).max() > FIT or sum(rows for rows, _ in update.parts) != len(mask_BT):
            continue
        pieces = [piece for one in update.backwards if one.roles is not None for piece in one.roles.pieces]
        products = [piece.product.place for piece in pieces if piece.product is not None]
        place = products[0] if products else update.place
        parts = tuple(_parts(update, mask_BT, gradients_BT, advantages_BT))
        if len(parts) == len(update.parts):
            yield Weighed(update, batch, parts, place)


def _is_plain(batch: Batch) -> bool:
    """The first update of its rollouts, and no KL that pulls."""
    ref_BT, new_BT, mask_BT = batch.get("ref_logprobs"), batch.get("new_logprobs"), batch.get("mask")
    if batch.numbers.get("update") != 0:
        return False
    if ref_BT is None or new_BT is None or mask_BT is None:
        return True
    return bool(np.abs(np.where(mask_BT, ref_BT - new_BT, 0.0)).max(initial=0.0) < 1e-5)


def _parts(update: Update, mask_BT: Array, gradients_BT: Array, advantages_BT: Array) -> Iterator[Part]:
    first = 0
    for rows, width in update.parts:
        inside = slice(first, first + rows)
        first += rows
        mask = mask_BT[inside]
        sizes = np.abs(np.where(mask, advantages_BT[inside], 0.0))
        judged = mask & (sizes > LEAST * sizes.max(initial=0.0)) & np.isfinite(gradients_BT[inside])
        if not judged.any():
            return
        with np.errstate(divide="ignore", invalid="ignore"):
            weights = np.where(judged, -gradients_BT[inside] / advantages_BT[inside], np.nan)
        lengths = mask.sum(axis=1, keepdims=True)
        against = float((weights[judged] < 0).mean())
        yield Part(rows, width, int(mask.sum()), _one(weights[judged]), _one((weights * lengths)[judged]), against)


def _one(numbers: Array) -> float | None:
    """The number that they all are."""
    middle = float(np.median(numbers))
    return middle if middle > 0 and np.abs(numbers - middle).max() <= FIT * middle else None


def _is(number: float, expected: float) -> bool:
    return abs(number - expected) <= FIT * expected


def _sign(trace: WatchedRun, one: Weighed) -> None:
    roles = [backward.roles for backward in one.update.backwards if backward.roles is not None]
    ways = {slope(piece.ratio or piece.new, piece, each.flow) for each in roles for piece in each.pieces}
    if ways != {1}:
        return
    if all(part.against > NEARLY_ALL for part in one.parts):
        trace.found(
            "LOSS01",
            "the loss pulls every token against its advantage, although what it is "
            "multiplied by grows with the new log-probs: the sign of the loss is flipped",
            one.place,
            one.update.backwards[0].loss.place,
        )
    elif all(part.against < 1 - NEARLY_ALL for part in one.parts):
        trace.is_well("LOSS01", "the loss pulls every token the way of its advantage")


def _split(one: Weighed) -> dict[str, str]:
    """Code --> what is wrong with how micro-batches are put together; "": nothing."""
    count = len(one.parts)
    if count < 2:
        return {}
    shares = [part.by_token * part.tokens for part in one.parts if part.by_token is not None]
    by_row = [part.by_row for part in one.parts if part.by_row is not None]
    even = len(by_row) == count and all(_is(weight, by_row[0]) for weight in by_row)  # every completion counts the same
    differ = len({part.tokens for part in one.parts}) > 1
    if len(shares) == count and differ and not even and all(_is(share, shares[0]) for share in shares):
        added, averaged = _is(shares[0], 1.0), _is(shares[0], 1.0 / count)
        lengths = ", ".join(str(part.tokens) for part in one.parts)
        found = {}
        if added or averaged:
            found["LOSS03"] = (
                f"each micro-batch is averaged over its own tokens ({lengths}): a token counts more in a short one, "
                "and the "
                "update depends on the split"
            )
        if added:
            found["LOSS02"] = (
                f"{count} micro-batches are each divided by their own tokens only and added: the gradient is {count} "
                "times "
                "that of the whole batch"
            )
        return found
    whole = [part.by_token for part in one.parts if part.by_token is not None]
    factors: list[float] = []
    if len(whole) == count and all(_is(weight, whole[0]) for weight in whole):
        widest = max(part.width for part in one.parts)
        longest = one.batch.settings.get("max_tokens") or widest
        factors = [whole[0] * one.tokens, whole[0] * one.rows * widest, whole[0] * one.rows * float(longest)]
    if even:
        factors.append(by_row[0] * one.rows)
    if any(_is(factor, 1.0) for factor in factors):
        return {"LOSS02": "", "LOSS03": ""}
    added, divided = (any(_is(factor, wrong) for factor in factors) for wrong in (float(count), 1.0 / count))
    if not added and not divided:
        return {}
    how = "added and not divided" if added else "divided twice"
    size = f"{count} times {'as large' if added else 'too small'}"
    return {"LOSS02": f"the gradients of {count} micro-batches are {how} by {count}: the step is that of a loss {size}"}


def _splits(trace: WatchedRun, weighed: Sequence[Weighed]) -> None:
    told = [(one, _split(one)) for one in weighed]
    for code in ("LOSS02", "LOSS03"):
        words = [(one, found[code]) for one, found in told if code in found]
        if not words:
            continue
        bad = [(one, message) for one, message in words if message]
        if not bad:
            trace.is_well(code, f"the gradient of {len(words[0][0].parts)} micro-batches is that of the whole batch")
        elif len(bad) == len(words):
            one, message = bad[0]
            # of one update the numbers may agree by chance
            sure = Confidence.PROVEN if len(bad) > 1 else Confidence.LIKELY
            trace.found(code, message, one.update.backwards[0].loss.place, one.update.place, confidence=sure)


def _padding(trace: WatchedRun, weighed: list[Weighed]) -> None:
    """Each token weighs 1 / (rows x padded columns), in updates of different widths or by a mean over the columns."""
    widths: dict[int, Weighed] = {}
    for one in weighed:
        for part in one.parts:
            share = None if part.by_token is None else part.by_token * part.rows * part.width
            total = None if part.by_token is None else part.by_token * one.rows * part.width
            parts = len(one.parts)
            fits = (
                share is not None
                and total is not None
                and (_is(total, 1.0) or _is(share, 1.0) or _is(share, 1.0 / parts))
            )
            if part.tokens == part.rows * part.width:
                continue
            if not fits:
                return
            widths[part.width] = one
    if not widths:
        return
    first = next(iter(widths.values()))
    mean = _mean_over_columns(first)
    if len(widths) > 1 or mean is not None:
        trace.found(
            "MASK04",
            f"each token counts 1 / (rows x columns) with the padding counted in: more padding, a smaller gradient"
            f" (columns so far: {', '.join(map(str, sorted(widths)))})",
            mean or first.place,
            confidence=Confidence.PROVEN if len(widths) > 1 else Confidence.LIKELY,
        )


def _mean_over_columns(one: Weighed) -> Place | None:
    """A mean() of a tensor with a column for each token."""
    for backward, (rows, width) in zip(one.update.backwards, one.update.parts, strict=False):
        flow = backward.roles.flow if backward.roles is not None else None
        values: list[Value] = flow.values if flow is not None else []
        for value in values:
            before = value.input.thing if value.op == "mean" and value.input is not None else None
            if getattr(before, "shape", ()) == (rows, width) and getattr(before, "requires_grad", False):
                return value.place
    return None


def _rewards(trace: WatchedRun) -> None:
    by_step: dict[int, Array] = {}
    for batch in trace.batches:
        rewards = batch.get("rewards")
        if rewards is not None and batch.step is not None:
            by_step[batch.step] = np.concatenate([by_step.get(batch.step, rewards[:0]), rewards])
    if len(by_step) < ROLLOUTS:
        return
    everything = np.concatenate(list(by_step.values()))
    if len(everything) >= ROWS and np.ptp(everything) == 0:
        trace.found(
            "REW01",
            f"all {len(everything)} rewards of {len(by_step)} rollout batches are {everything[0]:g}: the reward does "
            "not depend on the "
            "completion",
            confidence=Confidence.LIKELY,
        )
