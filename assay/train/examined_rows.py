"""Which samples of an update are examined, and the same samples scored in other micro-batches.

Shape legend: B completions, T completion tokens, R rows of S tokens (see ModelInputs).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from assay.config import Config
from assay.policy.policy import Policy
from assay.train.progress import StepInProgress
from assay.train.step.pack import pack_for_policy
from assay.types import Microbatch, Minibatch, Sample

MOST_ROWS = 16
LEAST_ROWS = 8  # in a small step these cost nothing that is noticed
PASSES = 1.5  # forward passes of the step that the questions to the model may cost
LARGE = 20_000_000  # models with more weights than this are large: one pass is noticeable
LEAST_ROWS_LARGE, PASSES_LARGE = 4, 0.5  # of such a model: a run has some 20 steps of 6 passes or more
ALL, FEW = 5, 3  # questions to a policy: plain log-probs, scored again, padded; and, of all, permuted and alone
LONGER = 8  # tokens by which a dummy row is longer than the rows that are to be padded


@dataclass(frozen=True)
class Plan:
    """How much is asked of the model: of how many rows, in how many ways, and whether a group may be cut for that."""

    rows: int
    questions: int
    cuts_groups: bool


def plan(weights: int, samples: int, *, has_reference: bool) -> Plan:
    """
    >>> plan(150_000, 384, has_reference=False), plan(135_000_000, 32, has_reference=False)
    (Plan(rows=16, questions=5, cuts_groups=False), Plan(rows=5, questions=3, cuts_groups=True))
    """

    def affordable(passes: float, questions: int) -> int:
        return min(MOST_ROWS, int(passes * samples / (questions + has_reference)))

    if weights < LARGE:
        return Plan(max(LEAST_ROWS, affordable(PASSES, ALL)), ALL, cuts_groups=False)
    if affordable(PASSES_LARGE, ALL) >= LEAST_ROWS:
        return Plan(affordable(PASSES_LARGE, ALL), ALL, cuts_groups=True)
    return Plan(max(LEAST_ROWS_LARGE, affordable(PASSES_LARGE, FEW)), FEW, cuts_groups=True)


def chosen_rows(minibatch: Minibatch, current: StepInProgress, plan: Plan) -> list[int]:
    """Samples to examine: whole groups in the order of the step, as far as they are in the update. If none of them has
    a signal and another group has, that one takes the place of the last. Of a group that is larger than the plan those
    with the lowest and the highest advantages are taken, where it may be cut."""
    present = {row for batch in minibatch.microbatches for row in batch.rows}
    groups, first = [], 0
    for group in current.collected.groups:
        rows = [row for row in range(first, first + len(group.rollouts)) if row in present]
        first += len(group.rollouts)
        if rows:
            groups.append(rows)
    chosen: list[list[int]] = []
    for rows in groups:
        if not chosen or sum(map(len, chosen)) + len(rows) <= plan.rows:
            chosen.append(rows)

    def has_signal(rows: Sequence[int]) -> bool:
        return any(np.any(current.samples[row].advantage) for row in rows)

    if not any(map(has_signal, chosen)):
        chosen[-1] = next((rows for rows in groups if has_signal(rows)), chosen[-1])
    wanted = [row for rows in chosen for row in rows]
    if plan.cuts_groups and len(wanted) > plan.rows:
        ordered = sorted(wanted, key=lambda row: float(np.mean(current.samples[row].advantage)))
        low = (plan.rows + 1) // 2
        wanted = ordered[:low] + ordered[len(ordered) - plan.rows + low :]
    return sorted(wanted)


def score_otherwise(
    policy: Policy,
    config: Config,
    samples: Sequence[Sample],
    room: int,
    score: Callable[[Microbatch], dict[int, Tensor]],
    questions: int = ALL,
) -> Iterator[tuple[str, list[Tensor]]]:
    """The log-probs of each sample in micro-batches that must not matter, by the name of the field. The trainer's own
    packing makes them, and `score` scores them. At most `room` rows share a pass: there is memory for those."""
    count, backwards = len(samples), range(len(samples))[::-1]

    def scored(parts: Sequence[Sequence[int]], rows: Sequence[Sample] = samples) -> list[Tensor]:
        values: dict[int, Tensor] = {}
        for part in parts:
            values |= score(pack_one(policy, config, rows, part))
        return [values[number] for number in range(count)]

    if questions == ALL:
        yield "scored_permuted", scored(at_most(backwards, room))
        yield "scored_alone", scored(at_most(range(count), 1))
    parts = at_most(range(count) if questions == ALL else backwards, room - 1)
    yield "scored_padded", scored([[*part, count] for part in parts], [*samples, longer_than(samples, policy.context)])


def pack_one(policy: Policy, config: Config, samples: Sequence[Sample], rows: Sequence[int]) -> Microbatch:
    """These rows in one forward pass, as the trainer packs them."""
    one_pass = replace(config, optimizer=replace(config.optimizer, microbatches=1, pass_tokens=0))
    (minibatch,) = pack_for_policy(policy, one_pass, samples, rows, minibatches=1)
    return minibatch.microbatches[0]


@torch.no_grad()
def logprobs_by_row(policy: Policy, batch: Microbatch) -> dict[int, Tensor]:
    """The trainer's own scoring of a forward pass, by the samples in it."""
    return dict(zip(batch.rows, policy.logprobs(batch.inputs)[0].cpu(), strict=True))


def at_most(rows: Sequence[int], size: int) -> list[list[int]]:
    """In pieces of this size, or of 1.

    >>> at_most([5, 6, 7], 2), at_most([5, 6], 0)
    ([[5, 6], [7]], [[5], [6]])
    """
    size = max(size, 1)
    return [list(rows[first : first + size]) for first in range(0, len(rows), size)]


def part_of(batch: Microbatch, wanted: Sequence[int]) -> Microbatch | None:
    """The rows of a forward pass that hold these samples, in their shape; None if there are none."""
    kept = [number for number, row in enumerate(batch.rows) if row in wanted]
    if not kept:
        return None
    inputs = batch.inputs
    width = inputs.ids_RS.shape[1]
    predictors_BT = inputs.predictors_BT[kept]
    rows = sorted(set((predictors_BT[:, 0] // width).tolist()))
    place = torch.zeros(len(inputs.ids_RS), dtype=torch.int64, device=predictors_BT.device)
    place[rows] = torch.arange(len(rows), device=place.device)
    moved_BT = place[predictors_BT.clamp(min=0) // width] * width + predictors_BT % width
    return replace(
        batch,
        rows=tuple(batch.rows[number] for number in kept),
        inputs=replace(
            inputs,
            trees=tuple(inputs.trees[row] for row in rows),
            lengths=tuple(inputs.lengths[number] for number in kept),
            ids_RS=inputs.ids_RS[rows],
            positions_RS=inputs.positions_RS[rows],
            branches_RS=None if inputs.branches_RS is None else inputs.branches_RS[rows],
            predictors_BT=moved_BT.where(predictors_BT >= 0, predictors_BT),
            targets_BT=inputs.targets_BT[kept],
            support_BTK=None if inputs.support_BTK is None else inputs.support_BTK[kept],
        ),
        mask_BT=batch.mask_BT[kept],
        sampler_BT=batch.sampler_BT[kept],
        advantages_BT=batch.advantages_BT[kept],
    )


def longer_than(samples: Sequence[Sample], context: int | None) -> Sample:
    """A sample of a prompt of its own, longer than the others as far as the model's context allows."""
    longest = max(samples, key=lambda sample: len(sample.prompt.tokens) + len(sample.rollout.tokens))
    prompt, rollout = longest.prompt, longest.rollout
    room = LONGER if context is None else min(LONGER, context - len(prompt.tokens) - len(rollout.tokens))
    more = max(room, 0)
    return replace(
        longest,
        prompt=replace(prompt, id=f"{prompt.id} longer"),
        advantage=0.0,
        rollout=replace(
            rollout,
            prompt_id=f"{prompt.id} longer",
            tokens=rollout.tokens + rollout.tokens[-1:] * more,
            sampler_logprobs=rollout.sampler_logprobs + (0.0,) * more,
            support=rollout.support and rollout.support + rollout.support[-1:] * more,
        ),
    )
