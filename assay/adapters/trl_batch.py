"""What was seen of one TRL update -> record Batch. Rows are put back into the order in which they were generated.

Shape legend: B completions, T completion tokens, P prompt tokens, S tokens given to the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from assay.adapters.trl_settings import BY_GENERATION_TOKENS, has_known_loss, masks_by_value, settings_of
from assay.record.batch import Array, Batch

ROWS = "assay_rows"  # key under which rows keep their number while TRL shuffles them


@dataclass
class Rollouts:
    """One generation, filled in as TRL goes through it."""

    version: int  # optimizer updates made before it
    prompts: Sequence[Sequence[int]] = ()
    sampled: Sequence[Sequence[int]] = ()  # as the sampler returned them
    turns: int = 0  # calls of the sampler
    tool_mask: Sequence[Sequence[int]] | None = None
    returned: dict[int, Sequence[float | None]] = field(default_factory=dict)  # by each reward function
    rewards_BF: Tensor | None = None  # as the trainer uses them
    weights_F: Tensor | None = None
    output: Mapping[str, Any] = field(default_factory=dict)  # what TRL made of it, before it is shuffled
    updates: int = 0  # made of it so far
    is_told: bool = False  # whether it was looked at as a whole

    def add_turn(self, prompts: Iterable[Sequence[int]], sampled: Iterable[Sequence[int]]) -> None:
        self.turns += 1
        self.prompts, self.sampled = list(prompts), list(sampled)

    def add_whole(self, prompts: Iterable[Sequence[int]], sampled: Iterable[Sequence[int]], tool_mask: Any) -> None:
        """After the last turn. One turn's ids stay as the sampler gave them."""
        self.tool_mask = tool_mask
        if self.turns != 1 or tool_mask is not None:  # several turns, or a rollout_func of the user
            self.prompts, self.sampled = list(prompts), list(sampled)

    def add_rewards(self, rewards_BF: Tensor, weights_F: Tensor) -> None:
        self.rewards_BF, self.weights_F = rewards_BF.detach().clone(), weights_F


@dataclass(frozen=True)
class Piece:
    """One micro-batch, as its loss saw it."""

    rows: Array
    inputs: Mapping[str, Any]
    new_BT: Tensor
    entropy_BT: Tensor | None
    gradients_BT: Tensor
    loss: Tensor
    scoring: Mapping[str, Any]  # arguments of the scoring pass
    given: Mapping[str, Tensor]  # what the model was given in it
    dropout_modules: int
    accumulated: int  # micro-batches of its update


def rewards_of(rollouts: Rollouts) -> Array | None:
    """One a row. Where a trainer's rewards are those of the reward functions in another order, the functions' count:
    shaping changes values, and a mere exchange of rows is no shaping."""
    if rollouts.rewards_BF is None or rollouts.weights_F is None:
        return None
    used_BF = rollouts.rewards_BF.detach().float().cpu()
    weights_F = rollouts.weights_F.detach().float().cpu()
    functions = range(used_BF.shape[1])
    if all(number in rollouts.returned for number in functions):
        columns = [[np.nan if one is None else float(one) for one in rollouts.returned[number]] for number in functions]
        returned_BF = torch.tensor(columns, dtype=torch.float32).T
        is_same_size = returned_BF.shape == used_BF.shape
        if is_same_size and _sorted(returned_BF) == _sorted(used_BF):
            used_BF = returned_BF
    total_B = (used_BF * weights_F).nansum(dim=1)
    total_B[torch.isnan(used_BF).all(dim=1)] = torch.nan
    array: Array = total_B.numpy()
    return array


def _sorted(values_BF: Tensor) -> list[list[float]]:
    return sorted(torch.nan_to_num(values_BF, nan=1e30).tolist())


def rollout_batch(trainer: Any, rollouts: Rollouts) -> Batch:
    """All rows of a generation, before any of its updates."""
    output = rollouts.output
    rows = np.arange(len(output["completion_ids"]))
    wide = _Laid(trainer, rollouts, rows, output["completion_ids"].shape[1])
    values = {**settings_of(trainer), **wide.sampled(), **wide.of_inputs([output]), **_credit(trainer, rollouts, rows)}
    values |= {"step": rollouts.version + 1, "update": 0}
    return Batch.of(values, source=f"rollouts of TRL step {rollouts.version + 1}")


def update_batch(
    trainer: Any,
    rollouts: Rollouts,
    pieces: Sequence[Piece],
    asked: Mapping[str, Mapping[int, Tensor]],
    numbers: Mapping[str, Any],
    rate: float,
) -> Batch:
    """`asked` holds log-probs computed again, by row; `numbers` those of the update.

    Steps are counted as everywhere here: one a generation, by TRL's number of its first update.
    """
    version = rollouts.version + rollouts.updates  # updates made before this one
    settings = settings_of(trainer) | {"learning_rate": rate}
    scale = 1.0
    if trainer.loss_type == "bnpo" and len(pieces) > 1:  # a mean over each micro-batch: the first stands for itself
        scale = float(len(pieces))
        settings |= {"microbatches": 1, "minibatches": settings["minibatches"] * len(pieces)}
        pieces = pieces[:1]
    rows = np.concatenate([piece.rows for piece in pieces])
    order = np.argsort(rows, kind="stable")
    wide = _Laid(trainer, rollouts, rows[order], max(piece.new_BT.shape[1] for piece in pieces))
    inputs = [_as_scored(piece) for piece in pieces]

    def laid(of: Callable[[Piece], Tensor | None]) -> Array | None:
        parts = [of(piece) for piece in pieces]
        known = [part for part in parts if part is not None]
        return wide.joined(known, order) if len(known) == len(parts) else None

    arrays = wide.sampled() | wide.of_inputs(inputs, order)
    arrays |= {
        "new_logprobs": laid(lambda piece: piece.new_BT),
        "entropy": laid(lambda piece: piece.entropy_BT),
        "gradients": laid(lambda piece: piece.gradients_BT * scale),
    }
    if "old_logprobs" not in arrays:  # TRL then takes those of the same pass
        arrays["old_logprobs"] = arrays["new_logprobs"]
    for name, by_row in asked.items():
        arrays[name] = wide.rows_of([by_row.get(int(row)) for row in rows[order]])
    arrays |= _given(pieces, order)
    if settings["mask_truncated"] and not arrays["mask"].any(axis=1).all():
        arrays.pop("attention_mask", None)  # TRL hides whole completions by it, which the loss leaves out
    values = {**settings, **arrays, **_credit(trainer, rollouts, rows[order])}
    values |= {"loss": scale * sum(float(piece.loss) for piece in pieces), **numbers}
    values |= {"dropout_modules": max(piece.dropout_modules for piece in pieces)}
    _count(trainer, pieces, values)
    if not has_known_loss(trainer):
        unknown = (
            ("objective", "aggregation", "loss", "gradients")
            if masks_by_value(trainer)
            else ("objective", "aggregation")
        )
        for name in unknown:
            values.pop(name, None)
    values |= {"step": rollouts.version + 1, "update": rollouts.updates, "policy_version": version}
    ordinal = f", update {rollouts.updates + 1} of the rollouts of step {rollouts.version + 1}"
    return Batch.of(values, source=f"TRL step {version + 1}{ordinal if rollouts.updates else ''}")


def _count(trainer: Any, pieces: Sequence[Piece], values: dict[str, Any]) -> None:
    """The denominators of the loss. Some of TRL's divide by the tokens of the generation, as many of them as fall to
    one update on average."""
    values |= {"sequences": sum(len(piece.rows) for piece in pieces), "loss_tokens": float(values["mask"].sum())}
    if trainer.loss_type in BY_GENERATION_TOKENS and "num_items_in_batch" in pieces[0].inputs:
        items = float(pieces[0].inputs["num_items_in_batch"]) / trainer.accelerator.num_processes
        values["loss_tokens"] = max(items, 1.0) * pieces[0].accumulated / trainer.args.steps_per_generation


def _as_scored(piece: Piece) -> Mapping[str, Any]:
    """The inputs; where other columns were scored than were generated, those that were."""
    width = piece.new_BT.shape[1]
    if piece.inputs["completion_ids"].shape[1] == width:
        return piece.inputs
    ids, attended = piece.scoring["input_ids"], piece.scoring["attention_mask"]
    kept = {name: piece.inputs[name] for name in ("advantages",) if name in piece.inputs}
    return {"completion_ids": ids[:, -width:], "completion_mask": attended[:, -width:], **kept}


def _credit(trainer: Any, rollouts: Rollouts, rows: Array) -> dict[str, Any]:
    """Rewards and groups, where all that the trainer compares is here."""
    rewards_B = rewards_of(rollouts)
    first = trainer.accelerator.process_index * len(rollouts.sampled)
    size, whole = trainer.num_generations, len(rows) == len(rollouts.sampled)
    if rewards_B is None or trainer.multi_objective_aggregation != "sum_then_normalize":
        return {}
    groups_B = (rows + first) // size
    complete = all(count == size for count in np.unique(groups_B, return_counts=True)[1])
    everything = whole and trainer.accelerator.num_processes == 1
    if (
        not complete
        or len(rewards_B) <= int(rows.max()) + first
        or (trainer.scale_rewards == "batch" and not everything)
    ):
        return {}
    return {"rewards": rewards_B[rows + first], "group_ids": groups_B}


def _given(pieces: Sequence[Piece], order: Array) -> dict[str, Array]:
    """What the model was given, where all micro-batches were given the same columns."""
    arrays = {}
    for name in ("input_ids", "attention_mask", "position_ids"):
        parts = [piece.given.get(name) for piece in pieces]
        known = [part for part in parts if part is not None]
        if len(known) == len(parts) and len({part.shape[1:] for part in known}) == 1:
            joined = torch.cat(known).cpu().numpy()
            if len(joined) == len(order):
                arrays[name] = joined[order]
    return arrays


class _Laid:
    """Arrays of one width, in the order of `rows`."""

    def __init__(self, trainer: Any, rollouts: Rollouts, rows: Array, width: int) -> None:
        self.rollouts, self.rows = rollouts, rows
        self.lengths = [len(rollouts.sampled[row]) for row in rows]
        self.width = max(width, *self.lengths)
        self.pad_id = trainer._tokenizer.pad_token_id
        self.ends = {*trainer.eos_token_ids, self.pad_id}  # as TRL tells whether a completion was cut off

    def sampled(self) -> dict[str, Any]:
        sampled = [list(self.rollouts.sampled[row]) for row in self.rows]
        prompts = [list(self.rollouts.prompts[row]) for row in self.rows]
        longest = max(map(len, prompts))
        tools = self.rollouts.tool_mask
        forced = np.zeros((len(sampled), self.width), dtype=bool)
        for number, row in enumerate(self.rows):
            if tools is not None:
                forced[number, : len(tools[row])] = np.array(tools[row]) == 0
        return {
            "sampled_tokens": np.array([_longer(tokens, self.width, self.pad_id) for tokens in sampled]),
            "prompt_tokens": np.array([_longer(tokens, longest, self.pad_id) for tokens in prompts]),
            "prompt_mask": np.array([_longer([1] * len(tokens), longest, 0) for tokens in prompts]),
            "lengths": self.lengths,
            "finished": [bool(tokens) and tokens[-1] in self.ends for tokens in sampled],
            "forced": forced,
            "sampler_versions": [self.rollouts.version] * len(sampled),
        }

    def of_inputs(self, inputs: Sequence[Mapping[str, Any]], order: Array | None = None) -> dict[str, Any]:
        """Fields of what TRL hands to its loss."""
        order = np.arange(len(self.rows)) if order is None else order
        names = {
            "tokens": "completion_ids",
            "old_logprobs": "old_per_token_logps",
            "ref_logprobs": "ref_per_token_logps",
            "sampler_logprobs": "sampling_per_token_logps",
        }
        arrays: dict[str, Any] = {}
        for ours, theirs in names.items():
            parts = [one[theirs] for one in inputs if one.get(theirs) is not None]
            if len(parts) == len(inputs):
                arrays[ours] = self.joined(parts, order, fill=self.pad_id if ours == "tokens" else 0)
        masks = [
            one["completion_mask"] * one["tool_mask"] if "tool_mask" in one else one["completion_mask"]
            for one in inputs
        ]
        arrays["mask"] = self.joined(masks, order) != 0
        if all("advantages" in one for one in inputs):
            advantages = torch.cat([one["advantages"].detach().float() for one in inputs]).cpu()
            arrays["advantages"] = (
                advantages.numpy()[order] if advantages.dim() == 1 else self.joined([advantages], order)
            )
        return arrays

    def joined(self, parts: Sequence[Tensor], order: Array, fill: int = 0) -> Array:
        padded = [
            torch.nn.functional.pad(part.detach(), (0, max(0, self.width - part.shape[1])), value=fill)[:, : self.width]
            for part in parts
        ]
        joined = torch.cat(padded).cpu()
        array: Array = (joined.float() if joined.is_floating_point() else joined).numpy()
        return array[order]

    def rows_of(self, rows: Sequence[Tensor | None]) -> Array:
        """NaN in rows that are None: they were not asked for."""
        laid = np.zeros((len(rows), self.width))
        for number, values in enumerate(rows):
            if values is None:
                laid[number] = np.nan
            else:
                laid[number, : len(values)] = values.cpu().numpy()[: self.width]
        return laid


def _longer(tokens: Sequence[int], width: int, fill: int) -> list[int]:
    return [*tokens, *[fill] * (width - len(tokens))]
