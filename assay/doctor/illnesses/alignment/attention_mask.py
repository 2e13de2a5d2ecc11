"""
## What it checks
In the scoring pass the attention mask is 1 on the tokens of prompt and completion and 0 on the padding before or
between them. The check finds each row's own tokens in what the model was given, by position, and compares. Where no
mask is on record, it asks whether log-probs change with padding.

## Why it hurts
Padding that is attended to is context the sampler never had. Real tokens that are hidden, because the mask was made by
value and the padding id is also that of EOS, are context that is lost. Either way the log-probs are those of another
sequence and depend on how long the neighbours are.

## How to fix it
Make the mask from lengths, never from token values, and pass it in every forward pass on padded rows.

    # before
    logits = model(input_ids).logits
    # after
    columns = torch.arange(input_ids.shape[1])
    attention_mask = columns >= input_ids.shape[1] - lengths.unsqueeze(1)  # padded on the left
    logits = model(input_ids, attention_mask=attention_mask).logits

## When it is wrong
A hidden last token (an EOS with the id of padding) changes no log-prob, because nothing is scored behind it: that is a
note. Padding on the right is behind every token of a causal model and needs no mask: it is not counted. Where the
log-probs were computed again and did not move, the mask that is on record is not the one in use, and the check stays
silent.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

import numpy as np

from assay.doctor.catalogue import Scripts, illness
from assay.doctor.evidence import Batch, Evidence
from assay.doctor.examples import edit_batch, healthy_batch, noisy, of_batch, positions_of
from assay.doctor.examples.scripts import GENERATE
from assay.doctor.facts.context import (
    ScoredRow,
    is_padding,
    mask_faults,
    moved_at_all,
    moved_by_batch_mates,
    rows_as_sampled,
)
from assay.doctor.illnesses.alignment.position_ids import position_faults
from assay.programs.edits import Spot
from assay.programs.facts.masks.padding import padded_passes
from assay.programs.program import Program
from assay.verdict import Confidence, Edit, Fact, Missing, Severity, Verdict, finding, healthy, likely, not_applicable


def check_batch(batch: Batch) -> Verdict:
    if batch.get("attention_mask") is None:
        return _by_numbers(batch, "no attention mask is on record")
    rows = rows_as_sampled(batch)
    if not rows:
        return not_applicable("no row was trained as it was sampled: see retokenise and post_eos_in_loss")
    found = [row for row in rows if row.places is not None]
    if not found:
        return not_applicable("no row was scored as prompt + completion: see wrong_context")
    crowded = {row.number for row in found if has_extra_tokens(batch, row)}
    judged = {row.number for row in found} - crowded
    faults = {number: what for number, what in mask_faults(batch).items() if number in judged}
    ends = _hidden_ends(found)
    if faults and faults.keys() <= ends and moved_at_all(batch) is None:
        return finding(
            f"the attention mask hides the last token of {len(faults)} of {len(rows)} rows; no token follows it, so no "
            "log-prob changes",
            Fact("rows whose last token is hidden", len(faults), 0, batch.step, min(faults)),
            confidence=Confidence.POSSIBLE,
        )
    if not faults.keys() <= ends:
        faults = {number: what for number, what in faults.items() if number not in ends}
    if not faults and crowded:
        return not_applicable("more than the prompt stands in front of the completion: see wrong_context")
    if not faults:
        return _by_numbers(batch, "the mask on record is right", looked=len(found))
    number, what = next(iter(faults.items()))
    facts = [Fact("rows with a wrong attention mask", len(faults), 0, batch.step, number)]
    move = moved_at_all(batch)
    if move is not None:
        facts.append(move.fact)
        what += f"; {move}"
    if move is not None and move.is_rounding:
        return healthy(f"the mask of {len(faults)} rows is wrong on record, but the log-probs are right", *facts)
    return finding(f"the attention mask of {len(faults)} of {len(rows)} rows is wrong: in row {number} {what}", *facts)


def check_source(program: Program) -> Iterator[Verdict]:
    for pass_ in padded_passes(program):
        if not pass_.fault:
            yield healthy("the pass on padded rows is given their mask", places=(pass_.call.place,))
            continue
        yield likely(
            f"{pass_.call.place.text} runs on padded rows {pass_.fault}: padding is attended to",
            places=(pass_.call.place, pass_.padded.place),
        )


def has_extra_tokens(batch: Batch, row: ScoredRow) -> bool:
    """Whether what is attended beside the row is not padding; where no padding id is stated: one of its prompt's."""
    if row.places is None or row.attended_S is None or not len(row.stray):
        return False
    ids = row.given_S[row.stray]
    return not is_padding(batch, ids) or ("pad_id" not in batch.settings and bool(np.isin(ids, row.prompt).all()))


def _hidden_ends(rows: Sequence[ScoredRow]) -> set[int]:
    """Rows of which only the last token is hidden, an EOS that has the id of padding: nothing is scored behind it."""
    return {
        row.number
        for row in rows
        if row.places is not None and len(row.hidden) == 1 and row.hidden[0] == max(row.places) and not len(row.stray)
    }


def _by_numbers(batch: Batch, known: str, looked: int = 0) -> Verdict:
    """The mask is right or not on record: do log-probs move with padding, and is that the positions' fault?"""
    move = moved_by_batch_mates(batch)
    if move is None:
        if looked:
            return healthy(f"the mask of {looked} rows hides padding and nothing else", Fact("rows compared", looked))
        raise Missing("attention_mask")
    if move.is_rounding:
        return healthy("padding and batch-mates do not move log-probs", move.fact)
    if _is_the_positions(batch):
        return healthy(f"{known}; the positions are the likelier cause of what padding moves", move.fact)
    return finding(
        f"{move}, and {known}: padding or other rows are probably attended to",
        move.fact,
        confidence=Confidence.LIKELY,
    )


def _is_the_positions(batch: Batch) -> bool:
    """A right mask leaves the positions, unless they are on record and right."""
    if batch.get("attention_mask") is None:
        return False
    return batch.get("position_ids") is None or any(position_faults(batch))


def _padding_seen(columns: int) -> Evidence:
    """The last `columns` padding tokens before each prompt of the first group are attended to."""
    batch = healthy_batch()
    attention_BS = batch.arrays["attention_mask"].copy()
    prompt_mask_BP = batch.arrays["prompt_mask"]
    rows = np.flatnonzero(~prompt_mask_BP[:, 0])  # those with padding
    for row in rows[:4]:
        first = int(np.argmax(prompt_mask_BP[row]))
        attention_BS[row, max(first - columns, 0) : first] = True
    alone_BT = noisy(batch, "scored_alone", rows=slice(None)) if columns else batch.arrays["scored_alone"]
    positions_BS = positions_of(attention_BS)
    return of_batch(edit_batch(batch, attention_mask=attention_BS, position_ids=positions_BS, scored_alone=alone_BT))


SICK = GENERATE.replace("model(input_ids=ids, attention_mask=attention)", "model(input_ids=ids)")


def edits(verdict: Verdict, spot: Spot, others: Sequence[Spot]) -> Iterator[Edit | None]:
    """The mask that the function was given and does not use: the one with "attention" in its name."""
    function = spot.function
    given = [argument.arg for argument in function.args.args] if isinstance(function, ast.FunctionDef) else []
    used = {name.id for name in ast.walk(function) if isinstance(name, ast.Name)}
    masks = [name for name in given if ("attn" in name or "mask" in name or "attention" in name) and name not in used]
    if len(masks) == 1 and spot.argument("attention_mask") is None:
        yield spot.with_argument(f"attention_mask={masks[0]}")
    known = [name for name in {*used, *given} if ("attention" in name or "attn" in name) and spot.knows([name])]
    if len(known) == 1 and spot.argument("attention_mask") is None:
        yield spot.with_argument(f"attention_mask={known[0]}", safe=False)


ILLNESS = illness(
    __name__,
    code="ALGN05",
    severity=Severity.HARMFUL,
    summary="padding is attended to, or real tokens are hidden",
    fix="Make the attention mask from lengths and pass it in every forward pass on padded rows.",
    symptoms=(
        "padding tokens are attended to",
        "missing attention mask",
        "results depend on padding",
        "batch size changes the outputs",
    ),
    sick=lambda: _padding_seen(1),
    well=lambda: _padding_seen(0),
    scripts=Scripts(SICK, GENERATE),
    explains=frozenset({"SAMP06", "SAMP01", "SYNC01", "RAT01", "RAT07", "MASK04", "ALGN04", "ALGN10", "KL05"}),
)
