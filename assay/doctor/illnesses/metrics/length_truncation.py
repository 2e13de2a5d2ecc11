"""
## What it checks
The share of answers that the token limit cuts off, first quarter against last: it fires when more than half of them are
cut off and the share has grown by more than 15 points, or when every answer is cut off from the first step on.

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

from collections.abc import Iterator

import numpy as np

from assay.doctor.catalogue import illness
from assay.doctor.evidence import Curves
from assay.doctor.evidence.curves import Numbers
from assay.doctor.examples import healthy_curves, of_curves
from assay.doctor.facts.trend import has_varied, is_solved, quarter_medians, reward_range
from assay.programs.run.watched import WatchedRun
from assay.verdict import Confidence, Fact, Severity, Verdict, finding, healthy, seen_directly

MANY_CUT_OFF = 0.5  # of the answers cut off
GROWN = 0.15  # by this much since the first quarter
ALL_CUT_OFF = 0.98  # of the answers, in the first step and over all
MOST_CUT_OFF = 0.8  # in the last one
FEWEST = 3  # steps
STANDING = 8  # steps: from here on a reward that does not rise shows that the limit is not meant
RISING = 0.05  # of the range of rewards, from the first third to the last
FEWEST_ROWS = 48  # of a run
WOULD_END = 0.4  # probability that an answer ends with the next token
SHORT = 4  # tokens: an answer of so few may be meant to fill the limit


def check_curves(curves: Curves) -> Verdict:
    (truncated_N,) = curves.need("truncated_share")
    if (verdict := _from_the_start(curves, truncated_N[np.isfinite(truncated_N)])) is not None:
        return verdict
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


def check_run(run: WatchedRun) -> Iterator[Verdict]:
    """All rows of all first updates together."""
    finished = [batch.get("finished") for batch in run.batches if batch.numbers.get("update") == 0]
    known = [finished_B for finished_B in finished if finished_B is not None and len(finished_B)]
    rows = sum(map(len, known))
    if len(known) < FEWEST or rows < FEWEST_ROWS:
        return
    cut_off = 1.0 - sum(float(finished_B.sum()) for finished_B in known) / rows
    fact = Fact("answers cut off", cut_off, ALL_CUT_OFF)
    if cut_off < ALL_CUT_OFF:
        yield healthy(f"{cut_off:.0%} of {rows} answers are cut off", fact)
        return
    ends = [update.ends_next for update in run.updates if update.ends_next is not None]
    if not ends or np.mean(ends) < WOULD_END:
        return  # whether they should end is not known
    places = sorted({place for update in run.updates for place, _ in update.sampled_at}, key=str)[:1]
    yield finding(
        f"{cut_off:.0%} of {rows} answers are cut off by the token limit, and the policy would end them with the next "
        f"token with a probability of {np.mean(ends):.2f}: the limit leaves no room for the end",
        fact,
        Fact("probability of the end as the next token", float(np.mean(ends)), WOULD_END),
        places=tuple(places),
        confidence=Confidence.LIKELY,
        fix="Leave room for the end token: raise the limit by one or more, and see whether it counts the prompt too.",
    )


def _from_the_start(curves: Curves, truncated_N: Numbers) -> Verdict | None:
    """Every answer so far. A task may fill its limit on purpose: then its rewards differ, and rise."""
    steps = len(truncated_N)
    if steps < FEWEST or truncated_N.mean() < ALL_CUT_OFF or truncated_N[0] < ALL_CUT_OFF or is_solved(curves):
        return None
    if truncated_N[-1] < MOST_CUT_OFF:
        return None  # they begin to end
    limit = curves.settings.get("max_tokens")
    if limit == 1:
        return None  # one token is the whole answer
    facts = (
        Fact("share of the answers cut off, over all steps", float(truncated_N.mean()), ALL_CUT_OFF),
        Fact("steps", steps, FEWEST),
    )
    is_masked = bool(curves.settings.get("mask_truncated"))
    ends = curves.steps[[0, -1]]  # a dump is read at some of its steps
    span = max(steps, int(ends[1] - ends[0]) + 1 if np.isfinite(ends).all() else 0)
    is_dead = is_masked or not has_varied(curves) or (span >= STANDING and not _is_learning(curves))
    is_short = limit is not None and limit <= SHORT
    why = ", and answers cut off are masked: nothing is trained" if is_masked else ": no answer ever ends"
    return seen_directly(
        f"{truncated_N.mean():.0%} of the answers are cut off by the token limit{f' of {limit}' if limit else ''} in "
        f"all {steps} steps, from the first one on{why}",
        *facts,
        confidence=Confidence.LIKELY if is_dead and not is_short else Confidence.POSSIBLE,
        severity=Severity.FATAL if is_masked or not has_varied(curves) else None,
        fix="Raise max_tokens (max_completion_length) until most answers end; if they never end, see whether EOS is "
        "known to the sampler, and whether the prompt asks for an answer that ends.",
    )


def _is_learning(curves: Curves) -> bool:
    """Whether the reward rises, or is high."""
    reward_N = curves.column("reward_mean")
    reward_N = reward_N[np.isfinite(reward_N)]
    worst, best = reward_range(curves)
    if not len(reward_N) or not np.isfinite(best - worst):
        return False
    third = max(len(reward_N) // 3, 1)
    first, last = float(reward_N[:third].mean()), float(reward_N[-third:].mean())
    return last - first > RISING * (best - worst) or last > worst + 0.5 * (best - worst)


def _growing_lengths(last: float) -> Curves:
    share_N = np.interp(np.arange(60), [0, 50], [0.05, last])
    return healthy_curves(truncated_share=share_N, length_mean=30 + 30 * share_N, reward_mean=0.4)


ILLNESS = illness(
    __name__,
    code="MET03",
    severity=Severity.HARMFUL,
    summary="answers grow until the token limit cuts them off, or never end",
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
    explains=frozenset({"MET07", "HYP01", "REW01", "ADV09", "LOSS05", "MET05", "MASK06"}),
)
