"""
## What it checks
Whatever the loss is made of must be a number: advantages, log-probs of old, reference and policy, ratio and KL, on the
tokens in the loss; then the loss, its gradients and their norm. If one of them is NaN or infinite, the check names the
first in the order in which they are computed, with its row and token: what comes later only inherits it.

In metric curves it looks for a loss or a gradient norm that is NaN from some step on, and for updates that were
skipped because something was not finite, in many steps or in all of the last ones.

## Why it hurts
One NaN makes the mean a NaN, the mean makes every gradient one, and one step of the optimizer makes every weight one.
Nothing is learned from then on. A trainer that skips such updates lives, and learns from none of them.

## How to fix it
Go to the place that is named, and look at what it was computed from. Advantages: a std of 0, an unscored reward.
Log-probs: an overflow in float16, a row of attention that is masked as a whole, weights that are NaN already. Ratio:
exp of a large difference. Gradients alone: sqrt or log at 0, exp or a division before the mask.

    # before: 0 / 0 where all rewards of a group are equal
    advantages = (rewards - rewards.mean()) / rewards.std()
    # after
    advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-4)

## When it is wrong
NaN under the mask, NaN rewards (not scored) and NaN log-probs of the sampler (not reported) are not findings. If the
loss and its gradient are finite all the same, the NaN was replaced or left out on its way: the finding is only likely
then. A scaler of float16 gradients skips a few updates on purpose while it finds its scale; the curves allow for that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from assay.doctor.catalogue import illness
from assay.doctor.evidence import Batch, Curves, Evidence
from assay.doctor.examples import SCORED, edit_batch, healthy_batch, healthy_curves, of_the_loss
from assay.doctor.facts.trend import trailing
from assay.programs.run.watched import WatchedRun
from assay.record.batch import Array
from assay.verdict import Confidence, Fact, Missing, Severity, Verdict, finding, healthy, seen_directly

INPUTS = ("advantages", "old_logprobs", "ref_logprobs", "new_logprobs")
MADE = ("ratio", "kl", "token_loss", "policy_loss", "kl_loss", "loss", "gradients", "gradient_norm")  # in this order
OF_REFERENCE = ("ref_logprobs", "kl", "kl_loss")
OUTCOMES = ("loss", "gradient_norm")
SHARE = 0.5  # of the steps with a skipped update; gradient (MET05) speaks of fewer
STEPS = 3  # with one; fewer at the end may be an accident that the next step survives
OF_CURVES = ("loss", "policy_loss", "gradient_norm", "entropy", "ref_kl", "ratio_mean", "reward_mean")
OF_GRADIENT_ALONE = 10  # steps


def check_batch(batch: Batch) -> Verdict:
    looked, broken = [], []
    for name, value in _values(batch):
        looked.append(name)
        if not np.isfinite(value).all():
            broken.append(name)
    if not looked:
        raise Missing("loss" if batch.get("mask") is not None else "mask, loss")
    if not broken:
        return healthy("everything that the loss is made of is finite", Fact("fields looked at", len(looked)))
    later = f"; so are {', '.join(broken[1:])}" if broken[1:] else ""
    survived = _is_outcome_finite(batch)
    replaced = "; the loss is finite all the same, so they were replaced on their way" if survived else ""
    count, fact = _place(batch, broken[0])
    return finding(
        f"{broken[0]} {count} not finite, the first in the order of computation{later}{replaced}",
        fact,
        *_rewards(batch, broken[0]),
        confidence=Confidence.LIKELY if survived else Confidence.PROVEN,
        severity=Severity.HARMFUL if survived else None,
    )


def check_curves(curves: Curves) -> Verdict:
    dead = _dead_since(curves)
    if dead is not None:
        names, index = dead
        return seen_directly(
            f"{_join(names)} {'is' if len(names) == 1 else 'are'} NaN or infinite from "
            f"{'the first step' if index == 0 else _step(curves, index)} on, in all {len(curves) - index} steps since "
            "then: the weights are lost, and nothing after that is training",
            Fact("steps that are not finite, to the end", len(curves) - index, STEPS, curves.step_at(index)),
            confidence=Confidence.PROVEN if {"loss", "policy_loss"} & {*names} else Confidence.LIKELY,
            fix="Go back to the last checkpoint before it; look at the batch of that step for an exp without a bound, "
            "a division by 0 (an empty mask, a std of 0) or a NaN reward, and refuse updates that are not finite.",
        )
    bad = {name: flags_N for name in OF_CURVES if (flags_N := curves.not_finite(name)).any()}
    if not curves.has("updates_skipped"):
        if not bad:
            return _looked_at(curves)
        name = max(bad, key=lambda name: int(bad[name].sum()))
        count, first = int(bad[name].sum()), int(np.argmax(bad[name]))
        return finding(
            f"{_join([*bad])} {'is' if len(bad) == 1 else 'are'} NaN or infinite in {count} of {len(curves)} steps"
            + (
                "; later steps are finite again"
                if _last_run(curves, name)[0] < STEPS
                else f", from {_step(curves, first)} on"
            ),
            Fact(f"steps in which {name} is not finite", count, 0, curves.step_at(first)),
            severity=Severity.HARMFUL,
        )
    (skipped_N,) = curves.need("updates_skipped")
    steps, total = int((skipped_N > 0).sum()), int(np.isfinite(skipped_N).sum())
    fact = Fact("share of the steps with a skipped update", steps / total, SHARE)
    refused = trailing((skipped_N > 0) & ~_applied(curves))
    if refused >= STEPS:
        return seen_directly(
            f"every update of the last {refused} steps was refused because something in it was not finite: nothing is "
            "learned any more",
            Fact("steps at the end without an update", refused, STEPS, curves.step_at(len(curves) - refused)),
            fix="Open one of the dumps of the run with assay doctor: it names the number that is not finite.",
        )
    if steps < STEPS or steps < SHARE * total:
        return healthy("updates are not skipped, or seldom", fact)
    return finding(
        f"in {steps} of {total} steps, an update was skipped because something in it was not finite",
        fact,
        severity=Severity.HARMFUL if steps < total else None,
        fix="Open one of the dumps of the run with assay doctor: it names the number that is not finite.",
    )


def check_run(run: WatchedRun) -> Iterator[Verdict]:
    """The losses that were differentiated, whatever they are made of."""
    losses = [backward for backward in run.backwards if backward.number is not None]
    lost = trailing(np.array([not np.isfinite(backward.number or 0.0) for backward in losses], dtype=bool))
    if lost >= STEPS:
        yield finding(
            f"the last {lost} of {len(losses)} losses that were differentiated are NaN or infinite",
            places=(losses[-lost].loss.place,),
        )


def _dead_since(curves: Curves) -> tuple[list[str], int] | None:
    """Metrics that are not finite from some row to the last one, and that row.

    The gradient norm alone may be infinite in some steps in a row: a scaler of float16 gradients finds its scale."""
    runs = {name: _last_run(curves, name) for name in OF_CURVES}
    dead = [name for name in OF_CURVES if runs[name][0] >= STEPS]
    if not dead or (dead == ["gradient_norm"] and runs["gradient_norm"][0] < OF_GRADIENT_ALONE):
        return None
    if not {"loss", "policy_loss", "gradient_norm"} & {*dead}:
        return None  # an entropy or a KL that is never computed is NaN in some logs
    return dead, min(runs[name][1] for name in dead)


def _last_run(curves: Curves, name: str) -> tuple[int, int]:
    """(how many of its last recorded values are not finite, the row of the first of them); gaps are passed over."""
    bad_N = curves.not_finite(name)
    known = np.flatnonzero(bad_N | np.isfinite(curves.column(name)))
    count = trailing(bad_N[known]) if len(known) else 0
    return count, int(known[len(known) - count]) if count else len(curves)


def _looked_at(curves: Curves) -> Verdict:
    looked = [name for name in OF_CURVES if curves.has(name)]
    if not {"loss", "policy_loss", "gradient_norm"} & {*looked}:
        raise Missing("loss, gradient_norm or updates_skipped")
    return healthy(f"{_join(looked)} {'is' if len(looked) == 1 else 'are'} finite in all {len(curves)} steps")


def _applied(curves: Curves) -> Array:
    if not curves.has("updates_applied"):
        return np.zeros(len(curves), dtype=bool)
    return np.asarray(np.nan_to_num(curves.need("updates_applied")[0]) > 0)


def _step(curves: Curves, index: int) -> str:
    step = curves.step_at(index)
    return f"row {index + 1}" if step is None else f"step {step}"


def _join(names: Sequence[str]) -> str:
    return " and ".join((", ".join(names[:-1]), names[-1])) if len(names) > 1 else names[0]


def _values(batch: Batch) -> Iterator[tuple[str, Array]]:
    """What goes into the loss, in the order in which it is computed, and only where it counts."""
    has_reference = batch.settings.get("kl_coef", 1.0) != 0
    for name in (*INPUTS, *MADE):
        if name in OF_REFERENCE and not has_reference:
            continue
        if name in batch.numbers:
            yield name, np.asarray(batch.numbers[name], dtype=np.float64)
        elif (value := batch.get(name)) is not None and (mask := _mask(batch, value)) is not None and mask.any():
            values = value[mask]
            # a whole field of NaN is one that the trainer does not have, if it did without
            if not (name in INPUTS and np.isnan(values).all() and _is_outcome_finite(batch)):
                yield name, values


def _mask(batch: Batch, value: Array) -> Array | None:
    mask_BT = batch.get("mask")
    return mask_BT if mask_BT is None or value.ndim == 2 else np.asarray(mask_BT.any(axis=1))


def _is_outcome_finite(batch: Batch) -> bool:
    known = [batch.numbers[name] for name in OUTCOMES if name in batch.numbers]
    gradients, mask_BT = batch.get("gradients"), batch.get("mask")
    if gradients is not None and mask_BT is not None and not np.isfinite(gradients[mask_BT]).all():
        return False
    return "loss" in batch.numbers and bool(np.isfinite(known).all())


def _place(batch: Batch, name: str) -> tuple[str, Fact]:
    if name in batch.numbers:
        return "is", Fact(name, float(batch.numbers[name]), None, batch.step)
    value = batch.arrays[name]
    mask = _mask(batch, value)
    assert mask is not None
    bad = mask & ~np.isfinite(value)
    row, *token = (int(place) for place in np.argwhere(bad)[0])
    of = "loss tokens" if value.ndim == 2 else "rows in the loss"
    fact = Fact(name, float(value[(row, *token)]), None, batch.step, row, token[0] if token else None)
    return f"of {int(bad.sum())} of {int(mask.sum())} {of} are", fact


def _rewards(batch: Batch, first: str) -> list[Fact]:
    """An infinite reward is where infinite advantages come from; NaN is a reward that was not given."""
    rewards_B = batch.get("rewards")
    if first != "advantages" or rewards_B is None or not np.isinf(rewards_B).any():
        return []
    row = int(np.flatnonzero(np.isinf(rewards_B))[0])
    return [Fact("reward", float(rewards_B[row]), None, batch.step, row)]


def _example(value: float | None, skipped: int) -> Evidence:
    """One log-prob of the policy, in a later update, and all that follows from it."""
    batch = healthy_batch(update=1)
    if value is None:
        return Evidence((batch,), healthy_curves(updates_skipped=skipped))
    new_BT = batch.arrays["new_logprobs"].copy()
    new_BT[2, 1] = value
    measured = [name for name in batch.numbers if name.startswith(("tensors", "numbers"))]
    gone = {**of_the_loss(batch), **dict.fromkeys((*SCORED, *measured, "ratio", "update_norm"))}
    broken = dict.fromkeys(("loss", "policy_loss", "kl_loss", "gradient_norm"), value)
    broken_batch = edit_batch(batch, **{**gone, **broken}, new_logprobs=new_BT)
    return Evidence((broken_batch,), healthy_curves(updates_skipped=skipped, updates_applied=2 - skipped))


ILLNESS = illness(
    __name__,
    code="NUM03",
    severity=Severity.FATAL,
    summary="a number that goes into the loss is NaN or infinite",
    fix="Follow the first number that is not finite back to what it was computed from; the later ones inherit it.",
    symptoms=(
        "nan",
        "loss is nan",
        "inf in the loss",
        "loss becomes nan after some steps",
        "gradients are nan or inf",
        "probability tensor contains nan",
        "model outputs !!!!!",
    ),
    sick=lambda: _example(float("nan"), 1),
    well=lambda: _example(None, 0),
    explains=frozenset({"LOSS05", "MET05", "RAT01", "REW01", "ADV09", "MET01", "MET02", "MET03", "MET08", "OPT02"}),
)
