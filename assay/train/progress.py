"""How far a run has come: `Progress` (counters) and `StepInProgress` (the step that is not finished yet).

`to_checkpoint` and `from_checkpoint` turn a StepInProgress into tensors and JSON and back, to the bit. What can be
derived again (advantages, packed tensors) is not saved; what depends on earlier weights (old and ref log-probs) is.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from assay.machine.secrets import without_secrets
from assay.types import (
    NO_SIGNAL,
    FrozenBatch,
    FrozenLogprobs,
    Group,
    Learned,
    Minibatch,
    Prompt,
    Rollout,
    Sample,
    Score,
    StopReason,
    Update,
)


@dataclass(frozen=True, slots=True)
class Progress:
    """Counters only: everything random is derived from them."""

    step: int = 0  # steps done
    update: int = 0  # optimizer updates done in the unfinished step, skipped ones included
    cursor: int = 0  # training problems that the finished steps have used
    policy_version: int = 0  # optimizer updates applied since the beginning
    skipped_in_a_row: int = 0  # non-finite updates since the last sound one

    def after_update(self, update: Update) -> Progress:
        broken = not update.applied and update.skipped != NO_SIGNAL
        return replace(
            self,
            update=self.update + 1,
            policy_version=self.policy_version + update.applied,
            skipped_in_a_row=self.skipped_in_a_row + 1 if broken else 0,
        )

    def after_step(self, current: StepInProgress) -> Progress:
        return replace(self, step=self.step + 1, update=0, cursor=self.cursor + current.collected.prompts_drawn)


@dataclass(frozen=True, slots=True)
class CollectedGroups:
    """The groups a step has so far; several rounds when groups without signal are replaced."""

    groups: tuple[Group, ...] = ()
    left_out: tuple[Group, ...] = ()  # generated, recorded, not trained on: without signal, badly scored, or too many
    prompts_drawn: int = 0  # in this step
    rounds: int = 0  # calls of the engine
    without_signal: int = 0  # groups seen whose rewards were all equal, kept or not
    complete: bool = False


@dataclass(frozen=True, slots=True)
class StepInProgress:
    """A step that is not finished: its rollouts, its batch, and the updates made so far."""

    collected: CollectedGroups
    samples: tuple[Sample, ...]
    batch: FrozenBatch
    updates: tuple[Update, ...] = ()
    new_logprobs: tuple[tuple[Tensor, ...], ...] = ()  # per minibatch and micro-batch, of its latest update

    def has_updates_left(self, progress: Progress) -> bool:
        return progress.update < self.batch.epochs * len(self.batch.minibatches)

    def next_minibatch(self, progress: Progress) -> int:
        """The index of the minibatch that the next update trains on."""
        return progress.update % len(self.batch.minibatches)

    def after(self, learned: Learned, progress: Progress) -> StepInProgress:
        number = self.next_minibatch(progress)
        new = (*self.new_logprobs[:number], learned.new_logprobs, *self.new_logprobs[number + 1 :])
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


def to_checkpoint(current: StepInProgress) -> tuple[dict[str, Tensor], dict[str, Any]]:
    tensors: dict[str, Tensor] = {}
    for index, parts in enumerate(current.batch.frozen):
        for part, fixed in enumerate(parts):
            if fixed.old_BT is not None:
                tensors[f"old.{index}.{part}"] = fixed.old_BT
            if fixed.ref_BT is not None:
                tensors[f"ref.{index}.{part}"] = fixed.ref_BT
    for index, new in enumerate(current.new_logprobs):
        for part, new_BT in enumerate(new):
            tensors[f"new.{index}.{part}"] = new_BT
    collected = current.collected
    return tensors, {
        "groups": [_group_to_state(group) for group in collected.groups],
        "left_out": [_group_to_state(group) for group in collected.left_out],
        "drawn": collected.prompts_drawn,
        "rounds": collected.rounds,
        "without_signal": collected.without_signal,
        "updates": [_hexed(dataclasses.asdict(update)) for update in current.updates],
    }


def from_checkpoint(
    tensors: Mapping[str, Tensor],
    state: Mapping[str, Any],
    credit: Callable[[Sequence[Group]], tuple[Sample, ...]],
    pack: Callable[[Sequence[Sample]], tuple[Minibatch, ...]],
    epochs: int,
) -> StepInProgress:
    groups = tuple(_group(group) for group in state["groups"])
    samples = credit(groups)
    minibatches = pack(samples)
    frozen, new = [], []
    for index, minibatch in enumerate(minibatches):
        keys = [f"{index}.{part}" for part in range(len(minibatch.microbatches))]
        frozen.append(tuple(FrozenLogprobs(tensors.get(f"old.{key}"), tensors.get(f"ref.{key}")) for key in keys))
        if f"new.{index}.0" in tensors:
            new.append(tuple(tensors[f"new.{key}"] for key in keys))
    return StepInProgress(
        collected=CollectedGroups(
            groups,
            tuple(_group(group) for group in state["left_out"]),
            state["drawn"],
            state["rounds"],
            state["without_signal"],
            complete=True,
        ),
        samples=samples,
        batch=FrozenBatch(minibatches, tuple(frozen), epochs),
        updates=tuple(Update(**_unhexed(update)) for update in state["updates"]),
        new_logprobs=tuple(new),
    )


def _group_to_state(group: Group) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(group)))  # lists for tuples
    for score in state["scores"]:
        score["error"] = without_secrets(score["error"])  # what a reward raised may quote a key
        del score["failure"]  # only this process reports it
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
    """Floats as hexadecimal text: a skipped update holds NaN, which JSON does not have."""
    return {name: {"float": value.hex()} if isinstance(value, float) else value for name, value in values.items()}


def _unhexed(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: float.fromhex(value["float"]) if isinstance(value, dict) else value for name, value in values.items()}
