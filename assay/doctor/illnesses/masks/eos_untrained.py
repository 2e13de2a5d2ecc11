"""
## What it checks
A completion that the policy ended itself has an EOS as its last sampled token, and that token must be in the loss. The
check looks at the last token of every row whose other tokens are trained.

In metric curves it looks for what may follow: completions that used to end and now nearly all run into the token limit,
while the reward does not rise.

## Why it hurts
To stop is a decision of the policy like any other. If it is never trained, answers that stop at the right place are
rewarded for everything except stopping, and nothing holds the policy back from rambling up to the limit.

## How to fix it
Make the mask by position, from the number of sampled tokens. The usual cause is a mask by value where padding has the
id of EOS; another is `<` in the place of `<=`.

    # before: padding is EOS, so every EOS counts as padding
    mask = tokens != tokenizer.pad_token_id
    # after: the first EOS is inside, what follows is not
    is_eos = tokens == tokenizer.eos_token_id
    mask = is_eos.cumsum(dim=1) - is_eos.long() == 0

## When it is wrong
If an EOS was appended by the trainer to an answer that was cut off, it is right to leave it out: say so in `forced`.
Rows of which only chosen tokens are trained (by entropy, say) do not count. Curves alone prove nothing: longer answers
may be what the reward pays for.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

import numpy as np

from assay.doctor.catalogue import Scripts, illness
from assay.doctor.evidence import Batch, Curves, Evidence
from assay.doctor.examples import EOS, healthy_batch, healthy_curves
from assay.doctor.examples.scripts import GRPO, with_change
from assay.doctor.facts.trend import quarter_medians
from assay.doctor.illnesses.masks.prompt_in_loss import prompts_in_rows
from assay.doctor.recompute.consistent import consistent
from assay.programs.edits import Spot
from assay.programs.facts.masks.lost_ends import cut_before_end, masks_without_ends
from assay.programs.facts.masks.masks import Filled, definition, fillings
from assay.programs.graph import Value
from assay.programs.program import Program
from assay.record.batch import Array
from assay.verdict import Confidence, Edit, Fact, Severity, Verdict, finding, healthy, likely, not_applicable, suspected

FEW_CUT, NEARLY_ALL_CUT = 0.3, 0.9  # shares of truncated rows, at first and at last: endings are lost, not just longer
FEWEST_ROWS = 8  # rows that ended: fewer may all have ended by a stop string
NEARLY_ALL = 0.9  # of the rows, if rows hold their prompts at all
AT_LIMIT = 0.95  # mean length as a share of the longest


def check_batch(batch: Batch) -> Verdict:
    tokens_BT, mask_BT = batch.need("tokens", "mask")
    if not tokens_BT.size:
        return not_applicable("the batch has no tokens at all")
    starts_B = _starts(batch, tokens_BT, mask_BT)
    ends_B = _ends(batch, tokens_BT, mask_BT, starts_B)
    is_eos_BT = np.isin(tokens_BT, np.asarray(batch.setting("eos_ids")))
    sampled_BT = ~batch.arrays.get("forced", np.zeros(mask_BT.shape, dtype=bool))
    columns = np.arange(tokens_BT.shape[1])
    before_end_BT = (columns >= starts_B[:, None]) & (columns < ends_B[:, None])
    others_BT = before_end_BT & sampled_BT & ~is_eos_BT  # a mask by value drops an EOS between turns as well
    rows = np.flatnonzero((ends_B >= 0) & others_BT.any(axis=1) & (mask_BT | ~others_BT).all(axis=1))
    rows = rows[(is_eos_BT & sampled_BT)[rows, ends_B[rows]]]
    if len(rows) == 0:
        return not_applicable("no row with trained tokens ended by EOS")
    untrained = rows[~mask_BT[rows, ends_B[rows]]]
    if len(untrained) == 0:
        return healthy("the EOS of every row that ended is in the loss", Fact("rows that ended by EOS", len(rows)))
    parts_BT = others_BT & ~mask_BT & mask_BT.any(axis=1, keepdims=True)
    if batch.get("lengths") is not None and parts_BT.any(axis=1).sum() > len(untrained):
        return not_applicable("in more rows other tokens than the EOS are left out, too: see law_of_the_support")
    first = int(untrained[0])
    return finding(
        f"{len(untrained)} of {len(rows)} rows ended by EOS, but that token is not in the loss although the tokens "
        "before it are",
        Fact("rows whose EOS is not trained", len(untrained), 0, batch.step, first, int(ends_B[first])),
        Fact("rows that ended by EOS", len(rows)),
        confidence=_confidence(batch, len(rows), len(untrained)),
    )


def check_curves(curves: Curves) -> Verdict:
    truncated_N, length_N, longest_N, reward_N = curves.need(
        "truncated_share", "length_mean", "length_max", "reward_mean"
    )
    cut_first, _, _, cut_last = quarter_medians(truncated_N, "truncated_share")
    reward_first, _, _, reward_last = quarter_medians(reward_N, "reward_mean")
    length, longest = quarter_medians(length_N, "length_mean")[-1], quarter_medians(longest_N, "length_max")[-1]
    fact = Fact("median share of truncated rows in the last quarter", cut_last, NEARLY_ALL_CUT)
    lost = cut_first < FEW_CUT and cut_last > NEARLY_ALL_CUT and length > AT_LIMIT * longest
    if not lost or reward_last > reward_first:
        return healthy("completions have not stopped ending", fact)
    return finding(
        f"completions have stopped ending: {cut_first:.0%} of them ran into the token limit at first, {cut_last:.0%} "
        "do at last, and the reward has not risen; an EOS that is not trained does this",
        fact,
        Fact("median share of truncated rows in the first quarter", cut_first, FEW_CUT),
    )


def check_source(program: Program) -> Iterator[Verdict]:
    """Each mask of a loss is computed on four rows of tokens: does the token that ended a row count?"""
    read = fillings(program)
    by_definition: dict[Value, list[Filled]] = {}
    for _, masks in read.losses:
        for ways in masks:
            by_definition.setdefault(definition(ways[0].mask.value), ways)
    for made, ways in by_definition.items():
        if not all(way.misses_ends for way in ways):
            yield healthy("the token that ends a row is inside the mask", places=(made.place,))
            continue
        otherwise = read.of(ways[0].mask, pad_is_end=False)
        shared = None if all(way.misses_ends for way in otherwise) else read.shared
        because = " where padding has the id of the end token" if shared else ""
        yield suspected(
            f"the mask `{made.place.text}` is 0 on the token that ends a row{because}: to stop is never trained",
            confidence=Confidence.LIKELY if shared is None or shared[1] else Confidence.POSSIBLE,
            places=(made.place,) if shared is None else (made.place, shared[0].place),
            why=ways[0].why("a b <end>", "`a b`"),
        )
    yield from _left_out(program)


def _confidence(batch: Batch, ended: int, untrained: int) -> Confidence:
    """Without lengths, padding that has the id of EOS may stand behind a row that a stop string ended."""
    if batch.get("lengths") is not None:
        return Confidence.PROVEN
    pad, eos_ids = batch.settings.get("pad_id"), np.asarray(batch.setting("eos_ids")).ravel().tolist()
    is_padding = pad is None or pad in eos_ids
    is_unsure = untrained < ended or ended < FEWEST_ROWS or batch.get("finished") is None
    return Confidence.POSSIBLE if is_padding and is_unsure else Confidence.LIKELY


def _starts(batch: Batch, tokens_BT: Array, mask_BT: Array) -> Array:
    """Column of the first sampled token of each row: 0, or behind the prompt where rows hold prompt and completion."""
    trained_B, lengths_B = mask_BT.any(axis=1), batch.get("lengths")
    if {"prompt_tokens", "prompt_mask"} <= batch.arrays.keys():
        prompt_BT = prompts_in_rows(batch)
        behind_B = np.where(prompt_BT.any(axis=1), tokens_BT.shape[1] - prompt_BT[:, ::-1].argmax(axis=1), 0)
        # an answer may repeat the prompt: then there is no room for both
        has_room = lengths_B is None or (behind_B + lengths_B <= tokens_BT.shape[1]).mean() >= NEARLY_ALL
        if len(prompt_BT) and prompt_BT.any(axis=1).mean() >= NEARLY_ALL and has_room:
            return behind_B
    first_B = mask_BT.argmax(axis=1)
    if not trained_B.any() or not (first_B[trained_B] > 0).all():
        return np.zeros(len(tokens_BT), dtype=np.int64)
    # completions alone do not reach beyond their length
    is_whole = lengths_B is None or (_last(mask_BT) >= lengths_B)[trained_B].mean() >= NEARLY_ALL
    return np.where(trained_B & is_whole, first_B, 0)


def _last(mask_BT: Array) -> Array:
    """Column of the last trained token; -1 where there is none."""
    return np.where(mask_BT.any(axis=1), mask_BT.shape[1] - 1 - mask_BT[:, ::-1].argmax(axis=1), -1)


def _ends(batch: Batch, tokens_BT: Array, mask_BT: Array, starts_B: Array) -> Array:
    """Column of the last sampled token of each row; -1 where there is none or it is not known."""
    width = tokens_BT.shape[1]
    lengths_B = batch.get("lengths")
    if lengths_B is not None:
        ends_B = starts_B + lengths_B
        return np.where((lengths_B > 0) & (ends_B <= width), ends_B - 1, -1)
    # the token behind the last trained one, if it is an EOS, is what the policy sampled, unless it was cut off
    finished_B = batch.arrays.get("finished", np.ones(len(tokens_BT), dtype=bool))  # else the last token shows it
    last_B = _last(mask_BT)
    behind_B = np.minimum(last_B + 1, width - 1)
    eos_ids, rows = np.asarray(batch.setting("eos_ids")), np.arange(len(tokens_BT))
    trained = (last_B >= 0) & np.isin(tokens_BT[rows, last_B], eos_ids)
    return np.where(finished_B & (last_B >= 0), np.where(trained, last_B, behind_B), -1)


def _left_out(program: Program) -> Iterator[Verdict]:
    """Rows that are cut before their end, and tokens that are picked unless they are the end."""
    for cut in cut_before_end(program):
        yield likely(
            f"`{cut.place.text}` cuts a row before the token that ended it, and what is left is trained: to stop is "
            "never trained",
            places=(cut.place,),
            why=(f"line {cut.place.line}: index() is where the end token stands; a slice ends before it",),
        )
    lines: set[int] = set()
    for mask, leaf in masks_without_ends(program):
        if leaf.place.line not in lines:
            lines.add(leaf.place.line)
            yield likely(
                f"`{leaf.place.text}` leaves the token that ends a row out of the tokens that are trained",
                places=(leaf.place,),
                why=(f"line {mask.place.line}: tokens of the policy are picked by it",),
            )


def _example(*, eos_trained: bool, truncated: float) -> Evidence:
    batch = healthy_batch()
    mask_BT = batch.arrays["mask"] & (eos_trained | (batch.arrays["tokens"] != EOS))
    progress_N = np.interp(np.arange(60), [0, 40], [0.0, 1.0])
    curves = healthy_curves(
        truncated_share=0.05 + (truncated - 0.05) * progress_N,
        length_mean=40.0 + (64.0 * truncated - 40.0) * progress_N,
        reward_mean=0.3 - 0.05 * progress_N,
    )
    return Evidence((consistent(batch, mask=mask_BT),), curves)


def edits(verdict: Verdict, spot: Spot, others: Sequence[Spot]) -> Iterator[Edit | None]:
    """The count of ends before a token, not up to it; <= the index of the end."""
    for part in spot.parts():
        for compared in part.all(ast.Compare):
            left = compared.child(compared.node.left)
            if isinstance(compared.node.ops[0], ast.Lt):
                yield compared.with_operator("<=")
            for count in left.parts(2) if isinstance(compared.node.ops[0], ast.Eq) else ():
                if count.name == "cumsum" and count.receiver is not None:
                    yield left.as_part(f"{left.source} - {_as_number(count.receiver)}")


def _as_number(ends: Spot) -> str:
    """torch does not subtract booleans."""
    made = ends.definition
    is_number = (ends if made is None else made).source.endswith((".int()", ".long()", ".float()"))
    return ends.within(2) if is_number else f"{ends.tight}.long()"


ILLNESS = illness(
    __name__,
    code="MASK01",
    severity=Severity.HARMFUL,
    summary="rows that ended have mask 0 on their EOS: the policy never learns to stop",
    fix="Make the mask from the number of sampled tokens, EOS included; never by comparing ids with padding.",
    symptoms=(
        "model never stops",
        "no EOS, completions run to the limit",
        "EOS is not learned",
        "model does not end its answers",
        "completions never finish",
    ),
    sick=lambda: _example(eos_trained=False, truncated=1.0),
    well=lambda: _example(eos_trained=True, truncated=0.2),
    scripts=Scripts(with_change("(ends.cumsum(dim=1) - ends == 0)", "(ends.cumsum(dim=1) == 0)"), GRPO),
    explains=frozenset({"LOSS06", "MASK06", "MET03", "MET06"}),
)
