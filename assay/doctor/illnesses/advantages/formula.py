"""
## What it checks
The advantages are computed again from rewards and groups as the settings say: (reward - baseline) / (std + epsilon).
Where the recorded ones differ, they are compared with all known variants, meant ones and bugs; the nearest is named.

## Why it hurts
An option that is silently ignored, parentheses that are missing, a second normalisation: the run trains another
algorithm than its config says. Some of these change only the size of the update; others reward what should be punished.

## How to fix it
Compute mean and std of each group once, put the parentheses, and let one place read the options.

    # before: the division binds tighter than the minus
    advantages = rewards - mean / (std + eps)
    # after
    advantages = (rewards - mean) / (std + eps)

## When it is wrong
If the settings are not those the trainer really used. Variants that people choose on purpose (no std, population std,
std of the batch, leave-one-out) are at most possible findings, and none at all where the settings do not name another.
Process rewards, GDPO, a critic and parts of groups cannot be recomputed and are left alone.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

import numpy as np

from assay.doctor.catalogue import Scripts, illness
from assay.doctor.evidence import Batch, Evidence
from assay.doctor.examples import healthy_batch, of_batch
from assay.doctor.examples.scripts import GRPO, with_change
from assay.doctor.recompute.advantages import STATED, has_whole_groups, nearest_advantages, other_kind, row_advantages
from assay.doctor.recompute.consistent import consistent
from assay.doctor.recompute.loss import is_known_whole
from assay.programs.edits import Spot
from assay.programs.facts.advantages.advantages import Scaling, is_advantage, level_of, plain, scalings, uncentred
from assay.programs.program import Program
from assay.verdict import Confidence, Edit, Fact, Severity, Verdict, finding, healthy, likely, not_applicable

SELF_EVIDENT = ("parentheses", "variance", "sign flipped", "first rollout", "too late", "repeat")  # nobody means these
COARSE = 0.05  # relative: a tolerance beyond it fits too much


def check_batch(batch: Batch) -> Verdict:
    batch.need("advantages", "rewards", "group_ids")
    if (verdict := _of_tokens(batch)) is not None:
        return verdict
    if reason := other_kind(batch):
        return not_applicable(reason)
    advantages_B = row_advantages(batch)
    if advantages_B is None or not np.isfinite(advantages_B[~np.isnan(advantages_B)]).all():
        return not_applicable("an advantage is not finite: see degenerate_std")
    match = nearest_advantages(batch)
    name = match.variant.name
    far = Fact("distance from the configured formula, relative", match.configured_distance, match.tolerance, batch.step)
    near = Fact(f"distance from: {name}", match.distance, match.tolerance, batch.step)
    if match.is_configured:
        return healthy(f"the advantages are {name}", near)
    says = "" if match.configured is None else f"; the config says {match.configured.name}"
    stated = all(setting in batch.settings for setting in STATED)
    if match.variant.is_bug and match.fits and match.tolerance > COARSE:
        return not_applicable("the rewards are so close for their size that formulas cannot be told apart")
    if match.fits and match.variant.is_bug:
        proven = "baseline" in batch.settings or any(word in name for word in SELF_EVIDENT)
        proven = proven and has_whole_groups(batch)  # a part of a group has another mean
        return finding(
            f"the advantages of {len(advantages_B)} rows are {name}{says}",
            far if match.configured else near,
            near,
            confidence=Confidence.PROVEN if proven else Confidence.POSSIBLE,
            severity=Severity.FATAL if "sign flipped" in name else None,
        )
    if match.fits:
        return finding(f"the advantages are {name}{says}", far, near, confidence=Confidence.POSSIBLE)
    if not has_whole_groups(batch):
        return not_applicable("the batch holds parts of groups, whose mean and std differ from the whole")
    if not stated or (batch.settings.get("kl_coef") and batch.settings.get("kl_placement") != "loss"):
        return not_applicable(f"the advantages are of a formula not known here; the nearest is {name}")
    known = {"group_size", "kl_coef"} <= batch.settings.keys() and batch.get("mask") is not None
    known = known and (batch.settings["scale"] == "group" or is_known_whole(batch))
    return finding(
        f"the advantages are not what the config says: {match.configured_distance:.2g} of their size away from "
        f"{match.configured.name if match.configured else name}, and no known variant fits",
        far,
        near,
        # parts of groups may all be of one size; a KL may be in the reward, and lengths in the advantages
        confidence=Confidence.LIKELY if known else Confidence.POSSIBLE,
    )


def check_source(program: Program) -> Iterator[Verdict]:
    yield from _not_left_out(program)
    yield from _added(program)
    for scaling in scalings(program):
        if not is_advantage(program, scaling.value):
            continue
        fault = _fault(scaling)
        if fault:
            yield likely(
                f"{scaling.value.place.text}: {fault}",
                places=(scaling.value.place,),
                why=(f"line {scaling.spread.place.line}: {scaling.spread.shown} is the spread of the divided numbers",),
            )
        else:
            yield healthy(
                "the rewards are divided by their std after the mean was subtracted", places=(scaling.value.place,)
            )


def _of_tokens(batch: Batch) -> Verdict | None:
    """Advantages that differ within a row although the settings say that rewards do not come step by step."""
    if batch.settings.get("process_rewards") is not False or row_advantages(batch) is not None:
        return None
    in_reward = batch.settings.get("kl_coef") and batch.settings.get("kl_placement") == "reward"
    if in_reward or any(batch.get(name) is not None for name in ("values", "returns", "token_rewards")):
        return None  # a critic, or a KL laid on tokens, tells them apart
    mask_BT, advantages_BT = batch.need("mask", "advantages")
    inside_BT = np.where(mask_BT, advantages_BT, np.nan)
    varied_B = np.fmax.reduce(inside_BT, axis=1) > np.fmin.reduce(inside_BT, axis=1)
    row = int(np.argmax(varied_B))
    return finding(
        f"the advantages of {int(varied_B.sum())} of {len(mask_BT)} rows differ between their tokens, but the "
        "settings say that a row has one reward: every token of it must get the same advantage",
        Fact("largest advantage of the row", float(np.nanmax(inside_BT[row])), None, batch.step, row),
        Fact("smallest", float(np.nanmin(inside_BT[row])), None, batch.step, row),
        confidence=Confidence.LIKELY,
    )


def _not_left_out(program: Program) -> Iterator[Verdict]:
    """rewards - rewards.sum() / (n - 1): a mean of the others that has the own reward in it."""
    for value in program.of("sub"):
        mean = value.argument("other")
        if value.input is None or mean is None:
            continue
        mean = plain(mean)
        total = plain(mean.input) if mean.op == "div" and mean.input is not None else None
        count = mean.argument("other")
        if total is None or count is None or count.op != "sub" or count.setting("other") != 1:
            continue
        if not is_advantage(program, value):  # the expensive question last
            continue
        base = plain(value.input)
        if total.op == "sum" and total.input is not None and plain(total.input) is base:
            yield likely(
                f"`{mean.place.text}` sums all rewards, the own one too, and divides by one less: it is neither the "
                "mean of the others nor of all",
                places=(mean.place,),
                why=(f"line {value.place.line}: it is subtracted from {base.shown}, which is summed in it",),
                fix="Subtract the own reward from the sum: (rewards.sum() - rewards) / (n - 1).",
            )
        elif total.op == "sub" and total.input is not None and plain(total.input).op == "sum":
            yield healthy("the own reward is left out of the mean of the others", places=(value.place,))


def _added(program: Program) -> Iterator[Verdict]:
    """rewards + rewards.mean(): the sign of the baseline."""
    for value in program.of("add"):
        sides = [side for side in (value.input, value.argument("other")) if side is not None and side.op != "mul"]
        if len(sides) != 2:
            continue
        for number, mean in (sides, sides[::-1]):
            base = plain(number)
            if base.op == "mul" or base not in level_of(mean) or not is_advantage(program, value):
                continue
            yield likely(
                f"{value.place.text} adds the mean of {base.shown} to it: a baseline is subtracted",
                places=(value.place,),
                why=(f"line {mean.place.line}: {mean.shown} is the mean of {base.shown}",),
            )


def _fault(scaling: Scaling) -> str:
    if scaling.is_variance:
        return "it divides by the variance, not by the std"
    if level_of(scaling.numerator):
        for user in scaling.value.users:
            if user.op == "sub" and user.argument("other") is scaling.value:
                return "the mean alone is divided by the std: parentheses around the subtraction are missing"
    _, level = uncentred(scaling.numerator)
    if level is None:
        for user in scaling.value.users:
            other = user.argument("other")
            if user.op == "sub" and other is not None and scaling.base in level_of(other):
                return "the mean is subtracted after the division, in the units of the rewards"
    return ""


def edits(verdict: Verdict, spot: Spot, others: Sequence[Spot]) -> Iterator[Edit | None]:
    """Parentheses around the difference, the std for the variance, the own reward taken out of the sum."""
    node, around = spot.node, spot.parent
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Div):
        return
    above, below = spot.child(node.left), spot.child(node.right)
    if isinstance(around.node, ast.BinOp) and isinstance(around.node.op, ast.Sub):
        rewards = around.child(around.node.left if around.node.right is node else node.left)
        mean = above if around.node.right is node else around.child(around.node.right)
        yield around.becomes(f"({rewards.source} - {mean.within(2)}) / {below.within(3)}")
    for part in below.parts(1):
        for call in part.all(ast.Call):
            yield call.renamed("std") if call.name == "var" else None
        for power in part.all(ast.BinOp):
            if isinstance(power.node.op, ast.Pow):
                yield power.becomes(power.child(power.node.left).source)
    if above.name == "sum" and above.receiver is not None and not above.axes:
        yield above.as_part(f"{above.source} - {above.receiver.within(2)}")


def sick() -> Evidence:
    """Without the parentheses around rewards - mean."""
    batch = healthy_batch()
    rewards_PG = batch.arrays["rewards"].reshape(4, 4)
    mean_P1, std_P1 = rewards_PG.mean(axis=1)[:, None], rewards_PG.std(axis=1, ddof=1)[:, None]
    return of_batch(consistent(batch, advantages=(rewards_PG - mean_P1 / (std_P1 + 1e-4)).ravel()))


ILLNESS = illness(
    __name__,
    code="ADV05",
    severity=Severity.HARMFUL,
    summary="the advantages are not computed as the config says",
    fix="Compute advantages as (reward - group mean) / (group std + epsilon), in one place that reads the options.",
    symptoms=(
        "advantages do not match the formula",
        "advantages differ from the config",
    ),
    sick=sick,
    well=lambda: of_batch(healthy_batch()),
    scripts=Scripts(
        with_change("(rewards - rewards.mean(dim=1, keepdim=True)) /", "rewards - rewards.mean(dim=1, keepdim=True) /"),
        GRPO,
    ),
    explains=frozenset({"MET05"}),
)
