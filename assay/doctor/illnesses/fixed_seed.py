"""
## What it checks
No two rows are drawn with the same random numbers. The check looks for completions that repeat: in a fixed pattern in
every group (the second half is the first half again, each row comes twice), or anywhere in the batch although the
policy gives the completion a probability below one in a hundred million.

## Why it hurts
A group of 8 with 4 different completions is a group of 4 that costs as much as 8. The baseline is a mean over repeats,
so the estimate is noisier than the group size promises, and more groups have no signal at all.

## How to fix it
Give every engine replica a seed of its own, derive the seed of a step from the step, and set no seed in the sampling
parameters of a request.

    # before: every replica starts from the same seed and answers the same prompts
    engine = LLM(model, seed=config.seed)
    # after
    engine = LLM(model, seed=config.seed + replica_rank)

## When it is wrong

Some trainers fill a batch up with copies of rows, to divide it among workers, or replay old rows: leave such rows out
of what is recorded. Short answers repeat by right; the check only counts repeats that the log-probs make improbable,
and it is only as sure as it is that these are of the distribution that was sampled from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from assay.doctor.catalogue import Illness, Plant
from assay.doctor.evidence import Batch, Evidence
from assay.doctor.examples import SIZE, edited, healthy_batch, of_batch
from assay.doctor.illnesses.no_diversity import certainty, gathered
from assay.doctor.repeats import Completion, completions, groups_of, log_chances
from assay.record.batch import Array
from assay.verdict import Confidence, Fact, Severity, Verdict, finding, healthy, not_applicable

SHARE = 0.9  # of the groups that must show a pattern: a seed that is reused is reused everywhere
CHANCE = 1e-9  # that independent samples repeat so
RARE = 1e-8  # a completion less probable than this does not come twice among thousands of rows
FEWEST = 3  # of such repeats: one may be a prompt that was answered twice with a quotation


def check_batch(batch: Batch) -> Verdict:
    groups = groups_of(batch)
    if not groups:
        return not_applicable("no group has two completions to compare")
    rows, chances_B = completions(batch), log_chances(batch)
    mixed = [group for group in groups if len({rows[row] for row in group}) > 1]  # the others are no_diversity's
    if not mixed:
        return not_applicable("every group holds one completion only: see no_diversity")
    for name, sources in _patterns(max(map(len, mixed))):
        fitting = [
            group for group in mixed if all(rows[row] == rows[group[sources[at]]] for at, row in enumerate(group))
        ]
        copies = [row for group in fitting for at, row in enumerate(group) if sources[at] != at]
        log_chance = float(np.nansum(chances_B[copies]))
        if len(fitting) >= SHARE * len(mixed) and log_chance < math.log(CHANCE):
            return finding(
                f"{name} in {len(fitting)} of {len(mixed)} groups: {len(copies)} of {sum(map(len, mixed))} completions "
                "are copies, as if drawn with the same random numbers",
                Fact("log10 of the chance of this under sampling", log_chance / math.log(10), math.log10(CHANCE)),
                Fact("first copy", f"row {copies[0]}", step=batch.step, row=copies[0]),
                confidence=certainty(batch),
            )
    repeats = _rare_repeats([row for group in mixed for row in group], rows, chances_B)
    fact = Fact("improbable completions that come again", len(repeats), FEWEST, batch.step)
    if len(repeats) < FEWEST:
        return healthy("no completion comes twice but by its own probability", fact)
    row, first = repeats[0]
    return finding(
        f"{len(repeats)} of {len(rows)} completions repeat another row although their probability is below {RARE:g}: "
        f"for instance row {row} is row {first}",
        fact,
        Fact("log10 of the probability of that row", float(chances_B[row]) / math.log(10), math.log10(RARE), row=row),
        confidence=Confidence.POSSIBLE if certainty(batch) is Confidence.POSSIBLE else Confidence.LIKELY,
    )


def _patterns(size: int) -> list[tuple[str, list[int]]]:
    """Name of a way to copy inside a group, and the place that the completion at each place then comes from."""
    divisors = [number for number in range(2, size) if size % number == 0]
    return [
        *((f"the group repeats after {period} rows", [at % period for at in range(size)]) for period in divisors),
        *(
            (f"each completion comes {times} times in a row", [at - at % times for at in range(size)])
            for times in divisors
        ),
    ]


def _rare_repeats(places: Sequence[int], rows: Sequence[Completion], chances_B: Array) -> list[tuple[int, int]]:
    """(row, the earlier row that it equals) of completions too improbable to come twice."""
    seen: dict[Completion, int] = {}
    repeats = []
    for row in places:
        first = seen.setdefault(rows[row], row)
        if first != row and chances_B[row] < math.log(RARE):
            repeats.append((row, first))
    return repeats


def sick() -> Evidence:
    """The second half of every group is its first half again."""
    batch = healthy_batch()
    return of_batch(
        gathered(batch, [row - row % SIZE + row % (SIZE // 2) for row in range(len(batch.arrays["tokens"]))])
    )


def well() -> Evidence:
    """The same repeats, of a policy that knows little but these answers."""
    (batch,) = sick().batches
    names = [name for name in batch.arrays if name.endswith("_logprobs") or name.startswith("scored")]
    return of_batch(edited(batch, **{name: 1e-2 * batch.arrays[name] for name in names}, ratio=None, kl=None))


def _same_seed_on_two_replicas(original):  # type: ignore[no-untyped-def]
    """Two engines answer half of each group, from random numbers that start at the same place."""

    def generate(policy, prompts, *, group_size, generator, **how):  # type: ignore[no-untyped-def]
        state = generator.get_state()
        halves = []
        for size in (group_size - group_size // 2, group_size // 2):
            generator.set_state(state)
            halves.append(original(policy, prompts, group_size=size, generator=generator, **how))
        return [first + second for first, second in zip(*halves, strict=True)]

    return generate


ILLNESS = Illness(
    code="SAMP05",
    name="fixed_seed",
    severity=Severity.HARMFUL,
    summary="rows repeat each other as if drawn with the same random numbers",
    fix="Give every replica, step and request random numbers of its own: no seed in the sampling parameters, seed + "
    "rank in the engine.",
    explanation=__doc__,
    sick=sick,
    well=well,
    plant=Plant(replaces={"assay.train.verbs.generate": _same_seed_on_two_replicas}),
    batch=check_batch,
    explains=frozenset({"ADV09", "MET07"}),
)
