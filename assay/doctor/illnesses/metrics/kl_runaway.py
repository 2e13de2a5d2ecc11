"""
## What it checks
Distances over the run. From the reference (`ref_kl`): above 1 nat a token in the last quarter, and not on the
way back. From the policy that sampled (`old_kl`): single steps of more than half a nat, far above the usual; and a
share of clipped tokens (`clipped_share`) that grows beyond 30 %.

## Why it hurts
A policy 1 nat a token away from its reference writes texts that the reference would hardly ever write: what it knew is
being overwritten. A step of half a nat leaves the region in which the surrogate and its clip mean anything; such steps
often come just before a collapse.

## How to fix it
Check the sign and the gradient of the KL term first: a KL that grows with its coefficient is being maximised. Then
lower the learning rate or the updates per rollout, or raise the coefficient.

    # before: the KL is subtracted from a loss that is minimised
    loss = policy_loss - beta * kl
    # after
    loss = policy_loss + beta * kl

## When it is wrong
Without a KL term a policy may wander far on purpose; a task far away from the reference's habits needs it. A reference
that is renewed every few steps keeps the first distance small whatever happens. A solved task is left alone.
"""

from __future__ import annotations

import numpy as np

from assay.doctor.catalogue import illness
from assay.doctor.evidence import Curves
from assay.doctor.examples import healthy_curves, of_curves
from assay.doctor.facts.trend import STEPS, is_solved, quarter_medians
from assay.verdict import Confidence, Fact, Missing, Severity, Verdict, finding, healthy, seen_directly

LARGE_KL = 1.0  # nats per token from the reference; trained models of the field stay below 0.3
NOWHERE = 5.0  # nats per token: the answers have nothing in common with those of the reference
RETURNING = 0.8  # last quarter / second quarter: less is a policy that comes back
JUMP = 0.5  # nats per token within one step; a sound step makes 0.001
JUMP_RATIO = 20.0  # and this many times the usual
MANY_CLIPPED = 0.3  # of the tokens; sound runs clip a few in a hundred
MOST_CLIPPED = 0.5
GROWN = 5.0  # times the first quarter
JUMPS = 2  # one such step may be an accident


def check_curves(curves: Curves) -> Verdict:
    if not any(map(curves.has, ("ref_kl", "old_kl", "clipped_share"))):
        raise Missing("ref_kl, old_kl or clipped_share")
    facts: list[Fact] = []
    if curves.has("ref_kl"):
        (ref_N,) = curves.need("ref_kl")
        first, second, _, last = quarter_medians(ref_N, "ref_kl")
        facts += [Fact("ref_kl of the first quarter", first), Fact("ref_kl of the last quarter", last, LARGE_KL)]
        if last > LARGE_KL and last > RETURNING * second and not is_solved(curves):
            return seen_directly(
                f"the policy is {last:.2g} nats per token away from its reference ({first:.2g} in the first quarter)",
                *facts,
                confidence=Confidence.LIKELY if last > NOWHERE else Confidence.POSSIBLE,
            )
    if curves.has("old_kl"):
        (old_N,) = curves.need("old_kl")
        worst = int(np.nanargmax(old_N))
        facts.append(Fact("largest old_kl", float(old_N[worst]), JUMP, curves.step_at(worst)))
        usual = float(np.nanmedian(old_N))
        jumps = int(np.sum(old_N > max(JUMP, JUMP_RATIO * usual)))
        if len(curves) >= STEPS and jumps >= JUMPS:
            return finding(
                f"in {jumps} of {len(curves)} steps the policy moved more than {JUMP:g} nats per token away from the "
                f"policy that sampled; the usual is {usual:.2g}",
                *facts,
            )
    if np.isfinite(curves.column("clipped_share")).sum() >= STEPS:
        (clipped_N,) = curves.need("clipped_share")
        first, *_, last = quarter_medians(clipped_N, "clipped_share")
        facts.append(Fact("clipped tokens, last quarter", last, MANY_CLIPPED))
        grown = last > GROWN * first
        # a clip of whole sequences is narrow on purpose, and holds many of them from the start
        if 1 >= last > MANY_CLIPPED and (grown or last > MOST_CLIPPED) and not is_solved(curves):
            return seen_directly(
                f"{last:.0%} of the tokens are clipped in the last quarter, {first:.0%} in the first: the updates of a "
                "rollout batch leave the clip range",
                *facts,
                confidence=Confidence.LIKELY if grown else Confidence.POSSIBLE,
                fix="Lower the learning rate or the updates per rollout; see whether old log-probs are of the weights "
                "that sampled.",
            )
    if not facts:
        raise Missing(f"clipped_share of {STEPS} steps")
    return healthy("the policy stays near its reference and moves in small steps", *facts)


ILLNESS = illness(
    __name__,
    code="MET02",
    severity=Severity.HARMFUL,
    summary="the policy runs away from its reference, or jumps within a step",
    fix="Check the sign and the gradient of the KL term; then lower the learning rate or raise kl_coef.",
    symptoms=(
        "kl explodes",
        "KL keeps growing",
        "KL spikes",
        "KL divergence suddenly increases",
        "policy drifts away",
        "model forgets how to write",
        "model outputs garbage after some steps",
        "policy collapse",
        "loss increases after some steps",
    ),
    sick=lambda: of_curves(healthy_curves(ref_kl=np.geomspace(0.01, 4.0, 60))),
    well=lambda: of_curves(healthy_curves(ref_kl=np.minimum(np.geomspace(0.01, 4.0, 60), 0.4))),
    explains=frozenset({"MET01", "MET05", "MET08"}),
)
