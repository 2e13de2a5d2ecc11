"""
## What it checks
Advantages may differ between the tokens of a row (process rewards, a critic), but they are never normalised within it.
The check finds rows whose advantages have mean 0 and std 1, each row by itself.

## Why it hurts
Whether an answer was good or bad is the mean of its advantages. Whitened within the row, that mean is 0 for every
answer: good and bad ones are pushed alike, up at some positions and down at others. A row with one advantage for all
tokens becomes all zeros.

## How to fix it
Take mean and std over all loss tokens of the batch, or do not whiten at all: group advantages are normalised already.

    # before: one mean and std for each row
    advantages = (advantages - advantages.mean(dim=1, keepdim=True)) / advantages.std(dim=1, keepdim=True)
    # after
    inside = advantages[mask]
    advantages = (advantages - inside.mean()) / (inside.std() + 1e-8)

## When it is wrong
A batch of one or two rows can look whitened by row when it was whitened as a whole; at least two rows of three loss
tokens are asked for, and all of them must have mean 0 and std 1 to a thousandth and a fiftieth. Steps judged by +1 and
-1, as many of each, have that without any whitening: a finding from such rows alone is only possible.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from assay.doctor.catalogue import Scripts, illness
from assay.doctor.evidence import Batch, Evidence
from assay.doctor.examples import healthy_batch, of_batch
from assay.doctor.examples.scripts import with_change
from assay.doctor.recompute.advantages import row_advantages
from assay.doctor.recompute.consistent import consistent
from assay.programs.edits import Spot, together
from assay.programs.facts.advantages.whitening import whitenings
from assay.programs.program import Program
from assay.record.batch import Array
from assay.verdict import (
    Confidence,
    Edit,
    Fact,
    Severity,
    Verdict,
    finding,
    healthy,
    likely,
    not_enough_data,
)

MEAN = 1e-3  # of a whitened row: 0 except for rounding
STD = 0.02  # around 1: an epsilon in the divisor takes a little off
TOKENS = 3  # two numbers have mean 0 too easily
FEWEST_ROWS = 2
SHARE = 0.9  # of the rows that vary: the rest may be too small for their epsilon


def check_batch(batch: Batch) -> Verdict:
    (advantages,) = batch.need("advantages")
    if advantages.ndim == 1:
        return healthy("one advantage per row: nothing to whiten within it", Fact("rows", len(advantages)))
    (mask_BT,) = batch.need("mask")
    varying = [
        (row, values)
        for row, (all_values, inside) in enumerate(zip(advantages, mask_BT, strict=True))
        if len(values := all_values[inside]) >= TOKENS and np.isfinite(values).all() and np.ptp(values) > 1e-6
    ]
    if not varying and mask_BT.any() and row_advantages(batch) is not None:
        return healthy("one advantage for all tokens of a row: nothing to whiten within it", Fact("rows", len(mask_BT)))
    if len(varying) < FEWEST_ROWS:
        return not_enough_data(f"{FEWEST_ROWS} rows with {TOKENS} loss tokens and advantages that differ between them")
    white = [(row, values) for row, values in varying if _is_white(values)]
    share = len(white) / len(varying)
    fact = Fact("share of rows with mean 0 and std 1", share, SHARE, batch.step)
    if len(white) < FEWEST_ROWS or share < SHARE:
        return healthy("the advantages of rows keep their own mean and size", fact)
    row, values = white[0]
    judged_by_signs = all(np.isin(values, (-1.0, 1.0)).all() for _, values in white)
    return finding(
        f"the advantages of {len(white)} of {len(varying)} rows have mean 0 and std 1 each: they are whitened within "
        "the row, and good and bad answers look alike",
        fact,
        Fact("mean advantage of the row", float(values.mean()), MEAN, batch.step, row),
        confidence=Confidence.POSSIBLE if judged_by_signs else Confidence.PROVEN,
    )


def check_source(program: Program) -> Iterator[Verdict]:
    """Numbers of tokens that are centred or scaled within their own row."""
    for found in whitenings(program):
        if not found.by_row:
            yield healthy("the tokens of all rows are whitened together", places=(found.value.place,))
            continue
        yield likely(
            f"`{found.value.place.text}` whitens the tokens of each row by themselves: a good row and a bad one get "
            "the same advantages",
            places=(found.value.place,),
            why=(
                f"line {found.base.place.line}: {found.base.shown} holds one number for each token",
                f"line {found.statistic.place.line}: {found.statistic.place.text} is taken over the tokens of one row",
            ),
        )


def _is_white(values: Array) -> bool:
    spreads = (float(values.std(ddof=1)), float(values.std()))
    return abs(float(values.mean())) <= MEAN and any(abs(spread - 1.0) <= STD for spread in spreads)


def _by_position(batch: Batch) -> tuple[Array, Array]:
    """Advantages that fade from the end of a row to its start, as returns with a discount do; and the mask."""
    mask_BT = batch.arrays["mask"]
    left_BT = mask_BT.sum(axis=1)[:, None] - 1 - np.arange(mask_BT.shape[1])
    return batch.arrays["advantages"][:, None] * np.where(mask_BT, 0.9 ** np.maximum(left_BT, 0), 0.0), mask_BT


def edits(verdict: Verdict, spot: Spot, others: Sequence[Spot]) -> Iterator[Edit | None]:
    """Statistics of each row become those of the batch."""
    calls = {
        call.span: call
        for part in spot.parts(1)
        for call in part.all(ast.Call)
        if call.name in ("mean", "std", "var", "sum") and call.axes and call.is_method
    }
    changed = [call.text.edit((*call.child(call.node.func).span[2:], *call.span[2:]), "()") for call in calls.values()]
    yield together((replace(edit, safe=False) for edit in changed), spot.text)


def sick() -> Evidence:
    batch = healthy_batch()
    advantages_BT, mask_BT = _by_position(batch)
    count_B1 = mask_BT.sum(axis=1)[:, None]
    mean_B1 = advantages_BT.sum(axis=1)[:, None] / count_B1
    squares_BT = np.where(mask_BT, (advantages_BT - mean_B1) ** 2, 0.0)
    std_B1 = np.sqrt(squares_BT.sum(axis=1)[:, None] / (count_B1 - 1))
    white_BT = np.where(mask_BT, (advantages_BT - mean_B1) / (std_B1 + 1e-8), 0.0)
    return of_batch(consistent(batch, advantages=white_BT))


def well() -> Evidence:
    batch = healthy_batch()
    advantages_BT, mask_BT = _by_position(batch)
    inside = advantages_BT[mask_BT]
    white_BT = np.where(mask_BT, (advantages_BT - inside.mean()) / inside.std(), 0.0)
    return of_batch(consistent(batch, advantages=white_BT, process_rewards=True))


SICK = with_change(
    "advantages = advantages.view(-1, 1)\n",
    "advantages = advantages.view(-1, 1) * mask\n"
    "    mean = (advantages * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)\n"
    "    spread = ((advantages - mean).square() * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)\n"
    "    advantages = (advantages - mean) * torch.rsqrt(spread + 1e-8)\n",
)

ILLNESS = illness(
    __name__,
    code="ADV06",
    severity=Severity.FATAL,
    summary="advantages are whitened within each sequence, which erases whether the answer was good",
    fix="Whiten over all loss tokens of the batch, or not at all; group advantages are normalised already.",
    symptoms=(
        "advantages whitened per sequence",
        "reward signal disappears after whitening",
    ),
    sick=sick,
    well=well,
    scripts=Scripts(SICK, SICK.replace("(1, keepdim=True)", "()")),
    explains=frozenset({"ADV01", "ADV03", "ADV05", "ADV12", "MET07"}),
)
