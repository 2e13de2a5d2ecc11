"""The weights of a script's model: told apart by a few sums, and compared before and after an optimizer step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from assay.examine import weights

TENSORS, EACH = 8, 4096  # that tell weights apart


@torch.no_grad()
def sums_of(parameters: Sequence[Tensor]) -> tuple[float, ...]:
    """A few sums that are the same for the same weights, and for no others in practice."""
    with torch._C.DisableTorchFunction():
        chosen = first_and_last(parameters)
        return tuple(float(one.detach().reshape(-1)[:EACH].double().sum()) for one in chosen)


def first_and_last(parameters: Sequence[Tensor]) -> Sequence[Tensor]:
    half = TENSORS // 2
    return parameters if len(parameters) <= TENSORS else [*parameters[:half], *parameters[-half:]]


class Weights(weights.Weights):
    """Of a model that nothing is known of, with the norm of its gradients; no operation in here is recorded."""

    is_paired: bool
    norm: float

    @classmethod
    @torch.no_grad()
    def before(cls, parameters: Sequence[Tensor]) -> Weights:
        with torch._C.DisableTorchFunction():
            made = cls([parameter for parameter in parameters if parameter.requires_grad])
            # a low-rank pair starts with one factor of zeros, and the other then has a gradient of zeros
            made.is_paired = any(one.ndim == 2 and not one.detach().any() for one in made.tensors)
            gradients = [one.grad for one in made.tensors if one.grad is not None and not one.grad.is_sparse]
            norms = [float(torch.linalg.vector_norm(gradient.float())) for gradient in gradients]
            made.norm = sum(norm**2 for norm in norms) ** 0.5
            return made

    def after(self) -> dict[str, float | int]:
        with torch._C.DisableTorchFunction():
            numbers = {"gradient_norm": self.norm, **super().after()}
        if self.is_paired:  # then zeros are not a sign of anything
            return {name: numbers[name] for name in ("gradient_norm", "update_norm")}
        return numbers
