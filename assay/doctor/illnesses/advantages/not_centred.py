"""
## What it checks
A baseline is taken off the rewards: within a group some advantages are positive and some negative, with mean 0. The
check finds advantages that are proportional to the raw rewards, or all of one sign where rewards differ.

## Why it hurts
With rewards of 0 and 1 nothing is ever pushed down: wrong answers get advantage 0, and right ones grow only at the
cost of everything else, sampled or not. The variance of the gradient grows with the mean reward, so that the better
the policy, the noisier its updates. Dr. GRPO leaves out the std, never the mean.

## How to fix it
Subtract the mean of the group before anything is divided.

    # before: the option that switches off the std switches off the mean as well
    advantages = rewards if not normalise else (rewards - mean) / (std + eps)
    # after
    advantages = rewards - mean
    if normalise:
        advantages = advantages / (std + eps)

## When it is wrong
Plain REINFORCE without a baseline is unbiased and may be meant; if the settings name no baseline the finding is merely
possible. Advantages of a critic, of process rewards and of parts of groups are left alone.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from assay.doctor.catalogue import Scripts, illness
from assay.doctor.evidence import Batch, Curves, Evidence
from assay.doctor.examples import healthy_batch, healthy_curves
from assay.doctor.examples.scripts import GRPO, with_change
from assay.doctor.recompute.advantages import (
    GroupMeans,
    centring,
    has_whole_groups,
    nearest_advantages,
    other_kind,
    row_advantages,
)
from assay.doctor.recompute.consistent import consistent
from assay.doctor.recompute.credit_space import lines_of
from assay.programs.edits import Spot
from assay.programs.facts.advantages.advantages import level_of, policy_weights, scalings, uncentred, weighs_policy
from assay.programs.facts.advantages.baselines import has_baseline, raw_rewards
from assay.programs.facts.advantages.groups import expansions
from assay.programs.program import Program
from assay.record.batch import Array
from assay.verdict import (
    Confidence,
    Edit,
    Fact,
    Severity,
    Verdict,
    finding,
    healthy,
    likely,
    not_applicable,
    not_enough_data,
    seen_directly,
)

STEPS = 10  # of a curve: fewer may have had one group alone with a signal
PROPORTIONAL = 1e-3  # relative: advantages that are a multiple of the rewards except for rounding


def check_batch(batch: Batch) -> Verdict:
    batch.need("advantages", "group_ids")
    if reason := other_kind(batch):
        return not_applicable(reason)
    found = centring(batch)
    fact = replace(found.worst, step=batch.step)
    if not found.is_off_P.any():
        return healthy(f"a baseline is subtracted in each of {len(found.mean_P)} groups", fact)
    if found.batch_is_centred:
        return not_applicable("the advantages are centred over the batch: see group_scope")
    if not has_whole_groups(batch):
        return not_applicable("the batch holds parts of groups, whose means may differ from 0")
    advantages_B = row_advantages(batch)
    assert advantages_B is not None
    stated = "baseline" in batch.settings
    rewards_B = batch.get("rewards")
    if rewards_B is not None and _is_multiple(advantages_B, rewards_B, found):
        return finding(
            f"no baseline is subtracted: in {len(found.mean_P)} groups the advantages are multiples of the raw "
            f"rewards, with a mean of up to {fact.value:.2g} where it must be 0",
            fact,
            confidence=(Confidence.PROVEN if _is_raw(batch) else Confidence.LIKELY) if stated else Confidence.POSSIBLE,
        )
    if rewards_B is not None and _has_other_level(advantages_B, rewards_B, found):
        return not_applicable("a baseline is subtracted, of another kind than the group mean: see formula")
    varied = [advantages_B[rows] for rows in found.rows_P if np.ptp(advantages_B[rows]) > found.limit]
    if len(varied) > 1 and all((values >= 0).all() or (values <= 0).all() for values in varied):
        return finding(
            f"no baseline is subtracted: in all of {len(varied)} groups the advantages differ and have one sign",
            fact,
            confidence=Confidence.LIKELY if stated else Confidence.POSSIBLE,
        )
    return not_applicable("the advantages have a baseline of another kind: see formula")


def _has_other_level(advantages_B: Array, rewards_B: Array, found: GroupMeans) -> bool:
    """Whether each group's advantages are on a line with its rewards that crosses 0 elsewhere than at a reward of 0."""
    lines = lines_of(rewards_B, advantages_B, found.rows_P, PROPORTIONAL)
    return lines.is_straight and not any(line.is_at(0.0) for line in lines.lines)


def check_source(program: Program) -> Iterator[Verdict]:
    for scaling in scalings(program):
        if not weighs_policy(program, scaling.value) or level_of(scaling.numerator):
            continue
        _, level = uncentred(scaling.numerator)
        later = any(
            user.op == "sub" and user.argument("other") is not None and level_of(user.arguments["other"])
            for user in scaling.value.users
        )
        if level is None and not later and not has_baseline(program, scaling.numerator):
            yield likely(
                f"{scaling.value.place.text} scales {scaling.base.shown} by its std, but no mean is subtracted from it",
                places=(scaling.value.place,),
                why=(f"line {scaling.spread.place.line}: {scaling.spread.shown} is the std of {scaling.base.shown}",),
            )
        elif level is not None:
            yield healthy("the mean is subtracted before the division", places=(scaling.value.place,))
    yield from _raw(program)


def _is_raw(batch: Batch) -> bool:
    """The rewards, or over a std. Other multiples have other causes: of 0 and 1, max(A, 0) is one too."""
    match = nearest_advantages(batch)
    return match.fits and "not centred" in match.variant.name


def _is_multiple(advantages_B: Array, rewards_B: Array, found: GroupMeans) -> bool:
    """A = c r with one c > 0 for each group."""
    for rows in found.rows_P:
        rewards, advantages = rewards_B[rows], advantages_B[rows]
        scored = ~np.isnan(rewards)
        rewards, advantages = rewards[scored], advantages[scored]
        squares = float((rewards**2).sum())
        factor = float((rewards * advantages).sum()) / squares if squares else 0.0
        if np.ptp(np.abs(rewards)) == 0:
            return False  # of rewards +a and -a anything that keeps the sign is a multiple
        if factor <= 0 or np.abs(advantages - factor * rewards).max() > PROPORTIONAL * np.abs(advantages).max():
            return False
    return True


def _raw(program: Program) -> Iterator[Verdict]:
    """Rewards that weigh the gradient as they are, although each prompt has a group of answers to compare."""
    group = next(iter(expansions(program)), None)
    for factor in raw_rewards(program, list(policy_weights(program))):
        if group is not None:
            yield likely(
                f"{factor.shown} weighs the policy's gradient as it is: no baseline is subtracted, although each "
                f"prompt is answered several times",
                places=(factor.place, group.place),
                why=(f"line {group.place.line}: {group.place.text} makes several rows of each prompt",),
            )


def check_curves(curves: Curves) -> Verdict:
    """Of a log that holds the smallest and the largest advantage of a step."""
    lowest_N, highest_N = curves.need("advantage_min", "advantage_max")
    differs_N = highest_N > lowest_N
    one_sided_N = differs_N & ((lowest_N >= 0) | (highest_N <= 0))
    fact = Fact("steps whose advantages are all of one sign", int(one_sided_N.sum()), step=curves.step_at(0))
    if differs_N.sum() < STEPS:
        return not_enough_data(f"advantage_min and advantage_max of {STEPS} steps that differ")
    if one_sided_N.sum() < differs_N.sum():
        return healthy("advantages are of both signs", fact)
    return seen_directly(
        f"in all {differs_N.sum()} steps with different advantages they are of one sign: no baseline is subtracted",
        fact,
    )


def edits(verdict: Verdict, spot: Spot, others: Sequence[Spot]) -> Iterator[Edit | None]:
    """rewards / std --> (rewards - mean) / std, the mean over what the std is taken over."""
    node = spot.node
    is_quotient = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)
    if not is_quotient and not (isinstance(node, ast.Call) and spot.name in ("div", "divide") and node.args):
        return
    base = spot.child(node.left) if is_quotient else spot.receiver
    for part in spot.parts(2):
        for call in part.all(ast.Call):
            if base is not None and call.name == "std" and call.receiver is not None:
                options = [word for word in ("unbiased", "correction", "ddof") if word in call.axes]
                of = call.receiver.source
                mean = call.source.replace(".std(", ".mean(", 1)
                if not options and (of == base.source or isinstance(base.node, ast.Name)):
                    yield (
                        base.as_part(f"{base.within(1)} - {mean}")
                        if is_quotient
                        else base.becomes(f"{base.within(1)} - {mean}")
                    )


def sick() -> Evidence:
    batch = healthy_batch()
    rewards_PG = batch.arrays["rewards"].reshape(4, 4)
    std_P1 = rewards_PG.std(axis=1, ddof=1)[:, None]
    raw = consistent(batch, advantages=(rewards_PG / (std_P1 + 1e-4)).ravel())
    return Evidence((raw,), healthy_curves(advantage_min=0.0, advantage_max=1.7))


ILLNESS = illness(
    __name__,
    code="ADV03",
    severity=Severity.HARMFUL,
    summary="no baseline is subtracted from the rewards",
    fix="Subtract the group's mean reward before dividing by the std; leaving out the std does not leave out the mean.",
    symptoms=(
        "advantages are all positive",
        "no baseline",
        "rewards used without subtracting the mean",
    ),
    sick=sick,
    well=lambda: Evidence((healthy_batch(),), healthy_curves(advantage_min=-1.7, advantage_max=1.7)),
    scripts=Scripts(with_change("(rewards - rewards.mean(dim=1, keepdim=True)) /", "rewards /"), GRPO),
    explains=frozenset({"ADV05", "MET01", "MET05"}),
)
