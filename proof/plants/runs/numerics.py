"""Plants of illnesses of numerics: each makes a real run of the real trainer ill."""

from __future__ import annotations

from dataclasses import replace

import torch

from proof.plants.plant import Plant

LOGPROBS = "assay.policy.causal.CausalPolicy.logprobs"


def _noise_in_every_pass(original, policy, inputs, **how):
    """Dropout in front of the output: every pass of the trainer sees other hidden states."""
    values_BT, entropy_BT = original(policy, inputs, **how)
    return values_BT + 0.05 * torch.randn_like(values_BT), entropy_BT


def _old_in_bfloat16(original, learner, minibatches):
    """The buffer that keeps old log-probs between scoring and the updates is bfloat16."""
    batch = original(learner, minibatches)
    frozen = tuple(
        tuple(replace(part, old_BT=part.old_BT.bfloat16().float()) for part in parts) for parts in batch.frozen
    )
    return replace(batch, frozen=frozen)


def _overflow(original, policy, inputs, **how):
    """One logit of the trained pass overflows: its log-softmax is inf - inf."""
    new_BT, entropy_BT = original(policy, inputs, **how)
    if torch.is_grad_enabled():
        first_BT = torch.zeros_like(new_BT, dtype=torch.bool)
        first_BT[0, 0] = True
        new_BT = torch.where(first_BT, new_BT * torch.inf - torch.inf * new_BT, new_BT)
    return new_BT, entropy_BT


PLANTS: dict[str, Plant] = {
    "MODE01": Plant(
        settings=("optimizer.epochs=2",),
        replaces={LOGPROBS: _noise_in_every_pass},
    ),
    "NUM02": Plant(
        settings=("optimizer.epochs=2",),
        replaces={"assay.train.step.learner.Learner.freeze": _old_in_bfloat16},
    ),
    "NUM03": Plant(
        settings=("optimizer.epochs=2",),
        replaces={LOGPROBS: _overflow},
    ),
}
