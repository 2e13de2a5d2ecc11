"""
## What it checks
The sampler has the weights that the record says: those that are trained. In the first step any sampler has them,
because nothing has been trained yet. If sampler and trainer agree there and differ later, the sampler did not get the
new weights. Without log-probs of the sampler, the law of sampling (LAW01) gives the difference.
In a log it looks for a distance of sampler and trainer that is flat for a while and grows from some step on, or that
grows from the first step on without end.

## Why it hurts
A sampler that stays behind answers like the start of the run. If old log-probs are the current policy's, no ratio shows
it, and the loss treats the answers as its own.

## How to fix it
Push the weights to the sampler after every update, and clear its prefix cache.

    # before: pushed once
    engine.load_weights(model.state_dict())
    # after: in the loop, after optimizer.step()
    engine.load_weights(model.state_dict())
    engine.reset_prefix_cache()

## When it is wrong
Where sampling runs ahead on purpose and the loss corrects for it. Such runs say so in their settings (correction) or in
the versions of their rows, and are not judged.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from assay.doctor.catalogue import illness
from assay.doctor.evidence import Batch, Curves, Evidence
from assay.doctor.examples import edit_batch, healthy_batch, healthy_curves
from assay.doctor.facts.logprobs import completion_places
from assay.doctor.facts.rounding import limit_between_passes
from assay.doctor.facts.trend import trailing
from assay.doctor.laws.sampling import BOUND, Draws, pool, sampled_draws
from assay.record.batch import Array
from assay.verdict import (
    Confidence,
    Fact,
    Missing,
    Severity,
    State,
    Verdict,
    finding,
    healthy,
    not_applicable,
    not_enough_data,
    seen_directly,
)

MOST, FEW_ROWS = 0.9, 3  # of rows and of places; rows that reach a place
TOKENS = 20  # fewer have no mean
GROWTH = 5.0  # times the distance of the first step
SETTLING = 4  # steps in which an asynchronous run reaches its lag
BEFORE = 14  # steps that show what is usual
AFTER = 10  # steps in which it has grown, up to the last
RISEN = 3.0  # times the usual, in log-probs
FLAT = 1.3  # of the later over the earlier half before it grows: more is a slow drift of the arithmetic
DISTANCES = (  # metric, its value if there is no difference, the power that makes it one of log-probs, what is noise
    ("mismatch_mean", 0.0, 1.0, 0.015),
    ("mismatch_probs", 0.0, 1.0, 0.01),
    ("mismatch_factor", 1.0, 1.0, 0.015),
    ("mismatch_kl", 0.0, 0.5, 5e-4),
)
QUIET = 3.0  # standard deviations that a sampler with the right weights leaves in the first step


def check_batches(batches: Sequence[Batch]) -> Verdict:
    if any(batch.settings.get("correction", "off") != "off" for batch in batches):
        return not_applicable("importance weights correct for a sampler that lags")
    first = [batch for batch in batches if batch.step == 1]
    later = [batch for batch in batches if (batch.step or 0) > 1]
    if not first or not later:
        raise Missing("batches of the first step and of later ones")
    return _by_logprobs(first, later) or _by_draws(first, later)


def check_curves(curves: Curves) -> Verdict:
    """A distance of sampler and trainer that stays flat and then grows from some step on: from there on the weights
    do not arrive. A constant one is another matter, and one that falls with the entropy too."""
    verdicts = [_of_distance(curves, *distance) for distance in DISTANCES if curves.has(distance[0])]
    if not verdicts:
        raise Missing("mismatch_mean")
    return next((verdict for verdict in verdicts if verdict.state is State.FINDING), verdicts[0])


def _of_distance(curves: Curves, name: str, nothing: float, power: float, floor: float) -> Verdict:
    """`nothing` is its value without a difference, `power` makes it one of log-probs, below `floor` it is noise."""
    known_N = np.isfinite(curves.column(name))
    distance_N = np.maximum(curves.column(name)[known_N] - nothing, 0.0) ** power
    places_N = np.flatnonzero(known_N)
    if len(distance_N) < BEFORE + AFTER:
        return not_enough_data(f"{name} of {BEFORE + AFTER} steps")
    smooth_N = np.array([np.median(distance_N[max(at - 2, 0) : at + 3]) for at in range(len(distance_N))])
    start_N = distance_N[SETTLING:BEFORE]
    usual = float(np.median(start_N))
    last = float(np.median(distance_N[-AFTER:]))
    noise = max(1.5 * float(np.median(np.abs(start_N - usual))), 0.1 * usual)
    grown = trailing(smooth_N > usual + max(5.0 * noise, 0.5 * usual))
    begin = len(distance_N) - grown
    facts = (
        Fact(f"{name} at first, without what rounding leaves", usual ** (1 / power)),
        Fact(f"{name} at last", last ** (1 / power), nothing + floor),
    )
    is_grown = grown >= AFTER and last > RISEN * usual and last ** (1 / power) > floor
    flat_N = distance_N[SETTLING:begin]
    early, late = (float(np.median(part_N)) if len(part_N) else 0.0 for part_N in np.array_split(flat_N, 2))
    if (verdict := _from_the_start(curves, name, distance_N, floor**power)) is not None:
        return verdict
    if not is_grown or begin < BEFORE or late > FLAT * early:
        return healthy("the distance of sampler and trainer does not begin to grow at some step", *facts)
    is_corrected = curves.settings.get("correction", "off") not in (None, "off", False)
    step = curves.step_at(int(places_N[begin]))
    where = "from some step on" if step is None else f"from about step {step} on"
    return seen_directly(
        f"sampler and trainer agree as usual at first and drift apart {where}, {last / max(usual, 1e-12):.2g} times as "
        "far at last: the weights no longer reach the sampler",
        *facts,
        confidence=Confidence.POSSIBLE if is_corrected and last < GROWTH * usual else Confidence.LIKELY,
    )


def _from_the_start(curves: Curves, name: str, distance_N: Array, floor: float) -> Verdict | None:
    """A finding where sampler and trainer agree in the first step of the run and part from then on, ever further."""
    if not curves.steps[0] <= 1 or len(distance_N) < 4 * AFTER:
        return None
    first = float(distance_N[0])
    quarters = [float(np.median(part_N)) for part_N in np.array_split(distance_N, 4)]
    is_growing = quarters == sorted(quarters) and quarters[3] > 2.5 * quarters[0] and quarters[0] > 1.5 * first
    if not is_growing or quarters[3] <= max(2 * floor, GROWTH * first):
        return None
    is_corrected = curves.settings.get("correction", "off") not in (None, "off", False)
    return seen_directly(
        "sampler and trainer agree in the first step and drift apart from then on, "
        f"{quarters[3] / max(first, 1e-12):.2g} times as far in the last quarter: the sampler keeps the weights it "
        "began with",
        Fact(f"{name} in the first step, as a difference of log-probs", first, None, curves.step_at(0)),
        Fact("the same in the last quarter", quarters[3], GROWTH * first),
        confidence=Confidence.POSSIBLE if is_corrected else Confidence.LIKELY,
    )


def _by_logprobs(first: Sequence[Batch], later: Sequence[Batch]) -> Verdict | None:
    """None where the sampler reported no log-probs, or the model's own are not known."""
    start, ends = [_distance(batch) for batch in first], [_distance(batch) for batch in later]
    known, known_later = [mean for mean in start if mean is not None], [mean for mean in ends if mean is not None]
    if not known or not known_later:
        return None
    limit = limit_between_passes(later[-1].settings)
    facts = (
        Fact("mean |sampler - model| in the first step", known[0], limit, 1),
        Fact("the largest of later steps", max(known_later), limit),
    )
    if known[0] <= limit and max(known_later) > max(limit, GROWTH * known[0]):
        if not any(map(_is_off_everywhere, later)):
            return not_applicable("sampler and model differ in some rows or places only: older weights differ in all")
        return finding(
            "sampler and model agree in the first step and differ later: the sampler stays behind",
            *facts,
            # a ratio against the sampler's own log-probs corrects for a lag: it may be by design
            confidence=Confidence.POSSIBLE if any(map(_takes_the_samplers, later)) else Confidence.LIKELY,
        )
    if known[0] > limit:
        return not_applicable("sampler and model differ from the first step on, before there was anything to push")
    return healthy("the sampler has the weights that are trained, in later steps too", *facts)


def _takes_the_samplers(batch: Batch) -> bool:
    """Whether old is what the sampler reported, number by number."""
    old_BT, sampler_BT, mask_BT = (batch.get(name) for name in ("old_logprobs", "sampler_logprobs", "mask"))
    if old_BT is None or sampler_BT is None or mask_BT is None:
        return False
    return bool(np.array_equal(old_BT[mask_BT], sampler_BT[mask_BT]))


def _is_off_everywhere(batch: Batch) -> bool:
    """Whether nearly every row and every place differs, as it does where other weights sampled."""
    pair = _compared(batch)
    if pair is None:
        return False
    distance_BT, inside_BT = pair
    off_BT = inside_BT & (distance_BT > limit_between_passes(batch.settings) / 10)
    rows_B, places_T = np.asarray(inside_BT.any(axis=1)), np.asarray(inside_BT.sum(axis=0) >= FEW_ROWS)
    off_B, off_T = np.asarray(off_BT.any(axis=1)), np.asarray(off_BT.any(axis=0))
    return bool(places_T.any() and off_B[rows_B].mean() >= MOST and off_T[places_T].mean() >= MOST)


def _distance(batch: Batch) -> float | None:
    """Mean distance between the sampler's log-probs and the model's, of rows that are fresh by their version."""
    pair = _compared(batch)
    if pair is None or pair[1].sum() < TOKENS:
        return None
    distance_BT, inside_BT = pair
    return float(distance_BT[inside_BT].mean())


def _compared(batch: Batch) -> tuple[Array, Array] | None:
    """(distances, which of them count)"""
    sampler_BT = batch.get("sampler_logprobs")
    model_BT = batch.get("plain_logprobs") if batch.get("plain_logprobs") is not None else batch.get("old_logprobs")
    if sampler_BT is None or model_BT is None or batch.numbers.get("update", 0) != 0 or batch.get("tokens") is None:
        return None
    inside_BT = completion_places(batch) & np.isfinite(sampler_BT) & np.isfinite(model_BT)
    versions_B, version = batch.get("sampler_versions"), batch.numbers.get("policy_version")
    if versions_B is not None and version is not None:
        inside_BT = inside_BT & (versions_B == version)[:, None]
    return np.where(inside_BT, np.abs(sampler_BT - model_BT), 0.0), inside_BT


def _by_draws(first: Sequence[Batch], later: Sequence[Batch]) -> Verdict:
    start, end = _pool_steps(first), _pool_steps(later)
    facts = (
        Fact("standard deviations of log p + entropy from 0 in the first step", start.deviations, BOUND, 1),
        Fact("the same over later steps", end.deviations, BOUND),
    )
    if abs(start.deviations) > QUIET:
        return not_applicable("the tokens of the first step are not draws of the model already")
    if end.deviations >= -BOUND:
        return healthy("the tokens of later steps are draws of the weights that are trained", *facts)
    return finding(
        "the tokens of the first step are draws of the model, those of later steps are not: the sampler stays behind",
        *facts,
        confidence=Confidence.LIKELY,
    )


def _pool_steps(batches: Sequence[Batch]) -> Draws:
    """Of all steps that can be judged; raises Missing where none can."""
    pooled: dict[int | None, Draws] = {}
    for batch in batches:
        if batch.numbers.get("update") == 0 and batch.get("plain_variance") is not None:
            pooled.setdefault(batch.step, sampled_draws(batch))
    if sum(len(draws.surprise_N) for draws in pooled.values()) < TOKENS:
        raise Missing("sampler_logprobs or plain_variance of the first step and of later ones")
    return pool(list(pooled.values()))


def _run(behind: float) -> Evidence:
    """Two steps; in the second the sampler's log-probs are off by so much."""
    batch = healthy_batch().only(("tokens", "mask", "lengths", "plain_logprobs"))
    (plain_BT,) = batch.need("plain_logprobs")
    steps = [
        edit_batch(batch, step=step, update=0, sampler_logprobs=plain_BT - off) for step, off in ((1, 0.0), (2, behind))
    ]
    mismatch_N = 0.005 + np.maximum(np.arange(60) - 30, 0) * behind / 100
    return Evidence(tuple(steps), healthy_curves(mismatch_mean=mismatch_N))


def sick() -> Evidence:
    return _run(behind=0.4)


def well() -> Evidence:
    return _run(behind=0.0)


ILLNESS = illness(
    __name__,
    code="LAW09",
    name="law_of_freshness",
    severity=Severity.HARMFUL,
    summary="the sampler does not have the weights that are trained",
    fix="Push the weights to the sampler after every update and clear its cache, or correct by old / sampler.",
    symptoms=("sampler has stale weights", "weights are not synced to the engine"),
    sick=sick,
    well=well,
    explains=frozenset({"LAW01", "SAMP01", "SAMP02", "SAMP06"}),
    explained_by=frozenset({"SYNC", "RAT01", "LAW02", "LAW03"}),
)
