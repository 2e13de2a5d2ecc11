"""
## What it checks
In a batch: whether the logged KL, share of clipped tokens and mean reward are what the arrays give. In curves: whether
logged numbers contradict each other (a mean outside its minimum and maximum, a share above 1, a KL or an entropy below
0, more tokens in the loss than were generated). In a script: a label that says KL, share, mean or total over a ratio, a
count, a sum or the last turn's number.

## Why it hurts
The training may be right and the number on the screen is not. Coefficients are then tuned, runs stopped and bugs hunted
by a number that counts padding, has the wrong sign or belongs to one micro-batch of many.

## How to fix it
Log sums and counts, divide once, and count loss tokens only.

    # before: padding counts as tokens with a KL of 0
    metrics["kl"] = kl.mean()
    # after
    metrics["kl"] = (kl * mask).sum() / mask.sum()

## When it is wrong
A trainer may log another quantity under the same name: a KL against the sampling policy, a mean of row means, a reward
before penalties. The first two are tried, and any fit is accepted; the third is not looked at where the KL is taken off
the reward.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from assay.doctor.catalogue import Scripts, illness
from assay.doctor.evidence import Batch, Curves, Evidence
from assay.doctor.evidence.curves import Numbers
from assay.doctor.examples import edit_batch, healthy_batch, healthy_curves
from assay.doctor.examples.scripts import with_change
from assay.doctor.recompute.terms import kl_estimates
from assay.programs.edits import Spot, over_mask
from assay.programs.facts.metrics import check_labels
from assay.programs.program import Program
from assay.record.batch import Array
from assay.verdict import Confidence, Edit, Fact, Missing, Severity, Verdict, finding, healthy

CLOSE_NUMBERS = {"float32": 1e-3, "bfloat16": 5e-2, "float16": 2e-2}  # relative; a sum in another order leaves 1e-6
TINY_NUMBER = 1e-6  # absolute, for numbers that are 0
SLACK = 1e-5  # of a contradiction in curves: rounding of what was logged
SHARES = ("clipped_share", "truncated_share", "zero_variance_share", "tensors_changed_share")
Means = Mapping[str, float]  # a name for each way to compute a number
LIKE_RATIO = (-1.2, -0.8)  # a KL in here, step by step, is -ratio


def check_batch(batch: Batch) -> Verdict:
    logged = [name for name in ("kl_mean", "clipped_share", "reward_mean") if name in batch.numbers]
    if not logged:
        raise Missing("kl_mean, clipped_share or reward_mean")
    rows = len(batch.arrays.get("mask", ()))
    if "mask" in batch.arrays and batch.settings.get("sequences", rows) != rows:
        raise Missing("the rows of the whole update, of which this is a part")
    close = CLOSE_NUMBERS.get(batch.settings.get("dtype", "float32"), CLOSE_NUMBERS["float32"])
    agreed: list[Fact] = []
    lacking: list[str] = []
    for name in logged:
        try:
            right, wrong = {"kl_mean": _kl_means, "clipped_share": _clip_means, "reward_mean": _reward_means}[name](
                batch
            )
        except Missing as missing:
            lacking += missing.names
            continue
        value = float(batch.numbers[name])
        fact = Fact(name, value, next(iter(right.values())), batch.step)
        if any(_fits(value, candidate, close) for candidate in right.values()):
            agreed.append(fact)
            continue
        what, expected = next(iter(right.items()))
        named = next((how for how, candidate in wrong.items() if _fits(value, candidate, close)), "")
        return finding(
            f"the logged {name} is {value:.4g} and {what} is {expected:.4g}"
            + (f"; {wrong[named]:.4g} is {named}" if named else ""),
            fact,
            confidence=Confidence.PROVEN
            if named
            else Confidence.POSSIBLE,  # the arrays may be a part of what was logged
        )
    if not agreed:
        raise Missing(*sorted(set(lacking)))
    return healthy("the logged numbers are what the arrays give", *agreed)


def check_curves(curves: Curves) -> Verdict:
    looked = 0
    for sentence, name, values_N, bad_N in _contradictions(curves):
        looked += 1
        if bad_N.any():
            first = int(np.argmax(bad_N))
            return finding(
                f"{sentence} in {bad_N.sum()} of {len(curves)} steps",
                Fact(name, float(values_N[first]), step=curves.step_at(first)),
            )
    if not looked:
        raise Missing("two metrics that can contradict each other")
    return healthy(f"{looked} relations between metrics hold in all steps", Fact("relations checked", looked))


def check_source(program: Program) -> Iterator[Verdict]:
    """What is printed, logged or named as a KL, a share, a mean or a total, against how it is computed."""
    for metric in check_labels(program):
        if metric.what:
            yield finding(metric.what, places=metric.places)
        else:
            yield healthy(f"{metric.label} is what its name says", places=metric.places)


def _kl_means(batch: Batch) -> tuple[Means, Means]:
    mask_BT, new_BT = batch.need("mask", "new_logprobs")
    if batch.get("kl") is None and batch.get("ref_logprobs") is None:
        raise Missing("kl or ref_logprobs")
    right: dict[str, float] = {}
    wrong: dict[str, float] = {}
    given_BT = batch.get("kl")
    if given_BT is not None:
        right = {"the mean over the loss tokens": _mean(given_BT, mask_BT), "row means": _row_mean(given_BT, mask_BT)}
        wrong["the mean over all positions, padding included"] = float(np.nan_to_num(given_BT).mean())
        wrong["the sum, not the mean"] = float(given_BT[mask_BT].sum())
    for other in ("ref_logprobs", "old_logprobs"):
        if (other_BT := batch.get(other)) is None:
            continue
        with np.errstate(over="ignore", invalid="ignore"):
            d_BT = np.clip(new_BT - other_BT, -20, 20)
            estimates = kl_estimates(d_BT)
            estimates = {"k3": estimates["k3"], **estimates, "k3 reversed": kl_estimates(-d_BT)["k3"]}
            wrong[f"-ratio against {other}, not a log-ratio"] = _mean(-np.exp(d_BT), mask_BT)
        for name, values_BT in estimates.items():
            mean = _mean(values_BT, mask_BT)
            right[f"the mean {name} against {other}"] = mean
            right[f"row means of {name} against {other}"] = _row_mean(values_BT, mask_BT)
            if name == "k1":
                right[f"the mean -k1 against {other}"] = -mean
                continue
            wrong[f"the {name} over all positions, padding included"] = float(np.nan_to_num(values_BT).mean())
            wrong[f"the sum of {name}, not the mean"] = float(values_BT[mask_BT].sum())
            wrong[f"-{name}"] = -mean
    return right, wrong


def _clip_means(batch: Batch) -> tuple[Means, Means]:
    mask_BT, clipped_BT = batch.need("mask", "clipped")
    inside_BT = clipped_BT & mask_BT
    right = {
        "the share of the loss tokens": _mean(inside_BT.astype(float), mask_BT),
        "row means": _row_mean(inside_BT.astype(float), mask_BT),
    }
    ratio = batch.get("ratio")
    if ratio is not None:  # some count every ratio out of range, whatever the sign of its advantage
        ratio_BT = np.broadcast_to(ratio if ratio.ndim == 2 else ratio[:, None], mask_BT.shape)
        low, high = (float(batch.settings.get(name, 0.2)) for name in ("clip_low", "clip_high"))
        right["ratios out of range"] = _mean(((ratio_BT < 1 - low) | (ratio_BT > 1 + high)).astype(float), mask_BT)
    wrong = {
        "their count, not their share": float(inside_BT.sum()),
        "the share of all positions, padding included": float(clipped_BT.mean()),
        "their count by rows": float(inside_BT.sum() / max(len(mask_BT), 1)),
    }
    return right, wrong


def _reward_means(batch: Batch) -> tuple[Means, Means]:
    (rewards_B,) = batch.need("rewards")
    if batch.settings.get("kl_placement") == "reward" and batch.settings.get("kl_coef"):
        raise Missing("rewards without the KL")
    known_B = rewards_B[np.isfinite(rewards_B)]
    if not len(known_B):
        raise Missing("rewards that are numbers")
    wrong = {
        "the mean with unscored rows as 0": float(known_B.sum() / len(rewards_B)),
        "the sum, not the mean": float(known_B.sum()),
        "the best, not the mean": float(known_B.max()),
    }
    groups_B = batch.get("group_ids")
    right = {"the mean of the scored rows": float(known_B.mean())}
    if groups_B is not None:
        groups = [rewards_B[(groups_B == group) & np.isfinite(rewards_B)] for group in np.unique(groups_B)]
        right["the mean of group means"] = float(np.mean([group_B.mean() for group_B in groups if len(group_B)]))
    return right, wrong


def _mean(values_BT: Array, mask_BT: Array) -> float:
    return float(values_BT[mask_BT].sum() / max(mask_BT.sum(), 1))


def _row_mean(values_BT: Array, mask_BT: Array) -> float:
    counts_B = mask_BT.sum(axis=1)
    sums_B = np.where(mask_BT, values_BT, 0.0).sum(axis=1)
    return float((sums_B / np.maximum(counts_B, 1)).sum() / max(len(counts_B), 1))


def _fits(value: float, candidate: float, close: float) -> bool:
    return bool(abs(value - candidate) <= TINY_NUMBER + close * abs(candidate))


def _contradictions(curves: Curves) -> Iterator[tuple[str, str, Numbers, Array]]:
    """(what is wrong, of which metric, its values, in which steps); a NaN contradicts nothing."""
    for name in ("reward", "ratio"):
        if curves.has(f"{name}_mean", f"{name}_min", f"{name}_max"):
            mean_N, low_N, high_N = curves.need(f"{name}_mean", f"{name}_min", f"{name}_max")
            outside_N = (mean_N < low_N - SLACK * (1 + abs(low_N))) | (mean_N > high_N + SLACK * (1 + abs(high_N)))
            yield f"{name}_mean is outside of [{name}_min, {name}_max]", f"{name}_mean", mean_N, outside_N
    for part, whole in (("tokens_in_loss", "tokens_generated"), ("length_mean", "length_max")):
        if curves.has(part, whole):
            part_N, whole_N = curves.need(part, whole)
            yield f"{part} is larger than {whole}", part, part_N, part_N > whole_N * (1 + SLACK)
    for name in SHARES:
        if curves.has(name):
            (share_N,) = curves.need(name)
            yield f"{name} is not between 0 and 1", name, share_N, (share_N < -SLACK) | (share_N > 1 + SLACK)
    for name in ("ref_kl", "old_kl", "entropy"):
        if curves.has(name) and (name == "entropy" or curves.settings.get("kl_estimator", "k3") != "k1"):
            (values_N,) = curves.need(name)
            like_ratio = name != "entropy" and LIKE_RATIO[0] < np.nanmedian(values_N) < LIKE_RATIO[1]
            hint = ", which looks like -ratio," if like_ratio else ""
            yield f"{name} is negative{hint}", name, values_N, values_N < -SLACK


def edits(verdict: Verdict, spot: Spot, others: Sequence[Spot]) -> Iterator[Edit | None]:
    """A sum over tokens divided by their number; a number that is added up, not overwritten."""
    if spot.name == "sum" and spot.receiver is not None:
        yield from over_mask(spot, spot.receiver)


def sick() -> Evidence:
    batch = healthy_batch(update=1)
    padded = float(batch.arrays["kl"].mean())
    return Evidence((edit_batch(batch, kl_mean=padded),), healthy_curves(clipped_share=3.0))


def well() -> Evidence:
    batch = healthy_batch(update=1)
    rows = _row_mean(batch.arrays["kl"], batch.arrays["mask"])
    return Evidence((edit_batch(batch, kl_mean=rows),), healthy_curves(clipped_share=0.9))


WELL_SCRIPT = with_change(
    "        optimizer.step()\n",
    "        optimizer.step()\n        clipped_tokens = (((ratio - 1).abs() > 0.2) * mask).sum()\n"
    '        print({"clip_fraction": (clipped_tokens / mask.sum()).item()})\n',
)
SICK_SCRIPT = WELL_SCRIPT.replace("(clipped_tokens / mask.sum()).item()", "clipped_tokens.item()")

ILLNESS = illness(
    __name__,
    code="MET06",
    severity=Severity.WASTEFUL,
    summary="a logged number is not what its name says",
    fix="Log sums and counts over the loss tokens of the whole step and divide once.",
    symptoms=(
        "logged metric looks wrong",
        "metric is not what it says",
        "clip fraction above 1",
        "negative entropy in the log",
        "reported KL is wrong",
    ),
    sick=sick,
    well=well,
    scripts=Scripts(sick=SICK_SCRIPT, well=WELL_SCRIPT),
)
