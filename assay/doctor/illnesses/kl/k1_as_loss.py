"""
## What it checks
The KL in the loss is not the plain difference new - ref (k1). The check recognises the estimate by what is computed,
not by its name, and looks only at terms that are differentiated; k1 as part of the reward is right.

## Why it hurts
The mean of new - ref is the KL, but its gradient is not the KL's: d (new - ref) / d weights is the gradient of new,
whose mean over samples of new is 0. Such a term pushes every sampled token down by the same amount, whatever the
reference says: the penalty is noise, the metric looks like a KL, and nothing holds the policy at the reference.

## How to fix it
    # before
    kl = new - ref
    # after
    kl = torch.exp(ref - new) - (ref - new) - 1

## When it is wrong
Where k1 is multiplied by the ratio, or by log-probs with a gradient, its gradient is right; such terms are not judged.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from assay.doctor.catalogue import Scripts, illness, one_per_place
from assay.doctor.examples.scripts import GRPO, with_change
from assay.programs.edits import Spot
from assay.programs.facts.kinds import Kind
from assay.programs.facts.kl.penalties import is_a_penalty, is_also_exponentiated, penalties, policy_and_reference
from assay.programs.graph import Value
from assay.programs.program import Program
from assay.verdict import Edit, Severity, Verdict, finding, healthy


@one_per_place
def check_source(program: Program) -> Iterator[Verdict]:
    for penalty in penalties(program):
        place, difference = penalty.core.place, penalty.difference
        if penalty.has_gradient is not True or not is_a_penalty(program, penalty):
            continue
        if penalty.estimator != "k1":
            yield healthy(f"the KL in the loss is {penalty.estimator}", places=(place,))
            continue
        if difference is None or policy_and_reference(program, difference) is None:
            continue
        if any(_depends_on_the_policy(program, factor) for factor in penalty.term.factors):
            continue
        if is_also_exponentiated(program, difference):
            continue  # the linear part of k3, under a mask that was not recognised
        yield finding(
            f"`{place.text}` is differentiated as a KL, but it is the plain difference of log-probs (k1): "
            "its gradient does not depend on the reference",
            places=(place, penalty.loss.place),
            why=program.kinds.why(penalty.core),
        )


def _depends_on_the_policy(program: Program, factor: Value) -> bool:
    kinds = (Kind.RATIO, Kind.CLIPPED_RATIO, Kind.LOGPROBS, Kind.LOG_RATIO)
    return program.kinds.is_a(factor, *kinds) or program.origins.gradient(factor) is True


def edits(verdict: Verdict, spot: Spot, others: Sequence[Spot]) -> Iterator[Edit | None]:
    """new - ref --> k3 of ref - new."""
    node = spot.node
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        tight = spot.child(node.operand).tight
        yield spot.as_part(f"{tight}.exp() - {tight} - 1")
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
        left, right = spot.child(node.left), spot.child(node.right)
        difference = f"({right.source} - {left.within(2)})"
        yield spot.as_part(f"{difference}.exp() - {difference} - 1")


ILLNESS = illness(
    __name__,
    code="KL03",
    severity=Severity.HARMFUL,
    summary="the KL in the loss is the plain log-difference, whose gradient ignores the reference",
    fix="Differentiate k3 = exp(ref - new) - (ref - new) - 1 or k2 = (new - ref)^2 / 2; keep k1 for the reward.",
    symptoms=(
        "KL is negative",
        "k1 estimator in the loss",
        "KL penalty does nothing",
    ),
    scripts=Scripts(sick=with_change("kl = torch.exp(ref - new) - (ref - new) - 1", "kl = new - ref"), well=GRPO),
)
