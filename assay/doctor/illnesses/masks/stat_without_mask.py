"""
## What it checks
What stands under the mask (padding, tool output) has no influence on the loss. The values there are replaced by others,
and loss and gradient are computed again (`loss_perturbed`, `gradients_perturbed`): nothing may change. No token outside
of the mask may have a gradient. Whitened advantages must have been whitened over the loss tokens alone.

## Why it hurts
A mean, a std or a quantile over a padded tensor mixes zeros of padding, or whatever else lies there, into every real
token. How much depends on the lengths of the other rows, so that the gradient of a row depends on its neighbours.

## How to fix it
Give every reduction the mask.

    # before
    advantages = (advantages - advantages.mean()) / advantages.std()
    # after
    chosen = advantages[mask]
    advantages = (advantages - chosen.mean()) / chosen.std()

## When it is wrong
If `mask` in the evidence is not the mask that the loss uses, the comparison is about another one: record the mask that
the loss was given.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

import numpy as np

from assay.doctor.catalogue import Scripts, illness
from assay.doctor.evidence import Batch, Evidence
from assay.doctor.examples import edit_batch, healthy_batch, of_batch
from assay.doctor.examples.scripts import GRPO
from assay.doctor.facts.rounding import gradients_off, loss_limit
from assay.doctor.recompute.consistent import NOT_REPEATABLE, is_repeatable
from assay.programs.edits import Spot
from assay.programs.facts.loss.terms import TermKind
from assay.programs.facts.masks.counts import behind_tokens, masked_losses, token_scalings
from assay.programs.graph import Value
from assay.programs.program import Program
from assay.programs.walk import ancestors
from assay.record.batch import Array
from assay.verdict import (
    LOUD,
    Confidence,
    Edit,
    Fact,
    Missing,
    Severity,
    Verdict,
    finding,
    healthy,
    not_applicable,
)

WHITENED = 1e-3  # of the advantages' size 1: how near a whitening must come to be recognised
_OF_TOKENS = (TermKind.SURROGATE, TermKind.POLICY, TermKind.KL)
_SCORES = ("gather", "take_along_dim", "log_prob", "cross_entropy", "entropy")


def check_batch(batch: Batch) -> Verdict:
    if not is_repeatable(batch):
        return not_applicable(NOT_REPEATABLE)
    verdicts = [verdict for look in (_loss_moves, _gradients_move, _whitening) if (verdict := look(batch)) is not None]
    if not verdicts:
        raise Missing("loss_perturbed", "gradients_perturbed")
    return max(verdicts, key=lambda verdict: LOUD[verdict.state])


def check_source(program: Program) -> Iterator[Verdict]:
    """Means over tokens that leave the mask out, where the loss has one."""
    masked = masked_losses(program)
    if not masked:
        return
    behind = {id(value) for loss, _ in program.losses for value in ancestors(loss)}
    scored = {value.place for loss in masked for value in ancestors(loss.loss) if value.op in _SCORES}
    terms = [term for _, terms in program.losses for term in terms if term.kind in _OF_TOKENS]
    of_loss = {id(reduction) for term in terms for reduction in term.reductions}  # see padding_dependence
    for mean in program.of("mean", "median", "std", "var"):
        if mean.input is None or mean.setting("dim", None) is not None or id(mean) in of_loss:
            continue
        tokens = behind_tokens(program, mean.input)
        if tokens is not None and tokens.place in scored:
            yield _unmasked(mean, tokens, Confidence.LIKELY if id(mean) in behind else Confidence.POSSIBLE)
    yield from _whitened(program)
    yield healthy("other statistics of tokens are taken under the mask", places=(masked[0].loss.place,))


def _loss_moves(batch: Batch) -> Verdict | None:
    if not {"loss_again", "loss_perturbed"} <= batch.numbers.keys():
        return None
    loss, perturbed = float(batch.number("loss_again")), float(batch.number("loss_perturbed"))
    if not (np.isfinite(loss) and np.isfinite(perturbed)):
        return not_applicable("the loss is not finite, which is another illness (exp_before_mask, empty_mask)")
    limit = loss_limit(batch, loss)
    # columns of padding may have been added to hold other values; what they change by themselves is padding_dependence
    distance = min(abs(perturbed - whole) for whole in (loss, _padded_loss(batch, loss)))
    fact = Fact("|loss with other values under the mask - loss|", distance, limit, batch.step)
    if distance <= limit:
        return healthy("what stands under the mask does not change the loss", fact)
    return finding(
        f"values under the mask change the loss: {loss:.4g} becomes {perturbed:.4g} when they are replaced", fact
    )


def _gradients_move(batch: Batch) -> Verdict | None:
    mask_BT, gradients_BT, perturbed_BT = (batch.get(name) for name in ("mask", "gradients", "gradients_perturbed"))
    if mask_BT is None or gradients_BT is None or not mask_BT.any():
        return None
    if not np.isfinite(gradients_BT).all():
        return not_applicable("the gradient is not finite, which is another illness (exp_before_mask, empty_mask)")
    leaks_BT = ~mask_BT & gradients_off(batch, np.where(mask_BT, gradients_BT, 0.0), gradients_BT)
    if leaks_BT.any():
        row, token = np.argwhere(leaks_BT)[0]
        value = float(gradients_BT[row, token])
        return finding(
            f"{int(leaks_BT.sum())} tokens outside of the mask have a gradient",
            Fact("gradient of a token outside of the mask", value, 0, batch.step, int(row), int(token)),
        )
    if perturbed_BT is None or not np.isfinite(perturbed_BT).all():
        return None
    off_BT = mask_BT & gradients_off(batch, gradients_BT, perturbed_BT)
    if off_BT.any():  # padding may scale all of them
        off_BT = mask_BT & gradients_off(batch, gradients_BT * _factor(gradients_BT, perturbed_BT, batch), perturbed_BT)
        if off_BT.any() and _padding_moves(batch):
            return None  # or some of them, where it dilutes one part of the loss: see padding_dependence
    if not off_BT.any():
        return healthy("what stands under the mask does not change the gradient", Fact("tokens", int(mask_BT.sum())))
    row, token = np.argwhere(off_BT)[0]
    return finding(
        f"values under the mask change the gradient of {int(off_BT.sum())} of {int(mask_BT.sum())} loss tokens",
        Fact("gradient", float(gradients_BT[row, token]), None, batch.step, int(row), int(token)),
        Fact("gradient with other values under the mask", float(perturbed_BT[row, token])),
    )


def _padded_loss(batch: Batch, loss: float) -> float:
    padded = float(batch.numbers.get("loss_padded", loss))
    return padded if np.isfinite(padded) else loss


def _padding_moves(batch: Batch) -> bool:
    loss = float(batch.numbers.get("loss_again", np.nan))
    return abs(_padded_loss(batch, loss) - loss) > loss_limit(batch, loss)


def _factor(gradients_BT: Array, perturbed_BT: Array, batch: Batch) -> float:
    """What padding alone makes of a gradient, if it changes the loss; else 1."""
    if not _padding_moves(batch):
        return 1.0
    squares = float((gradients_BT**2).sum())
    return float((gradients_BT * perturbed_BT).sum()) / squares if squares else 1.0


def _whitening(batch: Batch) -> Verdict | None:
    mask_BT, raw_BT, advantages = (batch.get(name) for name in ("mask", "raw_advantages", "advantages"))
    if mask_BT is None or raw_BT is None or advantages is None or advantages.ndim != 2:
        return None
    if mask_BT.all() or mask_BT.sum() < 3 or not np.isfinite(raw_BT).all():
        return None
    seen_N = advantages[mask_BT]
    masked = _nearest_whitening(raw_BT[mask_BT], raw_BT[mask_BT], seen_N)
    unmasked = _nearest_whitening(raw_BT[mask_BT], raw_BT, seen_N)
    fact = Fact("distance from a whitening over the loss tokens", masked, WHITENED, batch.step)
    if unmasked > WHITENED or masked <= WHITENED:
        return healthy("advantages are not whitened over padding", fact)
    return finding(
        f"advantages are whitened over all {mask_BT.size} cells of the batch, {int((~mask_BT).sum())} of them outside "
        "of the mask",
        fact,
        Fact("distance from a whitening over all cells", unmasked, WHITENED),
    )


def _nearest_whitening(values_N: Array, over: Array, seen_N: Array) -> float:
    """Largest distance of `seen` from (values - mean) / std, mean and std taken over `over`; the mean may be kept."""
    std, mean = over.std(), over.mean()
    if not std > 0:
        return float("inf")
    white_N = (values_N - mean) / std
    return float(min(np.abs(seen_N - white_N).max(), np.abs(seen_N - white_N - mean).max()))


def _whitened(program: Program) -> Iterator[Verdict]:
    for scaling, mean in token_scalings(program):
        if mean.op in ("mean", "std", "var") and mean.setting("dim", None) is None:
            yield _unmasked(mean, scaling.base)
        else:
            yield healthy("the advantages are whitened under the mask", places=(scaling.value.place,))


def _unmasked(mean: Value, tokens: Value, confidence: Confidence = Confidence.LIKELY) -> Verdict:
    """Of a number that is only shown, and that no loss is made of, it is a note."""
    return finding(
        f"`{mean.place.text}` is taken over all positions: the loss has a mask, but padding counts here",
        confidence=confidence,
        places=(mean.place,),
        why=(f"line {tokens.place.line}: {tokens.shown} holds one number for each token, padding included",),
        fix=f"Sum it under the mask and divide by the number of its tokens: ({mean.place_of('input').text} * "
        "mask).sum() / mask.sum().",
    )


def _example(*, leak: float) -> Evidence:
    """A loss into which the mean over the padded tensor leaks by `leak`."""
    batch = healthy_batch(update=1)
    return of_batch(edit_batch(batch, loss_perturbed=batch.number("loss") + leak))


def edits(verdict: Verdict, spot: Spot, others: Sequence[Spot]) -> Iterator[Edit | None]:
    """x.mean() --> (x * mask).sum() / mask.sum() with the mask that the function multiplies by."""
    if spot.name != "mean" or spot.receiver is None or spot.axes:
        return
    masks = {
        side.id
        for product in Spot(spot.text, spot.function).all(ast.BinOp)
        if isinstance(product.node.op, ast.Mult)
        for side in (product.node.left, product.node.right)
        if isinstance(side, ast.Name) and ("mask" in side.id or side.id == "m")
    }
    if len(masks) == 1:
        mask = masks.pop()
        yield spot.as_part(f"({spot.receiver.within(2)} * {mask}).sum() / {mask}.sum().clamp(min=1)")


ILLNESS = illness(
    __name__,
    code="MASK07",
    severity=Severity.HARMFUL,
    summary="a mean, std or quantile includes values outside of the mask",
    fix="Give every reduction the mask: take the mean, std or quantile of values[mask] only.",
    symptoms=(
        "mean over padded tokens",
        "statistics include padding",
        "KL or entropy metric too small because of padding",
    ),
    sick=lambda: _example(leak=0.01),
    well=lambda: _example(leak=1e-8),
    scripts=Scripts(
        GRPO + "    print(step, kl.mean().item())\n",
        GRPO + "    print(step, ((kl * mask).sum() / mask.sum()).item())\n",
    ),
    explains=frozenset(
        {"ADV05", "ADV06", "CLIP01", "CLIP02", "LOSS01", "LOSS03", "LOSS06", "MASK04", "MET06", "RAT01", "RAT04"}
    ),
)
