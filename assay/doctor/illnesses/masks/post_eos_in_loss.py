"""
## What it checks
Nothing after the end of a completion is in the loss. The end is given by `lengths`, the number of sampled tokens; where
these are missing, it is the first EOS of the row.

## Why it hurts
What stands after the end was never sampled: padding, or whatever a batched sampler went on to write. To train on it
teaches the policy to produce padding, and the extra tokens dilute the ones that earned the reward.

## How to fix it
Cut the mask at the first EOS, which stays inside.

    # before: every column is in the loss
    mask = torch.ones_like(tokens)
    # after
    is_eos = tokens == tokenizer.eos_token_id
    mask = is_eos.cumsum(dim=1) - is_eos.long() == 0

## When it is wrong
A conversation of several turns holds an EOS at the end of each. Its rows are recognised by what stands between the
turns, which is not trained or is marked in `forced`. With `lengths` the question does not arise.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from assay.doctor.catalogue import Scripts, illness
from assay.doctor.evidence import Batch, Evidence
from assay.doctor.examples import T, healthy_batch, of_batch
from assay.doctor.examples.scripts import GRPO, with_change
from assay.doctor.facts.logprobs import not_looked_at, rows_of_others
from assay.doctor.recompute.consistent import consistent
from assay.programs.edits import Spot
from assay.programs.facts.masks.masks import definition, fillings
from assay.programs.facts.masks.unmasked import Bare, bare_reductions
from assay.programs.program import Program
from assay.record.batch import Array
from assay.verdict import Confidence, Edit, Fact, Missing, Severity, Verdict, finding, healthy, likely, not_applicable

MOST_ROWS, ROWS = 0.8, 8  # that hold an EOS, where no answer ends: that is not chance


def check_batch(batch: Batch) -> Verdict:
    tokens_BT, mask_BT = batch.need("tokens", "mask")
    if tokens_BT.size == 0:
        raise Missing("a completion token")
    others_B = rows_of_others(batch)
    if others_B.any():  # lengths and ends are those of the tokens that were sampled
        if others_B.all():
            return not_applicable("no row holds the tokens that were sampled: see retokenise and row_provenance")
        mask_BT = mask_BT & ~others_B[:, None]
    has_lengths = batch.get("lengths") is not None
    beyond_BT = _beyond_lengths(batch, mask_BT, tokens_BT) if has_lengths else np.zeros(mask_BT.shape, dtype=bool)
    if beyond_BT.any() or (has_lengths and "eos_ids" not in batch.settings):
        return _verdict(batch, beyond_BT, "their last sampled token", proven=True)
    if "eos_ids" not in batch.settings:
        raise Missing("lengths", "eos_ids")
    behind_BT = _behind_first_eos(batch, mask_BT, tokens_BT)
    fillers = np.append(np.asarray(batch.setting("eos_ids")), batch.settings.get("pad_id", []))
    # where lengths say that they were sampled, an engine went on behind an id that it did not take for an end
    is_filler = bool(np.isin(tokens_BT[behind_BT], fillers).all()) and not has_lengths
    verdict = _verdict(batch, behind_BT, "their first EOS", proven=is_filler)
    if not has_lengths or not behind_BT.any():
        return verdict
    # an id that ends some answers and not others may have two meanings; one that ends none is not taken for an end
    finished_B, rows_B = batch.get("finished"), np.asarray(behind_BT.any(axis=1))
    ends_none = finished_B is not None and not finished_B.any() and rows_B.mean() >= MOST_ROWS and len(rows_B) >= ROWS
    return replace(verdict, confidence=Confidence.LIKELY if ends_none else Confidence.POSSIBLE)


def check_source(program: Program) -> Iterator[Verdict]:
    """Each mask of a loss is computed on four rows of tokens: does what follows the end of a row count?"""
    read = fillings(program)
    for masked, masks in read.losses:
        ways = [way for ways in masks for way in ways]
        if not ways:
            continue
        made = definition(ways[0].mask.value)
        if not all(way.goes_on for way in ways) or any(way.assumed and way.misses_ends for way in ways):
            yield healthy("the mask ends with the row", places=(made.place,))
        elif read.endings.are_seen and not masked.selects and not read.is_masked_elsewhere(masked):
            yield likely(
                f"the mask `{made.place.text}` is 1 after the end of a row: padding is in the loss",
                places=(made.place,),
                why=ways[0].why("a b <end> <pad>", "all four"),
            )
    for bare in bare_reductions(program):
        if bare.is_drawn:
            yield _without_mask(bare)


def _verdict(batch: Batch, behind_BT: Array, end: str, *, proven: bool) -> Verdict:
    (mask_BT,) = batch.need("mask")
    tokens, rows = int(behind_BT.sum()), int(behind_BT.any(axis=1).sum())
    if tokens == 0:
        return healthy(f"no row is trained beyond {end}{not_looked_at(batch)}", Fact("rows", len(mask_BT)))
    row, token = np.argwhere(behind_BT)[0]
    return finding(
        f"{tokens} tokens after the end of {rows} of {len(mask_BT)} rows are in the loss ({end} comes before them)",
        Fact("loss tokens after the end", tokens, 0, batch.step, int(row), int(token)),
        Fact("as a share of all loss tokens", tokens / int(mask_BT.sum())),
        confidence=Confidence.PROVEN if proven else Confidence.LIKELY,
    )


def _beyond_lengths(batch: Batch, mask_BT: Array, tokens_BT: Array) -> Array:
    (lengths_B,) = batch.need("lengths")
    beyond_BT = mask_BT & (np.arange(mask_BT.shape[1]) >= lengths_B[:, None])
    # where tools spoke in between, lengths may count the policy's tokens alone: then no more are trained than that
    has_turns_B = batch.arrays.get("forced", np.ones(mask_BT.shape, dtype=bool)).any(axis=1)
    beyond_BT &= np.asarray((mask_BT.sum(axis=1) > lengths_B) | ~has_turns_B)[:, None]
    return np.asarray(beyond_BT & ~_is_first_eos(batch, beyond_BT, tokens_BT)[:, None])


def _is_first_eos(batch: Batch, beyond_BT: Array, tokens_BT: Array) -> Array:
    """Rows with one token beyond their length, the only EOS they have: lengths were counted without it, or the trainer
    added it to a row that was cut off, which is tool_tokens."""
    if "eos_ids" not in batch.settings:
        return np.zeros(len(tokens_BT), dtype=bool)
    is_eos_BT = np.isin(tokens_BT, np.asarray(batch.setting("eos_ids")))
    is_first_BT = is_eos_BT & (np.cumsum(is_eos_BT, axis=1) == 1)
    return np.asarray((beyond_BT.sum(axis=1) == 1) & (beyond_BT & is_first_BT).any(axis=1))


def _behind_first_eos(batch: Batch, mask_BT: Array, tokens_BT: Array) -> Array:
    """Loss tokens in one unbroken run from the first EOS on; a gap in the mask is another turn."""
    is_eos_BT = np.isin(tokens_BT, np.asarray(batch.setting("eos_ids")))
    is_eos_BT &= np.cumsum(mask_BT, axis=1) > 0  # what comes before is a prompt, or its padding
    first_B = np.where(is_eos_BT.any(axis=1), is_eos_BT.argmax(axis=1), mask_BT.shape[1])
    behind_BT = np.arange(mask_BT.shape[1]) > first_B[:, None]
    unbroken_BT = np.cumsum(behind_BT & ~mask_BT, axis=1) == 0
    has_turns_B1 = batch.arrays.get("forced", np.zeros(mask_BT.shape, dtype=bool)).any(axis=1, keepdims=True)
    return np.asarray(behind_BT & mask_BT & unbroken_BT & ~has_turns_B1)


def _without_mask(bare: Bare) -> Verdict:
    """Several rows that are drawn together, and nothing between their log-probs and the loss that could be a mask."""
    return likely(
        f"the loss has no mask, but rows drawn together end at different places: `{bare.reduction.place.text}` "
        "counts what follows their end",
        places=(bare.reduction.place, bare.rows.place),
        why=(
            f"line {bare.rows.place.line}: several rows are drawn, up to the end of the longest",
            f"line {bare.scored.place.line}: every position is scored",
        ),
    )


def _example(extra: int) -> Evidence:
    """Rows that are trained on `extra` columns of padding."""
    batch = healthy_batch()
    mask_BT = np.arange(T) < batch.arrays["lengths"][:, None] + extra
    return of_batch(consistent(batch, mask=mask_BT))


def edits(verdict: Verdict, spot: Spot, others: Sequence[Spot]) -> Iterator[Edit | None]:
    """Ones in the shape of the ends, or of their count, become the tokens up to the first end."""
    for call in spot.all(ast.Call):
        about = call.receiver
        if call.name != "ones_like" or about is None:
            continue
        kind = call.argument("dtype")
        cast = f".to({kind.source})" if kind is not None else ""
        values = [about, *([about.definition] if about.definition is not None else [])]
        texts = [value.source for value in values]
        if any("cumsum" in text for text in texts):
            yield call.becomes(f"({about.source} == 0){cast}")
        elif any("==" in text for text in texts):
            once = about.source if texts[-1].endswith((".int()", ".long()", ".float()")) else f"{about.tight}.long()"
            yield call.becomes(f"({about.tight}.cumsum(dim=1) - {once} == 0){cast}")


ILLNESS = illness(
    __name__,
    code="MASK02",
    severity=Severity.HARMFUL,
    summary="tokens after the end of a completion are in the loss",
    fix="Cut the mask at the first EOS (which stays inside), or make it from the number of sampled tokens.",
    symptoms=(
        "tokens after EOS are trained",
        "padding is in the loss",
        "model repeats after EOS",
    ),
    sick=lambda: _example(extra=2),
    well=lambda: _example(extra=0),
    scripts=Scripts(with_change("(ends.cumsum(dim=1) - ends == 0)", "torch.ones_like(ends)"), GRPO),
    explains=frozenset({"ALGN02", "LOSS06", "MET03", "MET06", "RAT01", "SAMP06"}),
)
