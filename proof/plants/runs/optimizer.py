"""Plants of illnesses of the optimizer: each makes a real run of the real trainer ill."""

from __future__ import annotations

import math

from proof.plants.plant import Plant


def _rounded_masters(original, learner, rate, norm):
    """The optimizer steps weights that are kept in bfloat16."""
    for master in learner.masters:
        master.data.copy_(master.data.bfloat16())
    before = [master.detach().clone() for master in learner.masters]
    original(learner, rate, norm)
    for master, weight in zip(learner.masters, learner.weights, strict=True):
        master.data.copy_(master.data.bfloat16())
        weight.data.copy_(master.data)
    return _distance_moved(learner, before)


def _half_forgotten(original, learner, rate, norm):
    """The optimizer holds every other tensor."""
    kept = [master.detach().clone() for master in learner.masters]
    original(learner, rate, norm)
    for number, (master, before) in enumerate(zip(learner.masters, kept, strict=True)):
        if number % 2:
            master.data.copy_(before)
            learner.weights[number].data.copy_(before)
    return _distance_moved(learner, kept)


def _distance_moved(learner, before):
    """(distance of all weights from where they were, tensors that moved), as Learner._step returns it."""
    lengths = [float((master - start).norm()) for master, start in zip(learner.masters, before, strict=True)]
    return math.hypot(*lengths), sum(length > 0 for length in lengths)


PLANTS: dict[str, Plant] = {
    "HYP01": Plant(settings=("optimizer.learning_rate=0.03",), steps=24),
    "OPT01": Plant(
        settings=("optimizer.learning_rate=1e-6", "model.dtype=bfloat16"),
        replaces={"assay.train.step.learner.Learner._step": _rounded_masters},
    ),
    "OPT02": Plant(replaces={"assay.train.step.learner.Learner._step": _half_forgotten}),
}
