"""
## What it checks
PPO's objective is min(r A, clip(r) A). Outside of the clip range it stops the gradient on one side only: where a good
token is already likelier, or a bad one already rarer. The check looks at loss tokens out there, at their recorded loss
or at their gradient.

## Why it hurts
With max in the place of min, the clip stops the updates that would undo an overshoot and lets the overshoot run: the
further a token has moved the wrong way, the less it is brought back. Without the clip, later updates of a rollout batch
run away from the policy that sampled it.

## How to fix it
Write the objective with min, and put the minus outside; inside of it, min becomes max.

    # before: the minus went into min() and min stayed
    loss = torch.min(-ratio * advantages, -clipped * advantages)
    # after
    loss = -torch.min(ratio * advantages, clipped * advantages)

## When it is wrong
CISPO and SAPO bound the update in other ways and are left alone. In a first update the ratio is 1 and nothing is
outside of the range: then there is not enough data. Tokens at which a dual clip or a delta bites are not judged.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

import numpy as np

from assay.doctor.catalogue import Scripts, illness, one_per_place
from assay.doctor.evidence import Batch, Evidence
from assay.doctor.examples import GRADIENTS, LOSSES, SCORED, edit_batch, healthy_batch, of_batch
from assay.doctor.examples.scripts import GRPO, with_change
from assay.doctor.illnesses.ratio.clip_dead import FIT
from assay.doctor.recompute.consistent import consistent
from assay.doctor.recompute.loss import SURROGATES, expected_gradients, surrogates, without_clip
from assay.doctor.recompute.match import distance, fit_scale, tolerance
from assay.doctor.recompute.terms import loss_settings, terms
from assay.grpo import LOG_RATIO_LIMIT, OBJECTIVES
from assay.programs.edits import Spot
from assay.programs.facts.loss.signs import is_maximised, sides
from assay.programs.facts.loss.terms import TermKind
from assay.programs.facts.ratio import clamp_of, has_exchanged_bounds, is_around_the_product
from assay.programs.program import Program
from assay.record.batch import Array
from assay.verdict import Confidence, Edit, Fact, Severity, Verdict, finding, healthy, not_applicable, not_enough_data

ROUNDING = 1e-5  # of the largest advantage: what is left of a difference of equal rewards
EDGE = 1e-3  # from the clip range: rounding decides there
SMALLEST_BOUND = 1.5  # of a ratio: nobody has a delta or a dual clip below
EXACT = 0.02  # of the gradient without a clip: it is all there or not at all; in between the ratio is another one
NEARLY_ALL = 0.9  # of the tokens: 16 bits blur some
HALF = 0.5  # of the tokens: more than half have a gradient, or less than half


def check_batch(batch: Batch) -> Verdict:
    batch.setting("clip_low"), batch.setting("clip_high"), batch.setting("objective")
    settings = loss_settings(batch)
    if not OBJECTIVES[settings.objective].clips:
        return not_applicable(f"{settings.objective} has no clip of this kind")
    found = terms(batch)
    advantages_BT = np.where(found.mask_BT, batch.token_advantages, 0.0)
    low, high = 1 - settings.clip_low, 1 + settings.clip_high
    below_BT, above_BT = found.ratio_BT < low - EDGE, found.ratio_BT > high + EDGE
    sizes_BT = np.abs(np.where(np.isfinite(advantages_BT), advantages_BT, 0.0))
    outside_BT = (below_BT | above_BT) & found.mask_BT & (sizes_BT > ROUNDING * sizes_BT.max(initial=0.0))
    outside_BT &= np.abs(np.log(found.ratio_BT)) < LOG_RATIO_LIMIT - EDGE  # beyond it the ratio is cut off, not clipped
    for name in ("delta", "dual_clip"):  # both bound what is pushed down; one that is not stated may be on
        bound = float(batch.settings.get(name, SMALLEST_BOUND))
        if bound:
            outside_BT &= (found.ratio_BT < bound) | (advantages_BT > 0)
    if not outside_BT.any():
        return not_enough_data("loss tokens with an advantage and a ratio outside of the clip range")
    verdict = _by_token_loss(batch, outside_BT) or _by_gradients(batch, outside_BT, outside_BT & found.clipped_BT)
    return verdict or not_enough_data("token_loss, or gradients, of the configured objective")


@one_per_place
def check_source(program: Program) -> Iterator[Verdict]:
    for clamp in program.of("clamp"):
        if has_exchanged_bounds(program, clamp):
            yield finding(
                f"the lower bound of `{clamp.place.text}` is above its upper one: everything is clamped to the upper",
                places=(clamp.place,),
                why=program.kinds.why(clamp),
                fix="Clamp the ratio to [1 - eps, 1 + eps], the lower bound first.",
            )
        elif is_around_the_product(program, clamp):
            yield finding(
                f"`{clamp.place.text}` clamps ratio * advantage around 1: the clip belongs around the ratio alone",
                places=(clamp.place,),
                why=program.kinds.why(clamp),
                fix="Multiply after the clamp: clip(ratio, 1 - eps, 1 + eps) * advantages.",
            )
    is_climbed = is_maximised(program)
    if is_climbed is None:
        return
    right = 1 if is_climbed else -1
    for _, of_loss in program.losses:
        for term in of_loss:
            if term.kind is not TermKind.SURROGATE:
                continue
            both = sides(program, term)
            if {sign for sign, _ in both} != {right} or len({product.sign for _, product in both}) != 1:
                continue  # the sign of the loss: another illness
            wanted = "minimum" if both[0][1].sign > 0 else "maximum"
            if not any(clamp_of(product.ratio) for _, product in both):
                continue
            if term.core.op == wanted:
                yield healthy("the clipped objective is the smaller of both", places=(term.core.place,))
            else:
                yield finding(
                    f"`{term.core.place.text}` takes the better of the clipped and the unclipped gain, not the worse",
                    places=(term.core.place,),
                    why=program.kinds.why(both[0][1].ratio),
                    fix=f"Use {'min' if wanted == 'minimum' else 'max'} here.",
                )


def _by_token_loss(batch: Batch, outside_BT: Array) -> Verdict | None:
    """None where they are not there, or are of no kind known here."""
    recorded_BT = batch.get("token_loss")
    if recorded_BT is None:
        return None
    kl_BT = terms(batch).of_tokens() - terms(batch).policy_BT
    limit = 10 * tolerance(batch, recorded_BT[outside_BT])
    distances = {
        name: min(distance(recorded_BT[outside_BT], (policy_BT + part)[outside_BT]) for part in (kl_BT, 0.0 * kl_BT))
        for name, policy_BT in surrogates(batch, loss_settings(batch)).items()
    }
    fact = Fact("tokens outside of the clip range", int(outside_BT.sum()), None, batch.step)
    fits = [name for name, value in distances.items() if value <= limit]
    if not fits:
        return None
    if fits[0] == "min":
        return healthy("the objective is min(r A, clip(r) A)", fact)
    return _finding(fits[0], fact, Fact("distance of the loss from min(r A, clip(r) A)", distances["min"], limit))


def _by_gradients(batch: Batch, outside_BT: Array, clipped_BT: Array) -> Verdict | None:
    """Which tokens outside still have the gradient they would have without any clip."""
    recorded_BT = batch.get("gradients")
    kl_names = ("kl_placement", "kl_estimator", "kl_gradient") if batch.settings.get("kl_coef") else ()
    if recorded_BT is None or any(name not in batch.settings for name in ("kl_coef", *kl_names)):
        return None  # a KL that is not known may be all of a gradient
    unclipped_BT, kl_BT = expected_gradients(batch, without_clip(loss_settings(batch)))
    seen_BT = outside_BT & np.isfinite(recorded_BT) & (unclipped_BT != 0)
    inside_BT = terms(batch).mask_BT & ~outside_BT & np.isfinite(recorded_BT) & (unclipped_BT != 0)
    scale, residual = fit_scale(recorded_BT[inside_BT], (unclipped_BT + kl_BT)[inside_BT])
    if not seen_BT.any() or residual > FIT or scale <= 0:
        return None  # how large an unclipped gradient is, is not known
    # where the KL pulls much harder than the policy term would, the rounding of the one hides the other
    seen_BT &= np.abs(unclipped_BT) > 2 * FIT * np.abs(kl_BT)
    if not seen_BT.any():
        return None
    with np.errstate(all="ignore"):
        share_BT = np.where(unclipped_BT != 0, (recorded_BT / scale - kl_BT) / unclipped_BT, 0.0)
    alive_BT = np.abs(share_BT) > HALF
    stopped, passed = seen_BT & clipped_BT, seen_BT & ~clipped_BT
    fact = Fact("tokens outside of the clip range", int(seen_BT.sum()), None, batch.step)
    leaks = bool(stopped.any()) and float(alive_BT[stopped].mean()) > HALF
    dead = bool(passed.any()) and float(alive_BT[passed].mean()) < HALF
    if not leaks and not dead:
        return healthy("the clip stops the gradient on the right side", fact)
    name = "max" if leaks and dead else "unclipped" if leaks else "clamped"
    facts = (
        Fact("clipped tokens that have a gradient", int(alive_BT[stopped].sum()), 0),
        Fact("tokens on the other side without one", int((~alive_BT)[passed].sum()), 0),
    )
    exact = float((np.minimum(np.abs(share_BT), np.abs(share_BT - 1)) < EXACT)[seen_BT].mean()) >= NEARLY_ALL
    return _finding(name, fact, *facts, confidence=Confidence.PROVEN if exact else Confidence.LIKELY)


def _finding(name: str, fact: Fact, *facts: Fact, confidence: Confidence = Confidence.PROVEN) -> Verdict:
    message = f"at {fact.value} tokens outside of the clip range the loss is {SURROGATES[name]}"
    return finding(message, fact, *facts, confidence=confidence)


def edits(verdict: Verdict, spot: Spot, others: Sequence[Spot]) -> Iterator[Edit | None]:
    """The worse of the two gains; the clip around the ratio alone."""
    other = {"max": "min", "min": "max", "maximum": "minimum", "minimum": "maximum", "fmax": "fmin", "fmin": "fmax"}
    yield spot.renamed(other[spot.name]) if spot.name in other else None
    product = spot.receiver
    if spot.name in ("clamp", "clip") and product is not None and isinstance(product.node, ast.BinOp):
        sides = product.child(product.node.left), product.child(product.node.right)
        for ratio, kept in (sides, sides[::-1]):
            yield spot.as_part(f"{kept.within(2)} * {ratio.tight}.clamp({spot.axes})")


def sick() -> Evidence:
    batch = _moved_batch()
    right = terms(batch)
    wrong_BT = np.where(right.mask_BT, surrogates(batch, right.settings)["max"], 0.0)
    alive_BT = right.mask_BT & ~((right.ratio_BT > 1.2) & (batch.token_advantages < 0))
    alive_BT &= ~((right.ratio_BT < 0.8) & (batch.token_advantages > 0))
    gradients_BT = np.where(alive_BT, -batch.token_advantages * right.ratio_BT, 0.0) / right.mask_BT.sum()
    loss = float(wrong_BT.sum() / right.mask_BT.sum())
    follows = {**dict.fromkeys(GRADIENTS, gradients_BT), **dict.fromkeys((*LOSSES, "policy_loss"), loss)}
    return of_batch(edit_batch(batch, token_loss=wrong_BT, **follows))


def _moved_batch() -> Batch:
    """A later update: of the tokens with room for it, some have moved out of the clip range, on either side."""
    batch = healthy_batch(update=1, kl_coef=0.0, kl=None, kl_loss=None, kl_mean=None)
    old_BT, new_BT = batch.arrays["old_logprobs"], batch.arrays["new_logprobs"]
    row_BT, column_BT = np.indices(old_BT.shape)
    moved_BT = ((row_BT + column_BT) % 8 == 0) & (old_BT < -0.7)
    new_BT = new_BT + np.where(moved_BT, np.where(column_BT % 2 == 0, 0.35, -0.35), 0.0)
    return consistent(batch, **dict.fromkeys(("new_logprobs", *SCORED), new_BT))


ILLNESS = illness(
    __name__,
    code="CLIP02",
    severity=Severity.HARMFUL,
    summary="the clip is not min(r A, clip(r) A): it stops the wrong side, both sides, or none",
    fix="Use -min(ratio * A, clip(ratio) * A), with the minus outside of min.",
    symptoms=(
        "clip on the wrong side",
        "max instead of min in the surrogate",
        "clip range has the opposite effect",
        "clip function is wrong",
    ),
    sick=sick,
    well=lambda: of_batch(_moved_batch()),
    scripts=Scripts(sick=with_change("torch.min(ratio", "torch.max(ratio"), well=GRPO),
    explains=frozenset({"LOSS06", "MET02", "MET06", "RAT07"}),
)
