"""
## What it checks
The tokens that a row attends to have the positions 0, 1, 2, ...: padding is not counted. The check reads the positions
of the scoring pass, and whether log-probs changed when the row was scored with padding, alone, in another order, or by
the plain log-probs of the model.

## Why it hurts
A model with learned positions gives other log-probs to a row padded on the left: 34 nats per sequence were seen
with GPT-2. Rotary positions survive an offset, but not a gap between prompt and completion or a restart in the middle.
The log-probs then depend on the other rows of the batch, and so do ratio and gradient.

## How to fix it
Derive the positions from the attention mask, in every forward pass.

    # before
    output = model(input_ids, attention_mask=attention_mask)
    # after
    position_ids = (attention_mask.cumsum(dim=1) - 1).clamp(min=0)
    output = model(input_ids, attention_mask=attention_mask, position_ids=position_ids)

## When it is wrong
An offset that is the same for all tokens of a row is harmless to models with rotary or relative positions: where the
log-probs were computed again and did not move, the check stays silent. Models with several axes of positions (images)
are not judged.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from assay.doctor.catalogue import illness
from assay.doctor.evidence import Batch, Evidence
from assay.doctor.examples import SIZE, P, edit_batch, healthy_batch, noisy, of_batch
from assay.doctor.facts.context import mask_faults, moved_at_all, moved_by_batch_mates, rows_given
from assay.programs.run.rows import position_shifts
from assay.programs.run.watched import Forward, WatchedRun
from assay.record.batch import Array
from assay.verdict import (
    Confidence,
    Fact,
    Missing,
    Severity,
    Verdict,
    finding,
    healthy,
    not_applicable,
    not_enough_data,
)

OFF = 1e-3  # of a log-prob: more than rounding in float32
OFF_LOW_PRECISION = 5e-2


def check_batch(batch: Batch) -> Verdict:
    if batch.get("position_ids") is None:
        return _without_positions(batch)
    offsets, broken = position_faults(batch)
    wrong = sorted({**offsets, **broken})
    rows = len(batch.need("attention_mask")[0])
    judged = rows - len(_rows_of_another_illness(batch))
    if not judged:
        return not_applicable("the attention mask or the context of every row is wrong, its positions are not known")
    if not wrong:
        return healthy(f"the positions of {judged} rows count their tokens from 0", Fact("rows compared", judged))
    first = next(iter(broken or offsets))
    what = broken.get(first) or f"begin at {offsets[first]}"
    facts = [Fact("rows with other positions than 0, 1, 2, ...", len(wrong), 0, batch.step, first)]
    move = moved_at_all(batch)
    if move is not None:
        facts.append(move.fact)
        what += f"; {move}"
    if move is not None and move.is_rounding:
        return healthy(f"{len(wrong)} of {rows} rows have an offset in their positions that the model ignores", *facts)
    return finding(
        f"{len(wrong)} of {rows} rows have wrong positions: those of row {first} {what}",
        *facts,
        confidence=Confidence.PROVEN if broken or move is not None else Confidence.LIKELY,
    )


def check_run(run: WatchedRun) -> Iterator[Verdict]:
    """One pass that reads a padded row at its right positions, and another that does not."""
    if not any(_is_off(batch) for batch in run.batches):
        return
    right: Forward | None = None
    wrong: tuple[Forward, int, int] | None = None
    for forward in run.forwards:
        model = run.models[forward.model]
        shifts = position_shifts(forward, can_cache=model.can_cache) if model.is_trained else None
        if shifts is None:
            continue
        padded_B, shift_B = shifts
        if shift_B[padded_B].any():
            row = int(np.flatnonzero(padded_B & (shift_B != 0))[0])
            wrong = wrong or (forward, row, int(shift_B[row]))
        elif padded_B.any():
            right = right or forward
    if wrong is not None and right is not None:
        forward, row, shift = wrong
        yield finding(
            f"row {row} is read {abs(shift)} position{'s' * (abs(shift) != 1)} too {'far' if shift > 0 else 'near'} "
            "in this pass and at its right positions in another: log-probs of the same tokens differ",
            places=(forward.value.place, right.value.place),
        )


def position_faults(batch: Batch) -> tuple[dict[int, int], dict[int, str]]:
    """Rows whose positions begin at another number than 0, and rows whose positions do not count up by one."""
    positions_BS, attention_BS = batch.need("position_ids", "attention_mask")
    offsets: dict[int, int] = {}
    broken: dict[int, str] = {}
    strange, places = _rows_of_another_illness(batch), _places(batch)
    for row, (positions_S, attended_S) in enumerate(zip(positions_BS, attention_BS, strict=True)):
        if row in strange:
            continue
        own = positions_S[places.get(row, attended_S)]
        jumps = np.flatnonzero(np.diff(own) != 1)
        if len(jumps):
            at = int(jumps[0])
            broken[row] = f"go from {own[at]} to {own[at + 1]} at input token {at + 1}"
        elif len(own) and own[0] != 0:
            offsets[row] = int(own[0])
    return offsets, broken


def _places(batch: Batch) -> dict[int, Array]:
    """The columns of each row's own tokens, where they are known: behind them others may follow in a packed row."""
    try:
        return {row.number: row.places for row in rows_given(batch) if row.places is not None}
    except Missing:
        return {}


def _rows_of_another_illness(batch: Batch) -> set[int]:
    """Where the mask hides tokens or shows padding, or the context is another, attended columns are not the row."""
    try:
        rows = rows_given(batch)
        crowded = [row.number for row in rows if row.places is None or (row.attended_S is not None and len(row.stray))]
        return {*mask_faults(batch), *crowded}
    except Missing:
        return set()


def _without_positions(batch: Batch) -> Verdict:
    """The numbers alone: padding moves them although the attention mask is right, so the positions are left."""
    move = moved_by_batch_mates(batch)
    if move is None:
        raise Missing("position_ids")
    if move.is_rounding:
        return healthy("padding and batch-mates do not move log-probs", move.fact)
    if batch.get("attention_mask") is None or mask_faults(batch):
        return not_enough_data("position_ids: the attention mask is the likelier cause")
    return finding(
        f"{move} although the attention mask is right: the positions probably count padding",
        move.fact,
        confidence=Confidence.LIKELY,
    )


def _is_off(batch: Batch) -> bool:
    """Whether log-probs that should agree do not: a whole row that is shifted may not matter to a model."""
    mask_BT, new_BT = batch.get("mask"), batch.get("new_logprobs")
    if batch.numbers.get("update") != 0 or mask_BT is None or new_BT is None:
        return False
    limit = OFF if batch.settings.get("dtype", "float32") == "float32" else OFF_LOW_PRECISION
    others = [batch.get(name) for name in ("old_logprobs", "plain_logprobs")]
    return any(
        other is not None and np.nanmax(np.abs(np.where(mask_BT, other - new_BT, 0.0))) > limit for other in others
    )


def _with_gap(columns: int) -> Evidence:
    """Prompts padded on the right to one width: positions count the padding between prompt and completion."""
    batch = healthy_batch()
    positions_BS = batch.arrays["position_ids"].copy()
    positions_BS[:SIZE, P:] += columns
    alone_BT = noisy(batch, "scored_alone", rows=slice(SIZE)) if columns else batch.arrays["scored_alone"]
    return of_batch(edit_batch(batch, position_ids=positions_BS, scored_alone=alone_BT))


ILLNESS = illness(
    __name__,
    code="ALGN04",
    severity=Severity.HARMFUL,
    summary="the positions of the scoring pass count padding",
    fix="Derive position_ids from the attention mask, (attention_mask.cumsum(1) - 1).clamp(min=0), in every forward "
    "pass.",
    symptoms=(
        "left padding changes log-probs",
        "wrong position ids with left padding",
    ),
    sick=lambda: _with_gap(2),
    well=lambda: _with_gap(0),
    explains=frozenset({"SAMP06", "SAMP01", "SYNC01", "RAT01", "RAT07", "MASK04", "ALGN10", "KL05"}),
)
