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

from collections.abc import Callable, Iterator

from assay.doctor.catalogue import Illness, Scripts
from assay.doctor.examples.scripts import UPDATE, changed
from assay.programs.facts.loss.accumulation import (
    Part,
    Share,
    is_count,
    is_mean,
    is_of_whole,
    is_own,
    is_rows,
    parts,
    share_of,
)
from assay.programs.graph import UNKNOWN
from assay.programs.program import Program
from assay.programs.run.token_weights import Split, TokenWeights, token_weights
from assay.programs.run.watched import WatchedRun
from assay.verdict import Confidence, Place, Severity, Verdict, finding, healthy


def check_source(program: Program) -> Iterator[Verdict]:
    told: set[Place] = set()
    for part in parts(program):
        assert part.backward.input is not None
        share = share_of(program, part.backward.input)
        if share is None or part.backward.place in told:
            continue
        told.add(part.backward.place)
        counts = [one for one in share.divisors if is_count(one, part)]
        what = _twice(part, share, len(counts)) or _undivided(part, share, len(counts))
        places = (part.backward.place, part.step.place)
        if what:
            yield finding(what, confidence=Confidence.LIKELY, places=places)
        else:
            yield healthy("the gradients of the parts add up to that of the batch", places=places)


def check_run(run: WatchedRun) -> Iterator[Verdict]:
    return judge_splits(run, _factor_of_parts)


def _twice(part: Part, share: Share, counts: int) -> str:
    if part.engine_divides and counts:
        return f"`{part.backward.place.text}` divides by the number of parts, and the engine's backward does so again"
    if part.engine_divides and not share.scales and any(is_of_whole(one, part) for one in share.divisors):
        return (
            f"the loss in `{part.backward.place.text}` is divided by a count of the whole batch, and by the number of "
            "parts again in the engine's backward"
        )
    if counts > 1:
        return f"the loss in `{part.backward.place.text}` is divided by the number of parts {counts} times"
    if counts and not share.scales and any(is_of_whole(one, part) for one in share.divisors):
        return (
            f"the loss in `{part.backward.place.text}` is divided by a count of the whole batch, and by the number of "
            "parts on top"
        )
    return ""


def _undivided(part: Part, share: Share, counts: int) -> str:
    if part.engine_divides or counts or share.scales or not is_mean(share, part):
        return ""
    rows = any(is_rows(one, part) for one in share.divisors)
    if any(not is_own(one, part) and not (rows and one.constant is not UNKNOWN) for one in share.divisors):
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


WELL = changed(
    UPDATE,
    """        optimizer.zero_grad()
        parts = torch.arange(len(ids)).chunk(4)
        for rows in parts:
            new = score(policy, ids[rows], start)
            ratio = torch.exp(new - old[rows])
            clipped = torch.clamp(ratio, 1 - 0.2, 1 + 0.2)
            gain = torch.min(ratio * advantages[rows], clipped * advantages[rows])
            lengths = mask[rows].sum(dim=1).clamp(min=1)
            loss = ((-gain * mask[rows]).sum(dim=1) / lengths).mean()
            (loss / len(parts)).backward()
        optimizer.step()
""",
)


SICK = WELL.replace("(loss / len(parts)).backward()", "loss.backward()")


ILLNESS = Illness(
    code="LOSS02",
    name="accumulation",
    severity=Severity.HARMFUL,
    summary="the gradients of the parts of a batch do not add up to that of the batch",
    fix="Divide the mean loss of each part by the number of parts, once; accelerate's backward does it itself.",
    explanation=__doc__,
    symptoms=(
        "gradient accumulation gives another result",
        "loss too large with gradient accumulation",
        "accumulation steps change the learning",
    ),
    run=check_run,
    source=check_source,
    scripts=Scripts(sick=SICK, well=WELL),
    explains=frozenset({"LOSS03", "LOSS05"}),
)
