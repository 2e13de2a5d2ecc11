"""
## What it checks
A reward belongs to its row. Where rewards were computed again with the rows in another order, each row must get the
one on record. And an answer that comes again in a later step must get the reward it got before.

## Why it hurts
A reward in another row's place praises an answer for what its neighbour wrote. The mean advantage stays 0 and every
curve looks like a hard task.

## How to fix it
Score one row by hand and compare. Keep prompts, completions and answers in one list of records until they are scored.

    # before: the answers are in the order of the data set, the completions in that of the groups
    rewards = [score(c, a) for c, a in zip(completions, answers * group)]
    # after
    rewards = [score(c, a) for c, a in zip(completions, [a for a in answers for _ in range(group)])]

## When it is wrong
A reward that changes on purpose: a schedule, a comparison with the row before. Rows whose reward differs between two
calls in a row (a judge that samples) are left out.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from assay.doctor.catalogue import illness
from assay.doctor.evidence import Batch, Evidence
from assay.doctor.examples import edit_batch, healthy_batch, of_batch
from assay.doctor.facts.prompts import prompt_keys
from assay.doctor.facts.repeats import completions
from assay.verdict import Confidence, Fact, Missing, Severity, Verdict, finding, healthy, not_applicable

NEARLY = 1e-5  # of the largest reward: float32
MOST_VALUES = 32  # of rewards: one with noise in it has as many as rows
FEW = 3  # answers that come again with another reward: fewer may be a tie that was cut off differently


def check_batch(batch: Batch) -> Verdict:
    rewards_B, again_B = batch.need("rewards", "rewards_again")
    asked = np.flatnonzero(np.isfinite(again_B) & np.isfinite(rewards_B))
    if not len(asked):
        raise Missing("rewards_again of any row")
    limit = NEARLY * max(1.0, float(np.abs(rewards_B[asked]).max()))
    off = asked[np.abs(rewards_B - again_B)[asked] > limit]
    if not len(off):
        return healthy(
            f"{len(asked)} rows were scored again in another order and got the same reward", Fact("rows", len(asked))
        )
    row = int(off[0])
    # rewards at other rows are exchanged: some rows get more and others less, of the same values
    more, known = again_B[off] > rewards_B[off], {round(float(reward), 5) for reward in again_B[asked]}
    is_exchange = more.any() and not more.all() and all(round(float(reward), 5) in known for reward in rewards_B[off])
    if not is_exchange:
        return not_applicable("what the trainer takes for the reward is made of it by a formula")
    return finding(
        f"{len(off)} of {len(asked)} rows get another reward than that on record when scored in another order",
        Fact("reward on record", float(rewards_B[row]), None, batch.step, row),
        Fact("reward of the same row in another order", float(again_B[row])),
        confidence=Confidence.LIKELY,
    )


def check_batches(batches: Sequence[Batch]) -> Verdict:
    """Answers that come again, in the same step or a later one. A reward that changes from step to step on purpose
    still gives equal answers of one step the same, so conflicts of both kinds are asked for."""
    known: dict[object, tuple[float, int | None]] = {}
    again: set[object] = set()
    within: list[tuple[int | None, int, float, float]] = []
    between: list[tuple[int | None, int, float, float]] = []
    for batch in batches:
        if batch.get("rewards") is None or batch.settings.get("kl_placement") == "reward":
            continue
        (rewards_B,) = batch.need("rewards")
        for row, key in enumerate(zip(prompt_keys(batch), _answers(batch), strict=True)):
            if not np.isfinite(rewards_B[row]) or not key[1]:
                continue
            first, step = known.setdefault(key, (float(rewards_B[row]), batch.step))
            differs = abs(first - rewards_B[row]) > NEARLY * max(1.0, abs(first))
            if step != batch.step:
                again.add(key)
            if differs:
                (within if step == batch.step else between).append((batch.step, row, first, float(rewards_B[row])))
    if not again:
        raise Missing("rewards_again, or an answer that comes again in a later step")
    fact = Fact("answers that came again in a later step", len(again))
    if not between:
        return healthy("answers that come again get the reward they got before", fact)
    step, row, first, now = between[0]
    values = {round(float(reward), 6) for batch in batches for reward in batch.arrays.get("rewards", ())}
    is_sure = len(between) >= FEW and bool(within) and len(values) <= MOST_VALUES
    return finding(
        f"answers that come again in a later step get another reward ({len(between)} times, {len(again)} answers)",
        Fact("reward now", now, None, step, row),
        Fact("reward of the same answer before", first),
        fact,
        confidence=Confidence.LIKELY if is_sure else Confidence.POSSIBLE,
    )


def _answers(batch: Batch) -> Sequence[object]:
    """Without lengths a reward may have read what stands behind the end of an answer: then the whole row counts."""
    if batch.get("lengths") is None:
        (tokens_BT,) = batch.need("tokens")
        return [row.tobytes() for row in tokens_BT]
    return completions(batch)


def _asked_again(shift: int) -> Evidence:
    batch = healthy_batch()
    (rewards_B,) = batch.need("rewards")
    again_B = np.where(np.arange(len(rewards_B)) < 4, np.roll(rewards_B, shift), np.nan)
    return of_batch(edit_batch(batch, rewards_again=again_B))


def sick() -> Evidence:
    """Rewards are off by one row."""
    return _asked_again(1)


def well() -> Evidence:
    return _asked_again(0)


ILLNESS = illness(
    __name__,
    code="LAW10",
    name="law_of_the_reward",
    severity=Severity.FATAL,
    summary="rewards are not those of their rows",
    fix="Score the row that is named by hand; keep prompt, completion and answer together until they are scored.",
    symptoms=("rewards do not match the completions", "reward belongs to another sample"),
    sick=sick,
    well=well,
    explained_by=frozenset({"REW", "ALGN", "ADV"}),
)
