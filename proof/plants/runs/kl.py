"""Plants of illnesses of the KL: each makes a real run of the real trainer ill."""

from __future__ import annotations

from dataclasses import replace

from proof.plants.plant import Plant

LOSS = "assay.train.step.learner.policy_loss"


def _subtracts_the_kl(original, **tensors):
    """policy - kl in the place of policy + kl; what is logged as the KL stays as it is."""
    loss = original(**tensors)
    flipped = replace(tensors["settings"], kl_coef=0.0)
    without = original(**{**tensors, "settings": flipped})
    return replace(loss, total=2 * without.total - loss.total)


def _under_no_grad(original, **tensors):
    """The KL is added as a number: its log-probs were computed under no_grad."""
    whole = original(**tensors)
    alone = original(**{**tensors, "settings": replace(tensors["settings"], kl_coef=0.0)})
    return replace(whole, total=alone.total + whole.kl)


def _exchanged(original, new_BT, ref_BT, estimator="k3"):
    return original(ref_BT, new_BT, estimator)


def _two_names_for_one_model(original, policy, **how):
    """`reference = policy`: nothing is copied."""
    return policy


PLANTS: dict[str, Plant] = {
    "KL01": Plant(
        settings=("loss.kl_coef=0.2", "optimizer.epochs=1"),
        replaces={LOSS: _subtracts_the_kl},
    ),
    "KL02": Plant(
        settings=("loss.kl_coef=0.2", "optimizer.epochs=3", "optimizer.learning_rate=3e-3"),
        replaces={LOSS: _under_no_grad},
    ),
    "KL04": Plant(
        settings=("loss.kl_coef=0.05", "optimizer.epochs=1", "optimizer.learning_rate=3e-3"),
        replaces={"assay.grpo.kl_estimate": _exchanged},
        steps=6,
    ),
    "KL05": Plant(
        settings=("loss.kl_coef=0.1",),
        replaces={"assay.policy.causal.CausalPolicy.frozen_copy": _two_names_for_one_model},
        steps=5,
    ),
}
