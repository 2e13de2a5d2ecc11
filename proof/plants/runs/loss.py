"""Plants of illnesses of the loss: each makes a real run of the real trainer ill."""

from __future__ import annotations

from dataclasses import replace

from proof.plants.plant import Plant

LOSS = "assay.train.step.learner.policy_loss"


def _negated_twice(original, **tensors):
    """One minus too many."""
    loss = original(**tensors)
    return replace(loss, total=-loss.total, policy=-loss.policy)


def _own_counts(original, *, mask_BT, totals, **how):
    """Every micro-batch is a mean of its own, and the means are averaged."""
    own = replace(
        totals,
        sequences=len(mask_BT),
        tokens=int(mask_BT.sum()),
        share_of_rollout_tokens=float(mask_BT.sum()),
    )
    loss = original(mask_BT=mask_BT, totals=own, **how)
    share = len(mask_BT) / totals.sequences
    return replace(loss, total=loss.total * share, policy=loss.policy * share, kl=loss.kl * share)


def _detached_logprobs(original, **tensors):
    """The loss is computed from log-probs without a graph."""
    new_BT = tensors["new_BT"]
    return original(**{**tensors, "new_BT": new_BT.detach() + 0.0 * new_BT})


def _divided_again(original, **tensors):
    """The loss is normalised over the whole update already; gradient accumulation divides once more."""
    loss = original(**tensors)
    return replace(loss, total=loss.total / 2, policy=loss.policy / 2, kl=loss.kl / 2)


PLANTS: dict[str, Plant] = {
    "LOSS01": Plant(replaces={LOSS: _negated_twice}),
    "LOSS03": Plant(
        settings=("optimizer.microbatches=3",),
        replaces={LOSS: _own_counts},
    ),
    "LOSS05": Plant(
        settings=("optimizer.epochs=1", "loss.objective=grpo"),
        replaces={LOSS: _detached_logprobs},
    ),
    "LOSS06": Plant(settings=("optimizer.microbatches=2",), replaces={LOSS: _divided_again}),
}
