"""What an update measures about its loss tokens: sums and counts over its micro-batches, read from the device once.

Shape legend: B completions, T completion tokens, C columns.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from assay.grpo import Loss, kl_estimate
from assay.types import Microbatch, Update

SUMMED = (
    "loss", "policy_loss", "kl_loss", "entropy_loss", "tokens", "clipped_tokens", "ratio_sum", "ratio_square_sum",
    "old_kl_sum", "ref_kl_sum", "entropy_sum", "mismatch_sum", "correction_sum", "correction_square_sum",
    "surprise_sum", "surprise_square_sum",
)  # fmt: skip
EXTREMES = ("ratio_min", "ratio_max", "mismatch_max")
FLAGS = ("has_signal", "is_broken")


@dataclass(frozen=True, slots=True)
class LossInputs:
    """What the loss of one micro-batch was computed from, without gradients."""

    batch: Microbatch
    new_BT: Tensor
    old_BT: Tensor
    ref_BT: Tensor | None

    def inputs(self) -> dict[str, Tensor]:
        inputs = {
            "advantage": self.batch.advantages_BT,
            "old log-prob": self.old_BT,
            "reference log-prob": self.ref_BT,
            "log-prob of the policy": self.new_BT,
        }
        return {what: values_BT for what, values_BT in inputs.items() if values_BT is not None}

    def first_nonfinite(self) -> str:
        """Names the first number that goes into the loss and is not finite; "" if there is none."""
        for what, values_BT in self.inputs().items():
            if bad := (~values_BT.isfinite() & self.batch.mask_BT).nonzero().tolist():
                row, token = bad[0]
                return f"the {what} of row {self.batch.rows[row]}, token {token} is {values_BT[row, token].item()}"
        return ""


class Sums:
    """Everything stays on the device until `read`: to look at a number is to wait for all of the work before it."""

    def __init__(self) -> None:
        self._parts: list[LossInputs] = []
        self._columns: list[Tensor] = []
        self._rows: list[dict[str, float]] = []

    def add(self, loss: Loss, part: LossInputs, entropy_BT: Tensor) -> None:
        batch, new_BT, old_BT = part.batch, part.new_BT, part.old_BT
        mask_BT = batch.mask_BT

        def summed(values_BT: Tensor) -> Tensor:
            return values_BT.where(mask_BT, 0.0).double().sum()

        weight_BT, ratio_BT = loss.weight_BT.double(), loss.ratio_BT.double()
        mismatch_BT = (old_BT - batch.sampler_BT).abs().nan_to_num(nan=0.0)  # NaN: the sampler reported none
        surprise_BT = (new_BT + entropy_BT).double()
        values = {
            "loss": loss.total,
            "policy_loss": loss.policy,
            "kl_loss": loss.kl,
            "entropy_loss": loss.entropy,
            "tokens": mask_BT.sum(),
            "clipped_tokens": loss.clipped_BT.sum(),
            "ratio_sum": summed(ratio_BT),
            "ratio_square_sum": summed(ratio_BT.square()),
            "old_kl_sum": summed(kl_estimate(old_BT, new_BT)),
            "ref_kl_sum": new_BT.new_zeros(()) if part.ref_BT is None else summed(kl_estimate(new_BT, part.ref_BT)),
            "entropy_sum": summed(entropy_BT),
            "mismatch_sum": summed(mismatch_BT),
            "surprise_sum": summed(surprise_BT),
            "surprise_square_sum": summed(surprise_BT.square()),
            "correction_sum": summed(weight_BT),
            "correction_square_sum": summed(weight_BT.square()),
            "ratio_min": ratio_BT.where(mask_BT, math.inf).min(),
            "ratio_max": ratio_BT.where(mask_BT, -math.inf).max(),
            "mismatch_max": mismatch_BT.where(mask_BT, 0.0).max(),
            "has_signal": ((batch.advantages_BT != 0) & mask_BT).any(),
            "is_broken": torch.stack(
                [(~values_BT.isfinite() & mask_BT).any() for values_BT in part.inputs().values()]
            ).any(),
        }
        self._columns.append(torch.stack([values[name].detach().double() for name in (*SUMMED, *EXTREMES, *FLAGS)]))
        self._parts.append(part)

    def read(self, norm: Tensor) -> float:
        """The norm, as a number; the sums are there from now on."""
        norms_C = norm.detach().double().expand(len(SUMMED) + len(EXTREMES) + len(FLAGS))
        *rows, norms = torch.stack([*self._columns, norms_C.to(self._columns[0].device)]).tolist()
        self._rows = [dict(zip((*SUMMED, *EXTREMES, *FLAGS), row, strict=True)) for row in rows]
        return float(norms[0])

    @property
    def loss(self) -> float:
        return sum(row["loss"] for row in self._rows)

    @property
    def has_signal(self) -> bool:
        return any(row["has_signal"] for row in self._rows)

    def first_nonfinite(self) -> str:
        """Names the first number that went into the loss and is not finite; "" if there is none."""
        broken = (part for part, row in zip(self._parts, self._rows, strict=True) if row["is_broken"])
        return next((part.first_nonfinite() for part in broken), "")

    def update(self, **rest: float | str | bool) -> Update:
        values: dict[str, float] = {name: sum(row[name] for row in self._rows) for name in SUMMED}
        values["ratio_min"] = min(row["ratio_min"] for row in self._rows)
        values["ratio_max"] = max(row["ratio_max"] for row in self._rows)
        values["mismatch_max"] = max(row["mismatch_max"] for row in self._rows)
        whole = {"tokens": int(values["tokens"]), "clipped_tokens": int(values["clipped_tokens"])}
        return Update(**{**values, **whole, **rest})  # type: ignore[arg-type]
