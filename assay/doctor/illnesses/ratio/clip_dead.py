"""
## What it checks
A token that the clip holds back must get no push from the policy part of the loss. The check finds the tokens whose
ratio is out of range on the side of their advantage, and looks at the gradient that reached them: nothing (beside the
KL's), or what they would get without a clip.

## Why it hurts
The clip is what keeps several updates on one batch of answers safe. Computed and then not used, it changes a metric and
nothing else: clip-higher has no effect, and later updates push tokens that have already moved too far.

## How to fix it
Let the smaller of both objectives reach the loss.

    # before: the clipped loss is computed and never used
    unclipped = -ratio * advantages
    clipped = -ratio.clamp(1 - low, 1 + high) * advantages
    loss = masked_mean(unclipped, mask)
    # after
    loss = masked_mean(torch.max(unclipped, clipped), mask)

## When it is wrong
Objectives without a hard clip (CISPO, SAPO) and those that clip whole rows (GSPO) are not looked at. A run with one
update per rollout never clips: its ratios are 1.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

import numpy as np

from assay.doctor.catalogue import Scripts, illness
from assay.doctor.evidence import Batch
from assay.doctor.examples import SCORED, edit_batch, healthy_batch, of_batch, of_the_loss
from assay.doctor.examples.scripts import GRPO, with_change
from assay.doctor.recompute.loss import expected_gradients, without_clip
from assay.doctor.recompute.match import fit_scale
from assay.doctor.recompute.terms import loss_settings, terms
from assay.grpo import OBJECTIVES
from assay.programs.edits import Spot, together
from assay.programs.facts.kinds import Kind
from assay.programs.facts.optimizer.epochs import are_several
from assay.programs.facts.ratio import (
    RATIOS,
    clamp_of,
    dead_bounds,
    differences,
    is_around_the_product,
    is_differentiated,
    surrogates,
    uses,
    without_views,
)
from assay.programs.graph import Value
from assay.programs.program import Program
from assay.programs.run.ratio import without_sign
from assay.programs.run.roles import Flow, bounds, flows
from assay.programs.run.sight import numbers_of, sight
from assay.programs.run.watched import WatchedRun
from assay.programs.walk import descendants, users, walk
from assay.verdict import Confidence, Edit, Fact, Missing, Severity, Verdict, finding, healthy, not_applicable

EDGE = 1e-3  # of the ratio: a token this near to the bound may be on either side of it
FIT = 0.05  # relative distance of the gradients of the other tokens from what they should be
SWITCHED_OFF = 5  # an eps: nobody clips to [-4, 6] by mistake
HALF = 0.5  # of the clipped tokens
WIDEST_CLIP = 3.0  # a clip that lets the ratio grow to this, and fall to 0, clips nothing


def check_batch(batch: Batch) -> Verdict:
    (gradients_BT,) = batch.need("gradients")
    batch.setting("clip_low"), batch.setting("clip_high"), batch.setting("objective")
    settings = loss_settings(batch)
    objective = OBJECTIVES[settings.objective]
    if not objective.clips or objective.level != "token":
        return not_applicable(f"{settings.objective} does not clip token by token")
    found = terms(batch, settings)
    ratio_BT = found.ratio_BT
    edge_BT = np.minimum(np.abs(ratio_BT - 1 + settings.clip_low), np.abs(ratio_BT - 1 - settings.clip_high)) < EDGE
    clipped_BT = found.clipped_BT & ~edge_BT & np.isfinite(gradients_BT)
    if not clipped_BT.any():
        return not_applicable("no token of this batch is clipped")
    policy_BT, kl_BT = expected_gradients(batch, settings)
    unclipped_BT, _ = expected_gradients(batch, without_clip(settings))
    others_BT = found.mask_BT & ~found.clipped_BT & ~edge_BT & np.isfinite(gradients_BT)
    scale, residual = fit_scale(gradients_BT[others_BT], (policy_BT + kl_BT)[others_BT])
    if residual > FIT or scale <= 0:
        raise Missing("gradients of unclipped tokens that agree with the configured loss")
    left_BT = gradients_BT - scale * kl_BT  # the policy's part, on clipped tokens
    pushed_BT = clipped_BT & (np.abs(left_BT) > HALF * np.abs(scale * unclipped_BT))
    pushed_BT &= np.abs(left_BT) > 2 * FIT * np.abs(scale * kl_BT)  # what a KL slightly off leaves
    # an inverted clip (CLIP02) pushes the same tokens, but it also holds others back
    far_BT = others_BT & (policy_BT != 0) & ((ratio_BT < 1 - settings.clip_low) | (ratio_BT > 1 + settings.clip_high))
    if (far_BT & (np.abs(left_BT) <= HALF * np.abs(scale * policy_BT))).any():
        return not_applicable("tokens that no clip may hold back are held back; CLIP02 looks at that")
    pushed, count = int(pushed_BT.sum()), int(clipped_BT.sum())
    row, token = (int(place[0]) for place in np.nonzero(pushed_BT if pushed else clipped_BT))
    fact = Fact("policy gradient of a clipped token", float(left_BT[row, token]), 0.0, batch.step, row, token)
    if pushed <= HALF * count:
        return healthy(f"{count - pushed} of {count} clipped tokens get no push", fact)
    return finding(
        f"{pushed} of {count} clipped tokens are pushed as if there were no clip",
        fact,
        Fact("clipped tokens with a gradient", pushed, 0),
        confidence=Confidence.PROVEN if pushed == count and far_BT.any() else Confidence.LIKELY,
    )


def check_source(program: Program) -> Iterator[Verdict]:
    """Both sides of the minimum unclipped, bounds that nothing reaches, or a clamp that no loss sees."""
    clipped = set()
    for core, products in surrogates(program):
        clamps = [clamp for product in products if (clamp := clamp_of(product.ratio)) is not None]
        logs = [clamp for clamp in clamps if program.kinds.is_a(clamp.input, Kind.LOG_RATIO)]
        wide = [clamp for clamp in clamps if dead_bounds(clamp) and not logs]  # a clamp of logarithms is not a clip
        around = [clamp for clamp in program.of("clamp") if is_around_the_product(program, clamp)]
        is_clipped = bool(clamps) or any(core in descendants(clamp) for clamp in around)
        if not is_clipped and without_views(products[0].ratio) is without_views(products[1].ratio):
            yield finding(
                f"both sides of `{core.place.text}` are the unclipped ratio: the clip is not in it",
                places=(core.place, products[0].ratio.place),
                why=program.kinds.why(products[0].ratio),
            )
        elif wide:
            yield finding(
                f"`{wide[0].place.text}` has bounds that no ratio reaches: {dead_bounds(wide[0])}",
                confidence=Confidence.POSSIBLE if _is_switched_off(wide[0]) else Confidence.PROVEN,
                places=(wide[0].place, core.place),
                why=program.kinds.why(products[0].ratio),
                fix="Clamp the ratio to [1 - eps, 1 + eps] with an eps of 0.1 to 0.3.",
            )
        elif clamps:
            clipped.add(id(without_views(products[0].ratio)))
            yield healthy("the clipped side reaches the minimum", places=(core.place,))
    unclipped = [use for use in uses(program) if use.loss is not None and not use.is_surrogate]
    by_ratio = {id(without_views(use.ratio)): use for use in unclipped}
    for clamp in program.of("clamp"):
        inner = clamp.input
        if inner is None or not program.kinds.is_a(inner, *RATIOS) or id(without_views(inner)) in clipped:
            continue
        use = by_ratio.get(id(without_views(inner)))
        if use is None or is_differentiated(program, clamp):
            continue
        if any(are_several(program, difference) for difference in differences(program, use.ratio)):
            yield finding(
                f"`{clamp.place.text}` reaches no loss: what is differentiated is the unclipped {inner.shown}",
                places=(clamp.place, use.ratio.place),
                why=program.kinds.why(inner),
            )


def _is_switched_off(clamp: Value) -> bool:
    """A ratio of whole answers, with 1 - eps and 1 + eps so wide that it must be meant: the clip is not wanted."""
    low, high = clamp.setting("min", None), clamp.setting("max", None)
    ratio = walk(clamp, until=lambda value: value.op in ("forward", "gather", "generate"))
    if not any(value.op == "sum" for value in ratio):
        return False
    return isinstance(low, int | float) and isinstance(high, int | float) and 1 - low == high - 1 >= SWITCHED_OFF


def check_run(run: WatchedRun) -> Iterator[Verdict]:
    for backward, flow in flows(run):
        for piece in backward.pieces:
            if piece.ratio is None:
                continue
            ratio = without_sign(piece.ratio)
            clamps = _clamps(ratio)
            for clamp in clamps:
                low, high = bounds(clamp)
                if low is None or high is None:
                    continue
                if id(clamp) in flow.inside and _is_paired(clamp, flow) and low <= 0 and high >= WIDEST_CLIP:
                    yield finding(
                        f"`{clamp.place.text}` lets the ratio go from {low:g} to {high:g}: it clips nothing",
                        places=(clamp.place,),
                    )
                elif id(clamp) not in flow.inside and low < 1 < high and len(run.updates) > 1:
                    yield finding(
                        f"`{clamp.place.text}` is computed, but the loss does not depend on it",
                        places=(clamp.place, ratio.place),
                    )
            for value in flow.values:
                if _is_unclipped_twice(value, ratio):
                    what = f"both sides of `{value.place.text}` are the unclipped ratio"
                    yield finding(what, places=(value.place, ratio.place))
            if any(id(clamp) in flow.inside for clamp in clamps):
                yield healthy("the clipped ratio reaches the loss")


def _clamps(ratio: Value) -> list[Value]:
    """Clamps of the ratio itself, negated or rounded before."""
    made = walk(ratio, users, until=lambda value: value is not ratio and value.op not in ("cast", "neg"))
    return [value for value in made if value.op == "clamp"]


def _is_paired(clamp: Value, flow: Flow) -> bool:
    """The clipped product meets the unclipped one in a minimum."""
    ways = walk(clamp, flow.users, until=lambda value: value is not clamp and value.op not in ("mul", "neg", "cast"))
    return any(_sides(value) is not None for value in ways)


def _sides(value: Value) -> tuple[Value, Value] | None:
    """Of a minimum or maximum of two tensors; torch.min() names its second one dim."""
    if value.op not in ("minimum", "maximum", "min", "max"):
        return None
    other = value.arguments.get("other") or value.arguments.get("dim")
    return (value.input, other) if value.input is not None and other is not None and sight(other) is not None else None


def _is_unclipped_twice(value: Value, ratio: Value) -> bool:
    """A minimum of the same product with the same numbers."""
    sides = _sides(value)
    if sides is None:
        return False
    for side in map(without_sign, sides):
        if side.op != "mul" or not any(without_sign(part) is ratio for part in side.arguments.values()):
            return False
    left, right = map(numbers_of, sides)
    return left is not None and right is not None and np.array_equal(left, right)


def _one_far(dead: bool) -> Batch:
    """A later update in which three tokens of wanted rows have left the clip range, and one of an unwanted row, which
    no clip holds back."""
    batch = healthy_batch(update=1)
    new_BT = batch.arrays["new_logprobs"].copy()
    advantages_B = batch.arrays["advantages"]
    rows = np.concatenate([np.flatnonzero(advantages_B > 0)[:3], np.flatnonzero(advantages_B < 0)[:1]])
    new_BT[rows, 1] = batch.arrays["old_logprobs"][rows, 1] + 0.4
    moved = edit_batch(batch, new_logprobs=new_BT, **of_the_loss(batch), **dict.fromkeys(SCORED))
    found, settings = terms(moved), loss_settings(moved)
    policy_BT, kl_BT = expected_gradients(moved, without_clip(settings) if dead else settings)
    return edit_batch(moved, ratio=found.ratio_BT, clipped=found.clipped_BT, gradients=policy_BT + kl_BT)


def edits(verdict: Verdict, spot: Spot, others: Sequence[Spot]) -> Iterator[Edit | None]:
    """The clipped ratio in place of the second unclipped one; bounds around 1."""
    if spot.name in ("clamp", "clip") and len(spot.node.args) >= 2:
        low, high = (spot.child(node) for node in spot.node.args[-2:])
        known = {
            part.source
            for bound in (low, high)
            for part in bound.all(ast.Name, ast.Attribute)
            if not isinstance(part.parent.node, ast.Attribute)
        }
        if "bounds that no ratio reaches" in verdict.message and len(known) == 1:
            range_ = known.pop()
            yield together([low.becomes(f"1 - {range_}"), high.becomes(f"1 + {range_}")], spot.text)
    if spot.name in ("min", "minimum", "max", "maximum") and len(spot.node.args) == 2:
        second = spot.child(spot.node.args[1])
        ratios = {name.node.id for name in second.all(ast.Name)}
        for part in Spot(spot.text, spot.function).all(ast.Assign):
            value, target = part.child(part.node.value), part.node.targets[0]
            is_clip = value.name in ("clamp", "clip") and value.receiver is not None and isinstance(target, ast.Name)
            if is_clip and value.receiver is not None and value.receiver.source in ratios:
                names = [name for name in second.all(ast.Name) if name.node.id == value.receiver.source]
                yield together([name.becomes(target.id) for name in names], spot.text)


ILLNESS = illness(
    __name__,
    code="CLIP01",
    severity=Severity.HARMFUL,
    summary="the clip does not reach the loss: clipped tokens still get a gradient",
    fix="Take the minimum of the clipped and the unclipped objective (the maximum of the losses) into the loss.",
    symptoms=(
        "clip fraction is 0",
        "clipping has no effect",
        "clip is ignored",
        "clip ratio is always 0",
        "clip function is not applied",
    ),
    sick=lambda: of_batch(_one_far(dead=True)),
    well=lambda: of_batch(_one_far(dead=False)),
    scripts=Scripts(sick=with_change("clipped * advantages)", "ratio * advantages)"), well=GRPO),
    explains=frozenset({"LOSS06", "CLIP02", "RAT07"}),
)
