"""Plants of illnesses of the ratio and its clip: each makes a real run of the real trainer ill."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from assay.doctor.recompute.loss import WITHOUT_CLIP
from proof.plants.plant import Plant

LOSS = "assay.train.step.learner.policy_loss"
FREEZE = "assay.train.step.learner.Learner.freeze"


def _never_taken(original, **tensors):
    """The clamped objective is computed and the minimum never taken: the loss is that of a clip without bounds."""
    free = replace(tensors["settings"], clip_low=WITHOUT_CLIP, clip_high=WITHOUT_CLIP)
    unclipped = original(**{**tensors, "settings": free})
    return replace(unclipped, clipped_BT=original(**tensors).clipped_BT)


def _minus_inside_min(original, **tensors):
    """min(-r A, -clip(r) A) is -max(r A, clip(r) A): the loss of the negated advantages, negated."""
    turned = original(**{**tensors, "advantages_BT": -tensors["advantages_BT"]})
    return replace(turned, total=-turned.total, policy=-turned.policy)


def _scale_lost_in_one_pass(original, policy, inputs, **how):
    """The pass under no_grad, which computes old, goes through a wrapper that loses the model's scale of logits."""
    if not torch.is_grad_enabled():
        policy = replace(policy, temperature=1.05 * policy.temperature)
    return original(policy, inputs, **how)


def _old_is_new_detached(original, learner, minibatches):
    """No old log-probs are kept, however many updates follow; each update then takes its own new ones."""
    batch = original(learner, minibatches)
    frozen = tuple(tuple(replace(part, old_BT=None) for part in parts) for parts in batch.frozen)
    return replace(batch, frozen=frozen)


def _arguments_exchanged(original, **tensors):
    return original(**{**tensors, "new_BT": tensors["old_BT"], "old_BT": tensors["new_BT"]})


def _product_over_the_row(original, new_BT, old_BT, mask_BT, level="token"):
    """The sequence ratio without the division by the length."""
    if level != "sequence":
        return original(new_BT, old_BT, mask_BT, level)
    log_ratio_BT = (new_BT - old_BT).where(mask_BT, 0.0)
    return log_ratio_BT.sum(dim=1, keepdim=True).expand_as(log_ratio_BT).clamp(-20.0, 20.0).exp()


def _filled_in(original, learner, minibatches):
    """Probabilities are stored, that of a last token is lost in one row of four, and log(0 + 1e-7) stands for it."""

    def fill(microbatch, part):
        old_BT, mask_BT = part.old_BT.clone(), microbatch.mask_BT
        rows = torch.arange(len(old_BT), device=old_BT.device)[mask_BT.any(dim=1)][::4]
        old_BT[rows, (mask_BT.sum(dim=1) - 1)[rows]] = math.log(1e-7)
        return replace(part, old_BT=old_BT)

    batch = original(learner, minibatches)
    frozen = tuple(
        tuple(map(fill, minibatch.microbatches, parts))
        for minibatch, parts in zip(minibatches, batch.frozen, strict=True)
    )
    return replace(batch, frozen=frozen)


PLANTS: dict[str, Plant] = {
    "CLIP01": Plant(
        settings=("optimizer.epochs=4", "optimizer.learning_rate=1e-3", "optimizer.warmup=0"),
        replaces={LOSS: _never_taken},
    ),
    "CLIP02": Plant(
        settings=("optimizer.epochs=4", "optimizer.learning_rate=1e-3", "optimizer.warmup=0"),
        replaces={LOSS: _minus_inside_min},
    ),
    "RAT01": Plant(
        settings=("optimizer.epochs=2",),
        replaces={"assay.policy.causal.CausalPolicy.logprobs": _scale_lost_in_one_pass},
    ),
    "RAT02": Plant(
        settings=("optimizer.epochs=2",),
        replaces={FREEZE: _old_is_new_detached},
    ),
    "RAT04": Plant(replaces={LOSS: _arguments_exchanged}),
    "RAT06": Plant(
        settings=("loss.objective=gspo", "loss.clip_low=0.0003", "loss.clip_high=0.0004"),
        replaces={"assay.grpo.importance_ratio": _product_over_the_row},
    ),
    "RAT07": Plant(
        settings=("optimizer.epochs=2",),
        replaces={FREEZE: _filled_in},
    ),
}
