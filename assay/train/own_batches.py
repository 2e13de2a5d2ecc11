"""Batches that a caller sampled and scored himself: log-probs in, an optimizer step out.

Shape legend: P inputs, G outputs for each, N = P * G rows with the outputs of one input adjacent, T tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from assay.train.user_checks import check_problems, short
from assay.types import NO_SIGNAL

NEEDED = ("inputs", "outputs", "log_probs", "old_log_probs")
OPTIONAL = ("mask", "ref_log_probs")


@dataclass(frozen=True, slots=True)
class OwnBatch:
    """A checked batch: N inputs, N outputs, other columns, and the log-probs of the outputs."""

    inputs: list[Any]
    outputs: list[Any]
    columns: Mapping[str, list[Any]]
    log_probs: Tensor
    old_log_probs: Tensor
    mask: Tensor | None
    ref_log_probs: Tensor | None


def own_batch(batch: Mapping[str, Any], group_size: int) -> OwnBatch:
    """`inputs`, and every other column, may name each input once, or beside each of its outputs."""
    missing = [name for name in NEEDED if name not in batch]
    if missing:
        raise ValueError(f"the batch has no {missing[0]!r}; it needs {', '.join(map(repr, NEEDED))}")
    inputs, outputs = _rows(batch["inputs"], "inputs"), _rows(batch["outputs"], "outputs")
    if not outputs or len(outputs) % group_size:
        raise ValueError(
            f"{len(outputs)} outputs cannot be cut into groups of {group_size}; pass group_size outputs for each "
            "input, those of one input adjacent"
        )
    inputs = _beside_outputs(inputs, "inputs", len(outputs), group_size)
    columns = {
        name: _beside_outputs(_rows(values, name), name, len(outputs), group_size)
        for name, values in batch.items()
        if name not in NEEDED + OPTIONAL
    }
    check_problems(inputs, len(inputs), group_size)
    log_probs = batch["log_probs"]
    if isinstance(log_probs, Tensor) and len(log_probs) != len(outputs):
        raise ValueError(
            f"log_probs has {len(log_probs)} rows for {len(outputs)} outputs; pass the log-probs of each output"
        )
    return OwnBatch(
        inputs, outputs, columns, log_probs, batch["old_log_probs"], batch.get("mask"), batch.get("ref_log_probs")
    )


def _beside_outputs(rows: list[Any], name: str, outputs: int, group_size: int) -> list[Any]:
    if len(rows) * group_size == outputs:
        rows = [row for row in rows for _ in range(group_size)]
    if len(rows) != outputs:
        raise ValueError(
            f"{len(rows)} {name} do not fit {outputs} outputs; pass one for each input, or one for each output"
        )
    return rows


def _rows(values: Any, name: str) -> list[Any]:
    """A tensor of ids becomes lists of them, which can be compared and counted."""
    if isinstance(values, str) or not (hasattr(values, "tolist") or isinstance(values, Sequence)):
        raise TypeError(f"{name} is {short(values)}; pass a list, one entry for each row")
    rows: list[Any] = values.tolist() if hasattr(values, "tolist") else list(values)
    return [row.tolist() if hasattr(row, "tolist") else row for row in rows]


class Accumulation:
    """Adds up gradients of `batches` batches, then clips and steps: the gradient of their mean loss."""

    def __init__(self, optimizer: torch.optim.Optimizer, batches: int, clip_norm: float) -> None:
        self.optimizer, self.batches, self.clip_norm = optimizer, batches, clip_norm
        self.done = 0
        self._has_signal = False

    def add(self, loss: Tensor, has_signal: bool) -> dict[str, Any]:
        """Differentiates `loss`. The stats say whether a step was made, and if not, why."""
        if self.done == 0:
            self.optimizer.zero_grad()  # what others have left there does not belong to this update
            self._has_signal = False
        torch.autograd.backward(loss / self.batches)
        self.done += 1
        self._has_signal |= has_signal
        stats: dict[str, Any] = {"accumulated": self.done, "updates_applied": 0, "skipped": ""}
        if self.done < self.batches:
            return stats
        self.done = 0
        weights = [weight for group in self.optimizer.param_groups for weight in group["params"]]
        if all(weight.grad is None for weight in weights):
            raise ValueError(
                "the gradient of log_probs reaches no weight of the optimizer; was it made from the parameters of the "
                "model that log_probs comes from?"
            )
        # 0 means no bound: the norm is measured all the same
        norm = torch.nn.utils.clip_grad_norm_(weights, self.clip_norm or float("inf"))
        stats["gradient_norm"] = norm.item()
        if not torch.isfinite(norm):
            stats["skipped"] = f"the gradient norm is {norm.item()}"
        elif not self._has_signal:
            stats["skipped"] = NO_SIGNAL
        else:
            self.optimizer.step()
            stats["updates_applied"] = 1
        self.optimizer.zero_grad()
        return stats
