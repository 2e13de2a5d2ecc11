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

from collections.abc import Iterator

import numpy as np

from assay.doctor.catalogue import Scripts, illness
from assay.doctor.evidence import Batch, Evidence
from assay.doctor.examples import edit_batch, healthy_batch, of_batch
from assay.doctor.examples.scripts import GENERATE
from assay.doctor.facts.logprobs import row_lengths
from assay.programs.facts.sampling.draws import draws
from assay.programs.facts.sampling.scoring import made_of, scorings
from assay.programs.facts.sampling.tokens import is_text, texts_behind
from assay.programs.program import Program
from assay.verdict import Fact, Place, Severity, Verdict, finding, healthy, likely


def check_batch(batch: Batch) -> Verdict:
    tokens_BT, sampled_BT = batch.need("tokens", "sampled_tokens")
    lengths_B = row_lengths(batch)
    inside_BT = np.arange(tokens_BT.shape[1]) < lengths_B[:, None]
    forced_BT = batch.arrays.get("forced", np.zeros(tokens_BT.shape, dtype=bool))
    other_BT = inside_BT & (tokens_BT != sampled_BT) & ~forced_BT
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


def check_source(program: Program) -> Iterator[Verdict]:
    drawn = set(draws(program))
    seen: set[Place] = set()
    for scoring in scorings(program):
        if not scoring.is_trained:
            continue
        behind = list(made_of(scoring.tokens))
        texts = [value for value in texts_behind(scoring.tokens) if is_text(value)]
        text = next((text for text in texts if not drawn.isdisjoint(made_of(text))), None)
        if text is not None and text.place not in seen:
            seen.add(text.place)
            yield likely(
                f"the tokens in the loss ({scoring.tokens.shown}) are made of text that was decoded from drawn tokens "
                f"({text.place.text}): encoding may give other ids than were drawn",
                places=(text.place, scoring.value.place),
                why=program.kinds.why(scoring.value),
            )
        elif text is None and not drawn.isdisjoint(behind):
            yield healthy("the tokens in the loss are those that were drawn", places=(scoring.value.place,))


def _other_id(*, behind_end: bool) -> Evidence:
    """The sampler returned another id at one token, or behind the end of the row: padding may have any id."""
    batch = healthy_batch()
    sampled_BT = batch.arrays["sampled_tokens"].copy()
    sampled_BT[0, batch.arrays["lengths"][0] if behind_end else 1] += 1
    return of_batch(edit_batch(batch, sampled_tokens=sampled_BT))


SICK = GENERATE.replace(
    '    completions = ids[:, prompts["input_ids"].shape[1]:]\n',
    '    texts = tokenizer.batch_decode(ids[:, prompts["input_ids"].shape[1]:])\n'
    '    completions = tokenizer(texts, padding=True, return_tensors="pt")["input_ids"]\n'
    '    ids = torch.cat([prompts["input_ids"], completions], dim=1)\n',
)

ILLNESS = illness(
    __name__,
    code="ALGN02",
    severity=Severity.HARMFUL,
    summary="the trained ids are not the sampled ids",
    fix="Carry the sampled ids to the loss; decode them for the reward only.",
    symptoms=(
        "tokens change after decode and encode",
        "retokenization changes the ids",
        "token ids differ between rollout and training",
    ),
    sick=lambda: _other_id(behind_end=False),
    well=lambda: _other_id(behind_end=True),
    scripts=Scripts(SICK, GENERATE),
    explains=frozenset(
        {"SAMP06", "SYNC01", "RAT01", "RAT07", "ALGN03", "ALGN05", "ALGN09", "ALGN10", "ADV10", "MASK01"}
    ),
)
