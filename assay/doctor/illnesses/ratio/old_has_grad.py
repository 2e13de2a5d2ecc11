"""
## What it checks
Of the two log-probs of the ratio, new carries a gradient and old does not. The check follows both back to the calls of
the network: under no_grad, detached, or read out of torch, a value carries none.

## Why it hurts
With old attached, d ratio / d weights is the gradient of new minus the gradient of old. In the first update both are
the same and nothing is learned; later the update is the difference of two gradients. If old was computed once before
several updates, the second backward stops with an error, or keeps the old graph in memory.

## How to fix it
    # before
    old = score(policy, ids)
    # after
    with torch.no_grad():
        old = score(policy, ids)

## When it is wrong
A context manager of your own that switches gradients off is not always seen through: then the check says nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

import numpy as np

from assay.doctor.catalogue import Scripts, illness, one_per_place
from assay.doctor.examples.scripts import GRPO, with_change
from assay.programs.edits import Spot, names_in
from assay.programs.facts.ratio import Difference, differences, is_differentiated, uses, without_views
from assay.programs.graph import Value
from assay.programs.program import Program
from assay.programs.run.kinds import KEEPS_NUMBERS, chosen_ids, differences_in
from assay.programs.run.roles import flows
from assay.programs.run.sight import requires_grad
from assay.programs.run.watched import WatchedRun
from assay.programs.walk import peel
from assay.verdict import Edit, Severity, Verdict, finding, healthy

VIEWS = KEEPS_NUMBERS - {"detach"}


@one_per_place
def check_source(program: Program) -> Iterator[Verdict]:
    for use in uses(program):
        if use.loss is None and not is_differentiated(program, use.ratio):
            continue
        for difference in differences(program, use.ratio):
            place, right = difference.value.place, difference.right
            ends = program.origins.gradient(difference.left), program.origins.gradient(right)
            if ends == (True, True) and _is_the_policy(program, difference):
                calls = program.origins.forwards(right)
                yield finding(
                    f"both sides of `{place.text}` carry a gradient: {right.shown} is neither detached "
                    "nor computed under no_grad",
                    places=(place, *(call.place for call in calls[:1])),
                    why=program.kinds.why(right),
                )
            elif ends == (True, False):
                yield healthy("the old log-probs carry no gradient", places=(place,))


def check_run(run: WatchedRun) -> Iterator[Verdict]:
    """A difference of two log-probs of the same tokens by the policy, with gradients on both sides."""
    for _, flow in flows(run):
        for value, left, right in differences_in(flow.values):
            if not (_is_of_policy(run, left) and _is_of_policy(run, right)):
                continue
            if not (requires_grad(left) and requires_grad(right) and _are_of_same_tokens(run, left, right)):
                yield healthy("old log-probs carry no gradient")
                continue
            is_same = peel(left, VIEWS) is peel(right, VIEWS)
            same = " (they are the same tensor, so that the ratio is 1 and has no gradient at all)" * is_same
            yield finding(
                f"both log-probs in `{value.place.text}` carry a gradient: old is not a constant{same}",
                places=(value.place, right.place),
            )


def _is_the_policy(program: Program, difference: Difference) -> bool:
    """Whether the denominator was computed by a trained network: in a call of its own, or as the numerator itself."""
    left, right = program.origins.forwards(difference.left), program.origins.forwards(difference.right)
    if without_views(difference.left) is without_views(difference.right):
        return True
    if program.origins.is_reference(difference.right) is not False or not all(call.op == "forward" for call in right):
        return False
    return not any(call is other for call in left for other in right)


def _are_of_same_tokens(run: WatchedRun, left: Value, right: Value) -> bool:
    tokens, others = chosen_ids(left, run.kinds), chosen_ids(right, run.kinds)
    return left is right or (tokens is not None and others is not None and np.array_equal(tokens, others))


def _is_of_policy(run: WatchedRun, value: Value) -> bool:
    forward = run.kinds.pass_of(value)
    if forward is None or forward.adapter_off:
        return False
    model = run.models[forward.model]
    return model.is_trained or (not run.updates and model.trainable > 0)


def edits(verdict: Verdict, spot: Spot, others: Sequence[Spot]) -> Iterator[Edit | None]:
    """The old log-probs detached, where they are made or where they are used."""
    if isinstance(spot.node, ast.BinOp):
        old = spot.child(spot.node.right)
        name = old.child(old.node.value) if isinstance(old.node, ast.Subscript) else old
        made = name.definition
        if made is not None and not names_in(name.node) & names_in(spot.node.left):
            yield made.followed_by(".detach()")
        yield old.followed_by(".detach()")


ILLNESS = illness(
    __name__,
    code="RAT03",
    severity=Severity.FATAL,
    summary="the old log-probs carry a gradient, so the ratio's gradient cancels",
    fix="Compute the old log-probs under torch.no_grad(), or detach them.",
    symptoms=(
        "old log-probs are not detached",
        "ratio is 1 and the gradient is zero",
        "gradient cancels",
        "old log-probs carry a gradient",
    ),
    scripts=Scripts(
        sick=with_change(
            "    with torch.no_grad():\n        old = score(policy, ids, start)\n",
            "    old = score(policy, ids, start)\n    with torch.no_grad():\n",
        ),
        well=GRPO,
    ),
    explains=frozenset({"RAT01", "RAT02", "PERF02", "OPT02", "LOSS05"}),
)
