"""
## What it checks
Loss and gradient of an update do not depend on how it is cut into micro-batches, nor on how many devices share it. They
are computed once for the whole batch and once as the sum over two parts (`loss_split`, `gradients_split`). In a script:
a loss that is differentiated part by part and divided by the part's own count of tokens.

## Why it hurts
If every part divides by its own count of tokens, the tokens of a part with short answers weigh more than those of a
part with long ones, and the gradient grows or shrinks with the number of parts. A change of memory settings then
changes the training.

## How to fix it
Count the denominators over the whole update, before the first part is computed; on several devices, over all of them.

    # before: a mean over each part
    for part in parts:
        loss = (part.loss_per_token * part.mask).sum() / part.mask.sum()
        (loss / len(parts)).backward()
    # after: one denominator
    tokens = sum(part.mask.sum() for part in parts)
    for part in parts:
        loss = (part.loss_per_token * part.mask).sum() / tokens
        loss.backward()

## When it is wrong
With a mean over rows and parts of equally many rows, the mean of means is the whole mean: nothing differs, and nothing
is reported. A trainer that multiplies by the number of parts afterwards must do so in `gradients_split` too.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from assay.doctor.catalogue import Scripts, illness
from assay.doctor.evidence import Batch, Evidence
from assay.doctor.examples import edit_batch, healthy_batch, of_batch
from assay.doctor.examples.scripts import IN_PARTS
from assay.doctor.facts.rounding import gradients_off, loss_limit
from assay.doctor.illnesses.loss.accumulation import judge_splits
from assay.doctor.recompute.consistent import NOT_REPEATABLE, is_repeatable
from assay.programs.facts.loss.accumulation import is_of_whole, shares, token_mean
from assay.programs.program import Program
from assay.programs.run.token_weights import Split, TokenWeights
from assay.programs.run.watched import WatchedRun
from assay.record.batch import Array
from assay.verdict import Fact, Missing, Severity, Verdict, finding, healthy, likely, not_applicable

SAME_FACTOR = 0.01  # factors of all tokens this near to each other are one factor
SMALL_GRADIENT = 1e-3  # of the largest gradient: the factor of a smaller one is mostly rounding


def check_batch(batch: Batch) -> Verdict:
    if not is_repeatable(batch):
        return not_applicable(NOT_REPEATABLE)
    verdicts = [verdict for look in (_gradients_differ, _loss_differs) if (verdict := look(batch)) is not None]
    if not verdicts:
        raise Missing("loss_split", "gradients_split")
    return next((verdict for verdict in verdicts if verdict.state == "finding"), verdicts[0])


def check_source(program: Program) -> Iterator[Verdict]:
    for part, share in shares(program):
        if share.scales:
            continue
        own = token_mean(program, share, part)
        if own is None or any(is_of_whole(divisor, part) for divisor in share.divisors):
            yield healthy("no part is divided by its own count of tokens", places=(part.backward.place,))
            continue
        yield likely(
            f"each part of the batch is divided by its own count of tokens, `{own.place.text}`, before "
            f"`{part.backward.place.text}`: the tokens of a part with short answers weigh more",
            places=(own.place, part.backward.place),
            why=program.kinds.why(own.input) if own.input is not None else (),
        )


def check_run(run: WatchedRun) -> Iterator[Verdict]:
    return judge_splits(run, _own_averages)


def _loss_differs(batch: Batch) -> Verdict | None:
    if not {"loss_again", "loss_split"} <= batch.numbers.keys():
        return None
    loss, split = float(batch.number("loss_again")), float(batch.number("loss_split"))
    if not np.isfinite(loss):
        return not_applicable("the loss is not finite, cut or not")
    limit = loss_limit(batch, loss)
    fact = Fact("|loss over two parts - loss|", abs(split - loss), limit, batch.step)
    if abs(split - loss) <= limit:
        return healthy("cutting the batch does not change the loss", fact)
    return finding(
        f"the loss depends on how the batch is cut: {loss:.4g} as a whole, {split:.4g} summed over two parts", fact
    )


def _gradients_differ(batch: Batch) -> Verdict | None:
    gradients_BT, split_BT = batch.get("gradients"), batch.get("gradients_split")
    if gradients_BT is None or split_BT is None:
        return None
    if not np.isfinite(gradients_BT).all():
        return not_applicable("the gradient is not finite, cut or not")
    off_BT = gradients_off(batch, gradients_BT, split_BT)
    if not off_BT.any():
        return healthy("cutting the batch does not change the gradient", Fact("tokens", int(gradients_BT.size)))
    row, token = np.argwhere(off_BT)[0]
    factors_N = _factors(gradients_BT, split_BT)
    facts = [
        Fact("gradient of the whole", float(gradients_BT[row, token]), None, batch.step, int(row), int(token)),
        Fact("gradient summed over two parts", float(split_BT[row, token])),
    ]
    if len(factors_N) == 0:
        return finding(f"the gradient of {int(off_BT.sum())} tokens depends on how the batch is cut", *facts)
    low, high = float(factors_N.min()), float(factors_N.max())
    facts += [Fact("smallest factor", low), Fact("largest factor", high)]
    if high - low <= SAME_FACTOR * max(abs(high), abs(low)):
        return finding(
            f"cut into two parts the gradient is {high:.3g} times that of the whole: every part divides by its own "
            "count, and the parts are added up",
            *facts,
        )
    return finding(
        f"cut into two parts tokens weigh {low:.3g} to {high:.3g} times what they weigh as a whole: every part divides "
        "by its own count, and the counts differ",
        *facts,
    )


def _factors(gradients_BT: Array, split_BT: Array) -> Array:
    """split / whole, where the whole is far from 0."""
    large_BT = np.abs(gradients_BT) > SMALL_GRADIENT * np.abs(gradients_BT).max(initial=0.0)
    large_BT &= np.isfinite(split_BT)
    return np.asarray(split_BT[large_BT] / gradients_BT[large_BT])


def _own_averages(weights: TokenWeights) -> str | None:
    if weights.split is Split.WHOLE:
        return ""
    if weights.split not in (Split.OWN_TOKENS_ADDED, Split.OWN_TOKENS_AVERAGED):
        return None
    lengths = ", ".join(str(part.tokens) for part in weights.parts)
    return (
        f"each micro-batch is averaged over its own tokens ({lengths}): a token counts more in a short one, and the "
        "update depends on the split"
    )


def _example(*, own_counts: bool) -> Evidence:
    """The batch in two halves, each divided by its own count of loss tokens and halved, or by that of the whole."""
    batch = healthy_batch(update=1)
    mask_BT, gradients_BT = batch.need("mask", "gradients")
    tokens, half = mask_BT.sum(), len(mask_BT) // 2
    factors_B1 = np.ones((len(mask_BT), 1))
    if own_counts:
        for rows in (slice(0, half), slice(half, None)):
            factors_B1[rows] = tokens / mask_BT[rows].sum() / 2
    return of_batch(edit_batch(batch, gradients_split=gradients_BT * factors_B1))


ILLNESS = illness(
    __name__,
    code="LOSS03",
    severity=Severity.HARMFUL,
    summary="loss and gradient depend on how the batch is cut into micro-batches",
    fix="Count the denominators over the whole update before its first part, and divide every part by them.",
    symptoms=(
        "micro batch size changes the result",
        "loss depends on micro-batches",
        "different results with another per-device batch size",
    ),
    sick=lambda: _example(own_counts=True),
    well=lambda: _example(own_counts=False),
    scripts=Scripts(IN_PARTS.replace(".sum() / tokens", ".sum() / mask[rows].sum().clamp(min=1) / 4"), IN_PARTS),
    explains=frozenset({"LOSS06", "MET06"}),
)
