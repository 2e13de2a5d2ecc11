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

from collections.abc import Iterator

import numpy as np

from assay.doctor.catalogue import illness
from assay.doctor.evidence import Batch, Evidence
from assay.doctor.examples import healthy_batch, of_batch
from assay.doctor.facts.logprobs import loss_tokens, may_be_sampled_by_old
from assay.doctor.laws.pattern import describe, worst
from assay.doctor.recompute.consistent import consistent
from assay.programs.run.watched import WatchedRun
from assay.record.batch import Array
from assay.record.metrics import LARGEST_FLOAT32, MEAN_LOW_PRECISION
from assay.verdict import Confidence, Fact, Missing, Severity, Verdict, finding, healthy, not_enough_data

SURE = 0.5  # mean |difference| of a row, in nats, that no rounding leaves
FEW = 4  # tokens: the mean over fewer is chance in 16 bits
HALF = 0.5  # of the rows
CERTAIN = -0.1  # log-prob of a token that all weights alike may give
NEARLY_ALL = 0.95  # of the tokens that are off, by a way of scoring that is named

# what is compared with which plain log-probs, and the words for it
PAIRS = (
    ("new_logprobs", "plain_logprobs", "log-probs in the loss"),
    ("old_logprobs", "plain_logprobs", "log-probs of the policy that sampled"),
    ("ref_logprobs", "plain_ref_logprobs", "log-probs of the reference"),
)


def check_run(run: WatchedRun) -> Iterator[Verdict]:
    """Of a small environment: actions that are scored at the state of another step."""
    moved = [update for update in run.updates if update.states_moved is not None]
    for update in moved:
        count, of, shift = update.states_moved or (0, 0, 0)
        side = "after" if shift > 0 else "before"
        yield finding(
            f"{count} of {of} actions are scored at the state of the step {side}, not at the one they were drawn at",
            Fact("actions at another state", count, 0),
            severity=Severity.FATAL,
            confidence=Confidence.LIKELY,
            places=(update.pieces[0].new.place,),
            fix="Store the state before the environment is stepped, and keep a copy of it beside the action.",
        )
    if not moved and run.updates:
        yield not_enough_data("actions in the order in which they were drawn, and the states of both")


def check_batch(batch: Batch) -> Verdict:
    compared = []
    for name, oracle, words in PAIRS:
        if batch.get(name) is None or batch.get(oracle) is None:
            continue
        is_known = name == "ref_logprobs" or (batch.is_on_policy and _is_fresh(batch))
        if not is_known and not (name == "new_logprobs" and _agree_somewhere(batch)):
            continue  # old, or the plain log-probs, may be those of other weights
        if name == "old_logprobs" and may_be_sampled_by_old(batch):
            continue
        verdict = _compare(batch, name, oracle, words)
        if verdict is not None:
            return verdict
        compared.append(words)
    if not compared:
        if (verdict := _beside_sampler(batch)) is not None:
            return verdict
        raise Missing("new_logprobs", "plain_logprobs")
    return healthy(
        f"the {' and the '.join(compared)} are the model's own, row by row", Fact("rows", len(_inside(batch)))
    )


def _is_fresh(batch: Batch) -> bool:
    """Whether the record says that the weights of this update sampled every row."""
    versions_B, version = batch.get("sampler_versions"), batch.numbers.get("policy_version")
    return versions_B is not None and version is not None and bool((versions_B == version).all())


def _agree_somewhere(batch: Batch) -> bool:
    """Whether the plain log-probs of several whole rows are those in the loss: then they are of the same weights."""
    new_BT, plain_BT = batch.need("new_logprobs", "plain_logprobs")
    inside_BT = _inside(batch) & np.isfinite(new_BT) & np.isfinite(plain_BT)
    off_BT = inside_BT & (np.abs(new_BT - plain_BT) > LARGEST_FLOAT32 / 10)
    same_B = inside_BT.any(axis=1) & ~off_BT.any(axis=1)
    open_BT = inside_BT & (plain_BT < CERTAIN) & same_B[:, None]
    return int(open_BT.any(axis=1).sum()) >= 2 and int(open_BT.sum()) >= FEW


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
    variant = _variant(batch, name, oracle, off_BT, LARGEST_FLOAT32 if exact else MEAN_LOW_PRECISION)
    # log-probs of the past that are off in every row may be those of weights that the record gives a wrong number
    has_right_weights = (
        name == "ref_logprobs"
        or "new_logprobs" in batch.arrays
        or bool((inside_BT.any(axis=1) & ~off_BT.any(axis=1)).any())
    )
    is_sure = has_right_weights and (exact or float(mean_B.max()) > SURE)
    return finding(
        f"the {words} are not the model's at {describe(batch, off_BT, inside_BT)}"
        + (f": they are {variant}" if variant else ""),
        worst("largest difference, in nats", distance_BT, batch.step, LARGEST_FLOAT32 if exact else None),
        Fact("mean difference in the worst row", float(mean_B[row]), None, batch.step, row),
        confidence=Confidence.PROVEN if is_sure else Confidence.LIKELY,
    )


def _variant(batch: Batch, name: str, oracle: str, off_BT: Array, limit: float) -> str:
    """The known way of scoring that gives the tokens that are off the numbers on record; "" where none does."""
    recorded_BT, plain_BT = batch.need(name, oracle)
    if off_BT.sum() < FEW:
        return ""
    behind_B, off_B = batch.get("packed_behind"), np.asarray(off_BT.any(axis=1))
    if behind_B is not None and not off_B[behind_B == 0].any() and off_B[behind_B > 0].mean() > HALF:
        return "right only in the first row of each packed line: the others attend to the rows before them"
    for words, scored_BT in _known_ways(batch, name, plain_BT, recorded_BT):
        apart_N = np.abs(scored_BT - recorded_BT)[off_BT]
        known_N = np.isfinite(apart_N)
        if known_N.mean() > HALF and np.mean(apart_N[known_N] <= limit) >= NEARLY_ALL:
            return words
    return ""


def _known_ways(batch: Batch, name: str, plain_BT: Array, recorded_BT: Array) -> Iterator[tuple[str, Array]]:
    """(in words, log-probs [B, T]), the simplest first; NaN where one gives none."""
    temperature = float(batch.settings.get("temperature") or 1.0)
    raw_BT, ref_BT = batch.get("plain_raw_logprobs"), batch.get("plain_ref_logprobs")
    if temperature != 1.0:
        if raw_BT is not None and name != "ref_logprobs":
            yield f"those of temperature 1, and sampling was at {temperature:.3g}", raw_BT
            yield "those of temperature 1, divided by the temperature behind the softmax", raw_BT / temperature
        yield "divided by the temperature once more, behind the softmax", plain_BT / temperature
        yield "multiplied by the temperature behind the softmax", plain_BT * temperature
    for by, words in ((1, "those of the token before"), (-1, "those of the token behind")):
        shifted_BT = np.full(plain_BT.shape, np.nan)
        shifted_BT[:, max(by, 0) : plain_BT.shape[1] + min(by, 0)] = plain_BT[:, max(-by, 0) : plain_BT.shape[1] - by]
        yield f"{words}: shifted by one", shifted_BT
    if ref_BT is not None and name != "ref_logprobs":
        yield "those of the reference", ref_BT
    if name == "ref_logprobs" and batch.get("plain_logprobs") is not None:
        yield "those of the policy itself", batch.need("plain_logprobs")[0]
    yield "the negative of them", -plain_BT
    yield "probabilities, not log-probs", np.exp(plain_BT)
    yield "0", np.zeros(plain_BT.shape)
    yield "those of another row", _of_other_rows(batch, plain_BT, recorded_BT)


def _of_other_rows(batch: Batch, plain_BT: Array, recorded_BT: Array) -> Array:
    """Of each row the plain log-probs of the other row that come nearest to those on record."""
    inside_BT = _inside(batch)
    found_BT = np.full(plain_BT.shape, np.nan)
    for row in range(len(plain_BT)):
        inside_T = inside_BT[row]
        distance_B = np.nanmean(np.abs(plain_BT[:, inside_T] - recorded_BT[row, inside_T]), axis=1)
        distance_B[row] = np.inf
        if inside_T.any() and np.isfinite(distance_B).any():
            found_BT[row] = plain_BT[int(np.nanargmin(distance_B))]
    return found_BT


def _beside_sampler(batch: Batch) -> Verdict | None:
    """Where nobody asked the model: new beside the engine's own log-probs. Rows that are those of the engine to the
    last bits show that both have the same weights, so the others were scored in another way."""
    new_BT, sampler_BT = batch.get("new_logprobs"), batch.get("sampler_logprobs")
    if new_BT is None or sampler_BT is None or not batch.is_on_policy or batch.settings.get("dtype") != "float32":
        return None
    versions_B = batch.get("sampler_versions")
    if versions_B is not None and len(set(versions_B.tolist())) > 1:
        return None
    inside_BT = _inside(batch) & np.isfinite(new_BT) & np.isfinite(sampler_BT)
    distance_BT = np.where(inside_BT, np.abs(new_BT - sampler_BT), 0.0)
    off_B = np.asarray((distance_BT > LARGEST_FLOAT32).any(axis=1))
    mostly_B = (distance_BT > LARGEST_FLOAT32).sum(axis=1) > inside_BT.sum(axis=1) / 2
    known_B = np.asarray(inside_BT.any(axis=1))
    same = int((known_B & ~off_B).sum())
    if not off_B.any() or same < max(known_B.sum() / 2, FEW) or not mostly_B[off_B].all():
        return None
    numbers = np.flatnonzero(off_B)
    is_block = len(numbers) > 1 and np.ptp(numbers) == len(numbers) - 1 and {0, len(off_B) - 1} & set(numbers.tolist())
    return finding(
        f"the log-probs in the loss are the sampler's own in {same} of {int(known_B.sum())} rows, to the last bits, "
        f"and others at {describe(batch, off_B[:, None] & inside_BT, inside_BT)}: these are scored in another way, "
        "as by a temperature that their chunk does not get",
        worst("largest difference, in nats", distance_BT, batch.step, LARGEST_FLOAT32),
        confidence=Confidence.LIKELY if is_block else Confidence.POSSIBLE,
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
    explains=frozenset({"LAW01", "LAW05", "LAW09", "RAT01", "SAMP06"}),
    explained_by=frozenset({"ALGN", "SAMP", "MODE", "NUM", "KL05", "RAT02", "RAT03", "RAT05", "SYNC", "MASK", "LAW02"}),
)
