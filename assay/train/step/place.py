"""Where a run stands: `Place` (counters), `Gathered` (rollouts of the step), `Work` (the step under way).

`to_checkpoint` and `from_checkpoint` turn Work into tensors and JSON and back, to the bit. What can be derived again
(advantages, packed tensors) is not saved; what the weights have since moved away from (old and ref log-probs) is.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from assay.record.text import without_secrets
from assay.train.step.learner import Learned
from assay.types import (
    NO_SIGNAL,
    Batch,
    FrozenLogprobs,
    Group,
    Minibatch,
    Prompt,
    Rollout,
    Sample,
    Score,
    StopReason,
    Update,
)


@dataclass(frozen=True, slots=True)
class Place:
    """Counters only: everything random is derived from them."""

    step: int = 0  # steps done
    update: int = 0  # optimizer updates done in the step under way, skipped ones included
    cursor: int = 0  # training problems drawn in the steps done
    policy_version: int = 0  # optimizer updates applied since the beginning
    skipped_in_a_row: int = 0  # non-finite updates since the last sound one

    def after_update(self, update: Update) -> Place:
        broken = not update.applied and update.skipped != NO_SIGNAL
        return replace(
            self,
            update=self.update + 1,
            policy_version=self.policy_version + update.applied,
            skipped_in_a_row=self.skipped_in_a_row + 1 if broken else 0,
        )

    def after_step(self, work: Work) -> Place:
        return replace(self, step=self.step + 1, update=0, cursor=self.cursor + work.gathered.drawn)


@dataclass(frozen=True, slots=True)
class Gathered:
    """The groups a step has so far; several rounds when groups without signal are replaced."""

    groups: tuple[Group, ...] = ()
    left_out: tuple[Group, ...] = ()  # generated, recorded, not trained on: without signal, badly scored, or too many
    drawn: int = 0  # prompts drawn in this step
    rounds: int = 0  # times the engine was asked
    without_signal: int = 0  # groups seen whose rewards were all equal, kept or not
    complete: bool = False


@dataclass(frozen=True, slots=True)
class Work:
    """A step under way: its rollouts, its batch, and the updates made so far."""

    gathered: Gathered
    samples: tuple[Sample, ...]
    batch: Batch
    updates: tuple[Update, ...] = ()
    new_logprobs: tuple[tuple[Tensor, ...], ...] = ()  # a minibatch's micro-batches, as its latest update saw them

    def has_updates_left(self, place: Place) -> bool:
        return place.update < self.batch.epochs * len(self.batch.minibatches)

    def current(self, place: Place) -> int:
        """Which minibatch is next."""
        return place.update % len(self.batch.minibatches)

    def after(self, learned: Learned, place: Place) -> Work:
        current = self.current(place)
        new = (*self.new_logprobs[:current], learned.new_logprobs, *self.new_logprobs[current + 1 :])
        return replace(self, updates=(*self.updates, learned.update), new_logprobs=new)

    def logprobs_by_row(self, parts: Sequence[Sequence[Tensor | None]]) -> tuple[tuple[float, ...], ...]:
        """Log-probs of each sample, unpadded, from tensors parallel to the micro-batches of the batch."""
        rows: dict[int, tuple[float, ...]] = {}
        for minibatch, tensors in zip(self.batch.minibatches, parts, strict=True):
            for microbatch, values_BT in zip(minibatch.microbatches, tensors, strict=True):
                assert values_BT is not None
                for row, values in zip(microbatch.rows, values_BT.tolist(), strict=True):
                    rows[row] = tuple(values[: len(self.samples[row].rollout.tokens)])
        return tuple(rows[row] for row in range(len(self.samples)))


def work_to_checkpoint(work: Work) -> tuple[dict[str, Tensor], dict[str, Any]]:
    tensors: dict[str, Tensor] = {}
    for index, parts in enumerate(work.batch.frozen):
        for part, fixed in enumerate(parts):
            if fixed.old_BT is not None:
                tensors[f"old.{index}.{part}"] = fixed.old_BT
            if fixed.ref_BT is not None:
                tensors[f"ref.{index}.{part}"] = fixed.ref_BT
    for index, new in enumerate(work.new_logprobs):
        for part, new_BT in enumerate(new):
            tensors[f"new.{index}.{part}"] = new_BT
    gathered = work.gathered
    return tensors, {
        "groups": [_group_to_state(group) for group in gathered.groups],
        "left_out": [_group_to_state(group) for group in gathered.left_out],
        "drawn": gathered.drawn,
        "rounds": gathered.rounds,
        "without_signal": gathered.without_signal,
        "updates": [_hexed(dataclasses.asdict(update)) for update in work.updates],
    }


def work_from_checkpoint(
    tensors: Mapping[str, Tensor],
    state: Mapping[str, Any],
    credit: Callable[[Sequence[Group]], tuple[Sample, ...]],
    cut: Callable[[Sequence[Sample]], tuple[Minibatch, ...]],
    epochs: int,
) -> Work:
    groups = tuple(_group(group) for group in state["groups"])
    samples = credit(groups)
    minibatches = cut(samples)
    frozen, new = [], []
    for index, minibatch in enumerate(minibatches):
        keys = [f"{index}.{part}" for part in range(len(minibatch.microbatches))]
        frozen.append(tuple(FrozenLogprobs(tensors.get(f"old.{key}"), tensors.get(f"ref.{key}")) for key in keys))
        if f"new.{index}.0" in tensors:
            new.append(tuple(tensors[f"new.{key}"] for key in keys))
    return Work(
        gathered=Gathered(
            groups,
            tuple(_group(group) for group in state["left_out"]),
            state["drawn"],
            state["rounds"],
            state["without_signal"],
            complete=True,
        ),
        samples=samples,
        batch=Batch(minibatches, tuple(frozen), epochs),
        updates=tuple(Update(**_unhexed(update)) for update in state["updates"]),
        new_logprobs=tuple(new),
    )


def _group_to_state(group: Group) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(group)))  # lists for tuples
    for score in state["scores"]:
        score["error"] = without_secrets(score["error"])  # what a reward raised may quote a key
        del score["failure"]  # for the reader of this process alone
    return state


def _group(state: Mapping[str, Any]) -> Group:
    prompt = Prompt(**{**state["prompt"], "tokens": tuple(state["prompt"]["tokens"])})
    rollouts = tuple(
        Rollout(
            **{
                **rollout,
                "tokens": tuple(rollout["tokens"]),
                "sampler_logprobs": tuple(rollout["sampler_logprobs"]),
                "stop": StopReason(rollout["stop"]),
                "support": rollout["support"] and tuple(map(tuple, rollout["support"])),
            }
        )
        for rollout in state["rollouts"]
    )
    scores = (Score(**{**score, "steps": tuple(map(tuple, score["steps"]))}) for score in state["scores"])
    return Group(prompt, rollouts, tuple(scores))


def _hexed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Floats as hexadecimal text: a skipped update holds NaN, which JSON cannot say."""
    return {name: {"float": value.hex()} if isinstance(value, float) else value for name, value in values.items()}


def _unhexed(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: float.fromhex(value["float"]) if isinstance(value, dict) else value for name, value in values.items()}
