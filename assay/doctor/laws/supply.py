"""
## What it checks
Prompts vary between the groups of a step and between steps, each group holds one prompt, the tokens of a prompt are
those of its text, and no step repeats the random numbers of another.
Rows of a group must not repeat other rows of it at the same places in every group. In a log the lengths of the prompts
must vary from step to step.

## Why it hurts
A run that sees one prompt learns one answer. A group of several prompts compares answers to different questions. A
seed that is set again in every step gives the same answers again and again.

## How to fix it
Print the prompts of two steps beside each other. Look for an iterator that is made again in every step, an index that
stays 0, a variable of a loop that is used after it, a seed inside of the loop.

    # before: the loader begins again in every step
    for step in range(steps):
        prompts = next(iter(loader))
    # after
    batches = iter(loader)
    for step in range(steps):
        prompts = next(batches)

## When it is wrong
A data set that is as small as one step, or a run that is meant to overfit one prompt: say how many prompts there are
(dataset_size).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import replace

import numpy as np

from assay.doctor.catalogue import illness
from assay.doctor.evidence import Batch, Curves, Evidence
from assay.doctor.examples import GROUPS, SIZE, B, edit_batch, healthy_batch, healthy_curves
from assay.doctor.facts.answers import answers
from assay.doctor.facts.prompts import prompt_keys, prompt_token_keys
from assay.doctor.facts.repeats import completions, log_chances, values_by_key
from assay.doctor.facts.trend import trailing
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
    seen_directly,
)

STEPS = 3  # with the same prompts
STEPS_OF_CURVES = 10  # with prompts of the same lengths
GROUPS_ALIKE = 3  # with one prompt
COPIES = 3  # completions that come again in the same place of a later step
COPIED = 0.95  # of the pairs that a way to copy makes alike
SELDOM = 0.2  # share of other pairs that may be alike
LONG = 60  # tokens, or letters: what a policy that is not certain does not say twice
VARIED = 0.5  # of the answers of a step are different
MANY, OFTEN, MOSTLY = 6, 0.25, 0.8  # answers that come again, and their share of a step
RARE = math.log(1e-8)  # of a completion: it does not come twice in a run


def check_batch(batch: Batch) -> Verdict:
    keys = prompt_keys(batch)
    group_B = batch.get("group_ids")
    verdict = _text_against_tokens(batch)
    if verdict is not None:
        return verdict
    if group_B is None:
        raise Missing("group_ids")
    groups = values_by_key(group_B.tolist(), keys)
    mixed = [name for name, prompts in groups.items() if len(set(prompts)) > 1]
    if mixed:
        row = int(np.flatnonzero(group_B == mixed[0])[0])
        return finding(
            f"{len(mixed)} of {len(groups)} groups hold answers to different prompts",
            Fact("prompts in one group", len(set(groups[mixed[0]])), 1, batch.step, row),
            confidence=Confidence.LIKELY,
        )
    copied = _copied_rows(batch, group_B)
    if copied is not None:
        return copied
    different = len(set(keys))
    fact = Fact("different prompts", different, None, batch.step)
    if len(groups) >= GROUPS_ALIKE and different == 1 and batch.settings.get("dataset_size") != 1:
        return finding(
            f"all {len(groups)} groups of the step have the same prompt",
            fact,
            confidence=Confidence.LIKELY if batch.settings.get("dataset_size", 0) > 1 else Confidence.POSSIBLE,
        )
    return healthy(f"each of {len(groups)} groups holds one prompt, {different} different ones in all", fact)


def check_batches(batches: Sequence[Batch]) -> Verdict:
    steps: dict[int, Batch] = {}  # of each step the batch with most rows: an examined update holds some of them
    for batch in batches:
        if batch.step is not None and (batch.step not in steps or _rows(steps[batch.step]) < _rows(batch)):
            steps[batch.step] = batch
    if len(steps) < 2:
        raise Missing("batches of several steps")
    verdict = _same_draws(steps) or _same_answers(steps)
    if verdict is not None:
        return verdict
    prompts = [frozenset(prompt_keys(batch)) for batch in steps.values()]
    if len(prompts) < STEPS:
        raise Missing(f"prompts of {STEPS} steps")
    largest = max(prompts, key=len)
    fact = Fact("different prompts in all steps together", len(frozenset().union(*prompts)))
    if not all(asked <= largest for asked in prompts):
        return _same_since(list(steps), prompts) or healthy(f"the prompts of {len(prompts)} steps differ", fact)
    size = max((int(batch.settings.get("dataset_size", 0)) for batch in batches), default=0)
    if 0 < size <= len(largest):
        return not_applicable("the data set has no more prompts than a step takes")
    return finding(
        f"all {len(prompts)} steps that were looked at have the same {len(largest)} prompts",
        fact,
        *((Fact("different prompts in the data set, at least", size),) if size else ()),
        confidence=Confidence.LIKELY if size else Confidence.POSSIBLE,
    )


def check_curves(curves: Curves) -> Verdict:
    """Lengths of prompts that are the same to the last digit, step after step, are of the same prompts."""
    mean_N, low_N, high_N = curves.need("prompt_length_mean", "prompt_length_min", "prompt_length_max")
    known_N = np.isfinite(mean_N) & np.isfinite(low_N) & np.isfinite(high_N)
    if known_N.sum() < STEPS_OF_CURVES:
        return not_enough_data(f"lengths of the prompts in {STEPS_OF_CURVES} steps")
    lengths_NL = np.stack([mean_N, low_N, high_N], axis=1)[known_N]
    if lengths_NL[-1, 1] == lengths_NL[-1, 2]:
        return not_applicable("all prompts have the same length")
    same = trailing((lengths_NL == lengths_NL[-1]).all(axis=1))
    fact = Fact("steps at the end whose prompts have the same lengths", same, STEPS_OF_CURVES)
    if same < STEPS_OF_CURVES:
        return healthy("the lengths of the prompts vary from step to step", fact)
    is_late = same < len(lengths_NL)
    return seen_directly(
        f"shortest, mean and longest prompt are the same to the last digit in {'the last' if is_late else 'all'} "
        f"{same} steps: each step has the same prompts",
        fact,
        Fact("mean length of the prompts", float(lengths_NL[-1, 0])),
        confidence=Confidence.LIKELY if is_late else Confidence.POSSIBLE,  # a data set may be as small as a step
    )


def _same_since(steps: Sequence[int], prompts: Sequence[frozenset[Hashable]]) -> Verdict | None:
    """A finding where the last steps repeat each other's prompts though earlier ones had others."""
    same = next((at for at, asked in enumerate(reversed(prompts)) if asked != prompts[-1]), len(prompts))
    if same < STEPS or len(prompts[-1]) < 2:
        return None
    begin = len(prompts) - same
    return finding(
        f"from step {steps[begin]} on all {same} steps that were looked at have the same {len(prompts[-1])} prompts; "
        "earlier ones had others",
        Fact("steps with the same prompts", same, STEPS, steps[begin]),
        confidence=Confidence.LIKELY,
        fix="Restore the state of the data iterator once, after a resume, and not in every step.",
    )


def _rows(batch: Batch) -> int:
    return max((len(array) for array in batch.arrays.values()), default=0)


def _text_against_tokens(batch: Batch) -> Verdict | None:
    """A finding where rows with one prompt text have different prompt tokens, or the reverse."""
    tokens, texts = prompt_token_keys(batch), batch.texts.get("prompt")
    if (
        tokens is None
        or texts is None
        or len(set(tokens)) == len(set(texts)) == len(set(zip(tokens, texts, strict=True)))
    ):
        return None
    by_text: dict[Hashable, list[tuple[int, ...]]] = values_by_key(texts, tokens)
    torn = sum(len(set(found)) > 1 for found in by_text.values())
    if not torn:
        return None  # texts that differ may be cut down to the same tokens
    return finding(
        f"{torn} of {len(by_text)} prompts have different tokens in different rows: prompts and tokens are mixed up",
        Fact("prompts as text", len(by_text), None, batch.step),
        Fact("prompts as tokens", len(set(tokens))),
        confidence=Confidence.LIKELY,
    )


def _copied_rows(batch: Batch, group_B: Array) -> Verdict | None:
    """A finding where the answers at some places of every group are those at other places, word for word, and no other
    two answers are alike: a policy that is certain repeats itself at any places. No log-probs are needed."""
    try:
        said = answers(batch)
    except Missing:
        return None
    groups = [rows for rows in values_by_key(group_B.tolist(), range(len(said))).values() if all(said[r] for r in rows)]
    size = max(map(len, groups), default=0)
    groups = [rows for rows in groups if len(rows) == size]
    if len(groups) < GROUPS_ALIKE or size < 4:
        return None
    alike_PGG = np.array([[[said[row] == said[other] for other in rows] for row in rows] for rows in groups])
    for what, sources_G in _ways_to_copy(size):
        copies_GG = (sources_G[:, None] == sources_G) & ~np.eye(size, dtype=bool)
        others_GG = sources_G[:, None] != sources_G
        copied = float(alike_PGG[:, copies_GG].mean())
        by_chance = (float(alike_PGG[:, others_GG].sum()) + 1) / (alike_PGG[:, others_GG].size + 2)
        pairs = len(groups) * int((np.arange(size) != sources_G).sum())
        if copied >= COPIED and by_chance < SELDOM and pairs * math.log(by_chance) < RARE:
            return finding(
                f"{what} in {len(groups)} groups of {size}, and no others are alike: a group holds only "
                f"{len(set(sources_G.tolist()))} different answers, as if drawn with the same random numbers",
                Fact("rows that repeat another row of their group", pairs, None, batch.step, groups[0][-1]),
                Fact("share of other pairs that are alike", by_chance, SELDOM),
                confidence=Confidence.LIKELY,
                fix="Give every engine, server or worker that samples a part of a group a seed of its own.",
            )
    return None


def _ways_to_copy(size: int) -> list[tuple[str, Array]]:
    """In words, and the place of a group that each place repeats."""
    places_G = np.arange(size)
    ways = [
        (f"rows {period} and later repeat rows 0 to {period - 1} word for word", places_G % period)
        for period in range(2, size)
        if size % period == 0
    ]
    return ways + [
        (f"each {count} rows in a row are the same word for word", places_G - places_G % count)
        for count in range(2, size)
        if size % count == 0 and size // count > 1
    ]


def _same_answers(steps: dict[int, Batch]) -> Verdict | None:
    """A finding where a later step repeats long answers of an earlier one word for word, though groups vary."""
    known: dict[object, int] = {}
    for step, batch in steps.items():
        try:
            rows = list(zip(prompt_keys(batch), answers(batch), strict=True))
        except Missing:
            continue
        long = [row for row in rows if isinstance(row[1], str | tuple) and len(row[1]) >= LONG]
        again = [row for row in long if row in known]
        is_varied = len(set(long)) > VARIED * len(long)
        if len(again) >= max(MANY, OFTEN * len(rows)) and is_varied:
            return finding(
                f"{len(again)} of {len(rows)} answers of step {step} are answers of step {known[again[0]]}, word for "
                "word: the same random numbers, or rollouts that were trained on before",
                Fact("long answers that come again", len(again), MANY, step),
                confidence=Confidence.LIKELY if len(again) >= MOSTLY * len(rows) else Confidence.POSSIBLE,
            )
        for row in long:
            known.setdefault(row, step)
    return None


def _same_draws(steps: dict[int, Batch]) -> Verdict | None:
    """A finding where improbable answers stand in the same rows of two steps: the random numbers are the same."""
    before: tuple[int, list[object], Array] | None = None
    for step, batch in steps.items():
        try:
            rows: list[object] = list(zip(prompt_keys(batch), completions(batch), strict=True))
            chances_B = log_chances(batch)
        except Missing:
            continue
        if before is not None and len(before[1]) == len(rows):
            copies = [
                row
                for row, (now, then) in enumerate(zip(rows, before[1], strict=True))
                if now == then and chances_B[row] < RARE
            ]
            if len(copies) >= COPIES:
                return finding(
                    f"{len(copies)} of {len(rows)} answers of step {step} are those of step {before[0]}, row for row: "
                    "the same random numbers were used again",
                    Fact("log-probability of such an answer", float(chances_B[copies[0]]), RARE, step, copies[0]),
                    confidence=Confidence.LIKELY,
                )
        before = (step, rows, chances_B)
    return None


def _run(new_prompts: int) -> Evidence:
    """Three steps; each has other prompts, unless there are no new ones."""
    batch = replace(healthy_batch().only(("tokens", "mask", "lengths", "group_ids")), texts={})
    group_B1 = (np.arange(B) // SIZE)[:, None]
    lengths_N = 100.0 + new_prompts * np.sin(np.arange(60.0))
    return Evidence(
        tuple(
            edit_batch(batch, step=step, update=0, dataset_size=100, prompt_tokens=group_B1 + step * new_prompts)
            for step in range(1, 4)
        ),
        healthy_curves(prompt_length_mean=lengths_N, prompt_length_min=50.0, prompt_length_max=200.0),
    )


def sick() -> Evidence:
    return _run(new_prompts=0)


def well() -> Evidence:
    return _run(new_prompts=GROUPS)


ILLNESS = illness(
    __name__,
    code="LAW11",
    name="law_of_supply",
    severity=Severity.HARMFUL,
    summary="prompts or random numbers repeat where they should vary, or groups mix prompts",
    fix="Draw new prompts in each step, one per group, and set the seed once, before the loop.",
    symptoms=("same prompts every step", "every group has the same prompt", "the model only sees one prompt"),
    sick=sick,
    well=well,
    explained_by=frozenset({"SAMP05", "ADV", "ALGN"}),
)
