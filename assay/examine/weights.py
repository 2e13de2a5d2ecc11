"""What an optimizer step does to the weights."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from assay.examine.directions import directions

NUMBERS = 2_000_000  # that are copied to be compared
MANY = 1000  # numbers that are not all of 16 bits by chance
OF_EACH = 64  # numbers of each tensor, where only those with the largest gradients are compared


class Weights:
    """Made before the step, of tensors that have their gradients; `after` compares."""

    @torch.no_grad()
    def __init__(
        self,
        tensors: Sequence[Tensor],
        *,
        most: int = NUMBERS,
        by_gradient: bool = False,
        fresh: bool = False,
        climbs: bool = False,
    ) -> None:
        """Compares at most `most` numbers: of a larger model the first of each tensor, or with `by_gradient` those with
        the largest gradients, which show whether a tensor moved and nothing about its other numbers. `fresh`: the
        optimizer remembers no earlier gradient, so that each tensor must follow its own; `climbs`: it
        goes along the gradient (maximize=True)."""
        self.tensors, self._fresh, self._climbs = tensors, fresh, climbs
        gradients = [tensor.grad for tensor in tensors]
        self.without_gradient = len(tensors) - sum(map(has_numbers, gradients))
        self.is_sample = by_gradient and sum(tensor.numel() for tensor in tensors) > most
        self._each = OF_EACH if self.is_sample else most if by_gradient else max(1, most // max(len(tensors), 1))
        self._places = [_largest(gradient) if self.is_sample else None for gradient in gradients]
        self._before = [numbers.clone() for numbers in self._compared(tensors)]
        self._after: list[Tensor] | None = None
        self._gradients = [
            None
            if gradient is None or gradient.is_sparse
            else gradient.detach().flatten()[self._chosen(places)].clone()
            for gradient, places in zip(gradients, self._places, strict=True)
        ]

    @torch.no_grad()
    def changed_since(self, earlier: Weights) -> float | None:
        """How far the weights moved between an earlier step and this one, as a share of that step; None where another
        set of numbers was compared. Nothing but an optimizer should move them."""
        if earlier._after is None or self.is_sample or earlier.is_sample or len(self._before) != len(earlier._before):
            return None
        pairs = list(zip(self._before, earlier._after, earlier._before, strict=True))
        if any(now.shape != then.shape for now, then, _ in pairs):
            return None
        between = sum(float((now.float() - then.float()).double().square().sum()) for now, then, _ in pairs)
        moved = sum(float((then.float() - before.float()).double().square().sum()) for _, then, before in pairs)
        return float((between / moved) ** 0.5) if moved > 0 else None

    @torch.no_grad()
    def after(self) -> dict[str, float | int]:
        """Fields of a Batch."""
        changed, floors = [], []
        moved, size, slope, steepness = 0.0, 0.0, 0.0, 0.0
        self._after = [numbers.clone() for numbers in self._compared(self.tensors)]
        for now, before, gradient in zip(self._after, self._before, self._gradients, strict=True):
            step = (now.float() - before.float()).double()
            changed.append(int((now != before).sum()))
            moved += float(step.square().sum())
            size += float(before.double().square().sum())
            if gradient is not None:
                slope += float(step @ gradient.double())
                steepness += float(gradient.double().square().sum())
                if not changed[-1] and (pulled := gradient != 0).any():
                    floors.append(_smallest_step(before[pulled]))
        compared = sum(before.numel() for before in self._before)
        numbers: dict[str, float | int] = {
            "tensors": len(changed),
            "tensors_changed": sum(count > 0 for count in changed),
            "tensors_without_gradient": self.without_gradient,
            "mean_move": (moved / max(compared, 1)) ** 0.5,
        }
        if moved > 0 and steepness > 0 and math.isfinite(steepness):
            numbers["descent"] = -slope / (moved * steepness) ** 0.5
        if size > 0:
            numbers["relative_update"] = (moved / size) ** 0.5
        if floors:
            numbers["smallest_step"] = min(floors)
        if self.tensors:
            numbers["weight_bits"] = min(torch.finfo(tensor.dtype).bits for tensor in self.tensors)
            if compared >= MANY and all(_is_rounded(now) for now in self._after):
                numbers["weight_bits"] = 16  # whatever holds them: something rounds them after each step
        if self._fresh and moved > 0 and math.isfinite(moved):
            pairs = zip(self._after, self._before, strict=True)
            steps = [now.float() - before.float() for now, before in pairs]
            down = [None if gradient is None else -gradient for gradient in self._gradients]
            numbers |= directions(steps, down if self._climbs else self._gradients, self._before)
        if not self.is_sample:
            numbers |= {"update_norm": moved**0.5, "numbers_changed_share": sum(changed) / max(compared, 1)}
        return numbers

    def _compared(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        pairs = zip(tensors, self._places, strict=True)
        return [tensor.detach().flatten()[self._chosen(places)] for tensor, places in pairs]

    def _chosen(self, places: Tensor | None) -> Tensor | slice:
        return slice(self._each) if places is None else places


def has_numbers(gradient: Tensor | None) -> bool:
    if gradient is None:
        return False
    return bool((gradient.coalesce().values() if gradient.is_sparse else gradient).any())


def _largest(gradient: Tensor | None) -> Tensor | None:
    if gradient is None:
        return None
    sizes = gradient.detach().flatten().abs()
    return sizes.topk(min(OF_EACH, sizes.numel())).indices


def _is_rounded(numbers: Tensor) -> bool:
    """Whether 16 bits of each number would hold it."""
    return bool((numbers.to(torch.bfloat16).to(numbers.dtype) == numbers).all())


def _smallest_step(numbers: Tensor) -> float:
    """The smallest change that one of them can show: half of the distance to the next number of its precision.

    >>> _smallest_step(torch.tensor([1.0, 4.0])) == 2.0**-24  # after 1.0 comes 1 + 2**-23
    True
    """
    _, exponents = torch.frexp(numbers.abs().min().float())
    return math.ldexp(torch.finfo(numbers.dtype).eps, int(exponents) - 2) if numbers.abs().min() > 0 else 0.0
