"""
## What it checks
The loss of a batch is computed twice: as it is, and with columns of padding added (`loss_again`, `loss_padded`). The
two must be equal, but for rounding.

## Why it hurts
A loss that is divided by the padded width shrinks whenever one answer of the batch is long: the step size then depends
on the longest row, which is chance. Rows of padding that keep a mask of 1 inflate the denominator in the same way.

## How to fix it
Sum over the loss tokens and divide by a count of loss tokens or rows, never by the size of a tensor.

    # before: mean over B * T cells, padding included
    loss = (loss_per_token * mask).mean()
    # after
    loss = (loss_per_token * mask).sum() / mask.sum().clamp(min=1)

## When it is wrong
A constant denominator (Dr. GRPO: rows times the completion limit) is no padding: it does not change with the width of
the batch. If a trainer takes that constant from the width of its tensors, the finding is right.
"""

from __future__ import annotations

import numpy as np

from assay.doctor.catalogue import Illness, Plant
from assay.doctor.evidence import Batch, Evidence
from assay.doctor.examples import edited, healthy_batch, of_batch
from assay.doctor.recompute.consistent import NOT_REPEATABLE, is_repeatable
from assay.doctor.rounding import loss_limit
from assay.verdict import Fact, Severity, Verdict, finding, healthy, not_applicable


def check_batch(batch: Batch) -> Verdict:
    loss, padded = float(batch.number("loss_again")), float(batch.number("loss_padded"))
    if not np.isfinite(loss):
        return not_applicable("the loss is not finite, padded or not")
    if not is_repeatable(batch):
        return not_applicable(NOT_REPEATABLE)
    limit = loss_limit(batch, loss)
    distance = abs(padded - loss)
    fact = Fact("|loss with padding - loss|", distance, limit, batch.step)
    if distance <= limit:
        return healthy("padding does not change the loss", fact)
    times = f", {padded / loss:.3g} times as much" if loss and np.isfinite(padded) else ""
    return finding(
        f"the loss depends on padding: {loss:.4g} becomes {padded:.4g}{times} when columns of padding are added",
        fact,
        Fact("loss", loss),
        Fact("loss with padding", padded),
    )


def _example(columns: int) -> Evidence:
    """A loss divided by the width of the tensors, seen with `columns` of padding."""
    batch = healthy_batch(update=1)
    width = batch.arrays["tokens"].shape[1]
    return of_batch(edited(batch, loss_padded=batch.number("loss") * width / (width + columns)))


def sick() -> Evidence:
    return _example(columns=1)


def well() -> Evidence:
    return _example(columns=0)


def _divided_by_the_width(original):  # type: ignore[no-untyped-def]
    """(loss * mask).mean() in the place of a mean over loss tokens."""

    def policy_loss(*, mask_BT, totals, **how):  # type: ignore[no-untyped-def]
        from dataclasses import replace

        loss = original(mask_BT=mask_BT, totals=totals, **how)
        share = totals.share_of_rollout_tokens / mask_BT.numel()
        return replace(loss, total=loss.total * share, policy=loss.policy * share, kl=loss.kl * share)

    return policy_loss


ILLNESS = Illness(
    code="MASK04",
    name="padding_dependence",
    severity=Severity.HARMFUL,
    summary="the loss changes when padding is added",
    fix="Divide the sum over loss tokens by a count of loss tokens or rows, never by the size of a tensor.",
    explanation=__doc__,
    sick=sick,
    well=well,
    plant=Plant(replaces={"assay.train.learner.policy_loss": _divided_by_the_width}),
    batch=check_batch,
    explains=frozenset({"LOSS03", "LOSS06", "MET06"}),
)
