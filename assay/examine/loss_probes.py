"""The gradient of each token, and a trainer's own loss computed again in ways that must not matter.

Shape legend: B completions, T completion tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from assay.examine.part import Part
from assay.grpo import Loss

COLUMNS = 3  # of padding added
# what is put under the mask: far from any real number, but exp(new - old) is still finite
GARBAGE = {
    "new_logprobs": -5.0, "old_logprobs": -35.0, "ref_logprobs": -20.0, "sampler_logprobs": -30.0, "entropy": 1e3,
    "advantages": 1e3,
}  # fmt: skip
# and so far that exp(new - old) and exp(ref - new) overflow: where exp comes before the mask, Inf * 0 is NaN
EXTREME = {
    **GARBAGE, "new_logprobs": -500.0, "old_logprobs": -1500.0, "ref_logprobs": 500.0, "sampler_logprobs": -1500.0,
}  # fmt: skip
ROUNDING = 1e-4  # of loss and gradients, relative

LossOf = Callable[[Part], Loss]  # the trainer's loss of a part, differentiable in its new_logprobs


@dataclass(frozen=True)
class Losses:
    """Summed over parts; `gradients` has one tensor per part."""

    total: float
    policy: float
    kl: float
    gradients: list[Tensor]


def token_gradients(loss: Tensor, new_BT: Tensor, *, keep_graph: bool = False) -> Tensor:
    """d loss / d new, only down to the log-probs, which costs next to nothing; zeros where there is no way."""
    gradients_BT = None
    if loss.requires_grad and new_BT.requires_grad:
        (gradients_BT,) = torch.autograd.grad(loss, new_BT, retain_graph=keep_graph, allow_unused=True)
    return torch.zeros_like(new_BT) if gradients_BT is None else gradients_BT


def losses(parts: Sequence[Part], loss_of: LossOf) -> Losses:
    total = policy = kl = 0.0
    gradients = []
    for part in parts:
        new_BT = part.tensors["new_logprobs"].clone().requires_grad_(True)
        loss = loss_of(replace(part, tensors={**part.tensors, "new_logprobs": new_BT}))
        gradients.append(token_gradients(loss.total, new_BT))
        total += float(loss.total.detach())
        policy += float(loss.policy)
        kl += float(loss.kl)
    return Losses(total, policy, kl, gradients)


def loss_probes(parts: Sequence[Part], loss_of: LossOf) -> tuple[dict[str, float], dict[str, list[Tensor]]]:
    """(loss_again, loss_padded, ...; gradients_split, gradients_perturbed with one tensor per part)."""
    wider = [part.each(lambda values_BT: torch.nn.functional.pad(values_BT, (0, COLUMNS))) for part in parts]
    padded = losses(wider, loss_of)
    numbers = {
        "loss_again": losses(parts, loss_of).total,
        "loss_padded": padded.total,
        "loss_permuted": losses([part.only(range(len(part.rows))[::-1]) for part in parts], loss_of).total,
    }
    gradients = {}
    if any(len(part.rows) > 1 for part in parts):
        halves = [
            [part.only(half) for half in (range(middle), range(middle, len(part.rows))) if len(half)]
            for part in parts
            for middle in [len(part.rows) // 2]
        ]
        split = losses([half for both in halves for half in both], loss_of)
        numbers["loss_split"] = split.total
        rest = iter(split.gradients)
        gradients["gradients_split"] = [torch.cat([next(rest) for _ in both]) for both in halves]
    perturbed = losses([_with_garbage(part, GARBAGE) for part in wider], loss_of)
    if not _differ(perturbed, padded):  # what a mean over padding would show; only then what an overflow would
        perturbed = losses([_with_garbage(part, EXTREME) for part in wider], loss_of)
    numbers["loss_perturbed"] = perturbed.total
    gradients["gradients_perturbed"] = [gradients_BT[:, :-COLUMNS] for gradients_BT in perturbed.gradients]
    return numbers, gradients


def _with_garbage(part: Part, garbage: Mapping[str, float]) -> Part:
    mask_BT = part.tensors["mask"]
    spoiled = {name: part.tensors[name].where(mask_BT, garbage[name]) for name in garbage if name in part.tensors}
    return replace(part, tensors={**part.tensors, **spoiled})


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
