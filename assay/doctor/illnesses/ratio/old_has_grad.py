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

from collections.abc import Iterator

import numpy as np

from assay.doctor.catalogue import Illness, Scripts
from assay.doctor.examples.scripts import GRPO, changed
from assay.programs.facts.ratio import Difference, differences, is_differentiated, uses, without_views
from assay.programs.graph import Value
from assay.programs.program import Program
from assay.programs.run.origins import KEEPS_NUMBERS, chosen_ids, differences_in
from assay.programs.run.roles import flows
from assay.programs.run.sight import requires_grad
from assay.programs.run.watched import WatchedRun
from assay.programs.walk import peel
from assay.verdict import Confidence, Severity, Verdict, finding, healthy


def check_source(program: Program) -> Iterator[Verdict]:
    told = set()
    for use in uses(program):
        if use.loss is None and not is_differentiated(program, use.ratio):
            continue
        for one in differences(program, use.ratio):
            if one.value.place in told:
                continue
            ends = program.origins.gradient(one.left), program.origins.gradient(one.right)
            if ends == (True, True) and _is_the_policy(program, one):
                told.add(one.value.place)
                calls = program.origins.forwards(one.right)
                yield finding(
                    f"both sides of `{one.value.place.text}` carry a gradient: {one.right.shown} is neither detached "
                    "nor computed under no_grad",
                    confidence=Confidence.LIKELY,
                    places=(one.value.place, *(call.place for call in calls[:1])),
                    why=program.kinds.why(one.right),
                )
            elif ends == (True, False):
                told.add(one.value.place)
                yield healthy("the old log-probs carry no gradient", places=(one.value.place,))


def check_run(run: WatchedRun) -> Iterator[Verdict]:
    """A difference of two log-probs of the same tokens by the policy, with gradients on both sides."""
    views = KEEPS_NUMBERS - {"detach"}
    for _, flow in flows(run):
        looked = False
        for value, one, other in differences_in(flow.values):
            if not (_is_of_policy(run, one) and _is_of_policy(run, other)):
                continue
            looked = True
            if not (requires_grad(one) and requires_grad(other)):
                continue
            mine, theirs = chosen_ids(one, run.origins), chosen_ids(other, run.origins)
            if one is not other and (mine is None or theirs is None or not np.array_equal(mine, theirs)):
                continue
            same_tensor = (
                " (they are the same tensor, so that the ratio is 1 and has no gradient at all)"
                if peel(one, views) is peel(other, views)
                else ""
            )
            yield finding(
                f"both log-probs in `{value.place.text}` carry a gradient: old is not a constant{same_tensor}",
                places=(value.place, other.place),
            )
        if looked:
            yield healthy("old log-probs carry no gradient")


def _is_the_policy(program: Program, one: Difference) -> bool:
    """Whether the denominator was computed by a trained network: in a call of its own, or as the numerator itself."""
    left, right = program.origins.forwards(one.left), program.origins.forwards(one.right)
    if without_views(one.left) is without_views(one.right):
        return True
    if program.origins.is_reference(one.right) is not False or not all(call.op == "forward" for call in right):
        return False
    return not any(call is other for call in left for other in right)


def _is_of_policy(run: WatchedRun, value: Value) -> bool:
    forward = run.origins.pass_of(value)
    if forward is None or forward.adapter_off:
        return False
    model = run.models[forward.model]
    return model.is_trained or (not run.updates and model.trainable > 0)


ILLNESS = Illness(
    code="RAT03",
    name="old_has_grad",
    severity=Severity.FATAL,
    summary="the old log-probs carry a gradient, so the ratio's gradient cancels",
    fix="Compute the old log-probs under torch.no_grad(), or detach them.",
    explanation=__doc__,
    symptoms=(
        "old log-probs are not detached",
        "ratio is 1 and the gradient is zero",
        "gradient cancels",
        "old log-probs carry a gradient",
    ),
    run=check_run,
    source=check_source,
    scripts=Scripts(
        sick=changed(
            "    with torch.no_grad():\n        old = score(policy, ids, start)\n",
            "    old = score(policy, ids, start)\n    with torch.no_grad():\n",
        ),
        well=GRPO,
    ),
    explains=frozenset({"RAT01", "RAT02", "PERF02", "OPT02", "LOSS05"}),
)
