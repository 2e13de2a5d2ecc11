"""
## What it checks
The weights that sampled must be the weights that are trained, as they were before the rollout's first update. The check
compares the versions of the two, and the sampler's log-probs with old ones. Where no versions are recorded, it looks
for sampler log-probs that are near old ones but off by far more than rounding, although the trainer's own agree with
the model's plain ones: the picture of older weights. In the curves it looks for a mismatch that is nothing at first and
grows. In a script: a copy of the policy, or an engine of vLLM, that draws tokens and is given no weights, or seldom.

## Why it hurts
A sampler that stopped receiving weights (a failed push, an adapter that is not loaded, a prefix cache of old weights,
an engine that dropped them in sleep mode) answers ever more like the start of the run. If old log-probs are the current
policy's, no ratio sees it: the loss treats the samples as its own. Progress slows, then reverses.

## How to fix it
Check after every push that the sampler holds what was sent, and reset its prefix cache. If sampling is meant to run
ahead (asynchronous training), weigh the tokens by old / sampler, truncated, or use the sampler's log-probs as old.

    # before: failures of the push are swallowed, the cache survives
    try:
        engine.load_weights(model.state_dict())
    except RuntimeError:
        pass
    # after
    engine.load_weights(model.state_dict())
    engine.reset_prefix_cache()
    assert engine.checksum() == checksum(model)

## When it is wrong
Asynchronous runs lag on purpose; with a correction, or with the sampler's log-probs as old, they are healthy and are
not reported. An engine with coarser arithmetic (8-bit weights, another kernel) is off from the first step on: that is
engine_mismatch.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

import numpy as np

from assay.doctor.catalogue import Scripts, illness
from assay.doctor.evidence import Batch, Curves, Evidence
from assay.doctor.examples import edit_batch, healthy_batch, healthy_curves
from assay.doctor.examples.scripts import with_change
from assay.doctor.facts.logprobs import mean_distance, versions_behind
from assay.doctor.facts.rounding import limit_between_passes
from assay.programs.edits import Spot, by_the_policy
from assay.programs.facts.sampling.stale_copies import samplers
from assay.programs.program import Program
from assay.programs.run.draws import behaviour
from assay.programs.run.watched import WatchedRun
from assay.record.batch import Array
from assay.verdict import Confidence, Edit, Fact, Severity, Verdict, finding, healthy, not_applicable, not_enough_data

# of old and sampler: older weights give similar numbers, other tokens or rows do not
LEAST_CORRELATION = 0.8
CERTAIN_LAG = 2  # versions: a lag of one may be another way to count
TOKENS = 20  # fewer have no mean
STEPS = 3  # one before the first update, two after
GROWTH = 10.0  # times the first step's mismatch


def check_batch(batch: Batch) -> Verdict:
    lag = _lag(batch)
    if batch.settings.get("correction", "off") != "off":
        return healthy("importance weights correct for a sampler that lags", *_lag_facts(batch, lag))
    judged_BT = _judged_tokens(batch)
    if judged_BT is None:
        return _by_versions_alone(batch, lag)
    old_BT, sampler_BT = batch.need("old_logprobs", "sampler_logprobs")
    mismatch = mean_distance(old_BT, sampler_BT, judged_BT)
    limit = limit_between_passes(batch.settings)
    facts = (Fact("mean |old - sampler|", mismatch, limit, batch.step), *_lag_facts(batch, lag))
    if mismatch <= limit:
        return healthy("sampler and trainer agree", *facts)
    if lag is not None and lag > 0:
        return finding(
            f"rollouts were sampled by weights up to {lag} version(s) older than the policy, {mismatch:.2g} in log-"
            "prob away on average, and nothing corrects for it: old log-probs are the current policy's",
            *facts,
            confidence=Confidence.PROVEN if "correction" in batch.settings else Confidence.POSSIBLE,
        )
    return _older_by_its_looks(batch, judged_BT, mismatch, facts)


def check_curves(curves: Curves) -> Verdict:
    if curves.settings.get("correction", "off") != "off":
        return not_applicable("importance weights correct for a sampler that lags")
    (mismatch_N,) = curves.need("mismatch_mean")
    known_N = mismatch_N[np.isfinite(mismatch_N)]
    if len(known_N) < STEPS or curves.steps[0] != 1:
        return not_enough_data(f"mismatch_mean of {STEPS} steps, the first of the run among them")
    limit = limit_between_passes(curves.settings)
    first, last = float(known_N[0]), float(np.median(known_N[-max(len(known_N) // 4, 1) :]))
    facts = (Fact("mismatch_mean at the first step", first, step=1), Fact("mismatch_mean at the end", last, limit))
    if first <= limit / GROWTH and last > limit and last > GROWTH * first:
        return finding(
            f"sampler and trainer agree at the first step ({first:.2g}) and drift apart to {last:.2g} in log-prob: the "
            "sampler does not follow the policy",
            *facts,
        )
    return healthy("the sampler follows the policy", *facts)


def check_source(program: Program) -> Iterator[Verdict]:
    for sampler in samplers(program):
        if sampler.what:
            yield finding(sampler.what, places=sampler.places)
        else:
            yield healthy("what samples has the trained weights", places=sampler.places)


def check_run(run: WatchedRun) -> Iterator[Verdict]:
    other = behaviour(run).other
    if other is not None and other.lag is not None and not other.is_reference:
        yield finding(
            f"the tokens were sampled by weights {other.lag} updates older than the policy, and no importance weight "
            "corrects for it: the sampler was not given the new ones",
            places=(other.update.place,),
        )


def _lag(batch: Batch) -> int | None:
    """Versions between the weights that sampled and those before the rollout's first update; None if unknown."""
    return versions_behind(batch) if "update" in batch.numbers else None


def _lag_facts(batch: Batch, lag: int | None) -> tuple[Fact, ...]:
    return () if lag is None else (Fact("versions the sampler is behind", lag, 0, batch.step),)


def _judged_tokens(batch: Batch) -> Array | None:
    """Loss tokens with a log-prob of the sampler and of old; None where there are too few."""
    mask_BT, sampler_BT, old_BT = (batch.get(name) for name in ("mask", "sampler_logprobs", "old_logprobs"))
    if mask_BT is None or sampler_BT is None or old_BT is None:
        return None
    judged_BT: Array = mask_BT & np.isfinite(sampler_BT) & np.isfinite(old_BT)
    return judged_BT if judged_BT.sum() >= TOKENS else None


def _by_versions_alone(batch: Batch, lag: int | None) -> Verdict:
    if lag is None:
        return not_enough_data("sampler_logprobs, sampler_versions")
    if lag < CERTAIN_LAG:
        return healthy("the sampler has the weights of the policy", *_lag_facts(batch, lag))
    return finding(
        f"rollouts were sampled by weights up to {lag} versions older than the policy, and no correction is configured",
        *_lag_facts(batch, lag),
        confidence=Confidence.LIKELY if "correction" in batch.settings else Confidence.POSSIBLE,
    )


def _older_by_its_looks(batch: Batch, judged_BT: Array, mismatch: float, facts: tuple[Fact, ...]) -> Verdict:
    """No version says so. Older weights: the trainer is right, and the sampler similar to it but off."""
    settings, version = batch.settings, batch.numbers.get("policy_version")
    step = batch.step if version is None else version + 1
    if step is None or step <= 1:
        return not_applicable("before the first update no sampler can be stale: engine_mismatch looks for other causes")
    if settings.get("top_k") or settings.get("top_p", 1.0) < 1.0 or settings.get("min_p"):
        return not_applicable("truncated sampling may explain the mismatch")
    plain_BT = batch.get("plain_logprobs")
    if plain_BT is None:
        return not_enough_data("plain_logprobs: whether the trainer's log-probs are right")
    sampler_BT, old_BT = batch.need("sampler_logprobs", "old_logprobs")
    if not mean_distance(old_BT, plain_BT, judged_BT) <= mismatch / GROWTH:
        return not_applicable("the trainer's own log-probs are off: the mismatch is not the sampler's alone")
    raw_BT = batch.get("plain_raw_logprobs")
    if raw_BT is not None and mean_distance(sampler_BT, raw_BT, judged_BT) < mismatch / 2:
        return not_applicable("the sampler's log-probs are those of another temperature")
    alike = _correlation(old_BT[judged_BT], sampler_BT[judged_BT])
    if not alike >= LEAST_CORRELATION:
        return not_applicable("the sampler's log-probs are not those of similar weights: other tokens or rows")
    return finding(
        f"the sampler's log-probs are {mismatch:.2g} off on average while the trainer's are right: as if older weights "
        "had sampled",
        *facts,
        Fact("correlation of old and sampler", alike, LEAST_CORRELATION, batch.step),
        confidence=Confidence.LIKELY if "correction" in batch.settings else Confidence.POSSIBLE,
    )


def _correlation(one_N: Array, other_N: Array) -> float:
    if one_N.std() == 0 or other_N.std() == 0:
        return 0.0
    return float(np.corrcoef(one_N, other_N)[0, 1])


def _sampled_by(version: int, spread: float) -> Batch:
    """The policy before its first update has version 7."""
    batch = healthy_batch()
    mask_BT, old_BT = batch.need("mask", "old_logprobs")
    noise_BT = np.random.default_rng(3).normal(0.0, spread, size=mask_BT.shape)
    sampler_BT = np.where(mask_BT, np.minimum(old_BT + noise_BT, -1e-4), 0.0)
    return edit_batch(batch, sampler_logprobs=sampler_BT, sampler_versions=np.full(len(mask_BT), version))


def _growth(last: float) -> Array:
    return np.linspace(1e-6, last, 60)


WELL_SCRIPT = (
    with_change("from task", "from copy import deepcopy\nfrom task")
    .replace("optimizer = torch", "sampler = deepcopy(policy).eval()\noptimizer = torch")
    .replace(
        "    ids = policy.generate(", "    sampler.load_state_dict(policy.state_dict())\n    ids = sampler.generate("
    )
)


SICK_SCRIPT = WELL_SCRIPT.replace("    sampler.load_state_dict(policy.state_dict())\n", "")


def edits(verdict: Verdict, spot: Spot, others: Sequence[Spot]) -> Iterator[Edit | None]:
    """A copy that is not the reference gets the weights before each rollout; else the policy itself samples."""
    draw = others[0] if others else None
    if draw is None:
        return
    target = spot.statement.node.targets[0] if isinstance(spot.statement.node, ast.Assign) else None
    is_reference = isinstance(target, ast.Name) and "ref" in target.id
    if isinstance(target, ast.Name) and not is_reference and spot.receiver is not None and spot.name == "deepcopy":
        yield draw.with_line_before(f"{target.id}.load_state_dict({spot.receiver.source}.state_dict())")
    yield from by_the_policy(draw, spot)


ILLNESS = illness(
    __name__,
    code="SYNC01",
    severity=Severity.HARMFUL,
    summary="the sampler does not have the weights of the policy",
    fix="Check after every push that the weights arrived and reset the prefix cache, or correct by old / sampler.",
    symptoms=(
        "vLLM uses old weights",
        "weights are not synchronised",
        "sampler has stale weights",
        "rollouts do not improve although the model does",
        "LoRA weights do not reach vLLM",
        "parameter synchronization between training and vLLM",
    ),
    sick=lambda: Evidence(
        (_sampled_by(5, 0.15),), healthy_curves(mismatch_mean=_growth(0.2), mismatch_max=_growth(2.0))
    ),
    well=lambda: Evidence((_sampled_by(7, 1e-6),), healthy_curves()),
    scripts=Scripts(sick=SICK_SCRIPT, well=WELL_SCRIPT),
    explains=frozenset({"SAMP06", "RAT07", "ALGN10"}),
)
