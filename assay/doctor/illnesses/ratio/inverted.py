"""
## What it checks
The gradient of the loss at a token, d loss / d log-prob, has the sign of minus its advantage wherever the clip leaves
one: a good token gets likelier. A recorded ratio must be exp(new - old), not its inverse and not its logarithm.

## Why it hurts
With old and new exchanged, or with one minus too many, every update makes good answers rarer and bad ones likelier. The
loss may still fall while the reward does; in the first update the ratio is 1 either way, so its value shows nothing.

## How to fix it
Follow one token with a positive advantage from the ratio to the loss: its log-prob must raise the ratio, and the ratio
must lower the loss.

    # before: arguments exchanged
    ratio = torch.exp(old - new)
    # after
    ratio = torch.exp(new - old)

## When it is wrong
If the optimizer maximises (maximize=True) and the recorded loss is what it climbs, signs are meant the other way round:
record the negative. The KL term pulls single tokens against their advantage; its part is recomputed and taken off.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from assay.doctor.catalogue import Scripts, illness, one_per_place
from assay.doctor.evidence import Batch, Evidence
from assay.doctor.examples import edit_batch, healthy_batch, of_batch
from assay.doctor.examples.scripts import GRPO, with_change
from assay.doctor.illnesses.loss.loss_sign import without_gradient
from assay.doctor.recompute.consistent import consistent
from assay.doctor.recompute.loss import expected_gradients, kl_is_placed
from assay.doctor.recompute.terms import nearest_ratio
from assay.programs.edits import Spot
from assay.programs.facts.ratio import differences, uses
from assay.programs.program import Program
from assay.record.batch import Array
from assay.verdict import Confidence, Edit, Fact, Missing, Severity, State, Verdict, finding, healthy, not_applicable

MOVES_ALONG = 0.8  # correlation of the gradient with A, where a KL may be in it
REMAINDER = 0.5  # of the KL's pull: a smaller rest may be what was misjudged of the KL
DEAD = 0.01  # of the tokens with an advantage: a larger share without a gradient is not rounding
AGREES = 0.5  # of -1 to 1: in the middle between chance and certainty; a sound loss has 1


def check_batch(batch: Batch) -> Verdict:
    verdicts, missing = [], []
    for check in (_by_ratio, _by_gradient):
        try:
            verdicts.append(check(batch))
        except Missing as lacking:
            missing += [name for name in lacking.names if name not in missing]
    if not verdicts:
        raise Missing(*missing)
    by_state = {verdict.state: verdict for verdict in reversed(verdicts)}
    return by_state.get(State.FINDING) or by_state.get(State.HEALTHY) or verdicts[0]


@one_per_place
def check_source(program: Program) -> Iterator[Verdict]:
    for use in uses(program):
        for difference in differences(program, use.ratio):
            value, left, right = difference.value, difference.left, difference.right
            new, old = program.origins.gradient(left), program.origins.gradient(right)
            is_turned = new is False and (old is True or (old is None and use.is_surrogate))
            if is_turned and (use.is_surrogate or program.origins.is_reference(left) is not True):
                yield finding(
                    f"`{value.place.text}` is old over new: {right.shown} carries the gradient and stands in "
                    "the denominator of the ratio",
                    places=(value.place, use.core.place),
                    why=program.kinds.why(use.ratio),
                )
            elif new is True and old is False:
                yield healthy("the ratio is new over old", places=(value.place,))


def _by_ratio(batch: Batch) -> Verdict:
    match = nearest_ratio(batch)
    fact = Fact(f"distance of the ratio from: {match.variant.name}", match.distance, match.tolerance, batch.step)
    if match.fits and match.variant.is_bug and _is_logarithm_at_zero(batch):
        return not_applicable("new equals old, and there a difference of log-probs has the gradient of the ratio")
    if match.fits and match.variant.is_bug:
        return finding(f"the ratio is {match.variant.name}, where exp(new - old) is meant", fact)
    if not match.fits:
        return not_applicable(f"the ratio is of a kind not known here; the nearest is {match.variant.name}")
    return healthy(f"the ratio is {match.variant.name}", fact)


def _is_logarithm_at_zero(batch: Batch) -> bool:
    """new - old of one update, with the pull of a sound loss: its value is 0 and its slope that of exp(new - old)."""
    mask_BT, new_BT, old_BT, ratio = batch.need("mask", "new_logprobs", "old_logprobs", "ratio")
    if ratio.shape != mask_BT.shape or not (ratio[mask_BT] == 0).all() or not (new_BT == old_BT)[mask_BT].all():
        return False
    try:
        return _by_gradient(batch).state is State.HEALTHY
    except Missing:
        return False


def _by_gradient(batch: Batch) -> Verdict:
    """How far the pull on each token agrees with -A, weighed by |A|, from -1 to 1."""
    mask_BT, gradients_BT, _ = batch.need("mask", "gradients", "advantages")
    advantages_BT = np.where(mask_BT, batch.token_advantages, 0.0)
    kl_BT, kl_is_known = np.zeros(mask_BT.shape), "kl_coef" in batch.settings
    if batch.settings.get("kl_coef") and batch.settings.get("kl_placement", "loss") == "loss":
        try:
            policy_BT, kl_BT = expected_gradients(batch)
            kl_BT = kl_BT * _share_of(gradients_BT, policy_BT, kl_BT, mask_BT)
            kl_is_known = kl_is_placed(batch) and {"kl_estimator", "kl_gradient"} <= batch.settings.keys()
        except Missing:
            kl_is_known = False
    pull_BT = np.where(mask_BT, gradients_BT - kl_BT, 0.0)
    judged_BT = mask_BT & np.isfinite(pull_BT) & np.isfinite(advantages_BT)
    judged_BT &= np.abs(pull_BT) > REMAINDER * np.abs(kl_BT)
    judged_BT &= ~_of_equals(batch)[:, None]
    dead_BT = mask_BT & (gradients_BT == 0) & (np.abs(advantages_BT) > 0) & ~_of_equals(batch)[:, None]
    judged_BT &= gradients_BT != 0
    clipped_BT = batch.get("clipped") if batch.get("clipped") is not None else _outside(batch, advantages_BT)
    if clipped_BT is not None:
        judged_BT &= ~clipped_BT  # what is left there is the KL's
        dead_BT &= ~clipped_BT
    elif batch.numbers.get("update") != 0:
        dead_BT &= False  # any of them may be clipped
    sizes_BT = np.where(judged_BT, np.abs(advantages_BT), 0.0)
    total = float(sizes_BT.sum())
    if not total > 0:
        return not_applicable("no loss token has both an advantage and a gradient")
    wrong_BT = judged_BT & (pull_BT * advantages_BT > 0)
    agreement = float(-(np.sign(pull_BT * advantages_BT) * sizes_BT)[judged_BT].sum() / total)
    fact = Fact("agreement of the gradient with -A, -1 to 1", agreement, AGREES, batch.step)
    if agreement >= AGREES and dead_BT.sum() > DEAD * (dead_BT | (sizes_BT > 0)).sum():
        return not_applicable(without_gradient(dead_BT, sizes_BT > 0))
    if agreement >= AGREES:
        return healthy("the loss makes tokens with a positive advantage likelier", fact)
    if agreement > -AGREES:
        return not_applicable(f"the gradient has neither the sign of A nor of -A (agreement {agreement:.2f})")
    row, token = (int(index) for index in np.argwhere(wrong_BT)[0])
    return finding(
        f"the loss pushes good tokens down and bad ones up: its gradient has the sign of A at {int(wrong_BT.sum())} of "
        f"{int((sizes_BT > 0).sum())} loss tokens",
        fact,
        Fact("advantage", float(advantages_BT[row, token]), None, batch.step, row, token),
        Fact("gradient", float(pull_BT[row, token]), None, batch.step, row, token),
        **_certainty(batch, pull_BT[judged_BT], advantages_BT[judged_BT], kl_is_known=kl_is_known),
    )


def _of_equals(batch: Batch) -> Array:
    """Rows whose whole group has one reward: their advantages are 0, or what rounding made of it."""
    rewards_B, groups_B = batch.get("rewards"), batch.get("group_ids")
    equal_B = np.zeros(len(batch.need("mask")[0]), dtype=bool)
    if rewards_B is not None:
        groups_B = np.zeros(len(rewards_B)) if groups_B is None else groups_B
        for group in np.unique(groups_B):
            inside_B = groups_B == group
            equal_B[inside_B] = inside_B.sum() > 1 and np.ptp(rewards_B[inside_B]) == 0
    return equal_B


def _outside(batch: Batch, advantages_BT: Array) -> Array | None:
    """Tokens whose ratio is beyond the bound on their side, by the settings; None where these are not known."""
    ratio_BT, low, high = batch.get("ratio"), batch.settings.get("clip_low"), batch.settings.get("clip_high")
    if ratio_BT is None or ratio_BT.shape != advantages_BT.shape or low is None or high is None:
        return None
    outside_BT: Array = np.where(advantages_BT > 0, ratio_BT >= 1 + high, ratio_BT <= 1 - low)
    return outside_BT


def _share_of(gradients_BT: Array, policy_BT: Array, kl_BT: Array, mask_BT: Array) -> float:
    """How much of the KL's pull is in the gradient: a part of an update is divided by the counts of the whole."""
    seen_BT = mask_BT & np.isfinite(gradients_BT) & np.isfinite(policy_BT) & np.isfinite(kl_BT)
    parts_N2 = np.stack([policy_BT[seen_BT], kl_BT[seen_BT]], axis=1)
    if not seen_BT.any() or np.linalg.matrix_rank(parts_N2) < 2:
        return 1.0
    share = float(np.linalg.lstsq(parts_N2, gradients_BT[seen_BT], rcond=None)[0][1])
    return share if share > 0 else 1.0


def _certainty(batch: Batch, pull_N: Array, advantages_N: Array, *, kl_is_known: bool) -> dict[str, Any]:
    """A KL that is not known may outweigh small advantages; what is upside down still moves with them."""
    if batch.settings.get("trainer") == "script" and batch.get("old_logprobs") is None:
        return {"confidence": Confidence.LIKELY}  # log-probs times a cost that is made smaller have the same numbers
    if kl_is_known:
        return {"confidence": Confidence.PROVEN}
    varied = len(pull_N) > 1 and min(float(np.std(pull_N)), float(np.std(advantages_N))) > 0
    if varied and float(np.corrcoef(pull_N, advantages_N)[0, 1]) > MOVES_ALONG:
        traces = ("ref_logprobs", "kl", "kl_loss", "kl_coef")
        no_trace = not any(name in part for part in (batch.arrays, batch.numbers, batch.settings) for name in traces)
        return {"confidence": Confidence.PROVEN if no_trace else Confidence.LIKELY}
    return {"confidence": Confidence.POSSIBLE, "severity": Severity.HARMFUL}


def edits(verdict: Verdict, spot: Spot, others: Sequence[Spot]) -> Iterator[Edit | None]:
    yield spot.exchanged()


def sick() -> Evidence:
    """Everything that follows from the ratio follows from its inverse, whose gradient points the other way."""
    batch = _without_kl()
    old_BT, new_BT = batch.arrays["old_logprobs"], batch.arrays["new_logprobs"]
    exchanged = consistent(batch, new_logprobs=old_BT, old_logprobs=new_BT)
    turned = {name: -values_BT for name, values_BT in exchanged.arrays.items() if name.startswith("gradients")}
    return of_batch(edit_batch(exchanged, **turned, new_logprobs=new_BT, old_logprobs=old_BT))


def _without_kl() -> Batch:
    return healthy_batch(update=1, kl_coef=0.0, kl=None, kl_loss=None, kl_mean=None)


ILLNESS = illness(
    __name__,
    code="RAT04",
    severity=Severity.FATAL,
    summary="the gradient makes good tokens rarer: the ratio or the loss is upside down",
    fix="Compute the ratio as exp(new - old) and minimise -min(ratio * A, clip(ratio) * A).",
    symptoms=(
        "reward goes down",
        "reward decreases during training",
        "policy gets worse",
        "ratio is inverted",
        "good answers become rarer",
    ),
    sick=sick,
    well=lambda: of_batch(consistent(_without_kl())),
    scripts=Scripts(sick=with_change("torch.exp(new - old)", "torch.exp(old - new)"), well=GRPO),
    explains=frozenset({"CLIP02", "KL02", "LOSS01", "LOSS06", "RAT01", "RAT07", "MET02", "MET05", "MET07"}),
)
