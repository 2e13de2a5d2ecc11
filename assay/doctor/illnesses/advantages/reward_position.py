"""
## What it checks
Where rewards are laid on tokens (PPO), the reward of an answer sits on its last trainable token, and all other tokens
hold the KL penalty or 0. The check takes the KL penalty off, looks where the reward of each row is found, and whether
it is there at all.

## Why it hurts
A reward on padding is masked away: the row teaches nothing. On the first token, everything after it has a return of 0,
so that only the first token is credited. Laid on every token, long answers earn their reward many times over.

## How to fix it
Take the index of the last token from the mask, after any gather or padding, and add the reward there once.

    # before: the last column, which is padding in all but the longest row
    token_rewards[:, -1] += rewards
    # after
    last = mask.long().cumsum(1).argmax(1)
    token_rewards[torch.arange(len(rewards)), last] += rewards

## When it is wrong
Process rewards stand at the ends of their steps by design and are not judged. A KL penalty that cannot be computed
again (another estimator, a clamp) leaves small numbers on every token; only a reward found elsewhere, everywhere or
nowhere is reported. Rewards that were normalised before they were laid are 0 in a group of equals: that a reward is
nowhere is only possible.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from assay.doctor.catalogue import illness
from assay.doctor.evidence import Batch
from assay.doctor.examples import edit_batch, healthy_batch, of_batch, without_groups
from assay.doctor.recompute.terms import kl_estimates
from assay.record.batch import Array
from assay.verdict import (
    Confidence,
    Fact,
    Missing,
    Severity,
    Verdict,
    finding,
    healthy,
    not_applicable,
    not_enough_data,
)

NEAR_REWARD = 0.05  # of a reward's size: what a slightly different KL penalty may leave on a token
VISIBLE = 10.0  # times the largest penalty: a smaller reward cannot be distinguished from it
FEWEST_ROWS = 2  # one row may be a special case
NOWHERE = "is nowhere"


def check_batch(batch: Batch) -> Verdict:
    if batch.settings.get("process_rewards"):
        return not_applicable("rewards come per step")
    if batch.get("token_rewards") is None and "baseline" in batch.settings:
        return not_applicable("rewards are compared within groups, not laid on tokens")
    laid_BT, mask_BT, rewards_B = batch.need("token_rewards", "mask", "rewards")
    penalty_BT = _penalty(batch, mask_BT)
    bare_BT = np.nan_to_num(laid_BT + penalty_BT)
    places = {
        row: _place(bare_BT[row], mask_BT[row], float(rewards_B[row]))
        for row in range(len(rewards_B))
        if _is_judged(float(rewards_B[row]), penalty_BT[row], mask_BT[row])
    }
    if len(places) < FEWEST_ROWS:
        return not_enough_data(f"{FEWEST_ROWS} rows with a reward that stands out from the KL penalty")
    wrong = {row: place for row, place in places.items() if place not in ("", "unclear")}
    fact = Fact("rows whose reward is not on their last token", len(wrong), 0, batch.step)
    if not wrong:
        if all(place == "unclear" for place in places.values()):
            return not_enough_data("kl: what was laid on tokens beside the reward")
        return healthy("rewards sit on the last trainable token", fact)
    place, count = Counter(wrong.values()).most_common(1)[0]
    row = next(row for row, where in wrong.items() if where == place)
    sure = Confidence.PROVEN if len(wrong) >= FEWEST_ROWS else Confidence.LIKELY
    is_stray = count < FEWEST_ROWS <= len(places) - count  # a small reward may look like a KL penalty by chance
    return finding(
        f"the reward of {count} of {len(places)} rows {place} instead of on the last trainable token (row {row}: "
        f"reward {float(rewards_B[row]):.3g}, token {int(np.flatnonzero(mask_BT[row])[-1])})",
        fact,
        Fact("sum of the row's token rewards, KL taken off", float(bare_BT[row].sum()), step=batch.step, row=row),
        confidence=Confidence.POSSIBLE if place == NOWHERE or is_stray else sure,
        severity=Severity.HARMFUL if is_stray else None,
    )


def _penalty(batch: Batch, mask_BT: Array) -> Array:
    """kl_coef * KL of each token where that is in the reward; 0 elsewhere."""
    coefficient = float(batch.settings.get("kl_coef", 0.0))
    if coefficient == 0.0 or batch.settings.get("kl_placement", "loss") != "reward":
        return np.zeros(mask_BT.shape)
    kl_BT = batch.get("kl")
    if kl_BT is None:
        old_BT, ref_BT = batch.need("old_logprobs", "ref_logprobs")
        estimates = kl_estimates((old_BT - ref_BT).clip(-20.0, 20.0))
        kl_BT = estimates.get(batch.settings.get("kl_estimator", "k1"))
        if kl_BT is None:
            raise Missing("kl: of an estimator that is not known here")
    return np.where(mask_BT, np.nan_to_num(coefficient * kl_BT), 0.0)


def _is_judged(reward: float, penalty_T: Array, mask_T: Array) -> bool:
    """Rows of one token have only one place; a reward of 0 has none."""
    visible = max(VISIBLE * float(np.abs(penalty_T).max(initial=0.0)), 1e-6)
    return bool(np.isfinite(reward) and abs(reward) > visible and mask_T.sum() > 1)


def _place(bare_T: Array, mask_T: Array, reward: float) -> str:
    """Where the reward is: "" on the last trainable token, "unclear" where the numbers fit no pattern."""
    inside = np.flatnonzero(mask_T)
    first, last = int(inside[0]), int(inside[-1])
    has_T = np.abs(bare_T - reward) <= NEAR_REWARD * abs(reward)
    empty_T = np.abs(bare_T) <= NEAR_REWARD * abs(reward)
    found = np.flatnonzero(has_T)
    if has_T[last]:
        return "is on every token" if has_T[inside].all() else ""
    if not empty_T[last]:
        return "unclear"
    if len(found) != 1:
        return NOWHERE if empty_T.all() else "unclear"
    at = int(found[0])
    if at == first:
        return "is on the first token"
    if mask_T[at]:
        return "is on an earlier token"
    return f"is on a token outside of the mask, {'after' if at > last else 'before'} it,"


def laid_on_tokens(batch: Batch, *, at_the_end: bool) -> Batch:
    """As PPO has it, with k1 in the reward: the reward on the last token or, wrongly, in the last column.

    Groups, advantages and what a loss made of them are left out.
    """
    mask_BT, rewards_B = batch.need("mask", "rewards")
    rows, width = mask_BT.shape
    last_B = np.where(mask_BT.any(axis=1), width - 1 - mask_BT[:, ::-1].argmax(axis=1), 0)
    laid_BT = np.zeros(mask_BT.shape)
    changes = {**without_groups(batch), "kl": batch.get("kl")}  # which is laid on tokens here
    if "ref_logprobs" in batch.arrays:
        kl_BT = np.where(mask_BT, batch.arrays["old_logprobs"] - batch.arrays["ref_logprobs"], 0.0)
        laid_BT -= 0.05 * kl_BT
        changes |= {"kl_coef": 0.05, "kl_placement": "reward", "kl_estimator": "k1", "kl": kl_BT}
    laid_BT[np.arange(rows), last_B if at_the_end else np.full(rows, width - 1)] += np.nan_to_num(rewards_B)
    return edit_batch(batch, **changes, token_rewards=laid_BT, advantages=None)


ILLNESS = illness(
    __name__,
    code="ADV12",
    severity=Severity.FATAL,
    summary="the reward of an answer is not on its last trainable token",
    fix="Take the index of the last token from the mask, after any padding or gather, and add the reward there once.",
    symptoms=(
        "reward on the wrong token",
        "reward lands on padding",
        "only the last token should get the reward",
    ),
    sick=lambda: of_batch(laid_on_tokens(healthy_batch(), at_the_end=False)),
    well=lambda: of_batch(laid_on_tokens(healthy_batch(), at_the_end=True)),
)
