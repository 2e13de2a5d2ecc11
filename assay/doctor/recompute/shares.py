"""Token gradients without a stated objective: what share of ratio * advantage reaches each token?

Every policy gradient with token ratios gives a token its weight times its advantage times its ratio (or 1), all of it,
or nothing where a clip stops it. So the shares are 1 and 0, and which tokens have 0 shows the clip, or something else.
Shape legend: B completions, T completion tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from assay.doctor.recompute.credit_space import column_advantages, order_that_fits
from assay.doctor.recompute.loss import AGGREGATIONS, weights, without_clip
from assay.doctor.recompute.terms import gradient_parts, loss_settings, terms
from assay.record.batch import Array, Batch
from assay.verdict import Missing

WHOLE = 0.02  # of a share: it is 1 or 0, or of another kind
NEARLY_ALL = 0.995  # of the tokens, whose shares must be so
LEAST_ALIVE = 8  # tokens with a gradient
SAME = 1e-3  # relative: implied advantages that are the same


@dataclass(frozen=True)
class Shares:
    """Of each token with an advantage: whether all or nothing of ratio * advantage reaches it."""

    judged_BT: Array
    alive_BT: Array
    dead_BT: Array
    ratio_BT: Array
    has_ratio: bool  # the gradient has the ratio in it
    aggregation: str


def shares_of(batch: Batch) -> Shares | None:
    """None where no way to weigh the tokens makes all shares 1 or 0. Raises Missing without what it takes."""
    recorded_BT, mask_BT, _, advantages = batch.need("gradients", "mask", "new_logprobs", "advantages")
    coefficient = batch.setting("kl_coef")
    if coefficient and (not {"kl_placement", "kl_estimator"} <= batch.settings.keys()):
        raise Missing("kl_placement", "kl_estimator")
    if batch.settings.get("correction", "off") != "off" or not np.isfinite(advantages).all():
        return None
    if batch.get("old_logprobs") is None:  # a plain policy gradient
        batch = replace(batch, arrays={**batch.arrays, "old_logprobs": batch.arrays["new_logprobs"]})
    known = {name: value for name, value in batch.settings.items() if name != "objective"}
    batch = replace(batch, settings={**known, "objective": "grpo", "correction": "off"})
    settings = without_clip(loss_settings(batch))
    ratio_BT = terms(batch, settings).ratio_BT
    size = float(np.abs(batch.token_advantages[mask_BT]).max(initial=0.0))
    judged_BT = mask_BT & np.isfinite(recorded_BT) & (np.abs(batch.token_advantages) > 1e-3 * size)
    if judged_BT.sum() < LEAST_ALIVE or size == 0:
        return None
    for aggregation in AGGREGATIONS:
        try:
            policy_BT, kl_BT = gradient_parts(batch, weights(batch, aggregation), settings)
        except Missing:
            continue
        for has_ratio in (True, False):
            pull_BT = policy_BT if has_ratio else np.divide(policy_BT, ratio_BT)
            found = _whole_or_none(recorded_BT, pull_BT, kl_BT, judged_BT)
            if found is not None:
                return Shares(judged_BT, *found, ratio_BT, has_ratio, aggregation)
    return None


def _whole_or_none(recorded_BT: Array, pull_BT: Array, kl_BT: Array, judged_BT: Array) -> tuple[Array, Array] | None:
    clear_BT = judged_BT & (np.abs(pull_BT) > 20 * np.abs(kl_BT)) & (recorded_BT != 0) & (pull_BT != 0)
    factors = recorded_BT[clear_BT] / pull_BT[clear_BT]
    factors = factors[np.abs(factors) > WHOLE * np.abs(factors).max(initial=0.0)]
    scale = float(np.median(factors)) if len(factors) else 0.0
    if scale <= 0 or not np.isfinite(scale):
        return None
    with np.errstate(all="ignore"):
        share_BT = np.where(judged_BT, (recorded_BT / scale - kl_BT) / pull_BT, 0.0)
    # where the KL pulls much harder than the advantage, its rounding hides the share
    seen_BT = judged_BT & (np.abs(pull_BT) > np.abs(kl_BT) * SAME) & np.isfinite(share_BT)
    alive_BT, dead_BT = seen_BT & (np.abs(share_BT - 1) < WHOLE), seen_BT & (np.abs(share_BT) < WHOLE)
    is_whole = (alive_BT | dead_BT).sum() >= NEARLY_ALL * seen_BT.sum() and alive_BT.sum() >= LEAST_ALIVE
    return (alive_BT, dead_BT) if is_whole else None


def misplaced(batch: Batch) -> str:
    """In words, where the gradients are those of the advantages of other rows, or of columns; else ""."""
    recorded_BT, mask_BT, new_BT, advantages = batch.need("gradients", "mask", "new_logprobs", "advantages")
    if batch.settings.get("kl_coef", 1.0) or advantages.ndim != 1 or not np.isfinite(advantages).all():
        return ""
    old_BT = batch.get("old_logprobs")
    ratio_BT = np.exp(np.clip(np.where(mask_BT, new_BT - (new_BT if old_BT is None else old_BT), 0.0), -20, 20))
    if len(np.unique(np.round(advantages, 6))) < 3:
        return ""
    for aggregation in AGGREGATIONS:
        try:
            weights_BT = weights(batch, aggregation)
        except Missing:
            continue
        inside_BT = mask_BT & np.isfinite(recorded_BT) & (weights_BT > 0)
        implied_BT = np.divide(-recorded_BT, weights_BT * ratio_BT, out=np.zeros(mask_BT.shape), where=inside_BT)
        size = float(np.abs(implied_BT).max(initial=0.0))
        if size == 0 or not inside_BT.any():
            continue
        if np.ptp(implied_BT[inside_BT]) <= SAME * size:
            return "every token gets the same gradient, whatever the advantage of its row"
        if column_advantages(implied_BT, inside_BT):
            return "the gradient follows the column and not the row: the advantages of rows are laid along the tokens"
        rows = np.flatnonzero(inside_BT.any(axis=1))
        spread_B = np.array([np.ptp(implied_BT[row][inside_BT[row]]) for row in rows])
        if len(rows) != len(advantages) or spread_B.max() > SAME * size:
            continue
        implied_B = np.array([implied_BT[row][inside_BT[row]][0] for row in rows])
        implied_B = implied_B * (np.linalg.norm(advantages) / max(float(np.linalg.norm(implied_B)), 1e-12))
        if np.abs(implied_B - advantages).max() <= 5 * SAME * np.abs(advantages).max():
            return ""
        groups = [np.arange(len(advantages))]
        order = order_that_fits(advantages, implied_B, groups, 5 * SAME)
        if order is not None and not order[0].startswith("the advantages are the right"):
            return f"the gradients are those of other rows: {order[0]}"
    return ""
