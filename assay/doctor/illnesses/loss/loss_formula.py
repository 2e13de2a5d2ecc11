"""
## What it checks
The loss is computed again from log-probs, advantages and mask as the settings say, and compared with the recorded one.
Where the two differ, all objectives, all ways to average and the usual mistakes are tried, and the one that fits is
named.

## Why it hurts
An objective or an average that is silently another one changes which answers count how much: long ones more than short
ones, padding as much as tokens, one micro-batch as much as the whole update. A factor changes the learning rate of
plain SGD and, under gradient clipping or with a KL term, that of Adam too.

## How to fix it
Count rows and loss tokens over the whole update first, and divide by them once.

    # before: normalised over the update already, then divided again for accumulation
    loss = (token_loss * mask).sum() / tokens_of_update
    (loss / accumulation_steps).backward()
    # after
    loss = (token_loss * mask).sum() / tokens_of_update
    loss.backward()

## When it is wrong
If the settings are not those the trainer used, or the batch is not the whole update and the settings do not say so
(`sequences`, `loss_tokens`). Other objectives and averages that people choose on purpose are possible findings only.
"""

from __future__ import annotations

import numpy as np

from assay.doctor.catalogue import illness
from assay.doctor.evidence import Batch
from assay.doctor.examples import edit_batch, healthy_batch, of_batch
from assay.doctor.recompute.loss import aggregation_of, is_known_whole, is_part, loss, nearest_loss
from assay.verdict import Confidence, Fact, Severity, Verdict, finding, healthy, not_applicable

SAME_LOSS = 1e-5  # relative: one loss computed twice in float32
AGAIN = ("loss_again", "loss_padded", "loss_permuted", "loss_split", "loss_perturbed")


def check_batch(batch: Batch) -> Verdict:
    if (verdict := _truncated_rows(batch)) is not None:
        return verdict
    mask_BT, new_BT, old_BT, _ = batch.need("mask", "new_logprobs", "old_logprobs", "advantages")
    recorded = float(batch.number("loss"))
    inputs = (new_BT, old_BT, batch.token_advantages)
    if not np.isfinite(recorded) or not all(np.isfinite(values_BT[mask_BT]).all() for values_BT in inputs):
        return not_applicable("the loss, or a number it is made of, is not finite")
    match = nearest_loss(batch)
    name = match.variant.name
    expected = loss(batch)
    facts = (
        Fact("recorded loss", recorded, None, batch.step),
        Fact("loss as configured", expected, None, batch.step),
        Fact("difference, relative to the size of the terms", match.configured_distance, match.tolerance, batch.step),
    )
    if match.is_configured:
        return healthy(f"the loss is {name}", *facts[:2])
    if "objective" not in batch.settings:
        return not_applicable(f"no objective is stated; the nearest to the loss is {name}")
    part = is_part(batch) and not _is_of_these_rows(batch)
    if part and not match.fits:
        return not_applicable("the batch is a part of its update, and the loss may be that of the whole")
    if reason := _unknown_denominator(batch):
        return not_applicable(reason)
    # a loss of another size may be that of a part, or of settings that are not stated
    by_tokens = aggregation_of(batch) in ("token_mean", "rollout_token_mean")
    needed = {"loss_tokens"} if by_tokens else {"sequences"}  # the denominators of the whole
    needed |= {"loss_tokens"} if batch.settings.get("entropy_coef") else set()
    counted = not part and needed <= batch.settings.keys()
    known = (is_known_whole(batch) or counted) and not _unstated(batch)
    words = f": it is {name}" if match.fits else "; no known variant fits"
    sure = Confidence.POSSIBLE
    if match.fits and match.variant.is_bug and (known or "sign" in name):
        sure = Confidence.LIKELY if part else Confidence.PROVEN
    elif not match.fits and known:
        sure = Confidence.LIKELY
    return finding(
        f"the loss is {recorded:.4g}, and as configured it would be {expected:.4g}{words}", *facts, confidence=sure
    )


def _truncated_rows(batch: Batch) -> Verdict | None:
    """Rows in the loss that the settings leave out of it."""
    mask_BT, finished_B = batch.get("mask"), batch.get("finished")
    if mask_BT is None or finished_B is None or not batch.settings.get("mask_truncated"):
        return None
    trained = np.flatnonzero(mask_BT.any(axis=1) & ~finished_B)
    if not len(trained):
        return None
    return finding(
        f"{len(trained)} rows that the token limit cut off are in the loss, and the settings leave them out of it "
        "(mask_truncated)",
        Fact("truncated rows in the loss", len(trained), 0, batch.step, int(trained[0])),
        Fact("truncated rows", int((~finished_B).sum())),
    )


def _is_of_these_rows(batch: Batch) -> bool:
    """Whether the trainer got the same loss again from what the batch holds."""
    again = batch.numbers.get("loss_again")
    return again is not None and abs(again - batch.number("loss")) <= SAME_LOSS * abs(again)


def _unstated(batch: Batch) -> list[str]:
    """Settings that change a loss, and are not stated: some trainers have a dual clip or a correction by default."""
    names = ["kl_coef", "correction", "entropy_coef"]
    if batch.numbers.get("update") != 0:
        names += ["clip_low", "clip_high", "dual_clip", "delta"]
    if batch.settings.get("kl_coef"):
        names += ["kl_placement", "kl_estimator", "kl_gradient"]
    return [name for name in names if name not in batch.settings]


def _unknown_denominator(batch: Batch) -> str:
    """A mean over the rollout batch needs its loss tokens; with one minibatch they are those of this batch."""
    how, stated = aggregation_of(batch), batch.settings
    if how == "rollout_token_mean" and stated.get("minibatches", 1) > 1 and "loss_tokens" not in stated:
        return "the loss tokens of the whole rollout batch are not known (loss_tokens)"
    if how == "constant" and "max_tokens" not in stated:
        return "the constant that the loss is divided by is not known (max_tokens)"
    return ""


def _scaled(factor: float) -> Batch:
    """The loss of an update of two micro-batches, and all that is computed again by the same code."""
    batch = healthy_batch(microbatches=2)
    numbers = {name: factor * batch.numbers[name] for name in ("loss", "policy_loss", "kl_loss", *AGAIN)}
    names = ("gradients", "gradients_split", "gradients_perturbed")
    return edit_batch(batch, **numbers, **{name: factor * batch.arrays[name] for name in names})


ILLNESS = illness(
    __name__,
    code="LOSS06",
    severity=Severity.HARMFUL,
    summary="the loss is not the one that the config says",
    fix="Compute the configured objective over the mask, and divide once, by counts over the whole update.",
    symptoms=(
        "loss does not match the paper",
        "loss formula is wrong",
        "loss is negative",
        "completions get shorter",
        "normalisation by length is wrong",
        "dr grpo or dapo loss is not what I expect",
    ),
    sick=lambda: of_batch(_scaled(0.5)),
    well=lambda: of_batch(_scaled(1.0)),
)
