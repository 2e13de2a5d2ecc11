"""
## What it checks
Where the generated tokens go, one loss after the other: cut off and masked, in groups whose rewards are all equal, with
an advantage of 0 for another reason, masked, clipped, with an importance weight near 0. What is left carries the
reward's signal into the weights. The shares are always shown; below 10 % it is a finding.

## Why it hurts
Generating is most of the cost of a step. A run that trains on one token in twenty pays twenty times for it, and its
gradient is that of a small, noisy batch.

## How to fix it
Begin with the largest loss. Equal rewards: prompts of the right difficulty, larger groups, dynamic sampling. Cut off: a
higher limit. Clipped: fewer updates per rollout. Weights near 0: make sampler and trainer agree.

    # before: groups without signal are generated, and then weigh nothing
    config.rollout.zero_variance = "keep"
    # after: other prompts take their place
    config.rollout.zero_variance = "refill"

## When it is wrong
A run that has solved its task has no signal left, as it should. A run with a KL in its loss moves the weights on every
loss token all the same, only not by the reward. A run in which no group has any signal is zero_signal.
"""

from __future__ import annotations

import numpy as np

from assay.doctor.catalogue import illness
from assay.doctor.evidence import Batch, Curves, Evidence
from assay.doctor.examples import edit_batch, healthy_batch, healthy_curves, of_the_loss
from assay.doctor.facts.logprobs import completion_places
from assay.doctor.facts.trend import SOLVED, STEPS, is_solved
from assay.doctor.recompute.loss import is_part
from assay.doctor.recompute.terms import correction, loss_settings
from assay.record.batch import Array
from assay.verdict import Confidence, Fact, Missing, Severity, Verdict, finding, healthy, not_applicable

LEAST_SHARE = 0.1  # of the generated tokens
FEW_TOKENS = 100  # tokens: of fewer a share means little
NOTHING = 1e-3  # an importance weight below moves nothing


def check_batch(batch: Batch) -> Verdict:
    (mask_BT,) = batch.need("mask")
    advantages_BT = np.nan_to_num(batch.token_advantages)
    inside_BT = _inside(batch, mask_BT)
    generated = int(inside_BT.sum())
    if generated == 0:
        return not_applicable("no token was generated")
    facts = [Fact("tokens generated", generated)]
    alive_BT = inside_BT

    def lose(what: str, lost_BT: Array) -> None:
        nonlocal alive_BT
        lost = int((alive_BT & lost_BT).sum())
        if lost:
            facts.append(Fact(f"lost: {what}", f"{lost} ({lost / generated:.0%})"))
        alive_BT = alive_BT & ~lost_BT

    out_B1 = np.asarray(~mask_BT.any(axis=1, keepdims=True))
    finished_B = batch.get("finished")
    if finished_B is not None and _masks_cut_off(batch, np.asarray(~mask_BT.any(axis=1)), finished_B):
        lose("cut off and masked", np.broadcast_to(out_B1 & ~finished_B[:, None], mask_BT.shape))
    flat_B = _flat_rows(batch)
    if flat_B is not None:
        lose("in groups whose rewards are all equal", np.broadcast_to(flat_B[:, None], mask_BT.shape))
    lose("with an advantage of 0", advantages_BT == 0)
    lose("masked", ~mask_BT)
    if (clipped_BT := batch.get("clipped")) is not None:
        lose("clipped", clipped_BT)
    lose("with an importance weight near 0", weights_of(batch) < NOTHING)
    left = int(alive_BT.sum())
    facts.append(Fact("left: tokens that carry the reward's signal", f"{left} ({left / generated:.0%})"))
    share = left / generated
    if share >= LEAST_SHARE:
        return healthy(f"{share:.0%} of the generated tokens carry the reward's signal", *facts)
    rewards_B = batch.get("rewards")
    if rewards_B is not None and np.isfinite(rewards_B).any():
        best, worst = batch.settings.get("max_reward"), float(batch.settings.get("min_reward", 0.0))
        if best is not None and best - np.nanmean(rewards_B) <= SOLVED * (best - worst):
            return healthy(f"{share:.0%} of the tokens carry a signal: the task is solved", *facts)
    if flat_B is not None and flat_B.all():
        return not_applicable("no group has two different rewards; zero_signal (ADV09) speaks of that")
    in_flat_groups = 0 if flat_B is None else int((inside_BT & flat_B[:, None]).sum())
    if not mask_BT.any():
        return not_applicable("no token is in the loss; empty_mask (MASK06) speaks of that")
    silent = int((inside_BT & _left_out(batch, mask_BT, advantages_BT, flat_B)).sum())
    # equal rewards: another step may have fewer
    by_chance = left >= LEAST_SHARE * (generated - in_flat_groups - silent)
    return finding(
        f"only {left} of {generated} generated tokens ({share:.1%}) carry the reward's signal into the weights",
        Fact("share that carries signal", share, LEAST_SHARE, batch.step),
        *facts,
        confidence=Confidence.POSSIBLE if by_chance or is_part(batch) or generated < FEW_TOKENS else Confidence.LIKELY,
    )


def _masks_cut_off(batch: Batch, out_B: Array, finished_B: Array) -> bool:
    """Whether rows are out because they were cut off: a setting says so, or none says otherwise and all of them are."""
    stated = batch.settings.get("mask_truncated")
    return bool(out_B[~finished_B].all()) if stated is None else bool(stated)


def check_curves(curves: Curves) -> Verdict:
    in_loss_N, generated_N = curves.need("tokens_in_loss", "tokens_generated")
    with np.errstate(divide="ignore", invalid="ignore"):
        kept_N = np.where(generated_N > 0, in_loss_N / generated_N, np.nan)
    if len(curves) < STEPS or not np.isfinite(kept_N).any():
        raise Missing(f"tokens_in_loss of {STEPS} steps")
    kept = float(np.nanmedian(kept_N))
    flat = _median(curves, "zero_variance_share")
    clipped = _median(curves, "clipped_share")
    # groups that are skipped or refilled are already out of the loss
    counted = flat if curves.settings.get("zero_variance", "keep") == "keep" else 0.0
    facts = [Fact("median tokens generated a step", float(np.nanmedian(generated_N)))]
    if curves.settings.get("mask_truncated"):
        facts.append(Fact("lost: cut off and masked, share of the answers", _median(curves, "truncated_share")))
    facts += [
        Fact("in groups whose rewards are all equal, share of the groups", flat),
        Fact("in the loss, share of the generated tokens", kept),
        Fact("clipped, share of the loss tokens", clipped),
    ]
    share = kept * (1.0 - counted) * (1.0 - clipped)
    facts.append(Fact("left: share that carries the reward's signal", share, LEAST_SHARE))
    if share >= LEAST_SHARE:
        return healthy(f"about {share:.0%} of the generated tokens carry the reward's signal", *facts)
    if is_solved(curves):
        return healthy(f"about {share:.0%} of the tokens carry a signal: the task is solved", *facts)
    if flat == 1.0:
        return not_applicable("no group has two different rewards; zero_signal (ADV09) speaks of that")
    return finding(f"only about {share:.1%} of the generated tokens carry the reward's signal into the weights", *facts)


def _left_out(batch: Batch, mask_BT: Array, advantages_BT: Array, flat_B: Array | None) -> Array:
    """What may be without signal on purpose, or by right: who knows? Groups of equal rewards are not counted here.

    Without rewards an advantage of 0 means nothing: a batch may be solved, or too hard so far. Tokens that are not
    trained may be a tool's, and rows may be left out for other reasons than their length.
    """
    finished_B, out_B1 = batch.get("finished"), ~mask_BT.any(axis=1, keepdims=True)
    left_out_BT = ~mask_BT if batch.get("forced") is None else np.broadcast_to(out_B1, mask_BT.shape)
    if finished_B is not None:  # these were too long, and that is known
        left_out_BT = left_out_BT & ~(out_B1 & ~finished_B[:, None])
    return left_out_BT | (advantages_BT == 0) if flat_B is None else left_out_BT & ~flat_B[:, None]


def _inside(batch: Batch, mask_BT: Array) -> Array:
    """The tokens that were sampled; where no lengths are known, what is in the loss is all that is known of."""
    lengths_B = batch.get("lengths")
    if lengths_B is None:
        return mask_BT
    inside_BT = completion_places(batch)
    forced_BT = batch.get("forced")
    return inside_BT if forced_BT is None else inside_BT & ~forced_BT


def _flat_rows(batch: Batch) -> Array | None:
    rewards_B, groups_B = batch.get("rewards"), batch.get("group_ids")
    if rewards_B is None or groups_B is None or batch.settings.get("process_rewards"):
        return None
    flat_B = np.zeros(len(rewards_B), dtype=bool)
    for group in np.unique(groups_B):
        rows_B = groups_B == group
        known = rewards_B[rows_B & np.isfinite(rewards_B)]
        flat_B[rows_B] = len(known) == 0 or known.min() == known.max()
    return flat_B


def weights_of(batch: Batch) -> Array:
    """Importance weights old / sampler of the configured correction; 1 where there is none."""
    (mask_BT,) = batch.need("mask")
    known = "old_logprobs" in batch.arrays and "sampler_logprobs" in batch.arrays
    weights = correction(batch, loss_settings(batch)) if known and "correction" in batch.settings else 1.0
    return np.asarray(np.broadcast_to(weights, mask_BT.shape))


def _median(curves: Curves, name: str) -> float:
    """0 for what is not known, or cannot be a share: metric_wrong (MET06) speaks of that."""
    share = float(np.nanmedian(curves.need(name)[0])) if curves.has(name) else 0.0
    return share if 0.0 <= share <= 1.0 else 0.0


def _with_loss_of(rows: int) -> Batch:
    """Only the first rows are in the loss; everything that was computed from the others is left out."""
    batch = healthy_batch(update=1)
    mask_BT = batch.arrays["mask"] & (np.arange(len(batch.arrays["mask"])) < rows)[:, None]
    finished_B = np.arange(len(mask_BT)) < rows
    tokens_BT = np.where(batch.arrays["tokens"] == 1, 3, batch.arrays["tokens"])
    tokens_BT[:rows] = batch.arrays["tokens"][:rows]
    gone = ("input_ids", "sampled_tokens", "position_ids", "attention_mask", "plain_logprobs")
    changes = {**of_the_loss(batch), **dict.fromkeys(gone), "mask_truncated": True}
    return edit_batch(batch, mask=mask_BT, finished=finished_B, tokens=tokens_BT, **changes)


ILLNESS = illness(
    __name__,
    code="MET07",
    severity=Severity.WASTEFUL,
    summary="hardly any of the generated tokens carry the reward's signal into the weights",
    fix="Look at the largest loss in the list: rewards all equal, answers cut off, tokens clipped or weighed with 0.",
    symptoms=(
        "most samples are wasted",
        "learns very slowly",
        "reward barely improves",
        "reward does not move",
        "reward does not increase",
        "few samples carry signal",
        "learning is slow although steps are fast",
    ),
    sick=lambda: Evidence((_with_loss_of(1),), healthy_curves(tokens_in_loss=400)),
    well=lambda: Evidence((_with_loss_of(6),), healthy_curves(tokens_in_loss=1000)),
    explains=frozenset({"HYP01"}),
)
