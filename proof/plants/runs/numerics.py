"""Plants of illnesses of numerics: each makes a real run of the real trainer ill."""

from __future__ import annotations

from dataclasses import replace as replaced

from proof.plants.plant import Plant


def _noise_in_every_pass(original):  # type: ignore[no-untyped-def]
    """Dropout in front of the output: every pass of the trainer sees other hidden states."""

    def logprobs(policy, batch, **how):  # type: ignore[no-untyped-def]
        import torch

        values_BT, entropy_BT = original(policy, batch, **how)
        return values_BT + 0.05 * torch.randn_like(values_BT), entropy_BT

    return logprobs


def _old_in_bfloat16(original):  # type: ignore[no-untyped-def]
    """The buffer that keeps old log-probs between scoring and the updates is bfloat16."""

    def score(learner, minibatches):  # type: ignore[no-untyped-def]
        batch = original(learner, minibatches)
        scored = tuple(
            tuple(replaced(part, old_BT=part.old_BT.bfloat16().float()) for part in parts) for parts in batch.scored
        )
        return replaced(batch, scored=scored)

    return score


def _overflow(original):  # type: ignore[no-untyped-def]
    """One logit of the trained pass overflows: its log-softmax is inf - inf."""

    def logprobs(policy, batch, **how):  # type: ignore[no-untyped-def]
        import torch

        new_BT, entropy_BT = original(policy, batch, **how)
        if torch.is_grad_enabled():
            first_BT = torch.zeros_like(batch.mask_BT)
            first_BT[0, 0] = True
            new_BT = torch.where(first_BT, new_BT * torch.inf - torch.inf * new_BT, new_BT)
        return new_BT, entropy_BT

    return logprobs


PLANTS: dict[str, Plant] = {
    "MODE01": Plant(
        settings=("optimizer.epochs=2",),
        replaces={"assay.policy.causal.CausalPolicy.logprobs": _noise_in_every_pass},
    ),
    "NUM02": Plant(
        settings=("optimizer.epochs=2",),
        replaces={"assay.train.step.learner.Learner.score": _old_in_bfloat16},
    ),
    "NUM03": Plant(
        settings=("optimizer.epochs=2",),
        replaces={"assay.policy.causal.CausalPolicy.logprobs": _overflow},
    ),
}
