"""
## What it checks
The log-probs in the loss are the model's own: of these tokens, after this prompt, at this temperature. The doctor
holds them against plain log-probs (one row at a time, no padding, float32) token by token. The worst row decides.

## Why it hurts
A log-prob of another token or another context has a gradient that trains something else. One bad row of many is easily
lost in a mean and still trains.

## How to fix it
Compare both for the row that is named: the ids given to the model, the attention mask, the positions, the shift by one
between logits and tokens, the temperature.

    # before: the logits of the last token predict nothing, those of the first answer token are missing
    logprobs = log_softmax(logits[:, prompt:], -1).gather(-1, ids[:, prompt:, None])
    # after
    logprobs = log_softmax(logits[:, prompt - 1 : -1], -1).gather(-1, ids[:, prompt:, None])

## When it is wrong
In 16 bits single tokens differ by chance. The check then needs a whole row, or many tokens, that are off.
"""

from __future__ import annotations

import numpy as np

from assay.doctor.catalogue import illness
from assay.doctor.evidence import Batch, Evidence
from assay.doctor.examples import healthy_batch, of_batch
from assay.doctor.facts.logprobs import loss_tokens, may_be_sampled_by_old
from assay.doctor.laws.pattern import describe, worst
from assay.doctor.recompute.consistent import consistent
from assay.record.batch import Array
from assay.record.metrics import LARGEST_FLOAT32, MEAN_LOW_PRECISION
from assay.verdict import Confidence, Fact, Missing, Severity, Verdict, finding, healthy

SURE = 0.5  # mean |difference| of a row, in nats, that no rounding leaves
FEW = 4  # tokens: the mean over fewer is chance in 16 bits

# what is compared with which plain log-probs, and the words for it
PAIRS = (
    ("new_logprobs", "plain_logprobs", "log-probs in the loss"),
    ("old_logprobs", "plain_logprobs", "log-probs of the policy that sampled"),
    ("ref_logprobs", "plain_ref_logprobs", "log-probs of the reference"),
)


def check_batch(batch: Batch) -> Verdict:
    compared = []
    for name, oracle, words in PAIRS:
        if batch.get(name) is None or batch.get(oracle) is None:
            continue
        if name != "ref_logprobs" and not (batch.is_on_policy and _is_fresh(batch)):
            continue  # old, or the plain log-probs, may be those of other weights
        if name == "old_logprobs" and may_be_sampled_by_old(batch):
            continue
        verdict = _compare(batch, name, oracle, words)
        if verdict is not None:
            return verdict
        compared.append(words)
    if not compared:
        raise Missing("new_logprobs", "plain_logprobs")
    return healthy(
        f"the {' and the '.join(compared)} are the model's own, row by row", Fact("rows", len(_inside(batch)))
    )


def _is_fresh(batch: Batch) -> bool:
    """Whether the record says that the weights of this update sampled every row."""
    versions_B, version = batch.get("sampler_versions"), batch.numbers.get("policy_version")
    return versions_B is not None and version is not None and bool((versions_B == version).all())


def _inside(batch: Batch) -> Array:
    """Tokens that can be compared: in the loss, and those that were sampled."""
    inside_BT = loss_tokens(batch)
    tokens_BT, sampled_BT = batch.get("tokens"), batch.get("sampled_tokens")
    if tokens_BT is not None and sampled_BT is not None:
        inside_BT = inside_BT & (tokens_BT == sampled_BT)  # LAW02 speaks of the others
    return inside_BT


def _compare(batch: Batch, name: str, oracle: str, words: str) -> Verdict | None:
    recorded_BT, plain_BT = batch.need(name, oracle)
    inside_BT = _inside(batch) & np.isfinite(recorded_BT) & np.isfinite(plain_BT)
    if not inside_BT.any():
        raise Missing(f"{name} of any loss token")
    distance_BT = np.where(inside_BT, np.abs(recorded_BT - plain_BT), 0.0)
    exact = batch.settings.get("dtype") == "float32"
    tokens_B = inside_BT.sum(axis=1)
    mean_B = distance_BT.sum(axis=1) / np.maximum(tokens_B, 1)
    if exact:
        off_BT = distance_BT > LARGEST_FLOAT32
    else:
        off_BT = inside_BT & ((mean_B > MEAN_LOW_PRECISION) & (tokens_B >= FEW))[:, None]
    if not off_BT.any():
        return None
    row = int(np.argmax(mean_B))
    # log-probs of the past that are off in every row may be those of weights that the record gives a wrong number
    has_right_weights = (
        name == "ref_logprobs"
        or "new_logprobs" in batch.arrays
        or bool((inside_BT.any(axis=1) & ~off_BT.any(axis=1)).any())
    )
    is_sure = has_right_weights and (exact or float(mean_B.max()) > SURE)
    return finding(
        f"the {words} are not the model's at {describe(batch, off_BT, inside_BT)}",
        worst("largest difference, in nats", distance_BT, batch.step, LARGEST_FLOAT32 if exact else None),
        Fact("mean difference in the worst row", float(mean_B[row]), None, batch.step, row),
        confidence=Confidence.PROVEN if is_sure else Confidence.LIKELY,
    )


def sick() -> Evidence:
    """One row of many is off by one position."""
    batch = healthy_batch()
    shifted = {}
    for name in ("new_logprobs", "old_logprobs"):
        values_BT = batch.arrays[name].copy()
        values_BT[2] = np.roll(values_BT[2], 1)
        shifted[name] = values_BT
    return of_batch(consistent(batch, **shifted))


def well() -> Evidence:
    return of_batch(healthy_batch())


ILLNESS = illness(
    __name__,
    code="LAW03",
    name="law_of_scoring",
    severity=Severity.HARMFUL,
    summary="log-probs in the loss are not the model's",
    fix="Score the row that is named by hand: the same ids, no padding, eval mode, and the sampling temperature.",
    symptoms=("log-probs do not match the model", "logprobs differ from a manual forward pass"),
    sick=sick,
    well=well,
    explains=frozenset({"LAW01", "LAW05"}),
    explained_by=frozenset({"ALGN", "SAMP", "MODE", "NUM", "KL05", "RAT", "SYNC", "MASK", "LAW02"}),
)
