"""
## What it checks
Once the optimizer has moved the weights, the ratio new / old of the same rollouts must leave 1. In a later update of a
rollout batch the check looks for a loss token whose new log-prob is not, bit for bit, the old one. In the curves it
looks at steps with several updates whose smallest and largest ratio are both 1.

## Why it hurts
A ratio that is always 1 means that `old` was computed again after the update, or is `new` without its gradient. The
clip then never acts and nothing corrects for how far the policy has moved since it sampled: every update after the
first is a plain policy gradient on stale data. Larger steps and more epochs make it unstable, and no metric shows why.

## How to fix it
Compute old log-probs once, before the first update of a rollout batch, and keep them for all of its updates.

    # before: old follows the policy
    for epoch in range(epochs):
        new = logprobs(model, batch)
        ratio = (new - new.detach()).exp()
    # after
    with torch.no_grad():
        old = logprobs(model, batch)
    for epoch in range(epochs):
        new = logprobs(model, batch)
        ratio = (new - old).exp()

## When it is wrong
With one update a rollout batch the ratio is 1 by construction, and the check is silent. If the weights did not move (a
learning rate of 0, updates lost in bfloat16), new equals old for that reason: see no_update and pure_bf16.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

import numpy as np

from assay.doctor.catalogue import Scripts, illness, one_per_place
from assay.doctor.evidence import Batch, Curves, Evidence
from assay.doctor.examples import edit_batch, healthy_batch, healthy_curves
from assay.doctor.examples.scripts import GRPO, with_change
from assay.programs.edits import Spot, names_in
from assay.programs.facts.optimizer.epochs import epochs_over, is_split, parts_of_rollout, turns
from assay.programs.facts.origin import network, same_network
from assay.programs.facts.ratio import Difference, before_detach, differences, uses, without_views
from assay.programs.facts.sampling.draws import is_drawn_from
from assay.programs.graph import Loop, Value
from assay.programs.program import Program
from assay.programs.walk import main_input, walk
from assay.verdict import (
    Confidence,
    Edit,
    Fact,
    Severity,
    Verdict,
    finding,
    healthy,
    not_applicable,
    not_enough_data,
    suspected,
)

TOKENS = 20  # fewer loss tokens may be equal by chance: where the policy is certain, a small update changes no bit
CERTAIN = -1e-3  # log-prob of a token that the policy is certain of: no small update changes it
STEPS = 2  # one step may have had a first update too small to be seen
STUCK = 1e-7  # of |ratio - 1|: one bit of a float32 at 1


def check_batch(batch: Batch) -> Verdict:
    mask_BT, new_BT, old_BT = batch.need("mask", "new_logprobs", "old_logprobs")
    if batch.is_on_policy:
        return not_applicable("the first update of its rollout batch: the ratio must be 1")
    if batch.settings.get("learning_rate") == 0:
        return not_applicable("the learning rate is 0, so nothing moves")
    judged_BT = mask_BT & np.isfinite(new_BT) & np.isfinite(old_BT) & (old_BT < CERTAIN)
    tokens = int(judged_BT.sum())
    if tokens < TOKENS:
        return not_enough_data(f"{TOKENS} loss tokens with new_logprobs and old_logprobs that are not 0")
    distance = float(np.abs(new_BT - old_BT)[judged_BT].max())
    fact = Fact("largest |new - old|", distance, step=batch.step)
    if distance > 0.0:
        return healthy("the ratio leaves 1 after the first update", fact)
    moved = _how_weights_moved(batch)
    if moved is None:
        return not_enough_data(
            "update_norm (else learning_rate with gradient_norm, or policy_version with sampler_versions): whether the "
            "weights have moved"
        )
    if not moved:
        return not_applicable("the weights have not moved since the rollouts were sampled")
    rounded = batch.settings.get("dtype", "bfloat16") != "float32"  # a small update may change no rounded weight
    numbers = batch.numbers
    in_part = numbers.get("tensors_changed", 0) < numbers.get("tensors", 0)  # what stands still may hide what moves
    in_part |= "update_norm" not in numbers  # a version counts an update, whether it moved anything or not
    in_part |= batch.step in (None, 1) and batch.number("update") == 1  # a warm-up begins with a rate of 0
    return finding(
        f"update {int(batch.number('update')) + 1} of this rollout batch still has ratio 1 on all {tokens} loss "
        f"tokens, although {moved}",
        fact,
        Fact("loss tokens with new = old, bit for bit", tokens, step=batch.step),
        confidence=Confidence.LIKELY if rounded or in_part else Confidence.PROVEN,
    )


def check_curves(curves: Curves) -> Verdict:
    updates = curves.settings.get("updates_per_rollout")
    if updates == 1:
        return not_applicable("one update a rollout batch: its ratio must be 1")
    applied_N, lowest_N, highest_N, norm_N = curves.need("updates_applied", "ratio_min", "ratio_max", "update_norm")
    judged_N = (applied_N > 1) & (norm_N > 0) & np.isfinite(lowest_N) & np.isfinite(highest_N)
    if judged_N.sum() < STEPS:
        return not_enough_data(f"{STEPS} steps with more than one applied update")
    deviation_N = np.maximum(np.abs(lowest_N - 1), np.abs(highest_N - 1))[judged_N]
    largest = float(deviation_N.max())
    fact = Fact("largest |ratio - 1| of any step", largest, STUCK)
    if largest > STUCK:
        return healthy("the ratio leaves 1 in steps with several updates", fact)
    return finding(
        f"the ratio is 1 in all {int(judged_N.sum())} steps with more than one update, although the weights move",
        fact,
        Fact("mean update_norm", float(norm_N[judged_N].mean())),
    )


@one_per_place
def check_source(program: Program) -> Iterator[Verdict]:
    for use in uses(program):
        for difference in differences(program, use.ratio):
            place = difference.value.place
            if program.origins.gradient(difference.left) is False:
                continue
            what, loop = _follows(program, difference, use.is_surrogate)
            if what and loop is not None:
                yield suspected(
                    f"`{place.text}` is 0 in every update: {what}",
                    confidence=Confidence.LIKELY if turns(loop) is not None or is_split(loop) else Confidence.POSSIBLE,
                    places=(place, loop.place),
                    why=program.kinds.why(use.ratio),
                )
            elif not what and program.origins.gradient(difference.right) is False:
                yield healthy("the old log-probs are made before the updates", places=(place,))


def _how_weights_moved(batch: Batch) -> str | None:
    """How it is known that the weights moved since sampling; "" if they did not; None if it is not known."""
    norm = batch.numbers.get("update_norm")
    if norm == 0 and batch.numbers.get("gradient_norm", 0.0) > 0:
        return ""  # versions count updates, and these change nothing: see no_update
    versions_B, version = batch.get("sampler_versions"), batch.numbers.get("policy_version")
    if versions_B is not None and len(versions_B) and version is not None:
        behind = int(version - versions_B.max())
        if behind > 0 and norm is None and _teaches_nothing(batch):
            return None
        return f"the weights are {behind} version(s) past those that sampled" if behind > 0 else ""
    if norm is None:
        return _how_weights_were_pushed(batch)
    return f"an update moves the weights by {norm:.2g}" if norm > 0 else ""


def _teaches_nothing(batch: Batch) -> bool:
    """Equal rewards: every advantage is 0, and an update with them counts as a version and moves nothing."""
    advantages = batch.get("advantages")
    return advantages is not None and not np.any(np.nan_to_num(advantages))


def _how_weights_were_pushed(batch: Batch) -> str | None:
    """A learning rate and a gradient move weights, though nobody measured by how much."""
    rate, gradients_BT = batch.settings.get("learning_rate", 0.0), batch.get("gradients")
    largest = 0.0 if gradients_BT is None else float(np.nanmax(np.abs(gradients_BT), initial=0.0))
    pull = max(float(batch.numbers.get("gradient_norm", 0.0)), largest)
    return f"the learning rate is {rate:.2g} and there is a gradient" if rate > 0 and pull > 0 else None


def _follows(program: Program, difference: Difference, is_clipped: bool) -> tuple[str, Loop | None]:
    """In what way the old log-probs follow the new ones, and the loop that updates on the same rollouts again."""
    new, old = difference.left, difference.right
    copy = without_views(old)
    is_copy = before_detach(new) is before_detach(old) and without_views(new) is not copy
    is_kept = len(copy.context.branches) > len(difference.value.context.branches)  # copied in the first turn alone
    if is_copy and is_kept:
        return "", None
    if is_copy and difference.is_straight:
        calls = program.origins.forwards(before_detach(new))
        loops = [loop for call in calls if (loop := epochs_over(program, call)) is not None]
        if not loops and is_clipped:  # whoever clips expects more than one update
            loops = [loop for call in calls if (loop := parts_of_rollout(program, call)) is not None]
        what = f"{new.shown} minus its own detached copy, made again before each update"
        return what, loops[0] if loops else None
    for call in program.origins.forwards(new):
        loop = epochs_over(program, call)
        for other in _straight_forwards(program, old) if loop is not None else ():
            if loop not in other.context.loops or is_drawn_from(program, other):
                continue  # made before the loop, or while the rollout was drawn
            if _same_weights(program, call, other, loop):
                return f"{old.shown} is computed by the same weights again in each turn of the loop", loop
    return "", None


def _straight_forwards(program: Program, value: Value) -> list[Value]:
    """The calls of networks behind a value, unless a branch or a former turn of a loop may have decided it."""
    detached = before_detach(value)
    ways = walk(detached, main_input, until=lambda part: part.op in ("phi", "forward", "call"))
    return [] if any(part.op == "phi" for part in ways) else program.origins.forwards(detached)


def _same_weights(program: Program, new: Value, old: Value, loop: Loop) -> bool:
    models = [call.arguments.get("model") for call in (new, old)]
    if any(model is None for model in models) or program.origins.is_switched(old):
        return False
    first, second = (network(model) for model in models if model is not None)
    depth = len(_loop_branches(new, loop))
    steps = [step.order for step in program.of("step") if loop in step.context.loops]
    between = [order for order in steps if min(new.order, old.order) < order < max(new.order, old.order)]
    return same_network(first, second) and len(_loop_branches(old, loop)) <= depth and not between


def _loop_branches(call: Value, loop: Loop) -> list[object]:
    """The branches around a call that lie within the loop."""
    start = loop.place.line
    branches = call.context.branches
    return [branch for branch in branches if branch.place.file == loop.place.file and branch.place.line >= start]


def edits(verdict: Verdict, spot: Spot, others: Sequence[Spot]) -> Iterator[Edit | None]:
    """The log-probs of the sampler, where they have a name: the only one with "old" in it."""
    if not isinstance(spot.node, ast.BinOp):
        return
    whole = spot.function if isinstance(spot.function, ast.FunctionDef) else spot.text.tree
    bound = {name.id for name in ast.walk(whole) if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)}
    bound |= {argument.arg for argument in ast.walk(whole) if isinstance(argument, ast.arg)}
    old = [name for name in bound if re.search(r"(^|_)old(_|$)", name) and spot.knows([name])]
    rows = _rows(spot)
    if len(old) == 1 and old[0] not in names_in(spot.node) and len(rows) < 2:
        yield spot.child(spot.node.right).becomes(old[0] + "".join(f"[{name}]" for name in rows))


def _rows(spot: Spot) -> set[str]:
    """The names by which the loop around it takes rows out of a batch: `mb` of ref[mb]."""
    loop = next((around for around in spot.outside if isinstance(around.node, ast.For | ast.While)), None)
    if loop is None:
        return set()
    bound = {name.node.id for name in loop.all(ast.Name) if isinstance(name.node.ctx, ast.Store)}
    slices = [part.node.slice for part in loop.all(ast.Subscript)]
    return {index.id for index in slices if isinstance(index, ast.Name) and index.id in bound}


def sick() -> Evidence:
    later = edit_batch(healthy_batch(), update=1, policy_version=8)
    return Evidence((later,), healthy_curves(ratio_mean=1.0, ratio_std=0.0, ratio_min=1.0, ratio_max=1.0, old_kl=0.0))


ILLNESS = illness(
    __name__,
    code="RAT02",
    severity=Severity.HARMFUL,
    summary="the ratio new / old stays 1 although the policy has moved since it sampled",
    fix="Compute old log-probs once, before the first update of a rollout batch, and keep them for all its updates.",
    symptoms=(
        "ratio is always 1",
        "ratio is 1",
        "clip fraction is 0",
        "ratio never changes",
        "log_prob is always equal to old_log_prob",
        "clip ratio is always 0",
    ),
    sick=sick,
    well=lambda: Evidence((healthy_batch(update=1),), healthy_curves()),
    scripts=Scripts(sick=with_change("torch.exp(new - old)", "torch.exp(new - new.detach())"), well=GRPO),
    explains=frozenset({"SAMP06"}),  # old follows the policy away from the sampler
)
