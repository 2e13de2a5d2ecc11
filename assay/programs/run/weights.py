"""What an optimizer step did to the weights: measured on a part of large ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

TENSORS, EACH = 8, 4096  # that tell weights apart
NUMBERS = 2_000_000  # weights that are compared before and after


@torch.no_grad()
def sums_of(parameters: Sequence[Tensor]) -> tuple[float, ...]:
    """A few sums that are the same for the same weights, and for no others in practice."""
    with torch._C.DisableTorchFunction():
        chosen = first_and_last(parameters)
        return tuple(float(one.detach().reshape(-1)[:EACH].double().sum()) for one in chosen)


def first_and_last(parameters: Sequence[Tensor]) -> Sequence[Tensor]:
    half = TENSORS // 2
    return parameters if len(parameters) <= TENSORS else [*parameters[:half], *parameters[-half:]]


@dataclass(eq=False)
class Weights:
    tensors: Sequence[Tensor]
    copies: Sequence[Tensor]
    each: int
    without_gradient: int | None  # None: zeros are no sign of anything here
    norm: float

    @classmethod
    @torch.no_grad()
    def before(cls, parameters: Sequence[Tensor]) -> Weights:
        trainable = [one for one in parameters if one.requires_grad]
        each = max(1, NUMBERS // max(len(trainable), 1))
        with torch._C.DisableTorchFunction():
            gradients = [one.grad for one in trainable]
            norms = [
                float(torch.linalg.vector_norm(one.float()))
                for one in gradients
                if one is not None and not one.is_sparse
            ]
            # a low-rank pair starts with one factor of zeros, and the other then has a gradient of zeros
            is_paired = any(one.ndim == 2 and not one.detach().any() for one in trainable)
            return cls(
                trainable,
                [one.detach().reshape(-1)[:each].clone() for one in trainable],
                each,
                None if is_paired else len(trainable) - sum(norm != 0 for norm in norms),
                sum(norm**2 for norm in norms) ** 0.5,
            )

    @torch.no_grad()
    def after(self) -> dict[str, float | int]:
        changed, numbers, moved = 0, 0, 0.0
        with torch._C.DisableTorchFunction():
            for tensor, copy in zip(self.tensors, self.copies, strict=True):
                now = tensor.detach().reshape(-1)[: self.each]
                different = int((now != copy).sum())
                changed += different > 0
                numbers += different
                moved += float((now.float() - copy.float()).square().sum())
        compared = sum(copy.numel() for copy in self.copies)
        sizes: dict[str, float | int] = {"gradient_norm": self.norm, "update_norm": moved**0.5}
        if self.without_gradient is None:
            return sizes
        return {
            **sizes,
            "tensors": len(self.tensors),
            "tensors_changed": changed,
            "tensors_without_gradient": self.without_gradient,
            "numbers_changed_share": numbers / max(compared, 1),
        }
