"""
## What it checks
The ids that the loss is computed on are the ids that the sampler returned, at every position of every row; and the
model was given the prompt that the sampler was given. Rows are compared one by one: a mean would hide one bad row.

## Why it hurts
A policy gradient is only right for the tokens that were sampled. For others the reward says nothing.

## How to fix it
Keep the ids of the sampler from the engine to the loss. Do not go through text, do not sort or drop rows on the way.

    # before: the same text may become other tokens
    ids = tokenizer(tokenizer.batch_decode(sampled)).input_ids
    # after
    ids = sampled

## When it is wrong
Where a trainer adds tokens by design (an EOS after the limit, tool output): mark them in `forced`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from assay.doctor.catalogue import illness
from assay.doctor.evidence import Batch, Evidence
from assay.doctor.examples import edit_batch, healthy_batch, of_batch
from assay.doctor.facts.logprobs import completion_places
from assay.doctor.laws.pattern import describe
from assay.programs.run.watched import WatchedRun
from assay.record.batch import Array
from assay.verdict import Fact, Severity, Verdict, finding, healthy

BEGINNING = 3  # tokens of an answer by which it is recognised


def check_batch(batch: Batch) -> Verdict:
    tokens_BT, sampled_BT = batch.need("tokens", "sampled_tokens")
    inside_BT = completion_places(batch)
    forced_BT = batch.get("forced")
    if forced_BT is not None:
        inside_BT = inside_BT & ~forced_BT
    off_BT = inside_BT & (tokens_BT != sampled_BT)
    rows = len(tokens_BT)
    if off_BT.any():
        row, token = (int(places[0]) for places in np.nonzero(off_BT))
        return finding(
            f"the trained tokens are not the sampled ones at {describe(batch, off_BT, inside_BT)}",
            Fact("trained id", int(tokens_BT[row, token]), None, batch.step, row, token),
            Fact("sampled id there", int(sampled_BT[row, token])),
            Fact("rows with other tokens", int(off_BT.any(axis=1).sum()), 0),
        )
    verdict = _other_prompt(batch)
    return verdict or healthy(
        f"the trained tokens are the sampled ones in all {rows} rows", Fact("rows compared", rows)
    )


def check_run(run: WatchedRun) -> Iterator[Verdict]:
    """Rows that were not found among the sampled ones: in place of the sampled ids they hold others."""
    for update in run.updates:
        other = update.other_tokens
        if other is not None:
            yield finding(
                f"{other.rows} of {other.of} rows hold other tokens behind their prompt than were sampled for it: "
                "perhaps the answers were decoded and tokenised again",
                Fact("trained id", other.given, None, None, other.row, other.token),
                Fact("sampled id there", other.sampled),
                Fact("rows with other tokens", other.rows, 0),
                places=(update.pieces[0].forward.value.place,),
            )


def _other_prompt(batch: Batch) -> Verdict | None:
    """A finding where the scoring pass was given another prompt than the sampler; None where it is the same or not
    known."""
    names = ("input_ids", "attention_mask", "prompt_tokens", "prompt_mask", "tokens")
    if any(batch.get(name) is None for name in names):
        return None
    given_BS, visible_BS, prompts_BP, real_BP, tokens_BT = batch.need(*names)
    inside_BT = completion_places(batch)
    for row in range(len(given_BS)):
        seen = given_BS[row][visible_BS[row]]
        prompt, answer = prompts_BP[row][real_BP[row]], tokens_BT[row][inside_BT[row]]
        if len(answer) and not _holds(seen, prompt, answer):
            return finding(
                "the model was not given the prompt that the sampler was given",
                Fact("row with another prompt", row, None, batch.step, row),
                Fact("tokens of the sampler's prompt", len(prompt)),
            )
    return None


def _holds(seen: Array, prompt: Array, answer: Array) -> bool:
    """Whether the prompt stands in `seen`, right before the answer; LAW06 asks how much of that is there."""
    whole = np.concatenate([prompt, answer[:BEGINNING]])
    for width in range(len(whole), len(prompt), -1):
        starts = range(len(seen) - width + 1) if width == len(whole) else [len(seen) - width]
        if any(at >= 0 and np.array_equal(seen[at : at + width], whole[:width]) for at in starts):
            return True
    return bool(len(prompt)) and np.array_equal(seen[-len(prompt) :], prompt)  # nothing of the answer is given


def sick() -> Evidence:
    """One row has the tokens of another."""
    batch = healthy_batch()
    tokens_BT = batch.arrays["tokens"].copy()
    tokens_BT[5, 1] = 77
    return of_batch(edit_batch(batch, tokens=tokens_BT))


def well() -> Evidence:
    return of_batch(healthy_batch())


ILLNESS = illness(
    __name__,
    code="LAW02",
    name="law_of_identity",
    severity=Severity.FATAL,
    summary="the tokens that are trained are not those that were sampled",
    fix="Carry the sampler's own ids to the loss, row by row; never through text, and never in another order.",
    symptoms=("tokens differ from what was sampled",),
    sick=sick,
    well=well,
    explains=frozenset({"LAW01", "LAW03", "LAW05", "LAW06"}),
    explained_by=frozenset({"ALGN", "MASK"}),
)
