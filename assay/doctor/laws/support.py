"""
## What it checks
The loss covers the sampled tokens of every row: all of them, the EOS included, rows at the token limit included, and
nothing else. The check compares the mask with the lengths, row by row. What may be left out: tokens that the policy did
not sample (tool output), rows without a reward, and rows that the limit cut off where a setting says so.

## Why it hurts
A token that is left out is never trained: a policy whose EOS is left out never learns to stop. A token that the policy
did not sample is trained on noise.

## How to fix it
Build the mask from the sampled lengths, and nothing else.

    # before: the last column is cut off, and with it the last token of the longest answers
    mask = (ids != pad)[:, :-1]
    # after
    mask = torch.arange(width) < lengths[:, None]

## When it is wrong
A trainer that leaves out rows on purpose (a filter of answers, a curriculum) without a setting that says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from assay.doctor.catalogue import illness
from assay.doctor.evidence import Batch, Evidence
from assay.doctor.examples import healthy_batch, of_batch
from assay.doctor.facts.logprobs import completion_places
from assay.doctor.laws.pattern import describe
from assay.doctor.recompute.consistent import consistent
from assay.programs.run.returns import trained_after_the_end
from assay.programs.run.watched import WatchedRun
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

# a call, and what came back for it, by the names that are in use
RETURNED = re.compile(
    r"<(?:tool_call|calc|search|code|python|query)>.*?</\w+>\s*"
    r"<(tool_response|result|information|output|observation|interpreter)>.*?</\1>",
    re.DOTALL,
)
FEWEST_TOOL_ROWS = 8
GOES_ON = re.compile(
    r"<\|im_end\|>\s*<\|im_start\|>user|<\|eot_id\|>\s*<\|start_header_id\|>user|<end_of_turn>\s*<start_of_turn>user"
)
FEWEST_EDGES = 8  # ends of inserted text
LEAST_LIKELY = -25.0  # of the log-probability of one token at all of them: any of 100,000 may be the one
FEWEST_EPISODES = 3
MOST_EPISODES = 0.8  # of those that ended
SOME_BEGIN = 0.5  # of the rows with loss tokens whose first column is one


def check_run(run: WatchedRun) -> Iterator[Verdict]:
    """Of a small environment: actions that were drawn when their episode was over, and are trained."""
    found = trained_after_the_end(run)
    for update, name, trained, over in found:
        yield finding(
            f"{trained} of {over} actions that were drawn after the end of their episode, by `{name}`, are in the "
            "loss: the environment paid nothing for them",
            Fact("trained actions after the end", trained, 0),
            confidence=Confidence.LIKELY,
            places=(update.pieces[0].new.place,),
            fix="Multiply the loss of each step by whether the episode still ran when the action was drawn.",
        )
    if not found and run.updates:
        yield not_enough_data("a stored flag that says when each episode was over, and rewards that end with it")


def check_batch(batch: Batch) -> Verdict:
    if (verdict := _of_turns(batch)) is not None:
        return verdict
    if batch.get("mask") is not None and not batch.arrays["mask"].any():
        return not_applicable("no token is in the loss; MASK06 speaks of that")
    if (verdict := _unpaid_steps(batch)) is not None:
        return verdict
    is_measured = batch.get("lengths") is not None
    batch = batch if is_measured else _with_lengths(batch)
    mask_BT, lengths_B = batch.need("mask", "lengths")
    expected_BT = completion_places(batch)
    forced_BT = batch.get("forced")
    if forced_BT is not None:
        expected_BT = expected_BT & ~forced_BT
    left_out_B = _left_out(batch)
    missing_BT = expected_BT & ~mask_BT & ~left_out_B[:, None]
    extra_BT = mask_BT & ~expected_BT
    rows = len(lengths_B)
    if not missing_BT.any() and not extra_BT.any():
        verdict = _of_tools(batch, mask_BT) or _behind_inserted([batch])
        if verdict is not None:
            return verdict
    if not missing_BT.any() and not extra_BT.any():
        note = f" ({int(left_out_B.sum())} rows are left out by setting)" if left_out_B.any() else ""
        return healthy(f"the loss covers the sampled tokens of all {rows} rows{note}", Fact("rows compared", rows))
    if missing_BT.any():
        row, token = (int(places[0]) for places in np.nonzero(missing_BT))
        sure = _confidence(batch, missing_BT, expected_BT)
        if not is_measured and sure is Confidence.PROVEN and batch.get("finished") is None:
            sure = Confidence.LIKELY  # by the ids alone: an answer may end in another way
        return finding(
            f"the mask leaves out {describe(batch, missing_BT, expected_BT)}",
            Fact("sampled tokens that are not in the loss", int(missing_BT.sum()), 0, batch.step, row, token),
            confidence=sure,
        )
    row, token = (int(places[0]) for places in np.nonzero(extra_BT))
    return finding(
        f"{int(extra_BT.sum())} tokens are in the loss that were not sampled",
        Fact("loss tokens that were not sampled", int(extra_BT.sum()), 0, batch.step, row, token),
    )


def check_batches(batches: Sequence[Batch]) -> Verdict:
    steps: dict[int | None, Batch] = {}
    for batch in batches:
        steps.setdefault(batch.step, batch)
    verdict = _behind_inserted(list(steps.values()))
    return verdict or not_applicable("nothing is seen here that one batch would not show")


def _unpaid_steps(batch: Batch) -> Verdict | None:
    """A finding where the step behind the last one in the loss still earned something: the end of an episode was left
    out, which is often the step that decided it."""
    rewards_BT, mask_BT = batch.get("step_rewards"), batch.get("mask")
    if rewards_BT is None or mask_BT is None or rewards_BT.shape != mask_BT.shape or mask_BT.shape[1] < 2:
        return None
    paid_BT, columns_T = rewards_BT != 0, np.arange(mask_BT.shape[1])
    end_B = np.where(mask_BT.any(axis=1), mask_BT.shape[1] - np.argmax(mask_BT[:, ::-1], axis=1), 0)
    behind_BT = paid_BT & (columns_T >= end_B[:, None])
    ended_B = end_B < mask_BT.shape[1]
    unpaid_B = ended_B & behind_BT.any(axis=1)
    last_B = mask_BT.shape[1] - 1 - np.argmax(paid_BT[:, ::-1], axis=1)
    is_next_B = unpaid_B & (last_B == end_B)  # nothing was paid further behind
    if is_next_B.sum() < FEWEST_EPISODES or is_next_B.sum() < unpaid_B.sum():
        return None
    # rewards that are written one step late are 0 at first
    is_in_step = paid_BT[mask_BT[:, 0], 0].any() and is_next_B.sum() > MOST_EPISODES * ended_B.sum()
    row = int(np.argmax(is_next_B))
    return finding(
        f"the last step of {int(is_next_B.sum())} of {int(ended_B.sum())} episodes that ended is not in the loss, "
        "though it was paid: the mask was updated before it was kept",
        Fact("steps with a reward that are not in the loss", int(is_next_B.sum()), 0, batch.step, row, int(end_B[row])),
        Fact("reward of that step", float(rewards_BT[row, end_B[row]]), None, None, row, int(end_B[row])),
        confidence=Confidence.LIKELY if is_in_step else Confidence.POSSIBLE,
        fix="Keep the mask as it was before the step: alive when the action was drawn.",
    )


def _with_lengths(batch: Batch) -> Batch:
    """With the lengths that the ids show: up to the first EOS, and all columns of a row that the limit cut off.

    Raises Missing where they do not: an answer of several turns goes on behind an EOS."""
    tokens_BT, mask_BT = batch.get("tokens"), batch.get("mask")
    eos_ids, width_limit = np.atleast_1d(batch.settings.get("eos_ids", ())), batch.settings.get("max_tokens")
    finished_B = batch.get("finished")
    if (
        tokens_BT is None
        or mask_BT is None
        or tokens_BT.shape != mask_BT.shape
        or not (tokens_BT.size and eos_ids.size)
    ):
        raise Missing("lengths")
    ends_BT = np.isin(tokens_BT, eos_ids)
    has_end_B, width = ends_BT.any(axis=1), tokens_BT.shape[1]
    lengths_B = np.where(has_end_B, np.argmax(ends_BT, axis=1) + 1, width)
    is_at_limit = width_limit == width if finished_B is None else np.array_equal(finished_B, has_end_B)
    begins_left = mask_BT[mask_BT.any(axis=1), 0].mean() > SOME_BEGIN  # else the columns hold prompts, too
    goes_on = (mask_BT & (np.arange(width) >= lengths_B[:, None])).any()
    pad = batch.settings.get("pad_id")
    is_filled_B = ~has_end_B & (tokens_BT[:, -1] == (-1 if pad is None else pad))
    if not begins_left or goes_on or (not has_end_B.all() and not is_at_limit) or is_filled_B.any():
        raise Missing("lengths")
    return replace(batch, arrays={**batch.arrays, "lengths": lengths_B})


def _behind_inserted(batches: Sequence[Batch]) -> Verdict | None:
    """A finding where the first trained token behind what an environment put in is always the same one, though the
    policy gives it a low probability: it was put in, too."""
    tokens: list[int] = []
    chances: list[float] = []
    for batch in batches:
        forced_BT, mask_BT, tokens_BT = batch.get("forced"), batch.get("mask"), batch.get("tokens")
        names = ("plain_logprobs", "new_logprobs", "old_logprobs")
        logprobs_BT = next((batch.get(name) for name in names if batch.get(name) is not None), None)
        if forced_BT is None or mask_BT is None or tokens_BT is None or logprobs_BT is None or not forced_BT.any():
            continue
        first_BT = mask_BT & np.isfinite(logprobs_BT)
        first_BT[:, 1:] &= forced_BT[:, :-1]
        first_BT[:, 0] = False
        tokens += tokens_BT[first_BT].tolist()
        chances += logprobs_BT[first_BT].tolist()
    if len(tokens) < FEWEST_EDGES or len(set(tokens)) > 1 or sum(chances) > LEAST_LIKELY:
        return None
    return finding(
        f"the first trained token behind what the environment put in is the same in all of {len(tokens)} places, "
        f"though the policy gives it a probability of {float(np.exp(np.mean(chances))):.2g}: the mask of the "
        "environment's tokens ends one token too early",
        Fact("log-probability that the policy would sample it every time", float(sum(chances)), LEAST_LIKELY),
        confidence=Confidence.LIKELY,
        fix="Mask each token that the environment put in at its own place; do not shift the mask like labels.",
    )


def _of_tools(batch: Batch, mask_BT: Array) -> Verdict | None:
    """A finding where texts hold what a tool returned behind its call, and no token of these rows is masked."""
    texts = batch.texts.get("completion")
    if texts is None or (batch.get("forced") is not None and batch.need("forced")[0].any()):
        return None
    rows = [row for row, text in enumerate(texts) if RETURNED.search(text) and mask_BT[row].any()]
    if len(rows) < max(FEWEST_TOOL_ROWS, len(texts) / 4):
        return None
    return finding(
        f"what a tool returned stands in {len(rows)} of {len(texts)} completions, and all of their tokens are in the "
        "loss: the policy is trained on text that it did not write",
        Fact("rows with a tool's output and nothing masked", len(rows), 0, batch.step, rows[0]),
        confidence=Confidence.LIKELY,
        fix="Mask the tokens that the environment put in; train the policy's own.",
    )


def _of_turns(batch: Batch) -> Verdict | None:
    """A finding where completions go on with the user's turn behind the end of their own."""
    texts = batch.texts.get("completion", ())
    rows = [row for row, text in enumerate(texts) if GOES_ON.search(text)]
    if len(rows) < max(FEWEST_TOOL_ROWS, len(texts) / 4):
        return None
    return finding(
        f"{len(rows)} of {len(texts)} completions go on with the user's turn behind the end of their own: nothing "
        "stopped them at the end token",
        Fact("completions that go on behind their end", len(rows), 0, batch.step, rows[0]),
        confidence=Confidence.LIKELY,
        fix="Give the sampler the end token of the chat template (eos_token_id, stop_token_ids), and mask what follows "
        "it.",
    )


def _left_out(batch: Batch) -> Array:
    """Rows that may be left out whole: cut off where a setting says so, or without a reward."""
    mask_BT, rewards_B, finished_B = batch.need("mask")[0], batch.get("rewards"), batch.get("finished")
    empty_B = ~mask_BT.any(axis=1)
    allowed_B = np.zeros(len(mask_BT), dtype=bool)
    if rewards_B is not None:
        allowed_B |= ~np.isfinite(rewards_B)
    if finished_B is not None and batch.settings.get("mask_truncated"):
        allowed_B |= ~finished_B
    return empty_B & allowed_B


def _confidence(batch: Batch, missing_BT: Array, expected_BT: Array) -> Confidence:
    """A part of a row is never left out on purpose. Whole rows may be, by a filter that no setting names; those that
    the limit cut off often are."""
    missing_B, finished_B = np.asarray(missing_BT.any(axis=1)), batch.get("finished")
    if (expected_BT & ~missing_BT)[missing_B].any():
        return Confidence.PROVEN
    is_kept = batch.settings.get("mask_truncated") is False and finished_B is not None and not finished_B.all()
    if is_kept and finished_B is not None and np.array_equal(missing_B, ~finished_B) and missing_B.sum() > 1:
        return Confidence.PROVEN  # just these, though a setting keeps them
    if missing_B.sum() < max(3, len(missing_B) / 4):
        return Confidence.POSSIBLE  # a row or two may have no reward, or a prompt that was given up
    is_cut_off = finished_B is None or not finished_B[missing_B].any()  # not known: they may be
    return Confidence.POSSIBLE if is_cut_off else Confidence.LIKELY


def sick() -> Evidence:
    """Every second row is masked."""
    batch = healthy_batch()
    mask_BT = batch.arrays["mask"].copy()
    mask_BT[1::2] = False
    return of_batch(consistent(batch, mask=mask_BT))


def well() -> Evidence:
    """Rows that the limit cut off are masked, and a setting says so."""
    batch = healthy_batch()
    mask_BT = batch.arrays["mask"] & batch.arrays["finished"][:, None]
    return of_batch(consistent(batch, mask=mask_BT, mask_truncated=True))


ILLNESS = illness(
    __name__,
    code="LAW06",
    name="law_of_the_support",
    severity=Severity.HARMFUL,
    summary="the loss does not cover exactly the sampled tokens",
    fix="Build the mask from the lengths of the sampled answers: their tokens, EOS included, and no others.",
    symptoms=("some tokens are not trained", "loss mask is wrong"),
    sick=sick,
    well=well,
    explains=frozenset({"LAW01"}),  # answers chosen by how they end do not look drawn
    explained_by=frozenset({"MASK", "ALGN", "LAW02"}),
)
