"""
## What it checks
The ids in the loss must be the ids that were sampled. The check compares `tokens` with `sampled_tokens`, row by row, up
to the sampled length.

## Why it hurts
Text does not determine its tokens: "ab" may be sampled as "a" + "b" and read back as "ab". A completion that is decoded
and encoded again is one that the policy did not write, often an improbable one. Its log-probs do not belong to the
sampled tokens, the ratio jumps, and a lost or added EOS changes what is trained as the end.

## How to fix it
Carry the ids from the engine to the loss. Decode for the reward only. In a conversation of several turns, append ids.

    # before
    text = tokenizer.decode(output.token_ids)
    completion_ids = tokenizer(text, add_special_tokens=False).input_ids
    # after
    completion_ids = output.token_ids
    text = tokenizer.decode(output.token_ids, skip_special_tokens=True)  # for the reward

## When it is wrong
If the sampled ids were recorded before a deliberate edit (a stop string cut off, an EOS added and masked out), record
them after it, or mark the edited tokens as forced.
"""

from __future__ import annotations

import numpy as np

from assay.doctor.catalogue import Illness, Plant
from assay.doctor.evidence import Batch, Evidence
from assay.doctor.examples import edited, healthy_batch, of_batch
from assay.doctor.logprobs import row_lengths
from assay.verdict import Fact, Severity, Verdict, finding, healthy


def check_batch(batch: Batch) -> Verdict:
    tokens_BT, sampled_BT = batch.need("tokens", "sampled_tokens")
    lengths_B = row_lengths(batch)
    inside_BT = np.arange(tokens_BT.shape[1]) < lengths_B[:, None]
    forced_BT = batch.get("forced")
    other_BT = inside_BT & (tokens_BT != sampled_BT)
    if forced_BT is not None:
        other_BT = other_BT & ~forced_BT
    rows = int(other_BT.any(axis=1).sum())
    compared = int(inside_BT.sum())
    if not rows:
        return healthy(f"all {compared} trained ids are the sampled ids", Fact("ids compared", compared))
    row, token = (int(place[0]) for place in np.nonzero(other_BT))
    return finding(
        f"{rows} of {len(tokens_BT)} rows are trained on other ids than were sampled: row {row} has "
        f"{tokens_BT[row, token]} in place of {sampled_BT[row, token]} at token {token}",
        Fact("rows with other ids", rows, 0, batch.step),
        Fact("ids that differ", int(other_BT.sum()), 0, batch.step, row, token),
        Fact("ids compared", compared),
    )


def _other_id_at(column: int) -> Evidence:
    """The sampler returned another id in that column of every row."""
    batch = healthy_batch()
    sampled_BT = batch.arrays["sampled_tokens"].copy()
    sampled_BT[0, column] += 1
    return of_batch(edited(batch, sampled_tokens=sampled_BT))


def sick() -> Evidence:
    """One token of one row."""
    return _other_id_at(1)


def well() -> Evidence:
    """The same, behind the end of the row: padding may have any id."""
    batch = healthy_batch()
    return _other_id_at(int(batch.arrays["lengths"][0]))


def _read_back_from_text(original):  # type: ignore[no-untyped-def]
    """A doubled character comes back as one: what a merge in the vocabulary does to a round trip through text."""

    def tensors(samples, rows, device, share_prompts):  # type: ignore[no-untyped-def]
        from dataclasses import replace

        def read_back(sample):  # type: ignore[no-untyped-def]
            tokens = list(sample.rollout.tokens)
            for place in range(1, len(tokens) - 1):
                if tokens[place] == tokens[place - 1]:
                    tokens[place] = tokens[place + 1]
            return replace(sample, rollout=replace(sample.rollout, tokens=tuple(tokens)))

        return original(list(map(read_back, samples)), rows, device, share_prompts)

    return tensors


ILLNESS = Illness(
    code="ALGN02",
    name="retokenise",
    severity=Severity.HARMFUL,
    summary="the trained ids are not the sampled ids",
    fix="Carry the sampled ids to the loss; decode them for the reward only.",
    explanation=__doc__,
    sick=sick,
    well=well,
    plant=Plant(replaces={"assay.train.pack._tensors": _read_back_from_text}),
    batch=check_batch,
    explains=frozenset({"SAMP06", "SYNC01", "RAT07", "ALGN03", "ALGN05", "ALGN09", "ALGN10", "ADV10", "MASK01"}),
)
