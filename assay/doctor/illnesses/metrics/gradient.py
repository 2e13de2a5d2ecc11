"""
## What it checks
The gradient norm over the run: updates refused because something was not finite; norms of 0 in steps that were
applied, and in every step although rewards differ; norms that are NaN or infinite; norms more than 50 times the usual;
norms always far above the clipping limit.

## Why it hurts
A refused update is a step not taken, and a trainer that does not refuse it has lost its weights. A norm of 0 trains
nothing. A spike moves the weights by one bad batch. Clipping that never lets go has replaced the gradient's size by a
constant: the learning rate alone then decides how far every step goes.

## How to fix it
Not finite: look at the dumped batch for an exp of a large log-ratio, a division by an empty mask, a NaN reward.
Zero: see whether the log-probs are detached. Spikes and constant clipping: find the scale of the loss.

    # before: the exponential of a stale token overflows
    ratio = (new - old).exp()
    # after
    ratio = (new - old).clamp(-20, 20).exp()

## When it is wrong
A solved run has almost no gradient, and a rare wrong answer then looks like a spike: it is left alone. With Adam a
gradient that is always clipped by the same factor does little harm.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from assay.doctor.catalogue import illness
from assay.doctor.evidence import Curves
from assay.doctor.evidence.curves import Flags
from assay.doctor.examples import healthy_curves, of_curves
from assay.doctor.facts.trend import is_solved, known_steps
from assay.verdict import Fact, Missing, Severity, Verdict, finding, healthy, seen_directly

REFUSED = 2  # updates: one may be an accident
REFUSED_SHARE = 0.05  # of all updates
ZERO = 1e-12  # a norm below counts as 0
FEWEST = 3  # steps without any gradient: one or two may have nothing to learn from
MOST_STEPS = 0.5  # of the applied steps
SPIKE = 50.0  # times the median of the norms that are not 0
SPIKES = 2  # one may be an accident
CLIPPED = 10.0  # times clip_norm
ALWAYS = 0.95  # of the steps


def check_curves(curves: Curves) -> Verdict:
    if not curves.has("gradient_norm") and not curves.has("updates_skipped"):
        raise Missing("gradient_norm")
    if curves.has("updates_skipped"):
        (skipped_N,) = curves.need("updates_skipped")
        applied = float(np.nansum(curves.need("updates_applied")[0])) if curves.has("updates_applied") else 0.0
        skipped = float(np.nansum(skipped_N))
        share = skipped / max(skipped + applied, 1.0)
        if skipped >= REFUSED and share > REFUSED_SHARE:
            first = curves.step_at(int(np.argmax(np.nan_to_num(skipped_N) > 0)))
            return finding(
                f"{skipped:.0f} updates ({share:.0%}) were refused because a number in them was not finite",
                Fact("updates refused", int(skipped), REFUSED, first),
                Fact("share of the updates", share, REFUSED_SHARE),
            )
    if (verdict := _never_a_gradient(curves)) is not None:
        return verdict
    fact = Fact("median gradient norm", float(np.median(known_steps(curves, "gradient_norm"))))
    verdict = _not_finite(curves, fact)
    if is_solved(curves):
        return verdict or healthy("the task is solved: a gradient that is small or rare is as it should be", fact)
    verdict = next(_complaints(curves), verdict)
    return healthy("the gradient norm is steady and finite", fact) if verdict is None else verdict


def _never_a_gradient(curves: Curves) -> Verdict | None:
    """In no step so far, although the rewards of some groups differ: nothing of the loss reaches the weights."""
    norm_N = curves.column("gradient_norm")
    known_N = np.isfinite(norm_N)
    signal_N = known_N & _has_signal(curves)
    if signal_N.sum() < FEWEST or (norm_N[known_N] >= ZERO).any():
        return None
    return seen_directly(
        f"the gradient is 0 in all {known_N.sum()} steps, although rewards differ within groups in {signal_N.sum()} of "
        "them: the loss does not reach the weights",
        Fact("steps with a gradient norm of 0", int(known_N.sum()), FEWEST),
        severity=Severity.FATAL,
        fix="Look for detach, no_grad or .item() between the log-probs and the loss, for parameters that do not "
        "require a gradient, and for a zero_grad() between backward() and step().",
    )


def _has_signal(curves: Curves) -> Flags:
    """Steps in which some advantage is known to be other than 0."""
    flat_N, std_N = curves.column("zero_variance_share"), curves.column("reward_std")
    differ_N = np.where(np.isnan(flat_N), std_N > 0, (flat_N < 1) & ~(std_N == 0))
    return np.asarray(differ_N & ~(curves.column("updates_applied") == 0))


def _not_finite(curves: Curves, fact: Fact) -> Verdict | None:
    """Some steps; not_finite (NUM03) speaks of a run that does not come back from it."""
    bad_N = curves.not_finite("gradient_norm")
    if not bad_N.any():
        return None
    count, first = int(bad_N.sum()), curves.step_at(int(np.argmax(bad_N)))
    bad = Fact("steps in which the gradient norm is not finite", count, REFUSED, first)
    if count < REFUSED or (count <= REFUSED_SHARE * len(curves) and curves.settings.get("dtype") == "float16"):
        return healthy(f"the gradient norm is finite in all but {count} of {len(curves)} steps", fact, bad)
    return finding(f"the gradient norm is NaN or infinite in {count} of {len(curves)} steps", bad, fact)


def _complaints(curves: Curves) -> Iterator[Verdict]:
    (norm_N,) = curves.need("gradient_norm")
    applied_N = curves.need("updates_applied")[0] > 0 if curves.has("updates_applied") else np.isfinite(norm_N)
    flat = int(np.sum(applied_N & (norm_N < ZERO)))
    if flat > MOST_STEPS * max(applied_N.sum(), 1):
        yield finding(
            f"the gradient is 0 in {flat} of {applied_N.sum()} steps whose updates were applied",
            Fact("steps with a gradient norm of 0", flat, int(MOST_STEPS * applied_N.sum())),
            severity=Severity.FATAL,
            fix="Nothing reaches the weights: see whether the log-probs are detached or computed under no_grad.",
        )
    limit = float(curves.settings.get("clip_norm") or 0.0)
    moving_N = norm_N[np.isfinite(norm_N) & (norm_N >= ZERO)]
    usual = float(np.median(moving_N)) if len(moving_N) else 0.0
    bound = max(SPIKE * usual, CLIPPED * (limit or 1.0))
    spikes_N = norm_N > bound
    if usual and spikes_N.sum() >= SPIKES:
        worst = int(np.nanargmax(norm_N))
        yield finding(
            f"the gradient norm jumps to more than {SPIKE:g} times its median ({usual:.2g}) in {spikes_N.sum()} of "
            f"{len(norm_N)} steps",
            Fact("largest gradient norm", float(norm_N[worst]), bound, curves.step_at(worst)),
        )
    clipped = float(np.mean(moving_N > CLIPPED * limit)) if limit and len(moving_N) else 0.0
    if clipped > ALWAYS:
        yield finding(
            f"the gradient norm ({usual:.2g}) is above {CLIPPED:g} times clip_norm ({limit:g}) in {clipped:.0%} of the "
            "steps: its size never counts",
            Fact("median gradient norm", usual, CLIPPED * limit),
            Fact("share of the steps far above clip_norm", clipped, ALWAYS),
            severity=Severity.WASTEFUL,
            fix="Find out why the loss is so large (a sum where a mean is meant?), or raise clip_norm.",
        )


ILLNESS = illness(
    __name__,
    code="MET05",
    severity=Severity.HARMFUL,
    summary="the gradient is zero, not finite, spiky or always clipped",
    fix="Not finite: look at the dumped batch for an exp without a bound, an empty mask or a NaN reward.",
    symptoms=(
        "grad norm is 0",
        "gradient norm is 0",
        "grad norm explodes",
        "grad norm is very large",
        "grad norm spikes",
        "grad norm is nan",
        "gradient is zero",
        "loss spikes",
    ),
    sick=lambda: of_curves(healthy_curves(updates_skipped=np.arange(60) % 4 == 3)),
    well=lambda: of_curves(healthy_curves(updates_skipped=np.arange(60) == 30)),
)
