"""
## What it checks
No loss is divided by a count of loss tokens that can be 0. The check looks for batches without a single loss token, and
for a loss or a gradient that is not a number in a batch with rows of which no token is trained.

## Why it hurts
0 / 0 is NaN. One row without loss tokens (cut off and masked, filtered out, empty) then turns the loss of the whole
batch into NaN; a trainer that hides the NaN makes an update of nothing, and Adam still moves the weights by momentum.

## How to fix it
Bound the denominator from below, and skip an update that has no loss token.

    # before
    row_loss = (loss_per_token * mask).sum(dim=1) / mask.sum(dim=1)
    # after
    row_loss = (loss_per_token * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)

## When it is wrong
Some rows without loss tokens are healthy as long as the loss is finite: masking answers that were cut off is a
deliberate choice. If every answer was cut off and left out on purpose, the batch is only wasted, and is reported so.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np

from assay.doctor.catalogue import Scripts, illness
from assay.doctor.evidence import Batch, Evidence
from assay.doctor.examples import B, edit_batch, healthy_batch, of_batch, of_the_loss
from assay.doctor.examples.scripts import GRPO
from assay.programs.edits import Spot
from assay.programs.facts.masks.counts import count_of, is_guarded
from assay.programs.facts.masks.masks import Applied, fillings
from assay.programs.program import Program
from assay.verdict import Confidence, Edit, Fact, Severity, Verdict, finding, healthy, not_applicable

INPUTS = ("new_logprobs", "old_logprobs", "advantages")  # a NaN of theirs makes a NaN loss without any division
FEWEST_ROWS = 4  # rows: one or two may be left out for a reason of their own
BESIDE = ("ref_logprobs", "sampler_logprobs")  # where the loss has a KL or a correction, so does one of these
OUTPUTS = ("loss", "loss_again")
FAR_APART = 10.0  # nats between two log-probs: exp of more overflows a float16, and times 0 it is NaN


def check_batch(batch: Batch) -> Verdict:
    (mask_BT,) = batch.need("mask")
    if mask_BT.size == 0:
        return not_applicable("the batch has no tokens at all")
    empty_B = ~mask_BT.any(axis=1)
    if empty_B.all():
        return _nothing_trained(batch, len(mask_BT))
    fact = Fact("rows without a loss token", int(empty_B.sum()))
    broken = [name for name in OUTPUTS if name in batch.numbers and not np.isfinite(batch.number(name))]
    gradients_BT = batch.get("gradients")
    if gradients_BT is not None and not np.isfinite(gradients_BT).all():
        broken.append("gradients")
    if not broken or not empty_B.any():
        return healthy("no division by an empty mask", fact)
    if any(not np.isfinite(_inside(batch, name)).all() for name in _used(batch)):
        return not_applicable(f"{broken[0]} is not finite, and neither are the numbers it was computed from")
    row = int(np.flatnonzero(empty_B)[0])
    known = all(batch.get(name) is not None for name in INPUTS) and _nothing_else_can(batch)
    return finding(
        f"{broken[0]} is not finite although its inputs are, and {int(empty_B.sum())} of {len(mask_BT)} rows have no "
        "loss token: their count of 0 is divided by",
        Fact("rows without a loss token", int(empty_B.sum()), step=batch.step, row=row),
        confidence=Confidence.PROVEN if known else Confidence.LIKELY,
    )


def check_source(program: Program) -> Iterator[Verdict]:
    """Divisions by sums of masks, where a mask can leave a row without a token."""
    read = fillings(program)
    for division in program.of("div"):
        divisor = division.argument("other")
        count = count_of(divisor) if divisor is not None else None
        if count is None:
            continue
        ways = read.of(Applied(count.mask, division))
        emptied = [way for way in ways if way.empty_rows]
        drops_truncated = any(way.drops_truncated for way in emptied)
        if not ways:
            continue
        if not emptied or count.floored or is_guarded(program, division, count):
            yield healthy("no mask that can be empty is divided by", places=(division.place,))
        elif count.by_row or drops_truncated:
            reason = "was cut off" if drops_truncated else "ended at once"
            yield finding(
                f"`{division.place.text}` divides by `{count.total.place.text}`, which is 0 for a "
                f"{'row' if count.by_row else 'batch of rows'} that {reason}: NaN",
                confidence=Confidence.LIKELY if count.by_row else Confidence.POSSIBLE,
                places=(division.place, count.total.place),
                why=(
                    f"line {count.total.place.line}: the mask is summed over {'a row' if count.by_row else 'a batch'}",
                    f"line {count.mask.place.line}: of a row that {reason} it keeps no token",
                ),
            )


def _nothing_trained(batch: Batch, rows: int) -> Verdict:
    finished_B = batch.get("finished")
    fact = Fact("loss tokens", 0, step=batch.step)
    if batch.settings.get("mask_truncated") and finished_B is not None and not finished_B.any():
        return finding(
            f"all {rows} rows were cut off by the token limit and left out of the loss: this batch teaches nothing",
            fact,
            confidence=Confidence.POSSIBLE,  # the next batch may have answers that end
            severity=Severity.WASTEFUL,
            fix="Raise the token limit, or keep answers that were cut off in the loss.",
        )
    sure = cannot_be_meant(batch)
    return finding(
        f"none of the {rows} rows has a loss token: this batch teaches nothing",
        fact,
        confidence=Confidence.PROVEN if sure else Confidence.POSSIBLE,
        severity=None if sure else Severity.WASTEFUL,
    )


def cannot_be_meant(batch: Batch) -> bool:
    """Whether rows without loss tokens cannot be left out on purpose: answers that ended, or no masking of the rest.

    A single row, of a micro-batch say, may be left out for many reasons; so may groups of equal rewards.
    """
    finished_B, advantages = batch.get("finished"), batch.get("advantages")
    if len(batch.need("mask")[0]) < FEWEST_ROWS or advantages is None or not np.nan_to_num(advantages).any():
        return False
    has_ended = finished_B is not None and bool(finished_B.sum() >= FEWEST_ROWS)
    return has_ended or batch.settings.get("mask_truncated") is False


def _used(batch: Batch) -> list[str]:
    names = INPUTS + (BESIDE[:1] if batch.settings.get("correction") == "off" else BESIDE)
    return [name for name in names if batch.get(name) is not None]


def _nothing_else_can(batch: Batch) -> bool:
    """Whether no number, under the mask or not, is or becomes infinite by an exp: times a mask of 0 it is NaN too."""
    if not all(np.isfinite(batch.arrays[name]).all() for name in _used(batch)):
        return False
    logprobs = [batch.arrays[name] for name in _used(batch) if name.endswith("_logprobs")]
    return all(np.abs(first - second).max() <= FAR_APART for first, second in combinations(logprobs, 2))


def _inside(batch: Batch, name: str) -> np.ndarray:
    (mask_BT,) = batch.need("mask")
    return batch.arrays[name][mask_BT if batch.arrays[name].ndim == 2 else mask_BT.any(axis=1)]


def _example(loss: float | None) -> Evidence:
    """Two rows are left out, and the loss came out as `loss`."""
    batch = healthy_batch()
    mask_BT = batch.arrays["mask"].copy()
    mask_BT[[3, 9]] = False  # those that the token limit cut off
    changes = {**of_the_loss(batch), "loss": loss, "loss_again": loss}
    return of_batch(edit_batch(batch, **changes, mask=mask_BT, mask_truncated=True, sequences=B))


SICK = GRPO.replace("mask = (ends", "mask = ends.any(dim=1, keepdim=True) * (ends").replace(
    "loss = ((-gain + 0.04 * kl) * mask).sum() / mask.sum().clamp(min=1)",
    "loss = (((-gain + 0.04 * kl) * mask).sum(dim=1) / mask.sum(dim=1)).mean()",
)


def edits(verdict: Verdict, spot: Spot, others: Sequence[Spot]) -> Iterator[Edit | None]:
    """A count that is at least 1."""
    counts = [*others[:1]]
    if isinstance(spot.node, ast.BinOp):
        counts.append(spot.child(spot.node.right))
    for count in counts:
        yield count.followed_by(".clamp(min=1)")


ILLNESS = illness(
    __name__,
    code="MASK06",
    severity=Severity.FATAL,
    summary="a batch or a row without loss tokens: a division by 0, or nothing to learn from",
    fix="Bound the denominator from below (clamp(min=1)) and skip an update without loss tokens.",
    symptoms=(
        "division by zero in the mask",
        "nan when a completion is empty",
        "loss is nan for an empty mask",
        "all tokens masked",
    ),
    sick=lambda: _example(float("nan")),
    well=lambda: _example(None),
    scripts=Scripts(SICK, SICK.replace("mask.sum(dim=1))", "mask.sum(dim=1).clamp(min=1))")),
    explains=frozenset(
        {"LOSS03", "LOSS05", "LOSS06", "MASK04", "MASK07", "MASK08", "MET05", "MET06", "MET07", "NUM03", "OPT02"}
    ),
)
