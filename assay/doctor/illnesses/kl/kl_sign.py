"""
## What it checks
The KL to the reference must be a penalty: the loss grows with it. The check compares loss - policy_loss with the KL
part and looks for the opposite sign. Where gradients are recorded, it looks which way the KL part of the gradient
pulls: it must lower the log-prob of tokens that the policy likes more than the reference does. In the curves it looks
for a negative KL part, for a loss that is smaller than its policy part by the KL, and for a KL that rises although it
outweighs the policy part.

## Why it hurts
With the wrong sign the optimizer is paid for leaving the reference. The KL grows without bound, faster with a larger
coefficient, and the policy ends in text that the reference finds impossible. Raising the coefficient, which is what one
tries first, makes it worse.

## How to fix it
Add the KL to a loss that is minimised, or take it off a reward that is maximised.

    # before
    loss = policy_loss - kl_coef * kl.mean()
    # after
    loss = policy_loss + kl_coef * kl.mean()

## When it is wrong
The single-sample estimate k1 is negative on many tokens and its mean may be; the check does not judge signs of k1. A
coefficient so small that the KL part is lost in the rounding of the loss cannot be judged from the loss.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

import numpy as np

from assay.doctor.catalogue import Scripts, illness
from assay.doctor.evidence import Batch, Curves, Evidence
from assay.doctor.examples import GRADIENTS, KL_COEF, LOSSES, edit_batch, healthy_batch, healthy_curves
from assay.doctor.examples.scripts import GRPO, with_change
from assay.doctor.recompute.loss import kl_is_placed
from assay.programs.edits import Spot
from assay.programs.facts.kl.in_reward import reward_penalties
from assay.programs.facts.kl.penalties import is_a_penalty, penalties, penalty_sign
from assay.programs.facts.loss.signs import is_maximised, is_minimised, policy_sign
from assay.programs.program import Program
from assay.record.batch import Array
from assay.verdict import (
    Edit,
    Fact,
    Severity,
    Verdict,
    finding,
    healthy,
    not_applicable,
    not_enough_data,
    seen_directly,
)

VISIBLE = 1e-4  # the KL part as a share of the loss: a float32 keeps seven digits, so three of it are left to judge
NEAR_PART = 0.05  # relative distance from the KL part, or from its negative: the two differ by 200 %
ALIGNED = 0.9  # of the KL pull, weighed by its size, that must agree in direction
SMALLEST_PULL = 1e-5  # kl_coef * |new - ref|: below it the rounding of the policy part could outweigh it
ROUNDING = 1e-4  # of the largest gradient: what varies less within a row may be rounding
SMALLEST_KL = 1e-6  # of a mean KL: exp(d) - 1 - d leaves as much below 0 in float32
SMALLEST_KL_16 = 5e-3  # where the compute dtype is one of 16 bits, or not stated
STEPS = 10  # of a curve: fewer do not show a trend
PROPORTIONAL_STEPS = 20
SPREAD = 5.0  # largest over smallest KL: a multiple of it is seen as one only where it varies
OUTWEIGHS = 10.0  # times the policy part: a penalty of this size must fall if it is minimised at all


def check_batch(batch: Batch) -> Verdict:
    if not batch.setting("kl_coef") > 0 or batch.settings.get("kl_placement", "loss") != "loss":
        return not_applicable("no KL in the loss")
    if batch.settings.get("kl_estimator") == "k1":
        return not_applicable("k1 has no sign of its own")
    verdict = _by_loss(batch) or _by_gradients(batch)
    return verdict or not_enough_data("loss, policy_loss and a visible kl_loss, or gradients where new and ref differ")


def check_curves(curves: Curves) -> Verdict:
    if curves.settings.get("kl_estimator", "k3") != "k1" and (verdict := _by_proportion(curves)) is not None:
        return verdict
    if not curves.setting("kl_coef") > 0 or curves.settings.get("kl_placement", "loss") != "loss":
        return not_applicable("no KL in the loss")
    if curves.settings.get("kl_estimator", "k3") == "k1":
        return not_applicable("k1 has no sign of its own")
    loss_N, policy_N, part_N = curves.need("loss", "policy_loss", "kl_loss")
    entropy_N = curves.need("entropy_loss")[0] if curves.has("entropy_loss") else np.zeros(len(curves))
    added_N = loss_N - policy_N - np.nan_to_num(entropy_N)
    visible_N = np.abs(part_N) > VISIBLE * np.maximum(np.abs(loss_N), np.abs(policy_N))
    negative_N = visible_N & (part_N < 0)
    taken_off_N = visible_N & (part_N > 0) & (np.abs(added_N + part_N) <= NEAR_PART * np.abs(part_N))
    for wrong_N, words in ((negative_N, "the KL part is negative"), (taken_off_N, "the KL is taken off the loss")):
        if wrong_N.any() and wrong_N.sum() > 0.5 * visible_N.sum():
            first = int(np.argmax(wrong_N))
            return finding(
                f"{words} in {int(wrong_N.sum())} of {int(visible_N.sum())} steps where it can be seen",
                Fact("kl_loss", float(part_N[first]), step=curves.step_at(first)),
                Fact("loss - policy_loss", float(added_N[first]), step=curves.step_at(first)),
            )
    return _runaway(curves, policy_N)


def _by_proportion(curves: Curves) -> Verdict | None:
    """A finding where the loss, or what it has beside its policy part, is a negative multiple of the KL in every step.

    With one update per rollout batch the policy part is 0 or nearly so, and the loss is the KL's alone."""
    kl_N, loss_N, policy_N = (curves.column(name) for name in ("ref_kl", "loss", "policy_loss"))
    is_split = curves.has("policy_loss") and not np.array_equal(loss_N, policy_N, equal_nan=True)
    for added_N, what in ((loss_N - policy_N, "loss - policy_loss"),) if is_split else ((loss_N, "the loss"),):
        known_N = np.isfinite(added_N) & (kl_N > SMALLEST_KL)
        if known_N.sum() < PROPORTIONAL_STEPS:
            continue
        kl_K, added_K = kl_N[known_N], added_N[known_N]
        if kl_K.max() < SPREAD * kl_K.min():
            continue
        large_K = kl_K >= np.median(kl_K)  # rounding and the policy part weigh little there
        multiples_L = added_K[large_K] / kl_K[large_K]
        middle = float(np.median(multiples_L))
        if middle < 0 and np.mean(np.abs(multiples_L - middle) <= NEAR_PART * -middle) >= ALIGNED:
            return seen_directly(
                f"{what} is {middle:.3g} times the KL to the reference: the KL is taken off the loss, so that the "
                "optimizer is paid for leaving the reference",
                Fact(f"{what} / KL, median", middle, 0.0),
                Fact("ref_kl at first", float(kl_K[0])),
                Fact("ref_kl at last", float(kl_K[-1])),
            )
    return None


def check_source(program: Program) -> Iterator[Verdict]:
    for in_reward in reward_penalties(program):
        value = in_reward.difference.value
        if in_reward.is_itself or in_reward.is_exchanged:
            continue
        if in_reward.sign < 0:
            yield healthy("the KL is subtracted from the reward", places=(value.place,))
        else:
            yield finding(
                f"`{value.place.text}`, the KL to the reference, is added to the reward, not subtracted",
                places=(value.place,),
                why=program.kinds.why(value),
            )
    if not is_minimised(program) and not is_maximised(program):
        return
    right = -1 if is_maximised(program) else 1
    seen = set()
    signs = {id(loss): {policy_sign(program, term) for term in terms} for loss, terms in program.losses}
    for penalty in penalties(program):
        place, difference = penalty.core.place, penalty.difference
        if place in seen or not is_a_penalty(program, penalty) or penalty.has_gradient is False:
            continue
        sign = penalty_sign(program, penalty)
        if not sign or right in signs[id(penalty.loss)]:  # the whole loss is upside down: another illness
            continue
        seen.add(place)
        if sign == right:
            yield healthy("the KL is penalised", places=(place,))
        else:
            yield finding(
                f"the KL `{place.text}` is {'subtracted from' if right > 0 else 'added to'} the loss: the "
                "optimizer is paid for leaving the reference",
                places=((penalty.term.joined or penalty.loss).place, place),
                why=program.kinds.why(difference.value) if difference is not None else (),
            )


def _by_loss(batch: Batch) -> Verdict | None:
    """None where the numbers do not show it."""
    numbers = batch.numbers
    part = numbers.get("kl_loss")
    if part is None:
        return None
    fact = Fact("kl_loss, coefficient included", float(part), step=batch.step)
    smallest = SMALLEST_KL if batch.settings.get("dtype") == "float32" else SMALLEST_KL_16
    rounding = smallest * abs(batch.settings["kl_coef"])
    if "kl_estimator" in batch.settings and part < -rounding and abs(part) > VISIBLE * abs(numbers.get("loss", 1.0)):
        return finding(f"the KL part of the loss is {part:.2g}: it is paid for, not penalised", fact)
    if "loss" not in numbers or "policy_loss" not in numbers or batch.settings.get("entropy_coef"):
        return None
    added = numbers["loss"] - numbers["policy_loss"]
    if not part > VISIBLE * max(abs(numbers["loss"]), abs(numbers["policy_loss"])):
        return None
    facts = (fact, Fact("loss - policy_loss", float(added), step=batch.step))
    if abs(added + part) <= NEAR_PART * part:
        return finding(
            f"the KL is taken off the loss: loss - policy_loss is {added:.2g}, the KL part is {part:.2g}", *facts
        )
    return healthy("the loss grows with the KL", *facts) if abs(added - part) <= NEAR_PART * part else None


def _by_gradients(batch: Batch) -> Verdict | None:
    """Inside a row the policy part pulls alike at every token (ratio 1), so what varies with new - ref is the KL's."""
    names = ("mask", "new_logprobs", "ref_logprobs", "gradients", "advantages")
    if any(batch.get(name) is None for name in names) or batch.settings.get("correction", "off") != "off":
        return None
    if not kl_is_placed(batch) or "kl_estimator" not in batch.settings:
        return None
    mask_BT, new_BT, ref_BT, gradients_BT, _ = batch.need(*names)
    if not mask_BT.any():
        return None
    advantages_BT = batch.token_advantages
    silent_B = np.abs(np.where(mask_BT, advantages_BT, 0.0)).max(axis=1, initial=0.0) == 0
    highest_B = np.where(mask_BT, advantages_BT, -np.inf).max(axis=1)
    lowest_B = np.where(mask_BT, advantages_BT, np.inf).min(axis=1)
    usable_B = mask_BT.any(axis=1) & (silent_B | ((highest_B == lowest_B) & (batch.numbers.get("update") == 0)))
    judged_BT = mask_BT & usable_B[:, None] & np.isfinite(new_BT) & np.isfinite(ref_BT) & np.isfinite(gradients_BT)
    distance_BT = _centre(new_BT - ref_BT, judged_BT, silent_B)
    pull_BT = _centre(gradients_BT, judged_BT, silent_B)
    if not batch.settings["kl_coef"] * np.abs(distance_BT).max(initial=0.0) > SMALLEST_PULL:
        return None
    if not np.abs(pull_BT).max(initial=0.0) > ROUNDING * np.abs(gradients_BT[judged_BT]).max(initial=0.0):
        return None
    products_BT = distance_BT * pull_BT
    size = float(np.abs(products_BT).sum())
    if size == 0.0:
        return None
    aligned = float(products_BT.sum()) / size
    fact = Fact("agreement of the KL pull with new - ref, -1 to 1", aligned, ALIGNED, batch.step)
    if aligned <= -ALIGNED:
        return finding(
            f"the KL part of the gradient pushes the policy away from the reference (agreement {aligned:.2f} over "
            f"{int(judged_BT.sum())} loss tokens)",
            fact,
        )
    return healthy("the KL part of the gradient pulls towards the reference", fact) if aligned >= ALIGNED else None


def _centre(values_BT: Array, judged_BT: Array, silent_B: Array) -> Array:
    """Zero outside; minus the row's mean where the row has an advantage, whose pull is the same on all its tokens."""
    kept_BT = np.where(judged_BT, values_BT, 0.0)
    mean_B = kept_BT.sum(axis=1) / np.maximum(judged_BT.sum(axis=1), 1)
    return np.where(judged_BT, kept_BT - np.where(silent_B, 0.0, mean_B)[:, None], 0.0)


def _runaway(curves: Curves, policy_N: Array) -> Verdict:
    (kl_N,) = curves.need("ref_kl")
    known_N = kl_N[np.isfinite(kl_N)]
    if len(known_N) < STEPS:
        return not_enough_data(f"ref_kl of {STEPS} steps")
    middle = float(np.median(known_N[len(known_N) // 4 : len(known_N) // 2]))
    last = float(np.median(known_N[-max(len(known_N) // 4, 1) :]))
    penalty = float(curves.settings["kl_coef"]) * middle
    policy = float(np.nanmedian(np.abs(policy_N)))
    facts = (Fact("ref_kl in the second quarter", middle), Fact("ref_kl in the last quarter", last))
    if last > 2 * middle and penalty > OUTWEIGHS * policy and middle > 0:
        return finding(
            f"the KL rises from {middle:.2g} to {last:.2g} although its penalty is {penalty / max(policy, 1e-12):.0f} "
            "times the policy part of the loss: minimising would lower it",
            *facts,
        )
    return healthy("the KL is penalised", *facts)


def _flip_kl(batch: Batch) -> Batch:
    """The same batch with the KL subtracted, in the loss, its tokens and its gradients."""
    mask_BT, new_BT, ref_BT, kl_BT = batch.need("mask", "new_logprobs", "ref_logprobs", "kl")
    pull_BT = np.where(mask_BT, KL_COEF * (1.0 - np.exp(ref_BT - new_BT)), 0.0) / mask_BT.sum()
    gradients = {name: batch.arrays[name] - 2 * pull_BT for name in GRADIENTS}
    losses = dict.fromkeys(LOSSES, batch.number("policy_loss") - batch.number("kl_loss"))
    token_loss_BT = batch.arrays["token_loss"] - 2 * KL_COEF * kl_BT
    return edit_batch(batch, token_loss=token_loss_BT, **gradients, **losses)


def _curves(sign: float) -> Curves:
    part_N = np.linspace(1e-5, 1e-3, 60)
    return healthy_curves(loss=-0.01 + sign * part_N, policy_loss=-0.01, kl_loss=part_N, ref_kl=part_N / KL_COEF)


def edits(verdict: Verdict, spot: Spot, others: Sequence[Spot]) -> Iterator[Edit | None]:
    """The sign before the KL turned: in the loss at the place itself, in a reward where the KL is used."""
    if "from the loss" in verdict.message:
        sign = {ast.Add: "-", ast.Sub: "+"}.get(type(spot.node.op)) if isinstance(spot.node, ast.BinOp) else None
        yield spot.with_operator(sign) if sign else None
        return
    targets = spot.statement.node.targets if isinstance(spot.statement.node, ast.Assign) else []
    for use in Spot(spot.text, spot.function).all(ast.Name):
        if targets and isinstance(targets[0], ast.Name) and use.node.id == targets[0].id and use.span > spot.span:
            yield use.negated()


ILLNESS = illness(
    __name__,
    code="KL01",
    severity=Severity.FATAL,
    summary="the KL to the reference is rewarded instead of penalised",
    fix="Add kl_coef * KL to a loss that is minimised; subtract it only from a reward.",
    symptoms=(
        "KL grows without limit",
        "KL explodes",
        "KL has the wrong sign",
        "KL penalty has no effect or the opposite",
        "model drifts from the reference",
        "KL goes up with a larger beta",
        "loss increases",
    ),
    sick=lambda: Evidence((_flip_kl(healthy_batch()),), _curves(sign=-1.0)),
    well=lambda: Evidence((healthy_batch(),), _curves(sign=1.0)),
    scripts=Scripts(sick=with_change("(-gain + 0.04 * kl)", "(-gain - 0.04 * kl)"), well=GRPO),
    explains=frozenset({"LOSS06", "MET02", "KL02"}),
)
