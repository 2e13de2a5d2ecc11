"""
## What it checks
Tokens of the prompt are not in the loss. Where the rows of `tokens` hold the prompt before the completion, the mask
must be 0 on it. That a row begins with its own prompt is seen by comparing it with `prompt_tokens`. Rows that hold the
completion only are right if no more of their tokens are trained than were sampled.

## Why it hurts
The policy did not choose the prompt. With a positive advantage it is taught to write questions, with a negative one to
find them unlikely; and as prompts are often longer than answers, most of the gradient is about them.

## How to fix it
Begin the mask at the first sampled token. In log-probs shifted by one, the mask is shifted by the same one.

    # before: the mask is that of attention
    mask = attention_mask[:, 1:]
    # after
    mask = attention_mask[:, 1:].clone()
    mask[:, : prompt_length - 1] = 0  # column t holds the log-prob of token t + 1

## When it is wrong
A policy may repeat its prompt word for word and be trained on that. With `lengths` or `sampled_tokens` the two cases
are told apart; without them the finding is only likely, and only made if nearly all rows look so.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

import numpy as np

from assay.doctor.catalogue import Scripts, illness
from assay.doctor.evidence import Batch, Evidence
from assay.doctor.examples import PAD, edit_batch, healthy_batch, of_batch
from assay.doctor.examples.scripts import WHOLE
from assay.programs.edits import Spot
from assay.programs.facts.masks.masks import definition, fillings
from assay.programs.program import Program
from assay.record.batch import Array
from assay.verdict import Confidence, Edit, Fact, Missing, Severity, Verdict, finding, healthy, likely

LEAST_PROMPT = 3  # tokens: a shorter one is repeated by chance
LEAST_PROMPTS = 4  # different ones: that many short ones are not
NEARLY_ALL = 0.9  # of the rows; a policy that repeats its prompt seldom does so every time


def check_batch(batch: Batch) -> Verdict:
    tokens_BT, mask_BT, *_ = batch.need("tokens", "mask", "prompt_tokens", "prompt_mask")
    prompt_BT = prompts_in_rows(batch)
    trained_BT = mask_BT & prompt_BT
    repeats_B, is_certain = _sampled_by_the_policy(batch, tokens_BT, mask_BT, prompt_BT)
    trained_BT &= ~repeats_B[:, None]
    rows = int(trained_BT.any(axis=1).sum())
    if rows == 0 or not (is_certain or rows >= NEARLY_ALL * len(tokens_BT)):
        return _no_prompt_trained(batch, mask_BT, prompt_BT)
    row, token = np.argwhere(trained_BT)[0]
    count = int(trained_BT.sum())
    return finding(
        f"{count} prompt tokens are in the loss, {count / int(mask_BT.sum()):.0%} of all loss tokens, in {rows} of "
        f"{len(tokens_BT)} rows",
        Fact("prompt tokens in the loss", count, 0, batch.step, int(row), int(token)),
        Fact("rows", rows),
        confidence=Confidence.PROVEN if is_certain else Confidence.LIKELY,
    )


def check_source(program: Program) -> Iterator[Verdict]:
    """Each mask of a loss is computed on four rows of tokens: do the tokens of the prompt count?"""
    for _, masks in fillings(program).losses:
        ways = [way for ways in masks for way in ways if not way.assumed]
        if not ways:
            continue
        made = definition(masks[0][0].mask.value)
        if not all(way.offset and way.prompt[3].all() for way in ways):
            yield healthy("the mask begins with the completion", places=(made.place,))
            continue
        yield likely(
            f"the mask `{made.place.text}` is 1 on the tokens of the prompt, which the policy did not choose",
            places=(made.place,),
            why=masks[0][0].why("prompt completion", "both"),
        )


def _no_prompt_trained(batch: Batch, mask_BT: Array, prompt_BT: Array) -> Verdict:
    """Healthy only if something was compared: rows of completions alone say nothing of a prompt."""
    holding = _any(prompt_BT)
    fact = Fact("rows that hold their prompt", holding)
    if holding >= NEARLY_ALL * len(mask_BT) and len(mask_BT) and not (mask_BT & prompt_BT).any():
        return healthy("no prompt token is in the loss", fact)
    tokens_BT, sampled_BT, lengths_B = batch.arrays["tokens"], batch.get("sampled_tokens"), batch.get("lengths")
    as_sampled = sampled_BT is not None and bool((sampled_BT == tokens_BT)[mask_BT].all())
    as_many = lengths_B is not None and bool((mask_BT.sum(axis=1) <= lengths_B).all())
    if mask_BT.any() and (as_sampled or as_many):
        return healthy("no token is in the loss beyond those that were sampled", fact)
    raise Missing("rows that hold the prompt too, or prompt_tokens and lengths")


def prompts_in_rows(batch: Batch) -> Array:
    """[B, T]: the columns of `tokens` that hold the row's own prompt, where rows hold prompt and completion."""
    tokens_BT, prompts_BP, real_BP = batch.need("tokens", "prompt_tokens", "prompt_mask")
    prompt_BT = np.zeros(tokens_BT.shape, dtype=bool)
    for row in range(len(tokens_BT)):
        first, last = _place(tokens_BT[row], prompts_BP[row][real_BP[row]], prompts_BP.shape[1])
        prompt_BT[row, first:last] = True
    # what is short stands there by chance, or is the answer; not in all rows of several prompts, if lengths are known
    prompts = {tuple(prompt[real].tolist()) for prompt, real in zip(prompts_BP, real_BP, strict=True)}
    is_in_all = _any(prompt_BT) >= NEARLY_ALL * len(tokens_BT) and len(prompts) >= LEAST_PROMPTS
    if not is_in_all or batch.get("lengths") is None:
        is_short_B = (real_BP.sum(axis=1) < LEAST_PROMPT) | (prompt_BT.sum(axis=1) < LEAST_PROMPT - 1)
        prompt_BT[is_short_B] = False
    return prompt_BT


def _place(tokens: Array, prompt: Array, width: int) -> tuple[int, int]:
    """Columns of a row that hold its prompt, padding before it allowed, its first token possibly dropped."""
    for rest in (prompt, prompt[1:]):
        seen = min(len(rest), len(tokens))
        if seen and tokens[0] == rest[0] and np.array_equal(tokens[:seen], rest[:seen]):
            return 0, seen
    if len(prompt) < LEAST_PROMPT:  # only right behind padding, which is one token again and again
        first = int((tokens != tokens[0]).argmax()) if len(tokens) else 0
        is_there = len(prompt) and first and np.array_equal(tokens[first : first + len(prompt)], prompt)
        return (first, first + len(prompt)) if is_there else (0, 0)
    last = min(width, len(tokens) - len(prompt))
    for first in (np.flatnonzero(tokens[1 : last + 1] == prompt[0]) + 1).tolist() if last > 0 else ():
        if np.array_equal(tokens[first : first + len(prompt)], prompt):
            return first, first + len(prompt)
    return 0, 0


def _sampled_by_the_policy(batch: Batch, tokens_BT: Array, mask_BT: Array, prompt_BT: Array) -> tuple[Array, bool]:
    """(rows whose prompt tokens the policy has itself sampled, whether the evidence shows it)."""
    lengths_B, sampled_BT = batch.get("lengths"), batch.get("sampled_tokens")
    if sampled_BT is not None:
        return ((sampled_BT == tokens_BT) | ~prompt_BT).all(axis=1), True
    if lengths_B is not None:
        return mask_BT.sum(axis=1) <= lengths_B, True
    return np.zeros(len(mask_BT), dtype=bool), False


def _any(flags_BT: Array) -> int:
    return int(flags_BT.any(axis=1).sum())


def _example(*, prompt_trained: bool) -> Evidence:
    """Rows of prompt and completion, as a trainer that keeps whole sequences has them."""
    batch = healthy_batch()
    prompts_BP, real_BP, tokens_BT, lengths_B = batch.need("prompt_tokens", "prompt_mask", "tokens", "lengths")
    rows = [
        [*prompt[real], *tokens[:length]]
        for prompt, real, tokens, length in zip(prompts_BP, real_BP, tokens_BT, lengths_B, strict=True)
    ]
    starts = real_BP.sum(axis=1)
    mask = [
        [prompt_trained or column >= start for column in range(len(row))]
        for row, start in zip(rows, starts, strict=True)
    ]
    whole = {"tokens": _padded(rows, PAD), "mask": _padded(mask, 0)}
    kept = ("prompt_tokens", "prompt_mask", "lengths", "finished", "rewards", "advantages", "group_ids")
    unchanged = {name: batch.arrays[name] for name in kept}
    return of_batch(edit_batch(Batch({}, {}, batch.settings, batch.texts, batch.source), **unchanged, **whole))


def _padded(rows: Sequence[Sequence[int]], filler: int) -> Array:
    width = max(map(len, rows))
    return np.array([[*row, *[filler] * (width - len(row))] for row in rows])


def edits(verdict: Verdict, spot: Spot, others: Sequence[Spot]) -> Iterator[Edit | None]:
    """Zeros in place of the ones that stand before the completion's."""
    for part in spot.parts():
        for call in part.all(ast.Call):
            first = call.node.args[0] if call.name in ("cat", "concat", "concatenate") and call.node.args else None
            if isinstance(first, ast.List | ast.Tuple) and first.elts:
                for before in call.child(first.elts[0]).parts(1):
                    for ones in before.all(ast.Call):
                        yield ones.renamed(ones.name.replace("ones", "zeros")) if "ones" in ones.name else None


ILLNESS = illness(
    __name__,
    code="MASK03",
    severity=Severity.HARMFUL,
    summary="tokens of the prompt are in the loss",
    fix="Begin the loss mask at the first sampled token; shift it together with the log-probs.",
    symptoms=("prompt tokens are in the loss", "model learns to repeat the prompt", "loss includes the question",),
    sick=lambda: _example(prompt_trained=True),
    well=lambda: _example(prompt_trained=False),
    scripts=Scripts(WHOLE.replace("torch.zeros_like(prompts)", "torch.ones_like(prompts)"), WHOLE),
    explains=frozenset(
        {
            "ALGN01", "ALGN02", "ALGN03", "LOSS06", "MASK01", "MASK02", "MET06", "RAT01", "SAMP01", "SAMP02", "SAMP04",
            "SAMP05", "SAMP06",
        }
    ),
)  # fmt: skip
