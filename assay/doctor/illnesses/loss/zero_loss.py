"""
## What it checks
A loss of 0, or nearly, has one of several causes; the check says which. On-policy with centred advantages: the ratio is
1, the advantages add up to 0, and so does the loss, while its gradient does not: nothing is wrong. Every other cause is
one: rewards that are all equal, nothing in the mask, everything clipped, importance weights near 0, a gradient that
reaches nothing, an update too small for the weights' precision, a NaN that was replaced by 0.

## Why it hurts
The harmless 0 and the fatal one look the same in a plot. People stop sound runs over the first, and let the second go
on for days: no error is raised, and the reward moves a little by chance.

## How to fix it
It depends on the cause, which the finding names. Look at the gradient norm, never at the loss, to see if a run learns.

    # before: the log-probs are cut off from the graph, so the loss is a number without a gradient
    ratio = (new.detach() - old).exp()
    # after
    ratio = (new - old).exp()

## When it is wrong
A batch in which no group has two different rewards has no gradient by right, be the task solved or still too hard: it
is not a finding here. A batch without gradients and gradient norm cannot be told apart from the harmless case if it is
on-policy.
"""

from __future__ import annotations

import numpy as np

from assay.doctor.catalogue import illness
from assay.doctor.evidence import Batch, Curves, Evidence
from assay.doctor.examples import edit_batch, healthy_batch, healthy_curves
from assay.doctor.facts.trend import STEPS, is_solved, reward_range
from assay.doctor.illnesses.advantages.zero_signal import answers_differ, is_beyond_luck
from assay.doctor.illnesses.masks.empty_mask import cannot_be_meant
from assay.doctor.illnesses.metrics.signal_lost import weights_of
from assay.doctor.recompute.advantages import has_whole_groups, other_kind
from assay.verdict import Confidence, Fact, Missing, Severity, Verdict, finding, healthy, not_applicable

NEAR_ZERO = 1e-3  # of the mean |advantage|
NEAREST = 1e-6  # absolute
ALL = 0.99  # of the loss tokens with an advantage
NOTHING = 1e-2  # mean importance weight: the loss is then less than a hundredth of what it should be
UNCHANGED = 1e-3  # share of the numbers that the update changed
NO_GRADIENT = 1e-12
CURVE_NEAR = 1e-3  # advantages have size 1


def check_batch(batch: Batch) -> Verdict:
    loss = float(batch.number("loss"))
    if not np.isfinite(loss):
        return not_applicable(f"the loss is {loss}, not 0: not_finite (NUM03) speaks of that")
    mask_BT, _ = batch.need("mask", "advantages")
    in_loss = batch.token_advantages[mask_BT]
    known = in_loss[np.isfinite(in_loss)]
    size = float(np.abs(known).mean()) if len(known) else 0.0
    limit = max(NEAREST, NEAR_ZERO * size)
    fact = Fact("loss", loss, limit, batch.step)
    if not abs(loss) <= limit:
        return healthy("the loss is not near 0", fact)
    for cause in (_hidden_nan, _nothing_in_mask, _no_advantage, _all_clipped, _no_weight, _no_gradient, _no_change):
        if (verdict := cause(batch, fact)) is not None:
            return verdict
    facts = [fact, Fact("mean |advantage| of the loss tokens", size), *_pull(batch)]
    if len(facts) > 2:
        return healthy(
            "the loss is near 0 because advantages cancel; its gradient does not, and learning goes on", *facts
        )
    if not batch.is_on_policy:
        raise Missing("gradients or gradient_norm")
    return healthy("the loss is near 0 as it must be: on-policy the ratio is 1 and centred advantages cancel", *facts)


def check_curves(curves: Curves) -> Verdict:
    loss_N, norm_N = curves.need("loss", "gradient_norm")
    if len(curves) < STEPS:
        raise Missing(f"loss of {STEPS} steps")
    loss, norm = float(np.nanmedian(np.abs(loss_N))), float(np.nanmedian(norm_N))
    facts = [Fact("median |loss|", loss, CURVE_NEAR), Fact("median gradient norm", norm)]
    if loss > CURVE_NEAR:
        return healthy("the loss is not near 0", *facts)
    if norm > NO_GRADIENT:
        return healthy(
            "the loss is near 0 because advantages cancel; the gradient does not, and learning goes on", *facts
        )
    if is_solved(curves):
        return healthy("loss and gradient are 0: the task is solved", *facts)
    (flat_N, reward_N) = curves.need("zero_variance_share", "reward_mean")
    flat, reward = float(np.nanmedian(flat_N)), float(np.nanmedian(reward_N))
    facts += [Fact("groups whose rewards are all equal", flat), Fact("median reward", reward)]
    if flat >= ALL and reward <= reward_range(curves)[0]:
        return not_applicable(f"every reward is {reward:g}, the worst; reward_constant (REW01) speaks of that")
    cause = "the rewards of every group are all equal" if flat >= ALL else "although rewards differ within groups"
    return finding(
        f"loss and gradient are 0 in most steps, with a reward of {reward:.2g}: {cause}",
        *facts,
    )


def _hidden_nan(batch: Batch, loss: Fact) -> Verdict | None:
    (mask_BT,) = batch.need("mask")
    inputs = {"advantages": batch.token_advantages}
    inputs |= {name: values for name in ("new_logprobs", "old_logprobs") if (values := batch.get(name)) is not None}
    for name, values_BT in inputs.items():
        bad_BT = mask_BT & ~np.isfinite(values_BT)
        if bad_BT.any():
            row, token = (int(place[0]) for place in np.nonzero(bad_BT))
            return finding(
                f"the loss is {loss.value:.2g} although {name} of {bad_BT.sum()} loss tokens are not finite: a NaN was "
                "replaced by 0 on its way",
                loss,
                Fact(f"{name} that are not finite", int(bad_BT.sum()), 0, batch.step, row, token),
                severity=Severity.FATAL,
                fix=f"Find where {name} become NaN (an unscored reward, an overflow) and take the nan_to_num away.",
            )
    return None


def _nothing_in_mask(batch: Batch, loss: Fact) -> Verdict | None:
    (mask_BT,) = batch.need("mask")
    if mask_BT.any():
        return None
    sure = cannot_be_meant(batch)
    return finding(
        f"the loss is {loss.value:.2g} because none of {mask_BT.size} positions is in the mask",
        loss,
        Fact("loss tokens", 0, 1, batch.step),
        confidence=Confidence.PROVEN if sure else Confidence.POSSIBLE,  # answers cut off may be left out on purpose
        severity=Severity.FATAL if sure else Severity.WASTEFUL,
        fix="See how the mask is made; if answers cut off by the limit are masked, raise max_tokens.",
    )


def _no_advantage(batch: Batch, loss: Fact) -> Verdict | None:
    (mask_BT,) = batch.need("mask")
    if (batch.token_advantages[mask_BT] != 0).any():
        return None
    rewards_B, groups_B = batch.get("rewards"), batch.get("group_ids")
    if rewards_B is None or not np.isfinite(rewards_B).any():
        raise Missing("rewards")
    known = rewards_B[np.isfinite(rewards_B)]
    low, high = float(known.min()), float(known.max())
    facts = (loss, Fact("smallest reward", low), Fact("largest reward", high))
    if low == high:
        if low >= float(batch.settings.get("max_reward", 1.0)):
            return not_applicable(f"every reward is {low:g}, the best: solved, or a reward that every answer gets")
        if low <= float(batch.settings.get("min_reward", 0.0)):
            return not_applicable(f"every reward is {low:g}, the worst: too hard so far, or never recognised as right")
        is_stated = {"min_reward", "max_reward"} <= batch.settings.keys()
        return finding(
            f"the loss is 0 because every reward is {low:g}: the reward is constant",
            *facts,
            # of a scale that is not stated it may be the best: a solved batch
            confidence=Confidence.LIKELY if is_stated else Confidence.POSSIBLE,
            severity=Severity.FATAL if is_stated else Severity.HARMFUL,
            fix="Call the reward by hand on a right and a wrong answer; an except that returns a default is usual.",
        )
    if groups_B is None or batch.settings.get("process_rewards"):
        raise Missing("group_ids")
    if reason := other_kind(batch):
        raise Missing(f"advantages of groups: {reason}")
    # a row that is left out of the loss may have an advantage, and one like its group's mean has none
    trained_B = np.asarray(mask_BT.any(axis=1))
    scored = [(groups_B == group) & np.isfinite(rewards_B) for group in np.unique(groups_B)]
    groups = [(rewards_B[rows], trained_B[rows]) for rows in scored if rows.any()]
    spreads = [
        np.abs(rewards[trained] - rewards.mean()).max() if np.ptp(rewards) > CURVE_NEAR * np.abs(rewards).max() else 0.0
        for rewards, trained in groups
        if trained.any()
    ]
    is_flat = all(np.ptp(rewards) == 0 for rewards, _ in groups)
    largest = float(max(spreads, default=0.0))
    if not spreads or (largest == 0 and not is_flat):
        raise Missing("rewards of rows in the loss that differ from their group's mean")
    if largest == 0:
        return finding(
            f"the loss is 0 because rewards differ between groups ({low:g} to {high:g}) and never within one",
            *facts,
            confidence=Confidence.LIKELY if answers_differ(batch) and is_beyond_luck(batch) else Confidence.POSSIBLE,
            fix="See whether the answers of a group differ at all (seed, temperature) and whether rewards see them.",
        )
    sure = has_whole_groups(batch) and "baseline" in batch.settings
    return finding(
        f"the loss is 0 because every advantage is 0, although rewards differ by up to {largest:g} from their "
        "group's mean",
        *facts,
        Fact("largest distance of a reward from its group's mean", largest, 0.0),
        # the rest of a group may lie elsewhere, and a critic may be the baseline
        confidence=Confidence.PROVEN if sure else Confidence.POSSIBLE,
        severity=Severity.FATAL if sure else Severity.HARMFUL,
        fix="Look at the line between rewards and advantages: a wrong mask, a reshape, an integer division.",
    )


def _all_clipped(batch: Batch, loss: Fact) -> Verdict | None:
    mask_BT, clipped_BT = batch.arrays["mask"], batch.get("clipped")
    if clipped_BT is None:
        return None
    share = float(clipped_BT[mask_BT & (batch.token_advantages != 0)].mean())
    if share < ALL:
        return None
    return finding(
        f"the gradient is 0 because {share:.0%} of the loss tokens are clipped",
        loss,
        Fact("clipped share of the tokens with an advantage", share, ALL, batch.step),
        confidence=Confidence.LIKELY,
        fix="The policy has left the clip range: lower the learning rate or the updates per rollout, or check old.",
    )


def _no_weight(batch: Batch, loss: Fact) -> Verdict | None:
    mask_BT = batch.arrays["mask"]
    weight = float(weights_of(batch)[mask_BT].mean())
    if weight > NOTHING:
        return None
    return finding(
        f"the loss is near 0 because the importance weights old / sampler are: their mean is {weight:.2g}",
        loss,
        Fact("mean importance weight", weight, NOTHING, batch.step),
        severity=Severity.FATAL,
        fix="Make sampler and trainer agree on the log-probs, or use the length-normalised (geometric) weight.",
    )


def _no_gradient(batch: Batch, loss: Fact) -> Verdict | None:
    pull = _pull(batch)
    known = np.abs(batch.token_advantages[batch.arrays["mask"]])
    limit = NO_GRADIENT * min(float(known[np.isfinite(known)].max(initial=0.0)), 1.0)  # rewards may be tiny
    if not pull or max(float(fact.value) for fact in pull) > limit:
        return None
    return finding(
        "advantages are not 0 and the gradient is: the loss is not connected to the policy",
        loss,
        *pull,
        severity=Severity.FATAL,
        fix="The log-probs of the policy are detached or computed under no_grad; let the loss see them with gradient.",
    )


def _no_change(batch: Batch, loss: Fact) -> Verdict | None:
    pull, numbers = _pull(batch), batch.numbers
    if not pull or batch.settings.get("learning_rate", 1.0) == 0:
        return None
    if numbers.get("tensors_changed") == 0:
        return finding(
            "the gradient is there and the update changed none of the weights: they are frozen, or not those of the "
            "optimizer",
            loss,
            *pull,
            Fact("tensors changed", 0, int(numbers.get("tensors", 1)), batch.step),
            confidence=Confidence.LIKELY,  # no_update (OPT02) proves it
            fix="Make the optimizer from the parameters of the model that computes the loss, after it is final.",
        )
    share = numbers.get("numbers_changed_share")
    if share is None or share > UNCHANGED:
        return None
    return finding(
        f"the gradient is there and the update changed {share:.2%} of the numbers: it is below their precision",
        loss,
        *pull,
        Fact("share of the numbers that changed", float(share), UNCHANGED, batch.step),
        confidence=Confidence.LIKELY,  # pure_bf16 (OPT01) proves it
        fix="Keep float32 master weights; in bfloat16 a change below 1/256 of a weight is rounded away.",
    )


def _pull(batch: Batch) -> list[Fact]:
    """What proves that a gradient is there, as far as it was recorded."""
    facts = []
    if (gradients_BT := batch.get("gradients")) is not None:
        facts.append(Fact("sum of |d loss / d new| over tokens", float(np.abs(np.nan_to_num(gradients_BT)).sum())))
    if "gradient_norm" in batch.numbers:
        facts.append(Fact("gradient norm", float(batch.numbers["gradient_norm"])))
    return facts


def _detached(left: float) -> Batch:
    """Advantages that cancel over the tokens; `left` of the gradient is left."""
    batch = healthy_batch(kl_coef=0.0, ref_logprobs=None, plain_ref_logprobs=None, kl=None, kl_loss=None, kl_mean=None)
    mask_BT = batch.arrays["mask"]
    advantages_B = batch.arrays["advantages"]
    rows_B = mask_BT.sum(axis=1) / mask_BT.sum()
    positive_B = advantages_B > 0
    # equal lengths in effect: the positive rows weigh as much as the negative ones
    scale = float(-(advantages_B * rows_B)[~positive_B].sum() / (advantages_B * rows_B)[positive_B].sum())
    advantages_B = np.where(positive_B, scale * advantages_B, advantages_B)
    gradients_BT = left * -advantages_B[:, None] * mask_BT / mask_BT.sum()
    gone = dict.fromkeys(
        ("rewards", "group_ids", "token_loss", "policy_loss", "gradients_split", "gradients_perturbed")
    )
    losses = {name: 0.0 for name in batch.numbers if name.startswith("loss")}
    changed = {} if left else {"tensors_changed": None, "tensors_without_gradient": None, "numbers_changed_share": None}
    return edit_batch(
        batch,
        advantages=advantages_B,
        gradients=gradients_BT,
        gradient_norm=0.5 * left,
        **gone,
        **losses,
        **changed,
    )


def sick() -> Evidence:
    """The log-probs are detached: the loss is what it should be, its gradient is nothing."""
    curves = healthy_curves(
        loss=1e-5, gradient_norm=0.0, gradient_norm_max=0.0, updates_applied=0, updates_without_signal=2
    )
    return Evidence((_detached(0.0),), curves)


ILLNESS = illness(
    __name__,
    code="LOSS05",
    severity=Severity.HARMFUL,
    summary="the loss is 0 and nothing is learned",
    fix="Look at the gradient norm: if it is 0 too, follow the cause that the finding names.",
    symptoms=(
        "loss is zero",
        "loss is 0",
        "loss starts at 0",
        "loss is always 0",
        "loss 0.0 from the first step",
        "loss goes to 0",
        "loss near zero but reward changes",
    ),
    sick=sick,
    well=lambda: Evidence((_detached(1.0),), healthy_curves(loss=1e-5)),
    explains=frozenset({"MET05", "RAT02", "OPT02", "OPT01"}),
)
