"""Plants of illnesses of the loss: each makes a real run of the real trainer ill."""

from __future__ import annotations

from proof.plants.plant import Plant


def _negated_twice(original):  # type: ignore[no-untyped-def]
    """One minus too many."""

    def policy_loss(**tensors):  # type: ignore[no-untyped-def]
        from dataclasses import replace

        loss = original(**tensors)
        return replace(loss, total=-loss.total, policy=-loss.policy)

    return policy_loss


def _own_counts(original):  # type: ignore[no-untyped-def]
    """Every micro-batch is a mean of its own, and the means are averaged."""

    def policy_loss(*, mask_BT, totals, **how):  # type: ignore[no-untyped-def]
        from dataclasses import replace

        own = replace(
            totals,
            sequences=len(mask_BT),
            tokens=int(mask_BT.sum()),
            share_of_rollout_tokens=float(mask_BT.sum()),
        )
        loss = original(mask_BT=mask_BT, totals=own, **how)
        share = len(mask_BT) / totals.sequences
        return replace(loss, total=loss.total * share, policy=loss.policy * share, kl=loss.kl * share)

    return policy_loss


def _detached_logprobs(original):  # type: ignore[no-untyped-def]
    """The loss is computed from log-probs without a graph."""

    def policy_loss(**tensors):  # type: ignore[no-untyped-def]
        new_BT = tensors["new_BT"]
        return original(**{**tensors, "new_BT": new_BT.detach() + 0.0 * new_BT})

    return policy_loss


def _divided_again(original):  # type: ignore[no-untyped-def]
    """The loss is normalised over the whole update already; gradient accumulation divides once more."""

    def policy_loss(**tensors):  # type: ignore[no-untyped-def]
        from dataclasses import replace

        loss = original(**tensors)
        return replace(loss, total=loss.total / 2, policy=loss.policy / 2, kl=loss.kl / 2)

    return policy_loss


PLANTS: dict[str, Plant] = {
    "LOSS01": Plant(replaces={"assay.train.step.learner.policy_loss": _negated_twice}),
    "LOSS03": Plant(
        settings=("optimizer.microbatches=3",),
        replaces={"assay.train.step.learner.policy_loss": _own_counts},
    ),
    "LOSS05": Plant(
        settings=("optimizer.epochs=1", "loss.objective=grpo"),
        replaces={"assay.train.step.learner.policy_loss": _detached_logprobs},
    ),
    "LOSS06": Plant(
        settings=("optimizer.microbatches=2",), replaces={"assay.train.step.learner.policy_loss": _divided_again}
    ),
}
