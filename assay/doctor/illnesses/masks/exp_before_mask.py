"""
## What it checks
Values under the mask are taken out before exp and division see them. Two traces show that they are not: the loss is
finite as it is and not finite once large values stand under the mask (`loss_perturbed`); or the loss is not finite,
every number inside the mask is, and one outside of it is not.

## Why it hurts
Under the mask may stand anything: padding that the model finds impossible, log-probs of another row. exp of it
overflows, and inf * 0 is NaN: the mask comes too late. The NaN appears once in a while, in the one batch whose padding
happens to be extreme, and takes the whole update with it.

## How to fix it
Replace the values under the mask before the arithmetic. In the backward pass the same holds: 0 * inf is NaN there too.

    # before
    ratio = torch.exp(new - old)
    loss = -(ratio * advantages * mask).sum()
    # after
    ratio = torch.exp(torch.where(mask, new - old, 0.0))
    loss = -(ratio * advantages * mask).sum()

## When it is wrong
If nothing extreme can stand under the mask (log-probs at padding are set to 0 where they are computed), the fault
sleeps. It wakes when that place is changed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

import numpy as np

from assay.doctor.catalogue import Scripts, illness
from assay.doctor.evidence import Batch
from assay.doctor.examples import healthy_batch, of_batch
from assay.doctor.examples.scripts import with_change
from assay.programs.edits import Spot
from assay.programs.facts.masks.counts import is_token_mask
from assay.programs.facts.masks.masks import fillings
from assay.programs.facts.sampling.banned_tokens import bans, is_under_mask
from assay.programs.program import Program
from assay.verdict import Edit, Fact, Missing, Severity, Verdict, finding, healthy, likely, not_applicable

TOKENWISE = ("new_logprobs", "old_logprobs", "ref_logprobs", "advantages", "ratio", "kl", "token_loss")


def check_batch(batch: Batch) -> Verdict:
    again, perturbed = (batch.numbers.get(name) for name in ("loss_again", "loss_perturbed"))
    loss = batch.numbers.get("loss", again)
    if again is not None and perturbed is not None and np.isfinite(again):
        if not np.isfinite(perturbed):
            return finding(
                f"the loss is {again:.4g}, and {perturbed} once large values stand under the mask: exp or a division "
                "comes before the mask",
                Fact("loss", float(again), step=batch.step),
                Fact("loss with large values under the mask", float(perturbed)),
            )
        if loss is None or np.isfinite(loss):
            return healthy("large values under the mask leave the loss finite", Fact("loss", float(perturbed)))
    if loss is None:
        raise Missing("loss_perturbed")
    return _finite_inside(batch, float(loss))


def check_source(program: Program) -> Iterator[Verdict]:
    """Padding whose logit is -inf: its log-prob is -inf, -inf - -inf is NaN, and NaN times 0 stays NaN."""
    read = fillings(program)
    for masked, _ in read.losses:
        if not masked.masks:
            continue
        lines: set[int] = set()
        safe = any(mask.at.op in ("masked_fill", "where") for mask in masked.masks) or masked.selects
        for ban in bans(program, masked.loss):
            tokens = None if safe else is_under_mask(program, read.endings, ban)
            if tokens is None or ban.value.place.line in lines:
                continue
            lines.add(ban.value.place.line)
            yield likely(
                f"`{ban.value.place.text}` gives a token probability 0 that stands under the mask: its log-probs are "
                "-inf, their difference is NaN, and a mask that multiplies keeps it",
                places=(ban.value.place, ban.chosen.place),
                why=(
                    f"line {ban.value.place.line}: the logit of `{ban.token.place.text}` is set to -inf",
                    f"line {tokens.place.line}: rows are filled with that token after their end",
                    f"line {masked.masks[0].at.place.line}: the mask is multiplied, not selected by",
                ),
            )
        if not lines and any(is_token_mask(program, mask.value) for mask in masked.masks):
            yield healthy("no log-prob under the mask is infinite by construction", places=(masked.loss.place,))


def _finite_inside(batch: Batch, loss: float) -> Verdict:
    (mask_BT,) = batch.need("mask")
    outside: list[Fact] = []
    for name in TOKENWISE:
        values_BT = batch.get(name)
        if values_BT is None or values_BT.shape != mask_BT.shape:
            continue
        broken_BT = ~np.isfinite(values_BT)
        if (broken_BT & mask_BT).any():
            return not_applicable(f"{name} is not finite inside the mask: the cause lies before the mask")
        if broken_BT.any():
            row, token = np.argwhere(broken_BT)[0]
            value = float(values_BT[row, token])
            outside.append(Fact(f"{name} outside of the mask", value, None, batch.step, int(row), int(token)))
    if np.isfinite(loss):
        if not outside:
            raise Missing("loss_perturbed")  # nothing extreme stands under the mask: this batch does not test it
        return healthy("what is not finite under the mask does not reach the loss", *outside)
    if not outside:
        return not_applicable("the loss is not finite, and nothing under the mask is to blame")
    return finding(
        f"the loss is {loss} although every number inside the mask is finite; {outside[0].what} is {outside[0].value}",
        *outside,
    )


WELL = with_change("    return torch.log", "    logits[..., model.config.pad_token_id] = -1e4\n    return torch.log")


def edits(verdict: Verdict, spot: Spot, others: Sequence[Spot]) -> Iterator[Edit | None]:
    """A finite number that makes a token as unlikely."""
    for call in spot.statement.all(ast.Call):
        if call.name == "float" and call.node.args and call.child(call.node.args[0]).source.strip("'\"") == "-inf":
            yield call.becomes("-1e4")
    for minus in spot.statement.all(ast.UnaryOp):
        yield minus.becomes("-1e4") if minus.source in ("-math.inf", "-torch.inf", "-np.inf") else None


ILLNESS = illness(
    __name__,
    code="MASK08",
    severity=Severity.HARMFUL,
    summary="exp or a division is applied to masked values, and inf * 0 is NaN",
    fix="Replace values under the mask (torch.where, masked_fill) before exp and division, not after.",
    symptoms=(
        "nan from exp of padding",
        "inf times 0 under the mask",
        "loss becomes nan in some batches",
    ),
    sick=lambda: of_batch(healthy_batch(update=1, loss_perturbed=float("nan"))),
    well=lambda: of_batch(healthy_batch(update=1)),
    scripts=Scripts(WELL.replace("-1e4", "float('-inf')"), WELL),
    explains=frozenset({"LOSS05", "LOSS06", "MASK04", "MASK07", "MET05", "MET06", "NUM03", "OPT02"}),
)
