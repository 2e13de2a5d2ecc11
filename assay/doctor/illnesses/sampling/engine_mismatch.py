"""
## What it checks
The sampling engine and the trainer hold the same weights, so they should give a token the same log-prob. The check
measures old - sampler over the loss tokens: its mean and largest size, the KL between the two, how many samples the
importance weights leave (a token, and a whole row at a time), both tails of the weights, and whether the difference of
a row grows with its length. Where the model scored the rows again one by one, it says which side is off, and holds the
trainer's log-probs against the model's own even where there are none of the sampler.

## Why it hurts
The data are not samples of the policy that is trained. Small, zero-mean noise of bfloat16 is harmless. Beyond that the
gradient is biased, the more the longer the rows: runs have collapsed after hundreds of healthy-looking steps.

## How to fix it
First rule out the causes with a name of their own: temperature, truncation, stale weights, positions, other tokens.
What remains is arithmetic: another precision or quantisation, another kernel, a router that picks other experts. Bring
the two closer, or weigh with truncated importance weights.

    # before: the policy that sampled is taken to be the one that the trainer computes
    ratio = torch.exp(new - old)
    loss = -(ratio * advantages)
    # after
    weight = torch.exp(old - sampler).clamp(max=2.0)
    loss = -(weight * torch.exp(new - old) * advantages)

## When it is wrong
Engines that run in bfloat16 under a float32 trainer differ by a few hundredths and are often accepted. Rows of an older
policy differ by design if a correction is on; the check then only reports the numbers. A model that is asked after the
optimizer has stepped is another one: give it to `observe` before.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from assay.doctor.catalogue import illness
from assay.doctor.evidence import Batch, Curves, Evidence
from assay.doctor.examples import B, edit_batch, healthy_batch, healthy_curves
from assay.doctor.facts.logprobs import (
    Gap,
    both_finite,
    gap_between,
    logprobs_before_update,
    may_be_sampled_by_old,
    versions_behind,
)
from assay.record.batch import Array
from assay.record.metrics import LARGEST_FLOAT32, MEAN_LOW_PRECISION, mismatch_limit
from assay.verdict import Confidence, Fact, Missing, Severity, Verdict, finding, healthy, seen_directly

FATAL = 1.0  # nats per token between the trainer and the model's own: numbers of something else
BEYOND_KERNELS = 0.01  # of the mean in float32: TF32 in kernels of another shape leaves a few thousandths
STEPS = 8  # of a curve: fewer have no first and last quarter
GROWN = 5.0  # times the first quarter
CORRECTABLE = 3.0  # times the limit: beyond it, importance weights leave little of the data
ARITHMETIC = 0.04  # of the mean: engines in bfloat16 leave 0.005 to 0.03
UNCORRECTABLE = (
    0.25  # of the mean in the usual step, with weights that are not old: a fault, and no noise to weigh away
)
CUT_OFF = 0.05  # of the mean
OF_ENTROPY = 0.1  # of the entropy in nats: top-p 0.9 leaves about this much
OTHER_DISTANCES = (  # metric, its value without a difference, what is doubtful above that, what arithmetic never leaves
    ("mismatch_probs", 0.0, 0.02, 0.03),
    ("mismatch_factor", 1.0, 0.04, 0.06),
    ("mismatch_kl", 0.0, 0.008, 0.02),
)
ROWS, ROW_TOKENS = 8, 4  # to compare, and tokens that a row must have
ROW_OFF, TIMES = 0.2, 20.0  # mean of a row in nats, and times that of the middle one
SCATTERED = 5.0  # nats at a single token: what is cut off or cooled costs less, a wrong context more
EFFECTIVE = 0.5  # share of the tokens that the importance weights leave: below this half of the data is lost


def check_batch(batch: Batch) -> Verdict:
    foreign = not_the_models_own(batch)
    if foreign is not None:
        return _of_the_trainer(batch, *foreign)
    old = logprobs_before_update(batch, of_the_start=True)
    gap = gap_between(batch, old, "sampler_logprobs")
    inside_BT = both_finite(batch, old, "sampler_logprobs")
    old_BT, sampler_BT = batch.need(old, "sampler_logprobs")
    difference_BT = np.where(inside_BT, old_BT, 0.0) - np.where(inside_BT, sampler_BT, 0.0)
    dtype = batch.settings.get("dtype")
    effective = effective_share(difference_BT[inside_BT])
    facts = _facts(batch, gap, difference_BT, inside_BT)
    if (verdict := _of_few_rows(batch, difference_BT, inside_BT)) is not None:
        return verdict
    if gap.is_rounding(dtype) and (dtype == "float32" or effective >= EFFECTIVE):
        return healthy(f"engine and trainer agree: mean |old - sampler| {gap.mean:.2g}", *facts)
    if _is_older(batch) and _is_corrected(batch.settings.get("correction")):
        return healthy(f"the rows are of an older policy and corrected: mean |old - sampler| {gap.mean:.2g}", *facts)
    message = f"engine and trainer differ by {gap.mean:.2g} per token on average and by up to {gap.largest:.2g}"
    culprit = _culprit(batch, dtype)
    return finding(f"{message}; {culprit}" if culprit else message, *facts, confidence=_confidence(batch, culprit))


def check_curves(curves: Curves) -> Verdict:
    is_float32 = curves.settings.get("dtype") == "float32"
    name, limit = mismatch_limit(curves.settings.get("dtype"))
    if not curves.has(name) and (verdict := _by_other_distance(curves)) is not None:
        return verdict
    (mismatch_N,) = curves.need(name)
    worst = int(np.nanargmax(mismatch_N))
    largest, over = float(mismatch_N[worst]), int(np.sum(mismatch_N > limit))
    what = "largest |old - sampler|" if is_float32 else "mean |old - sampler|"
    facts = (Fact(f"highest {name}", largest, limit, curves.step_at(worst)), Fact("steps above the limit", over))
    is_corrected = _is_corrected(curves.settings.get("correction"))
    verdict = None if is_float32 else _from_the_start(curves)
    if verdict is not None and (not is_corrected or float(np.nanmedian(mismatch_N)) > UNCORRECTABLE):
        return verdict
    if not over:
        return healthy(f"{what} stays below {limit:g}", *facts)
    known_N = curves.column("mismatch_mean")
    known_N = known_N[np.isfinite(known_N)]
    quarter = max(len(known_N) // 4, 1)
    first, last = (
        float(np.median(part_N)) if len(part_N) else 0.0 for part_N in (known_N[:quarter], known_N[-quarter:])
    )
    if len(known_N) >= STEPS and last > max(MEAN_LOW_PRECISION, GROWN * first):
        return seen_directly(
            f"mean |old - sampler| grows from {first:.2g} in the first quarter of the run to {last:.2g} in the last"
            + (": importance weights do not correct a sampler that drifts away" if is_corrected else ""),
            *facts,
            confidence=Confidence.LIKELY if last > 2 * MEAN_LOW_PRECISION else Confidence.POSSIBLE,
        )
    if is_corrected and last <= CORRECTABLE * MEAN_LOW_PRECISION:
        return healthy(f"{what} is corrected by weights", *facts)
    return finding(f"{what} of a step is up to {largest:.2g}, above {limit:g} in {over} of {len(curves)} steps", *facts)


def _of_few_rows(batch: Batch, difference_BT: Array, inside_BT: Array) -> Verdict | None:
    """A finding where some rows are far off and most are not: their mean would hide it."""
    tokens_B = inside_BT.sum(axis=1)
    judged = np.flatnonzero(tokens_B >= ROW_TOKENS)
    if len(judged) < ROWS or _is_older(batch):
        return None
    means_R = np.abs(difference_BT).sum(axis=1)[judged] / tokens_B[judged]
    usual = float(np.median(means_R))
    far = judged[means_R > max(ROW_OFF, TIMES * usual)]
    if not 0 < len(far) <= len(judged) / 4:
        return None
    worst = int(judged[np.argmax(means_R)])
    return finding(
        f"{len(far)} of {len(judged)} rows are scored otherwise than sampled, by {float(means_R.max()):.2g} per token "
        f"in row {worst}, where the rows usually differ by {usual:.2g}: another prompt, other tokens or other weights",
        Fact("mean |old - sampler| of the row", float(means_R.max()), max(ROW_OFF, TIMES * usual), batch.step, worst),
        Fact("rows that are off", len(far), 0),
        confidence=Confidence.LIKELY,
        fix="Look at the rows that are named: how they were scored, behind which prompt, in which part of the batch.",
    )


def _from_the_start(curves: Curves) -> Verdict | None:
    """A finding where the distance is large from the first step on, before any weights could be old, in every step.

    What truncated sampling or another temperature leaves follows the entropy: a policy that is surer has less to cut
    off."""
    mismatch_N, entropy_N = curves.column("mismatch_mean"), curves.column("entropy")
    known_N = np.isfinite(mismatch_N)
    if known_N.sum() < STEPS or not curves.steps[0] <= 1:
        return None
    usual, lowest = float(np.median(mismatch_N[known_N])), float(np.quantile(mismatch_N[known_N], 0.1))
    first = float(np.median(mismatch_N[known_N][:3]))
    if lowest <= ARITHMETIC or first <= ARITHMETIC:
        return None
    facts = [
        Fact("mean |old - sampler| of the first steps", first, ARITHMETIC, curves.step_at(0)),
        Fact("median over the run", usual, ARITHMETIC),
    ]
    share_N = (mismatch_N / entropy_N)[known_N & (entropy_N > 0)]
    if len(share_N):
        facts.append(Fact("mean |old - sampler| as a share of the entropy", float(np.median(share_N)), OF_ENTROPY))
    largest_N = curves.column("mismatch_max")
    spread = float(np.nanmedian(largest_N)) if np.isfinite(largest_N).any() else 0.0
    is_large = first > CUT_OFF and len(share_N) > 0 and float(np.median(share_N)) > OF_ENTROPY
    return seen_directly(
        f"sampler and trainer differ by {first:.2g} per token from the first step on, when no weights are old yet, and "
        "in every step: "
        + (
            "the trainer scores other tokens or another context (padding that is attended to, positions that count "
            "it, a shift), or the engine has a temperature or a penalty of its own"
            if spread > SCATTERED
            else "truncated sampling (top-p, top-k, min-p), another temperature or a penalty of the engine that the "
            "trainer does not count, or an engine of low precision"
        ),
        *facts,
        confidence=Confidence.LIKELY if is_large else Confidence.POSSIBLE,
        fix="Read what the engine really samples with (its defaults and the model's generation_config count too) and "
        "set top_p = 1, top_k off, temperature as in the trainer; else weigh by truncated importance weights.",
    )


def _by_other_distance(curves: Curves) -> Verdict | None:
    """Of logs that hold no difference of log-probs: of probabilities, the mean of exp |difference|, or a KL."""
    for name, nothing, doubtful, large in OTHER_DISTANCES:
        known_N = curves.column(name) - nothing
        known_N = known_N[np.isfinite(known_N)]
        if len(known_N) < STEPS or not curves.steps[0] <= 1 or _is_corrected(curves.settings.get("correction")):
            continue
        lowest, first = float(np.quantile(known_N, 0.1)), float(np.median(known_N[:3]))
        fact = Fact(f"{name} of the first steps", nothing + first, nothing + doubtful, curves.step_at(0))
        if min(lowest, first) <= doubtful:
            return healthy(f"{name} is not large from the first step on", fact)
        return seen_directly(
            f"sampler and trainer differ from the first step on, when no weights are old yet, and in every step "
            f"({name} {nothing + first:.3g}): truncated sampling, another temperature or a penalty of the engine that "
            "the trainer does not count, or an engine of low precision",
            fact,
            confidence=Confidence.LIKELY if min(lowest, first) > large else Confidence.POSSIBLE,
        )
    return None


def not_the_models_own(batch: Batch) -> tuple[str, Gap] | None:
    """Which of the trainer's log-probs differ from the model's plain ones with the same weights, beyond rounding.

    new are of the weights that were asked, in any update; old only in the first. In a later update the model at hand
    may be the one that sampled: then old or the sampler's are its own, and new is not judged.
    """
    dtype, update = batch.settings.get("dtype"), batch.numbers.get("update")
    batch = _with_sampled_tokens_alone(batch)
    new, old = _gap(batch, "new_logprobs"), _gap(batch, "old_logprobs")
    sampler = _gap(batch, "sampler_logprobs")
    raw = _gap(batch, "new_logprobs", "plain_raw_logprobs")
    if raw is not None and raw.is_rounding(dtype) and batch.settings.get("temperature") != 1.0:
        return None  # the model's own, at another temperature than was sampled with
    if update != 0 and any(gap is not None and gap.is_rounding(dtype) for gap in (old, sampler)):
        return None
    if update != 0 and _is_the_samplers(batch):
        return None  # the model may have been asked before the first update, and nothing here is of its weights
    if new is not None and not new.is_rounding(dtype):
        return "new", new
    if update == 0 and old is not None and not old.is_rounding(dtype) and not _is_the_samplers(batch):
        return "old", old
    return None


def _with_sampled_tokens_alone(batch: Batch) -> Batch:
    """Without tokens that were put in place of sampled ones: whose log-probs stand beside them is not known."""
    tokens_BT, sampled_BT, mask_BT = (batch.get(name) for name in ("tokens", "sampled_tokens", "mask"))
    if tokens_BT is None or sampled_BT is None or mask_BT is None or tokens_BT.shape != sampled_BT.shape:
        return batch
    other_BT = mask_BT & (tokens_BT != sampled_BT)
    # what follows such a token was scored behind it
    behind_BT = np.logical_or.accumulate(other_BT, axis=1)
    if not other_BT.any() or not (mask_BT & ~behind_BT).any():
        return batch
    return replace(batch, arrays={**batch.arrays, "mask": mask_BT & ~behind_BT})


def _is_the_samplers(batch: Batch) -> bool:
    """Whether old may hold the numbers of an older policy: asynchronous trainers take those of the sampler."""
    old_BT, sampler_BT = batch.get("old_logprobs"), batch.get("sampler_logprobs")
    if may_be_sampled_by_old(batch):
        return True
    if _is_older(batch) or old_BT is None or sampler_BT is None:
        return _is_older(batch)
    inside_BT = both_finite(batch, "old_logprobs", "sampler_logprobs")
    return bool(np.array_equal(old_BT[inside_BT], sampler_BT[inside_BT]))


def _is_older(batch: Batch) -> bool:
    return (versions_behind(batch) or 0) > 0


def _gap(batch: Batch, one: str, other: str = "plain_logprobs") -> Gap | None:
    try:
        return gap_between(batch, one, other)
    except Missing:
        return None


def _of_the_trainer(batch: Batch, side: str, gap: Gap) -> Verdict:
    what = f"|{side} - the model's own|"
    sure = _confidence_in_the_model(batch, side, gap)
    return finding(
        f"the trainer is off: its {side} log-probs are not the model's own, which, row by row, differ by "
        f"{gap.mean:.2g} per token on average and by up to {gap.largest:.2g}; a missing shift, attention mask, "
        "positions or another context may be why",
        Fact(f"mean {what}", gap.mean, None, batch.step),
        Fact(f"largest {what}", gap.largest, None, batch.step, gap.row, gap.token),
        confidence=sure,
        severity=Severity.FATAL if gap.mean > FATAL and sure is not Confidence.POSSIBLE else Severity.HARMFUL,
        fix="Compute the trainer's log-probs as the model gives them: output t - 1 for token t, behind the real "
        "prompt, with its attention mask and positions, in eval mode, at the sampling temperature.",
    )


def _confidence_in_the_model(batch: Batch, side: str, gap: Gap) -> Confidence:
    """A third party must agree that the weights are the same: else the model may have been asked after the step."""
    dtype = batch.settings.get("dtype")
    others = [_gap(batch, "new_logprobs", "scored_again")] if side == "new" else []
    if batch.numbers.get("update") == 0:
        others += [_gap(batch, name) for name in ("sampler_logprobs", "old_logprobs", "new_logprobs")]
    agreed = any(other is not None and other.is_rounding(dtype) for other in others)
    known = {"old_logprobs", "sampler_logprobs"} <= batch.arrays.keys()  # either alone may be of an older policy
    if batch.numbers.get("update") != 0 and not known:
        return Confidence.POSSIBLE  # whether the model at hand is the one that sampled is not known
    if agreed and gap.mean > BEYOND_KERNELS:
        return Confidence.PROVEN
    return Confidence.LIKELY if agreed or gap.mean > MEAN_LOW_PRECISION else Confidence.POSSIBLE


def _confidence(batch: Batch, culprit: str) -> Confidence:
    """An asynchronous sampler differs by design, and a correction may be on: without a word on either, who knows?"""
    if _is_untrained(batch):
        return Confidence.PROVEN if culprit else Confidence.LIKELY
    behind = versions_behind(batch) if "update" in batch.numbers else None
    is_current = behind is not None and behind <= 0
    return Confidence.LIKELY if is_current or batch.settings.get("correction") == "off" else Confidence.POSSIBLE


def effective_share(log_weights_N: Array) -> float:
    """(sum w)^2 / (N sum w^2): 1 if all weigh the same, 1/N if one outweighs all others.

    >>> round(effective_share(np.log([1.0, 1.0, 2.0])), 4)  # 16 / (3 * 6)
    0.8889
    """
    if not len(log_weights_N):
        return 1.0
    weights_N = np.exp(log_weights_N - log_weights_N.max())
    return float(weights_N.sum() ** 2 / (len(weights_N) * np.square(weights_N).sum()))


def _facts(batch: Batch, gap: Gap, difference_BT: Array, inside_BT: Array) -> tuple[Fact, ...]:
    difference_N = difference_BT[inside_BT]
    weights_N = np.exp(np.clip(difference_N, -50.0, 50.0))
    tokens_B = inside_BT.sum(axis=1)
    sums_B, tokens_B = difference_BT.sum(axis=1)[tokens_B > 0], tokens_B[tokens_B > 0]
    is_float32 = batch.settings.get("dtype") == "float32"
    of_mean, of_largest = (None, LARGEST_FLOAT32) if is_float32 else (MEAN_LOW_PRECISION, None)
    low, high = np.percentile(weights_N, (1, 99))
    facts = [
        Fact("mean |old - sampler|", gap.mean, of_mean, batch.step),
        Fact("largest |old - sampler|", gap.largest, of_largest, batch.step, gap.row, gap.token),
        Fact("KL(sampler || old), mean of sampler - old", float(-difference_N.mean())),
        Fact("KL(sampler || old), k3", float((weights_N - 1.0 - np.log(weights_N)).mean())),
        Fact("effective share of the tokens under old / sampler", effective_share(difference_N), EFFECTIVE),
        Fact("effective share of the rows under the product of it", effective_share(sums_B)),
        Fact("old / sampler, 1st and 99th percentile", f"{low:.4g} and {high:.4g}"),
        Fact("old / sampler, smallest and largest", f"{weights_N.min():.4g} and {weights_N.max():.4g}"),
    ]
    median = float(np.median(tokens_B))
    short_B = tokens_B <= median
    if not short_B.all():
        short, long = float(np.abs(sums_B[short_B]).mean()), float(np.abs(sums_B[~short_B]).mean())
        what = f"mean |log of the row's product|, rows up to {median:g} tokens and longer ones"
        facts.append(Fact(what, f"{short:.4g} and {long:.4g}"))
    return tuple(facts)


def _culprit(batch: Batch, dtype: str | None) -> str:
    """Which side the model itself contradicts; "" if it was not asked, or contradicts both or neither."""
    if batch.get("plain_logprobs") is None or batch.numbers.get("update", 0) > 0:
        return ""  # in a later update the model that is asked is neither's
    trainer, engine = (
        gap_between(batch, side, "plain_logprobs")
        for side in (logprobs_before_update(batch, of_the_start=True), "sampler_logprobs")
    )
    if trainer.is_rounding(dtype) == engine.is_rounding(dtype):
        return ""
    who, off = ("the trainer", trainer) if engine.is_rounding(dtype) else ("the engine", engine)
    return f"{who} is off: the model's plain log-probs are {off.mean:.2g} away on average and agree with the other"


def _is_untrained(batch: Batch) -> bool:
    """Before the first update the engine's weights cannot be old ones: what differs is arithmetic, or a wrong copy."""
    version = batch.numbers.get("policy_version")
    is_first = batch.step == 1 and batch.numbers.get("update") == 0
    return is_first if version is None else version - batch.numbers.get("update", 0) <= 0


def _is_corrected(correction: object) -> bool:
    return correction not in (None, "off", False)


def _noisy(spread: float) -> Evidence:
    batch = healthy_batch(policy_version=0, sampler_versions=[0] * B)
    mask_BT = batch.arrays["mask"]
    noise_BT = np.random.default_rng(3).normal(0.0, spread, size=mask_BT.shape)
    sampler_BT = np.where(mask_BT, np.minimum(batch.arrays["sampler_logprobs"] + noise_BT, 0.0), 0.0)
    curves = healthy_curves(mismatch_mean=spread * math.sqrt(2 / math.pi), mismatch_max=4 * spread)
    return Evidence((edit_batch(batch, sampler_logprobs=sampler_BT),), curves)


ILLNESS = illness(
    __name__,
    code="SAMP06",
    severity=Severity.HARMFUL,
    summary="engine and trainer give the same tokens different log-probs",
    fix="Bring precision, kernels and weights of engine and trainer together, or weigh the loss with truncated "
    "importance weights exp(old - sampler).",
    symptoms=(
        "vLLM log-probs differ from the trainer",
        "importance sampling ratio between sampler and trainer is off",
        "rollout and training mismatch",
        "log-probs of vLLM and transformers do not match",
    ),
    sick=lambda: _noisy(0.02),  # the engine computes in a precision of its own
    well=lambda: _noisy(0.0001),
    explains=frozenset({"RAT07", "SYNC01"}),  # SYNC01 lists this one too: the surer is the cause
)
