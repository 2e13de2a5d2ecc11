"""What TRL generates and hands to its loss -> the rows and parts of a Batch.

Shape legend: B completions, T completion tokens, F reward functions.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from assay.adapters.attached import Look, Rollouts
from assay.adapters.trl_settings import BY_GENERATION_TOKENS, has_known_loss, masks_by_value, settings_of, whole_run
from assay.examine.again import ask_in_child, score_backwards
from assay.examine.part import Part
from assay.record.batch import Array, Batch

Ids = tuple[int, ...]
Row = tuple[Ids, Ids]  # prompt, completion
_NAMES = {  # ours <- TRL's
    "tokens": "completion_ids",
    "old_logprobs": "old_per_token_logps",
    "ref_logprobs": "ref_per_token_logps",
    "sampler_logprobs": "sampling_per_token_logps",
}


@dataclass
class TRLGeneration(Rollouts):
    """One generation of TRL, filled in as TRL goes through it."""

    turns: int = 0  # calls of the sampler
    draws: list[Row] = field(default_factory=list)  # of model.generate()
    returned: dict[int, Sequence[float | None]] = field(default_factory=dict)  # by each reward function
    scorers: dict[int, Callable[[Sequence[int]], Sequence[float | None]]] = field(default_factory=dict)
    again: list[float] = field(default_factory=list)  # rewards of the functions for the rows in reverse order
    alone: list[float] = field(default_factory=list)  # and for each row by itself
    rewards_BF: Tensor | None = None  # as the trainer uses them
    weights_F: Tensor | None = None
    output: Mapping[str, Any] = field(default_factory=dict)  # what TRL made of it, before it is shuffled

    def add_turn(self, prompts: Iterable[Sequence[int]], sampled: Iterable[Sequence[int]]) -> None:
        self.turns += 1
        self.prompts, self.sampled = list(prompts), list(sampled)

    def add_whole(self, prompts: Iterable[Sequence[int]], sampled: Iterable[Sequence[int]], tool_mask: Any) -> None:
        """After the last turn. One turn's ids stay as the sampler gave them."""
        self.forced = None if tool_mask is None else [[token == 0 for token in row] for row in tool_mask]
        if self.turns != 1 or tool_mask is not None:  # several turns, or a rollout_func of the user
            self.prompts, self.sampled = list(prompts), list(sampled)

    def add_draws(self, ids: Any, mask: Any, answer: Any, ends: Iterable[int]) -> None:
        """A call of model.generate(): nothing stands between it and the model."""
        sequences = answer if isinstance(answer, Tensor) else getattr(answer, "sequences", None)
        if not isinstance(ids, Tensor) or ids.dim() != 2 or sequences is None or len(sequences) % len(ids):
            return
        mask = torch.ones_like(ids) if mask is None else mask
        prompts = [tuple(row[seen != 0].tolist()) for row, seen in zip(ids.cpu(), mask.cpu(), strict=True)]
        copies, stops = len(sequences) // len(ids), set(ends)
        for number, row in enumerate(sequences[:, ids.shape[1] :].tolist()):
            length = next((place + 1 for place, token in enumerate(row) if token in stops), len(row))
            self.draws.append((prompts[number // copies], tuple(row[:length])))

    def align(self) -> None:
        """Where the trainer's rows are not those of generate(), each gets the prompt and the ids that it was drawn
        with, as far as these are known. Several turns, and tokens of tools, are left as they are."""
        if self.draws and self.turns <= 1 and self.forced is None:
            rows = [(tuple(prompt), tuple(ids)) for prompt, ids in zip(self.prompts, self.sampled, strict=True)]
            matched = drawn_rows(rows, self.draws)
            self.prompts, self.sampled = [list(prompt) for prompt, _ in matched], [list(ids) for _, ids in matched]

    def add_rewards(self, rewards_BF: Tensor, weights_F: Tensor) -> None:
        self.rewards_BF, self.weights_F = rewards_BF.detach().clone(), weights_F

    def score_again(self) -> None:
        """By functions that are fast; their sum, as TRL weighs them."""
        if self.weights_F is None or self.rewards_BF is None or len(self.scorers) != self.rewards_BF.shape[1]:
            return
        weights = self.weights_F.tolist()

        def total(rows: Sequence[int]) -> list[float | None]:
            columns = [self.scorers[number](rows) for number in range(len(weights))]
            return [
                None
                if None in rewards
                else sum(weight * float(reward or 0.0) for weight, reward in zip(weights, rewards, strict=True))
                for rewards in zip(*columns, strict=True)
            ]

        self.again = score_backwards(total, len(self.sampled))
        if self.again:
            self.alone = ask_in_child(lambda: [total([row])[0] for row in range(len(self.sampled))]) or []

    def add_output(self, trainer: Any, output: Mapping[str, Any]) -> None:
        ends = {*trainer.eos_token_ids, trainer._tokenizer.pad_token_id}  # by these TRL knows what was cut off
        self.finished = [bool(tokens) and tokens[-1] in ends for tokens in map(list, self.sampled)]
        self.output = dict(output)


def drawn_rows(rows: Sequence[Row], draws: Sequence[Row]) -> list[Row]:
    """Of each (prompt, completion) of the trainer the draw that it is, or is made of; the row itself if none is known.

    An answer that is cut off behind a stop is its draw. Where the answers of all rows are just those that were drawn,
    some behind other prompts, rows have changed places; else the ids of an answer were changed, and its draw is the
    one with its prompt that is like it the longest. Where few rows were drawn here, the sampler is another one."""
    free = Counter(draws)
    same = {number for number, row in enumerate(rows) if _take(free, row, operator.eq) is not None}
    others = [number for number in range(len(rows)) if number not in same]
    # those that are just the same come first: a short one may be the beginning of another
    lost = [number for number in others if _take(free, rows[number], _is_draw) is None]
    own: dict[int, Row | None] = {}
    if Counter(answer for _, answer in rows) == Counter(answer for _, answer in draws):
        own = {number: _take(free, rows[number], lambda row, draw: draw[1] == row[1]) for number in lost}
    elif 2 * len(same) > len(rows) and not _are_closed([rows[number] for number in lost], rows, draws):
        own = {number: _take(free, rows[number], lambda row, draw: draw[0] == row[0]) for number in lost}
    return [own.get(number) or row for number, row in enumerate(rows)]


def _are_closed(lost: Sequence[Row], rows: Sequence[Row], draws: Sequence[Row]) -> bool:
    """Whether these answers are draws that were cut off behind one stop, which no row goes beyond, and then closed."""
    stops = {answer[-2:-1] for _, answer in lost}
    return (
        len(stops) == 1
        and all(stop not in answer[:-2] for _, answer in rows for stop in next(iter(stops)))
        and all(any(_is_draw((prompt, answer[:-1]), draw) for draw in draws) for prompt, answer in lost)
    )


def _is_draw(row: Row, draw: Row) -> bool:
    """The answer may have been drawn in several parts, each behind all that came before."""
    whole, given = row[0] + row[1], draw[0] + draw[1]
    return draw[0][: len(row[0])] == row[0] and whole == given[: len(whole)]


def _shared(one: Ids, other: Ids) -> int:
    """First ids that are the same."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (left, right) in pairs if left != right), min(len(one), len(other)))


def _take(free: Counter[Row], row: Row, fits: Callable[[Row, Row], bool]) -> Row | None:
    """Of the draws that nobody has taken the one that is like the row the longest."""
    fitting = [draw for draw, count in free.items() if count > 0 and fits(row, draw)]
    draw = max(fitting, key=lambda draw: _shared(row[1], draw[1]), default=None)
    if draw is not None:
        free[draw] -= 1
    return draw


def part_of(
    inputs: Mapping[str, Any],
    rows: Tensor,
    new_BT: Tensor,
    entropy_BT: Tensor | None,
    gradients_BT: Tensor,
    scoring: Mapping[str, Any],
) -> Part:
    """`inputs` are those of TRL's loss, `scoring` the arguments of the pass that made the log-probs."""
    width = new_BT.shape[1]
    if inputs["completion_ids"].shape[1] != width:  # other columns were scored than were generated
        ids, attended = scoring["input_ids"][:, -width:], scoring["attention_mask"][:, -width:]
        kept = {name: inputs[name] for name in ("advantages",) if name in inputs}
        inputs = {"completion_ids": ids, "completion_mask": attended, **kept}
    # without old log-probs TRL takes those of the same pass
    tensors = {"old_logprobs": new_BT.detach(), **_tensors(inputs), "new_logprobs": new_BT.detach()}
    if entropy_BT is not None:
        tensors["entropy"] = entropy_BT.detach()
    return Part(tuple(rows.tolist()), {**tensors, "gradients": gradients_BT})


def _tensors(inputs: Mapping[str, Any]) -> dict[str, Tensor]:
    tensors = {ours: inputs[theirs] for ours, theirs in _NAMES.items() if inputs.get(theirs) is not None}
    mask_BT = inputs["completion_mask"]
    tensors["mask"] = (mask_BT * inputs["tool_mask"] if "tool_mask" in inputs else mask_BT) != 0
    if "advantages" in inputs:
        tensors["advantages"] = inputs["advantages"].float()
    return {name: values.detach() for name, values in tensors.items()}


def rollout_batch(trainer: Any, rollouts: TRLGeneration, more: Mapping[str, int]) -> Batch:
    """All rows of a generation, before any of its updates."""
    tensors = _tensors(rollouts.output)
    rows = range(len(tensors["tokens"]))
    fields = Look(rollouts, [Part(tuple(rows), tensors)]).fields(trainer._tokenizer.pad_token_id)
    del fields["policy_version"]
    fields |= {**settings_of(trainer), **_credit(trainer, rollouts, rows), "update": 0, **more}
    return Batch.of(fields, source=f"rollouts of TRL step {rollouts.step}")


def update_batch(
    trainer: Any,
    rollouts: TRLGeneration,
    look: Look,
    losses: Sequence[Tensor],
    rate: float | None,
    more: Mapping[str, int],
) -> Batch:
    settings = settings_of(trainer) | {"steps": whole_run(trainer)["steps"], **more}
    if rate is not None:
        settings["learning_rate"] = rate
    count, scale = len(look.parts), 1.0
    if trainer.loss_type == "bnpo" and count > 1:  # a mean over each micro-batch: the first stands for itself
        settings |= {"microbatches": 1, "minibatches": settings["minibatches"] * count}
        part, scale, losses = look.parts[0], float(count), losses[:1]
        scaled = {**part.tensors, "gradients": part.tensors["gradients"] * scale}
        look = replace(look, parts=[replace(part, tensors=scaled)], inputs=look.inputs[:1])
    fields = {"loss": scale * sum(map(float, losses)), **look.fields(trainer._tokenizer.pad_token_id)}
    if settings["mask_truncated"] and not fields["mask"].any(axis=1).all():
        fields.pop("attention_mask", None)  # TRL hides whole completions by it, which the loss leaves out
    # the denominators of the loss
    settings |= {"sequences": len(look.rows), "loss_tokens": float(fields["mask"].sum())}
    if trainer.loss_type in BY_GENERATION_TOKENS and "items" in fields:
        settings["loss_tokens"] = fields["items"]
    fields.pop("items", None)
    fields |= {**settings, **_credit(trainer, rollouts, look.rows)}
    if not has_known_loss(trainer):
        unknown = ("objective", "aggregation", *(("loss", "gradients") if masks_by_value(trainer) else ()))
        fields = {name: value for name, value in fields.items() if name not in unknown}
    ordinal = f", update {rollouts.updates + 1} of the rollouts of step {rollouts.step}" if rollouts.updates else ""
    return Batch.of(fields, source=f"TRL step {rollouts.step + rollouts.updates}{ordinal}")


def loss_tokens(trainer: Any, inputs: Mapping[str, Any]) -> dict[str, float]:
    """Some of TRL's losses divide by the tokens of the generation, as many of them as fall to one update on average."""
    if "num_items_in_batch" not in inputs:
        return {}
    items = float(inputs["num_items_in_batch"]) / trainer.accelerator.num_processes
    accumulated = int(trainer.current_gradient_accumulation_steps)
    return {"items": max(items, 1.0) * accumulated / trainer.args.steps_per_generation}


def _credit(trainer: Any, rollouts: TRLGeneration, rows: Sequence[int]) -> dict[str, Any]:
    """Rewards and groups, where all that the trainer compares is here."""
    rewards_B = rewards_of(rollouts)
    if rewards_B is None or trainer.multi_objective_aggregation != "sum_then_normalize":
        return {}
    here_B = np.array(rows) + trainer.accelerator.process_index * len(rollouts.sampled)
    groups_B = here_B // trainer.num_generations
    complete = all(count == trainer.num_generations for count in np.unique(groups_B, return_counts=True)[1])
    everything = len(rows) == len(rollouts.sampled) and trainer.accelerator.num_processes == 1
    if not complete or len(rewards_B) <= here_B.max() or (trainer.scale_rewards == "batch" and not everything):
        return {}
    credit = {"rewards": rewards_B[here_B], "group_ids": groups_B}
    if len(rollouts.again) == len(rewards_B) and returned_rewards(rollouts) is not None:
        credit["rewards_again"] = np.array(rollouts.again)[here_B]
        if len(rollouts.alone) == len(rewards_B):
            credit["rewards_alone"] = np.array(rollouts.alone)[here_B]
    return credit


def rewards_of(rollouts: TRLGeneration) -> Array | None:
    """One per row. Where a trainer's rewards are those of the reward functions in another order, the functions' count:
    shaping changes values, and a mere exchange of rows is not shaping."""
    if rollouts.rewards_BF is None or rollouts.weights_F is None:
        return None
    returned_BF = returned_rewards(rollouts)
    used_BF = rollouts.rewards_BF.float().cpu() if returned_BF is None else returned_BF
    total_B = (used_BF * rollouts.weights_F.detach().float().cpu()).nansum(dim=1)
    total_B[torch.isnan(used_BF).all(dim=1)] = torch.nan
    array: Array = total_B.numpy()
    return array


def returned_rewards(rollouts: TRLGeneration) -> Tensor | None:
    """What the functions returned, if the trainer uses these numbers, in whatever order."""
    assert rollouts.rewards_BF is not None
    used_BF = rollouts.rewards_BF.float().cpu()
    if not all(number in rollouts.returned for number in range(used_BF.shape[1])):
        return None
    columns = [
        [np.nan if reward is None else float(reward) for reward in rollouts.returned[number]]
        for number in range(used_BF.shape[1])
    ]
    returned_BF = torch.tensor(columns, dtype=torch.float32).T
    is_used = returned_BF.shape == used_BF.shape and _sorted(returned_BF) == _sorted(used_BF)
    return returned_BF if is_used else None


def _sorted(values_BF: Tensor) -> list[list[float]]:
    return sorted(torch.nan_to_num(values_BF, nan=1e30).tolist())
