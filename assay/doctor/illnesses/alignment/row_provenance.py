"""
## What it checks
Row i of every array belongs to the same sample. Where a row of log-probs does not fit the row it stands beside, the
check looks for another row that it does fit, within rounding. Where advantages do not follow from the rewards beside
them, it looks for an order of the rows in which they do.

## Why it hurts
After a shuffle, a filter or a gather that one array went through and another did not, ratios compare two different
answers and advantages reward the wrong ones. Every shape is right and nothing crashes; the gradient is noise.

## How to fix it
Index all arrays together, by one order, and keep an id of the sample beside them.

    # before: the rows are shuffled, the old log-probs are not
    order = torch.randperm(len(tokens))
    tokens, advantages = tokens[order], advantages[order]
    # after
    order = torch.randperm(len(tokens))
    tokens, advantages, old = tokens[order], advantages[order], old[order]

## When it is wrong
Rows that are equal to each other fit each other's numbers; they fit their own too, and are not counted. If the whole
batch was put in another order on its way into the evidence, and one array was forgotten there, the trainer is innocent.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from assay.doctor.catalogue import illness
from assay.doctor.evidence import Batch, Evidence
from assay.doctor.examples import healthy_batch, of_batch
from assay.doctor.facts.rounding import dtype_of
from assay.doctor.recompute.advantages import advantages
from assay.doctor.recompute.consistent import consistent
from assay.programs.graph import Value
from assay.programs.run.roles import MOST_BACKWARDS, LossPiece, backwards_since_sampling
from assay.programs.run.rows import picked_rows, placed_numbers, takes_rows
from assay.programs.run.states import states_of
from assay.programs.run.watched import WatchedRun
from assay.programs.walk import main_input, walk
from assay.record.batch import Array
from assay.verdict import Confidence, Fact, Missing, Severity, Verdict, finding, healthy

# of the mean |difference| of a row: rounding, and what cannot be rounding
FITS = {"float32": 1e-3, "bfloat16": 0.08, "float16": 0.02}
FAR_FROM_FIT = 5  # times FITS: a row that is this far from its neighbour does not belong to it
LEAST_TOKENS = 3  # both rows must have these: fewer numbers agree by chance
LEAST_ROWS = 2  # a row that moved has pushed another one away
MOST_COMPARED = 64  # rows and tokens: the search is a table of rows by rows
LEAST_NUMBERS = 5  # of different size: fewer are the same set by another formula, too
ADVANTAGE = 1e-3  # of the largest advantage: recomputed from rewards, in another precision, it is this near


def check_batch(batch: Batch) -> Verdict:
    looked = False
    for suspect, witness in _pairs(batch):
        looked = True
        if (verdict := _rows_that_fit_elsewhere(batch, suspect, witness)) is not None:
            return verdict
    expected_B = _expected_advantages(batch)
    if expected_B is not None:
        looked = True
        if (verdict := _advantages_elsewhere(batch, expected_B)) is not None:
            return verdict
    if (verdict := _rows_torn_from_groups(batch)) is not None:
        return verdict
    if not looked:
        raise Missing("plain_logprobs", "sampler_logprobs", "rewards")
    return healthy("no row fits another row's numbers", Fact("rows", len(next(iter(batch.arrays.values())))))


def check_run(run: WatchedRun) -> Iterator[Verdict]:
    """Rows of the ids that the policy scores, beside rows of the advantages and of old, by how each was picked."""
    for piece in (piece for backward in backwards_since_sampling(run)[:MOST_BACKWARDS] for piece in backward.pieces):
        given = piece.forward.input_ids or states_of(piece.new, run.kinds)
        ids = picked_rows(given)
        if ids is None or _is_reordered(piece, given):
            continue
        for name, value in (("advantages", piece.advantages), ("old log-probs", piece.old_operand)):
            other = picked_rows(value)
            if value is None or other is None:
                continue
            placed = placed_numbers(value) if other.last < 0 else None
            if placed is not None and ids.last < 0 and ids.base.order < placed.base.order:
                other = placed
            if ids.length != other.length or len(ids.rows_B) != len(other.rows_B):
                continue
            if not (ids.last > other.base.order or other.last > ids.base.order):
                continue  # the rows were in another order before both were made
            moved = np.flatnonzero(ids.rows_B != other.rows_B)
            if not len(moved):
                yield healthy("advantages and old log-probs are picked in the order of the rows")
                continue
            row = int(moved[0])
            yield finding(
                f"row {row} of the loss scores row {ids.rows_B[row]} of the rollouts, but its {name} are those of row "
                f"{other.rows_B[row]}: they were picked in another order",
                places=(value.place, piece.forward.value.place),
            )


def _pairs(batch: Batch) -> Iterator[tuple[str, str]]:
    """(whose rows may have moved, what it is compared with): the plain numbers are the surest witness."""
    is_on_policy = batch.numbers.get("update") == 0
    pairs = [("old_logprobs", "plain_logprobs"), ("ref_logprobs", "plain_ref_logprobs")]
    if is_on_policy:
        pairs.append(("new_logprobs", "plain_logprobs"))
    pairs.append(("sampler_logprobs", "plain_logprobs"))
    if batch.get("plain_logprobs") is None:
        pairs.append(("old_logprobs", "sampler_logprobs"))
        if is_on_policy:
            pairs.append(("old_logprobs", "new_logprobs"))
    for suspect, witness in pairs:
        if all(batch.get(name) is not None for name in ("mask", suspect, witness)):
            yield suspect, witness


def _rows_that_fit_elsewhere(batch: Batch, suspect: str, witness: str) -> Verdict | None:
    mask_BT, suspect_BT, witness_BT = batch.need("mask", suspect, witness)
    fits = FITS[dtype_of(batch)]
    own_B = _distances(suspect_BT, witness_BT, mask_BT)
    misfits = np.flatnonzero(own_B > FAR_FROM_FIT * fits)[:MOST_COMPARED]
    places: dict[int, int] = {}  # row -> the row whose numbers it holds
    columns = slice(0, MOST_COMPARED)
    for row in misfits:
        both_BT = mask_BT[:, columns] & mask_BT[row, columns]
        distance_B = _distances(
            np.broadcast_to(suspect_BT[row, columns], both_BT.shape), witness_BT[:, columns], both_BT
        )
        distance_B[row] = np.inf
        distance_B[both_BT.sum(axis=1) < LEAST_TOKENS] = np.inf
        best = int(np.argmin(np.nan_to_num(distance_B, nan=np.inf)))
        if distance_B[best] <= fits and distance_B[best] * FAR_FROM_FIT < own_B[row]:
            places[int(row)] = best
    if len(places) < LEAST_ROWS or 2 * len(places) < len(misfits):
        return None
    row, place = next(iter(places.items()))
    return finding(
        f"{suspect} of {len(places)} rows are those of other rows: row {row} holds those of row {place}, as "
        f"{witness} show",
        Fact(f"mean |{suspect} - {witness}| of its own row", float(own_B[row]), FAR_FROM_FIT * fits, batch.step, row),
        Fact("rows that hold another row's numbers", len(places)),
        Fact("rows that do not fit", len(misfits)),
    )


def _distances(one_BT: Array, other_BT: Array, mask_BT: Array) -> Array:
    """Mean |one - other| of each row over the tokens of the mask where both are finite; NaN where there is none."""
    mask_BT = mask_BT & np.isfinite(one_BT) & np.isfinite(other_BT)
    apart_BT = np.abs(np.where(mask_BT, one_BT, 0.0) - np.where(mask_BT, other_BT, 0.0))
    count_B = mask_BT.sum(axis=1)
    return np.where(count_B > 0, apart_BT.sum(axis=1) / np.maximum(count_B, 1), np.nan)


def _expected_advantages(batch: Batch) -> Array | None:
    """One per row, by the configured formula; None where that cannot be computed."""
    recorded = batch.get("advantages")
    if recorded is None or recorded.ndim != 1 or batch.settings.get("combine", "sum") != "sum":
        return None
    if batch.get("rewards") is None or batch.get("group_ids") is None:
        return None
    try:
        expected_B = advantages(batch)
    except Missing:
        return None
    return expected_B if np.isfinite(expected_B).all() and np.isfinite(recorded).all() else None


def _orders(groups_B: Array) -> Iterator[tuple[str, Array]]:
    """Orders of rows that a slip may have made."""
    rows_B = np.arange(len(groups_B))
    sizes = np.unique(groups_B, return_counts=True)[1]
    if len(set(sizes.tolist())) == 1:
        rows_PG = rows_B.reshape(-1, sizes[0])
        for shift in range(1, int(sizes[0])):
            yield f"shifted by {shift} within each group", np.roll(rows_PG, shift, axis=1).ravel()
        yield "in the order of another layout of groups", rows_PG.T.ravel()
    for shift in range(1, min(len(rows_B), MOST_COMPARED)):
        yield f"shifted by {shift} of {len(rows_B)} rows", np.roll(rows_B, shift)
    yield "in reverse", rows_B[::-1]


def _advantages_elsewhere(batch: Batch, expected_B: Array) -> Verdict | None:
    advantages_B, groups_B = batch.need("advantages", "group_ids")
    limit = ADVANTAGE * float(np.abs(expected_B).max(initial=0.0))
    wrong_B = np.abs(advantages_B - expected_B) > limit
    # few different numbers fit many orders: the wrong rows must be enough to tell an order apart from chance
    if wrong_B.sum() < max(LEAST_ROWS, len(wrong_B) // 8) or len(np.unique(np.round(expected_B, 6))) < 3:
        return None
    row = int(np.flatnonzero(wrong_B)[0])
    what = f"the advantages of {int(wrong_B.sum())} rows do not follow from their rewards"
    facts = (
        Fact("advantage", float(advantages_B[row]), None, batch.step, row),
        Fact("advantage by its reward", float(expected_B[row])),
    )
    for name, order in _orders(groups_B):
        if (np.abs(advantages_B - expected_B[order]) <= limit).all():
            return finding(f"{what}; {name} they all do", *facts)
    # all numbers may be right and stand at other rows, by no rule
    apart = len(np.unique(np.round(np.abs(expected_B), 3)))
    same = bool((np.abs(np.sort(advantages_B) - np.sort(expected_B)) <= limit).all())
    flipped = bool((np.abs(advantages_B + expected_B) <= limit).all())  # of symmetric rewards: see formula
    if not same or flipped or apart < LEAST_NUMBERS:
        return None
    return finding(
        f"{what}, but all of them are those of some other row: they were put in another order than the rows",
        *facts,
        Fact("different numbers among them", apart, LEAST_NUMBERS),
        confidence=Confidence.LIKELY,
    )


def _rows_torn_from_groups(batch: Batch) -> Verdict | None:
    """Each prompt has the rows of one group, but they stand in the groups by no rule: the rows were sorted or shuffled
    after the groups were made. By a rule (p q p q) they are another fault: see group_order."""
    groups_B, names = batch.get("group_ids"), batch.texts.get("prompt_id")
    if groups_B is None or names is None:
        return None
    groups, sizes = np.unique(groups_B, return_counts=True)
    _, counts = np.unique(np.asarray(names), return_counts=True)
    if len(set(sizes.tolist())) != 1 or sizes[0] < 2 or not np.array_equal(np.sort(counts), np.sort(sizes)):
        return None
    if len(groups) < LEAST_ROWS or (np.diff(groups_B) < 0).any():  # numbers that do not rise were moved with the rows
        return None
    names_PG = np.asarray(names).reshape(len(groups), -1)
    torn = int((names_PG != names_PG[:, :1]).any(axis=1).sum())
    by_turns = (names_PG.reshape(-1, len(groups)) == names_PG.reshape(-1, len(groups))[:1]).all()
    if not torn or by_turns:
        return None
    row = int(np.flatnonzero((names_PG != names_PG[:, :1]).ravel())[0])
    return finding(
        f"the rows of {torn} of {len(groups)} groups answer other prompts, and every prompt still has {sizes[0]} rows: "
        "the rows were put in another order than their groups and advantages",
        Fact("groups with rows of other prompts", torn, 0, batch.step, row),
        confidence=Confidence.LIKELY,
    )


def _is_reordered(piece: LossPiece, given: Value | None) -> bool:
    """Whether rows were moved once more behind the pass."""
    behind = walk(piece.new, main_input, until=lambda value: value.op == "forward" or value is given)
    return any(takes_rows(value) for value in behind if value is not given)


def _example(shift: int) -> Evidence:
    """The old log-probs of all rows, shifted by that many rows."""
    batch = healthy_batch()
    old_BT = np.roll(batch.arrays["old_logprobs"], shift, axis=0)
    return of_batch(consistent(batch, old_logprobs=old_BT))


ILLNESS = illness(
    __name__,
    code="ALGN10",
    severity=Severity.FATAL,
    summary="log-probs or advantages of a row belong to another sample",
    fix="Shuffle, filter and gather all arrays of a batch together, by one index.",
    symptoms=(
        "rows are mixed up after shuffling",
        "log-probs of another sample",
        "advantages belong to another row",
        "gather across GPUs reorders samples",
    ),
    sick=lambda: _example(shift=1),
    well=lambda: _example(shift=0),
    explains=frozenset(
        {
            "ADV01", "ADV03", "ADV05", "ADV10", "CLIP01", "KL05", "LOSS06", "MET05", "MET06", "MET07", "NUM02", "RAT01",
            "RAT04", "RAT07", "SAMP01", "SAMP02", "SAMP06", "SYNC01", "ADV02"}
    ),
)  # fmt: skip
