"""
## What it checks
The ratio of a whole completion (GSPO) must be the length-th root of the product of its tokens' ratios: exp of the mean
of new - old, not of the sum. The check compares the recorded ratio of each row with both. Where no ratio is recorded
and the objective is gspo, it compares the gradient of each token with both: they differ by the number of tokens.

## Why it hurts
A sum of log-ratios grows with the length. At 500 tokens that differ by 0.01 the product is 0.007 or 148, so that the
clip range (a few ten-thousandths for GSPO) is left by almost every row. Long answers are clipped away or blow up, short
ones carry the gradient, and each token of an answer of n tokens pulls n times too hard.

## How to fix it
Divide the summed log-ratio by the number of loss tokens of the row before the exp.

    # before: the product of all token ratios
    ratio = ((new - old) * mask).sum(1).exp()
    # after: its length-th root
    ratio = (((new - old) * mask).sum(1) / mask.sum(1).clamp(min=1)).exp()

## When it is wrong
Importance weights of whole sequences against engine mismatch are products by definition; they are not policy ratios and
belong in the correction, truncated. An objective that means the product and clips it widely is not GSPO.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

import numpy as np

from assay.doctor.catalogue import Scripts, illness
from assay.doctor.evidence import Batch, Evidence
from assay.doctor.examples import edit_batch, healthy_batch, of_the_loss
from assay.doctor.examples.scripts import GRPO, with_change
from assay.doctor.recompute.terms import stated_objective
from assay.grpo import Objective
from assay.programs.edits import Spot, over_mask
from assay.programs.facts.ratio import differences, uses
from assay.programs.graph import Value
from assay.programs.program import Program
from assay.programs.walk import ancestors
from assay.record.batch import Array
from assay.verdict import Edit, Fact, Severity, Verdict, finding, healthy, not_applicable, not_enough_data

TOLERANCE = 1e-3  # of a log-ratio, or relative of a gradient: far above float32 rounding, far below a factor of length
FEWEST_ROWS = 3  # rows in which mean and sum differ: one could agree with either by chance
SHARE = 0.9  # of these rows that must agree: a clamped or masked row may be off
LOG_LIMIT = 20.0  # a product is often clamped to e^20 before it is used


def check_batch(batch: Batch) -> Verdict:
    mask_BT, new_BT, old_BT = batch.need("mask", "new_logprobs", "old_logprobs")
    if not mask_BT.any():
        return not_enough_data("a loss token")
    objective = _by_row(batch)
    difference_BT = np.where(mask_BT, new_BT - old_BT, 0.0)
    ratio_B = _row_ratio(batch.get("ratio"), mask_BT, difference_BT)
    if objective is None and ratio_B is None:
        if batch.get("ratio") is None and "objective" not in batch.settings:
            return not_enough_data("ratio, or the setting objective")
        return not_applicable("the ratio is per token")
    lengths_B = mask_BT.sum(axis=1)
    sum_B = difference_BT.sum(axis=1)
    mean_B = sum_B / np.maximum(lengths_B, 1)
    if ratio_B is not None:
        with np.errstate(divide="ignore", invalid="ignore"):
            recorded_B = np.log(ratio_B)
        judged_B = (lengths_B > 1) & (np.abs(sum_B - mean_B) > 10 * TOLERANCE) & np.isfinite(recorded_B)
        if judged_B.sum() >= FEWEST_ROWS:
            near_mean_B = np.abs(recorded_B - mean_B) <= TOLERANCE
            near_sum_B = np.abs(recorded_B - sum_B.clip(-LOG_LIMIT, LOG_LIMIT)) <= TOLERANCE
            return _judge(batch, judged_B, near_mean_B, near_sum_B, lengths_B, recorded_B - mean_B)
    return _by_gradients(batch, mask_BT, difference_BT, lengths_B)


def check_source(program: Program) -> Iterator[Verdict]:
    seen = set()
    for use in uses(program):
        if not use.is_surrogate or any(_leaves_one_out(factor) for factor in use.factors):
            continue
        for difference in differences(program, use.ratio):
            place, left = difference.value.place, difference.left
            if place in seen or program.origins.gradient(left) is False or not _is_of_tokens(left):
                continue
            seen.add(place)
            if difference.is_summed:
                yield finding(
                    f"the log-ratio `{place.text}` is summed over the tokens of a sequence and not divided "
                    "by their number, and its exp is clipped like the ratio of one token",
                    places=(use.ratio.place, use.core.place),
                    why=program.kinds.why(use.ratio),
                )
            else:
                yield healthy("the ratio is one of tokens or divided by their number", places=(place,))


def _by_row(batch: Batch) -> Objective | None:
    """The objective, if its ratio is per row."""
    objective = stated_objective(batch.settings)
    return objective if objective is not None and objective.level == "sequence" else None


def _row_ratio(ratio: Array | None, mask_BT: Array, difference_BT: Array) -> Array | None:
    """The recorded ratio if it is per row: given so, or the same on all tokens of rows whose log-ratios differ."""
    if ratio is None or ratio.ndim == 1:
        return ratio
    first_B = np.where(mask_BT.any(axis=1), ratio[np.arange(len(ratio)), mask_BT.argmax(axis=1)], np.nan)
    constant_B = np.where(mask_BT, np.abs(ratio - first_B[:, None]), 0.0).max(axis=1, initial=0.0) <= 1e-6
    highest_B = np.where(mask_BT, difference_BT, -np.inf).max(axis=1, initial=-np.inf)
    lowest_B = np.where(mask_BT, difference_BT, np.inf).min(axis=1, initial=np.inf)
    differ_B = highest_B > lowest_B + TOLERANCE
    return first_B if differ_B.any() and constant_B[differ_B].all() else None


def _by_gradients(batch: Batch, mask_BT: Array, difference_BT: Array, lengths_B: Array) -> Verdict:
    """gspo before any update: each token of a row is pulled by -A / (rows * length); under a product, by -A / rows."""
    objective = _by_row(batch)
    if objective is None:
        return not_applicable("new equals old: a product and a mean are both 1")
    simple = (
        batch.settings.get("aggregation", objective.aggregation) == "sequence_mean"
        and (not batch.settings.get("kl_coef", 0.0) or batch.settings.get("kl_placement") == "reward")
        and batch.settings.get("correction", "off") == "off"
        and float(np.abs(difference_BT).max(initial=0.0)) <= TOLERANCE
    )
    if not simple:
        return not_enough_data("ratio of a later update, or gradients of a first one without KL and correction")
    (gradients_BT,) = batch.need("gradients")
    rows = int(batch.settings.get("sequences", len(mask_BT)))
    advantages_BT = batch.token_advantages
    judged_BT = mask_BT & (np.abs(advantages_BT) > TOLERANCE) & (lengths_B > 1)[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        pull_BT = -gradients_BT * rows / advantages_BT  # 1 / length, or 1
    judged_B: Array = np.asarray(judged_BT.any(axis=1))
    if judged_B.sum() < FEWEST_ROWS:
        return not_enough_data(f"gradients of {FEWEST_ROWS} rows of several tokens with an advantage")
    rows_of_pull = zip(pull_BT, judged_BT, strict=True)
    pull_B = np.array([np.median(row[chosen]) if chosen.any() else np.nan for row, chosen in rows_of_pull])
    near_mean_B = np.abs(pull_B * lengths_B - 1.0) <= TOLERANCE
    near_sum_B = np.abs(pull_B - 1.0) <= TOLERANCE
    return _judge(batch, judged_B, near_mean_B, near_sum_B, lengths_B, np.log(np.abs(pull_B * lengths_B) + 1e-30))


def _judge(
    batch: Batch, judged_B: Array, near_mean_B: Array, near_sum_B: Array, lengths_B: Array, off_B: Array
) -> Verdict:
    rows, by_mean, by_sum = (
        int(chosen_B.sum()) for chosen_B in (judged_B, judged_B & near_mean_B, judged_B & near_sum_B)
    )
    worst = int(np.argmax(np.where(judged_B, np.abs(off_B), -1.0)))
    fact = Fact("|log(recorded / length-normalised)|", float(abs(off_B[worst])), TOLERANCE, batch.step, worst)
    if by_mean >= SHARE * rows:
        return healthy("the ratio of a row is the length-th root of its product", fact)
    if by_sum < SHARE * rows:
        return not_applicable("the ratio of a row is neither the product nor its root: another formula")
    return finding(
        f"the ratio of a row is the product over its tokens, not divided by their number: {by_sum} of {rows} rows, of "
        f"up to {int(lengths_B[judged_B].max())} tokens",
        fact,
        Fact("rows whose ratio is the product", by_sum, step=batch.step),
    )


def _is_of_tokens(value: Value) -> bool:
    """Log-probs of text: picked from a vocabulary. Of a joint action the sum is the right log-prob."""
    return any(part.op in ("gather", "take_along_dim", "cross_entropy", "nll_loss") for part in ancestors(value))


def _leaves_one_out(factor: Value) -> bool:
    """An advantage as RLOO has it, whose ratio is that of the whole sequence: something is divided by k - 1."""
    divisors = [value.argument("other") for value in ancestors(factor) if value.op == "div"]
    return any(by is not None and by.op == "sub" and by.setting("other") == 1 for by in divisors)


def _of_rows(*, divided: bool) -> Batch:
    """A later update under gspo with one ratio per row; what a loss made of it is left out."""
    batch = healthy_batch(update=1)
    mask_BT, new_BT, old_BT = batch.need("mask", "new_logprobs", "old_logprobs")
    log_B = np.where(mask_BT, new_BT - old_BT, 0.0).sum(axis=1)
    if divided:
        log_B = log_B / mask_BT.sum(axis=1)
    return edit_batch(batch, objective="gspo", ratio=np.exp(log_B), **of_the_loss(batch))


def edits(verdict: Verdict, spot: Spot, others: Sequence[Spot]) -> Iterator[Edit | None]:
    """The mean of a sequence's log-ratios in place of their sum."""
    for part in spot.parts(1):
        for call in part.all(ast.Call):
            if call.name == "sum" and call.receiver is not None:
                yield from over_mask(call, call.receiver)


ILLNESS = illness(
    __name__,
    code="RAT06",
    severity=Severity.HARMFUL,
    summary="the ratio of a sequence is a product over its tokens, not divided by their number",
    fix="Divide the summed log-ratio of a row by its number of loss tokens before the exp (GSPO, equation 7).",
    symptoms=(
        "sequence ratio is huge",
        "GSPO ratio explodes with length",
        "ratio explodes for long completions",
    ),
    sick=lambda: Evidence((_of_rows(divided=False),)),
    well=lambda: Evidence((_of_rows(divided=True),)),
    scripts=Scripts(
        sick=with_change("torch.exp(new - old)", "torch.exp(((new - old) * mask).sum(1, keepdim=True))"), well=GRPO
    ),
    explains=frozenset({"LOSS06", "RAT07"}),
)
