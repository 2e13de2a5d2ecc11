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

from assay.doctor.catalogue import Illness, Scripts
from assay.doctor.example_script import GRPO, changed
from assay.doctor.running import seen_in_run
from assay.programs.facts.ratio import Difference, differences, is_differentiated, uses, without_views
from assay.programs.program import Program
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


def _is_the_policy(program: Program, one: Difference) -> bool:
    """Whether the denominator was computed by a trained network: in a call of its own, or as the numerator itself."""
    left, right = program.origins.forwards(one.left), program.origins.forwards(one.right)
    if without_views(one.left) is without_views(one.right):
        return True
    if program.origins.is_reference(one.right) is not False or not all(call.op == "forward" for call in right):
        return False
    return not any(call is other for call in left for other in right)


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
    trace=seen_in_run("RAT03"),
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
