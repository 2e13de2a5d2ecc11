"""
## What it checks
The loss of a batch is computed twice: as it is, and with columns of padding added (`loss_again`, `loss_padded`). The
two must be equal, except for rounding.

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
A constant denominator (Dr. GRPO: rows times the completion limit) is not padding: it does not change with the width of
the batch. If a trainer takes that constant from the width of its tensors, the finding is right.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from assay.doctor.catalogue import Scripts, illness
from assay.doctor.evidence import Batch, Evidence
from assay.doctor.examples import edit_batch, healthy_batch, of_batch
from assay.doctor.examples.scripts import GRPO, with_change
from assay.doctor.facts.rounding import loss_limit
from assay.doctor.recompute.consistent import NOT_REPEATABLE, is_repeatable
from assay.programs.edits import Spot, over_mask
from assay.programs.facts.loss.terms import Term, TermKind
from assay.programs.facts.masks.counts import behind_tokens, masked_losses, width_of
from assay.programs.facts.masks.unmasked import bare_reductions
from assay.programs.graph import Value
from assay.programs.program import Program
from assay.programs.run.sight import sight
from assay.programs.run.token_weights import TokenWeights, is_near, token_weights
from assay.programs.run.watched import WatchedRun
from assay.verdict import Confidence, Edit, Fact, Place, Severity, Verdict, finding, healthy, likely, not_applicable


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


def check_source(program: Program) -> Iterator[Verdict]:
    """How the losses of tokens are summed up where a mask says that some of them are padding."""
    masked = masked_losses(program)
    for loss, terms in program.losses:
        if loss not in [with_mask.loss for with_mask in masked]:
            continue
        for term in terms:
            if term.kind not in (TermKind.SURROGATE, TermKind.POLICY, TermKind.KL) or not term.reductions:
                continue
            if behind_tokens(program, term.core, masked=True) is None:
                continue
            found = _over_the_width(term)
            if found is not None and any(branch.condition.op in ("is", "is_not") for branch in found.context.branches):
                continue  # where there is no mask, there is no padding either
            if found is None:
                yield healthy("the sum over tokens is divided by a count of them", places=(term.reductions[0].place,))
                continue
            yield likely(
                f"`{found.place.text}` divides by the width of the batch: the loss of a row depends on how long the "
                "longest one is",
                places=(found.place,),
                why=(
                    f"line {term.core.place.line}: {term.core.shown} holds one number for each token, padding included",
                    f"line {found.place.line}: it is averaged over all of them",
                ),
            )
    for bare in bare_reductions(program):
        if not bare.is_drawn:
            yield likely(
                f"the loss has no mask, but its rows are padded: `{bare.reduction.place.text}` counts the padding",
                places=(bare.reduction.place, bare.rows.place),
                why=(f"line {bare.rows.place.line}: shorter rows are filled up to the longest",),
            )


def check_run(run: WatchedRun) -> Iterator[Verdict]:
    """Each token weighs 1 / (rows x padded columns), in updates of different widths or by a mean over the columns."""
    widths: dict[int, TokenWeights] = {}
    for weights in token_weights(run):
        for part in weights.parts:
            if part.tokens == part.rows * part.width:
                continue
            columns = 0.0 if part.by_token is None else part.by_token * part.width
            shares = (1.0, 1.0 / len(weights.parts))
            if not is_near(columns * weights.rows, 1.0) and not any(
                is_near(columns * part.rows, share) for share in shares
            ):
                return
            widths[part.width] = weights
    if not widths:
        return
    first = next(iter(widths.values()))
    mean = _mean_over_columns(first)
    if len(widths) > 1 or mean is not None:
        yield finding(
            "each token counts 1 / (rows x columns) with the padding counted in: more padding, a smaller gradient "
            f"(columns so far: {', '.join(map(str, sorted(widths)))})",
            places=(mean or first.place,),
            confidence=Confidence.PROVEN if len(widths) > 1 else Confidence.LIKELY,
        )


def _over_the_width(term: Term) -> Value | None:
    """The reduction that counts padding."""
    inner = [reduction for reduction in term.reductions if reduction.op in ("mean", "sum", "nanmean")]
    if not inner:
        return None
    if inner[-1].op == "mean" and inner[-1].setting("dim", None) in (None, 1, -1):
        return inner[-1]
    divisions = (reduction for reduction in term.reductions if reduction.op == "div")
    return next((division for division in divisions if width_of(division.argument("other")) is not None), None)


def _mean_over_columns(weights: TokenWeights) -> Place | None:
    """A mean() of a tensor with a column for each token."""
    for backward, shape in zip(weights.update.backwards, weights.update.parts, strict=False):
        for value in backward.roles.flow.values if backward.roles is not None else ():
            before = sight(value.input) if value.op == "mean" else None
            if before is not None and before.shape == shape and before.requires_grad:
                return value.place
    return None


def _example(columns: int) -> Evidence:
    """A loss divided by the width of the tensors, seen with `columns` of padding."""
    batch = healthy_batch(update=1)
    width = batch.arrays["tokens"].shape[1]
    return of_batch(edit_batch(batch, loss_padded=batch.number("loss") * width / (width + columns)))


def edits(verdict: Verdict, spot: Spot, others: Sequence[Spot]) -> Iterator[Edit | None]:
    """(x * mask).mean() --> (x * mask).sum() / mask.sum()."""
    if spot.name == "mean" and spot.receiver is not None:
        yield from over_mask(spot, spot.receiver)


ILLNESS = illness(
    __name__,
    code="MASK04",
    severity=Severity.HARMFUL,
    summary="the loss changes when padding is added",
    fix="Divide the sum over loss tokens by a count of loss tokens or rows, never by the size of a tensor.",
    symptoms=(
        "loss depends on padding",
        "loss changes with batch size",
        "different loss for the same data with more padding",
    ),
    sick=lambda: _example(columns=1),
    well=lambda: _example(columns=0),
    scripts=Scripts(with_change("* mask).sum() / mask.sum().clamp(min=1)", "* mask).mean()"), GRPO),
    explains=frozenset({"LOSS03", "LOSS06", "MET06"}),
)
