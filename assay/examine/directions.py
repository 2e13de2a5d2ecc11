"""Tensor by tensor: whether the first step of an optimizer follows the tensor's own gradient, another's, or none.

Signs are compared, number by number: SGD, Adam, Lion, Adagrad and their kin all move a number against its gradient in a
first step, whatever the size. Later steps remember earlier gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

JUDGED = 256  # numbers of a tensor, those with the largest gradients
FEWEST = 32  # numbers: signs of fewer agree by chance
SMALL = 0.01  # of a tensor's largest gradient: decay or rounding may have a larger say in smaller ones
FOLLOWS = 0.95  # of the signs
ASTRAY = 0.75  # of the signs: half of them agree by chance
AGAINST = 0.1
ALONG = 0.3  # cosine: an optimizer that turns a matrix as a whole (Muon) keeps this direction, and not every sign
MOST_COMPARED = 8  # tensors that are compared with the gradients of others


def directions(
    steps: Sequence[Tensor], gradients: Sequence[Tensor | None], weights: Sequence[Tensor]
) -> dict[str, int]:
    """Fields of a Batch. Of each tensor the same numbers are given of its step, its gradient and itself before."""
    agreements = [
        None if gradient is None else _agreement(step, gradient, weight)
        for step, gradient, weight in zip(steps, gradients, weights, strict=True)
    ]
    judged = [number for number, agreement in enumerate(agreements) if agreement is not None]
    against = [number for number in judged if agreements[number] <= AGAINST]  # type: ignore[operator]
    astray = [number for number in judged if AGAINST < agreements[number] < ASTRAY]  # type: ignore[operator]
    lost = [*astray, *against][:MOST_COMPARED]
    exchanged = sum(any(_follows(steps[number], other) for other in _others(number, gradients)) for number in lost)
    return {
        "tensors_judged": len(judged),
        "tensors_against": len(against),
        "tensors_astray": len(astray),
        "tensors_exchanged": exchanged,
    }


def remembers(optimizer: Any) -> bool:
    """Whether the optimizer keeps something of earlier gradients where others do; it may keep it elsewhere, so that
    only its first step is known to follow none."""
    states = getattr(optimizer, "state", {}).values()
    values = (value for state in states for value in state.values() if isinstance(value, Tensor))
    return any(value.numel() > 1 and bool(value.any()) for value in values)


def _agreement(step: Tensor, gradient: Tensor, weight: Tensor) -> float | None:
    """The share of the signs that are right, also where decay has its say beside the gradient; None of too few."""
    pulled = _largest(gradient)
    if pulled is None:
        return None
    step, gradient, weight = step[pulled].double(), gradient[pulled].double(), weight[pulled].double()
    moved = step != 0  # what is rounded away goes nowhere
    if int(moved.sum()) < FEWEST:
        return None
    plain = float((step.sign() == -gradient.sign())[moved].double().mean())
    size = float(weight @ weight)
    if plain >= ASTRAY or size == 0 or _cosine(step, -gradient) > ALONG:
        return max(plain, ASTRAY) if plain > AGAINST else plain
    step, gradient = (values - float(values @ weight) / size * weight for values in (step, gradient))
    return max(plain, float((step.sign() == -gradient.sign())[moved].double().mean()))


def _cosine(step: Tensor, downhill: Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(step, downhill, dim=0))


def _largest(gradient: Tensor) -> Tensor | None:
    sizes = gradient.abs()
    if sizes.numel() < FEWEST or not torch.isfinite(sizes).all():
        return None
    top = sizes.topk(min(JUDGED, sizes.numel()))
    pulled = top.indices[top.values > SMALL * top.values[0]]
    return pulled if len(pulled) >= FEWEST else None


def _others(number: int, gradients: Sequence[Tensor | None]) -> list[Tensor]:
    own = gradients[number]
    alike = [gradient for gradient in gradients if gradient is not None and gradient is not own]
    return [gradient for gradient in alike if own is not None and gradient.shape == own.shape]


def _follows(step: Tensor, gradient: Tensor) -> bool:
    pulled = _largest(gradient)
    if pulled is None:
        return False
    step, gradient = step[pulled], gradient[pulled]
    moved = step != 0
    return int(moved.sum()) >= FEWEST and float((step.sign() == -gradient.sign())[moved].double().mean()) >= FOLLOWS
