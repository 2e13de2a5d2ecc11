"""
## What it checks
The same answer to the same prompt must earn the same reward. The check looks for rows with identical prompt and
completion but different rewards. If moving all rewards by some number of rows, over the batch or inside the groups,
makes every such set of rows agree, the rewards belong to other rows.

## Why it hurts
A reward that stands in another row's place praises an answer for what its neighbour wrote. Inside a group the mean
advantage stays 0 and every curve looks like a hard task: the reward does not rise, or rises by luck. It happens where
results are collected in the order in which they finish, where a filter drops rows from one list only, and where zip
stops at the shorter one.

## How to fix it
Let each reward carry the index of its row, and refuse lists of different lengths.

    # before: in the order of completion
    rewards = [job.result() for job in as_completed(jobs)]
    # after: in the order of submission
    rewards = [job.result() for job in jobs]
    assert len(rewards) == len(completions)

## When it is wrong
A judge that samples, or a reward with noise, gives equal answers different rewards in place. Then no move of the rows
makes them agree, and the finding is only possible. A batch without identical rows cannot be judged.
"""

from __future__ import annotations

import ast
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace as replaced
from typing import Literal

import numpy as np

from assay.doctor.catalogue import Scripts, illness
from assay.doctor.evidence import Batch, Evidence
from assay.doctor.examples import GROUPS, SIZE, B, edit_batch, healthy_batch, of_batch
from assay.doctor.examples.scripts import GRPO
from assay.doctor.facts.logprobs import row_spans
from assay.doctor.facts.repeats import values_by_key
from assay.programs.edits import Spot, interleaved
from assay.programs.facts.advantages.axes import are_tokens_turned, reorderings
from assay.programs.facts.rewards.pairing import mispairings, zips
from assay.programs.program import Program
from assay.record.batch import Array
from assay.verdict import Confidence, Edit, Fact, Missing, Severity, Verdict, finding, healthy, likely, not_enough_data

EQUAL_REWARDS = 1e-6  # of two rewards: float32 sums of the same components
EQUAL_WITH_KL = 0.05  # where a KL is in the reward: two passes over one answer differ by rounding, more in bfloat16
CHANCE = 1e-3  # how likely some move may agree by luck, over all moves that are tried
_SIDES: tuple[tuple[int, Literal["left", "right"]], ...] = ((-1, "left"), (1, "right"))
MOVES = 64  # rows up and down that are tried: a lost or doubled row moves the rest by one, a lost group by its size


def check_batch(batch: Batch) -> Verdict:
    (rewards_B,) = batch.need("rewards")
    twins = _twins(batch, rewards_B)
    if not twins:
        return not_enough_data("two scored rows with the same prompt and completion")
    near = EQUAL_WITH_KL if batch.settings.get("kl_placement") == "reward" else EQUAL_REWARDS
    conflicts = [rows for rows in twins if not _agree(rewards_B, [rows], near)]
    fact = Fact("sets of identical rows with different rewards", len(conflicts), 0, batch.step)
    if not conflicts:
        return healthy("identical rows have identical rewards", fact, Fact("sets of identical rows", len(twins)))
    first, other = _differing(rewards_B, conflicts[0])
    summary = (
        f"{len(conflicts)} of {len(twins)} sets of identical rows have different rewards: rows {first} and {other} "
        f"hold the same prompt and completion and got {rewards_B[first]:.3g} and {rewards_B[other]:.3g}"
    )
    move = _explaining_move(batch, rewards_B, twins, near)
    cause = f"all {len(twins)} agree if rewards are moved {move}: they belong to other rows"
    return finding(
        f"{summary}; {cause if move else 'the reward is noisy, or its rows are mixed up'}",
        replaced(fact, row=first),
        confidence=Confidence.LIKELY if move else Confidence.POSSIBLE,
        severity=None if move else Severity.HARMFUL,
    )


def check_source(program: Program) -> Iterator[Verdict]:
    """The order of rewards: what is zipped, sorted, repeated or collected on the way to them."""
    lines: set[int] = set()
    for pairing in mispairings(program):
        cause, made = pairing.cause.place, pairing.value.place
        if cause.line in lines:
            continue
        lines.add(cause.line)
        yield likely(
            f"`{cause.text}`: {pairing.reason}, so that rewards belong to other rows",
            places=(cause, made),
            why=(f"line {made.line}: rewards are made here, one for each of `{made.text}`",),
        )
    for turned in reorderings(program) if not are_tokens_turned(program) else ():
        lines.add(turned.value.place.line)
        yield likely(
            f"`{turned.value.place.text}` joins the rows of groups in another order than they were cut: advantages "
            "belong to other rows",
            places=(turned.value.place, turned.cut.place),
            why=(f"line {turned.cut.place.line}: {turned.cut.place.text} lays rows out, and they were turned since",),
            fix="Turn the dimensions back before they are joined, or do not turn them.",
        )
    if not lines:
        for zipped in zips(program):
            yield healthy("rewards are made of rows in one order", places=(zipped.place,))


def _twins(batch: Batch, rewards_B: Array) -> list[list[int]]:
    """Rows with the same prompt and completion, as lists of two or more scored ones."""
    keys = zip(_prompts(batch), _completions(batch), strict=True)
    sets = values_by_key(keys, range(len(rewards_B))).values()
    scored = [[row for row in rows if np.isfinite(rewards_B[row])] for rows in sets]
    return [rows for rows in scored if len(rows) > 1]


def _prompts(batch: Batch) -> Sequence[Hashable]:
    for name in ("prompt_id", "prompt"):
        if name in batch.texts:
            return batch.texts[name]
    tokens_BP = batch.get("prompt_tokens")
    if tokens_BP is None:
        raise Missing("prompt_tokens")
    return [row.tobytes() for row in tokens_BP]


def _completions(batch: Batch) -> Sequence[Hashable]:
    """By token where possible: the same text may have been cut off in one row and not in another."""
    tokens_BT = batch.get("tokens")
    if tokens_BT is None:
        if "completion" not in batch.texts:
            raise Missing("tokens")
        return batch.texts["completion"]
    lengths_B = batch.get("lengths")
    if lengths_B is None:  # where padding has the id of EOS, tokens alone do not show where a row ends
        mask_BT, finished_B = (
            batch.arrays.get(name, np.zeros(len(tokens_BT), dtype=bool)) for name in ("mask", "finished")
        )
        ends = zip(tokens_BT, mask_BT, finished_B, strict=True)
        return [(row.tobytes(), mask.tobytes(), bool(finished)) for row, mask, finished in ends]
    return [row[start:end].tobytes() for row, start, end in zip(tokens_BT, *row_spans(batch), strict=True)]


def _agree(rewards_B: Array, sets: Sequence[Sequence[int]], near: float) -> bool:
    """Unscored rows agree with each other alone."""
    rewards = [rewards_B[list(rows)] for rows in sets]
    return all(np.ptp(equals) <= near or bool(np.isnan(equals).all()) for equals in rewards)


def _differing(rewards_B: Array, rows: Sequence[int]) -> list[int]:
    """The rows with the lowest and the highest reward, in order."""
    return sorted(rows[int(choose(rewards_B[list(rows)]))] for choose in (np.argmin, np.argmax))


def _explaining_move(batch: Batch, rewards_B: Array, twins: Sequence[Sequence[int]], near: float) -> str:
    """The smallest move of the rewards after which all twins agree, in words; "" if luck would find one as well."""
    orders = {"over the batch": [np.arange(len(rewards_B))]}
    if (groups_B := batch.get("group_ids")) is not None:
        orders["inside each group"] = [np.flatnonzero(groups_B == group) for group in np.unique(groups_B)]
    sizes = range(1, min(len(rewards_B), MOVES + 1))
    tries = ((where, move) for size in sizes for where in orders for move in (size, -size))
    chance = _chance(rewards_B, twins, near)
    for tried, (where, move) in enumerate(tries, start=1):
        if tried * chance > CHANCE:
            break
        moved_B = rewards_B.copy()
        for rows in orders[where]:
            moved_B[rows] = np.roll(rewards_B[rows], move)
        if _agree(moved_B, twins, near):
            return f"{abs(move)} row{'s' if abs(move) > 1 else ''} {'down' if move > 0 else 'up'} {where}"
    return ""


def _chance(rewards_B: Array, twins: Sequence[Sequence[int]], near: float) -> float:
    """How likely rewards dealt out at random would agree on all twins: rows beyond the first of a set must match it."""
    scored_N = np.sort(rewards_B[np.isfinite(rewards_B)])
    lowest_N, highest_N = (np.searchsorted(scored_N, scored_N + near * side, how) for side, how in _SIDES)
    match = float((highest_N - lowest_N).mean() / len(scored_N))
    return match ** sum(len(rows) - 1 for rows in twins)


def _with_twins() -> Batch:
    """Four times the healthy batch, in which equal rewards within a group come from equal answers.

    What is computed from rewards and tokens is left out.
    """
    parts = [healthy_batch(seed=seed) for seed in range(4)]
    kept = ("tokens", "mask", "lengths", "finished", "prompt_tokens", "prompt_mask", "group_ids", "rewards")
    values = {name: np.concatenate([part.arrays[name] for part in parts]) for name in kept}
    values["group_ids"] = np.repeat(np.arange(4 * GROUPS), SIZE)
    values["rewards"] = np.random.default_rng(6).integers(0, 2, size=4 * B).astype(float)
    _, first, which_B = np.unique(2 * values["group_ids"] + values["rewards"], return_index=True, return_inverse=True)
    leader_B = first[which_B]
    for name in ("tokens", "mask", "lengths", "finished"):
        values[name] = values[name][leader_B]
    texts = {
        "prompt_id": [f"q{group}" for group in values["group_ids"]],
        "completion": [f"answer {leader}" for leader in leader_B],
    }
    stated = ("eos_ids", "pad_id", "max_tokens", "max_reward", "min_reward")
    settings = {name: parts[0].settings[name] for name in stated}
    return Batch.of({**values, **settings, "step": 5}, texts=texts, source="example")


def edits(verdict: Verdict, spot: Spot, others: Sequence[Spot]) -> Iterator[Edit | None]:
    """The rows in the order in which they were drawn."""
    if spot.name in ("sorted", "reversed") and spot.receiver is not None:
        yield spot.becomes(spot.receiver.source)
    if isinstance(spot.node, ast.Subscript) and spot.child(spot.node.slice).source.replace(" ", "") == "::-1":
        yield spot.becomes(spot.child(spot.node.value).source)
    yield from interleaved(spot)


def sick() -> Evidence:
    batch = _with_twins()
    return of_batch(edit_batch(batch, rewards=np.roll(batch.arrays["rewards"], 1)))


WELL = GRPO.replace("import prompts_of, rewards_of", "import answers_of, prompts_of, reward_of").replace(
    "rewards_of(ids[:, start:])",
    "torch.tensor([reward_of(text, answer) for text, answer in zip(ids[:, start:].tolist(), answers_of(step, 8))])",
)
SICK = WELL.replace("answers_of(step, 8))", "sorted(answers_of(step, 8)))")

ILLNESS = illness(
    __name__,
    code="ADV10",
    severity=Severity.FATAL,
    summary="rewards belong to other rows",
    fix="Let each reward carry the index of its row; collect results in the order in which they were asked for.",
    symptoms=(
        "rewards are assigned to the wrong completion",
        "rewards in the wrong order",
        "reward does not match the answer",
    ),
    sick=sick,
    well=lambda: of_batch(_with_twins()),
    scripts=Scripts(SICK, WELL),
    explains=frozenset({"ADV05", "ADV09"}),
)
