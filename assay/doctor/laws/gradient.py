"""
## What it checks
The derivative of the loss by the log-prob of a token is what the objective says: of the right sign and size for every
token in the loss, and exactly 0 for every other. The doctor recomputes it from the recorded log-probs, advantages, mask
and settings, and compares token by token. One common factor is free, because trainers scale their losses. Where no
objective is stated, it asks what all of them have in common: a token gets all of its ratio times its advantage, or,
where a clip stops it, nothing; and a clip stops only what has moved far enough the way that its advantage pulls.

## Why it hurts
This derivative is all that the model ever learns from. A loss that looks right in every plot trains something else if
it reaches only some of the tokens, or some of them too strongly.

## How to fix it
The finding says which tokens get another gradient than the objective gives them. Look for a detach, a slice, a
weight or a second mask between the log-probs and the loss that treats just these tokens differently.

    # before: the loss keeps only the last token of each answer
    loss = (token_loss * mask)[:, -1].mean()
    # after
    loss = (token_loss * mask).sum() / mask.sum()

## When it is wrong
Where the trainer has a term of its own that depends on the log-probs (a regulariser, a bonus), the gradients differ by
that term. Tokens at the edge of the clip range are left out, because rounding decides there.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from assay.config.sections import LossConfig
from assay.doctor.catalogue import illness
from assay.doctor.evidence import Batch, Evidence
from assay.doctor.examples import edit_batch, healthy_batch, of_batch
from assay.doctor.laws.pattern import describe, worst
from assay.doctor.recompute.loss import AGGREGATIONS, aggregation_of, weights
from assay.doctor.recompute.shares import Shares, misplaced, shares_of
from assay.doctor.recompute.terms import gradients, loss_settings, terms
from assay.grpo import OBJECTIVES
from assay.programs.run.bonuses import critics_in_weights
from assay.programs.run.roles import flows
from assay.programs.run.watched import WatchedRun
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

SMALLEST_BOUND = 1.5  # of a ratio: nobody has a delta or a dual clip below
TINY_PULL = 1e-6  # of a token with an advantage of 1
FEWEST_DEAD = 3  # tokens without a gradient that are more than an accident
EDGE = 1e-3  # of the ratio: a token this near to a bound may be on either side of it
OFF_SHARE = {"float32": 1e-2, "bfloat16": 0.1, "float16": 3e-2}  # of a token's own gradient
FLOOR = {"float32": 1e-4, "bfloat16": 1e-2, "float16": 3e-3}  # of the largest gradient: rounding of the KL's part


def check_run(run: WatchedRun) -> Iterator[Verdict]:
    """Advantages through which the policy's part of the loss reaches the critic."""
    found = False
    for _, flow in flows(run):
        for product, weight in critics_in_weights(flow):
            found = True
            yield finding(
                f"the weight of the log-probs, `{weight.place.text}`, still has a gradient: the policy's part of the "
                "loss trains the critic as well, towards predictions that make unlikely actions look good",
                confidence=Confidence.LIKELY,
                places=(weight.place, product.place),
                fix="Detach what the critic predicted before it weighs the log-probs: returns - values.detach().",
            )
    if not found and run.updates:
        yield not_enough_data("advantages of which a critic's numbers are a part")


def check_batch(batch: Batch) -> Verdict:
    (recorded_BT,) = batch.need("gradients")
    try:
        settings = _stated_settings(batch)
    except Missing:
        return _without_objective(batch)
    found = terms(batch, settings)
    compared_BT = np.isfinite(recorded_BT) & ~_at_an_edge(found.ratio_BT, settings)
    if not {"delta", "dual_clip"} <= batch.settings.keys():  # one that is not stated may be on
        compared_BT &= (found.ratio_BT < SMALLEST_BOUND) | (batch.token_advantages >= 0)
    aggregation = aggregation_of(batch)
    weights_BT = weights(batch, aggregation)
    expected_BT = gradients(batch, weights_BT, settings)
    if not np.isfinite(expected_BT).all():
        return not_applicable("log-probs or advantages are not finite")
    # where new and ref agree in nearly all digits, the gradient of their KL is rounding
    rounding_BT = TINY_PULL * weights_BT
    if not (np.abs(expected_BT) > rounding_BT).any() and not recorded_BT.any():
        return not_applicable("every advantage is 0, so that no token has a gradient")
    off_BT, scale = _off(batch, recorded_BT, expected_BT, compared_BT, rounding_BT)
    fact = Fact("factor between the gradients and the objective's", scale, 1.0, batch.step)
    count = int((found.mask_BT & compared_BT).sum())
    if not off_BT.any():
        return healthy(f"the gradient of all {count} loss tokens is that of {settings.objective}", fact)
    for other in AGGREGATIONS:
        otherwise_BT = gradients(batch, weights(batch, other), settings)
        if other != aggregation and not _off(batch, recorded_BT, otherwise_BT, compared_BT, rounding_BT)[0].any():
            words = f"tokens are weighed as by {AGGREGATIONS[other]}, not by {AGGREGATIONS[aggregation]}"
            if "aggregation" not in batch.settings and batch.settings.get("trainer") != "assay":
                return not_applicable(f"{words}, and no setting says which is meant")
            return finding(
                words, worst("gradient that is off by", np.abs(recorded_BT - scale * expected_BT), batch.step)
            )
    return _finding(batch, recorded_BT, scale * expected_BT, off_BT, found.mask_BT & compared_BT)


def _without_objective(batch: Batch) -> Verdict:
    """By what all objectives with token ratios have in common; raises Missing without log-probs and advantages."""
    recorded_BT, mask_BT = batch.need("gradients", "mask")
    if not np.any(recorded_BT[mask_BT & np.isfinite(recorded_BT)]):
        _stated_settings(batch)  # says what is missing
    found = shares_of(batch)
    if found is None:
        if other := misplaced(batch):
            fact = worst("gradient of a token", np.where(mask_BT, np.abs(recorded_BT), 0.0), batch.step)
            return finding(other, fact, confidence=Confidence.PROVEN, severity=Severity.FATAL)
        _stated_settings(batch)  # says what is missing
        return not_applicable("the gradients are of an objective that is not known here")
    ratio_BT, advantages_BT = found.ratio_BT, batch.token_advantages
    forward_BT = np.where(advantages_BT > 0, ratio_BT, 1 / ratio_BT) > 1 + EDGE  # moved the way that is paid for
    back_BT = np.where(advantages_BT > 0, ratio_BT, 1 / ratio_BT) < 1 - EDGE
    held_BT = found.dead_BT & back_BT & ~((advantages_BT < 0) & (ratio_BT > SMALLEST_BOUND))
    stopped_BT, still_BT = found.dead_BT & forward_BT, found.dead_BT & ~forward_BT & ~back_BT
    facts = (
        Fact("tokens with all of their gradient", int(found.alive_BT.sum()), None, batch.step),
        Fact("tokens without one", int(found.dead_BT.sum())),
    )
    if still_BT.any() and (still_BT | held_BT).sum() >= FEWEST_DEAD:
        which = describe(batch, found.dead_BT, found.judged_BT)
        # whole rows, or some tokens here and there, may be left out on purpose by a mask that was not seen
        is_meant = stopped_BT.any() or "row" in which.replace("every row", "").replace("its row", "")
        return finding(
            f"no gradient reaches {which}, though their ratio is 1",
            *facts,
            confidence=Confidence.POSSIBLE if is_meant else Confidence.LIKELY,
        )
    if held_BT.sum() >= FEWEST_DEAD and not stopped_BT.any():
        if not _is_parted(found, advantages_BT):
            return not_applicable("tokens without a gradient are on no one side of a bound")
        row, token = (int(places[0]) for places in np.nonzero(held_BT))
        return finding(
            "the clip stops the wrong side: no gradient reaches tokens whose ratio has moved against their advantage, "
            "and those that have moved along with it are never stopped",
            Fact("ratio of a token that gets no gradient", float(ratio_BT[row, token]), None, batch.step, row, token),
            Fact("its advantage", float(advantages_BT[row, token])),
            *facts,
            confidence=Confidence.LIKELY if _is_by_sign(found, held_BT, advantages_BT) else Confidence.POSSIBLE,
        )
    if held_BT.sum() >= FEWEST_DEAD:
        return finding(
            "the clip stops both sides: tokens that have moved against their advantage get no gradient back",
            *facts,
            confidence=Confidence.POSSIBLE,
        )
    if (still_BT | held_BT).any():
        few = f"{int((still_BT | held_BT).sum())} of {int(found.judged_BT.sum())}"
        return not_applicable(f"{few} loss tokens have no gradient, though no clip stops them: too few to say why")
    count = f"{int((found.alive_BT | found.dead_BT).sum())} of {int(found.judged_BT.sum())}"
    if not batch.numbers.get("update") and not found.dead_BT.any():
        return healthy(f"the gradient of {count} loss tokens is that of their advantage", *facts)
    return healthy(f"the gradient of {count} loss tokens is whole, or rightly clipped", *facts)


def _is_parted(found: Shares, advantages_BT: Array) -> bool:
    """Whether a bound of the ratio parts the tokens without a gradient from those with one, for each sign."""
    for sign in (1, -1):
        along_BT = sign * np.log(found.ratio_BT)
        dead_N, alive_N = (along_BT[side & (sign * advantages_BT > 0)] for side in (found.dead_BT, found.alive_BT))
        if len(dead_N) and len(alive_N) and dead_N.max() > alive_N.min() + EDGE:
            return False
    return True


def _is_by_sign(found: Shares, held_BT: Array, advantages_BT: Array) -> bool:
    """Whether tokens of both signs are held back, and for each sign some of the other sign are alive at such ratios: a
    mask of old tokens keeps a range of ratios, whatever the sign."""
    for sign in (1, -1):
        along_BT = sign * np.log(found.ratio_BT)
        held_N, alive_N = (
            along_BT[held_BT & (sign * advantages_BT > 0)],
            along_BT[found.alive_BT & (sign * advantages_BT < 0)],
        )
        if not len(held_N) or not len(alive_N) or alive_N.min() > held_N.max():
            return False
    return True


def _stated_settings(batch: Batch) -> LossConfig:
    """Raises Missing where a setting that shapes the gradient is not stated: a default may not be this trainer's."""
    objective = OBJECTIVES.get(str(batch.setting("objective")))
    needed = ["kl_coef", "correction", *(objective.settings if objective is not None else ())]
    if batch.settings.get("kl_coef"):
        needed += ["kl_placement", "kl_estimator", "kl_gradient"]
    for name in needed:
        if name not in ("delta", "dual_clip"):
            batch.setting(name)
    return loss_settings(batch)


def _finding(batch: Batch, recorded_BT: Array, expected_BT: Array, off_BT: Array, inside_BT: Array) -> Verdict:
    """What is off, in words: tokens that should have a gradient and have none, the reverse, or another one."""
    largest = float(np.abs(expected_BT).max(initial=0.0))
    dead_BT = off_BT & (recorded_BT == 0)
    stray_BT = off_BT & ~inside_BT & (expected_BT == 0)
    reversed_BT = off_BT & (recorded_BT * expected_BT < 0)
    has_one_BT = inside_BT & (np.abs(expected_BT) > FLOOR[_dtype(batch)] * largest)
    if np.array_equal(dead_BT, off_BT):
        what = f"no gradient reaches {describe(batch, dead_BT, has_one_BT)} that should have one"
    elif np.array_equal(stray_BT, off_BT):
        what = f"{int(stray_BT.sum())} tokens outside of the mask have a gradient"
    elif np.array_equal(reversed_BT, off_BT):
        what = f"the gradient points the wrong way at {describe(batch, reversed_BT, has_one_BT)}"
    elif other := misplaced(batch):
        what = f"{other} ({int((off_BT & inside_BT).sum())} of {int(inside_BT.sum())} tokens are off)"
    elif (dead_BT & has_one_BT).any() and (dead_BT & has_one_BT).sum() > (off_BT & has_one_BT).sum() / 2:
        what = (
            f"no gradient reaches {describe(batch, dead_BT, has_one_BT)} that should have one, and another one than "
            f"the objective's reaches {int((off_BT & ~dead_BT).sum())} more"
        )
    else:
        what = f"the gradient is not the objective's at {describe(batch, off_BT & inside_BT, inside_BT)}"
    row, token = np.unravel_index(
        int(np.argmax(np.where(off_BT, np.abs(recorded_BT - expected_BT), -1.0))), off_BT.shape
    )
    serious = bool((dead_BT | reversed_BT).sum() > has_one_BT.sum() / 2)
    return finding(
        what,
        Fact("gradient of a token", float(recorded_BT[row, token]), None, batch.step, int(row), int(token)),
        Fact("the objective's gradient there", float(expected_BT[row, token])),
        Fact("tokens that are off", int(off_BT.sum()), 0),
        confidence=Confidence.PROVEN,
        severity=Severity.FATAL if serious else Severity.HARMFUL,
    )


def _off(
    batch: Batch, recorded_BT: Array, expected_BT: Array, compared_BT: Array, rounding_BT: Array
) -> tuple[Array, float]:
    """(the tokens whose gradient is not the expected one times a common factor, that factor)."""
    dtype = _dtype(batch)
    largest = float(np.abs(expected_BT).max(initial=0.0))
    clear_BT = compared_BT & (np.abs(expected_BT) > FLOOR[dtype] * largest + rounding_BT) & (recorded_BT != 0)
    # the middle of the factors: one odd row does not move it, as it would move a mean
    factors = recorded_BT[clear_BT] / expected_BT[clear_BT]
    scale = abs(float(np.median(factors))) if len(factors) else 1.0
    sizes_BT = np.abs(scale * expected_BT)
    limit_BT = OFF_SHARE[dtype] * sizes_BT + FLOOR[dtype] * float(sizes_BT.max(initial=0.0)) + scale * rounding_BT
    return compared_BT & (np.abs(recorded_BT - scale * expected_BT) > limit_BT), scale


def _dtype(batch: Batch) -> str:
    """The compute dtype; the coarsest where it is not stated."""
    dtype = str(batch.settings.get("dtype"))
    return dtype if dtype in OFF_SHARE else "bfloat16"


def _at_an_edge(ratio_BT: Array, settings: LossConfig) -> Array:
    bounds = [1 - settings.clip_low, 1 + settings.clip_high, settings.delta, settings.dual_clip]
    if not OBJECTIVES[settings.objective].clips:
        return np.zeros(ratio_BT.shape, dtype=bool)
    return np.asarray(np.any([np.abs(ratio_BT - bound) < EDGE for bound in bounds], axis=0))


def sick() -> Evidence:
    """The gradients of tokens with a negative advantage are gone."""
    batch = healthy_batch()
    return of_batch(edit_batch(batch, gradients=np.where(batch.token_advantages < 0, 0.0, batch.arrays["gradients"])))


def well() -> Evidence:
    """All gradients are half as large: the trainer divides its loss by two accumulation steps."""
    batch = healthy_batch()
    return of_batch(edit_batch(batch, gradients=0.5 * batch.arrays["gradients"]))


ILLNESS = illness(
    __name__,
    code="LAW05",
    name="law_of_the_gradient",
    severity=Severity.HARMFUL,
    summary="the gradient of the loss is not that of the objective",
    fix="Look for what treats just these tokens differently between the log-probs and the loss: a detach, a slice, a "
    "weight, a second mask.",
    symptoms=("only some tokens are trained",),
    sick=sick,
    well=well,
    explains=frozenset({"LOSS06"}),
    explained_by=frozenset(
        {"LOSS", "RAT", "CLIP", "KL", "MASK", "NUM", "ADV", "ALGN", "LAW02", "LAW03", "LAW04", "LAW06"}
    ),
)
