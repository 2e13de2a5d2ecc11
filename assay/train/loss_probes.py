"""The trainer's own loss on the tensors of an update, computed again in ways that must not matter.

The function asked is `policy_loss` as the learner knows it. Shape legend: B completions, T completion tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from assay.config.sections import LossConfig
from assay.train.step import learner
from assay.types import Totals

COLUMNS = 3  # of padding added
# what is put under the mask: far from any real number, but exp(new - old) is still finite
GARBAGE = {"new": -5.0, "old": -35.0, "ref": -20.0, "sampler": -30.0, "entropy": 1e3, "advantages": 1e3}
# and so far that exp(new - old) and exp(ref - new) overflow: where exp comes before the mask, Inf * 0 is NaN
EXTREME = {**GARBAGE, "new": -500.0, "old": -1500.0, "ref": 500.0, "sampler": -1500.0}
ROUNDING = 1e-4  # of loss and gradients, relative


@dataclass(frozen=True)
class Piece:
    """What the loss saw of one micro-batch, all [B, T]; `ref` only where there is a reference."""

    rows: tuple[int, ...]  # which samples of the step these are
    tokens: Tensor
    mask: Tensor
    advantages: Tensor
    sampler: Tensor
    old: Tensor
    new: Tensor
    entropy: Tensor
    ref: Tensor | None
    gradients: Tensor  # d loss / d new
    ratio: Tensor
    clipped: Tensor

    def only(self, kept: Sequence[int]) -> Piece:
        """These rows of it, in this order."""
        chosen = self.each(lambda values_BT: values_BT[list(kept)])
        return replace(chosen, rows=tuple(self.rows[number] for number in kept))

    def wider(self) -> Piece:
        """With more columns of padding."""
        return self.each(lambda values_BT: torch.nn.functional.pad(values_BT, (0, COLUMNS)))

    def each(self, change: Callable[[Tensor], Tensor]) -> Piece:
        tensors = {field.name: getattr(self, field.name) for field in fields(self)}
        changed: dict[str, Any] = {name: change(one) for name, one in tensors.items() if isinstance(one, Tensor)}
        return replace(self, **changed)

    def with_garbage(self, garbage: dict[str, float]) -> Piece:
        """With other numbers under the mask."""
        values = {name: getattr(self, name) for name in garbage}
        return replace(
            self,
            **{name: one.where(self.mask, garbage[name]) for name, one in values.items() if one is not None},
        )


@dataclass(frozen=True)
class Losses:
    """Summed over pieces; `gradients` has one tensor a piece."""

    total: float
    policy: float
    kl: float
    gradients: list[Tensor]


def losses(pieces: Sequence[Piece], totals: Totals, settings: LossConfig) -> Losses:
    total = policy = kl = 0.0
    gradients = []
    for piece in pieces:
        new_BT = piece.new.clone().requires_grad_(True)
        loss = learner.policy_loss(  # type: ignore[attr-defined]
            new_BT=new_BT,
            old_BT=piece.old,
            ref_BT=piece.ref,
            sampler_BT=piece.sampler,
            entropy_BT=piece.entropy,
            advantages_BT=piece.advantages,
            mask_BT=piece.mask,
            totals=totals,
            settings=settings,
        )
        gradient_BT = None
        if loss.total.requires_grad:
            (gradient_BT,) = torch.autograd.grad(loss.total, new_BT, allow_unused=True)
        gradients.append(torch.zeros_like(new_BT) if gradient_BT is None else gradient_BT)
        total += float(loss.total.detach())
        policy += float(loss.policy)
        kl += float(loss.kl)
    return Losses(total, policy, kl, gradients)


def loss_probes(
    pieces: Sequence[Piece], totals: Totals, settings: LossConfig
) -> tuple[dict[str, float], dict[str, list[Tensor]]]:
    """(loss_again, loss_padded, ...; gradients_split, gradients_perturbed with one tensor a piece)."""

    def ask(changed: Sequence[Piece]) -> Losses:
        return losses(changed, totals, settings)

    padded = ask([piece.wider() for piece in pieces])
    numbers = {
        "loss_again": ask(pieces).total,
        "loss_padded": padded.total,
        "loss_permuted": ask([piece.only(range(len(piece.rows))[::-1]) for piece in pieces]).total,
    }
    gradients = {}
    if any(len(piece.rows) > 1 for piece in pieces):
        halves = [
            [piece.only(part) for part in (range(middle), range(middle, len(piece.rows))) if len(part)]
            for piece in pieces
            for middle in [len(piece.rows) // 2]
        ]
        split = ask([half for both in halves for half in both])
        numbers["loss_split"] = split.total
        rest = iter(split.gradients)
        gradients["gradients_split"] = [torch.cat([next(rest) for _ in both]) for both in halves]
    perturbed = ask([piece.wider().with_garbage(GARBAGE) for piece in pieces])
    if not _differ(perturbed, padded):  # what a mean over padding would show; only then what an overflow would
        perturbed = ask([piece.wider().with_garbage(EXTREME) for piece in pieces])
    numbers["loss_perturbed"] = perturbed.total
    gradients["gradients_perturbed"] = [gradients_BT[:, :-COLUMNS] for gradients_BT in perturbed.gradients]
    return numbers, gradients


def _differ(one: Losses, other: Losses) -> bool:
    """In the loss or in a gradient, by more than rounding; what is not a number differs."""
    terms = sum(float(gradients_BT.abs().sum()) for gradients_BT in other.gradients)  # a loss near 0 is a sum of these
    if not abs(one.total - other.total) <= ROUNDING * max(abs(other.total), terms):
        return True
    return any(
        not ((left_BT - right_BT).abs() <= ROUNDING * right_BT.abs().max()).all()
        for left_BT, right_BT in zip(one.gradients, other.gradients, strict=True)
        if right_BT.numel()
    )
