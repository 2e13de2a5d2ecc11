"""
## What it checks
The loss covers the sampled tokens of every row: all of them, the EOS included, rows at the token limit included, and
nothing else. The check compares the mask with the lengths, row by row. What may be left out: tokens that the policy did
not sample (tool output), rows without a reward, and rows that the limit cut off where a setting says so.

## Why it hurts
A token that is left out is never trained: a policy whose EOS is left out never learns to stop. A token that the policy
did not sample is trained on noise.

## How to fix it
Build the mask from the sampled lengths, and nothing else.

    # before: the last column is cut off, and with it the last token of the longest answers
    mask = (ids != pad)[:, :-1]
    # after
    mask = torch.arange(width) < lengths[:, None]

## When it is wrong
A trainer that leaves out rows on purpose (a filter of answers, a curriculum) without a setting that says so.
"""

from __future__ import annotations

import re

import numpy as np

from assay.doctor.catalogue import illness
from assay.doctor.evidence import Batch, Evidence
from assay.doctor.examples import healthy_batch, of_batch
from assay.doctor.facts.logprobs import completion_places
from assay.doctor.laws.pattern import describe
from assay.doctor.recompute.consistent import consistent
from assay.record.batch import Array
from assay.verdict import Confidence, Fact, Severity, Verdict, finding, healthy, not_applicable

# a call, and what came back for it, by the names that are in use
RETURNED = re.compile(
    r"<(?:tool_call|calc|search|code|python|query)>.*?</\w+>\s*"
    r"<(tool_response|result|information|output|observation|interpreter)>.*?</\1>",
    re.DOTALL,
)
FEWEST_TOOL_ROWS = 8


def check_batch(batch: Batch) -> Verdict:
    mask_BT, lengths_B = batch.need("mask", "lengths")
    if not mask_BT.any():
        return not_applicable("no token is in the loss; MASK06 speaks of that")
    expected_BT = completion_places(batch)
    forced_BT = batch.get("forced")
    if forced_BT is not None:
        expected_BT = expected_BT & ~forced_BT
    left_out_B = _left_out(batch)
    missing_BT = expected_BT & ~mask_BT & ~left_out_B[:, None]
    extra_BT = mask_BT & ~expected_BT
    rows = len(lengths_B)
    if not missing_BT.any() and not extra_BT.any() and (verdict := _of_tools(batch, mask_BT)) is not None:
        return verdict
    if not missing_BT.any() and not extra_BT.any():
        note = f" ({int(left_out_B.sum())} rows are left out by setting)" if left_out_B.any() else ""
        return healthy(f"the loss covers the sampled tokens of all {rows} rows{note}", Fact("rows compared", rows))
    if missing_BT.any():
        row, token = (int(places[0]) for places in np.nonzero(missing_BT))
        return finding(
            f"the mask leaves out {describe(batch, missing_BT, expected_BT)}",
            Fact("sampled tokens that are not in the loss", int(missing_BT.sum()), 0, batch.step, row, token),
            confidence=_confidence(batch, missing_BT, expected_BT),
        )
    row, token = (int(places[0]) for places in np.nonzero(extra_BT))
    return finding(
        f"{int(extra_BT.sum())} tokens are in the loss that were not sampled",
        Fact("loss tokens that were not sampled", int(extra_BT.sum()), 0, batch.step, row, token),
    )


def _of_tools(batch: Batch, mask_BT: Array) -> Verdict | None:
    """A finding where texts hold what a tool returned behind its call, and no token of these rows is masked."""
    texts = batch.texts.get("completion")
    if texts is None or (batch.get("forced") is not None and batch.need("forced")[0].any()):
        return None
    rows = [row for row, text in enumerate(texts) if RETURNED.search(text) and mask_BT[row].any()]
    if len(rows) < max(FEWEST_TOOL_ROWS, len(texts) / 4):
        return None
    return finding(
        f"what a tool returned stands in {len(rows)} of {len(texts)} completions, and all of their tokens are in the "
        "loss: the policy is trained on text that it did not write",
        Fact("rows with a tool's output and nothing masked", len(rows), 0, batch.step, rows[0]),
        confidence=Confidence.LIKELY,
        fix="Mask the tokens that the environment put in; train the policy's own.",
    )


def _left_out(batch: Batch) -> Array:
    """Rows that may be left out whole: cut off where a setting says so, or without a reward."""
    mask_BT, rewards_B, finished_B = batch.need("mask")[0], batch.get("rewards"), batch.get("finished")
    empty_B = ~mask_BT.any(axis=1)
    allowed_B = np.zeros(len(mask_BT), dtype=bool)
    if rewards_B is not None:
        allowed_B |= ~np.isfinite(rewards_B)
    if finished_B is not None and batch.settings.get("mask_truncated"):
        allowed_B |= ~finished_B
    return empty_B & allowed_B


def _confidence(batch: Batch, missing_BT: Array, expected_BT: Array) -> Confidence:
    """A part of a row is never left out on purpose. Whole rows may be, by a filter that no setting names; those that
    the limit cut off often are."""
    missing_B, finished_B = np.asarray(missing_BT.any(axis=1)), batch.get("finished")
    if (expected_BT & ~missing_BT)[missing_B].any():
        return Confidence.PROVEN
    is_kept = batch.settings.get("mask_truncated") is False and finished_B is not None and not finished_B.all()
    if is_kept and finished_B is not None and np.array_equal(missing_B, ~finished_B) and missing_B.sum() > 1:
        return Confidence.PROVEN  # just these, though a setting keeps them
    if missing_B.sum() < max(3, len(missing_B) / 4):
        return Confidence.POSSIBLE  # a row or two may have no reward, or a prompt that was given up
    is_cut_off = finished_B is None or not finished_B[missing_B].any()  # not known: they may be
    return Confidence.POSSIBLE if is_cut_off else Confidence.LIKELY


def sick() -> Evidence:
    """Every second row is masked."""
    batch = healthy_batch()
    mask_BT = batch.arrays["mask"].copy()
    mask_BT[1::2] = False
    return of_batch(consistent(batch, mask=mask_BT))


def well() -> Evidence:
    """Rows that the limit cut off are masked, and a setting says so."""
    batch = healthy_batch()
    mask_BT = batch.arrays["mask"] & batch.arrays["finished"][:, None]
    return of_batch(consistent(batch, mask=mask_BT, mask_truncated=True))


ILLNESS = illness(
    __name__,
    code="LAW06",
    name="law_of_the_support",
    severity=Severity.HARMFUL,
    summary="the loss does not cover exactly the sampled tokens",
    fix="Build the mask from the lengths of the sampled answers: their tokens, EOS included, and no others.",
    symptoms=("some tokens are not trained", "loss mask is wrong"),
    sick=sick,
    well=well,
    explains=frozenset({"LAW01"}),  # of answers chosen by how they end, the tokens are no draws
    explained_by=frozenset({"MASK", "ALGN", "LAW02"}),
)
