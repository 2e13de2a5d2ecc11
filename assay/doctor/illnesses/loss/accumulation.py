"""
## What it checks
A batch that is differentiated part by part before one `step()`. The gradient must be that of the whole batch: the mean
loss of a part is divided by the number of parts once. `accelerator.backward()` divides by itself.

## Why it hurts
`backward()` adds to the gradients that are there. Means of n parts that are not divided add up to n times the gradient:
clipping then cuts every update, and the learning rate means something else whenever the number of parts changes.
Divided twice, the gradient is n times too small.

## How to fix it
    # before
    for part in parts:
        loss_of(part).mean().backward()
    optimizer.step()
    # after
    for part in parts:
        (loss_of(part).mean() / len(parts)).backward()
    optimizer.step()

## When it is wrong
A loss that is a sum, or that is divided by the tokens of the whole batch, needs no further division and is left alone;
so is a loss with a weight that the text does not explain.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence

from assay.doctor.catalogue import Scripts, illness
from assay.doctor.examples.scripts import IN_PARTS
from assay.programs.edits import Spot, names_in
from assay.programs.facts.loss.accumulation import (
    AccumulatedPart,
    Share,
    is_count,
    is_mean,
    is_of_whole,
    is_own,
    is_rows,
    shares,
)
from assay.programs.graph import UNKNOWN
from assay.programs.program import Program
from assay.programs.run.token_weights import Split, TokenWeights, token_weights
from assay.programs.run.watched import WatchedRun
from assay.verdict import Confidence, Edit, Severity, Verdict, finding, healthy, likely


def check_source(program: Program) -> Iterator[Verdict]:
    for part, share in shares(program):
        counts = sum(is_count(divisor, part) for divisor in share.divisors)
        what = _twice(part, share, counts) or _undivided(part, share, counts)
        places = (part.backward.place, part.step.place)
        if what:
            yield likely(what, places=places)
        else:
            yield healthy("the gradients of the parts add up to that of the batch", places=places)


def check_run(run: WatchedRun) -> Iterator[Verdict]:
    return judge_splits(run, _factor_of_parts)


def _twice(part: AccumulatedPart, share: Share, counts: int) -> str:
    text = part.backward.place.text
    if part.engine_divides and counts:
        return f"`{text}` divides by the number of parts, and the engine's backward does so again"
    if counts > 1:
        return f"the loss in `{text}` is divided by the number of parts {counts} times"
    of_whole = not share.scales and any(is_of_whole(divisor, part) for divisor in share.divisors)
    if of_whole and (part.engine_divides or counts):
        again = "again in the engine's backward" if part.engine_divides else "on top"
        return f"the loss in `{text}` is divided by a count of the whole batch, and by the number of parts {again}"
    return ""


def _undivided(part: AccumulatedPart, share: Share, counts: int) -> str:
    if part.engine_divides or counts or share.scales or not is_mean(share, part):
        return ""
    by_rows = any(is_rows(divisor, part) for divisor in share.divisors)
    others = [divisor for divisor in share.divisors if not is_own(divisor, part)]
    if any(not by_rows or divisor.constant is UNKNOWN for divisor in others):
        return ""
    return (
        f"`{part.backward.place.text}` adds up means of parts that nothing divides by their number before "
        f"`{part.step.place.text}`: the gradient grows with the number of parts"
    )


def judge_splits(run: WatchedRun, fault: Callable[[TokenWeights], str | None]) -> Iterator[Verdict]:
    """`fault` says what is wrong with how an update's micro-batches are put together: "" nothing, None not known."""
    judged = [(weights, what) for weights in token_weights(run) if (what := fault(weights)) is not None]
    faults = [(weights, what) for weights, what in judged if what]
    if judged and not faults:
        yield healthy(f"the gradient of {len(judged[0][0].parts)} micro-batches is that of the whole batch")
    elif faults and len(faults) == len(judged):
        weights, what = faults[0]
        # of one update the numbers may agree by chance
        sure = Confidence.PROVEN if len(faults) > 1 else Confidence.LIKELY
        yield finding(what, places=(weights.update.backwards[0].loss.place, weights.update.place), confidence=sure)


def _factor_of_parts(weights: TokenWeights) -> str | None:
    count = len(weights.parts)
    if weights.split is Split.WHOLE:
        return ""
    if weights.split is Split.OWN_TOKENS_ADDED:
        return (
            f"{count} micro-batches are each divided by their own tokens only and added: the gradient is {count} "
            "times that of the whole batch"
        )
    if weights.split is Split.ADDED:
        how, size = "added and not divided", "as large"
    elif weights.split is Split.DIVIDED_TWICE:
        how, size = "divided twice", "too small"
    else:
        return None
    return (
        f"the gradients of {count} micro-batches are {how} by {count}: the step is that of a loss {count} times {size}"
    )


WELL = IN_PARTS.replace(
    "loss = (-gain * mask[rows]).sum() / tokens\n            loss.backward()",
    "lengths = mask[rows].sum(dim=1).clamp(min=1)\n"
    "            loss = ((-gain * mask[rows]).sum(dim=1) / lengths).mean()\n"
    "            (loss / len(parts)).backward()",
)
SICK = WELL.replace("(loss / len(parts)).backward()", "loss.backward()")


def edits(verdict: Verdict, spot: Spot, others: Sequence[Spot]) -> Iterator[Edit | None]:
    """The mean of a part divided by the number of parts, once."""
    loss = spot.receiver if spot.is_method and spot.node.args == [] else spot.argument("loss", 0)
    loops = [part for part in spot.outside if isinstance(part.node, ast.For)]
    if loss is None:
        return
    if "engine" in verdict.message or "times" in verdict.message or "on top" in verdict.message:
        for part in loss.parts(1):
            if isinstance(part.node, ast.BinOp) and isinstance(part.node.op, ast.Div):
                left = part.child(part.node.left)
                yield part.text.edit((*left.span[2:], *part.span[2:]), "")
        return
    if "accelerator" in names_in(spot.text.tree) and spot.name == "backward" and isinstance(loss.node, ast.Name):
        yield spot.becomes(f"accelerator.backward({loss.source})")
    over = loops[0].node.iter if loops else None
    if isinstance(over, ast.Call) and loops[0].child(over).name == "enumerate":
        over = over.args[0]
    if isinstance(over, ast.Name):
        yield loss.becomes(f"({loss.source} / len({over.id}))")
    elif isinstance(over, ast.Call) and loops[0].child(over).name == "range" and len(over.args) == 1:
        yield loss.becomes(f"({loss.source} / {loops[0].child(over.args[0]).tight})")


ILLNESS = illness(
    __name__,
    code="LOSS02",
    severity=Severity.HARMFUL,
    summary="the gradients of the parts of a batch do not add up to that of the batch",
    fix="Divide the mean loss of each part by the number of parts, once; accelerate's backward does it itself.",
    symptoms=(
        "gradient accumulation gives another result",
        "loss too large with gradient accumulation",
        "accumulation steps change the learning",
    ),
    scripts=Scripts(sick=SICK, well=WELL),
    explains=frozenset({"LOSS03", "LOSS05"}),
)
