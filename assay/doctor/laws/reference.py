"""
## What it checks
The reference is the policy as it was at the start, frozen. Before the first update its log-probs are the policy's own.
Later they differ from the policy's, and those of a row that was kept from the first look have not changed.

## Why it hurts
A reference that follows the policy gives a KL that holds nothing back; another reference pulls the policy to where
nobody wanted it.

## How to fix it
Copy the model before training, freeze the copy, keep it in eval mode, and give it to no optimizer.

    # before: the copy is made again in every step
    reference = copy.deepcopy(model)
    # after: once, before the loop
    reference = copy.deepcopy(model).eval().requires_grad_(False)

## When it is wrong
A reference that is another model on purpose (a teacher, an earlier checkpoint) differs at the start. One that is
renewed on purpose (reference_every) is not judged.
"""

from __future__ import annotations

import numpy as np

from assay.doctor.catalogue import illness
from assay.doctor.evidence import Batch, Evidence
from assay.doctor.examples import edit_batch, healthy_batch, of_batch
from assay.doctor.facts.logprobs import loss_tokens, mean_distance
from assay.doctor.facts.rounding import limit_between_passes
from assay.record.batch import Array
from assay.verdict import Confidence, Fact, Missing, Severity, Verdict, finding, healthy, not_applicable

TOKENS = 20  # fewer may agree by chance
SETTLED = 3  # steps: a warm-up may begin with a rate of 0
CERTAIN = -1e-3  # a token that the policy is certain of: many policies agree on it to the last bit


def check_batch(batch: Batch) -> Verdict:
    if batch.settings.get("reference_every"):
        return not_applicable("the reference is renewed on purpose")
    if batch.settings.get("kl_coef") == 0 and batch.get("ref_logprobs") is None:
        return not_applicable("no reference: the KL coefficient is 0")
    facts = []
    drift = batch.numbers.get("reference_drift")
    if drift is not None:
        facts.append(Fact("change of the reference's log-probs of one row since the first look", float(drift), None))
        if drift > limit_between_passes(batch.settings):
            return finding("the reference is not frozen: its log-probs of the same row have changed", *facts)
    name = "ref_logprobs" if batch.get("ref_logprobs") is not None else "plain_ref_logprobs"
    policy = "plain_logprobs" if batch.get("plain_logprobs") is not None else "new_logprobs"
    if batch.get(name) is not None and batch.get(policy) is not None and batch.get("mask") is not None:
        verdict = _against_policy(batch, *batch.need(name, policy))
        if verdict is not None:
            return verdict
    if not facts:
        raise Missing("ref_logprobs of the first step", "reference_drift")
    return healthy("the reference gives a row that was kept the log-probs of the first look", *facts)


def _against_policy(batch: Batch, ref_BT: Array, policy_BT: Array) -> Verdict | None:
    """The same at the start, different later; None where neither can be asked of this batch."""
    inside_BT = loss_tokens(batch) & np.isfinite(ref_BT) & np.isfinite(policy_BT)
    if inside_BT.sum() < TOKENS:
        return None
    distance, limit = mean_distance(ref_BT, policy_BT, inside_BT), limit_between_passes(batch.settings)
    fact = Fact("mean |ref - policy|", distance, limit, batch.step)
    if batch.step == 1 and batch.numbers.get("update", 0) == 0:
        if distance <= limit:
            return healthy("before the first update the reference is the policy", fact)
        if _is_scoring_off(batch, inside_BT):
            return None  # LAW03 speaks of that
        return finding(
            f"before the first update the reference is not the policy: {distance:.2g} off per token",
            fact,
            confidence=Confidence.LIKELY,
        )
    unsure_BT = inside_BT & (policy_BT < CERTAIN)
    if (batch.step or 0) <= SETTLED or unsure_BT.sum() < TOKENS or not batch.numbers.get("update_norm"):
        return None
    if np.array_equal(ref_BT[unsure_BT], policy_BT[unsure_BT]):
        return finding("the reference gives the policy's own log-probs, to the last bit: it follows the policy", fact)
    return None


def _is_scoring_off(batch: Batch, inside_BT: Array) -> bool:
    new_BT, plain_BT = batch.get("new_logprobs"), batch.get("plain_logprobs")
    if new_BT is None or plain_BT is None:
        return False
    return mean_distance(new_BT, plain_BT, inside_BT) > limit_between_passes(batch.settings)


def sick() -> Evidence:
    return of_batch(edit_batch(healthy_batch(), reference_drift=0.3))


def well() -> Evidence:
    return of_batch(edit_batch(healthy_batch(), reference_drift=0.0))


ILLNESS = illness(
    __name__,
    code="LAW08",
    name="law_of_the_reference",
    severity=Severity.HARMFUL,
    summary="the reference is not the frozen policy of the start",
    fix="Copy the model once, before training; freeze the copy, keep it in eval mode, and give it to no optimizer.",
    symptoms=("reference model changes", "KL to the reference is wrong from the start"),
    sick=sick,
    well=well,
    explained_by=frozenset({"KL", "OPT", "MODE", "NUM", "ALGN", "LAW03"}),
)
