"""What an optimizer step does to the weights."""

from __future__ import annotations

import math
import weakref
from collections.abc import Collection, Mapping, Sequence
from typing import Any

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
        groups: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Compares at most `most` numbers: of a larger model the first of each tensor, or with `by_gradient` those with
        the largest gradients, which show whether a tensor moved and nothing about its other numbers. `fresh`: the
        optimizer remembers no earlier gradient, so that each tensor must follow its own; `climbs`: it
        goes along the gradient (maximize=True). `groups`: those of the optimizer, with their rates and decays."""
        self.tensors, self._fresh, self._climbs = tensors, fresh, climbs
        self._same = [weakref.ref(tensor) for tensor in tensors]
        of_group = {id(tensor): group for group in groups for tensor in group["params"]}
        self._fastest = max((float(group.get("lr", 1.0)) for group in groups), default=1.0)
        own = [of_group.get(id(tensor), {}) for tensor in tensors]
        self._rates = [float(group.get("lr", self._fastest)) for group in own]
        self._decays = [float(group.get("weight_decay") or 0.0) for group in own]
        gradients = [tensor.grad for tensor in tensors]
        self._has_gradient = list(map(has_numbers, gradients))
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
        if earlier._after is None or self.is_sample or earlier.is_sample or not self._is_of(earlier):
            return None
        pairs = list(zip(self._before, earlier._after, earlier._before, strict=True))
        if any(now.shape != then.shape for now, then, _ in pairs):
            return None
        between = sum(float((now.float() - then.float()).double().square().sum()) for now, then, _ in pairs)
        moved = sum(float((then.float() - before.float()).double().square().sum()) for _, then, before in pairs)
        return float((between / moved) ** 0.5) if moved > 0 else None

    @torch.no_grad()
    def after(self) -> dict[str, float | int]:
        """Fields of a Batch. The tensors themselves are not kept any longer."""
        changed, floors, counted = [], [], []
        moved, size, slope, way, steepness = 0.0, 0.0, 0.0, 0.0, 0.0
        self._after = [numbers.clone() for numbers in self._compared(self.tensors)]
        steps, followed = [], []  # without what decay does
        for number, (now, before, gradient) in enumerate(zip(self._after, self._before, self._gradients, strict=True)):
            step = (now.float() - before.float()).double()
            rate = self._rates[number]
            changed.append(int((now != before).sum()))
            moved += float(step.square().sum())
            size += float(before.double().square().sum())
            is_unseen = gradient is not None and self._has_gradient[number] and not gradient.any()
            if changed[-1] or not (is_unseen or (rate == 0 and self._fastest > 0)):
                counted.append(number)
                if not changed[-1] and gradient is not None and (pulled := gradient != 0).any():
                    scale = self._fastest / rate if rate > 0 else 1.0
                    floors.append(scale * _smallest_step(before[pulled], gradient[pulled]))
            step, gradient = _without_decay(step, gradient, before, rate, self._decays[number])
            steps.append(step)
            followed.append(gradient)
            if gradient is not None:
                slope += float(step @ gradient.double())
                steepness += float(gradient.double().square().sum())
            way += float(step.square().sum())
        compared = sum(before.numel() for before in self._before)
        numbers: dict[str, float | int] = {
            "tensors": len(counted),
            "tensors_changed": sum(count > 0 for count in changed),
            "tensors_without_gradient": sum(not self._has_gradient[number] for number in counted),
            "mean_move": (moved / max(compared, 1)) ** 0.5,
        }
        if way > 0 and steepness > 0 and math.isfinite(steepness):
            numbers["descent"] = -slope / (way * steepness) ** 0.5
        if size > 0:
            numbers["relative_update"] = (moved / size) ** 0.5
        if floors:
            numbers["smallest_step"] = min(floors)
        if self.tensors:
            numbers["weight_bits"] = min(torch.finfo(tensor.dtype).bits for tensor in self.tensors)
            if compared >= MANY and all(_is_rounded(now) for now in self._after):
                numbers["weight_bits"] = 16  # whatever holds them: something rounds them after each step
        if self._fresh and moved > 0 and math.isfinite(moved):
            down = [None if gradient is None else -gradient for gradient in followed]
            numbers |= directions(steps, down if self._climbs else followed, self._before)
        if not self.is_sample:
            numbers |= {"update_norm": moved**0.5, "numbers_changed_share": sum(changed) / max(compared, 1)}
        self.tensors = ()
        return numbers

    def _is_of(self, earlier: Weights) -> bool:
        alike = len(self._same) == len(earlier._same)
        return alike and all(now() is then() for now, then in zip(self._same, earlier._same, strict=True))

    def shares(self, tensors: Collection[int]) -> bool:
        """Whether one of the tensors with these ids is compared."""
        return any(id(ref()) in tensors for ref in self._same)

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


def _without_decay(
    step: Tensor, gradient: Tensor | None, weights: Tensor, rate: float, decay: float
) -> tuple[Tensor, Tensor | None]:
    """What the gradient did: the step less the decay, and 0 for both where decay has the larger say. It is a part of
    the step (AdamW, SGD) or of the gradient (Adam)."""
    if gradient is None or not decay:
        return step, gradient
    pull = decay * weights.double()
    step = step + rate * pull
    is_small = step.abs() <= 2 * rate * pull.abs()
    is_turned = (gradient * weights < 0) & (pull.abs() >= gradient.abs())
    outweighed = is_small | is_turned
    return step.masked_fill(outweighed, 0.0), gradient.masked_fill(outweighed, 0.0)


def _smallest_step(numbers: Tensor, gradients: Tensor) -> float:
    """The smallest rate that changes one of them: half of the distance to the next number of its precision, where a
    number moves by the rate times its gradient, as in SGD, or by the rate, as in Adam, whichever is less.

    >>> _smallest_step(torch.tensor([1.0, 4.0]), torch.ones(2)) == 2.0**-24  # after 1.0 comes 1 + 2**-23
    True
    """
    _, exponents = torch.frexp(numbers.double())
    halves = torch.finfo(numbers.dtype).eps / 4 * torch.exp2(exponents.double())
    return float((halves * (numbers != 0) / gradients.double().abs().clamp(max=1.0)).min())
