"""
## What it checks
In the first update after a rollout the policy being trained is still the policy that sampled. The ratio new / old of
every token must then be 1: the check recomputes exp(new - old) on the loss tokens of such an update.
In a log the mean of new / old must be 1 and old - new about 0 in the first steps; no token is clipped at a rate of 0.

## Why it hurts
Whatever moves the ratio away from 1 before anything was learned (dropout, another precision, another temperature, rows
in another order, padding that leaks into attention) is noise or bias in every later ratio too. Clipping then cuts
tokens for no reason, and the gradient is not that of the sampled data.

## How to fix it
Compute old and new log-probs by the same code: same mode, precision, temperature, padding, micro-batches.

    # before: dropout is active in one pass and not in the other
    old = logprobs(model.eval(), batch)
    new = logprobs(model.train(), batch)
    # after
    model.eval()  # gradients flow in eval mode as well
    with torch.no_grad():
        old = logprobs(model, batch)
    new = logprobs(model, batch)

## When it is wrong
If `old_logprobs` hold the sampling engine's numbers instead of the trainer's, the two differ by the engine's
arithmetic: that is engine_mismatch, and a correction by importance weights may be meant. In bfloat16 a deviation of a
few hundredths can be rounding, of single tokens much more: the limit is wider there, and up to a mean of 0.1 the
finding is only possible.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

import numpy as np

from assay.doctor.catalogue import Scripts, illness, one_per_place
from assay.doctor.evidence import Batch, Curves, Evidence
from assay.doctor.examples import SCORED, edit_batch, healthy_batch, healthy_curves, of_the_loss
from assay.doctor.examples.scripts import GRPO, with_change
from assay.doctor.facts.logprobs import may_be_sampled_by_old, versions_behind
from assay.doctor.facts.rounding import SAME_PASS, dtype_of
from assay.programs.edits import Spot
from assay.programs.facts.ratio import differences, scored_apart, uses
from assay.programs.program import Program
from assay.record.batch import Array
from assay.record.metrics import MEAN_LOW_PRECISION
from assay.verdict import (
    Confidence,
    Edit,
    Fact,
    Missing,
    Severity,
    Verdict,
    finding,
    healthy,
    not_applicable,
    seen_directly,
)

STEPS = 8  # of a log: fewer may be chance
RAISED = 0.005  # of the mean ratio above 1: updates on the same rollouts leave a tenth of it
WIDE = 3.0  # largest ratio, and one over the smallest: a first step moves no token as far
ALWAYS = 0.9  # of the steps
APART = 0.005  # nats per token: updates of a first step leave a tenth of it
MANY_CLIPPED = 0.04  # of the tokens in each of the first steps
CLIPPED = 0.01  # of the tokens: some logs average with a step before or after
SHARE = 0.01  # of the loss tokens: below this a few outliers are off, not the arithmetic


def check_batch(batch: Batch) -> Verdict:
    mask_BT, new_BT, old_BT = batch.need("mask", "new_logprobs", "old_logprobs")
    if not batch.is_on_policy:
        return not_applicable("a later update of its rollout batch: the policy may have moved")
    if not mask_BT.any():
        raise Missing("a loss token")
    if (reason := _old_is_another(batch, mask_BT, old_BT)) is not None:
        return not_applicable(reason)
    limit = SAME_PASS[dtype_of(batch)]
    finite_BT = np.isfinite(new_BT) & np.isfinite(old_BT)
    broken = int((mask_BT & ~finite_BT).sum())
    mask_BT = mask_BT & finite_BT
    distance_BT = np.where(mask_BT, np.abs(new_BT - old_BT), 0.0)
    off_BT = distance_BT > limit
    row, token = np.unravel_index(np.argmax(distance_BT), distance_BT.shape)
    largest, share = float(distance_BT[row, token]), float(off_BT.sum() / max(mask_BT.sum(), 1))
    fact = Fact("largest |new - old|", largest, limit, batch.step, int(row), int(token))
    if not off_BT.any() and broken:
        return not_applicable(f"new or old of {broken} loss tokens is not finite: not_finite (NUM03) speaks of that")
    if not off_BT.any():
        return healthy("the first update has ratio 1", fact)
    sure = Confidence.PROVEN if share > SHARE else Confidence.LIKELY
    if "dtype" not in batch.settings and largest <= SAME_PASS["bfloat16"]:
        sure = Confidence.POSSIBLE  # two passes in bfloat16 may differ by as much
    mean = float(distance_BT.sum() / max(mask_BT.sum(), 1))
    if limit > SAME_PASS["float32"] and mean <= MEAN_LOW_PRECISION:
        sure = Confidence.POSSIBLE  # other shapes round otherwise: a few tokens in a hundred are off by this much
    if may_be_sampled_by_old(batch):
        sure = Confidence.POSSIBLE  # an asynchronous trainer, whose old belongs to the older weights that sampled
    return finding(
        f"the ratio is not 1 before any update: {share:.0%} of the loss tokens are off, by up to {largest:.2g} in "
        "log-prob",
        fact,
        Fact("share of loss tokens off", share),
        confidence=sure,
    )


def check_curves(curves: Curves) -> Verdict:
    if not curves.has("first_ratio_max_deviation"):
        return _by_what_is_logged(curves)
    (deviation_N,) = curves.need("first_ratio_max_deviation")
    limit = SAME_PASS.get(curves.settings.get("dtype", "float32"), SAME_PASS["float32"])
    worst = int(np.nanargmax(deviation_N))
    largest = float(deviation_N[worst])
    fact = Fact("largest |ratio - 1| in a first update", largest, limit, curves.step_at(worst))
    if not largest > limit:
        return healthy("the ratio of every first update is 1", fact)
    return finding(
        f"the first ratio of a step is off by up to {largest:.2g} in {np.sum(deviation_N > limit)} of {len(curves)} "
        "steps",
        fact,
    )


def _by_what_is_logged(curves: Curves) -> Verdict:
    """Of a log that does not keep the first update of a step apart.

    Tokens that old sampled have a mean of new / old of 1, however far new has moved: noise in one of the passes raises
    it, since exp is convex. And where nothing has moved, in a step with a rate of 0 or with one update per rollout
    batch, no ratio may differ from 1."""
    still = _where_nothing_moves(curves)
    if still is not None:
        return still
    mean_N, low_N, high_N = (curves.column(name) for name in ("ratio_mean", "ratio_min", "ratio_max"))
    known_N = np.isfinite(mean_N) & np.isfinite(low_N) & np.isfinite(high_N)
    apart = _apart_from_the_start(curves)
    if apart is None and known_N.sum() < STEPS:
        apart = _clipped_from_the_start(curves)
    if apart is not None:
        return apart
    if known_N.sum() < STEPS:
        raise Missing("first_ratio_max_deviation", f"ratio_mean, ratio_min and ratio_max of {STEPS} steps")
    off_N = (mean_N[known_N] > 1.0 + RAISED) & (low_N[known_N] < 1 / WIDE) & (high_N[known_N] > WIDE)
    first = int(np.flatnonzero(known_N)[0])
    facts = [
        Fact("median of the mean ratio", float(np.median(mean_N[known_N])), 1.0 + RAISED),
        Fact("smallest ratio of the first logged step", float(low_N[first]), 1 / WIDE, curves.step_at(first)),
        Fact("largest ratio of the first logged step", float(high_N[first]), WIDE, curves.step_at(first)),
    ]
    if not off_N[: STEPS // 2].all() or off_N.mean() < ALWAYS:
        return healthy("the mean ratio is 1, as it must be of tokens that old sampled", *facts)
    total = float(np.nanmax(curves.column("ref_kl"))) if curves.has("ref_kl") else np.nan
    spread = 2.0 * (float(np.median(mean_N[known_N])) - 1.0)
    if total < spread / 2:
        facts.append(Fact("largest KL to the reference of the whole run", total, spread / 2))
    return seen_directly(
        f"new / old has a mean of {float(np.median(mean_N[known_N])):.4g} and lies between {low_N[first]:.2g} and "
        f"{high_N[first]:.2g} in the first step already, and so in {off_N.mean():.0%} of the steps: new and old are "
        "not scored alike (dropout, other kernels or precision, another temperature)",
        *facts,
        confidence=Confidence.LIKELY if total < spread / 2 or off_N.all() else Confidence.POSSIBLE,
    )


def _apart_from_the_start(curves: Curves) -> Verdict | None:
    """A finding where old - new has a mean above 0 of one size from the first step to the last: noise does that, while
    the few updates of a first step do not move a policy as far."""
    apart_N = curves.column("old_less_new")
    apart_N = apart_N[np.isfinite(apart_N)]
    if len(apart_N) < 2 * STEPS or not curves.steps[0] <= 1:
        return None
    first, last = float(apart_N[:3].min()), float(np.median(apart_N[-STEPS:]))
    if first <= APART or np.quantile(apart_N, 0.05) <= APART / 2 or last > 3 * first:
        return None
    return seen_directly(
        f"old - new is {first:.2g} per token on average in the first steps of the run already, and {last:.2g} in the "
        "last: new and old are not scored alike (dropout, other kernels or precision, another temperature)",
        Fact("mean of old - new in the first three steps, the smallest", first, APART),
        confidence=Confidence.LIKELY if first > 2 * APART else Confidence.POSSIBLE,
    )


def _clipped_from_the_start(curves: Curves) -> Verdict | None:
    """A finding where the first steps of a run clip as many tokens as the last: updates of one batch move less."""
    clipped_N = curves.column("clipped_share")
    clipped_N = clipped_N[np.isfinite(clipped_N)]
    if len(clipped_N) < 2 * STEPS or not curves.steps[0] <= 1:
        return None
    first, last = float(clipped_N[:3].min()), float(np.median(clipped_N[-STEPS:]))
    if not 1.0 >= first > MANY_CLIPPED or last > 2 * first:
        return None
    return finding(
        f"{first:.0%} of the tokens are clipped in the first steps already, and {last:.0%} in the last: noise between "
        "new and old does that (a narrow clip of whole sequences too)",
        Fact("share of clipped tokens in the first three steps, the smallest", first, MANY_CLIPPED),
    )


def _where_nothing_moves(curves: Curves) -> Verdict | None:
    """A finding where tokens are clipped, or ratios are wide, in steps whose weights do not move; None else."""
    rate_N, clipped_N = curves.column("learning_rate"), curves.column("clipped_share")
    is_single = curves.settings.get("updates_per_rollout") == 1
    still_N = np.isfinite(clipped_N) & (np.full(len(rate_N), is_single) | (rate_N == 0.0))
    clipped_K = clipped_N[still_N]
    if not len(clipped_K) or float(np.median(clipped_K)) <= CLIPPED:
        return None
    first = int(np.flatnonzero(still_N & (clipped_N > CLIPPED))[0])
    why = "each rollout batch gets one update" if is_single else "the learning rate is 0"
    return seen_directly(
        f"{float(np.median(clipped_K)):.1%} of the tokens are clipped in steps in which {why}: new / old is not 1 "
        "although nothing has moved",
        Fact("share of clipped tokens", float(clipped_N[first]), CLIPPED, curves.step_at(first)),
        Fact("such steps", int(still_N.sum())),
        confidence=Confidence.LIKELY,
    )


@one_per_place
def check_source(program: Program) -> Iterator[Verdict]:
    for use in uses(program):
        for difference in differences(program, use.ratio) if use.loss is not None else ():
            place, left, right = difference.value.place, difference.left, difference.right
            if (program.origins.gradient(left), program.origins.gradient(right)) != (True, False):
                continue
            apart = scored_apart(program, difference, use.loss) if difference.is_straight else None
            if apart is None:
                yield healthy("new and old log-probs are scored alike, as far as is seen", places=(place,))
                continue
            what, made = apart
            yield finding(
                f"the ratio of `{place.text}` is not 1 in the first update: {what}",
                places=(place, made.place),
                why=program.kinds.why(right),
            )


def _old_is_another(batch: Batch, mask_BT: Array, old_BT: Array) -> str | None:
    """Why old need not be this policy: asynchronous trainers take the log-probs of the sampler, of older weights."""
    sampler_BT = batch.get("sampler_logprobs")
    if (versions_behind(batch) or 0) > 0 and sampler_BT is None:
        return "rows were sampled by an older version of the weights: old need not be this policy"
    if sampler_BT is not None and mask_BT.any() and np.array_equal(old_BT[mask_BT], sampler_BT[mask_BT]):
        return "old holds the sampling engine's numbers, bit for bit: engine_mismatch (SAMP06) speaks of those"
    return None


def _evidence(spread: float) -> Evidence:
    """New differs from old by noise; what was computed of new is taken away, and the ratio is as it must then be."""
    batch = healthy_batch()
    mask_BT, old_BT = batch.need("mask", "old_logprobs")
    noise_BT = np.where(mask_BT, np.random.default_rng(2).normal(0.0, spread, size=mask_BT.shape), 0.0)
    derived = {**of_the_loss(batch), **dict.fromkeys(SCORED)}
    off = edit_batch(batch, **derived, new_logprobs=old_BT + noise_BT, ratio=np.exp(noise_BT))
    return Evidence((off,), healthy_curves(first_ratio_max_deviation=spread))


def edits(verdict: Verdict, spot: Spot, others: Sequence[Spot]) -> Iterator[Edit | None]:
    """Two calls that compute the sides and differ in one argument: the old side takes that of the new one."""
    if not isinstance(spot.node, ast.BinOp):
        return
    sides = [spot.child(side) for side in (spot.node.left, spot.node.right)]
    names = [side.child(side.node.value) if isinstance(side.node, ast.Subscript) else side for side in sides]
    new, old = (name.definition for name in names)
    if new is None or old is None or not all(isinstance(side.node, ast.Call) for side in (new, old)):
        return
    pairs = list(zip(new.node.args, old.node.args, strict=False))
    differ = [(left, right) for left, right in pairs if ast.dump(left) != ast.dump(right)]
    if new.name == old.name and len(new.node.args) == len(old.node.args) and len(differ) == 1:
        yield old.child(differ[0][1]).becomes(new.child(differ[0][0]).source)


ILLNESS = illness(
    __name__,
    code="RAT01",
    severity=Severity.HARMFUL,
    summary="the ratio new / old is not 1 in the first update after a rollout",
    fix="Compute old and new log-probs by the same code, in the same mode, precision, temperature and padding.",
    symptoms=(
        "ratio is not 1",
        "ratio is not 1 at the first step",
        "old and new log-probs differ before any update",
        "old_log_prob and log_prob differ on policy",
        "clip fraction is not 0 on policy",
        "approx kl is not 0 at the first update",
    ),
    sick=lambda: _evidence(0.02),
    well=lambda: _evidence(0.0001),
    scripts=Scripts(
        sick=with_change("old = score(policy, ids, start)", "old = score(reference, ids, start)"), well=GRPO
    ),
    explains=frozenset({"SAMP06", "LOSS06"}),
)
