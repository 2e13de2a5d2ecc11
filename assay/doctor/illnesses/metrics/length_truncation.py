"""
## What it checks
The share of answers that the token limit cuts off, first quarter against last: it fires when more than half of them are
cut off and the share has grown by more than 15 points.

## Why it hurts
An answer that is cut off has no end: its reward is that of an unfinished text, usually the worst, or it is masked out
and trains nothing. Answers that grow into the limit are paid for token by token and teach little. A loss that weighs
long answers less (a mean over each row) makes wrong answers grow by itself.

## How to fix it
Find out why answers grow: an EOS that is not trained, a length bias of the loss, a reward that pays for length. If the
task needs long answers, raise the limit.

    # before: each answer is averaged over its own length, so a long wrong one costs less
    loss = (token_loss * mask).sum(1) / mask.sum(1)
    # after: every token weighs the same
    loss = (token_loss * mask).sum() / mask.sum()

## When it is wrong
Some tasks fill the limit on purpose, and reasoning grows before it gets better: a run whose reward rises with its
length is on its way, and then needs a higher limit rather than another loss.
"""

from __future__ import annotations

import numpy as np

from assay.doctor.catalogue import illness
from assay.doctor.evidence import Curves
from assay.doctor.examples import healthy_curves, of_curves
from assay.doctor.facts.trend import is_solved, quarter_medians
from assay.verdict import Fact, Severity, Verdict, finding, healthy

MANY_CUT_OFF = 0.5  # of the answers cut off
GROWN = 0.15  # by this much since the first quarter; a limit too low from the start is hyperparameter (HYP01)


def check_curves(curves: Curves) -> Verdict:
    (truncated_N,) = curves.need("truncated_share")
    first, *_, last = quarter_medians(truncated_N, "truncated_share")
    facts = [Fact("answers cut off, first quarter", first), Fact("answers cut off, last quarter", last, MANY_CUT_OFF)]
    limit = curves.settings.get("max_tokens")
    if curves.has("length_mean"):
        (length_N,) = curves.need("length_mean")
        facts.append(Fact("tokens per answer, last quarter", quarter_medians(length_N, "length_mean")[-1], limit))
    if not (last > MANY_CUT_OFF and last - first > GROWN):
        return healthy(f"{last:.0%} of the answers are cut off, {first:.0%} at the start", *facts)
    if is_solved(curves):
        return healthy(f"{last:.0%} of the answers are cut off and the task is solved", *facts)
    return finding(
        f"answers have grown into the token limit: {last:.0%} of them are cut off, up from {first:.0%}",
        *facts,
    )


def _growing_lengths(last: float) -> Curves:
    share_N = np.interp(np.arange(60), [0, 50], [0.05, last])
    return healthy_curves(truncated_share=share_N, length_mean=30 + 30 * share_N, reward_mean=0.4)


ILLNESS = illness(
    __name__,
    code="MET03",
    severity=Severity.HARMFUL,
    summary="answers grow until the token limit cuts them off",
    fix="Check that EOS is trained and that neither loss nor reward favours length; raise max_tokens if the task needs "
    "it.",
    symptoms=(
        "completions get longer",
        "completions are cut off",
        "length grows to the limit",
        "truncated completions",
        "clipped_ratio is 1",
        "completions hit max_completion_length",
        "answers too long",
        "every completion is clipped at the token limit",
    ),
    sick=lambda: of_curves(_growing_lengths(0.7)),
    well=lambda: of_curves(_growing_lengths(0.3)),
    explains=frozenset({"MET07", "HYP01"}),
)
