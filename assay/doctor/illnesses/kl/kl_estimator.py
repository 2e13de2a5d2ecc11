"""
## What it checks
The recorded KL of each token, or the KL part of the loss, is computed again from new and ref log-probs and compared
with the known estimators: k1 = new - ref, k2 = (new - ref)^2 / 2, k3 = exp(ref - new) - (ref - new) - 1, and the usual
mistakes. k3 is never negative. Where the gradient of each token is recorded, its KL part is found as well: what the
policy part leaves, compared with the slope of every known KL, and with its coefficient.

## Why it hurts
With ref and new exchanged, k3 estimates another divergence from the wrong samples, and its gradient grows without bound
where the policy has left the reference upwards. A negative "KL" rewards distance wherever it is negative, and a logged
one hides that the policy has gone.

## How to fix it
Keep the order: the samples come from new, and the exponent is ref - new.

    # before: exchanged
    kl = torch.exp(new - ref) - (new - ref) - 1
    # after
    kl = torch.exp(ref - new) - (ref - new) - 1

## When it is wrong
k1, k2, k3, their product with the ratio and |new - ref| are all in use; which of them is only a possible finding, where
the settings name another one. While policy and reference are nearly equal, estimators cannot be told apart.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

import numpy as np

from assay.doctor.catalogue import Scripts, illness, one_per_place
from assay.doctor.evidence import Batch, Evidence
from assay.doctor.examples import GRADIENTS, LOSSES, edit_batch, healthy_batch, of_batch
from assay.doctor.examples.scripts import GRPO, with_change
from assay.doctor.recompute.consistent import is_of_these_rows
from assay.doctor.recompute.kl_gradient import FITS as KL_FITS
from assay.doctor.recompute.kl_gradient import SAME_FACTOR, kl_in_gradient
from assay.doctor.recompute.loss import is_known_whole, nearest_kl_loss
from assay.doctor.recompute.match import Match
from assay.doctor.recompute.terms import nearest_kl, stated_objective
from assay.programs.edits import Spot
from assay.programs.facts.kl.in_reward import reward_penalties
from assay.programs.facts.kl.penalties import penalties, wrong_estimate, wrong_kl_div
from assay.programs.program import Program
from assay.verdict import Confidence, Edit, Fact, Missing, Severity, State, Verdict, finding, healthy, not_applicable

_FOR_GRADIENT = ("mask", "gradients", "new_logprobs", "old_logprobs", "ref_logprobs", "advantages")
_STATED = ("kl_coef", "kl_placement", "kl_estimator", "kl_gradient", "correction", "objective")
NEGATIVE = -1e-5  # a mean of k3 below this is not rounding
NEGATIVE_LOW_PRECISION = -5e-3  # where the compute dtype is one of 16 bits, or not stated


def check_batch(batch: Batch) -> Verdict:
    try:
        by_value = _by_value(batch)
    except Missing:
        if (by_gradient := _by_gradient(batch)) is None:
            raise
        return by_gradient
    if by_value.state is State.FINDING:
        return by_value
    by_gradient = _by_gradient(batch)
    return by_gradient if by_gradient is not None and by_gradient.state is State.FINDING else by_value


def _by_value(batch: Batch) -> Verdict:
    recorded = batch.get("kl")
    if recorded is not None:
        mask_BT, *_ = batch.need("mask", "new_logprobs", "ref_logprobs")
        if not mask_BT.any():
            raise Missing("a loss token")
        if _ratio_is_unknown(batch):
            raise Missing("old_logprobs: the KL may be multiplied by the ratio")
        return _verdict(batch, nearest_kl(batch), "the KL of a token", float(recorded[batch.arrays["mask"]].min()))
    if not batch.setting("kl_coef") or batch.settings.get("kl_placement", "loss") != "loss":
        return not_applicable("no KL in the loss")
    part = batch.numbers.get("kl_loss", batch.numbers.get("kl_mean"))
    if part is None:
        raise Missing("kl, kl_loss or kl_mean")
    if "kl_loss" not in batch.numbers:
        return _of_the_mean(batch, float(part))
    if part < 0:
        return not_applicable("the KL part of the loss is negative: see kl_sign")
    if "objective" not in batch.settings or not (is_known_whole(batch) or is_of_these_rows(batch)):
        raise Missing("objective, and the rows of the whole update")
    return _verdict(batch, nearest_kl_loss(batch), "the KL part of the loss", float(part))


@one_per_place
def check_source(program: Program) -> Iterator[Verdict]:
    for penalty in penalties(program):
        place, difference = penalty.core.place, penalty.difference
        if penalty.estimator != "k3":
            continue
        wrong = wrong_estimate(program, penalty)
        if not wrong:
            yield healthy("the KL is k3, with samples of new", places=(place,))
            continue
        why = program.kinds.why(difference.value) if difference is not None else ()
        yield finding(f"`{place.text}` {wrong}", places=(place,), why=why)
    for in_reward in reward_penalties(program):
        value = in_reward.difference.value
        if in_reward.is_exchanged and in_reward.sign > 0 and not in_reward.is_itself:
            yield finding(
                f"`{value.place.text}` is subtracted from the reward as a KL, but it is "
                "reference - policy: distance is paid for",
                places=(value.place,),
                why=program.kinds.why(value),
                fix="Subtract beta * (policy - reference) from the reward.",
            )
    for place, wrong in wrong_kl_div(program):
        yield finding(f"`{place.text}` {wrong}", places=(place,))


def _by_gradient(batch: Batch) -> Verdict | None:
    """What KL the gradient of the loss holds; None where the numbers do not show it."""
    if any(batch.get(name) is None for name in _FOR_GRADIENT) or not set(_STATED) <= batch.settings.keys():
        return None
    settings = batch.settings
    objective = stated_objective(settings)
    if not settings["kl_coef"] or settings["kl_placement"] != "loss" or settings.get("dtype") != "float32":
        return None
    if objective is None or not set(objective.settings) <= settings.keys():
        return None
    fits = kl_in_gradient(batch)
    if fits is None:
        return None
    meant = settings["kl_estimator"]
    if not fits:
        return finding(
            f"the policy part of the gradient is right and the KL's is not: it is a function of new - ref, but not the "
            f"slope of {meant} or of a known mistake",
            confidence=Confidence.LIKELY,
        )
    first = fits[0]
    near = Fact(f"what is left of the KL's part: {first.name}", first.error, KL_FITS, batch.step)
    if first.is_configured:
        return _by_factor(float(settings["kl_coef"]), first.factor, near, meant)
    names = " or ".join(fit.name for fit in fits)
    only_gradient = any(fit.is_gradient_only for fit in fits)
    return finding(
        f"the KL in the gradient of the loss is {names}; the config says {meant} ({settings['kl_gradient']})",
        near,
        confidence=Confidence.POSSIBLE if only_gradient else Confidence.PROVEN,
    )


def _by_factor(coefficient: float, factor: float, near: Fact, meant: str) -> Verdict | None:
    """The KL is the configured one: is it weighed once? Without it, or with its sign flipped, it is another illness."""
    if abs(factor - 1.0) <= SAME_FACTOR:
        return healthy(f"the KL in the gradient is {meant}", near)
    known = (
        (coefficient, "its coefficient is multiplied twice"),
        (1 / coefficient, "its coefficient is missing"),
        (2.0, "it is added twice"),
    )
    words = [what for value, what in known if abs(factor - value) <= SAME_FACTOR * value]
    if factor < SAME_FACTOR:
        return None  # kl_no_grad and kl_sign speak of that
    return finding(
        f"the KL in the gradient of the loss is {factor:.3g} times the configured one"
        + (f": {' or '.join(words)}" if words else ""),
        Fact("factor of the KL's part", factor, 1.0),
        near,
        # any other factor may be the count that the KL alone is divided by
        confidence=Confidence.PROVEN if words else Confidence.LIKELY,
    )


def _ratio_is_unknown(batch: Batch) -> bool:
    known = batch.get("old_logprobs") is not None or batch.numbers.get("update") == 0
    return not known and batch.settings.get("kl_gradient") != "naive"


def _negative(batch: Batch) -> float:
    """exp(d) - 1 - d keeps two digits in 16 bits, and may come out below 0."""
    return NEGATIVE if batch.settings.get("dtype") == "float32" else NEGATIVE_LOW_PRECISION


def _verdict(batch: Batch, match: Match, what: str, smallest: float) -> Verdict:
    name = match.variant.name
    near = Fact(f"distance from: {name}", match.distance, match.tolerance, batch.step)
    if match.is_configured:
        return healthy(f"{what} is {name}", near)
    says = "" if match.configured is None else f"; the config says {match.configured.name}"
    facts = (near, Fact("smallest recorded value", smallest, None, batch.step))
    if match.fits:
        sure = Confidence.PROVEN if match.variant.is_bug else Confidence.POSSIBLE
        return finding(f"{what} is {name}{says}", *facts, confidence=sure)
    if batch.settings.get("kl_estimator") == "k3" and smallest < 10 * _negative(batch):
        return finding(f"{what} is {smallest:.2g}, and k3 is never negative", *facts)
    if match.configured is None:
        return not_applicable(f"{what} is of a kind not known here; the nearest is {name}")
    return finding(
        f"{what} is {match.configured_distance:.2g} of its size away from {match.configured.name}, and no known "
        "estimator fits",
        Fact("distance from the configured estimator", match.configured_distance, match.tolerance, batch.step),
        *facts,
        # one number cannot distinguish another estimator from a factor
        confidence=Confidence.LIKELY if batch.get("kl") is not None else Confidence.POSSIBLE,
    )


def _of_the_mean(batch: Batch, mean: float) -> Verdict:
    fact = Fact("mean KL", mean, 0.0, batch.step)
    if batch.setting("kl_estimator") != "k3" or not np.isfinite(mean):
        return not_applicable("only the mean of a KL that may be negative is recorded")
    if mean < _negative(batch):
        return finding(f"the mean KL is {mean:.2g}, and k3 is never negative", fact)
    raise Missing("kl or kl_loss")


def edits(verdict: Verdict, spot: Spot, others: Sequence[Spot]) -> Iterator[Edit | None]:
    """exp(d) - d - 1 of one d; the policy before the reference; a penalty that is not negative."""
    exps = [call for call in spot.all(ast.Call) if call.name in ("exp", "expm1") and call.receiver is not None]
    if not exps:
        yield spot.exchanged()
        return
    exp, about = exps[0], exps[0].receiver
    terms = [
        spot.child(side)
        for part in spot.all(ast.BinOp)
        for side in (part.node.left, part.node.right)
        if isinstance(part.node.op, ast.Add | ast.Sub)
    ]
    inside = {id(part) for call in exps for part in ast.walk(call.node)}
    linear = [
        term
        for term in terms
        if id(term.node) not in inside and not term.all(ast.Call, ast.Constant) and term.all(ast.Name)
    ]
    yield spot.exchanged() if "never positive" in verdict.message else None
    plain = [term for term in linear if exps[0].node not in ast.walk(term.node)]
    for difference in (*plain[-1:], *([about] if about is not None else ())):
        tight = difference.tight
        written = f"{tight}.exp()" if exp.is_method else f"{exp.child(exp.node.func).source}({difference.source})"
        rest = "" if exp.name == "expm1" else " - 1"
        yield spot.as_part(f"{written} - {tight}{rest}")


def sick() -> Evidence:
    batch = _without_loss()
    difference_BT = batch.arrays["new_logprobs"] - batch.arrays["ref_logprobs"]
    kl_BT = np.where(batch.arrays["mask"], np.expm1(difference_BT) - difference_BT, 0.0)
    return of_batch(edit_batch(batch, kl=kl_BT, kl_mean=float(kl_BT.sum() / batch.arrays["mask"].sum())))


def _without_loss() -> Batch:
    return edit_batch(healthy_batch(), **dict.fromkeys((*LOSSES, *GRADIENTS, "policy_loss", "kl_loss", "token_loss")))


ILLNESS = illness(
    __name__,
    code="KL04",
    severity=Severity.HARMFUL,
    summary="the KL is not the configured estimator, or its arguments are exchanged",
    fix="Compute k3 as exp(ref - new) - (ref - new) - 1, with samples of new.",
    symptoms=(
        "KL is negative",
        "KL is too large",
        "KL formula looks wrong",
        "KL explodes to billions",
    ),
    sick=sick,
    well=lambda: of_batch(_without_loss()),
    scripts=Scripts(
        sick=with_change("torch.exp(ref - new) - (ref - new) - 1", "torch.exp(ref - new) + (ref - new) - 1"), well=GRPO
    ),
    explains=frozenset({"LOSS06", "MET02", "MET06"}),
)
